#!/usr/bin/env bash
# Installs the Python package as a user does, into an environment of its own, and tests it: its tests, types, samples of PyTorch's
# operator tests, pages of the API.
#   scripts/python-tests.sh [PROFILE]      cargo's profile of the native module; default: dev
# `target/python` keeps the environment, without the package, for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-dev}
venv=target/python/venv
stamp=$venv/.requirements
if ! cmp -s python/tests/requirements.txt "$stamp" 2>/dev/null; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r python/tests/requirements.txt
    cp python/tests/requirements.txt "$stamp"
fi
"$venv/bin/pip" uninstall --quiet --yes orchestrion 2>/dev/null || true
# As README says; then the wheel for other machines, which is tested.
"$venv/bin/pip" install --quiet --disable-pip-version-check . -C "build-args=--profile=$profile"
(cd target && python/venv/bin/python -c "import orchestrion")
wheel=$(scripts/wheel.sh "$profile")
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
# Away from the sources: what is tested is what was installed.
cp -r python/tests target/python/
"$venv/bin/python" -m pytest --quiet --rootdir target/python target/python/tests
"$venv/bin/mypy"
"$venv/bin/python" scripts/opinfo.py --samples 1 --noncontiguous --gradients --limit 60
"$venv/bin/pdoc" --no-include-undocumented -t scripts/pdoc -o target/python/api orchestrion orchestrion.torch
