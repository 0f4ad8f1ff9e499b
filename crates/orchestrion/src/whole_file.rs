//! Files that are written whole or not at all.
//!
//! A regular file is written aside and renamed into place: a reader never sees half of it, and an existing one stays
//! until the new one is complete. Whatever else a path may name (a device, a pipe) is written to, never replaced.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes a file with what `content` gives.
///
/// # Errors
/// If it cannot be written; nothing is left behind then.
pub fn write(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    if is_special(path) {
        return finish(OpenOptions::new().write(true).open(path)?, content).map(drop);
    }
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let aside = beside(&target);
    let written = File::create(&aside)
        .and_then(|file| finish(file, content)?.sync_all())
        .and_then(|()| std::fs::rename(&aside, &target));
    written.inspect_err(|_| {
        // The partial file is of no use; that it may already be gone is fine.
        let _ = std::fs::remove_file(&aside);
    })
}

/// Finds out before long work whether a file can be written; changes nothing.
///
/// # Errors
/// If it cannot.
pub fn check(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_special(path) {
        return OpenOptions::new().write(true).open(path).map(drop);
    }
    let probe = beside(path);
    File::create(&probe).and_then(|_| std::fs::remove_file(&probe))
}

/// True for what exists and is neither a regular file nor a folder; links count as what they lead to.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// A hidden name in the same folder.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().map_or_else(|| "file".into(), |name| name.to_string_lossy());
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

fn finish(file: File, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<File> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(label: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("orchestrion-whole-{label}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = folder("old");
        let path = folder.join("a");
        write(&path, |out| out.write_all(b"old")).unwrap();
        let failed = write(&path, |out| {
            out.write_all(b"new")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(check(&folder).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// A link stands for the device, so that a failure of this test cannot replace the device itself.
    #[cfg(target_os = "linux")]
    #[test]
    fn devices_are_written_to_and_not_replaced() {
        let folder = folder("device");
        let link = folder.join("full");
        std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        check(&link).unwrap();
        let error = write(&link, |out| out.write_all(b"text")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
