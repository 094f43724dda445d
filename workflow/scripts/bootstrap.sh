#!/usr/bin/env bash
# Make the virtual environment from the locks. Usage: bootstrap.sh FOLDER
set -euo pipefail
venv=$1
envs=$(dirname "$0")/../envs

python=""
for candidate in python3 python3.11 python3.12 python3.13; do
  if "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "pipelag needs Python 3.11 or newer, and neither python3 nor python3.11 to python3.13 is that: install one" >&2
  exit 1
fi

exec 9>"$venv.lock"
if command -v flock >/dev/null; then flock 9; fi
if [ -f "$venv/.installed" ] && [ "$venv/.installed" -nt requirements.lock ] && [ "$venv/.installed" -nt pyproject.toml ]; then
  exit 0 # another make, waited for above, has just done it
fi

echo "making $venv with $("$python" --version): torch with CUDA, about 3 GB to download and 6 GB on disk"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$envs/uv.lock"
install() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"; }

# fairseq first: with torch in sight its build wants CUDA's compiler.
if "$venv/bin/python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("fairseq") is None)'; then
  : # it is there
elif ! command -v "${CXX:-g++}" >/dev/null && ! command -v c++ >/dev/null; then
  echo "no C++ compiler (g++) is here, so fairseq is left out: what trains its network says so; install one and remove $venv to have it" >&2
elif ! { install --require-hashes -r "$envs/fairseq-build.lock" &&
  install --require-hashes --no-deps --no-build-isolation -r "$envs/fairseq.lock"; }; then
  echo "fairseq could not be built, so it is left out: what trains its network says so" >&2
fi
install --require-hashes -r requirements.lock
install --no-deps --no-build-isolation -e .
touch "$venv/.installed"
