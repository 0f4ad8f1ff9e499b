#!/usr/bin/env bash
# Runs the examples of learnt networks and checks what they print. Needs the environment of scripts/python-tests.sh, which has the
# package, and MiniLM's weights in ../shared/models (or $ORCHESTRION_MODELS).
#   scripts/examples.sh [PROFILE]      cargo's profile of the command and the C library; default: dev
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-dev}
python=target/python/venv/bin/python
models=${ORCHESTRION_MODELS:-../shared/models}
out=$PWD/target/examples

digits=$("$python" examples/python/digits.py)
echo "$digits"
# Trained through the backend, the network is as good as in eager PyTorch, within five images.
awk '{ right[$1] = $2 } END { ours = right["orchestrion:"]; exit ours < 340 || ours < right["eager:"] - 5 }' <<<"$digits"

if [ ! -d "$models" ]; then
    echo "no weights in $models: the examples of sentences do not run"
    exit
fi
model=$(scripts/zoo.sh minilm)/minilm/model.onnx
cases=$models/cases/minilm.npz
mkdir -p "$out"
"$python" examples/python/sentences.py "$model" "$cases" | tee "$out/python.txt"
# The sentences come in pairs: the nearest of each is its paraphrase.
awk -F '  ' 'NR % 2 { first = $2; nearest = $4; next } $2 == nearest && $4 == first { pairs++ } END { exit pairs != 8 }' "$out/python.txt"
"$python" examples/python/sentences_torch.py "$model" "$cases" >"$out/torch.txt"
cmp "$out/python.txt" "$out/torch.txt"

scripts/install-c.sh "$out" "$profile"
cargo run --locked --quiet --profile "$profile" -p orchestrion-cli -- compile "$model" -o "$out/minilm.orc"
"$python" -m zipfile -e "$cases" "$out/minilm"
cc examples/c/sentences.c -I"$out/include" -L"$out/lib" -Wl,-rpath,"$out/lib" -lorchestrion -o "$out/sentences"
"$out/sentences" "$out/minilm.orc" "$out/minilm" >"$out/c.txt"
cmp "$out/python.txt" "$out/c.txt"
