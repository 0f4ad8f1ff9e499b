//! Shared objects in this process.

use super::kernel::{CpuKernel, KernelEntry};
use crate::os::{AnonymousFile, loader_message};
use std::sync::Arc;

/// A loaded shared object. It stays loaded until the last clone and the last [`CpuKernel`] from it are gone.
#[derive(Clone)]
pub struct Library(Arc<Loaded>);

/// Fields drop in order: the code is unloaded before the file that its name points to is closed. The file has to
/// stay open as long: the loader takes an equal name for the same library, and names of closed files are reused.
pub(super) struct Loaded {
    library: libloading::Library,
    _file: AnonymousFile,
    name: String,
}

/// Why a shared object, or a kernel in it, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not load: damaged, or made for another machine.
    #[error("cannot load kernels from {name}: {reason}; compile the model again on this machine")]
    Unloadable {
        /// The file.
        name: String,
        /// What the loader said.
        reason: String,
    },
    /// The library has no such function.
    #[error("internal error: {library} has no kernel `{kernel}`: {reason}")]
    NoKernel {
        /// The file.
        library: String,
        /// The function.
        kernel: String,
        /// What the loader said.
        reason: String,
    },
}

impl Library {
    /// Loads a shared object from memory, where `name` is how messages call it. Holds one file descriptor. Its code is trusted (see the
    /// crate's documentation).
    ///
    /// # Errors
    /// If it does not load.
    pub fn from_bytes(name: &str, object: &[u8]) -> Result<Self, LoadError> {
        use libloading::os::unix;
        let unloadable = |reason| LoadError::Unloadable { name: name.to_owned(), reason };
        let file = AnonymousFile::new(object).map_err(|error| unloadable(error.to_string()))?;
        // SAFETY: loading runs the object's initialisers; generated kernels have none, and the object is trusted.
        let library = unsafe { unix::Library::open(Some(file.path()), unix::RTLD_NOW | unix::RTLD_LOCAL) };
        let library = library.map_err(|error| unloadable(loader_message(&error)))?;
        Ok(Self(Arc::new(Loaded { library: library.into(), _file: file, name: name.to_owned() })))
    }

    /// The kernel function `name`, which splits its work into `tasks` and needs `scratch_bytes` of memory per thread.
    /// The function is trusted to follow the convention of [`crate::cpu::kernel`].
    ///
    /// # Errors
    /// If there is no such function.
    pub fn kernel(&self, name: &str, tasks: i64, scratch_bytes: usize) -> Result<CpuKernel, LoadError> {
        // SAFETY: the type is that of every kernel function; that `name` is one is the caller's promise.
        let symbol = unsafe { self.0.library.get::<KernelEntry>(name) };
        match symbol {
            Ok(entry) => Ok(CpuKernel::new(*entry, tasks, scratch_bytes, Arc::clone(&self.0))),
            Err(error) => Err(LoadError::NoKernel {
                library: self.0.name.clone(),
                kernel: name.to_owned(),
                reason: loader_message(&error),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{Argument, compile_object, load, run_serial};

    const COUNT: &str = "#include <stdint.h>\n\
        void NAME(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) { *(int64_t *)b[0] += VALUE * (hi - lo); }\n";

    fn call(kernel: &CpuKernel) -> i64 {
        let mut total = [0u8; 8];
        run_serial(kernel, &mut [Argument::Write(&mut total)]);
        i64::from_le_bytes(total)
    }

    #[test]
    fn libraries_of_equal_names_stay_apart() {
        let objects = [1, 2, 3].map(|value| {
            compile_object(&COUNT.replace("NAME", "count").replace("VALUE", &value.to_string()))
        });
        let load =
            |idx: usize| Library::from_bytes("test", &objects[idx]).unwrap().kernel("count", 10, 0).unwrap();
        let (first, second) = (load(0), load(1));
        assert_eq!((call(&first), call(&second)), (10, 20));
        drop(first);
        let third = load(2);
        assert_eq!((call(&second), call(&third)), (20, 30));
    }

    #[test]
    fn kernels_keep_their_library() {
        let library = load(&COUNT.replace("NAME", "count").replace("VALUE", "7"));
        let kernel = library.kernel("count", 3, 0).unwrap();
        drop(library);
        assert_eq!(call(&kernel), 21);
    }

    #[test]
    fn what_is_missing_is_named() {
        let library = load(&COUNT.replace("NAME", "count").replace("VALUE", "1"));
        let text = library.kernel("other", 1, 0).err().unwrap().to_string();
        assert!(text.starts_with("internal error: ") && text.contains("undefined symbol"), "{text}");
        let text = Library::from_bytes("model.orc", b"not an object").err().unwrap().to_string();
        assert!(text.starts_with("cannot load kernels from model.orc: "), "{text}");
    }
}
