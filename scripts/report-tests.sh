#!/usr/bin/env bash
# Tests reports in headless Chromium: that of the system, or Debian's package, which is installed if this user may.
#   scripts/report-tests.sh [PYTEST ARGUMENT ...]
# `target/report` keeps the environment for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=crates/orchestrion/tests/report
venv=target/report/venv
if ! cmp -s "$tests/requirements.txt" "$venv/.requirements" 2>/dev/null; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$tests/requirements.txt"
    cp "$tests/requirements.txt" "$venv/.requirements"
fi
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if ! browser >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2
    else
        echo "no Chromium: install the package chromium" >&2
        exit 1
    fi
fi
cargo build --locked -p orchestrion-cli
CHROMIUM=$(browser)
ORCHESTRION=$(realpath "${CARGO_TARGET_DIR:-target}/debug/orchestrion")
ORCHESTRION_TEST_NVRTC=${ORCHESTRION_TEST_NVRTC:-$(scripts/nvrtc.sh)}
# Plans of earlier runs would say nothing of this one.
ORCHESTRION_CACHE=$(mktemp -d)
trap 'rm -rf "$ORCHESTRION_CACHE"' EXIT
chmod 700 "$ORCHESTRION_CACHE"
export CHROMIUM ORCHESTRION ORCHESTRION_TEST_NVRTC ORCHESTRION_CACHE
"$venv/bin/python" -m pytest --quiet -p no:cacheprovider "$tests" "$@"
