//! The tuning database: a folder of small JSON records.
//!
//! A record's name is the hash of all that determines its value: the canonical program text, target, machine, compiler
//! and flags. Records are written whole and end with a hash of their content (see `orch_files`), so several processes may share a
//! folder. A record that cannot be read counts as absent; the reason goes to a list of warnings, and the next `put` replaces it.

use orch_files::{CacheFolder, FolderError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What a measurement depends on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The canonical text of the program measured, shapes and types included.
    pub program: String,
    /// The target that code is generated for.
    pub target: String,
    /// The machine's fingerprint, and the number of threads where that matters.
    pub machine: String,
    /// The compiler's version.
    pub compiler: String,
    /// The compiler's flags, and whatever options else affect the result.
    pub flags: String,
}

/// A key as records hold it: the program's text is replaced by its hash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    program_blake3: String,
    target: String,
    machine: String,
    compiler: String,
    flags: String,
}

/// The content of a record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    pub(crate) key: StoredKey,
    pub(crate) value: serde_json::Value,
}

/// Records of another format are not understood.
const FORMAT: u32 = 1;

/// A tuning database.
#[derive(Debug)]
pub struct Database {
    folder: CacheFolder,
    warnings: Mutex<Vec<String>>,
}

/// What a database holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct DatabaseStats {
    /// Records, readable or not.
    pub records: usize,
    /// Their sizes together.
    pub bytes: u64,
}

/// Why the database could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A file could not be read or written.
    #[error("tuning database, {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder is not safe to use.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A value has no JSON form.
    #[error("internal error: a tuning value has no JSON form: {0}")]
    Value(serde_json::Error),
}

impl DatabaseError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}

impl Key {
    pub(crate) fn stored(&self) -> StoredKey {
        StoredKey {
            program_blake3: blake3::hash(self.program.as_bytes()).to_hex().to_string(),
            target: self.target.clone(),
            machine: self.machine.clone(),
            compiler: self.compiler.clone(),
            flags: self.flags.clone(),
        }
    }
}

impl StoredKey {
    /// What is measured, for which target and with which options.
    pub(crate) fn apart_from_machine(self) -> [String; 3] {
        [self.program_blake3, self.target, self.flags]
    }

    /// The hash that names the record.
    pub(crate) fn name(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [&self.program_blake3, &self.target, &self.machine, &self.compiler, &self.flags] {
            // A length before each part keeps different lists from running together.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

impl Record {
    /// Reads the text of a record.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if record.format == FORMAT {
            Ok(record)
        } else {
            Err(format!("format {} instead of {FORMAT}", record.format))
        }
    }
}

impl Database {
    /// Opens the database in `folder`, making the folder if need be.
    ///
    /// # Errors
    /// As [`CacheFolder::open`].
    pub fn open(folder: &Path) -> Result<Self, DatabaseError> {
        let folder = CacheFolder::open(folder)?.subfolder("tuning")?;
        Ok(Self { folder, warnings: Mutex::default() })
    }

    /// The folder of the records.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The value stored under this key, if it is there and has the form of a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &Key) -> Option<T> {
        let key = key.stored();
        let name = file_name(&key);
        let record = self.read(&name)?;
        if record.key != key {
            self.warn(&name, "it holds another key");
            return None;
        }
        serde_json::from_value(record.value).map_err(|error| self.warn(&name, &error.to_string())).ok()
    }

