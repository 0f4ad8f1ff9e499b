//! A model that was compiled before is not searched again, and nothing but time is different.

mod attention;
mod cache_dir;

use attention::attention;
use cache_dir::CacheDir;
use orch_ir::generate::{GenerateOptions, generate};
use orch_mugraph::{MuGraph, VerifyOptions};
use orchestrion::{Artifact, Model, Options};
use serde_json::Value;

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
    edit_records(&cache, |text| {
        let nobody_makes =
            text.replace("\"inputs\":[", "\"inputs\":[4000000,").replace("4000000,]", "4000000]");
        assert_ne!(nobody_makes, text);
        nobody_makes
    });
    let again = compile(1, &options);
    assert!(!again.manifest.report.is_cached);
    assert_equal_but_for_times(&first, &again);
}

/// Replaces all records, with right hashes of the files.
fn edit_records(cache: &CacheDir, mut edit: impl FnMut(&str) -> String) {
    let tuning = cache.path().join("tuning");
    let folder = orch_files::CacheFolder::open(cache.path()).and_then(|cache| cache.subfolder("tuning"));
    let folder = folder.expect("the cache is usable");
    for path in files(&tuning) {
        let name = path.strip_prefix(&tuning).expect("a file below the folder").to_str().expect("a text");
        let text = folder.read_sealed(name).expect("a record is whole");
        let text = String::from_utf8(text.to_vec()).expect("a record is text");
        folder.write_sealed(name, edit(&text).as_bytes()).expect("a record can be replaced");
    }
}

/// Changes a proof.
type EditProof<'a> = dyn Fn(&mut Value) + 'a;

/// Changes each proof in a record, and says how many there are.
fn edit_proofs(value: &mut Value, edit: &EditProof<'_>) -> usize {
    let mut count = 0;
    if let Some(proof) = value.get_mut("certificate") {
        edit(proof);
        count += 1;
    }
    match value {
        Value::Object(fields) => {
            count += fields.values_mut().map(|field| edit_proofs(field, edit)).sum::<usize>()
        }
        Value::Array(items) => count += items.iter_mut().map(|item| edit_proofs(item, edit)).sum::<usize>(),
        _ => {}
    }
    count
}

fn reproved(program: &MuGraph, candidate: &MuGraph) -> Value {
    let proof = orch_mugraph::verify(program, candidate, &VerifyOptions::default()).expect("a proof");
    serde_json::to_value(proof).expect("a proof has a form")
}

/// Somebody who may write to the cache, and knows how to seal its files, gives no other kernels.
#[test]
fn forged_proofs_are_found_anew() {
    let cache = CacheDir::new("forged-proofs");
    let options = Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() };
    let model = Model::from_graph(attention(128, 4096));
    let first = model.compile(&options).expect("it compiles");
    assert_eq!(first.manifest.proofs.len(), 1);
    let known = model.compile(&options).expect("it compiles");
    assert!(known.manifest.report.is_cached);
    let parsed = |text: &Value| orch_mugraph::parse(text.as_str().expect("a text")).expect("a µGraph");
    let replaced = |text: &Value, from: &str, to: &str| {
        let text = text.as_str().expect("a text");
        assert!(text.contains(from), "{text}");
        Value::from(text.replacen(from, to, 1))
    };
    // A wrong µGraph beside all that was stated of the right one.
    let wrong = |proof: &mut Value| proof["candidate"] = replaced(&proof["candidate"], " div ", " mul ");
    // A proof that holds, of another program.
    let other = |proof: &mut Value| {
        let program = replaced(&proof["program"], "[2, 128, 16]", "[2, 64, 16]");
        *proof = reproved(&parsed(&program), &parsed(&program));
    };
    // A proof that holds, of a µGraph whose exponentials overflow.
    let unstable =
        |proof: &mut Value| *proof = reproved(&parsed(&proof["program"]), &parsed(&proof["program"]));
    let edits: [(&str, &EditProof<'_>); 3] = [("wrong", &wrong), ("other", &other), ("unstable", &unstable)];
    for (name, edit) in edits {
        let mut count = 0;
        edit_records(&cache, |text| {
            let mut record: Value = serde_json::from_str(text).expect("a record is JSON");
            count += edit_proofs(&mut record, edit);
            record.to_string()
        });
        assert!(count >= 2, "{name}: the plan and what was searched, not {count}");
        let again = model.compile(&options).expect("it compiles");
        assert!(!again.manifest.report.is_cached, "{name}");
        assert_equal_but_for_times(&first, &again);
        assert_eq!(first.manifest.proofs, again.manifest.proofs, "{name}");
        let known = model.compile(&options).expect("it compiles");
        assert!(known.manifest.report.is_cached, "{name}: what was found anew is kept");
    }
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
