//! What C is made of a thread program: each file of `tests/text` holds a program, a line of dashes, and the C functions
//! expected for `x86-64-v4` (the prelude left out). `ORCH_UPDATE=1 cargo test` rewrites the expectations.

use orch_codegen::c;
use orch_thread::passes::{PassContext, run_all};
use orch_thread::{parse_thread, target, validate_thread};
use std::path::Path;

const SEPARATOR: &str = "----\n";

/// The functions of the programs, without the prelude.
fn functions(program: &str) -> String {
    let mut program = parse_thread(program).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(validate_thread(&program), Vec::<String>::new());
    run_all(&mut program, &PassContext::default(), &mut |_, _| {});
    let text = c::emit(&[&program], &target::X86_64_V4);
    let start =
        text.find(&format!("/* {} tasks.", program.tasks)).expect("each function starts with a comment");
    text[start..].to_owned()
}

#[test]
fn programs_become_the_expected_c() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let (program, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
        let actual = functions(program);
        if std::env::var_os("ORCH_UPDATE").is_some() {
            std::fs::write(&path, format!("{program}{SEPARATOR}{actual}")).unwrap();
        } else {
            assert_eq!(actual, expected, "{}", path.display());
        }
    }
}

#[test]
fn emission_is_deterministic() {
    let mut program = orch_thread::random::random_program("p", 3).0;
    run_all(&mut program, &PassContext::default(), &mut |_, _| {});
    for target in target::CPU_TARGETS {
        assert_eq!(c::emit(&[&program], target), c::emit(&[&program.clone()], target));
    }
}
