//! Files that are written whole or not at all.
//!
//! A regular file is written aside under a random name, brought to the disk, and renamed into place: a reader never sees half of
//! it, and an existing one stays until the new one is complete. Whatever else a path may name (a device, a pipe) is written to,
//! never replaced.

use crate::unfinished::Unfinished;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes a file with what `content` gives.
///
/// # Errors
/// If it cannot be written; nothing is left behind then.
pub fn write(path: &Path, content: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    if is_special(path) {
        return fill(&OpenOptions::new().write(true).open(path)?, content);
    }
    // A link stays one: the file that it leads to is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let aside = beside(&target)?;
    let _unfinished = Unfinished::new(aside.path());
    fill(aside.as_file(), content)?;
    if let Ok(known) = std::fs::metadata(&target) {
        // Who may read the file that is replaced may read the new one.
        aside.as_file().set_permissions(known.permissions())?;
    }
    aside.as_file().sync_all()?;
    aside.persist(&target)?;
    Ok(())
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
    beside(path).map(drop)
}

/// True for what exists and is neither a regular file nor a folder; links count as what they lead to.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// A new hidden file in the same folder, under a name that did not exist. It is removed on drop.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".orchestrion-").suffix(".partial");
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    // As files are made otherwise: the user's mask says who may read them.
    #[cfg(unix)]
    builder.permissions(permissions);
    builder.tempfile_in(folder_of(path)).map_err(without_path)
}

/// An error about a file aside without its name, which tells users nothing.
pub(crate) fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((reason, _)) => io::Error::new(error.kind(), reason.to_owned()),
        None => error,
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn fill(file: &File, content: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, |out| out.write_all(b"old")).unwrap();
        let failed = write(&path, |out| {
            out.write_all(b"new")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        check(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(check(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let missing = folder.path().join("missing/a");
        assert_eq!(check(&missing).unwrap_err().to_string(), "No such file or directory (os error 2)");
        assert_eq!(write(&missing, |_| Ok(())).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A name that can be foreseen lets others plant a link there, through which the file aside would be written.
    #[cfg(unix)]
    #[test]
    fn names_aside_cannot_be_foreseen_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let planted = folder.path().join(format!(".a.{}.partial", std::process::id()));
        std::os::unix::fs::symlink(&victim, planted).unwrap();
        let path = folder.path().join("a");
        check(&path).unwrap();
        write(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        let names = |_| beside(&path).unwrap().path().to_owned();
        assert_eq!((0..8).map(names).collect::<std::collections::BTreeSet<_>>().len(), 8);
    }

    #[test]
    fn threads_that_write_one_file_leave_one_of_their_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    (0..20).for_each(|_| write(path, |out| out.write_all(&[thread; 1000])).unwrap());
                });
            }
        });
        let found = std::fs::read(&path).unwrap();
        assert!(found.len() == 1000 && found.iter().all(|byte| *byte == found[0]));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_the_file_that_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write(&path, |out| out.write_all(b"old")).unwrap();
        std::fs::write(folder.path().join("b"), "").unwrap();
        let usual = std::fs::metadata(folder.path().join("b")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), usual);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        write(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(mode(), 0o640);
    }

    /// A link stands for the device, so that a failure of this test cannot replace the device itself.
    #[cfg(target_os = "linux")]
    #[test]
    fn devices_are_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        check(&link).unwrap();
        let error = write(&link, |out| out.write_all(b"text")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
    }
}
