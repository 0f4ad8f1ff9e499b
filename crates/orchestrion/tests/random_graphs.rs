//! The whole pipeline on random graphs, and on graphs that it once got wrong: what runs agrees with the reference
//! interpreter.
//!
//! `ORCH_SEEDS=1000..2000 cargo test -p orchestrion --test random_graphs -- random --nocapture` draws other graphs, and
//! more. A failure is printed as the smallest part of its graph that still fails, ready for `tests/files`.

mod cache_dir;
mod pipeline;

use cache_dir::CacheDir;
use orch_ir::DType;
use orch_ir::generate::{GenerateOptions, generate, random_inputs};
use orchestrion::Options;
use pipeline::{check, files, print_case, seeds, shrink};
use std::ops::Range;

/// The graphs drawn when nothing else is asked for.
const SEEDS: Range<u64> = 0..40;

/// What graph and compilation a seed stands for: types, sizes, targets and fusion vary.
fn settings(seed: u64, cache: &CacheDir) -> (GenerateOptions, Options) {
    let dtypes = match seed % 5 {
        0 => vec![DType::F32, DType::F16],
        1 => vec![DType::F32, DType::BF16],
        2 => vec![DType::F64, DType::F32],
        _ => vec![DType::F32],
    };
    let graphs = GenerateOptions {
        steps: [6, 10, 16][(seed % 3) as usize],
        max_elems: [256, 4096][(seed % 2) as usize],
        dtypes,
        ..GenerateOptions::default()
    };
    let options = Options {
        cache_dir: cache.path().to_owned(),
        fuse: seed % 8 != 7,
        calibrate: false,
        target: (seed % 7 == 3 && cfg!(target_arch = "x86_64")).then(|| "x86-64-v3".to_owned()),
        ..Options::default()
    };
    (graphs, options)
}

#[test]
fn random_graphs_run_as_interpreted() {
    let cache = CacheDir::new("random-graphs");
    let mut failures = Vec::new();
    for seed in seeds(SEEDS) {
        let (graphs, options) = settings(seed, &cache);
        let graph = generate(seed, &graphs);
        let inputs = random_inputs(&graph, seed);
        // A kernel that crashes takes the test with it.
        eprintln!("seed {seed}");
        let Err(first) = check(&graph, &inputs, &options) else { continue };
        let (small, values) =
            shrink(&graph, &inputs, |graph, inputs| check(graph, inputs, &options).is_err());
        let problem = check(&small, &values, &options).err().unwrap_or(first);
        let report = format!("seed {seed}: {problem}\n{}", print_case(&small, &values));
        eprintln!("{report}");
        failures.push(report);
    }
    assert!(failures.is_empty(), "{} graphs fail, see above", failures.len());
}

#[test]
fn graphs_that_once_failed_run_as_interpreted() {
    let cache = CacheDir::new("graph-files");
    let options = Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() };
    let mut failures = String::new();
    for (name, graph, inputs) in files() {
        for fuse in [true, false] {
            let options = Options { fuse, ..options.clone() };
            if let Err(problem) = check(&graph, &inputs, &options) {
                failures += &format!("{name}: {problem}\n");
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
