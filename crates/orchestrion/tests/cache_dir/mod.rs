//! A folder for one test.

use std::path::{Path, PathBuf};

/// A cache folder that is removed at the end.
pub struct CacheDir(PathBuf);

impl CacheDir {
    /// An empty folder for this process and purpose.
    pub fn new(purpose: &str) -> Self {
        Self(std::env::temp_dir().join(format!("orchestrion-{purpose}-{}", std::process::id())))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for CacheDir {
    fn drop(&mut self) {
        // Nothing depends on it; temporary folders are also cleaned by the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
