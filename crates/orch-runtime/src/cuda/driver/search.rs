//! Finding CUDA's libraries on this machine.
//!
//! The driver (`libcuda.so.1`) comes with the system's NVIDIA driver, so the system's loader finds it. NVRTC and cuBLASLt
//! come with a CUDA toolkit or with the Python packages `nvidia-cuda-nvrtc` and `nvidia-cublas`, cuDNN and NVTX with packages
//! of their own; few of these put them where the loader looks. All but the driver are searched for alike: a file that the caller
//! names and nothing else; else one that the process has loaded, as PyTorch does, which a second release beside it may not
//! fit; then Python's packages; then what the loader finds; then toolkits.

use super::error::CudaError;
use crate::os::{check_library, loaded_file, loader_message};
use libloading::Library;
use libloading::os::unix;
use std::ffi::OsStr;
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
    /// Whether runs are marked for profilers, and by what.
    pub nvtx: Nvtx,
    /// `site-packages` folders of Python, which may hold NVIDIA's packages.
    pub site_packages: Vec<PathBuf>,
}

/// NVTX, the library by which profilers are told which run and which step of a model work belongs to. It is loaded for them only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Nvtx {
    /// Nothing is marked.
    #[default]
    Off,
    /// Runs are marked if the library is found where others are.
    On,
    /// Runs are marked by this library, if it loads.
    File(PathBuf),
}

