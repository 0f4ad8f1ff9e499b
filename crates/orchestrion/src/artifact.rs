//! The `.orc` file: manifest, compiled kernels and constants of one executable.
//!
//! ```text
//! 0   8 bytes  "ORCHEXE\n"
//! 8   u32      format version
//! 12  u32      zero
//! 16  u64      length of the manifest
//! 24  32 bytes BLAKE3 of the manifest
//! 56  manifest (JSON), zero padding to a multiple of 64
//!     BLAKE3 of each section below, in order, padded to a multiple of 64
//!     sections: shared objects or cubins, then constants, each padded to a multiple of 64
//! ```
//! All numbers are little-endian. Constants are used where they lie in the memory that the file is read to. Every section is
//! compared with its hash when a file is read to be run, so a damaged kernel is never run: the hashes guard against accidents, not
//! against attackers, because they lie in the same file. Loading an artifact runs the native code in it, like starting a program.

use crate::manifest::Manifest;
use crate::{Error, consistency};
use bytes::Bytes;
use orch_files::{open_regular, whole_file};
use orch_runtime::{map_open_file, read_open_file};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// What an artifact begins with.
pub const MAGIC: &[u8; 8] = b"ORCHEXE\n";
/// The version of the layout above and of the manifest.
pub const FORMAT_VERSION: u32 = 6;
const HEADER_BYTES: usize = 56;
const DIGEST_BYTES: usize = 32;
const ALIGN_BYTES: usize = 64;

/// An executable as data.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The plan.
    pub manifest: Manifest,
    /// Shared objects, or cubins for a GPU.
    pub libraries: Vec<Bytes>,
    /// Constants, laid out as the kernels read them.
    pub constants: Vec<Bytes>,
}

impl Artifact {
    /// Writes the artifact beside `path` and renames it into place: a reader never sees half a file, and an
    /// existing one stays until the new one is complete.
    ///
    /// # Errors
    /// If the file cannot be written; nothing is left behind then.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        whole_file::write(path, |file| self.write_to(file))
            .map_err(|source| Error::File { path: path.to_owned(), source })
    }

    /// The content of the file that [`Artifact::save`] writes.
    ///
    /// # Errors
    /// If the manifest has no JSON form: a bug.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).map_err(Error::internal)?;
        Ok(bytes)
    }

    fn write_to(&self, file: &mut impl Write) -> std::io::Result<()> {
        let manifest = serde_json::to_vec(&self.manifest)?;
        file.write_all(MAGIC)?;
        file.write_all(&FORMAT_VERSION.to_le_bytes())?;
        file.write_all(&0u32.to_le_bytes())?;
        file.write_all(&(manifest.len() as u64).to_le_bytes())?;
        file.write_all(blake3::hash(&manifest).as_bytes())?;
        file.write_all(&manifest)?;
        write_padding(file, HEADER_BYTES + manifest.len())?;
        let sections = || self.libraries.iter().chain(&self.constants);
        for section in sections() {
            file.write_all(blake3::hash(section).as_bytes())?;
        }
        write_padding(file, sections().count() * DIGEST_BYTES)?;
        for section in sections() {
            file.write_all(section)?;
            write_padding(file, section.len())?;
        }
        Ok(())
    }

    /// Whether its parts fit each other.
    ///
    /// # Errors
    /// A clause with the first part that does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { manifest, libraries, constants } = self;
        consistency::check(consistency::Parts { manifest, libraries, constants })
    }

    /// Reads a file. What it says of itself is checked before as much memory is taken as it is long.
    ///
    /// # Errors
    /// If it cannot be read, or as [`parse`](Self::parse).
    pub fn load(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let file = open_regular(path).map_err(failed)?;
        let named = |error| in_file(path, error);
        let start = Start::of(&map_open_file(&file).map_err(failed)?).map_err(named)?;
        let bytes = read_open_file(&file, start.file_bytes()).map_err(failed)?;
        start.with_sections(&bytes, Constants::AreCompared).map_err(named)
    }

    /// Reads the plan of a file, for people. Its constants stay on the disk, so one that is damaged is not noticed.
    ///
    /// # Errors
    /// As [`load`](Self::load), but for damaged constants.
    pub fn load_manifest(path: &Path) -> Result<Manifest, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let bytes = map_open_file(&open_regular(path).map_err(failed)?).map_err(failed)?;
        let artifact = Start::of(&bytes).and_then(|start| start.with_sections(&bytes, Constants::StayUnread));
        Ok(artifact.map_err(|error| in_file(path, error))?.manifest)
    }

    /// Reads an artifact from the bytes of a file.
    ///
    /// # Errors
    /// If the bytes are not a complete artifact of this version, or its parts do not fit each other.
    pub fn parse(bytes: &Bytes) -> Result<Self, Error> {
        Start::of(bytes)?.with_sections(bytes, Constants::AreCompared)
    }
}

