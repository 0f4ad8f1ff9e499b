//! Tests of the thread-program interpreter.

use super::*;
use crate::program::{Buffer, LoopKind, Scope};
use orch_compute::expr::{BufferId, Type};
use orch_ir::Tensor;

/// A program with an f32 input `x` and an f32 output `y` of `elems` elements each.
fn program(tasks: usize, elems: usize) -> (ThreadProgram, BufferId, BufferId) {
    let mut p = ThreadProgram::new("k", tasks);
    let buffer = |name: &str, scope| Buffer { name: name.into(), dtype: DType::F32, elems, scope };
    let x = p.add_buffer(buffer("x", Scope::Input));
    let y = p.add_buffer(buffer("y", Scope::Output));
    (p, x, y)
}

fn buffers(values: &[f32]) -> Vec<BufferData> {
    let x = BufferData::from_tensor(&Tensor::from_vec([values.len()], values.to_vec()));
    vec![x, BufferData::zeros(DType::F32, values.len())]
}

fn run(p: &ThreadProgram, values: &[f32]) -> Result<(Vec<f32>, Report), ExecError> {
    let mut buffers = buffers(values);
    let report = interpret(p, &mut buffers, &ExecOptions::default())?;
    let y = buffers[1].to_tensor([values.len()]).unwrap();
    Ok((y.to_vec().unwrap(), report))
}

fn load(p: &mut ThreadProgram, buffer: BufferId, offset: ExprId, lanes: usize) -> ExprId {
    p.exprs.add(Expr::Load { buffer, offset, lanes, mask: None })
}

