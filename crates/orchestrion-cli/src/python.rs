//! Where Python keeps packages on this machine: those of NVIDIA bring libraries.

use std::path::{Path, PathBuf};

/// The package folders of the active environment, of the user and of the system, in this order.
pub fn site_packages() -> Vec<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = from("HOME").map(|home| home.join(".local"));
    let environments = [from("VIRTUAL_ENV"), from("CONDA_PREFIX"), home];
    let roots = environments.into_iter().flatten().chain(["/usr/local", "/usr"].map(PathBuf::from));
    roots.flat_map(|root| folders_below(&root)).collect()
}

fn folders_below(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    let is_python =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
    let mut pythons: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_python).collect();
    pythons.sort();
    let folders =
        pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    folders.filter(|folder| folder.is_dir()).collect()
}
