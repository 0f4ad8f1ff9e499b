//! Compiled kernels of the CPU, kept on disk by content (see `crate::kernels`).
//!
//! A shared object is determined by source, compiler version, flags and, because flags say "this machine", the machine.
//!
//! System headers take longer to read than most kernels take to compile. A batch therefore compiles those that its
//! sources begin with first, once for each compiler and set of flags; the objects are the same.

use super::compiler::{CompileError, Compiler, HEADER_SUFFIX, Job};
use super::library::{Library, LoadError};
use crate::Machine;
use crate::kernels::{self, CacheStats, CompileProgress, SHARED_OBJECT, Source, Store};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a source did not become a loaded library.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BuildError {
    /// It does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The result does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// A folder of shared objects, and the compiler that fills it.
#[derive(Debug)]
pub struct CompileCache {
    store: Store,
    compiler: Compiler,
}

impl CompileCache {
    /// Opens the cache in `folder`, making the folder if need be.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn open(folder: &Path, compiler: Compiler, machine: &Machine) -> Result<Self, CompileError> {
        let fingerprint = machine.fingerprint();
        let circumstances = [compiler.version(), &fingerprint].into_iter();
        let circumstances = circumstances.chain(compiler.flags().iter().map(String::as_str));
        let store = Store::new(folder, SHARED_OBJECT, circumstances);
        store.make_folder().map_err(CompileError::cache(store.folder()))?;
        Ok(Self { store, compiler })
    }

    /// The compiler.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The hash that names the shared object of this source text.
    pub fn key(&self, text: &str) -> String {
        self.store.key(text)
    }

    /// The path of the source's shared object, compiled now if it is not there yet.
    ///
    /// # Errors
    /// As [`Compiler::compile`]. A rejected source is kept in the folder, and the error says where.
    pub fn compile(&self, source: &Source, cancel: &AtomicBool) -> Result<PathBuf, CompileError> {
        let key = self.key(&source.text);
        let object = self.store.path(&key);
        // A crash of the machine can leave an empty file behind: it counts as absent.
        if fs::metadata(&object).is_ok_and(|data| data.len() > 0) {
            return Ok(object);
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        let aside = self.store.aside(&key);
        let source_file = with_suffix(&aside, ".c");
        let output = with_suffix(&aside, ".tmp");
        fs::write(&source_file, &source.text).map_err(|error| {
            // A full disk leaves a part of it.
            let _ = fs::remove_file(&source_file);
            CompileError::cache(self.store.folder())(error)
        })?;
        let result = self.run_compiler(source, &source_file, &output, cancel);
        let result = result
            .and_then(|()| fs::rename(&output, &object).map_err(CompileError::cache(self.store.folder())));
        if result.is_err() {
            // Often there is nothing to remove.
            let _ = fs::remove_file(&output);
        }
        if !matches!(result, Err(CompileError::Rejected { .. })) {
            // A source that stays behind is clutter that `clear` removes.
            let _ = fs::remove_file(&source_file);
        }
        result.map(|()| object)
    }

    fn run_compiler(
        &self,
        source: &Source,
        source_file: &Path,
        output: &Path,
        cancel: &AtomicBool,
    ) -> Result<(), CompileError> {
        let alone = Job { name: &source.name, header: None, source_file, output };
        let header = self.header_path(&leading_includes(&source.text));
        if with_suffix(&header, HEADER_SUFFIX).exists() {
            match self.compiler.compile(&Job { header: Some(&header), ..alone }, cancel) {
                // The system's headers may have changed since; then the compiled ones are of no use.
                Err(CompileError::Rejected { .. }) => {}
                result => return result,
            }
        }
        self.compiler.compile(&alone, cancel)
    }

    /// Where the headers that these lines include are put, and beside it their compiled form.
    fn header_path(&self, includes: &str) -> PathBuf {
        self.store.folder().join(format!("headers-{}.h", self.key(includes)))
    }

    /// Compiles the headers that at least two sources to be compiled begin with. What fails here only costs time.
    fn prepare_headers(&self, sources: &[&Source], cancel: &AtomicBool) {
        let is_missing = |source: &&&Source| !self.store.path(&self.key(&source.text)).exists();
        let mut users: BTreeMap<String, usize> = BTreeMap::new();
        for source in sources.iter().filter(is_missing) {
            *users.entry(leading_includes(&source.text)).or_default() += 1;
        }
        for (includes, _) in users.iter().filter(|(includes, users)| !includes.is_empty() && **users > 1) {
            let header = self.header_path(includes);
            let compiled = with_suffix(&header, HEADER_SUFFIX);
            if compiled.exists() {
                continue;
            }
            let aside = self.store.aside("headers");
            let job = Job { name: "system headers", header: None, source_file: &header, output: &aside };
            let made = fs::write(&aside, includes)
                .and_then(|()| fs::rename(&aside, &header))
                .is_ok_and(|()| self.compiler.compile_header(&job, cancel).is_ok());
            if !(made && fs::rename(&aside, &compiled).is_ok()) {
                // Often there is nothing to remove.
                let _ = fs::remove_file(&aside);
            }
        }
    }

    /// Loads the source's shared object, compiled now if it is not there yet, or if what is there does not load.
    ///
    /// # Errors
    /// As [`compile`](Self::compile), or if the new shared object does not load either.
    pub fn load(&self, source: &Source, cancel: &AtomicBool) -> Result<Library, BuildError> {
        let path = self.compile(source, cancel)?;
        if let Ok(library) = Library::open(&path) {
            return Ok(library);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CompileError::io(&path)(error))?,
            _ => {}
        }
        Ok(Library::open(&self.compile(source, cancel)?)?)
    }

    /// Compiles many sources with up to `jobs` compilers at a time; results are in the order of `sources`, and equal
    /// texts are compiled once. `progress` is called from several threads. After `cancel` is set the rest fails with
    /// [`CompileError::Cancelled`].
    pub fn compile_all(
        &self,
        sources: &[Source],
        jobs: usize,
        progress: &(dyn Fn(CompileProgress) + Sync),
        cancel: &AtomicBool,
    ) -> Vec<Result<PathBuf, CompileError>> {
        let (distinct, indices) = kernels::distinct(sources);
        self.prepare_headers(&distinct, cancel);
        let results = kernels::compile_each(&distinct, jobs, progress, |source| self.compile(source, cancel));
        indices.into_iter().map(|idx| results[idx].clone()).collect()
    }

    /// What the cache holds.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn stats(&self) -> io::Result<CacheStats> {
        self.store.stats()
    }

    /// Removes everything, and says what it was. Libraries already loaded stay valid; sources of failed compilations
    /// go too.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn clear(&self) -> io::Result<CacheStats> {
        self.store.clear()
    }
}

