//! Options: texts by name, as on the command line.

use crate::status::{Failure, at, destroy, give, guarded, orc_status, text_at};
use orchestrion::{Library, Nvtx, Options, Precision, RunOptions};
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How to compile, load and run.
#[derive(Default)]
pub struct orc_options {
    pub(crate) compile: Options,
    threads: usize,
}

impl orc_options {
    pub(crate) fn run(&self) -> RunOptions {
        RunOptions::of(&self.compile, self.threads)
    }
}

/// Changes options by a text, or says what is expected instead.
type Set = fn(&mut orc_options, &OsStr) -> Result<(), String>;

/// Every option: `docs/c.md` lists them.
const SETTINGS: [(&str, Set); 19] = [
    ("budget", |options, value| put(&mut options.compile.tune_budget, seconds(value).map(Some))),
    ("cache-dir", |options, value| put(&mut options.compile.cache_dir, path(value))),
    ("calibrate", |options, value| put(&mut options.compile.calibrate, switch(value))),
    ("cc", |options, value| put(&mut options.compile.c_compiler, path(value).map(Some))),
    ("cublaslt", |options, value| put(&mut options.compile.cuda.cublaslt, path(value).map(Some))),
    ("cuda-driver", |options, value| put(&mut options.compile.cuda.driver, path(value).map(Some))),
    ("cudnn", |options, value| put(&mut options.compile.cuda.cudnn, path(value).map(Some))),
    ("dim", |options, value| {
        let (name, size) = dim(value)?;
        options.compile.dims.insert(name, size);
        Ok(())
    }),
    ("external-data-root", |options, value| {
        options.compile.external_data_roots.push(path(value)?);
        Ok(())
    }),
    ("jobs", |options, value| put(&mut options.compile.jobs, number(value))),
    ("libraries", |options, value| put(&mut options.compile.libraries, libraries(value))),
    ("nvrtc", |options, value| put(&mut options.compile.cuda.nvrtc, path(value).map(Some))),
    ("nvtx", |options, value| put(&mut options.compile.cuda.nvtx, Ok(Nvtx::of_setting(Some(value), None)))),
    ("precision", |options, value| put(&mut options.compile.precision, precision(value))),
    ("records", |options, value| put(&mut options.compile.records, path(value).map(Some))),
    ("superoptimize", |options, value| put(&mut options.compile.superoptimize, switch(value))),
    ("target", |options, value| put(&mut options.compile.target, target(value).map(Some))),
    ("threads", |options, value| put(&mut options.threads, number(value))),
    ("tune", |options, value| put(&mut options.compile.tune, switch(value))),
];

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn text(value: &OsStr) -> Option<&str> {
    value.to_str()
}

fn path(value: &OsStr) -> Result<PathBuf, String> {
    if value.is_empty() { Err("a path".to_owned()) } else { Ok(value.into()) }
}

fn target(value: &OsStr) -> Result<String, String> {
    let name = text(value).filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| "the name of a target".to_owned())
}

fn switch(value: &OsStr) -> Result<bool, String> {
    match text(value) {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err("`on` or `off`".to_owned()),
    }
}

fn number(value: &OsStr) -> Result<usize, String> {
    text(value).and_then(|text| text.parse().ok()).ok_or_else(|| "a number".to_owned())
}

fn seconds(value: &OsStr) -> Result<Duration, String> {
    let seconds = text(value).and_then(|text| text.parse().ok());
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "a number of seconds from 0 on".to_owned())
}

fn dim(value: &OsStr) -> Result<(String, usize), String> {
    let parts = text(value).and_then(|text| text.rsplit_once('='));
    let parsed = parts.and_then(|(name, size)| Some((name.to_owned(), size.parse().ok()?)));
    parsed.ok_or_else(|| "NAME=N, for example batch=1".to_owned())
}

fn precision(value: &OsStr) -> Result<Precision, String> {
    let known = Precision::ALL.into_iter().find(|precision| Some(precision.name()) == text(value));
    known.ok_or_else(|| format!("one of {}", Precision::ALL.map(Precision::name).join(", ")))
}

