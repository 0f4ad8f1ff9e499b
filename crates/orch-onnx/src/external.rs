//! Constants that a model keeps in files beside it (`TensorProto.external_data`).
//!
//! A location is a relative path that stays below the model's folder as written. Symbolic links on the way are followed,
//! because model caches are built of them, but the file they lead to is a regular one below the model's folder, below the
//! folder of the file that the model is a link to, or below a folder that the caller allows: archives and repositories can
//! carry links to any file of who unpacks them. Nothing is assumed about the alignment of an offset.

use crate::options::{ImportOptions, ReadError};
use crate::proto::TensorProto;
use crate::tensor::TensorError;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The files that one import has read, each once.
pub(crate) struct ExternalFiles<'o> {
    options: &'o ImportOptions,
    read: BTreeMap<PathBuf, Result<Bytes, TensorError>>,
}

/// Where a tensor's bytes lie.
struct Location<'p> {
    file: &'p str,
    offset: u64,
    length: Option<u64>,
}

impl<'o> ExternalFiles<'o> {
    /// The files below `options.base_dir`.
    pub(crate) fn new(options: &'o ImportOptions) -> Self {
        Self { options, read: BTreeMap::new() }
    }

    /// The `expected` bytes of a tensor.
    pub(crate) fn bytes(&mut self, tensor: &TensorProto, expected: usize) -> Result<Bytes, TensorError> {
        let location = Location::of(tensor)?;
        let file = location.file;
        check_path(file)?;
        if let Some(given) = location.length.filter(|&length| length != expected as u64) {
            return Err(TensorError::ByteCount { given, expected });
        }
        if expected == 0 {
            return Ok(Bytes::new());
        }
        let base = self.options.base_dir.as_ref();
        let base = base.ok_or_else(|| TensorError::NoBaseDir { file: file.to_owned() })?;
        let data = self.file(base, file)?;
        let offset = location.offset;
        let range = usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(expected)?));
        match range.filter(|range| range.end <= data.len()) {
            Some(range) => Ok(data.slice(range)),
            None => {
                let (file, file_bytes) = (file.to_owned(), data.len());
                Err(TensorError::ExternalShort { file, offset, expected, file_bytes })
            }
        }
    }

    /// The content of a file of the model's folder.
    fn file(&mut self, base: &Path, file: &str) -> Result<Bytes, TensorError> {
        let options = self.options;
        let path = base.join(file);
        let read = || {
            let here = if base.as_os_str().is_empty() { Path::new(".") } else { base };
            let roots: Vec<&Path> =
                std::iter::once(here).chain(options.data_roots.iter().map(PathBuf::as_path)).collect();
            options.files.read_below(&path, &roots).map_err(|error| failed(&path, file, error))
        };
        self.read.entry(path.clone()).or_insert_with(read).clone()
    }
}

fn failed(path: &Path, file: &str, error: ReadError) -> TensorError {
    match error {
        ReadError::Io(error) => {
            TensorError::ExternalMissing { path: path.display().to_string(), detail: error.to_string() }
        }
        ReadError::Outside { real, roots } => TensorError::ExternalOutside {
            file: file.to_owned(),
            real: real.display().to_string(),
            roots: roots.iter().map(|root| root.display().to_string()).collect(),
        },
    }
}

impl<'p> Location<'p> {
    /// The location that a tensor states; entries other than location, offset and length (checksums) are skipped.
    fn of(tensor: &'p TensorProto) -> Result<Self, TensorError> {
        let mut location = Self { file: "", offset: 0, length: None };
        for entry in &tensor.external_data {
            let number = || {
                let bad =
                    || TensorError::ExternalEntry { key: entry.key().into(), value: entry.value().into() };
                entry.value().parse::<u64>().map_err(|_| bad())
            };
            match entry.key() {
                "location" => location.file = entry.value(),
                "offset" => location.offset = number()?,
                "length" => location.length = Some(number()?),
                _ => {}
            }
        }
        Ok(location)
    }
}

/// Refuses a path that could leave the model's folder.
fn check_path(file: &str) -> Result<(), TensorError> {
    let inside =
        Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let names_a_file = Path::new(file).file_name().is_some();
    if inside && names_a_file { Ok(()) } else { Err(TensorError::ExternalPath { file: file.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for good in ["model.data", "./model.data", "weights/a/b.bin", "a..b"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "/etc/passwd", "../x", "a/../../x", "a/.."] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
    }
}
