#!/usr/bin/env bash
# Make the virtual environment from the locks. Usage: bootstrap.sh FOLDER
#
# PIPELAG_TORCH_INDEX: a package index with a smaller build of torch and torchvision, such as one for CPUs. The locked
# versions are taken from there, without hashes (the lock has those of PyPI's files), and CUDA's packages are left out.
set -euo pipefail
venv=$1
envs=$(dirname "$0")/../envs

python=""
for before in "(3, 14)" "(4,)"; do # a newer Python lacks wheels, so it is the last choice
  for candidate in python3 python3.11 python3.12 python3.13; do
    [ -n "$python" ] && break
    if "$candidate" -c "import sys; raise SystemExit(not (3, 11) <= sys.version_info < $before)" 2>/dev/null; then
      python=$candidate
    fi
  done
done
if [ -z "$python" ]; then
  echo "pipelag needs Python 3.11 or newer, but neither python3 nor python3.11 to python3.13 is one: install Python 3.11 to 3.13" >&2
  exit 1
fi

exec 9>"$venv.lock" # another make waits here; by Python, as macOS has no flock, and without locks on the disk it goes on
"$python" -c "import fcntl; fcntl.flock(9, fcntl.LOCK_EX)" 2>/dev/null || true
made_from=(requirements.lock pyproject.toml "$envs"/{uv,fairseq-build,fairseq}.lock) # as the Makefile has it
if [ -f "$venv/.installed" ] && [ -z "$(find "${made_from[@]}" -newer "$venv/.installed")" ]; then
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
  echo "fairseq could not be built, so it is left out, and results that train its network say so" >&2
fi
if [ -n "${PIPELAG_TORCH_INDEX:-}" ]; then
  rest=$(mktemp)
  trap 'rm -f "$rest"' EXIT
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
