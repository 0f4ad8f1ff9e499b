//! Compiled kernels, kept on disk by content: what the compilers of all devices share.
//!
//! A file's name is the hash of all that determines its content. Files are written aside and renamed, so several
//! processes may share a folder, and a file that exists is complete.

use crate::os::unique_name;
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

/// A folder of compiled kernels, and the facts that all their names depend on.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    extension: &'static str,
    salt: blake3::Hasher,
}

/// Part of every key: change it when the meaning of cached files changes.
const FORMAT: &str = "orchestrion kernels 1";

/// The extensions of compiled kernels: shared objects, and cubins with what is known of them.
const EXTENSIONS: [&str; 2] = [SHARED_OBJECT, CUBIN];

/// The extension of shared objects.
pub(crate) const SHARED_OBJECT: &str = "so";

/// The extension of cubins.
pub(crate) const CUBIN: &str = "cubin";

impl Store {
    /// The part of the cache in `folder` that is for files of this extension, made under these circumstances.
    pub(crate) fn new<'a>(
        folder: &Path,
        extension: &'static str,
        circumstances: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut salt = blake3::Hasher::new();
        for fact in [FORMAT].into_iter().chain(circumstances) {
            // A length before each part keeps different lists from running together.
            salt.update(&(fact.len() as u64).to_le_bytes());
            salt.update(fact.as_bytes());
        }
        Self { folder: folder.join("kernels"), extension, salt }
    }

    /// Makes the folder if need be.
    pub(crate) fn make_folder(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The hash that names what is made of this source text.
    pub(crate) fn key(&self, text: &str) -> String {
        let mut hasher = self.salt.clone();
        hasher.update(text.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Where the file of this key is, or will be.
    pub(crate) fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.{}", self.extension))
    }

    /// A path in the same folder that no other process or thread uses.
    pub(crate) fn aside(&self, key: &str) -> PathBuf {
        self.folder.join(unique_name(key))
    }

    /// What the cache holds, of all kinds.
    pub(crate) fn stats(&self) -> io::Result<CacheStats> {
        let mut stats = CacheStats::default();
        for entry in fs::read_dir(&self.folder)? {
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

    /// Removes everything, of all kinds, and says what it was.
    pub(crate) fn clear(&self) -> io::Result<CacheStats> {
        let stats = self.stats()?;
        for entry in fs::read_dir(&self.folder)? {
            match fs::remove_file(entry?.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(stats)
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
        for _ in 1..jobs.clamp(1, sources.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let stored = results.into_iter().map(|slot| {
        slot.into_inner().expect("no thread panics while it stores a result").expect("every index is visited")
    });
    stored.collect()
}
