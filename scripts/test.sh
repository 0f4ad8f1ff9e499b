#!/usr/bin/env bash
# All tests: the digits example, ONNX's backend cases, random graphs and small zoo models from end to end, the Python package,
# reports in a browser, examples in Python and C, then every crate's own.
set -euo pipefail
cd "$(dirname "$0")/.."
orchestrion=${CARGO_TARGET_DIR:-target}/debug/orchestrion
models=${ORCHESTRION_MODELS:-../shared/models}

cargo build --locked -p orchestrion-cli
digits=$(cargo run --locked -p orchestrion --example digits)
echo "$digits"
grep -q '^357 of 360 images' <<<"$digits"
python3 scripts/conformance.py 1.17.0 --every 6 --orchestrion "$orchestrion"
# Graphs that were wrong once, beside ONNX Runtime.
python=$(scripts/python-env.sh)
"$python" scripts/fuzz-models.py replay --orchestrion "$(realpath "$orchestrion")"
# New graphs with each change, which raises the seed in fuzz/seed.
"$python" scripts/fuzz-models.py --graphs 200 --jobs "$(nproc)" --orchestrion "$(realpath "$orchestrion")"
# Minimal models of what exporters write: plans for a CPU and a GPU without steps on the host, with few kernels, without spills.
"$python" bench/patterns/check.py --orchestrion "$orchestrion" --nvrtc "$(scripts/nvrtc.sh)" --jobs "$(nproc)"
if [ -d "$models" ]; then
    names=(digits_cnn dlrm minilm mirage_lora mirage_ntrans mobilenet_v2)
    zoo=$(scripts/zoo.sh "${names[@]}")
    for name in "${names[@]}"; do
        echo "verify $name"
        "$orchestrion" verify "$zoo/$name/model.onnx" --input-dir "$zoo/$name/test_data_set_0" --quiet
    done
    if grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
        for name in digits_cnn minilm mobilenet_v2; do
            echo "verify $name in bf16"
            "$orchestrion" verify "$zoo/$name/model.onnx" --input-dir "$zoo/$name/test_data_set_0" --quiet --precision bf16
        done
    fi
    .venv/bin/python bench/sentences.py --orchestrion "$orchestrion"
else
    echo "no zoo models in $models: they are not verified"
fi
scripts/python-tests.sh
# Reports in headless Chromium.
scripts/report-tests.sh
scripts/examples.sh
# NVRTC compiles without a GPU; tests that are told where it is do not skip.
ORCHESTRION_TEST_NVRTC=$(scripts/nvrtc.sh)
export ORCHESTRION_TEST_NVRTC
# The same random cases in every run: fuzz/README.md says how to look for new ones.
PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20} cargo test --locked --workspace --no-fail-fast
