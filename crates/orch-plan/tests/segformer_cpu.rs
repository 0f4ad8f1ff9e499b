//! Kernel choice for all of Segformer-B0 as the CPU pipeline poses it: fused prologues and epilogues, exported tensors,
//! costs of a calibrated machine. `data/segformer_cpu.txt` has the number of classes and the required ones, then a line
//! per column: cost in picoseconds, inputs that are not available, outputs, units; `3-5` stands for `3,4,5`, `.` for
//! nothing.

use orch_ir::NodeId;
use orch_plan::blp::{ChooseOptions, ClassId, Column, Problem, Status, choose, schedule};
use orch_plan::solver::MicroLp;

fn numbers(text: &str) -> Vec<u32> {
    let parts = text.split(',').filter(|part| *part != ".");
    parts
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse::<u32>().expect("a number")..=last.parse().expect("a number")
        })
        .collect()
}

fn column(line: &str) -> Column {
    let [cost, inputs, outputs, executes] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("four fields are expected: {line}")
    };
    Column {
        cost_us: cost.parse::<f64>().expect("a cost") / 1e6,
        kernels: 1,
        inputs: numbers(inputs).into_iter().map(ClassId).collect(),
        outputs: numbers(outputs).into_iter().map(ClassId).collect(),
        executes: numbers(executes).into_iter().map(NodeId).collect(),
    }
}

fn segformer() -> Problem {
    let mut lines = include_str!("data/segformer_cpu.txt").lines();
    let (classes, required) = lines.next().and_then(|line| line.split_once(' ')).expect("a first line");
    Problem {
        classes: classes.parse().expect("a number"),
        available: Vec::new(),
        required: numbers(required).into_iter().map(ClassId).collect(),
        columns: lines.map(column).collect(),
    }
}

#[test]
fn the_whole_model_is_solved_to_proven_optimality() {
    let problem = segformer();
    let options = ChooseOptions::default();
    let choice = choose(&problem, &options, &MicroLp).expect("a valid problem");
    assert_eq!((choice.status, choice.gap()), (Status::Optimal, 0.0));
    assert_eq!((problem.columns.len(), choice.columns.len()), (3372, 178));
    assert!((choice.objective_us - 76_192.640).abs() < 0.01, "{}", choice.objective_us);
    assert!(schedule(&problem, &choice.columns).is_complete());
    assert_eq!(choice.report.parts_by_solver, 0);
    assert!(choice.report.states < options.max_states / 2, "{:?}", choice.report);
}
