#!/usr/bin/env bash
# Builds the Python package's wheel for Linux with glibc 2.28 or later, checks that it needs no more, and prints its path.
#   scripts/wheel.sh [PROFILE]      cargo's profile of the native module; default: release
# Zig links the module, since it has the symbols of that glibc. Nothing is compiled twice for it: `maturin --zig` would compile every
# crate once more, for a target of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
policy=manylinux_2_28
limit_bytes=$((25 << 20))
folder=$PWD/target/wheel
venv=$folder/venv
requirements="maturin>=1.9,<2 ziglang>=0.13 auditwheel"
if [ "$(cat "$venv/.requirements" 2>/dev/null)" != "$requirements" ]; then
    python3 -m venv --clear "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check $requirements >&2
    echo "$requirements" >"$venv/.requirements"
fi
cat >"$folder/cc" <<END
#!/bin/sh
PATH="$venv/bin:\$PATH" exec maturin zig cc -- -fno-sanitize=all -target $(uname -m)-linux-gnu.2.28 "\$@"
END
chmod +x "$folder/cc"
rm -rf "${folder:?}/$profile"
"$venv/bin/maturin" build --quiet --profile "$profile" --compatibility "$policy" --out "$folder/$profile" -- -C linker="$folder/cc" >&2
wheel=$(echo "$folder/$profile"/*.whl)
tags=$("$venv/bin/auditwheel" show "$wheel")
grep -q "the following platform tag: *\"$policy" <<<"$tags"
size_bytes=$(stat -c %s "$wheel")
if [ "$size_bytes" -gt "$limit_bytes" ]; then
    echo "$wheel has $size_bytes bytes; $limit_bytes are allowed" >&2
    exit 1
fi
echo "$wheel"
