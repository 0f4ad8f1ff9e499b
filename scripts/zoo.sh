#!/usr/bin/env bash
# Writes runnable models of the zoo (graph, drawn weights, inputs, ONNX Runtime's outputs) under target/zoo and
# prints that folder.
#   scripts/zoo.sh [NAME ...]          default: every model
# The graphs are read from ../shared/models, or from $ORCHESTRION_MODELS.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
models=${ORCHESTRION_MODELS:-$root/../shared/models}
python=$("$root/scripts/python-env.sh")
out=$root/target/zoo
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for path in "$models"/*.onnx; do names+=("$(basename "$path" .onnx)"); done
fi
for name in "${names[@]}"; do
    if [ ! -e "$out/$name/.complete" ]; then
        "$python" "$models/fill.py" "$name" --out "$out" --reference >&2
        touch "$out/$name/.complete"
    fi
done
echo "$out"
