//! A folder of files that this program made earlier and uses again.

use crate::ownership::{FolderError, check_folder, is_trusted_file};
use crate::regular::open_regular;
use crate::seal::{sealed, unsealed};
use crate::unfinished::Unfinished;
use crate::whole_file::without_path;
use bytes::Bytes;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// A folder, or a part of one, to which only this user and root can write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheFolder {
    path: PathBuf,
    /// Where files under construction are: on the same file system, so that they can be renamed into place.
    scratch: PathBuf,
}

/// The folder of files under construction, below that of the whole cache.
const SCRATCH: &str = "tmp";

/// What is older was left by a process that was killed: no compilation takes as long.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl CacheFolder {
    /// Opens a cache, making its folder (for this user alone) if need be, and removes what killed processes left there more than a
    /// day ago.
    ///
    /// # Errors
    /// If the folder cannot be made, belongs to another user than this one or root, or if others may write to it.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        // Compilers take a path that begins with a dash for an option.
        let is_option = path.as_os_str().as_encoded_bytes().starts_with(b"-");
        let path = if is_option { Path::new(".").join(path) } else { path.to_owned() };
        make(&path)?;
        let scratch = path.join(SCRATCH);
        sweep(&scratch);
        Ok(Self { path, scratch })
    }

    /// A folder in this one, made if need be.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn subfolder(&self, name: &str) -> Result<Self, FolderError> {
        let path = self.path.join(name);
        make(&path)?;
        Ok(Self { path, scratch: self.scratch.clone() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of a file; `None` if there is none, or if somebody else than this user and root could have written it.
    ///
    /// # Errors
    /// If the file is there, but cannot be read.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut file = match open_regular(&self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        // Of the file that was opened: the folder may have been exchanged since it was checked.
        if !is_trusted_file(&file.metadata()?) {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// The content of a file that [`write_sealed`](Self::write_sealed) wrote under this name; `None` if there is none, or if it is
    /// not whole.
    pub fn read_sealed(&self, name: &str) -> Option<Bytes> {
        unsealed(name, self.read(name).ok()??)
    }

    /// Writes a file, whole or not at all, for this user alone.
    ///
    /// # Errors
    /// If it cannot be written; nothing is left behind then.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.make_scratch()?;
        let mut aside = tempfile::Builder::new().tempfile_in(&self.scratch).map_err(without_path)?;
        let _unfinished = Unfinished::new(aside.path());
        aside.write_all(content)?;
        aside.as_file().sync_data()?;
        aside.persist(self.path.join(name))?;
        Ok(())
    }

    /// Writes a file, whole or not at all, with a hash of its name and content.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_sealed(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.write(name, &sealed(name, content))
    }

    /// A new folder for files under construction, which is removed with all of them on drop.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn scratch(&self) -> io::Result<Scratch> {
        self.make_scratch()?;
        Scratch::in_folder(&self.scratch)
    }

    fn make_scratch(&self) -> io::Result<()> {
        make(&self.scratch).map_err(|error| match error {
            FolderError::Io { source, .. } => source,
            other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
        })
    }
}

/// A folder that only this user can look at, removed with its content on drop.
#[derive(Debug)]
pub struct Scratch {
    // Fields drop in order: the folder is removed before it is forgotten.
    folder: TempDir,
    _unfinished: Unfinished,
}

impl Scratch {
    /// A new folder in that of the system's temporary files.
    ///
    /// # Errors
    /// If it cannot be made; the error says where.
    pub fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir();
        Self::in_folder(&folder).map_err(|error| {
            let place = folder.display();
            io::Error::new(
                error.kind(),
                format!("no temporary folder can be made in {place} (set TMPDIR): {error}"),
            )
        })
    }

    fn in_folder(parent: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("orchestrion-");
        #[cfg(unix)]
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        #[cfg(unix)]
        builder.permissions(permissions);
        let folder = builder.tempdir_in(parent).map_err(without_path)?;
        let unfinished = Unfinished::new(folder.path());
        Ok(Self { folder, _unfinished: unfinished })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The folder of this user's caches of this program: below `cache_home` (the environment's `XDG_CACHE_HOME`) if that is an absolute
/// path, else below `.cache` in `home`; for users without a home, who are mostly services, below the system's temporary folder under a
/// name of their own.
pub fn default_cache_folder(cache_home: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    let is_usable = |path: &PathBuf| path.is_absolute();
    let home = || home.filter(is_usable).map(|home| home.join(".cache"));
    cache_home.filter(is_usable).or_else(home).map_or_else(homeless, |base| base.join("orchestrion"))
}

#[cfg(unix)]
fn homeless() -> PathBuf {
    std::env::temp_dir().join(format!("orchestrion-{}", crate::ownership::this_user()))
}

#[cfg(not(unix))]
fn homeless() -> PathBuf {
    std::env::temp_dir().join("orchestrion")
}

/// Makes a folder, for this user alone, if need be, and checks who may write to it.
fn make(path: &Path) -> Result<(), FolderError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(path).map_err(FolderError::io(path))?;
        }
        _ => {}
    }
    check_folder(path)
}

