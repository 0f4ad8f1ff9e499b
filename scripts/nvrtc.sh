#!/usr/bin/env bash
# Installs NVRTC, the CUDA compiler's library, from PyPI into `.venv` at the repository root, and prints its path.
# It needs no GPU. Does nothing when it is there.
set -euo pipefail
# Of CUDA 13's first release: every driver for CUDA 13 loads what it compiles.
version=13.0.88
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
stamp=$venv/.nvrtc
if [ "$(cat "$stamp" 2>/dev/null)" != "$version" ]; then
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check "nvidia-cuda-nvrtc==$version" >&2
    echo "$version" >"$stamp"
fi
ls "$venv"/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13
