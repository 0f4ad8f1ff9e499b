//! The list of targets that the Python side reads is that of the rules.

use std::fmt::Write;

/// The list, beside the Python code that reads it.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/orchestrion/torch/targets.txt");

#[test]
fn the_list_for_python_is_that_of_the_rules() {
    let mut targets: Vec<_> = orch_aten::targets().collect();
    targets.sort_by_key(|target| target.name);
    let mut text =
        "# What the compiler takes: a test of orch-aten keeps this list (ORCH_BLESS=1 rewrites it).\n"
            .to_owned();
    for target in targets {
        let condition = if target.condition.is_empty() { "" } else { "  # " };
        writeln!(text, "{}{condition}{}", target.name, target.condition).expect("a text");
    }
    if std::env::var_os("ORCH_BLESS").is_some() {
        std::fs::write(FILE, &text).expect("the file is written");
    }
    assert_eq!(std::fs::read_to_string(FILE).expect("the file is there"), text);
}
