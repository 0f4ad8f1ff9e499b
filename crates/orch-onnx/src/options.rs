//! What the caller of an import decides: dimension bindings, and where external data comes from.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

/// Options of [`import`](crate::import()).
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Values of symbolic dimensions. A dimension that the model leaves without a name is bound as
    /// `INPUT.AXIS`, for example `image.0`.
    pub dims: BTreeMap<String, usize>,
    /// Full shapes of graph inputs: they bind the symbolic dimensions they meet, and have to agree with the
    /// dimensions that the model fixes. For callers that have the input tensors at hand.
    pub input_shapes: BTreeMap<String, Vec<usize>>,
    /// The folder that external data is relative to. [`import_file`](crate::import_file) sets it to the model's.
    pub base_dir: Option<PathBuf>,
    /// How files are read.
    pub files: FileSource,
}

impl ImportOptions {
    /// These options with one more symbolic dimension bound.
    #[must_use]
    pub fn dim(mut self, name: impl Into<String>, size: usize) -> Self {
        self.dims.insert(name.into(), size);
        self
    }
}

/// How an import gets a file's bytes. The default reads them into memory; a caller that may map files
/// (`orch-runtime`) passes a function that does, and the weights are never copied.
#[derive(Clone)]
pub struct FileSource(Arc<ReadFile>);

/// A function from a path to the file's bytes.
type ReadFile = dyn Fn(&Path) -> io::Result<Bytes> + Send + Sync;

impl FileSource {
    /// A source that asks `read` for each file, once per file and import.
    pub fn new(read: impl Fn(&Path) -> io::Result<Bytes> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The bytes of the file at `path`.
    ///
    /// # Errors
    /// What the function behind it reports.
    pub fn read(&self, path: &Path) -> io::Result<Bytes> {
        (self.0)(path)
    }
}

impl Default for FileSource {
    fn default() -> Self {
        Self::new(|path| std::fs::read(path).map(Bytes::from))
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSource")
    }
}
