//! What the caller of an import decides: dimension bindings, and where external data comes from.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
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
    /// Folders in which external data may lie besides `base_dir`, once links are resolved.
    pub data_roots: Vec<PathBuf>,
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

    /// These options for the model in a file: external data lies beside it, or beside the file that it is a link to. Caches of
    /// models keep links to files in a folder of their own (`snapshots/REVISION/model.onnx -> ../../blobs/HASH`).
    #[must_use]
    pub fn beside(mut self, model: &Path) -> Self {
        let folder_of = |file: &Path| file.parent().unwrap_or(Path::new("")).to_owned();
        self.base_dir.get_or_insert_with(|| folder_of(model));
        self.data_roots.extend(model.canonicalize().map(|target| folder_of(&target)));
        self
    }
}

/// How an import gets a file's bytes. The default reads them into memory; a caller that may map files
/// (`orch-runtime`) passes functions that do, and the weights are never copied.
#[derive(Clone)]
pub struct FileSource(Source);

#[derive(Clone)]
enum Source {
    Disk { open: fn(&Path) -> io::Result<File>, bytes: fn(&File) -> io::Result<Bytes> },
    Store(Arc<ReadFile>),
}

/// A function from a path to the file's bytes.
type ReadFile = dyn Fn(&Path) -> io::Result<Bytes> + Send + Sync;

impl FileSource {
    /// A store of the caller's that has no links: `read` is called once per file and import.
    pub fn new(read: impl Fn(&Path) -> io::Result<Bytes> + Send + Sync + 'static) -> Self {
        Self(Source::Store(Arc::new(read)))
    }

    /// Files of this machine. `open` is to refuse what is no regular file; `bytes` gives the content of an open file.
    pub fn disk(open: fn(&Path) -> io::Result<File>, bytes: fn(&File) -> io::Result<Bytes>) -> Self {
        Self(Source::Disk { open, bytes })
    }

    /// The bytes of the file at `path`.
    ///
    /// # Errors
    /// What the functions behind it report.
    pub fn read(&self, path: &Path) -> io::Result<Bytes> {
        match &self.0 {
            Source::Disk { open, bytes } => bytes(&open(path)?),
            Source::Store(read) => read(path),
        }
    }

    /// The bytes of the file at `path`, if the file lies below one of these folders once all links are resolved.
    pub(crate) fn read_below(&self, path: &Path, roots: &[&Path]) -> Result<Bytes, ReadError> {
        let Source::Disk { open, bytes } = &self.0 else { return Ok(self.read(path)?) };
        let real = path.canonicalize()?;
        // A root that is not there holds no file; messages name it as it was given.
        let resolved = |root: &&Path| root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let mut roots: Vec<PathBuf> = roots.iter().map(resolved).collect();
        roots.dedup();
        let is_below = |file: &Path| roots.iter().any(|root| file.starts_with(root));
        if !is_below(&real) {
            return Err(ReadError::Outside { real, roots });
        }
        let file = open(&real)?;
        // A link may have taken the place of a folder since; the system knows where the open file lies.
        match opened_path(&file) {
            Some(opened) if !is_below(&opened) => Err(ReadError::Outside { real: opened, roots }),
            _ => Ok(bytes(&file)?),
        }
    }
}

/// Why [`FileSource::read_below`] has no bytes.
pub(crate) enum ReadError {
    /// The system says why.
    Io(io::Error),
    /// The file is elsewhere.
    Outside {
        /// Where it lies.
        real: PathBuf,
        /// Where it may lie.
        roots: Vec<PathBuf>,
    },
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The path of an open file, without links, where the system tells.
#[cfg(target_os = "linux")]
fn opened_path(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    path.is_absolute().then_some(path)
}

#[cfg(not(target_os = "linux"))]
fn opened_path(_file: &File) -> Option<PathBuf> {
    None
}

impl Default for FileSource {
    fn default() -> Self {
        let bytes = |mut file: &File| {
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            Ok(Bytes::from(content))
        };
        Self::disk(orch_files::open_regular, bytes)
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSource")
    }
}
