//! `include/orchestrion.h` says what the sources say.

use std::path::Path;

#[test]
fn the_header_is_generated_from_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("the configuration is read");
    let library = folder.join("src/lib.rs");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(library).generate();
    let mut generated = Vec::new();
    bindings.expect("the sources are read").write(&mut generated);
    let path = folder.join("include/orchestrion.h");
    if std::env::var_os("ORCHESTRION_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("the header is written");
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "include/orchestrion.h differs from the sources: ORCHESTRION_UPDATE_HEADER=1 cargo test -p orchestrion-c writes it"
    );
}