/// What reading a file does with its constants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Constants {
    /// They are compared with their hashes.
    AreCompared,
    /// Not a byte of them is read.
    StayUnread,
}

/// An error that names the file.
fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Model(text) => Error::Model(format!("{}: {text}", path.display())),
        other => other,
    }
}

/// What an artifact's file says of itself before its hashes, kernels and constants.
struct Start {
    manifest: Manifest,
    /// Where the hashes are, and then each library and each constant.
    sections: Vec<Range<usize>>,
}

impl Start {
    /// Reads the header and the manifest, and checks that the file is as long as the manifest says.
    fn of(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC {
            return Err(unusable("it does not start like one"));
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if word(8) != FORMAT_VERSION {
            return Err(unusable(&format!("format version {}, this is version {FORMAT_VERSION}", word(8))));
        }
        let section = |start: usize, size: usize| {
            let end = start.checked_add(size).filter(|&end| end <= bytes.len());
            end.map(|end| start..end).ok_or_else(|| unusable("it is cut short"))
        };
        let length = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let text = section(HEADER_BYTES, usize::try_from(length).unwrap_or(usize::MAX))?;
        let mut end = text.end;
        let text = &bytes[text];
        if blake3::hash(text).as_bytes()[..] != bytes[24..56] {
            return Err(unusable("its manifest is damaged"));
        }
        let manifest: Manifest = serde_json::from_slice(text)
            .map_err(|error| unusable(&format!("its manifest is unreadable ({error})")))?;
        let sizes = || manifest.library_bytes.iter().chain(&manifest.constant_bytes).copied();
        let digests = sizes().count().saturating_mul(DIGEST_BYTES);
        let mut sections = Vec::new();
        for size in [digests].into_iter().chain(sizes()) {
            let found = section(end.next_multiple_of(ALIGN_BYTES), size)?;
            end = found.end;
            sections.push(found);
        }
        Ok(Self { manifest, sections })
    }

    /// Where the last section ends.
    fn file_bytes(&self) -> usize {
        self.sections.last().map_or(HEADER_BYTES, |last| last.end)
    }

    /// The artifact, with the sections of a file that is at least that long.
    fn with_sections(self, bytes: &Bytes, constants: Constants) -> Result<Artifact, Error> {
        let Self { manifest, sections } = self;
        let mut sections = sections.into_iter().map(|section| bytes.slice(section));
        let digests = sections.next().unwrap_or_default();
        let mut digests = digests.chunks_exact(DIGEST_BYTES);
        let mut read = |count: usize, what: &str, is_compared: bool| -> Result<Vec<Bytes>, Error> {
            let mut found = Vec::with_capacity(count);
            for (number, section) in sections.by_ref().take(count).enumerate() {
                let digest = digests.next();
                if is_compared && digest != Some(blake3::hash(&section).as_bytes()) {
                    return Err(unusable(&format!("{what} {number} is damaged")));
                }
                found.push(section);
            }
            Ok(found)
        };
        let libraries = read(manifest.library_bytes.len(), "kernel library", true)?;
        let is_compared = constants == Constants::AreCompared;
        let constants = read(manifest.constant_bytes.len(), "constant", is_compared)?;
        let artifact = Artifact { manifest, libraries, constants };
        artifact.check().map_err(|what| unusable(&what))?;
        Ok(artifact)
    }
}

fn unusable(what: &str) -> Error {
    Error::Model(format!("not a usable .orc file: {what}; compile the model again"))
}

fn write_padding(file: &mut impl Write, written: usize) -> std::io::Result<()> {
    let padding = written.next_multiple_of(ALIGN_BYTES) - written;
    file.write_all(&[0; ALIGN_BYTES][..padding])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Device, ModelInfo, PlanReport};

