#!/usr/bin/env bash
# Makes `.venv` at the repository root with what benchmarks and reference checks need (bench/requirements.txt).
# Does nothing when it is up to date. Prints the interpreter's path.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
stamp=$venv/.requirements
if ! cmp -s "$root/bench/requirements.txt" "$stamp" 2>/dev/null; then
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$root/bench/requirements.txt" >&2
    cp "$root/bench/requirements.txt" "$stamp"
fi
echo "$venv/bin/python"