fn libraries(value: &OsStr) -> Result<Vec<Library>, String> {
    let names = text(value).unwrap_or("?").split(',').filter(|name| !name.is_empty());
    let known = |name: &str| Library::ALL.into_iter().find(|library| library.name() == name);
    let expected = || format!("names of {}, separated by commas", Library::ALL.map(Library::name).join(", "));
    names.map(|name| known(name).ok_or_else(expected)).collect()
}

/// Makes options that are all as they are by default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_options_create(out: *mut *mut orc_options) -> orc_status {
    // SAFETY: the promise of all callers.
    unsafe { give(out, || Ok(orc_options::default())) }
}

/// Sets an option, by the names in docs/c.md, for example "target" to "cuda", "dim" to "batch=8", "threads" to "4". No other call
/// may use the options meanwhile. ORC_USAGE if there is no such option or it has no such value: the text says what there is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_options_set(
    options: *mut orc_options,
    name: *const c_char,
    value: *const c_char,
) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers, and of this function's to leave it the options.
        let options = unsafe { options.as_mut() }.ok_or_else(|| Failure::usage("`options` is NULL"))?;
        // SAFETY: the promise of all callers.
        let (name, value) = unsafe { (text_at(name, "`name`")?, text_at(value, "`value`")?) };
        let name = name.to_string_lossy();
        let Some((_, set)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            let known = SETTINGS.map(|(name, _)| name).join(", ");
            return Err(Failure::usage(format!("there is no option `{name}`; there are {known}")));
        };
        set(options, OsStr::from_bytes(value.to_bytes())).map_err(|expected| {
            let value = value.to_string_lossy();
            Failure::usage(format!("option `{name}` is `{value}`; expected is {expected}"))
        })
    })
}

/// Stops compilations with these options, now and later: they return ORC_INTERRUPTED within seconds. It may be called while others
/// compile with them. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_options_cancel(options: *const orc_options) {
    // SAFETY: the promise of all callers.
    if let Ok(options) = unsafe { at(options, "`options`") } {
        options.compile.cancel.store(true, Ordering::SeqCst);
    }
}

/// Frees options. What was compiled or loaded with them does not need them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_options_destroy(options: *mut orc_options) {
    // SAFETY: the promise of all callers.
    unsafe { destroy(options) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_every_option() {
        let page = include_str!("../../../docs/c.md");
        let section = page.split("\n## ").find(|section| section.starts_with("Options")).expect("options");
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        assert_eq!(rows.map(|(name, _)| name).collect::<Vec<_>>(), SETTINGS.map(|(name, _)| name));
    }

    #[test]
    fn values_are_read() {
        let mut options = orc_options::default();
        let mut set = |name: &str, value: &str| {
            let (_, set) = SETTINGS.iter().find(|(known, _)| *known == name).expect("an option");
            set(&mut options, value.as_ref())
        };
        for (name, value) in [
            ("dim", "a=b=8"),
            ("precision", "bf16"),
            ("tune", "on"),
            ("budget", "2.5"),
            ("superoptimize", "off"),
            ("threads", "3"),
            ("libraries", "cudnn,cublaslt"),
            ("target", "cuda:sm_90"),
        ] {
            assert_eq!(set(name, value), Ok(()), "{name}");
        }
        for (name, value) in [
            ("dim", "batch"),
            ("dim", "batch=-1"),
            ("precision", "f8"),
            ("tune", "yes"),
            ("budget", "-1"),
            ("budget", "nan"),
            ("threads", "-1"),
            ("libraries", "blas"),
            ("cache-dir", ""),
            ("target", ""),
        ] {
            assert!(set(name, value).is_err(), "{name}");
        }
        assert_eq!(options.compile.dims["a=b"], 8);
        assert_eq!(options.run().threads, 3);
        assert_eq!(options.compile.tune_budget, Some(Duration::from_millis(2500)));
        assert!(options.compile.tune && !options.compile.superoptimize);
        assert_eq!(options.compile.libraries.len(), 2);
    }
}
