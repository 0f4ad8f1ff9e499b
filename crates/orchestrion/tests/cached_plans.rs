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
    assert_eq!((first.manifest.report.is_cached, second.manifest.report.is_cached), (false, true));
    assert_equal_but_for_times(&first, &second);
    let unfused = Options { fuse: false, ..options.clone() };
    for other in [compile(2, &options), compile(1, &unfused)] {
        assert!(!other.manifest.report.is_cached);
    }
}

#[test]
fn damaged_records_are_found_anew() {
    let cache = CacheDir::new("damaged-plans");
    let options = Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() };
    let first = compile(1, &options);
    let tuning = cache.path().join("tuning");
    let folder = orch_files::CacheFolder::open(cache.path()).and_then(|cache| cache.subfolder("tuning"));
    let folder = folder.expect("the cache is usable");
    for path in files(&tuning) {
        let name = path.strip_prefix(&tuning).expect("a file below the folder").to_str().expect("a text");
        let text = folder.read_sealed(name).expect("a record is whole");
        let text = String::from_utf8(text.to_vec()).expect("a record is text");
        let nobody_makes =
            text.replace("\"inputs\":[", "\"inputs\":[4000000,").replace("4000000,]", "4000000]");
        assert_ne!(nobody_makes, text);
        folder.write_sealed(name, nobody_makes.as_bytes()).expect("a record can be replaced");
    }
    let again = compile(1, &options);
    assert!(!again.manifest.report.is_cached);
    assert_equal_but_for_times(&first, &again);
}

/// All files in a folder and those below it.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("an entry is readable").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn plans_are_made_by_times_of_another_machine() {
    let (here, elsewhere) = (CacheDir::new("records-here"), CacheDir::new("records-elsewhere"));
    let measuring = Options { cache_dir: here.path().to_owned(), calibrate: false, ..Options::default() };
    let measuring = Options { tune: true, ..measuring };
    let measured = compile(3, &measuring);
    let file = here.path().join("records");
    assert!(orchestrion::cache::export(here.path(), &file).expect("the cache is readable") > 0);
    let told = Options {
        cache_dir: elsewhere.path().to_owned(),
        target: Some(measured.manifest.target.clone()),
        tune: false,
        records: Some(file.clone()),
        ..measuring
    };
    let planned = compile(3, &told);
    // Their objects differ: one machine compiles for itself, the other for any of this kind.
    let sources = |artifact: &Artifact| -> Vec<(String, String)> {
        let kernels = artifact.manifest.kernels.iter();
        kernels.map(|kernel| (kernel.schedule.clone(), kernel.source.clone())).collect()
    };
    assert!(sources(&measured) == sources(&planned), "the same kernels are chosen");
    let times = |artifact: &Artifact| -> Vec<String> {
        let times = artifact.manifest.steps.iter().map(|step| step.tuned_us);
        times.map(|time| time.map_or(String::new(), |us| format!("{us:.6}"))).collect()
    };
    assert_eq!(times(&measured), times(&planned));
    assert!(times(&planned).iter().any(|time| !time.is_empty()));
    std::fs::write(&file, "nonsense\n").expect("the file can be replaced");
    let model = Model::from_graph(generate(3, &GenerateOptions::default()));
    let reason = model.compile(&told).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(reason.contains("line 1 is not a measurement"), "{reason}");
}
