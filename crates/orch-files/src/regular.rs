//! Opening files of which the whole content is wanted.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a regular file to read. What else a path may name is refused without waiting for it: a pipe has no content until
/// somebody writes, and a device may have no end. It is the open file that is looked at, so nothing can take its place.
///
/// # Errors
/// If it cannot be opened or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        let no_wait = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, no_wait.bits().cast_signed());
    }
    let file = options.open(path).map_err(|error| match path.metadata() {
        // A socket cannot be opened at all.
        Ok(data) if !data.is_file() && !data.is_dir() => irregular(data.file_type()),
        _ => error,
    })?;
    let data = file.metadata()?;
    if data.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if data.is_file() { Ok(file) } else { Err(irregular(data.file_type())) }
}

fn irregular(kind: FileType) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}; a regular file is expected", name(kind)))
}

#[cfg(unix)]
fn name(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_fifo() => "it is a pipe",
        _ if kind.is_socket() => "it is a socket",
        _ => "it is a device",
    }
}

#[cfg(not(unix))]
fn name(_kind: FileType) -> &'static str {
    "it is something else"
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn pipes_sockets_and_devices_are_refused_at_once() {
        let scratch = crate::Scratch::new().unwrap();
        let dir = scratch.path();
        let pipe = dir.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let socket = dir.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let said = |path: &Path| open_regular(path).unwrap_err().to_string();
        assert_eq!(said(&pipe), "it is a pipe; a regular file is expected");
        assert_eq!(said(&socket), "it is a socket; a regular file is expected");
        assert_eq!(said("/dev/zero".as_ref()), "it is a device; a regular file is expected");
        assert_eq!(open_regular(dir).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(open_regular(&dir.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
