//! Files as bytes: mapped, or read where kernels like them.

use crate::cpu::AlignedBuffer;
use bytes::Bytes;
use orch_files::open_regular;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The content of a file, mapped read-only; pages are read when they are touched. The mapping lives as long as any
/// clone or slice of the bytes, and its start is page-aligned.
///
/// The file must not be truncated or rewritten in place meanwhile: touching a vanished page ends the process, as
/// with every memory-mapped file. Orchestrion itself replaces files by renaming, which is safe.
///
/// # Errors
/// If the file cannot be opened or mapped, or is no regular file.
pub fn map_file(path: &Path) -> io::Result<Bytes> {
    map_open_file(&open_regular(path)?)
}

/// As [`map_file`], of a regular file that is open.
///
/// # Errors
/// If the file cannot be mapped.
pub fn map_open_file(file: &File) -> io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. The caller guarantees, as stated above, that the file is not shrunk.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}

/// Reads a file into memory that starts at a cache line, in huge pages where the system has them: what kernels read
/// again and again should lie there rather than in a mapping, whose small pages stop the hardware from reading ahead.
///
/// # Errors
/// If the file can't be read, or is no regular file.
pub fn read_file(path: &Path) -> io::Result<Bytes> {
    let file = open_regular(path)?;
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    read_open_file(&file, len)
}

/// As [`read_file`], the first `len` bytes of a file that is open.
///
/// # Errors
/// If they can't be read.
pub fn read_open_file(mut file: &File, len: usize) -> io::Result<Bytes> {
    let mut buffer = AlignedBuffer::zeroed(len);
    file.read_exact(buffer.as_mut_slice())?;
    Ok(buffer.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_files::Scratch;

    #[test]
    fn files_are_read_whole() {
        let dir = Scratch::new().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"0123456789").unwrap();
        assert_eq!(read_file(&path).unwrap(), b"0123456789"[..]);
        assert!(read_file(dir.path()).is_err());
    }

    #[test]
    fn bytes_outlive_the_path() {
        let dir = Scratch::new().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"0123456789").unwrap();
        let bytes = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.slice(3..6), b"345"[..]);
    }

    #[test]
    fn empty_and_missing_files() {
        let dir = Scratch::new().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(map_file(&path).unwrap().is_empty());
        assert_eq!(map_file(dir.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let missing = map_file(&dir.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