    /// Stores a value, replacing what was stored under this key.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn put<T: Serialize>(&self, key: &Key, value: &T) -> Result<(), DatabaseError> {
        let value = serde_json::to_value(value).map_err(DatabaseError::Value)?;
        self.write(&Record { format: FORMAT, key: key.stored(), value })
    }

    /// What the database holds.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn stats(&self) -> Result<DatabaseStats, DatabaseError> {
        let mut stats = DatabaseStats::default();
        for name in self.records()? {
            stats.records += 1;
            // A record that another process has just removed counts as empty.
            stats.bytes += fs::metadata(self.folder.path().join(name)).map_or(0, |data| data.len());
        }
        Ok(stats)
    }

    /// Removes all records, and says what they were.
    ///
    /// # Errors
    /// If a record cannot be removed.
    pub fn clear(&self) -> Result<DatabaseStats, DatabaseError> {
        let stats = self.stats()?;
        for path in self.files()? {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(DatabaseError::io(&path)(error));
                }
                _ => {}
            }
        }
        Ok(stats)
    }

    /// What was wrong with records since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The names of all records, ascending.
    pub(crate) fn records(&self) -> Result<Vec<String>, DatabaseError> {
        let name = |path: PathBuf| {
            let parts =
                path.strip_prefix(self.folder.path()).ok()?.to_str()?.replace(std::path::MAIN_SEPARATOR, "/");
            parts.ends_with(&format!(".{EXTENSION}")).then_some(parts)
        };
        Ok(self.files()?.into_iter().filter_map(name).collect())
    }

    /// Reads the record in a file; `None`, with a warning unless it does not exist, if that fails.
    pub(crate) fn read(&self, name: &str) -> Option<Record> {
        let Some(text) = self.folder.read_sealed(name) else {
            if self.folder.path().join(name).exists() {
                self.warn(name, "it is damaged, or others may have written it");
            }
            return None;
        };
        let text = std::str::from_utf8(&text).map_err(|error| error.to_string());
        text.and_then(Record::parse).map_err(|reason| self.warn(name, &reason)).ok()
    }

    /// Writes a record under the name that its key gives it.
    pub(crate) fn write(&self, record: &Record) -> Result<(), DatabaseError> {
        let name = file_name(&record.key);
        let text = serde_json::to_string(record).map_err(DatabaseError::Value)?;
        self.folder.subfolder(&name[..SHARD_CHARS])?;
        let path = self.folder.path().join(&name);
        self.folder.write_sealed(&name, text.as_bytes()).map_err(DatabaseError::io(&path))
    }

    fn files(&self) -> Result<Vec<PathBuf>, DatabaseError> {
        let mut files = Vec::new();
        for shard in list(self.folder.path())? {
            if shard.is_dir() {
                files.extend(list(&shard)?);
            }
        }
        files.sort();
        Ok(files)
    }

    fn warn(&self, name: &str, reason: &str) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder.path().join(name);
        warnings.push(format!("tuning record {} is ignored: {reason}", path.display()));
    }
}

/// The extension of records: JSON, and a hash.
const EXTENSION: &str = "record";

/// Records are in folders that the first characters of their names name: those of a few hundred files stay fast everywhere.
const SHARD_CHARS: usize = 2;

