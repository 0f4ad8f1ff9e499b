#!/usr/bin/env bash
# Installs the C library: header, shared and static library, and the file by which pkg-config finds them.
#   scripts/install-c.sh PREFIX [PROFILE]          default: release
# With DESTDIR the files go below that folder, as packages need them. CC links the shared library.
set -euo pipefail
prefix=$(realpath -m "${1:?usage: scripts/install-c.sh PREFIX [PROFILE]}")
profile=${2:-release}
cd "$(dirname "$0")/.."
crate=crates/orchestrion-c
cargo=${CARGO:-cargo}
version=$("$cargo" pkgid --locked -p orchestrion-c | sed 's/.*[#@]//')
# Programs need a library of the same ABI: that number stands in the name that they are linked to.
soname=liborchestrion.so.0
# What the standard library of Rust needs on Linux (rustc --print native-static-libs).
needed="-lgcc_s -lutil -lrt -lpthread -lm -ldl"

"$cargo" build --locked -p orchestrion-c --profile "$profile"
built=${CARGO_TARGET_DIR:-target}/$profile
[ "$profile" = dev ] && built=${CARGO_TARGET_DIR:-target}/debug

lib=${DESTDIR:-}$prefix/lib
install -d "$lib/pkgconfig" "${DESTDIR:-}$prefix/include"
install -m 644 "$crate/include/orchestrion.h" "${DESTDIR:-}$prefix/include/orchestrion.h"
install -m 644 "$built/liborchestrion.a" "$lib/liborchestrion.a"
# The compiler of Rust gives symbols of a shared library no version, so the library is linked of the static one.
# shellcheck disable=SC2086
${CC:-cc} -shared -o "$lib/liborchestrion.so.$version" -Wl,-soname,$soname \
    -Wl,--version-script="$crate/orchestrion.map" -Wl,--gc-sections -Wl,-z,relro,-z,now,-z,nodelete \
    -Wl,--whole-archive "$built/liborchestrion.a" -Wl,--no-whole-archive $needed
ln -sf "liborchestrion.so.$version" "$lib/$soname"
ln -sf "$soname" "$lib/liborchestrion.so"
cat >"$lib/pkgconfig/orchestrion.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: orchestrion
Description: Compiles ONNX models into executables for CPUs and NVIDIA GPUs
Version: $version
Libs: -L\${libdir} -lorchestrion
Libs.private: $needed
Cflags: -I\${includedir}
END
