//! Who owns a file or folder, and who may write to it: the checks that ssh makes of its files.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// Why a folder cannot serve as a cache.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be made or looked at.
    #[error(
        "the cache folder {} cannot be used: {source}; choose another folder with --cache-dir or XDG_CACHE_HOME", .folder.display()
    )]
    Io {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It belongs to another user, who could put code there that this user would run.
    #[error(
        "the cache folder {} belongs to user {owner}, not to this one ({user}), who would run what others put there; choose another folder \
         with --cache-dir or XDG_CACHE_HOME", .folder.display()
    )]
    Owner {
        /// The folder.
        folder: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// This user's number.
        user: u32,
    },
    /// Others may write to it.
    #[error(
        "others may write to the cache folder {} (its mode is {mode:03o}), and this user would run what they put there; \
         `chmod go-w` it once what is in it is known to be harmless, or choose another folder with --cache-dir or XDG_CACHE_HOME",
        .folder.display()
    )]
    Mode {
        /// The folder.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

impl FolderError {
    /// True if others could have put something into the folder; false if it cannot be used at all.
    pub fn is_unsafe(&self) -> bool {
        match self {
            Self::Owner { .. } | Self::Mode { .. } => true,
            Self::Io { .. } => false,
        }
    }

    pub(crate) fn io(folder: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Io { folder: folder.to_owned(), source }
    }
}

/// Permission bits of everybody but the owner that allow writing.
#[cfg(unix)]
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a folder that is none, is a link that somebody else made, or to which other users but root may write.
///
/// # Errors
/// Which of these it is.
pub(crate) fn check_folder(folder: &Path) -> Result<(), FolderError> {
    let io = || FolderError::io(folder);
    let link = std::fs::symlink_metadata(folder).map_err(io())?;
    check_owner(folder, &link)?;
    let data = std::fs::metadata(folder).map_err(io())?;
    if !data.is_dir() {
        return Err(FolderError::Io {
            folder: folder.to_owned(),
            source: io::ErrorKind::NotADirectory.into(),
        });
    }
    check_owner(folder, &data)?;
    check_mode(folder, &data)
}

/// True for a regular file that nobody but this user and root can have written.
pub(crate) fn is_trusted_file(data: &Metadata) -> bool {
    let anywhere = Path::new("");
    data.is_file() && check_owner(anywhere, data).is_ok() && check_mode(anywhere, data).is_ok()
}

/// The number of the user whose rights this process has.
#[cfg(unix)]
pub(crate) fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
fn check_owner(folder: &Path, data: &Metadata) -> Result<(), FolderError> {
    use std::os::unix::fs::MetadataExt;
    const ROOT: u32 = 0;
    let (owner, user) = (data.uid(), this_user());
    if owner == user || owner == ROOT {
        return Ok(());
    }
    Err(FolderError::Owner { folder: folder.to_owned(), owner, user })
}

#[cfg(unix)]
fn check_mode(folder: &Path, data: &Metadata) -> Result<(), FolderError> {
    use std::os::unix::fs::MetadataExt;
    let mode = data.mode() & 0o7777;
    if mode & OTHERS_WRITE == 0 { Ok(()) } else { Err(FolderError::Mode { folder: folder.to_owned(), mode }) }
}

/// Other systems keep a user's files from others by themselves.
#[cfg(not(unix))]
fn check_owner(_folder: &Path, _data: &Metadata) -> Result<(), FolderError> {
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_folder: &Path, _data: &Metadata) -> Result<(), FolderError> {
    Ok(())
}
