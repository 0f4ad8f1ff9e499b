#!/usr/bin/env bash
# Which generated kernels differ between a commit and the working tree: scripts/corpus.py for both.
#   scripts/corpus.sh COMMIT [--only WORD ...] [--targets WORD ...]
# The commit must have `orchestrion compile --emit-source`. The exit code is 1 if a kernel differs.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
commit=$(git -C "$root" rev-parse --verify "$1^{commit}")
shift
python=$("$root/scripts/python-env.sh")
models=$("$root/scripts/zoo.sh")
work=$root/target/corpus
before=$work/$commit
mkdir -p "$work"
if [ ! -x "$before/target/release/orchestrion" ]; then
    rm -rf "$before"
    git -C "$root" archive --prefix="$commit/" "$commit" | tar -x -C "$work"
    cargo build --locked --release -p orchestrion-cli --manifest-path "$before/Cargo.toml" --target-dir "$before/target"
fi
cargo build --locked --release -p orchestrion-cli --manifest-path "$root/Cargo.toml"
"$python" "$root/scripts/corpus.py" hash "$before/kernels.tsv" --models "$models" \
    --orchestrion "$before/target/release/orchestrion" "$@"
"$python" "$root/scripts/corpus.py" hash "$work/kernels.tsv" --models "$models" "$@"
"$python" "$root/scripts/corpus.py" compare "$before/kernels.tsv" "$work/kernels.tsv"
