//! Finding CUDA's libraries on this machine.
//!
//! The driver (`libcuda.so.1`) comes with the system's NVIDIA driver, so the system's loader finds it. NVRTC and cuBLASLt
//! come with a CUDA toolkit or with the Python packages `nvidia-cuda-nvrtc` and `nvidia-cublas`, cuDNN with packages of its
//! own; few of these put them where the loader looks.

use super::error::CudaError;
use crate::os::{check_library, loader_message};
use libloading::Library;
use libloading::os::unix;
use std::fs;
use std::path::{Path, PathBuf};

/// Where to look for CUDA's libraries besides the usual places.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchPaths {
    /// The driver's library; nothing else is tried if it is given.
    pub driver: Option<PathBuf>,
    /// NVRTC's library; nothing else is tried if it is given.
    pub nvrtc: Option<PathBuf>,
    /// cuBLASLt's library; nothing else is tried if it is given.
    pub cublaslt: Option<PathBuf>,
    /// cuDNN's library; nothing else is tried if it is given.
    pub cudnn: Option<PathBuf>,
    /// `site-packages` folders of Python, which may hold NVIDIA's packages.
    pub site_packages: Vec<PathBuf>,
}

/// A library of CUDA, which stays loaded until the process ends: its threads may.
pub(in crate::cuda) struct Found {
    pub(in crate::cuda) library: &'static Library,
    pub(in crate::cuda) path: String,
}

/// A library that comes with a CUDA toolkit or a Python package.
struct Sought {
    /// What it is.
    what: &'static str,
    /// Names that the loader may know it by, newest first.
    names: &'static [&'static str],
    /// Where Python packages put it, within `site-packages`.
    packages: &'static [&'static str],
    /// What the names of files beside it begin with that it needs.
    companions: Option<&'static str>,
    /// What to do if it is not there.
    advice: &'static str,
}

const NVRTC: Sought = Sought {
    what: "NVRTC (the CUDA compiler's library)",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    packages: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
    companions: Some("libnvrtc-builtins.so"),
    advice: NVRTC_ADVICE,
};

/// PyTorch's own builds have it beside their libraries, others take NVIDIA's packages.
const CUBLASLT: Sought = Sought {
    what: "cuBLASLt (a library of matrix products)",
    names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    packages: &["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"],
    companions: None,
    advice: CUBLASLT_ADVICE,
};

/// Its other libraries are beside it, where it finds them itself.
const CUDNN: Sought = Sought {
    what: "cuDNN (a library of convolutions)",
    names: &["libcudnn.so.9", "libcudnn.so"],
    packages: &["nvidia/cudnn/lib", "torch/lib"],
    companions: None,
    advice: CUDNN_ADVICE,
};

const DRIVER_ADVICE: &str = "CUDA needs an NVIDIA GPU and its driver (https://www.nvidia.com/drivers); in a container, \
     start it with the GPU (Docker: `--gpus all`). Models compile for the CPU without";

const NVRTC_ADVICE: &str = "NVRTC compiles kernels for NVIDIA GPUs, and needs none itself: `pip install \
     nvidia-cuda-nvrtc` or a CUDA toolkit (https://developer.nvidia.com/cuda-downloads) brings it; name a file with the \
     option --nvrtc if it is elsewhere";

const CUBLASLT_ADVICE: &str = "cuBLASLt is not needed: it multiplies matrices where --tune finds it faster than own kernels. \
     `pip install nvidia-cublas` or a CUDA toolkit brings it; name a file with the option --cublaslt if it is elsewhere";

const CUDNN_ADVICE: &str = "cuDNN is not needed: it convolves where --tune finds it faster than own kernels. \
     `pip install nvidia-cudnn-cu13` (`-cu12` for drivers of CUDA 12) brings it; name a file with the option --cudnn if it is \
     elsewhere";

/// `RTLD_NOLOAD` of `dlfcn.h`: opens a library only if it is loaded.
const RTLD_NOLOAD: std::ffi::c_int = 4;

/// Loads the driver.
pub(in crate::cuda) fn driver(paths: &SearchPaths) -> Result<Found, CudaError> {
    let candidates =
        paths.driver.clone().map_or_else(|| vec![PathBuf::from("libcuda.so.1")], |path| vec![path]);
    first("the NVIDIA driver's library", &candidates, None, DRIVER_ADVICE)
}

/// Loads NVRTC.
pub(in crate::cuda) fn nvrtc(paths: &SearchPaths) -> Result<Found, CudaError> {
    NVRTC.first(paths.nvrtc.as_ref(), paths)
}

/// Loads cuBLASLt.
pub(in crate::cuda) fn cublaslt(paths: &SearchPaths) -> Result<Found, CudaError> {
    CUBLASLT.first(paths.cublaslt.as_ref(), paths)
}

/// Loads cuDNN.
pub(in crate::cuda) fn cudnn(paths: &SearchPaths) -> Result<Found, CudaError> {
    CUDNN.first(paths.cudnn.as_ref(), paths)
}

