#!/usr/bin/env bash
# Run all tests, in two halves of about equal length side by side, as most tests keep only one core busy. `make test`
# and CI call it; its arguments go to pytest. The second half's output is in half.log, and is printed at the end.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
python=${PYTHON:-.venv/bin/python}
second=(tests/{results,experiments,report,theory,partitioner,models,simulate,stage,methods,timing,schedules})

"$python" -m pytest -q "$@" "${second[@]}" > half.log 2>&1 &
half=$!
trap 'kill "$half" 2>/dev/null' EXIT # Ctrl-C does not reach a script's background jobs
failed=0
"$python" -m pytest -q "$@" tests "${second[@]/#/--ignore=}" || failed=1
wait "$half" || failed=1
cat half.log
exit "$failed"
