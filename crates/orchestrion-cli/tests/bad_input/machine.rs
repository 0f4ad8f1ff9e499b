//! Machines that lack a compiler, or a place for the cache.

use crate::support::{Session, good_model};
use std::process::Stdio;

/// A compiler that answers and compiles what it is tried with, but does this to kernels.
fn compiler(fate: &str) -> String {
    format!("#!/bin/sh\ncase \"$*\" in\n*--version*|*probe*) exec cc \"$@\" ;;\nesac\n{fate}\n")
}

#[test]
fn compilers() {
    let mut session = Session::new("compilers");
    session.write("good.onnx", good_model().encode());
    session.case("no compiler under this name", "compile good.onnx --cc /nonexistent/cc");
    session.case("a compiler that fails at once", "compile good.onnx --cc /bin/false");
    session.write_script("nothing", "#!/bin/sh\necho nothing 1.0\n");
    session.case("a compiler that claims success", "compile good.onnx --cc ./nothing");
    session.write_script(
        "refusing",
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo refusing 1.0\necho 'no headers' >&2\nexit 1\n",
    );
    session.case("a compiler without headers", "compile good.onnx --cc ./refusing");
    session.write("text", "not a program");
    session.case("a compiler that is no program", "compile good.onnx --cc ./text");
    session.write_script("lazy", &compiler("exit 0"));
    session.case("a compiler that claims success for kernels", "compile good.onnx --cc ./lazy");
    session.write_script("killed", &compiler("kill -9 $$"));
    session.case("a compiler that is killed", "compile good.onnx --cc ./killed");
    session.write_script(
        "full",
        &compiler("echo 'error writing to /tmp/x.s: No space left on device' >&2\nexit 1"),
    );
    session.case("a compiler on a full disk", "compile good.onnx --cc ./full");
    let mut command = session.command("doctor --cc /nonexistent/cc");
    command.stdout(Stdio::null());
    session.observe("a machine without compiler, examined", "doctor --cc /nonexistent/cc", command);
    let mut command = session.command("compile good.onnx");
    command.env("PATH", "/nonexistent");
    session.observe("no compiler anywhere", "compile good.onnx", command);
    session.finish();
}

#[test]
fn gpus() {
    let mut session = Session::new("gpus");
    session.write("good.onnx", good_model().encode());
    session.write("text", "not a library");
    session.case("no driver", "compile good.onnx --target cuda --cuda-driver /nonexistent/libcuda.so.1");
    session.case("a driver that is no library", "compile good.onnx --target cuda --cuda-driver ./text");
    session.case("no NVRTC", "compile good.onnx --target cuda:sm_90 --nvrtc /nonexistent/libnvrtc.so");
    session.case("a precision of GPUs on a CPU", "compile good.onnx --target x86-64-v3 --precision f16");
    session.case("another one", "compile good.onnx --target x86-64-v3 --precision tf32");
    session.finish();
}

#[test]
fn caches() {
    let mut session = Session::new("caches");
    session.write("good.onnx", good_model().encode());
    session.write("file", "");
    session.case("a cache that is a file", "compile good.onnx --cache-dir file");
    session.case("a cache below a file", "compile good.onnx --cache-dir file/cache");
    session.case("a cache on a full disk", "compile good.onnx --cache-dir /dev/full");
    session.case("a cache where none can be", "compile good.onnx --cache-dir /proc/cache");
    // Not even the administrator can write here, unlike to a folder without permissions.
    std::fs::create_dir(session.work().join("fixed")).unwrap();
    std::os::unix::fs::symlink("/proc/sys", session.work().join("fixed/kernels")).unwrap();
    session.case("a cache that cannot be written", "compile good.onnx --cache-dir fixed");
    session.case("a cache that cannot be read", "cache --cache-dir file stats");
    session.finish();
}