impl Nvtx {
    /// What a setting (`ORCHESTRION_NVTX` in environments) means: `0` or nothing, `1`, or a file; where it is not set, `1` if a profiler of
    /// this process takes marks: such profilers set `NVTX_INJECTION64_PATH`, whose value `injection` is.
    pub fn of_setting(setting: Option<&OsStr>, injection: Option<&OsStr>) -> Self {
        match setting {
            None if injection.is_some_and(|path| !path.is_empty()) => Self::On,
            None => Self::Off,
            Some(setting) if setting.is_empty() || setting == "0" => Self::Off,
            Some(setting) if setting == "1" => Self::On,
            Some(file) => Self::File(file.into()),
        }
    }
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

/// That of CUDA 13, and the one of CUDA 12.
const NVTX: Sought = Sought {
    what: "NVTX (a library of marks for profilers)",
    names: &["libnvtx3interop.so.1", "libnvToolsExt.so.1"],
    packages: &["nvidia/cu13/lib", "nvidia/nvtx/lib"],
    companions: None,
    advice: "`pip install nvidia-nvtx` or a CUDA toolkit brings it",
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

/// Where CUDA toolkits are.
const TOOLKITS: &str = "/usr/local";

/// `RTLD_NOLOAD` of `dlfcn.h`: opens a library only if it is loaded.
const RTLD_NOLOAD: std::ffi::c_int = 4;

/// Loads the driver.
pub(in crate::cuda) fn driver(paths: &SearchPaths) -> Result<Found, CudaError> {
    let candidates =
        paths.driver.clone().map_or_else(|| vec![PathBuf::from("libcuda.so.1")], |path| vec![path]);
    let mut tried = Vec::new();
    let found = candidates.iter().find_map(|path| open(path, None, &mut tried));
    found.ok_or(CudaError::NoLibrary { library: "the NVIDIA driver's library", tried, advice: DRIVER_ADVICE })
}

/// Loads NVRTC.
pub(in crate::cuda) fn nvrtc(paths: &SearchPaths) -> Result<Found, CudaError> {
    NVRTC.find(paths.nvrtc.as_deref(), &paths.site_packages)
}

/// Loads cuBLASLt.
pub(in crate::cuda) fn cublaslt(paths: &SearchPaths) -> Result<Found, CudaError> {
    CUBLASLT.find(paths.cublaslt.as_deref(), &paths.site_packages)
}

/// Loads cuDNN.
pub(in crate::cuda) fn cudnn(paths: &SearchPaths) -> Result<Found, CudaError> {
    CUDNN.find(paths.cudnn.as_deref(), &paths.site_packages)
}

/// Loads NVTX; `None` if nothing is to be marked.
pub(in crate::cuda) fn nvtx(paths: &SearchPaths) -> Option<Result<Found, CudaError>> {
    let given = match &paths.nvtx {
        Nvtx::Off => return None,
        Nvtx::On => None,
        Nvtx::File(file) => Some(file.as_path()),
    };
    Some(NVTX.find(given, &paths.site_packages))
}

impl Sought {
    /// Loads it, unless this process has it already.
    fn find(&self, given: Option<&Path>, site_packages: &[PathBuf]) -> Result<Found, CudaError> {
        let mut tried = Vec::new();
        let found = match given {
            Some(path) => open(path, self.companions, &mut tried),
            None => self.search(site_packages, Path::new(TOOLKITS), &mut tried),
        };
        found.ok_or(CudaError::NoLibrary { library: self.what, tried, advice: self.advice })
    }

    /// Looks in the usual places; `tried` receives each of them that does not have it.
    fn search(
        &self,
        site_packages: &[PathBuf],
        toolkits_root: &Path,
        tried: &mut Vec<String>,
    ) -> Option<Found> {
        if let Some(found) = self.names.iter().find_map(|name| loaded(name)) {
            return Some(found);
        }
        tried.push(format!("this process has loaded {}", self.none()));
        let within = |site: &PathBuf| self.packages.iter().map(|name| site.join(name)).collect::<Vec<_>>();
        self.in_folders(site_packages.iter().flat_map(within), "Python's packages", tried)
            .or_else(|| self.names.iter().find_map(|name| open(Path::new(name), self.companions, tried)))
            .or_else(|| self.in_folders(toolkits(toolkits_root), "CUDA toolkits", tried))
    }

    /// The first that loads of those in these folders.
    fn in_folders(
        &self,
        folders: impl IntoIterator<Item = PathBuf>,
        kind: &str,
        tried: &mut Vec<String>,
    ) -> Option<Found> {
        let mut without = Vec::new();
        for folder in folders {
            let files: Vec<PathBuf> =
                self.names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
            if files.is_empty() {
                without.push(folder.display().to_string());
            }
            if let Some(found) = files.iter().find_map(|path| open(path, self.companions, tried)) {
                return Some(found);
            }
        }
        let places = if without.is_empty() { "no others".to_owned() } else { without.join(", ") };
        tried.push(format!("of {kind}, these have {}: {places}", self.none()));
        None
    }

    /// `no a.so or b.so`.
    fn none(&self) -> String {
        format!("no {}", self.names.join(" or "))
    }
}

/// The library of this name that the process has loaded.
fn loaded(name: &str) -> Option<Found> {
    // SAFETY: nothing is loaded, so that no initialiser runs.
    let library = unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | RTLD_NOLOAD) }.ok()?;
    let library: &'static Library = Box::leak(Box::new(library.into()));
    let path = loaded_file(name).map_or_else(|| name.to_owned(), |path| path.display().to_string());
    Some(Found { library, path: format!("{path}, which this process had loaded") })
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

/// The library of this file, with what it needs beside it; `tried` receives why it does not load.
fn open(path: &Path, companions: Option<&str>, tried: &mut Vec<String>) -> Option<Found> {
    let library = load_with(path, companions).map_err(|reason| tried.push(reason)).ok()?;
    Some(Found { library, path: path.display().to_string() })
}

fn load_with(path: &Path, companions: Option<&str>) -> Result<&'static Library, String> {
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

