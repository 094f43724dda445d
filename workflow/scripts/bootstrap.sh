#!/usr/bin/env bash
# Make the virtual environment from the locks. Usage: bootstrap.sh FOLDER
#
# PIPELAG_TORCH_INDEX: a package index with a smaller build of torch and torchvision, such as one for CPUs. The locked
# versions are taken from there, without hashes (the lock has those of PyPI's files), and CUDA's packages are left out.
set -euo pipefail
venv=$1
envs=$(dirname "$0")/../envs

# The locked NumPy and SciPy have no wheels for Python 3.15, and nothing was tried without the global interpreter lock.
suits='import sys; import sysconfig as s; raise SystemExit(not (3, 11) <= sys.version_info < (3, 15) or bool(s.get_config_var("Py_GIL_DISABLED")))'
python=""
for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
  if [ -z "$python" ] && "$candidate" -c "$suits" 2>/dev/null; then python=$candidate; fi
done
if [ -z "$python" ]; then
  here=$(python3 -c 'import sys; print("python3 is", sys.version.split(" (")[0])' 2>/dev/null) || here="there is no python3"
  echo "pipelag's locked packages are for Python 3.11 to 3.14, not free-threaded, and $here: install one of these, such as python3.13, beside it" >&2
  exit 1
fi

exec 9>"$venv.lock" # another make waits here; by Python, as macOS has no flock, and without locks on the disk it goes on
"$python" -c "import fcntl; fcntl.flock(9, fcntl.LOCK_EX)" 2>/dev/null || true
made_from=(requirements.lock pyproject.toml "$envs"/{uv,fairseq-build,fairseq}.lock) # as the Makefile has it
if [ -f "$venv/.installed" ] && [ -z "$(find "${made_from[@]}" -newer "$venv/.installed")" ] &&
  "$venv/bin/python" -c "import pip" 2>/dev/null; then
  exit 0 # another make, which was waited for above, has just made it
fi

[ -n "${PIPELAG_TORCH_INDEX:-}" ] || "$python" "$(dirname "$0")/supported.py"
if [ -n "${PIPELAG_TORCH_INDEX:-}" ]; then
  echo "making $venv with $("$python" --version): torch from \$PIPELAG_TORCH_INDEX; everything else takes about 0.7 GB on disk"
elif [[ $OSTYPE == darwin* ]]; then
  echo "making $venv with $("$python" --version): about 0.4 GB to download and 1.3 GB on disk"
else
  echo "making $venv with $("$python" --version): torch with CUDA, about 3 GB to download and 6.5 GB on disk"
fi
if [ -f "$venv/.installed" ] && [ -f "$venv/pyvenv.cfg" ] && ! "$venv/bin/python" -c "import pip" 2>/dev/null; then
  rm -rf "$venv" # the Python that it was made from has gone, or is another version since an upgrade of the system
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$envs/uv.lock"
install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"; }

# fairseq comes first: once torch is installed, its build asks for CUDA's compiler.
if "$venv/bin/python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("fairseq") is None)'; then
  : # it is installed already
elif ! command -v "${CXX:-g++}" >/dev/null && ! command -v c++ >/dev/null; then
  echo "there is no C++ compiler (g++), so fairseq is left out, and results that train its network say so; to have it, install a compiler, remove $venv and run make again" >&2
elif ! { install --require-hashes -r "$envs/fairseq-build.lock" &&
  install --require-hashes --no-deps --no-build-isolation -r "$envs/fairseq.lock"; }; then
  echo "fairseq could not be built (are Python's headers there, as of python3-dev?), so it is left out, and results that train its network say so" >&2
fi
rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
# immutables, for snakemake, has no wheel for Python 3.14: it is built without its extension, which only makes it faster,
# as it needs a compiler and Python's headers. Where there is a wheel, that is taken.
awk '/^[^ #]/ { it = /^immutables==/ } it' requirements.lock > "$rest"
CC=true install --no-cache --require-hashes --no-deps -r "$rest"
if [ -n "${PIPELAG_TORCH_INDEX:-}" ]; then
  awk '/^[^ #]/ { cuda = /^(torch|torchvision|triton|nvidia-.*|cuda-.*)==/ } !cuda' requirements.lock > "$rest"
  install --require-hashes --no-deps -r "$rest"
  torch=()
  while read -r each; do torch+=("$each"); done < <(grep -oE '^torch(vision)?==[^ ]+' requirements.lock) # bash 3.2
  if ! install --no-deps --default-index "$PIPELAG_TORCH_INDEX" "${torch[@]}"; then
    echo "\$PIPELAG_TORCH_INDEX has no ${torch[*]} for this Python: name an index that has both, or unset it to install PyPI's with CUDA" >&2
    exit 1
  fi
else
  install --require-hashes -r requirements.lock
fi
install --no-deps --no-build-isolation -e .
# Containers often set PYTHONDONTWRITEBYTECODE; without compiled modules every process compiles torch's, for seconds
"$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python3*/site-packages src >/dev/null 2>&1 || true # some templates do not compile
touch "$venv/.installed"
