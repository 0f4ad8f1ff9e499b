//! The cache as a user sees it: for `orchestrion cache`.

use crate::Error;
use orch_files::{open_regular, whole_file};
use orch_runtime::cpu::KernelFolder;
use orch_tune::Database;
use std::io::{BufReader, Write};
use std::path::Path;

fn environment(error: impl std::fmt::Display) -> Error {
    Error::Environment(error.to_string())
}

fn kernels(folder: &Path) -> Result<KernelFolder, Error> {
    KernelFolder::open(folder).map_err(environment)
}

/// How many kernels and measurements there are.
///
/// # Errors
/// If the folder cannot be read.
pub fn stats(folder: &Path) -> Result<String, Error> {
    let kernels = kernels(folder)?.stats().map_err(environment)?;
    let records = Database::open(folder).and_then(|database| database.stats()).map_err(environment)?;
    Ok(format!("{} kernels, {} bytes; {} measurements", kernels.files, kernels.bytes, records.records))
}

/// Removes all kernels and measurements, and says how many.
///
/// # Errors
/// If the folder cannot be written.
pub fn clear(folder: &Path) -> Result<String, Error> {
    let kernels = kernels(folder)?.clear().map_err(environment)?;
    let records = Database::open(folder).and_then(|database| database.clear()).map_err(environment)?;
    Ok(format!("removed {} kernels and {} measurements", kernels.files, records.records))
}

/// Writes all measurements to a file, one JSON object a line; returns their number.
///
/// # Errors
/// If the file cannot be written.
pub fn export(folder: &Path, file: &Path) -> Result<usize, Error> {
    let failed = |source| Error::File { path: file.to_owned(), source };
    let database = Database::open(folder).map_err(environment)?;
    let mut records = Vec::new();
    let count = database.export(&mut records).map_err(environment)?;
    whole_file::write(file, |out| out.write_all(&records)).map_err(failed)?;
    Ok(count)
}

/// Adds the measurements of a file, and says how many.
///
/// # Errors
/// If the file cannot be read, or has lines that are not measurements; those that are have been added then.
pub fn import(folder: &Path, file: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { path: file.to_owned(), source };
    let database = Database::open(folder).map_err(environment)?;
    let mut input = BufReader::new(open_regular(file).map_err(failed)?);
    let report = database.import(&mut input).map_err(environment)?;
    let (added, kept) = (report.added, report.kept);
    match &report.rejected[..] {
        [] => Ok(format!("{added} measurements added, {kept} were known")),
        [first, ..] => Err(Error::Input(format!(
            "{}: {} lines are not measurements, the first is line {}: {}; {added} others were added",
            file.display(),
            report.rejected.len(),
            first.line,
            first.reason
        ))),
    }
}
