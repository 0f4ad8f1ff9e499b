//! Compiled kernels of the CPU, kept on disk by content (see `crate::kernels`).
//!
//! A shared object is determined by source, compiler version, flags and, because flags say "this machine", the machine.
//!
//! System headers take longer to read than most kernels take to compile. A batch therefore compiles those that its
//! sources begin with first, once for each compiler and set of flags; the objects are the same.

use super::compiler::{CompileError, Compiler, HEADER_SUFFIX, Job};
use super::library::{Library, LoadError};
use crate::Machine;
use crate::compiled::check_symbols;
use crate::kernels::{self, CompileProgress, SHARED_OBJECT, Source, Store};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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
    /// Compiled headers that were looked at, and whether they are whole.
    headers: Mutex<BTreeMap<PathBuf, bool>>,
}

impl CompileCache {
    /// Opens the cache in `folder`, making the folder if need be.
    ///
    /// # Errors
    /// As [`orch_files::CacheFolder::open`].
    pub fn open(folder: &Path, compiler: Compiler, machine: &Machine) -> Result<Self, CompileError> {
        let fingerprint = machine.fingerprint();
        let circumstances = [compiler.version(), &fingerprint].into_iter();
        let circumstances = circumstances.chain(compiler.flags().iter().map(String::as_str));
        let store = Store::open(folder, SHARED_OBJECT, circumstances)?;
        Ok(Self { store, compiler, headers: Mutex::default() })
    }

    /// The compiler.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The hash that names the shared object of this source text.
    pub fn key(&self, text: &str) -> String {
        self.store.key(text)
    }

