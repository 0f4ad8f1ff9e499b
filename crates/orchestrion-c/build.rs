//! Names the shared library that cargo links as `scripts/install-c.sh` names the one that it installs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liborchestrion.so.0");
    }
}