/// The system headers that a text includes before it defines anything, as lines.
fn leading_includes(text: &str) -> String {
    let before = text.lines().take_while(|line| !line.starts_with("#define"));
    before.filter(|line| line.starts_with("#include <")).flat_map(|line| [line, "\n"]).collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CompilerOptions;
    use crate::os::TempDir;
    use std::sync::Mutex;

    static GO: AtomicBool = AtomicBool::new(false);

    fn cache(dir: &TempDir) -> CompileCache {
        let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
        CompileCache::open(dir.path(), compiler, &Machine::detect()).unwrap()
    }

    fn source(text: &str) -> Source {
        Source { name: "test".into(), text: text.into() }
    }

    #[test]
    fn the_second_time_is_a_hit() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let first = cache.compile(&source("int f(void) { return 1; }"), &GO).unwrap();
        let written = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(cache.compile(&source("int f(void) { return 1; }"), &GO).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), written);
        assert_eq!(cache.stats().unwrap().files, 1);
        assert_eq!(fs::read_dir(first.parent().unwrap()).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn a_batch_keeps_order_and_reports() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let sources = ["int f(void) { return 1; }", "broken", "int f(void) { return 1; }", ""].map(source);
        let seen = Mutex::new(Vec::new());
        let results = cache.compile_all(&sources, 2, &|p| seen.lock().unwrap().push((p.done, p.total)), &GO);
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
        assert_eq!(results[0].as_ref().unwrap(), results[2].as_ref().unwrap());
        let Err(CompileError::Rejected { source_file, .. }) = &results[1] else { panic!("{:?}", results[1]) };
        assert_eq!(fs::read_to_string(source_file).unwrap(), "broken");
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);
        assert!(cache.compile_all(&[], 2, &|_| (), &GO).is_empty());
    }

    #[test]
    fn headers_are_compiled_once_and_never_needed() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let text = |value: u32| {
            format!("#include <math.h>\n#define VALUE {value}\nfloat f(void) {{ return sqrtf(VALUE); }}")
        };
        let compile = |values: [u32; 2]| {
            let results = cache.compile_all(&values.map(|value| source(&text(value))), 2, &|_| (), &GO);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        };
        let compiled = with_suffix(&cache.header_path("#include <math.h>\n"), HEADER_SUFFIX);
        compile([1, 1]);
        assert!(!compiled.exists(), "one source is compiled sooner without");
        compile([2, 3]);
        let size = fs::metadata(&compiled).unwrap().len();
        assert!(size > 0);
        fs::write(&compiled, "damage").unwrap();
        compile([4, 5]);
        cache.clear().unwrap();
        assert!(!compiled.exists());
    }

    #[test]
    fn cancelling_leaves_hits_alone() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let sources = ["int f(void) { return 1; }", "int f(void) { return 2; }"].map(source);
        cache.compile(&sources[0], &GO).unwrap();
        let results = cache.compile_all(&sources, 1, &|_| (), &AtomicBool::new(true));
        assert!(matches!(results[..], [Ok(_), Err(CompileError::Cancelled)]));
    }

    #[test]
    fn damaged_files_are_made_again_and_clear_empties() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let path = cache.compile(&source("int f(void) { return 1; }"), &GO).unwrap();
        fs::write(&path, b"").unwrap();
        cache.compile(&source("int f(void) { return 1; }"), &GO).unwrap();
        let stats = cache.clear().unwrap();
        assert!(stats.files == 1 && stats.bytes > 0);
        assert_eq!(cache.stats().unwrap(), CacheStats::default());
    }

    #[test]
    fn libraries_load_even_if_the_file_is_damaged() {
        let dir = TempDir::new("cache").unwrap();
        let cache = cache(&dir);
        let source = source("void f(void *const *b, long lo, long hi, void *s) {}");
        for damage in [None, Some("damage")] {
            let path = cache.compile(&source, &GO).unwrap();
            if let Some(text) = damage {
                fs::remove_file(&path).unwrap();
                fs::write(&path, text).unwrap();
            }
            let library = cache.load(&source, &GO).unwrap();
            assert!(library.kernel("f", 1, 0).is_ok());
        }
    }

    #[test]
    fn several_may_compile_the_same_at_once() {
        let dir = TempDir::new("cache").unwrap();
        let paths: Vec<_> = std::thread::scope(|scope| {
            let dir = &dir;
            let start = move || cache(dir).compile(&source("int f(void) { return 1; }"), &GO).unwrap();
            let threads = [(); 3].map(|()| scope.spawn(start));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(paths.iter().all(|path| *path == paths[0] && path.exists()));
        assert_eq!(fs::read_dir(paths[0].parent().unwrap()).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn keys_differ_by_flags() {
        let dir = TempDir::new("cache").unwrap();
        let options = CompilerOptions {
            tuning: crate::cpu::Tuning::Arch("x86-64".into()),
            ..CompilerOptions::default()
        };
        let Ok(portable) = Compiler::find(&options) else {
            eprintln!("skipped: not an x86-64 compiler");
            return;
        };
        let portable = CompileCache::open(dir.path(), portable, &Machine::detect()).unwrap();
        assert_ne!(portable.key("x"), cache(&dir).key("x"));
        assert_ne!(portable.key("x"), portable.key("y"));
    }
}