    /// The source's shared object, compiled now if it is not there yet, or damaged.
    ///
    /// # Errors
    /// As [`Compiler::compile`]. A rejected source is kept in the folder, and the error says where.
    pub fn compile(&self, source: &Source, cancel: &AtomicBool) -> Result<Bytes, CompileError> {
        let key = self.key(&source.text);
        if let Some(object) = self.store.get(&key) {
            return Ok(object);
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        let cache_error = || CompileError::cache(self.store.folder());
        let scratch = self.store.scratch().map_err(cache_error())?;
        // The same names each time: compilers write that of the source into the object, and equal sources have equal objects.
        let (source_file, output) = (scratch.path().join("kernels.c"), scratch.path().join("kernels.so"));
        fs::write(&source_file, &source.text).map_err(cache_error())?;
        self.run_compiler(source, &source_file, &output, cancel)
            .map_err(|error| self.kept(error, &key, source))?;
        let object = fs::read(&output).map_err(cache_error())?;
        check_symbols(&object, &source.symbols).map_err(|reason| CompileError::Unusable {
            program: self.compiler.program().to_owned(),
            reason,
        })?;
        self.store.put(&key, &object).map_err(cache_error())?;
        Ok(object.into())
    }

    /// An error whose source, if the compiler rejected it, outlives the folder that it was compiled in.
    fn kept(&self, error: CompileError, key: &str, source: &Source) -> CompileError {
        let CompileError::Rejected { program, name, diagnostics, .. } = error else { return error };
        match self.store.put_rejected(key, "c", &source.text) {
            Ok(source_file) => CompileError::Rejected { program, name, source_file, diagnostics },
            Err(error) => CompileError::cache(self.store.folder())(error),
        }
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
        if self.is_whole(&header) {
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

    /// Puts a compiled header in its place, with its sum.
    fn keep_header(&self, header: &Path, compiled: &Path) -> io::Result<()> {
        let sum = sum_of(&fs::read(compiled)?);
        orch_files::whole_file::write(&with_suffix(header, SUM_SUFFIX), |file| {
            file.write_all(sum.as_bytes())
        })?;
        fs::rename(compiled, with_suffix(header, HEADER_SUFFIX))
    }

    /// True if the compiled form of a header is what was written: of a damaged one compilers read for ever.
    fn is_whole(&self, header: &Path) -> bool {
        let mut headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        *headers.entry(header.to_owned()).or_insert_with(|| {
            let sum = fs::read_to_string(with_suffix(header, SUM_SUFFIX));
            let found = fs::read(with_suffix(header, HEADER_SUFFIX)).map(|compiled| sum_of(&compiled));
            matches!((sum, found), (Ok(sum), Ok(found)) if sum == found)
        })
    }

    /// Compiles the headers that at least two sources to be compiled begin with. What fails here only costs time.
    fn prepare_headers(&self, sources: &[&Source], cancel: &AtomicBool) {
        let is_missing = |source: &&&Source| !self.store.has(&self.key(&source.text));
        let mut users: BTreeMap<String, usize> = BTreeMap::new();
        for source in sources.iter().filter(is_missing) {
            *users.entry(leading_includes(&source.text)).or_default() += 1;
        }
        for (includes, _) in users.iter().filter(|(includes, users)| !includes.is_empty() && **users > 1) {
            let header = self.header_path(includes);
            if self.is_whole(&header) {
                continue;
            }
            let Ok(scratch) = self.store.scratch() else { return };
            let (text, aside) = (scratch.path().join("headers.h"), scratch.path().join("headers.gch"));
            let job = Job { name: "system headers", header: None, source_file: &header, output: &aside };
            let made = fs::write(&text, includes)
                .and_then(|()| fs::rename(&text, &header))
                .is_ok_and(|()| self.compiler.compile_header(&job, cancel).is_ok());
            // Without it, sources are compiled with the headers themselves.
            if made && self.keep_header(&header, &aside).is_ok() {
                self.headers.lock().unwrap_or_else(PoisonError::into_inner).insert(header, true);
            }
        }
    }

    /// Loads the source's shared object, compiled now if it is not there yet.
    ///
    /// # Errors
    /// As [`compile`](Self::compile), or if the shared object does not load.
    pub fn load(&self, source: &Source, cancel: &AtomicBool) -> Result<Library, BuildError> {
        Ok(Library::from_bytes(&source.name, &self.compile(source, cancel)?)?)
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
    ) -> Vec<Result<Bytes, CompileError>> {
        let (distinct, indices) = kernels::distinct(sources);
        self.prepare_headers(&distinct, cancel);
        let results = kernels::compile_each(&distinct, jobs, progress, |source| self.compile(source, cancel));
        indices.into_iter().map(|idx| results[idx].clone()).collect()
    }
}

/// What follows a header's name in that of the sum of its compiled form.
const SUM_SUFFIX: &str = ".sum";

fn sum_of(compiled: &[u8]) -> String {
    blake3::hash(compiled).to_hex().to_string()
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
    use crate::kernels::{CacheStats, KernelFolder};
    use orch_files::Scratch;
    use std::sync::Mutex;

    static GO: AtomicBool = AtomicBool::new(false);

    fn cache(dir: &Scratch) -> CompileCache {
        let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
        CompileCache::open(dir.path(), compiler, &Machine::detect()).unwrap()
    }

    fn source(text: &str) -> Source {
        Source { name: "test".into(), text: text.into(), symbols: Vec::new() }
    }

    /// The file of a source's object.
    fn file(cache: &CompileCache, source: &Source) -> PathBuf {
        cache.store.folder().join(format!("{}.so", cache.key(&source.text)))
    }

    /// What the folder of kernels has, and that of files under construction.
    fn files(cache: &CompileCache) -> [usize; 2] {
        let folder = cache.store.folder();
        [folder, &folder.with_file_name("tmp")].map(|folder| fs::read_dir(folder).unwrap().count())
    }

    #[test]
    fn the_second_time_is_a_hit() {
        let dir = Scratch::new().unwrap();
        let cache = cache(&dir);
        let source = source("int f(void) { return 1; }");
        let first = cache.compile(&source, &GO).unwrap();
        let written = || fs::metadata(file(&cache, &source)).unwrap().modified().unwrap();
        let before = written();
        assert_eq!(cache.compile(&source, &GO).unwrap(), first);
        assert_eq!(written(), before);
        assert_eq!(KernelFolder::open(dir.path()).unwrap().stats().unwrap().files, 1);
        assert_eq!(files(&cache), [1, 0], "nothing else stays");
    }

    #[test]
    fn equal_sources_have_equal_objects() {
        let objects = [(); 2].map(|()| {
            let dir = Scratch::new().unwrap();
            cache(&dir).compile(&source("int f(void) { return 1; }"), &GO).unwrap()
        });
        assert_eq!(objects[0], objects[1]);
    }

    /// Compilers that do not do what they say: a script each, in the place of the compiler.
    #[cfg(unix)]
    #[test]
    fn what_a_compiler_writes_is_looked_at() {
        use std::os::unix::fs::PermissionsExt;
        let real = Compiler::find(&CompilerOptions::default()).unwrap();
        let real = real.program().display();
        let output = r#"while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done"#;
        // Probes are compiled in other folders than kernels.
        let scripts = [
            ("garbage", format!("{output}; echo garbage > $out"), "does not write a shared object"),
            (
                "other function",
                format!("{output}; echo 'int g;' | {real} -shared -x c - -o $out"),
                "without the function `f`",
            ),
            (
                "linker",
                "echo 'collect2: error: ld returned 1 exit status' >&2; exit 1".to_owned(),
                "ld returned 1",
            ),
        ];
        for (what, script, expected) in scripts {
            let dir = Scratch::new().unwrap();
            let program = dir.path().join("cc");
            let script =
                format!("#!/bin/sh\ncase \"$*\" in *kernels.c*) {script} ;; *) exec {real} \"$@\" ;; esac\n");
            fs::write(&program, script).unwrap();
            fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            let compiler =
                Compiler::find(&CompilerOptions { program: Some(program), ..Default::default() }).unwrap();
            let cache = CompileCache::open(&dir.path().join("cache"), compiler, &Machine::detect()).unwrap();
            let source = Source { symbols: vec!["f".to_owned()], ..source("int f(void) { return 1; }") };
            let error = cache.compile(&source, &GO).unwrap_err();
            assert!(!matches!(error, CompileError::Rejected { .. }), "{what}: {error}");
            assert!(error.to_string().contains(expected), "{what}: {error}");
            assert_eq!(files(&cache), [0, 0], "{what}: nothing is kept");
        }
    }

    #[test]
    fn a_batch_keeps_order_and_reports() {
        let dir = Scratch::new().unwrap();
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
        let dir = Scratch::new().unwrap();
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
        // Another process looks at it again, and makes it anew.
        let again = CompileCache::open(dir.path(), cache.compiler().clone(), &Machine::detect()).unwrap();
        let results = again.compile_all(&[6, 7].map(|value| source(&text(value))), 2, &|_| (), &GO);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert!(fs::metadata(&compiled).unwrap().len() > size / 2, "names of temporary files are in it");
        KernelFolder::open(dir.path()).unwrap().clear().unwrap();
        assert!(!compiled.exists());
    }

    #[test]
    fn cancelling_leaves_hits_alone() {
        let dir = Scratch::new().unwrap();
        let cache = cache(&dir);
        let sources = ["int f(void) { return 1; }", "int f(void) { return 2; }"].map(source);
        cache.compile(&sources[0], &GO).unwrap();
        let results = cache.compile_all(&sources, 1, &|_| (), &AtomicBool::new(true));
        assert!(matches!(results[..], [Ok(_), Err(CompileError::Cancelled)]));
    }

    #[test]
    fn damaged_files_are_made_again_and_clear_empties() {
        let dir = Scratch::new().unwrap();
        let cache = cache(&dir);
        let source = source("void f(void *const *b, long lo, long hi, void *s, long before) {}");
        let object = cache.compile(&source, &GO).unwrap();
        let path = file(&cache, &source);
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        for damage in [&b""[..], b"damage", &whole[..whole.len() / 2], &vec![0; whole.len()], &changed] {
            fs::write(&path, damage).unwrap();
            assert_eq!(cache.compile(&source, &GO).unwrap(), object);
            assert_eq!(fs::read(&path).unwrap(), whole);
            assert!(cache.load(&source, &GO).unwrap().kernel("f", 1, 0).is_ok());
        }
        fs::create_dir(path.with_file_name("folder")).unwrap();
        let kernels = KernelFolder::open(dir.path()).unwrap();
        let stats = kernels.clear().unwrap();
        assert!(stats.files == 1 && stats.bytes > 0);
        assert_eq!(kernels.stats().unwrap(), CacheStats::default());
        assert_eq!(files(&cache), [0, 0]);
    }

    #[test]
    fn several_may_compile_the_same_at_once() {
        let dir = Scratch::new().unwrap();
        let objects: Vec<_> = std::thread::scope(|scope| {
            let dir = &dir;
            let start = move || cache(dir).compile(&source("int f(void) { return 1; }"), &GO).unwrap();
            let threads = [(); 3].map(|()| scope.spawn(start));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(objects.iter().all(|object| *object == objects[0]));
        assert_eq!(files(&cache(&dir)), [1, 0], "nothing else stays");
    }

    #[test]
    fn keys_differ_by_flags() {
        let dir = Scratch::new().unwrap();
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