    /// A library that nothing else knows.
    fn sought(names: &'static [&'static str]) -> Sought {
        Sought {
            what: "a library",
            names,
            packages: &["nvidia/a", "torch/lib"],
            companions: None,
            advice: "get it",
        }
    }

    /// A file of this name with a library in it, whose soname is `name`.
    fn put(folder: &Path, name: &str) -> PathBuf {
        let dir = Scratch::new().unwrap();
        let (source, path) = (dir.path().join("a.c"), folder.join(name));
        fs::create_dir_all(folder).unwrap();
        fs::write(&source, "int f(void) { return 1; }").unwrap();
        let mut cc = std::process::Command::new("cc");
        let cc = cc.args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-o"]).arg(&path).arg(&source);
        assert!(cc.status().unwrap().success());
        path
    }

    #[test]
    fn what_is_loaded_comes_before_packages_and_these_before_toolkits() {
        let dir = Scratch::new().unwrap();
        let (sites, toolkits) = ([dir.path().join("a"), dir.path().join("b")], dir.path().join("usr"));
        let sought = sought(&["liborchsought.so.13", "liborchsought.so.12"]);
        let found = || sought.search(&sites, &toolkits, &mut Vec::new()).map(|found| found.path);
        assert_eq!(found(), None);
        let of_toolkit = put(&toolkits.join("cuda-13.0/lib64"), "liborchsought.so.13");
        let of_packages = put(&sites[1].join("torch/lib"), "liborchsought.so.12");
        // What is opened stays loaded, so each search is the only one that finds its file.
        let expected = |path: &Path| Some(path.display().to_string());
        assert_eq!(found(), expected(&of_packages));
        let had_loaded = format!("{}, which this process had loaded", of_packages.display());
        assert_eq!(found(), Some(had_loaded));
        // A file that is named comes before all of that.
        let named = sought.find(Some(&of_toolkit), &sites).ok().map(|found| found.path);
        assert_eq!(named, expected(&of_toolkit));
    }

    #[test]
    fn every_place_that_was_tried_is_told() {
        let dir = Scratch::new().unwrap();
        let (site, toolkits) = (dir.path().join("site"), dir.path().join("usr"));
        let broken = site.join("torch/lib/liborchabsent.so.1");
        fs::create_dir_all(broken.parent().unwrap()).unwrap();
        fs::write(&broken, "text").unwrap();
        fs::create_dir_all(toolkits.join("cuda-13.0")).unwrap();
        let mut tried = Vec::new();
        let sought = sought(&["liborchabsent.so.1", "liborchabsent.so"]);
        assert!(sought.search(std::slice::from_ref(&site), &toolkits, &mut tried).is_none());
        let none = "no liborchabsent.so.1 or liborchabsent.so";
        let [process, file, packages, first, second, in_toolkits] = &tried[..] else { panic!("{tried:#?}") };
        assert_eq!(*process, format!("this process has loaded {none}"));
        assert_eq!(*file, format!("{}: file too short", broken.display()));
        assert_eq!(
            *packages,
            format!("of Python's packages, these have {none}: {}", site.join("nvidia/a").display())
        );
        assert!(first.starts_with("liborchabsent.so.1: ") && second.starts_with("liborchabsent.so: "));
        let lib64 = toolkits.join("cuda-13.0/lib64");
        assert_eq!(*in_toolkits, format!("of CUDA toolkits, these have {none}: {}", lib64.display()));
    }

    #[test]
    fn marks_are_made_for_profilers() {
        let of = |setting: Option<&'static str>, injection: Option<&'static str>| {
            Nvtx::of_setting(setting.map(OsStr::new), injection.map(OsStr::new))
        };
        let profiler = Some("/profiler.so");
        for (setting, injection) in
            [(Some(""), profiler), (Some("0"), profiler), (None, None), (None, Some(""))]
        {
            assert_eq!(of(setting, injection), Nvtx::Off, "{setting:?} {injection:?}");
        }
        assert_eq!([of(Some("1"), None), of(None, profiler)], [const { Nvtx::On }; 2]);
        assert_eq!(of(Some("./a.so"), None), Nvtx::File("./a.so".into()));
        assert!(nvtx(&SearchPaths::default()).is_none());
        let paths = SearchPaths { nvtx: Nvtx::File("/nonexistent/a.so".into()), ..SearchPaths::default() };
        assert!(nvtx(&paths).unwrap().is_err());
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
