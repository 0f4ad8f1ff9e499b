#!/usr/bin/env bash
# Writes the ONNX backend test cases of release VERSION under target/onnx-cases/VERSION and prints that folder.
#   scripts/onnx-cases.sh 1.17.0
set -euo pipefail
version=${1:?usage: scripts/onnx-cases.sh VERSION}
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/target/onnx-cases/$version
if [ ! -e "$out/.complete" ]; then
    site=$root/target/onnx-cases/site-$version
    mkdir -p "$out"
    python3 -m pip install --quiet --disable-pip-version-check --target "$site" "onnx==$version" numpy >&2
    PYTHONPATH=$site python3 -W ignore "$root/scripts/onnx_cases.py" "$out" >&2
    rm -rf "$site"
    touch "$out/.complete"
fi
echo "$out"
