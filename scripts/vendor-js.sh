#!/usr/bin/env bash
# Fetches the libraries that pages of `explain --html` hold, in the versions that stand here, from npm. Needs npm; versions also stand in
# `crates/orchestrion/src/tools/report/page.rs` and `docs/dependencies.md`.
set -euo pipefail
vendor=$(cd "$(dirname "$0")/.." && pwd)/crates/orchestrion/src/tools/report/assets/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
    mkdir "$work/$2"
    tar xzf "$work/$(cd "$work" && npm pack --silent "$1")" -C "$work/$2" --strip-components=1
    cp "$work/$2/LICENSE" "$vendor/$2.LICENSE"
}
fetch @dagrejs/dagre@3.1.3 dagre
cp "$work/dagre/dist/dagre.min.js" "$vendor"
fetch uplot@1.6.32 uPlot
cp "$work/uPlot/dist/uPlot.iife.min.js" "$work/uPlot/dist/uPlot.min.css" "$vendor"
