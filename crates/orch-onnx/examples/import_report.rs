//! Imports models and counts what happens: `cargo run -p orch-onnx --example import_report -- FILES`.
//!
//! Prints the problems of each model that fails, then the number of models by outcome. A model with several
//! problems counts once, under the first.

use orch_onnx::{ImportOptions, ProblemClass, import_file};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn main() {
    let mut outcomes: BTreeMap<(Option<ProblemClass>, &str), usize> = BTreeMap::new();
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let outcome = match import_file(&path, &ImportOptions::default()) {
            Ok(_) => (None, "imported"),
            Err(errors) => {
                println!("{}: {errors}", path.display());
                errors.0.first().map_or((None, "no problem"), |first| (Some(first.class()), first.code()))
            }
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!();
    for ((class, code), count) in outcomes {
        let class = class.map(|class| format!("{class:?} ")).unwrap_or_default().to_lowercase();
        println!("{count:6} {class}{code}");
    }
}
