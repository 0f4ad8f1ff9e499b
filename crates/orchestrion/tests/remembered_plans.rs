//! A model that was compiled before is not searched again, and nothing but time is different.

mod cache_dir;

use cache_dir::CacheDir;
use orch_ir::generate::{GenerateOptions, generate};
use orchestrion::{Artifact, Model, Options};

fn compile(seed: u64, options: &Options) -> Artifact {
    Model::from_graph(generate(seed, &GenerateOptions::default())).compile(options).expect("it compiles")
}

fn assert_equal_but_for_times(left: &Artifact, right: &Artifact) {
    assert_eq!(left.manifest.steps, right.manifest.steps);
    assert_eq!(left.manifest.kernels, right.manifest.kernels);
    assert_eq!(left.constants, right.constants);
    assert_eq!(left.libraries, right.libraries);
}

#[test]
fn the_second_time_the_plan_is_known() {
    let cache = CacheDir::new("remembered-plans");
    let options = Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() };
    let first = compile(1, &options);
    let second = compile(1, &options);
    assert_eq!((first.manifest.report.is_remembered, second.manifest.report.is_remembered), (false, true));
    assert_equal_but_for_times(&first, &second);
    let unfused = Options { fuse: false, ..options.clone() };
    for other in [compile(2, &options), compile(1, &unfused)] {
        assert!(!other.manifest.report.is_remembered);
    }
}

#[test]
fn damaged_records_are_found_anew() {
    let cache = CacheDir::new("damaged-plans");
    let options = Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() };
    let first = compile(1, &options);
    for entry in std::fs::read_dir(cache.path().join("tuning")).expect("the folder is there") {
        let path = entry.expect("an entry is readable").path();
        let text = std::fs::read_to_string(&path).expect("a record is text");
        let nobody_makes =
            text.replace("\"inputs\":[", "\"inputs\":[4000000,").replace("4000000,]", "4000000]");
        assert_ne!(nobody_makes, text);
        std::fs::write(&path, nobody_makes).expect("a record can be replaced");
    }
    let again = compile(1, &options);
    assert!(!again.manifest.report.is_remembered);
    assert_equal_but_for_times(&first, &again);
}
