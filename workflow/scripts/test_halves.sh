#!/usr/bin/env bash
# All tests, in two halves side by side that take equally long: most tests keep one core busy. `make test` and CI call
# it; its words go to pytest. The second half's output comes at the end, and is in half.log.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
second=(tests/{results,experiments,report,theory,partitioner,models,simulate,stage,methods,timing,schedules})

"$python" -m pytest -q "$@" "${second[@]}" > half.log 2>&1 &
half=$!
trap 'kill "$half" 2>/dev/null' EXIT # the keyboard's signal does not reach what a script has in the background
failed=0
"$python" -m pytest -q "$@" tests "${second[@]/#/--ignore=}" || failed=1
wait "$half" || failed=1
cat half.log
exit "$failed"
