//! Moving tuning records between machines: one file, one record per line.

use crate::database::{Database, DatabaseError, Record, file_name};
use serde::Serialize;
use std::io::{self, BufRead, Write};
use std::path::Path;

/// What an import did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ImportReport {
    /// Records that were new.
    pub added: usize,
    /// Records that were there already, and were left as they are.
    pub kept: usize,
    /// Lines that are no records.
    pub rejected: Vec<RejectedLine>,
}

/// A line of an imported file that is no record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RejectedLine {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// The name that messages give to the file, which only the caller knows.
const STREAM: &str = "export file";

/// Longer lines are no records: they are skipped, not held in memory.
const MAX_LINE_BYTES: u64 = 16 << 20;

impl Database {
    /// Writes all readable records, in the order of their names; returns how many there are.
    ///
    /// # Errors
    /// If the folder cannot be read or `out` cannot be written.
    pub fn export(&self, out: &mut impl Write) -> Result<usize, DatabaseError> {
        let mut count = 0;
        for name in self.records()? {
            if let Some(record) = self.read(&name) {
                let text = serde_json::to_string(&record).map_err(DatabaseError::Value)?;
                writeln!(out, "{text}").map_err(DatabaseError::io(Path::new(STREAM)))?;
                count += 1;
            }
        }
        out.flush().map_err(DatabaseError::io(Path::new(STREAM)))?;
        Ok(count)
    }

    /// Adds the records of an exported file that are not there yet. Empty lines are skipped.
    ///
    /// # Errors
    /// If `input` cannot be read or a record cannot be written. Lines that are no records are no error: the report
    /// lists them.
    pub fn import(&self, input: &mut impl BufRead) -> Result<ImportReport, DatabaseError> {
        let mut report = ImportReport::default();
        for item in lines(input) {
            let (line, record) = item.map_err(DatabaseError::io(Path::new(STREAM)))?;
            match record {
                Err(reason) => report.rejected.push(RejectedLine { line, reason }),
                Ok(record) if self.read(&file_name(&record.key)).is_some_and(|old| old.key == record.key) => {
                    report.kept += 1;
                }
                Ok(record) => {
                    self.write(&record)?;
                    report.added += 1;
                }
            }
        }
        Ok(report)
    }
}

/// The records of an exported file, or why a line is none, with the lines' numbers. Empty lines are skipped.
pub(crate) fn lines(
    input: &mut impl BufRead,
) -> impl Iterator<Item = io::Result<(usize, Result<Record, String>)>> {
    let next = move || match read_line(input) {
        Ok(None) => None,
        Ok(Some(bytes)) => {
            Some(Ok(bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()))))
        }
        Err(error) => Some(Err(error)),
    };
    let texts = std::iter::from_fn(next).enumerate();
    texts.filter_map(|(number, text)| match text {
        Ok(Ok(text)) if text.trim().is_empty() => None,
        Ok(text) => Some(Ok((number + 1, text.and_then(|text| Record::parse(&text))))),
        Err(error) => Some(Err(error)),
    })
}

/// The next line, or why it is too long to be one; `None` at the end.
fn read_line(input: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut bytes = Vec::new();
    if io::Read::take(&mut *input, MAX_LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.len() as u64 == MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
        return Ok(Some(Err(format!("longer than {MAX_LINE_BYTES} bytes"))));
    }
    Ok(Some(Ok(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::{TestDatabase, key};
    use std::fs;

    #[test]
    fn exports_can_be_imported() {
        let (from, to) = (TestDatabase::new(), TestDatabase::new());
        for idx in 0..10 {
            from.database.put(&key(&idx.to_string()), &idx).unwrap();
        }
        to.database.put(&key("3"), &-3).unwrap();
        let mut file = Vec::new();
        assert_eq!(from.database.export(&mut file).unwrap(), 10);
        let report = to.database.import(&mut &file[..]).unwrap();
        assert_eq!(report, ImportReport { added: 9, kept: 1, rejected: vec![] });
        let values: Vec<i32> = (0..10).map(|idx| to.database.get(&key(&idx.to_string())).unwrap()).collect();
        assert_eq!(values, [0, 1, 2, -3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn exports_are_deterministic_and_skip_damage() {
        let test = TestDatabase::new();
        test.database.put(&key("a"), &1).unwrap();
        test.database.put(&key("b"), &2).unwrap();
        let export = || {
            let mut file = Vec::new();
            test.database.export(&mut file).unwrap();
            file
        };
        assert_eq!(export(), export());
        fs::write(test.database.folder().join(&test.database.records().unwrap()[0]), "damage").unwrap();
        assert_eq!(export().iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(test.database.take_warnings().len(), 1);
    }

    #[test]
    fn bad_lines_are_listed_and_the_rest_is_imported() {
        let from = TestDatabase::new();
        from.database.put(&key("a"), &1).unwrap();
        let mut file = b"nonsense\n\n\xff\n".to_vec();
        from.database.export(&mut file).unwrap();
        file.extend(vec![b'x'; MAX_LINE_BYTES as usize + 5]);
        let to = TestDatabase::new();
        let report = to.database.import(&mut &file[..]).unwrap();
        assert_eq!(report.added, 1);
        let lines: Vec<_> = report.rejected.iter().map(|rejected| rejected.line).collect();
        assert_eq!(lines, [1, 3, 5]);
        assert_eq!(report.rejected[2].reason, "longer than 16777216 bytes");
    }
}
