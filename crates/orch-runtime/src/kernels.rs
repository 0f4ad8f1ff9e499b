//! Compiled kernels, kept on disk by content: what the compilers of all devices share.
//!
//! A file's name is the hash of all that determines its content, and its end a hash of name and content. Files are written whole,
//! so several processes may share a folder; a file that is damaged counts as absent.

use bytes::Bytes;
use orch_files::{CacheFolder, FolderError, Scratch};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One translation unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// How messages call it.
    pub name: String,
    /// The text.
    pub text: String,
    /// The kernels that it defines, by their functions' names: what a C compiler writes is looked through for them.
    pub symbols: Vec<String>,
}

/// How far a batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileProgress {
    /// Distinct sources that are compiled, found in the cache, or failed.
    pub done: usize,
    /// Distinct sources of the batch.
    pub total: usize,
}

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Compiled kernels.
    pub files: usize,
    /// Their sizes together.
    pub bytes: u64,
}

/// The folder of compiled kernels of all kinds in a cache. Looking at it and emptying it take no compiler.
#[derive(Debug)]
pub struct KernelFolder(CacheFolder);

impl KernelFolder {
    /// Opens that of the cache in `folder`, making it if need be.
    ///
    /// # Errors
    /// As [`CacheFolder::open`].
    pub fn open(folder: &Path) -> Result<Self, FolderError> {
        Ok(Self(CacheFolder::open(folder)?.subfolder("kernels")?))
    }

    /// What it holds.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn stats(&self) -> io::Result<CacheStats> {
        let mut stats = CacheStats::default();
        for entry in fs::read_dir(self.0.path())? {
            let entry = entry?;
            let path = entry.path();
            if EXTENSIONS.iter().any(|&extension| path.extension().is_some_and(|found| found == extension)) {
                stats.files += 1;
                // A file that another process has just removed counts as empty.
                stats.bytes += entry.metadata().map_or(0, |data| data.len());
            }
        }
        Ok(stats)
    }

    /// Removes everything, and says what it was. Libraries already loaded stay valid; sources of failed compilations go too.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn clear(&self) -> io::Result<CacheStats> {
        let stats = self.stats()?;
        for entry in fs::read_dir(self.0.path())? {
            let path = entry?.path();
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|data| data.is_dir());
            let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(stats)
    }
}

/// A folder of compiled kernels, and the facts that all their names depend on.
#[derive(Debug)]
pub(crate) struct Store {
    folder: CacheFolder,
    extension: &'static str,
    salt: blake3::Hasher,
}

/// Part of every key: change it when the meaning of cached files changes.
const FORMAT: &str = "orchestrion kernels 2";

/// The extensions of compiled kernels: shared objects, and cubins and PTX with what is known of them.
const EXTENSIONS: [&str; 3] = [SHARED_OBJECT, CUBIN, PTX];

/// The extension of shared objects.
pub(crate) const SHARED_OBJECT: &str = "so";

/// The extension of cubins.
pub(crate) const CUBIN: &str = "cubin";

/// The extension of PTX.
pub(crate) const PTX: &str = "ptx";

impl Store {
    /// Opens the part of the cache in `folder` that is for files of this extension, made under these circumstances.
    ///
    /// # Errors
    /// As [`CacheFolder::open`].
    pub(crate) fn open<'a>(
        folder: &Path,
        extension: &'static str,
        circumstances: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, FolderError> {
        let mut salt = blake3::Hasher::new();
        for fact in [FORMAT].into_iter().chain(circumstances) {
            // A length before each part keeps different lists from running together.
            salt.update(&(fact.len() as u64).to_le_bytes());
            salt.update(fact.as_bytes());
        }
        Ok(Self { folder: KernelFolder::open(folder)?.0, extension, salt })
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The hash that names what is made of this source text.
    pub(crate) fn key(&self, text: &str) -> String {
        let mut hasher = self.salt.clone();
        hasher.update(text.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// What was made of the source text of this key; `None` if that is not there, or damaged.
    pub(crate) fn get(&self, key: &str) -> Option<Bytes> {
        self.folder.read_sealed(&self.name(key))
    }

    /// True if there is a file for this key, whole or damaged.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.folder().join(self.name(key)).exists()
    }

    /// Keeps what was made of the source text of this key.
    pub(crate) fn put(&self, key: &str, content: &[u8]) -> io::Result<()> {
        self.folder.write_sealed(&self.name(key), content)
    }

    /// Keeps a source that a compiler rejected, and says where.
    pub(crate) fn put_rejected(&self, key: &str, extension: &str, text: &str) -> io::Result<PathBuf> {
        let name = format!("rejected-{key}.{extension}");
        self.folder.write(&name, text.as_bytes())?;
        Ok(self.folder.path().join(name))
    }

    /// A folder for files under construction.
    pub(crate) fn scratch(&self) -> io::Result<Scratch> {
        self.folder.scratch()
    }

    fn name(&self, key: &str) -> String {
        format!("{key}.{}", self.extension)
    }
}

/// The sources whose text differs from all before them, and for each source the index of its equal among those.
pub(crate) fn distinct(sources: &[Source]) -> (Vec<&Source>, Vec<usize>) {
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut distinct: Vec<&Source> = Vec::new();
    let mut indices = Vec::with_capacity(sources.len());
    for source in sources {
        let new = distinct.len();
        let idx = *first_of.entry(&source.text).or_insert(new);
        if idx == new {
            distinct.push(source);
        }
        indices.push(idx);
    }
    (distinct, indices)
}

/// Compiles each source, up to `jobs` of them at a time; results are in the order of `sources`. `progress` is called
/// from several threads.
pub(crate) fn compile_each<T: Send>(
    sources: &[&Source],
    jobs: usize,
    progress: &(dyn Fn(CompileProgress) + Sync),
    compile: impl Fn(&Source) -> T + Sync,
) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = sources.iter().map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(idx) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&idx| idx < sources.len()) {
            let result = compile(sources[idx]);
            *results[idx].lock().expect("no thread panics while it stores a result") = Some(result);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(CompileProgress { done, total: sources.len() });
        }
    };
    std::thread::scope(|scope| {
        // Where the system gives fewer threads than wanted, those that there are do the work.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let _others: Vec<_> = (1..jobs.clamp(1, sources.len().max(1))).map_while(spawn).collect();
        work();
    });
    let stored = results.into_iter().map(|slot| {
        slot.into_inner().expect("no thread panics while it stores a result").expect("every index is visited")
    });
    stored.collect()
}
