//! Joined launches compute what they do one after the other, and launches that depend on each other are refused.

use super::*;
use crate::cpu::testing::load;
use crate::cpu::{Chunking, CpuProgram, CpuStep, Pool, PoolOptions};
use crate::program::{Base, Update};
use crate::view::{TensorView, TensorViewMut};
use orch_ir::DType;
use std::sync::Arc;

/// Adds a constant, which the first call of a thread brings to scratch memory and later ones find there.
const SOURCE: &str = "#include <stdint.h>\n\
    void add(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    const float *x = b[0], *c = b[1]; float *y = b[2], *t = s;\n\
    if (before < 0) t[3] = c[0];\n\
    for (int64_t i = lo; i < hi; ++i) y[i] = x[i] + t[3]; }\n";

const ELEMS: [usize; 3] = [60, 7, 33];

/// Three sums of parts of the input with a constant each, to three outputs, and one of a result with the first constant.
fn program() -> Program {
    let library = load(SOURCE);
    let launch = |from: BufferRef, constant: usize, to: Base, elems: usize| {
        let kernel = library.kernel("add", elems as i64, 16).unwrap();
        let constant = BufferRef::read(Base::Constant(0), 4 * constant, 4);
        let buffers = vec![from, constant, BufferRef::write(to, 0, 4 * elems)];
        CpuStep {
            name: "add".into(),
            action: Action::Launch(Launch { kernel, buffers, chunking: Chunking::Dynamic, phases: 1 }),
        }
    };
    let input = |elems: usize| BufferRef::read(Base::Input(0), 0, 4 * elems);
    let mut steps: Vec<CpuStep> = ELEMS
        .iter()
        .enumerate()
        .map(|(number, &elems)| launch(input(elems), number, Base::Output(number), elems))
        .collect();
    steps.push(launch(BufferRef::read(Base::Output(1), 0, 4 * 7), 0, Base::Output(3), 7));
    let constants = [1.0f32, 20.0, 300.0].map(f32::to_le_bytes).concat();
    Program {
        constants: vec![constants.into()],
        input_bytes: vec![240],
        output_bytes: vec![240, 28, 132, 28],
        steps,
        ..Program::default()
    }
}

/// The tasks of some steps in pieces of a size, the last step's first.
fn joined(steps: Range<usize>, size: i64) -> JoinedLaunches {
    let mut pieces = Vec::new();
    for step in steps.clone().rev() {
        let tasks = ELEMS[step] as i64;
        let cut = |begin: i64| Piece { step, tasks: begin..(begin + size).min(tasks) };
        pieces.extend((0..tasks).step_by(size as usize).map(cut));
    }
    JoinedLaunches { steps, pieces }
}

static OUTPUT_ELEMS: [usize; 4] = [60, 7, 33, 7];

/// The outputs as a run takes them.
fn views(outputs: &mut [Vec<u8>; 4]) -> Vec<TensorViewMut<'_>> {
    let shapes = OUTPUT_ELEMS.each_ref().map(std::slice::from_ref);
    let view = |(bytes, shape)| TensorViewMut::new(DType::F32, shape, bytes).unwrap();
    outputs.iter_mut().map(Vec::as_mut_slice).zip(shapes).map(view).collect()
}

fn prepared(threads: usize) -> CpuProgram {
    CpuProgram::new(program(), Arc::new(Pool::new(PoolOptions { threads, pin: false }))).unwrap()
}

#[test]
fn joined_launches_compute_the_same() {
    let floats =
        |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let input = floats(&mut (0..60).map(|i| i as f32));
    for threads in [1, 2, 5] {
        for steps in [0..2, 1..3, 0..3] {
            for size in [1, 4, 60] {
                let program = prepared(threads).with_joined(vec![joined(steps.clone(), size)]).unwrap();
                let mut executable = program.executable();
                for _ in 0..20 {
                    let mut outputs = OUTPUT_ELEMS.map(|elems| vec![0; 4 * elems]);
                    let input = TensorView::new(DType::F32, &[60], &input).unwrap();
                    executable.run(&[input], &mut views(&mut outputs)).unwrap();
                    let sums = [(60, 1.0), (7, 20.0), (33, 300.0), (7, 21.0)];
                    let expected = sums.map(|(elems, sum)| floats(&mut (0..elems).map(|i| i as f32 + sum)));
                    assert_eq!(outputs, expected, "{threads} threads, {steps:?} in pieces of {size}");
                }
            }
        }
    }
}

