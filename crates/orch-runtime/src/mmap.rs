//! Files as bytes without reading them.

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::Path;

/// The content of a file, mapped read-only; pages are read when they are touched. The mapping lives as long as any
/// clone or slice of the bytes, and its start is page-aligned.
///
/// The file must not be truncated or rewritten in place meanwhile: touching a vanished page ends the process, as
/// with every memory-mapped file. Orchestrion itself replaces files by renaming, which is safe.
///
/// # Errors
/// If the file cannot be opened or mapped.
pub fn map_file(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. That nobody shrinks the file is the caller's duty, stated above.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::TempDir;

    #[test]
    fn bytes_outlive_the_path() {
        let dir = TempDir::new("mmap").unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"0123456789").unwrap();
        let bytes = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.slice(3..6), b"345"[..]);
    }

    #[test]
    fn empty_and_missing_files() {
        let dir = TempDir::new("mmap").unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(map_file(&path).unwrap().is_empty());
        assert_eq!(map_file(dir.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let missing = map_file(&dir.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
