#!/usr/bin/env bash
# Installs the Python package as a user does, into a new environment, and tests it: its own tests, types, the example.
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
"$venv/bin/pip" install --quiet --disable-pip-version-check . -C "build-args=--profile=$profile"
# Away from the sources: what is tested is what was installed.
cp -r python/tests target/python/
"$venv/bin/python" -m pytest --quiet --rootdir target/python target/python/tests
"$venv/bin/mypy"
models=${ORCHESTRION_MODELS:-../shared/models}
if [ -d "$models" ]; then
    zoo=$(scripts/zoo.sh minilm)
    sentences=$("$venv/bin/python" examples/python/sentences.py "$zoo/minilm/model.onnx" "$models/cases/minilm.npz")
    echo "$sentences"
    # The sentences come in pairs: the nearest of each is its paraphrase.
    [ "$(awk -F '  ~  ' '{ print $2 }' <<<"$sentences" | sort -u | wc -l)" = 16 ]
fi