#[test]
fn profiles_have_joined_steps_by_themselves() {
    let mut executable = prepared(2).with_joined(vec![joined(0..3, 4)]).unwrap().executable();
    let input = vec![0; 240];
    let mut outputs = OUTPUT_ELEMS.map(|elems| vec![0; 4 * elems]);
    let input = TensorView::new(DType::F32, &[60], &input).unwrap();
    assert_eq!(executable.profile(&[input], &mut views(&mut outputs), 3).unwrap().len(), 4);
}

#[test]
fn what_may_not_be_joined_is_refused() {
    let violations = |joined: Vec<JoinedLaunches>| match prepared(2).with_joined(joined) {
        Ok(_) => Vec::new(),
        Err(error) => error.violations,
    };
    let tasks = |mut joined: JoinedLaunches, change: &dyn Fn(&mut Vec<Piece>)| {
        change(&mut joined.pieces);
        violations(vec![joined])
    };
    assert_eq!(violations(vec![joined(0..2, 9)]), Vec::<String>::new());
    // The last step reads what the second one writes.
    let last = Piece { step: 3, tasks: 0..7 };
    let mut dependent = joined(1..3, 9);
    dependent.steps.end = 4;
    dependent.pieces.push(last);
    assert_eq!(violations(vec![dependent]), ["joined steps 1..4 depend on each other"]);
    let own = "are not two or more launches of their own";
    assert_eq!(violations(vec![joined(0..1, 9)]), [format!("joined steps 0..1 {own}")]);
    assert_eq!(violations(vec![joined(0..2, 9), joined(1..3, 9)]), [format!("joined steps 1..3 {own}")]);
    let beyond = JoinedLaunches { steps: 3..5, pieces: Vec::new() };
    assert_eq!(violations(vec![beyond]), [format!("joined steps 3..5 {own}")]);
    let once = ["joined steps 0..2 do not have each task once"];
    assert_eq!(tasks(joined(0..2, 9), &|pieces| _ = pieces.pop()), once);
    assert_eq!(tasks(joined(0..2, 9), &|pieces| pieces.push(pieces[0].clone())), once);
    assert_eq!(tasks(joined(0..2, 9), &|pieces| pieces[0].step = 2), once);
    assert_eq!(tasks(joined(0..2, 9), &|pieces| pieces[0].tasks.end += 1), once);
    assert_eq!(tasks(joined(0..2, 9), &|pieces| pieces[0].tasks = -2..7), once);

    let mut in_phases = program();
    if let Action::Launch(launch) = &mut in_phases.steps[1].action {
        launch.phases = launch.kernel.tasks();
    }
    let pool = Arc::new(Pool::new(PoolOptions { threads: 2, pin: false }));
    let refused = CpuProgram::new(in_phases, pool).unwrap().with_joined(vec![joined(0..2, 9)]);
    let error = refused.err().map_or_else(Vec::new, |error| error.violations);
    assert_eq!(error, ["joined steps 0..2 have several phases"]);

    // An output that may have the memory of the input that the other launch reads.
    let mut program = program();
    program.updates.push(Update { output: 0, input: 0 });
    let pool = Arc::new(Pool::new(PoolOptions { threads: 2, pin: false }));
    let refused = CpuProgram::new(program, pool).unwrap().with_joined(vec![joined(0..2, 9)]);
    let error = refused.err().map_or_else(Vec::new, |error| error.violations);
    assert_eq!(error, ["joined steps 0..2 depend on each other"]);
}
