//! Tests of HiGHS. Those that solve need the library: its path is taken from the environment variable
//! `ORCHESTRION_TEST_HIGHS`, and they say so where it is not set.

use super::*;
use crate::cpu::testing::compile_object;
use crate::os::TempDir;
use orch_plan::solver::{MicroLp, Row, Variable};
use std::time::Duration;

const LIMITS: SolverLimits = SolverLimits { time: Duration::from_secs(10), nodes: 100_000 };

fn highs() -> Option<Highs> {
    let path = std::env::var_os("ORCHESTRION_TEST_HIGHS");
    if path.is_none() {
        eprintln!("skipped: ORCHESTRION_TEST_HIGHS does not name a HiGHS library");
    }
    path.map(|path| Highs::load(Path::new(&path)).unwrap())
}

fn binary(cost: f64) -> Variable {
    Variable { cost, lower: 0.0, upper: 1.0, is_integer: true }
}

/// A set cover whose linear relaxation is fractional: each row wants one of two of three columns.
fn odd_cycle() -> Milp {
    let row = |a, b| Row { terms: vec![(a, 1.0), (b, 1.0)], lower: 1.0, upper: f64::INFINITY };
    Milp { variables: [1.0, 1.5, 2.0].map(binary).into(), rows: vec![row(0, 1), row(1, 2), row(2, 0)] }
}

/// A set cover of `size` rows and columns, the same each time.
fn cover(size: u32) -> Milp {
    let mut state = 12345u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    let variables = (0..size).map(|_| binary(f64::from(10 + next(90)))).collect();
    let rows = (0..size).map(|row| {
        let mut columns: Vec<u32> = (0..4).map(|_| next(size)).chain([row]).collect();
        columns.sort_unstable();
        columns.dedup();
        Row {
            terms: columns.into_iter().map(|column| (column, 1.0)).collect(),
            lower: 1.0,
            upper: f64::INFINITY,
        }
    });
    Milp { variables, rows: rows.collect() }
}

#[test]
fn integer_programs_are_solved_to_optimality() {
    let Some(highs) = highs() else { return };
    assert!(highs.name().starts_with("HiGHS 1."));
    let outcome = highs.solve(&odd_cycle(), None, LIMITS).unwrap();
    assert_eq!((outcome.status, outcome.values), (SolverStatus::Optimal, vec![1.0, 1.0, 0.0]));
    assert!((outcome.bound - 2.5).abs() < 1e-6);
}

#[test]
fn solvers_agree() {
    let Some(highs) = highs() else { return };
    let program = cover(40);
    let [ours, theirs] =
        [&highs as &dyn Solver, &MicroLp].map(|solver| solver.solve(&program, None, LIMITS).unwrap());
    assert_eq!(ours.status, SolverStatus::Optimal);
    assert!(program.violation(&ours.values) < 1e-6);
    assert!((program.objective(&ours.values) - program.objective(&theirs.values)).abs() < 1e-6);
    let again = highs.solve(&program, Some(&ours.values), LIMITS).unwrap();
    assert_eq!(program.objective(&again.values), program.objective(&ours.values));
}

#[test]
fn limits_and_infeasibility_are_told_apart() {
    let Some(highs) = highs() else { return };
    let no_time = SolverLimits { time: Duration::ZERO, nodes: 1 };
    let all_ones = [1.0; 200];
    let stopped = highs.solve(&cover(200), Some(&all_ones), no_time).unwrap();
    assert!(matches!(stopped.status, SolverStatus::Feasible | SolverStatus::Unknown), "{stopped:?}");
    let mut impossible = odd_cycle();
    impossible.rows.push(Row { terms: vec![(0, 1.0), (1, 1.0), (2, 1.0)], lower: 0.0, upper: 1.0 });
    let outcome = highs.solve(&impossible, None, LIMITS).unwrap();
    assert_eq!((outcome.status, outcome.bound), (SolverStatus::Infeasible, f64::INFINITY));
}

#[test]
fn linear_and_empty_programs() {
    let Some(highs) = highs() else { return };
    let variable = Variable { cost: -1.0, lower: 0.0, upper: 10.0, is_integer: false };
    let row = Row { terms: vec![(0, 2.0)], lower: f64::NEG_INFINITY, upper: 5.0 };
    let outcome = highs.solve(&Milp { variables: vec![variable], rows: vec![row] }, None, LIMITS).unwrap();
    assert_eq!((outcome.status, outcome.values, outcome.bound), (SolverStatus::Optimal, vec![2.5], -2.5));
    let outcome = highs.solve(&Milp::default(), None, LIMITS).unwrap();
    assert_eq!((outcome.status, outcome.bound), (SolverStatus::Optimal, 0.0));
}

#[test]
fn malformed_programs_are_errors() {
    let mut program = odd_cycle();
    program.rows[0].terms.push((3, 1.0));
    assert!(Matrix::of(&program).is_none());
    let Some(highs) = highs() else { return };
    let error = highs.solve(&program, None, LIMITS).unwrap_err().to_string();
    assert!(error.contains("malformed"), "{error}");
}

#[test]
fn rows_are_compressed() {
    let mut program = odd_cycle();
    program.rows.insert(1, Row { terms: vec![], lower: 0.0, upper: 0.0 });
    let matrix = Matrix::of(&program).unwrap();
    assert_eq!(matrix.starts, [0, 2, 2, 4, 6]);
    assert_eq!(matrix.columns, [0, 1, 1, 2, 2, 0]);
    assert_eq!(matrix.values, [1.0; 6]);
}

#[test]
fn other_libraries_are_refused() {
    let load = |path: &Path| Highs::load(path).err().unwrap().to_string();
    assert!(load(Path::new("/nonexistent.so")).starts_with("cannot use HiGHS from /nonexistent.so: "));
    let dir = TempDir::new("highs").unwrap();
    let path = dir.path().join("other.so");
    std::fs::write(&path, compile_object("int f(void) { return 1; }")).unwrap();
    assert!(load(&path).contains("Highs_getSizeofHighsInt"));
}