/// The file of the record of this key, whether or not it exists, below the database's folder.
pub(crate) fn file_name(key: &StoredKey) -> String {
    let name = key.name();
    format!("{}/{name}.{EXTENSION}", &name[..SHARD_CHARS])
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, DatabaseError> {
    let entries = fs::read_dir(folder).map_err(DatabaseError::io(folder))?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(DatabaseError::io(folder))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A database in a folder of its own, which is removed on drop.
    pub(crate) struct TestDatabase {
        pub(crate) database: Database,
        folder: orch_files::Scratch,
    }

    impl TestDatabase {
        pub(crate) fn new() -> Self {
            let folder = orch_files::Scratch::new().unwrap();
            Self { database: Database::open(folder.path()).unwrap(), folder }
        }
    }

    pub(crate) fn key(program: &str) -> Key {
        Key {
            program: program.into(),
            target: "x86-64-v4".into(),
            machine: "test".into(),
            compiler: "cc 1".into(),
            flags: "-O2".into(),
        }
    }

    #[test]
    fn values_are_found_again() {
        let test = TestDatabase::new();
        assert_eq!(test.database.get::<f64>(&key("a")), None);
        test.database.put(&key("a"), &1.5).unwrap();
        test.database.put(&key("b"), &vec![1u32, 2]).unwrap();
        test.database.put(&key("a"), &2.5).unwrap();
        let again = Database::open(test.folder.path()).unwrap();
        assert_eq!(again.get::<f64>(&key("a")), Some(2.5));
        assert_eq!(again.get::<Vec<u32>>(&key("b")), Some(vec![1, 2]));
        assert_eq!(again.take_warnings(), Vec::<String>::new());
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let base = key("a");
        let others = [
            Key { program: "b".into(), ..base.clone() },
            Key { target: "x".into(), ..base.clone() },
            Key { machine: "x".into(), ..base.clone() },
            Key { compiler: "x".into(), ..base.clone() },
            Key { flags: "x".into(), ..base.clone() },
            Key { compiler: "cc ".into(), flags: "1-O2".into(), ..base.clone() },
        ];
        let test = TestDatabase::new();
        test.database.put(&base, &1).unwrap();
        for other in others {
            assert_eq!(test.database.get::<i32>(&other), None, "{other:?}");
        }
    }

    #[test]
    fn damaged_records_are_absent_and_replaced() {
        let test = TestDatabase::new();
        let database = &test.database;
        let name = file_name(&key("a").stored());
        let path = database.folder().join(&name);
        database.put(&key("a"), &1).unwrap();
        let mut changed = fs::read(&path).unwrap();
        let at = changed.iter().rposition(|&byte| byte == b'1').unwrap();
        changed[at] = b'2';
        let sealed = ["", "{", "{\"format\":9}", "null", "\u{0}"].map(|text| {
            database.folder.write_sealed(&name, text.as_bytes()).unwrap();
            fs::read(&path).unwrap()
        });
        for damage in [Vec::new(), b"null".to_vec(), changed].into_iter().chain(sealed) {
            database.put(&key("a"), &1).unwrap();
            fs::write(&path, damage).unwrap();
            assert_eq!(database.get::<i32>(&key("a")), None);
            let warnings = database.take_warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(path.to_str().unwrap()), "{warnings:?}");
        }
        database.put(&key("a"), &1).unwrap();
        assert_eq!(database.get::<i32>(&key("a")), Some(1));
        assert_eq!(database.get::<String>(&key("a")), None, "a value of another type");
        assert_eq!(database.take_warnings().len(), 1);
    }

    #[test]
    fn a_moved_record_is_not_believed() {
        let test = TestDatabase::new();
        let database = &test.database;
        database.put(&key("a"), &1).unwrap();
        database.put(&key("b"), &2).unwrap();
        let [a, b] = ["a", "b"].map(|program| file_name(&key(program).stored()));
        fs::copy(database.folder().join(&a), database.folder().join(&b)).unwrap();
        assert_eq!(database.get::<i32>(&key("b")), None);
        let text = database.folder.read_sealed(&a).unwrap();
        database.folder.write_sealed(&b, &text).unwrap();
        assert_eq!(database.get::<i32>(&key("b")), None);
        let warnings = database.take_warnings();
        assert!(warnings[0].contains("it is damaged") && warnings[1].ends_with("it holds another key"));
    }

    #[test]
    fn stats_and_clear() {
        let test = TestDatabase::new();
        for idx in 0..20 {
            test.database.put(&key(&idx.to_string()), &idx).unwrap();
        }
        let stats = test.database.clear().unwrap();
        assert!(stats.records == 20 && stats.bytes > 20 * 50, "{stats:?}");
        assert_eq!(test.database.stats().unwrap(), DatabaseStats::default());
    }

    #[test]
    fn writers_do_not_disturb_readers() {
        let test = TestDatabase::new();
        test.database.put(&key("a"), &vec![0; 100]).unwrap();
        std::thread::scope(|scope| {
            for value in 1..=3 {
                let database = &test.database;
                scope
                    .spawn(move || (0..30).for_each(|_| database.put(&key("a"), &vec![value; 100]).unwrap()));
            }
            for _ in 0..100 {
                let values: Vec<i32> = test.database.get(&key("a")).unwrap();
                assert!(values.len() == 100 && values.iter().all(|value| *value == values[0]));
            }
        });
        assert_eq!(test.database.take_warnings(), Vec::<String>::new());
        assert_eq!(test.database.files().unwrap().len(), 1, "nothing else stays");
    }
}
