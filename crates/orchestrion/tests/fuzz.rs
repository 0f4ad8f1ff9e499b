//! A bounded, repeatable run of every fuzz target: all files of its corpus, then changed ones in a fixed order.
//!
//! `fuzz/README.md` says how to run them for longer. What such runs find becomes a file of the corpus.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Changed inputs per target, unless `ORCH_FUZZ_SECONDS` in the environment says how long to go on.
const ROUNDS: usize = 10_000;

/// Where the sequence of changes starts, unless `ORCH_FUZZ_SEED` in the environment says so.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The longest that one input may take, also in a development build on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(20);

/// More memory than this, for the process as a whole, means that some input was believed.
const MAX_MEMORY_KIB: u64 = 2 << 20;

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }

    /// A part of `length` bytes, seldom a long one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = if self.below(4) == 0 { length } else { 16 };
        start..(start + self.below(most + 1)).min(length)
    }
}

/// Numbers at which something changes, as text and as bytes of a variable-length integer.
const NUMBERS: [i64; 14] =
    [0, 1, 2, 7, 255, 65_536, 1 << 31, 1 << 40, (1 << 40) + 1, i64::MAX, -1, -2, i32::MIN as i64, i64::MIN];

/// Changes bytes in one of a few ways; `other` is another example.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let part = random.range(bytes.len());
    match random.below(8) {
        0 => part.for_each(|at| bytes[at] ^= 1 << random.below(8)),
        1 => drop(bytes.drain(part)),
        2 => drop(bytes.splice(part, other[random.range(other.len())].iter().copied())),
        3 => {
            let (copy, at) = (bytes[part].to_vec(), random.below(bytes.len() + 1));
            drop(bytes.splice(at..at, copy));
        }
        4 => drop(bytes.splice(part.start..part.end.min(part.start + 1), varint(NUMBERS[random.below(14)]))),
        5 | 6 => {
            // A number in the text, the first behind some place.
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            if let Some(start) = bytes[part.start..].iter().position(is_digit).map(|at| part.start + at) {
                let end = bytes[start..]
                    .iter()
                    .position(|byte| !is_digit(byte))
                    .map_or(bytes.len(), |at| start + at);
                drop(bytes.splice(start..end, NUMBERS[random.below(14)].to_string().into_bytes()));
            }
        }
        _ => part.take(1).for_each(|at| bytes[at] = random.below(256) as u8),
    }
}

fn varint(number: i64) -> Vec<u8> {
    let (mut rest, mut bytes) = (number as u64, Vec::new());
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// The files of a target's corpus with their names, in the order of those.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Says which input was looked at when a target panics, and keeps it.
struct Witness<'a> {
    target: &'a str,
    bytes: &'a [u8],
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", self.target));
            let kept = std::fs::write(&path, self.bytes);
            eprintln!("the input is {} ({kept:?}); add it to fuzz/corpus/{}", path.display(), self.target);
        }
    }
}

fn look(&(target, run): &targets::Target, bytes: &[u8]) {
    let _witness = Witness { target, bytes };
    let start = Instant::now();
    run(bytes);
    assert!(start.elapsed() < MAX_TIME, "it took {:?}", start.elapsed());
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Looks at the corpus and at changed files of it.
fn exercise(name: &str) {
    let target = targets::TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let files = corpus(name);
    assert!(files.len() >= 3, "{} examples", files.len());
    for (_, bytes) in &files {
        look(target, bytes);
    }
    let mut random = Random(setting("ORCH_FUZZ_SEED").map_or(SEED, |seed| seed | 1 << 63));
    let budget = setting("ORCH_FUZZ_SECONDS").map(Duration::from_secs);
    let (start, mut round) = (Instant::now(), 0);
    while budget.map_or(round < ROUNDS, |budget| start.elapsed() < budget) {
        round += 1;
        let mut bytes = files[random.below(files.len())].1.clone();
        for _ in 0..=random.below(4) {
            change(&mut bytes, &files[random.below(files.len())].1, &mut random);
        }
        look(target, &bytes);
    }
    println!("{name}: {round} changed inputs in {:.0?}", start.elapsed());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(peak.is_none_or(|peak: u64| peak < MAX_MEMORY_KIB), "{peak:?} KiB");
}

#[test]
fn models() {
    exercise("onnx");
}

#[test]
fn tensors() {
    exercise("tensor");
}

#[test]
fn primitive_graphs() {
    exercise("prim");
}

#[test]
fn thread_programs() {
    exercise("thread");
}

#[test]
fn mugraphs() {
    exercise("mugraph");
}

/// Changes to what is refused as a whole would find nothing.
#[test]
fn manifests_of_the_corpus_are_read() {
    let is_manifest =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("manifest_"));
    for (path, manifest) in corpus("artifact").into_iter().filter(|(path, _)| is_manifest(path)) {
        let read = orchestrion::Artifact::parse(&targets::under_right_hash(&manifest));
        assert!(read.is_ok(), "{}: {:?}", path.display(), read.err());
    }
}

#[test]
fn artifacts() {
    exercise("artifact");
}

#[test]
fn arrays() {
    exercise("npy");
}
