#!/usr/bin/env bash
# Runs a fuzz target (see fuzz/README.md) for some seconds: scripts/fuzz.sh onnx 600
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
target=${1:?a target: onnx, tensor, prim, thread, artifact or npy}
seconds=${2:-60}
host=$(rustc -vV | sed -n 's/^host: //p')

# The flags that make coverage visible to libFuzzer; `--target` keeps them away from build scripts.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code"
cargo build --release --target "$host" --bin "$target"
mkdir -p found "target/corpus/$target"
"target/$host/release/$target" "target/corpus/$target" "corpus/$target" -artifact_prefix="found/$target-" \
    -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1
