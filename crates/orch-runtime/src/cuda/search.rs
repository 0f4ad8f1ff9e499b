//! Finding CUDA's libraries on this machine.
//!
//! The driver (`libcuda.so.1`) comes with the system's NVIDIA driver, so the system's loader finds it. NVRTC comes with
//! a CUDA toolkit or with the Python package `nvidia-cuda-nvrtc`; neither puts it where the loader looks.

use super::error::CudaError;
use crate::os::{check_whole, loader_message};
use libloading::Library;
use std::fs;
use std::path::{Path, PathBuf};

/// Where to look for CUDA's libraries besides the usual places.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchPaths {
    /// The driver's library; nothing else is tried if it is given.
    pub driver: Option<PathBuf>,
    /// NVRTC's library; nothing else is tried if it is given.
    pub nvrtc: Option<PathBuf>,
    /// `site-packages` folders of Python, which may hold NVIDIA's packages.
    pub site_packages: Vec<PathBuf>,
}

/// A library of CUDA, which stays loaded until the process ends: its threads may.
pub(super) struct Found {
    pub(super) library: &'static Library,
    pub(super) path: String,
}

/// Names that the loader may know NVRTC by, newest first.
const NVRTC_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Where NVIDIA's Python packages put NVRTC, within `site-packages`.
const NVRTC_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

const DRIVER_ADVICE: &str = "CUDA needs an NVIDIA GPU and its driver (https://www.nvidia.com/drivers); in a container, \
     start it with the GPU (Docker: `--gpus all`). Models compile for the CPU without";

const NVRTC_ADVICE: &str = "NVRTC compiles kernels for NVIDIA GPUs, and needs none itself: `pip install \
     nvidia-cuda-nvrtc` or a CUDA toolkit (https://developer.nvidia.com/cuda-downloads) brings it; name a file with the \
     option --nvrtc if it is elsewhere";

/// Loads the driver.
pub(super) fn driver(paths: &SearchPaths) -> Result<Found, CudaError> {
    let candidates =
        paths.driver.clone().map_or_else(|| vec![PathBuf::from("libcuda.so.1")], |path| vec![path]);
    first("the NVIDIA driver's library", &candidates, DRIVER_ADVICE)
}

/// Loads NVRTC.
pub(super) fn nvrtc(paths: &SearchPaths) -> Result<Found, CudaError> {
    let candidates = paths.nvrtc.clone().map_or_else(|| nvrtc_candidates(paths), |path| vec![path]);
    first("NVRTC (the CUDA compiler's library)", &candidates, NVRTC_ADVICE)
}

fn nvrtc_candidates(paths: &SearchPaths) -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> = NVRTC_NAMES.map(PathBuf::from).into();
    let folders = toolkits(Path::new("/usr/local")).into_iter();
    let packages = paths.site_packages.iter();
    let folders = folders.chain(packages.flat_map(|site| NVRTC_PACKAGES.map(|package| site.join(package))));
    for folder in folders {
        let there = NVRTC_NAMES.iter().map(|name| folder.join(name)).filter(|path| path.exists());
        candidates.extend(there);
    }
    candidates
}

/// The library folders of CUDA toolkits, the default one first and then the newest.
fn toolkits(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> =
        entries.map(|entry| name(&entry)).filter(|name| name.starts_with("cuda")).collect();
    let version = |name: &String| -> Vec<u32> {
        let digits = name.trim_start_matches("cuda").trim_start_matches('-');
        digits.split('.').filter_map(|part| part.parse().ok()).collect()
    };
    names.sort_by_key(|name| (name != "cuda", std::cmp::Reverse(version(name))));
    names.iter().map(|name| root.join(name).join("lib64")).collect()
}

/// Loads the first of these files that loads.
fn first(what: &'static str, candidates: &[PathBuf], advice: &'static str) -> Result<Found, CudaError> {
    let mut tried = Vec::new();
    for path in candidates {
        match open(path) {
            Ok(library) => return Ok(Found { library, path: path.display().to_string() }),
            Err(reason) => tried.push(reason),
        }
    }
    Err(CudaError::NoLibrary { library: what, tried, advice })
}

fn open(path: &Path) -> Result<&'static Library, String> {
    // NVRTC opens a companion by its bare name, which the loader knows if it is loaded already.
    for companion in companions(path) {
        check_whole(&companion)?;
        // One that does not load is missed, and named, by the first compilation.
        if let Ok(library) = load(&companion) {
            std::mem::forget(library);
        }
    }
    load(path).map(|library| &*Box::leak(Box::new(library)))
}

fn load(path: &Path) -> Result<Library, String> {
    check_whole(path)?;
    // SAFETY: a library with this name, or one that the caller names, is trusted to be NVIDIA's; its initialisers have
    // no preconditions.
    unsafe { Library::new(path) }.map_err(|error| loader_message(&error))
}

/// The libraries beside NVRTC that it needs: `libnvrtc-builtins.so` of its version.
fn companions(path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Vec::new();
    };
    let is_companion = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libnvrtc-builtins.so")
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_companion).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::TempDir;

    #[test]
    fn toolkits_are_tried_newest_first() {
        let dir = TempDir::new("toolkits").unwrap();
        for name in ["cuda-12.4", "cuda-13.0", "cuda-12.10", "cuda", "lib"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let expected = ["cuda", "cuda-13.0", "cuda-12.10", "cuda-12.4"];
        assert_eq!(toolkits(dir.path()), expected.map(|name| dir.path().join(name).join("lib64")));
        assert!(toolkits(&dir.path().join("absent")).is_empty());
    }

    #[test]
    fn packages_are_searched() {
        let dir = TempDir::new("packages").unwrap();
        let folder = dir.path().join(NVRTC_PACKAGES[1]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libnvrtc.so.12"), "").unwrap();
        let paths = SearchPaths { site_packages: vec![dir.path().to_owned()], ..SearchPaths::default() };
        assert_eq!(nvrtc_candidates(&paths).last(), Some(&folder.join("libnvrtc.so.12")));
        assert_eq!(nvrtc_candidates(&paths)[0], Path::new("libnvrtc.so.13"));
    }

    #[test]
    fn missing_libraries_are_named() {
        let given = Some(PathBuf::from("/nonexistent/library.so"));
        let paths = SearchPaths { driver: given.clone(), nvrtc: given, ..SearchPaths::default() };
        for (result, advice) in [(driver(&paths), "NVIDIA GPU"), (nvrtc(&paths), "pip install")] {
            let text = result.err().unwrap().to_string();
            assert!(text.contains("/nonexistent/library.so") && text.contains(advice), "{text}");
        }
    }
}
