//! Exported measurements as figures to plan by, on machines other than the one that they are of.

use crate::database::Key;
use crate::transfer::{ImportReport, RejectedLine, lines};
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Times of kernels by program, target and flags, whatever machine and compiler they are of.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Records {
    times: BTreeMap<[String; 3], f64>,
}

impl Records {
    /// Reads an exported file. Records of other values than times are left aside; of several times of one kernel the
    /// least counts. The report lists lines that are no records.
    ///
    /// # Errors
    /// If `input` cannot be read.
    pub fn read(input: &mut impl BufRead) -> io::Result<(Self, ImportReport)> {
        let (mut records, mut report) = (Self::default(), ImportReport::default());
        for item in lines(input) {
            let (line, record) = item?;
            match record.map(|record| (record.key, record.value.as_f64())) {
                Err(reason) => report.rejected.push(RejectedLine { line, reason }),
                Ok((key, Some(time))) => {
                    records.add(key.apart_from_machine(), time);
                    report.added += 1;
                }
                Ok((_, None)) => report.kept += 1,
            }
        }
        Ok((records, report))
    }

    fn add(&mut self, key: [String; 3], time: f64) {
        let least = self.times.entry(key).or_insert(time);
        *least = least.min(time);
    }

    /// The time stored for a key, on whatever machine.
    pub fn time(&self, key: &Key) -> Option<f64> {
        self.times.get(&key.stored().apart_from_machine()).copied()
    }

    /// What follows the key's flags in those that begin with them and have the least time, on whatever machine.
    pub fn fastest_continuation(&self, key: &Key) -> Option<&str> {
        let start = key.stored().apart_from_machine();
        let continues = |flags: &[String; 3]| flags[..2] == start[..2] && flags[2].starts_with(&start[2]);
        let found = self.times.range(start.clone()..).take_while(|(flags, _)| continues(flags));
        let (flags, _) = found.min_by(|a, b| a.1.total_cmp(b.1))?;
        flags[2].get(start[2].len()..)
    }

    /// The number of kernels with times.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::{TestDatabase, key};

    #[test]
    fn times_are_found_whatever_machine_they_are_of() {
        let test = TestDatabase::new();
        let elsewhere = Key { machine: "another".into(), compiler: "older".into(), ..key("a") };
        test.database.put(&elsewhere, &2.5).unwrap();
        test.database.put(&key("a"), &3.0).unwrap();
        test.database.put(&key("b"), &"no time").unwrap();
        let mut file = b"nonsense\n".to_vec();
        test.database.export(&mut file).unwrap();
        let (records, report) = Records::read(&mut &file[..]).unwrap();
        assert_eq!((report.added, report.kept, report.rejected.len()), (2, 1, 1));
        assert_eq!((records.len(), records.time(&key("a")), records.time(&key("b"))), (1, Some(2.5), None));
        assert_eq!(records.time(&Key { target: "other".into(), ..key("a") }), None);
    }

    #[test]
    fn the_fastest_of_several_ways_is_found() {
        let test = TestDatabase::new();
        let way = |flags: &str| Key { flags: flags.into(), ..key("a") };
        for (flags, time) in
            [("f16", 0.5), ("f16, lib 1", 3.0), ("f16, lib 2", 2.0), ("f16, lib 3", 2.5), ("f16, other", 1.0)]
        {
            test.database.put(&way(flags), &time).unwrap();
        }
        test.database.put(&Key { flags: "f16, lib 4".into(), ..key("b") }, &1.0).unwrap();
        let mut file = Vec::new();
        test.database.export(&mut file).unwrap();
        let (records, _) = Records::read(&mut &file[..]).unwrap();
        assert_eq!(records.fastest_continuation(&way("f16, lib ")), Some("2"));
        assert_eq!(records.fastest_continuation(&way("f32, lib ")), None);
        assert_eq!(records.fastest_continuation(&Key { program: "b".into(), ..way("f16, lib ") }), Some("4"));
        assert_eq!(records.fastest_continuation(&Key { target: "other".into(), ..way("f16") }), None);
    }
}
