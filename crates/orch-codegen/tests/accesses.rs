//! Loads of elements at a distance, stores of the first lanes and transposed matrices, of all types and lanes, compiled against the interpreter. Buffers end
//! with the last element that is loaded.

mod support;

use orch_codegen::c;
use orch_compute::{ExprId, LaneGroup};
use orch_ir::{DType, Tensor};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::{BufferData, ExecOptions, interpret, validate_thread};
use std::collections::BTreeSet;

/// `y = x[base + stride * lane]`, the last lane at the end of `x`, or at its start if the stride is negative.
fn strided(dtype: DType, lanes: usize, stride: i64) -> (ThreadProgram, Vec<BufferData>) {
    let last = stride.unsigned_abs() as usize * (lanes - 1);
    let elems = last + 3;
    let mut program = ThreadProgram::new(format!("{dtype}_{lanes}_{}", stride.rem_euclid(100)), 1);
    let mut buffer = |name: &str, elems: usize, scope: Scope| {
        program.add_buffer(Buffer { name: name.into(), dtype, elems, scope })
    };
    let (x, y) = (buffer("x", elems, Scope::Input), buffer("y", lanes, Scope::Output));
    let exprs = &mut program.exprs;
    let base = exprs.index(if stride < 0 { last as i64 } else { 2 });
    let offset = exprs.ramp(base, stride, lanes);
    let value = exprs.load(x, offset, lanes, None);
    let zero = exprs.index(0);
    program.body = vec![Stmt::Store { buffer: y, offset: zero, value, mask: None }];
    assert_eq!(validate_thread(&program), Vec::<String>::new());
    let values: Vec<f64> =
        (0..elems).map(|at| if dtype == DType::Bool { (at % 3 == 0).into() } else { at as f64 }).collect();
    let buffers = vec![
        BufferData::from_tensor(&Tensor::from_f64(dtype, [elems], &values)),
        BufferData::zeros(dtype, lanes),
    ];
    (program, buffers)
}

#[test]
fn elements_at_a_distance_are_those_of_the_interpreter() {
    use DType::*;
    let mut programs = Vec::new();
    for dtype in [F32, F64, F16, BF16, I32, I64, U8, Bool] {
        for lanes in [2, 4, 8, 16, 32] {
            for stride in [-2, -1, 2, 3, 4, 5] {
                programs.push(strided(dtype, lanes, stride));
            }
        }
    }
    compare("strides", &programs);
}

/// Runs programs of one input and one output, compiled for each target that this machine has, and interpreted.
fn compare(name: &str, programs: &[(ThreadProgram, Vec<BufferData>)]) {
    for toolchain in support::toolchains() {
        let directory = support::directory(&format!("{name}_{}", toolchain.target.name));
        let inputs: Vec<(&ThreadProgram, &[BufferData])> =
            programs.iter().map(|(program, buffers)| (program, &buffers[..])).collect();
        let outputs = support::run_compiled(&inputs, &toolchain, &directory);
        for ((program, buffers), given) in programs.iter().zip(&outputs) {
            let mut expected = buffers.clone();
            interpret(program, &mut expected, &ExecOptions::default()).unwrap();
            assert_eq!(given[1].bytes, expected[1].bytes, "{}: {}", toolchain.target.name, program.name);
        }
        std::fs::remove_dir_all(directory).expect("the test made it");
    }
}

/// `y[row * lanes + lane] = x[lane]` for each lane below `row`, in rows from -1 on to one more than there are lanes; or, if `count` is
/// given, for lanes below that in each row.
fn prefixes(dtype: DType, lanes: usize, count: Option<i64>) -> (ThreadProgram, Vec<BufferData>) {
    let rows = lanes + 3;
    let name = count.map_or("each".to_owned(), |count| count.to_string());
    let mut program = ThreadProgram::new(format!("first_{dtype}_{lanes}_{name}"), 1);
    let mut buffer = |name: &str, elems: usize, scope: Scope| {
        program.add_buffer(Buffer { name: name.into(), dtype, elems, scope })
    };
    let (x, y) = (buffer("x", lanes, Scope::Input), buffer("y", rows * lanes, Scope::Output));
    let exprs = &mut program.exprs;
    let (var, row) = exprs.fresh_index("row", rows);
    let zero = exprs.index(0);
    let value = exprs.load(x, zero, lanes, None);
    let end = match count {
        Some(count) => exprs.index(count),
        None => exprs.add_const(row, -1),
    };
    let numbers = exprs.ramp(zero, 1, lanes);
    let ends = exprs.splat(end, lanes);
    let mask = exprs.lt(numbers, ends);
    let offset = exprs.mul_const(row, lanes as i64);
    let store = Stmt::Store { buffer: y, offset, value, mask: Some(mask) };
    let end = exprs.index(rows as i64);
    program.body =
        vec![Stmt::For { var, start: zero, end, step: 1, kind: LoopKind::Serial, body: vec![store] }];
    assert_eq!(validate_thread(&program), Vec::<String>::new());
    let values: Vec<f64> =
        (0..lanes).map(|lane| if dtype == DType::Bool { 1.0 } else { lane as f64 + 1.0 }).collect();
    let buffers = vec![
        BufferData::from_tensor(&Tensor::from_f64(dtype, [lanes], &values)),
        BufferData::zeros(dtype, rows * lanes),
    ];
    (program, buffers)
}

