#!/usr/bin/env bash
# Make the virtual environment from requirements.lock. Usage: bootstrap.sh FOLDER
set -euo pipefail
venv=$1

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

echo "making $venv with $("$python" --version) (torch is large: this takes a minute or more)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
touch "$venv/.installed"
