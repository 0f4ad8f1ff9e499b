//! Options by which tests plan and compile.

use crate::cache_dir::CacheDir;
use orchestrion::{Options, Precision};

/// For a target, this machine's CPU if none is named, by usual figures.
pub fn options(cache: &CacheDir, target: Option<&str>, precision: Precision) -> Options {
    Options {
        cache_dir: cache.path().to_owned(),
        target: target.map(str::to_owned),
        precision,
        calibrate: false,
        ..Options::default()
    }
}