#[test]
fn first_lanes_are_stored_as_by_the_interpreter() {
    use DType::*;
    let mut programs = Vec::new();
    for dtype in [F32, F64, F16, I32, I64, U8, Bool] {
        for lanes in [2, 4, 8, 16] {
            let counts = BTreeSet::from([None, Some(1), Some(3), Some(lanes as i64 - 1)]);
            programs.extend(counts.into_iter().map(|count| prefixes(dtype, lanes, count)));
        }
    }
    compare("prefixes", &programs);
}

/// `y[column][row] = x[row][column]`, of so many rows, each of which is a vector, of groups of its lanes.
fn transposed(
    dtype: DType,
    group: LaneGroup,
    rows: usize,
    columns: usize,
) -> (ThreadProgram, Vec<BufferData>) {
    let lanes = columns * group.lanes();
    let elems = rows * lanes;
    let name = format!("transposed_{dtype}_{}_{rows}_{columns}", group.lanes());
    let mut program = ThreadProgram::new(name, 1);
    let mut buffer =
        |name: &str, scope: Scope| program.add_buffer(Buffer { name: name.into(), dtype, elems, scope });
    let (x, y) = (buffer("x", Scope::Input), buffer("y", Scope::Output));
    let exprs = &mut program.exprs;
    let load = |row: usize| {
        let offset = exprs.index((row * lanes) as i64);
        exprs.load(x, offset, lanes, None)
    };
    let vectors: Vec<ExprId> = (0..rows).map(load).collect();
    let transposed = exprs.transpose(group, vectors);
    assert_eq!(transposed.len(), columns);
    let store = |(column, &value): (usize, &ExprId)| {
        let offset = exprs.index((column * rows * group.lanes()) as i64);
        Stmt::Store { buffer: y, offset, value, mask: None }
    };
    program.body = transposed.iter().enumerate().map(store).collect();
    assert_eq!(validate_thread(&program), Vec::<String>::new());
    let values: Vec<f64> = (0..elems).map(|at| (at % 251) as f64).collect();
    let x = BufferData::from_tensor(&Tensor::from_f64(dtype, [elems], &values));
    (program, vec![x, BufferData::zeros(dtype, elems)])
}

#[test]
fn transposed_matrices_are_those_of_the_interpreter() {
    use DType::*;
    let mut programs = Vec::new();
    for dtype in [F32, F64, F16, BF16, I32, I64, U8] {
        let shapes = [(2, 2), (4, 4), (8, 8), (16, 16), (8, 2), (16, 4), (32, 16), (32, 32)];
        for (rows, columns) in shapes {
            for group in LaneGroup::BOTH.into_iter().filter(|group| rows * group.lanes() <= 32) {
                let (program, buffers) = transposed(dtype, group, rows, columns);
                let mut interpreted = buffers.clone();
                interpret(&program, &mut interpreted, &ExecOptions::default()).unwrap();
                let elems = rows * columns * group.lanes();
                let [x, y] = [&buffers[0], &interpreted[1]]
                    .map(|data| data.to_tensor([elems]).expect("as many elements").to_f64());
                let is_transposed = |at: usize| {
                    let (group_at, within) = (at / group.lanes(), at % group.lanes());
                    y[at] == x[(group_at % rows * columns + group_at / rows) * group.lanes() + within]
                };
                assert!((0..elems).all(is_transposed), "{}: {y:?}", program.name);
                programs.push((program, buffers));
            }
        }
    }
    compare("transposed", &programs);
}

#[test]
fn few_steps_are_no_gathers() {
    for target in orch_thread::target::CPU_TARGETS {
        let text = |stride: i64| c::emit(&[&strided(DType::F32, 4, stride).0], target);
        for stride in [-1, 2, 3, 4] {
            assert!(!text(stride).contains("gather"), "{} {stride}", target.name);
        }
        assert!(text(5).contains("gather"), "{}", target.name);
    }
}
