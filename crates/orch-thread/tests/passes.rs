//! Thread programs before and after each pass, as text: `tests/passes/PASS.txt` for every pass of the list.
//!
//! A file holds cases. `=== name` begins one, `--- constants 1` may name arguments that the plan does not write, then come the program,
//! `--- after`, and the expected statements and declarations; `--- after: unchanged` says that the pass leaves it alone. A case is
//! validated, and interpreted before and after the pass, with equal results. `UPDATE_EXPECT=1 cargo test -p orch-thread --test
//! passes` writes the expectations anew.

use orch_compute::BufferId;
use orch_ir::Tensor;
use orch_thread::passes::{PASSES, Pass, PassContext};
use orch_thread::{BufferData, ExecOptions, Scope, ThreadProgram, interpret, parse_thread, validate_thread};
use std::path::PathBuf;

/// Larger programs are not interpreted.
const MAX_INTERPRETED_BYTES: usize = 1 << 20;

struct Case {
    name: String,
    constants: Vec<usize>,
    before: String,
    /// The expected text; `None` if the pass leaves the program alone.
    after: Option<String>,
}

const UNCHANGED: &str = "--- after: unchanged\n";
const AFTER: &str = "--- after\n";
const CONSTANTS: &str = "--- constants ";

/// The comment at the start of a file, and its cases.
fn read(text: &str) -> (String, Vec<Case>) {
    let mut parts = text.split("=== ");
    let comment = parts.next().unwrap_or_default().to_owned();
    let case = |part: &str| {
        let (name, mut rest) = part.split_once('\n').expect("a line with the case's name");
        let mut constants = Vec::new();
        if let Some(list) = rest.strip_prefix(CONSTANTS) {
            let (numbers, others) = list.split_once('\n').expect("a line of constants");
            constants = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
            rest = others;
        }
        let (before, after) = match rest.split_once(UNCHANGED) {
            Some((before, _)) => (before, None),
            None => {
                let (before, after) = rest.split_once(AFTER).unwrap_or((rest, ""));
                (before, Some(after.to_owned()))
            }
        };
        Case { name: name.to_owned(), constants, before: before.trim_end().to_owned() + "\n", after }
    };
    (comment, parts.map(case).collect())
}

fn written(case: &Case) -> String {
    let numbers: Vec<String> = case.constants.iter().map(usize::to_string).collect();
    let constants =
        if numbers.is_empty() { String::new() } else { format!("{CONSTANTS}{}\n", numbers.join(" ")) };
    let after = case.after.as_ref().map_or(UNCHANGED.to_owned(), |after| format!("{AFTER}{after}"));
    format!("=== {}\n{constants}{}{after}", case.name, case.before)
}

/// The program's arguments after a run on 0, 1, 2, ..; `None` if it is too large to be interpreted.
fn results(program: &ThreadProgram, what: &str) -> Option<Vec<Vec<u8>>> {
    let global = program.buffers.iter().filter(|buffer| buffer.scope.is_global());
    if global.clone().map(|buffer| buffer.bytes()).sum::<usize>() > MAX_INTERPRETED_BYTES {
        return None;
    }
    let argument = |buffer: &orch_thread::Buffer| match buffer.scope {
        Scope::Output => BufferData::zeros(buffer.dtype, buffer.elems),
        _ => {
            let values: Vec<f64> = (0..buffer.elems).map(|at| at as f64).collect();
            BufferData::from_tensor(&Tensor::from_f64(buffer.dtype, [buffer.elems], &values))
        }
    };
    let mut buffers: Vec<BufferData> = global.map(argument).collect();
    interpret(program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    Some(buffers.into_iter().map(|buffer| buffer.bytes).collect())
}

/// The text after the pass, which changes nothing that is computed.
fn run(pass: &Pass, case: &Case) -> (String, String) {
    let what = format!("{}: {}", pass.name, case.name);
    let mut program = parse_thread(&case.before).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(validate_thread(&program), Vec::<String>::new(), "{what}, before");
    let before = (program.to_string(), results(&program, &what));
    let constants = case.constants.iter().map(|&number| BufferId::new(number)).collect();
    (pass.run)(&mut program, &PassContext { constants });
    assert_eq!(validate_thread(&program), Vec::<String>::new(), "{what}, after");
    let after = program.to_string();
    assert_eq!(parse_thread(&after).expect("its own text").to_string(), after, "{what}");
    assert_eq!(before.1, results(&program, &what), "{what}: another result");
    (before.0, after)
}

#[test]
fn programs_change_as_expected() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    for pass in &PASSES {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/passes/{}.txt", pass.name));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (comment, mut cases) = read(&text);
        assert!(cases.iter().any(|case| case.after.is_some()), "{}: no case with a change", pass.name);
        assert!(cases.iter().any(|case| case.after.is_none()), "{}: no case without one", pass.name);
        for case in &mut cases {
            let (before, after) = run(pass, case);
            if let (Some(expected), true) = (&mut case.after, update) {
                expected.clone_from(&(after.clone() + "\n"));
                assert_ne!(before, after, "{}: {} changes nothing", pass.name, case.name);
            }
            let expected = case.after.as_deref().unwrap_or(&before).trim_end();
            assert_eq!(after.trim_end(), expected, "{}: {}", pass.name, case.name);
        }
        if update {
            let text: String = cases.iter().map(written).collect();
            std::fs::write(&path, comment + text.trim_end() + "\n").expect("the file is written");
        }
    }
}