    fn example() -> Artifact {
        let manifest = Manifest {
            compiler: "0".into(),
            model: ModelInfo::default(),
            device: Device::Cpu,
            target: "x86-64-v4".into(),
            precision: crate::Precision::F32,
            machine: "m".into(),
            kernel_compiler: "cc".into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
            updatable: Vec::new(),
            arena_bytes: 0,
            kernels: Vec::new(),
            steps: Vec::new(),
            constant_bytes: vec![3, 0, 5],
            library_bytes: vec![1],
            extensions: Vec::new(),
            proofs: Vec::new(),
            parts: Vec::new(),
            report: PlanReport::default(),
        };
        let constants = [&b"abc"[..], b"", b"12345"].map(Bytes::from_static).to_vec();
        Artifact { manifest, libraries: vec![Bytes::from_static(b"x")], constants }
    }

    #[test]
    fn files_round_trip_and_damage_is_noticed() {
        let folder = orch_files::Scratch::new().unwrap();
        let path = folder.path().join("a.orc");
        example().save(&path).unwrap();
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let read = Artifact::parse(&bytes).unwrap();
        assert_eq!((read.manifest, read.constants), (example().manifest, example().constants));
        // No memory is taken for what follows.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let read = Artifact::load(&path).unwrap();
        assert_eq!((read.manifest, read.constants), (example().manifest, example().constants));
        for cut in [0, 7, 20, 56, 100, bytes.len() - 64] {
            assert!(Artifact::parse(&bytes.slice(..cut)).is_err(), "cut at {cut}");
        }
        let all_sections = Bytes::from([&b"x"[..], b"abc", b"12345"].concat());
        let mut unnoticed = Vec::new();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            if let Ok(artifact) = Artifact::parse(&damaged.into()) {
                let read = artifact
                    .libraries
                    .iter()
                    .chain(&artifact.constants)
                    .flatten()
                    .copied()
                    .collect::<Bytes>();
                assert_eq!((artifact.manifest, read), (example().manifest, all_sections.clone()));
                unnoticed.push(at);
            }
        }
        assert!(unnoticed.iter().all(|&at| bytes[at] == 0), "only padding may change: {unnoticed:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file stays");
    }

    #[test]
    fn plans_are_read_without_constants() {
        let folder = orch_files::Scratch::new().unwrap();
        let path = folder.path().join("a.orc");
        let with_byte = |from_end: usize| {
            let mut bytes = example().to_bytes().unwrap();
            let at = bytes.len() - from_end;
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            (Artifact::load_manifest(&path), Artifact::load(&path))
        };
        // The last section is the constant of five bytes with its padding; three constants of 64 bytes each but the empty one.
        let (plan, whole) = with_byte(ALIGN_BYTES);
        assert_eq!(plan.unwrap(), example().manifest);
        assert!(whole.unwrap_err().to_string().contains("constant 2 is damaged"));
        let (plan, whole) = with_byte(3 * ALIGN_BYTES);
        for said in [plan.unwrap_err().to_string(), whole.unwrap_err().to_string()] {
            assert!(said.contains("kernel library 0 is damaged"), "{said}");
        }
    }
}