/// Removes what is old. What cannot be removed costs nothing but room.
fn sweep(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    let now = SystemTime::now();
    for entry in entries.flatten() {
        let Ok(data) = entry.metadata() else { continue };
        let age = data.modified().ok().and_then(|written| now.duration_since(written).ok());
        if age.is_some_and(|age| age > MAX_AGE) {
            let path = entry.path();
            let _ = if data.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (TempDir, CacheFolder) {
        let outer = tempfile::tempdir().unwrap();
        let cache = CacheFolder::open(&outer.path().join("cache")).unwrap();
        (outer, cache)
    }

    #[test]
    fn files_are_found_again_and_nothing_else_stays() {
        let (_outer, cache) = folder();
        let kernels = cache.subfolder("kernels").unwrap();
        kernels.write("a", b"plain").unwrap();
        kernels.write_sealed("b", b"sealed").unwrap();
        assert_eq!(kernels.read("a").unwrap().as_deref(), Some(&b"plain"[..]));
        assert_eq!(kernels.read_sealed("b").as_deref(), Some(&b"sealed"[..]));
        assert_eq!((kernels.read("c").unwrap(), kernels.read_sealed("a")), (None, None));
        fs::rename(kernels.path().join("b"), kernels.path().join("c")).unwrap();
        assert_eq!(kernels.read_sealed("c"), None, "a moved file is absent");
        drop(cache.scratch().unwrap());
        assert_eq!(fs::read_dir(cache.path().join(SCRATCH)).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (_outer, cache) = folder();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(cache.path()), 0o700);
        cache.write("a", b"x").unwrap();
        for bits in [0o777, 0o720, 0o702, 0o1777] {
            fs::set_permissions(cache.path(), PermissionsExt::from_mode(bits)).unwrap();
            let text = CacheFolder::open(cache.path()).unwrap_err().to_string();
            assert!(text.contains("others may write") && text.contains("--cache-dir"), "{text}");
        }
        fs::set_permissions(cache.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let cache = CacheFolder::open(cache.path()).unwrap();
        assert!(cache.read("a").unwrap().is_some());
        fs::set_permissions(cache.path().join("a"), PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(cache.read("a").unwrap(), None, "anybody could have written it");
    }

    /// Only root can give files away.
    #[cfg(unix)]
    #[test]
    fn what_belongs_to_others_is_refused() {
        let (_outer, cache) = folder();
        cache.write("a", b"x").unwrap();
        if std::os::unix::fs::chown(cache.path().join("a"), Some(65534), None).is_err() {
            eprintln!("skipped: files cannot be given away");
            return;
        }
        assert_eq!(cache.read("a").unwrap(), None);
        std::os::unix::fs::chown(cache.path(), Some(65534), None).unwrap();
        let text = CacheFolder::open(cache.path()).unwrap_err().to_string();
        assert!(text.contains("belongs to user 65534"), "{text}");
        let link = cache.path().with_file_name("link");
        std::os::unix::fs::symlink("cache", &link).unwrap();
        std::os::unix::fs::chown(cache.path(), Some(0), None).unwrap();
        CacheFolder::open(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert!(CacheFolder::open(&link).is_err(), "a link that somebody else made");
    }

    #[test]
    fn litter_is_swept_after_a_day() {
        let (_outer, cache) = folder();
        let scratch = cache.path().join(SCRATCH);
        fs::create_dir_all(scratch.join("old")).unwrap();
        fs::write(scratch.join("old/kernel.c"), "x").unwrap();
        fs::write(scratch.join("old-file"), "x").unwrap();
        fs::create_dir(scratch.join("new")).unwrap();
        let long_ago = SystemTime::now() - 2 * MAX_AGE;
        for name in ["old", "old-file"] {
            fs::File::open(scratch.join(name)).unwrap().set_modified(long_ago).unwrap();
        }
        CacheFolder::open(cache.path()).unwrap();
        let left: Vec<_> = fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["new"]);
    }

    #[test]
    fn default_folders_are_no_ones_else() {
        let of =
            |cache_home: &str, home: &str| default_cache_folder(Some(cache_home.into()), Some(home.into()));
        assert_eq!(of("/x", "/h"), Path::new("/x/orchestrion"));
        for not_absolute in ["", "x"] {
            assert_eq!(of(not_absolute, "/h"), Path::new("/h/.cache/orchestrion"));
            assert_eq!(of(not_absolute, not_absolute), default_cache_folder(None, None));
        }
        if cfg!(unix) {
            let user = crate::ownership::this_user().to_string();
            assert!(
                default_cache_folder(None, None).to_str().unwrap().ends_with(&format!("orchestrion-{user}"))
            );
        }
    }

    #[test]
    fn what_is_no_folder_is_named() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("file");
        fs::write(&path, "").unwrap();
        for path in [path.clone(), path.join("below")] {
            let text = CacheFolder::open(&path).unwrap_err().to_string();
            assert!(text.contains(path.to_str().unwrap()), "{text}");
        }
    }
}