#[test]
fn a_vector_loop_with_a_masked_tail() {
    let (mut p, x, y) = program(1, 6);
    let i = p.exprs.declare(orch_compute::VarInfo {
        name: "i".into(),
        ty: Type::INDEX,
        range: Some((0, 4)),
        multiple_of: 4,
    });
    let iv = p.exprs.var(i);
    let ramp = p.exprs.add(Expr::Ramp { base: iv, stride: 1, lanes: 4 });
    let six = p.exprs.index(6);
    let bound = p.exprs.add(Expr::Splat(six, 4));
    let mask = Some(p.exprs.add(Expr::Compare(orch_ir::CompareFn::Lt, ramp, bound)));
    let loaded = p.exprs.add(Expr::Load { buffer: x, offset: iv, lanes: 4, mask });
    let value = p.exprs.add(Expr::Binary(BinaryFn::Add, loaded, loaded));
    let body = vec![Stmt::Store { buffer: y, offset: iv, value, mask }];
    let (start, end) = (p.exprs.index(0), six);
    p.body = vec![Stmt::For { var: i, start, end, step: 4, kind: LoopKind::Serial, body }];
    let (y, report) = run(&p, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert_eq!(y, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!((report.loads, report.stores, report.unwritten), (6, 6, vec![0, 0]));
}

#[test]
fn a_gather_reverses_and_lanes_reduce() {
    let (mut p, x, y) = program(1, 4);
    let three = p.exprs.index(3);
    let offset = p.exprs.add(Expr::Ramp { base: three, stride: -1, lanes: 4 });
    let value = load(&mut p, x, offset, 4);
    let zero = p.exprs.index(0);
    let reversed = p.exprs.declare_register("reversed", Type::vector(DType::F32, 4));
    let lanes = p.exprs.var(reversed);
    let sum = p.exprs.add(Expr::ReduceLanes(ReduceOp::Sum, lanes));
    p.body = vec![
        Stmt::Let(reversed, value),
        Stmt::Store { buffer: y, offset: zero, value: lanes, mask: None },
        Stmt::Store { buffer: y, offset: zero, value: sum, mask: None },
    ];
    assert_eq!(run(&p, &[1.0, 2.0, 3.0, 4.0]).unwrap().0, [10.0, 3.0, 2.0, 1.0]);
}

#[test]
fn bounds_are_checked() {
    let (mut p, x, y) = program(1, 4);
    let one = p.exprs.index(1);
    let value = load(&mut p, x, one, 4);
    p.body = vec![Stmt::Store { buffer: y, offset: one, value, mask: None }];
    let error = run(&p, &[0.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "task 0: x[4] is out of bounds, the buffer has 4 elements");
}

/// The last of the lines that are asked for is the buffer's, wherever the first one lies.
#[test]
fn prefetches_end_with_their_buffer() {
    for (first, outside) in [(0, false), (4, true), (90, true)] {
        let (mut p, x, _) = program(1, 40);
        let offset = p.exprs.index(first);
        p.body = Stmt::prefetches(&mut p, x, offset, 40);
        assert!(run(&p, &[0.0; 40]).is_ok(), "{first}");
        let offset = p.exprs.index(first + 36);
        p.body = vec![Stmt::Prefetch { buffer: x, offset }];
        assert_eq!(run(&p, &[0.0; 40]).is_err(), outside, "{first}");
    }
}

#[test]
fn two_tasks_may_not_write_one_element() {
    let (mut p, x, y) = program(2, 4);
    let zero = p.exprs.index(0);
    let value = load(&mut p, x, zero, 1);
    p.body = vec![Stmt::Store { buffer: y, offset: zero, value, mask: None }];
    let error = run(&p, &[0.0; 4]).unwrap_err();
    assert!(matches!(
        error,
        ExecError::Access { task: 1, index: 0, problem: AccessProblem::Race { other: 0 }, .. }
    ));
}

#[test]
fn a_task_may_not_read_what_another_writes() {
    // Task t writes y[t], and task 1 also reads y[0].
    let (mut p, x, y) = program(2, 4);
    let task = p.exprs.var(p.task);
    let value = load(&mut p, x, task, 1);
    let zero = p.exprs.index(0);
    let read = load(&mut p, y, zero, 1);
    let seen = p.exprs.declare_register("seen", Type::scalar(DType::F32));
    p.body = vec![Stmt::Store { buffer: y, offset: task, value, mask: None }, Stmt::Let(seen, read)];
    let error = run(&p, &[0.0; 4]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "task 1: y[0] is also accessed by task 0, with at least one write: tasks may run at the same time"
    );
}

#[test]
fn scratch_is_undefined_when_a_task_starts() {
    let (mut p, x, y) = program(2, 4);
    let s = p.add_buffer(Buffer { name: "s".into(), dtype: DType::F32, elems: 1, scope: Scope::Scratch });
    let zero = p.exprs.index(0);
    let task = p.exprs.var(p.task);
    let value = load(&mut p, x, zero, 1);
    let from_scratch = load(&mut p, s, zero, 1);
    let first = p.exprs.add(Expr::Compare(orch_ir::CompareFn::Eq, task, zero));
    p.body = vec![
        Stmt::If {
            condition: first,
            then: vec![Stmt::Store { buffer: s, offset: zero, value, mask: None }],
            otherwise: vec![],
        },
        Stmt::Store { buffer: y, offset: task, value: from_scratch, mask: None },
    ];
    let error = run(&p, &[0.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "task 1: s[0] is read before it is written");
}

#[test]
fn declared_ranges_hold() {
    let (mut p, _, _) = program(1, 4);
    let i = p.exprs.declare_index("i", 3);
    let (start, end) = (p.exprs.index(0), p.exprs.index(4));
    p.body = vec![Stmt::For { var: i, start, end, step: 1, kind: LoopKind::Serial, body: vec![] }];
    let error = run(&p, &[0.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "task 0: i = 3, but it is declared in 0..=2, a multiple of 1");
}

#[test]
fn endless_programs_are_stopped() {
    let (mut p, _, _) = program(1, 1);
    let i = p.exprs.declare_index("i", 0);
    let (start, end) = (p.exprs.index(0), p.exprs.index(i64::MAX));
    p.body = vec![Stmt::For { var: i, start, end, step: 1, kind: LoopKind::Serial, body: vec![] }];
    let options = ExecOptions { max_statements: 100 };
    let error = interpret(&p, &mut buffers(&[0.0]), &options).unwrap_err();
    assert_eq!(error, ExecError::Limit { limit: 100 });
}

#[test]
fn f16_sums_accumulate_in_f32() {
    let lanes: Vec<Number> = [2048.0, 1.0, 1.0, 1.0].map(Number::Float).to_vec();
    assert_eq!(reduce_lanes(ReduceOp::Sum, DType::F16, &lanes), Some(Number::Float(2052.0)));
}

#[test]
fn fma_rounds_once() {
    let epsilon = f64::from(f32::EPSILON);
    let (a, b, c) = (Number::Float(1.0 + epsilon), Number::Float(1.0 - epsilon), Number::Float(-1.0));
    assert_eq!(scalar::fma(DType::F32, a, b, c), Some(Number::Float(-epsilon * epsilon)));
    let product = scalar::binary(BinaryFn::Mul, DType::F32, a, b).unwrap();
    assert_eq!(scalar::binary(BinaryFn::Add, DType::F32, product, c), Some(Number::Float(0.0)));
}