impl Sought {
    /// Loads it, unless this process has it already: PyTorch brings its own, which a second release beside it may not fit.
    fn first(&self, given: Option<&PathBuf>, paths: &SearchPaths) -> Result<Found, CudaError> {
        if let Some(found) = self.names.iter().find_map(|name| loaded(name)).filter(|_| given.is_none()) {
            return Ok(found);
        }
        first(self.what, &self.candidates(given, paths), self.companions, self.advice)
    }

    /// Files to try: the one that is given, or those in Python's packages, then those that the loader and toolkits have.
    fn candidates(&self, given: Option<&PathBuf>, paths: &SearchPaths) -> Vec<PathBuf> {
        if let Some(path) = given {
            return vec![path.clone()];
        }
        let within = |folder: PathBuf| {
            let files = self.names.iter().map(move |name| folder.join(name));
            files.filter(|path| path.exists())
        };
        let sites = paths.site_packages.iter();
        let packages = sites.flat_map(|site| self.packages.iter().map(|name| site.join(name)));
        let packages = packages.flat_map(within);
        let toolkits = toolkits(Path::new("/usr/local")).into_iter().flat_map(within);
        packages.chain(self.names.iter().map(PathBuf::from)).chain(toolkits).collect()
    }
}

/// The library of this name that the process has loaded.
fn loaded(name: &str) -> Option<Found> {
    // SAFETY: nothing is loaded, so that no initialiser runs.
    let library = unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | RTLD_NOLOAD) }.ok()?;
    let library: &'static Library = Box::leak(Box::new(library.into()));
    Some(Found { library, path: format!("{name}, which this process had loaded") })
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

/// Loads the first of these files that loads, and what it needs beside it.
fn first(
    what: &'static str,
    candidates: &[PathBuf],
    companions: Option<&str>,
    advice: &'static str,
) -> Result<Found, CudaError> {
    let mut tried = Vec::new();
    for path in candidates {
        match open(path, companions) {
            Ok(library) => return Ok(Found { library, path: path.display().to_string() }),
            Err(reason) => tried.push(reason),
        }
    }
    Err(CudaError::NoLibrary { library: what, tried, advice })
}

fn open(path: &Path, companions: Option<&str>) -> Result<&'static Library, String> {
    // NVRTC opens a companion by its bare name, which the loader knows if it is loaded already.
    for companion in companions.map(|prefix| beside(path, prefix)).unwrap_or_default() {
        check_library(&companion)?;
        // One that does not load is missed, and named, by the first compilation.
        if let Ok(library) = load(&companion) {
            std::mem::forget(library);
        }
    }
    load(path).map(|library| &*Box::leak(Box::new(library)))
}

fn load(path: &Path) -> Result<Library, String> {
    check_library(path)?;
    // SAFETY: a library with this name, or one that the caller names, is trusted to be NVIDIA's; its initialisers have
    // no preconditions.
    unsafe { Library::new(path) }.map_err(|error| loader_message(&error))
}

/// The files beside a library whose names begin like this.
fn beside(path: &Path, prefix: &str) -> Vec<PathBuf> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Vec::new();
    };
    let is_companion = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix)
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_companion).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_files::Scratch;

    #[test]
    fn toolkits_are_tried_newest_first() {
        let dir = Scratch::new().unwrap();
        for name in ["cuda-12.4", "cuda-13.0", "cuda-12.10", "cuda", "lib"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let expected = ["cuda", "cuda-13.0", "cuda-12.10", "cuda-12.4"];
        assert_eq!(toolkits(dir.path()), expected.map(|name| dir.path().join(name).join("lib64")));
        assert!(toolkits(&dir.path().join("absent")).is_empty());
    }

    #[test]
    fn packages_are_searched() {
        let dir = Scratch::new().unwrap();
        let paths = SearchPaths { site_packages: vec![dir.path().to_owned()], ..SearchPaths::default() };
        for sought in [NVRTC, CUBLASLT, CUDNN] {
            let file = dir.path().join(sought.packages[1]).join(sought.names[1]);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            let candidates = sought.candidates(None, &paths);
            assert_eq!(candidates[0], file);
            assert_eq!(candidates[1], Path::new(sought.names[0]));
            assert_eq!(sought.candidates(Some(&file), &paths), [file]);
        }
    }

    #[test]
    fn missing_libraries_are_named() {
        let given = Some(PathBuf::from("/nonexistent/library.so"));
        let paths = SearchPaths {
            driver: given.clone(),
            nvrtc: given.clone(),
            cublaslt: given.clone(),
            cudnn: given,
            ..SearchPaths::default()
        };
        for (result, advice) in [
            (driver(&paths), "NVIDIA GPU"),
            (nvrtc(&paths), "pip install nvidia-cuda-nvrtc"),
            (cublaslt(&paths), "pip install nvidia-cublas"),
            (cudnn(&paths), "pip install nvidia-cudnn-cu13"),
        ] {
            let text = result.err().unwrap().to_string();
            assert!(text.contains("/nonexistent/library.so") && text.contains(advice), "{text}");
        }
    }
}
