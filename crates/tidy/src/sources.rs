//! The files of the repository.

use std::path::{Path, PathBuf};

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// Folders that hold nothing of the project's own.
const SKIPPED: [&str; 4] = ["target", ".git", ".venv", "node_modules"];

/// All files below a folder that have one of these extensions, in order.
pub fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name) {
            found.extend(files(&path, extensions));
        } else if path.is_file() && extensions.contains(&extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The Rust files of a crate's product code: those below `src`, tests aside.
pub fn product_files(name: &str) -> Vec<PathBuf> {
    let all = files(&root().join("crates").join(name).join("src"), &["rs"]);
    all.into_iter().filter(|path| !is_test(path)).collect()
}

/// True for files that hold tests or what only tests use.
fn is_test(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    stem == "tests" || stem == "testing" || path.components().any(|part| part.as_os_str() == "tests")
}

/// The names of all crates, in order.
pub fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A file's items, tests aside.
///
/// # Panics
/// If it is not Rust.
pub fn items(path: &Path) -> Vec<syn::Item> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.items.into_iter().filter(|item| !is_of_tests(item)).collect()
}

/// True for what is compiled for tests only.
fn is_of_tests(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}
