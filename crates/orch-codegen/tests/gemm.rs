//! The 8x48 `f32` matrix-product micro-kernel: its results, and that GCC keeps its accumulators in registers.

mod support;

use orch_codegen::c;
use orch_compute::Type;
use orch_ir::DType;
use orch_thread::{Buffer, BufferData, ExecOptions, LoopKind, Scope, Stmt, ThreadProgram, interpret};

const ROWS: usize = 8;
const VECTORS: usize = 3;
const LANES: usize = 16;

/// `c[m, n] = a[m, k] b[n / 48, k, 48]`: tasks are pairs of a row panel and a column panel.
fn gemm(m: usize, n: usize, k: usize) -> ThreadProgram {
    let columns = VECTORS * LANES;
    let (row_panels, column_panels) = (m / ROWS, n / columns);
    let mut p = ThreadProgram::new("gemm", row_panels * column_panels);
    let buffer = |name: &str, elems, scope| Buffer { name: name.into(), dtype: DType::F32, elems, scope };
    let a = p.add_buffer(buffer("a", m * k, Scope::Input));
    let b = p.add_buffer(buffer("b", k * n, Scope::Input));
    let c = p.add_buffer(buffer("c", m * n, Scope::Output));
    let x = &mut p.exprs;

    let task = x.var(p.task);
    let panels = x.index(row_panels as i64);
    let (row, column) = (x.floor_rem(task, panels), x.floor_div(task, panels));
    let row_base = x.mul_const(row, (ROWS * k) as i64);
    let panel_base = x.mul_const(column, (k * columns) as i64);

    let zero = x.constant(DType::F32, 0.0);
    let zeros = x.splat(zero, LANES);
    let vector = Type::vector(DType::F32, LANES);
    let mut body = vec![Stmt::Comment(format!("accumulators of {ROWS} rows x {columns} columns"))];
    let acc: Vec<Vec<_>> = (0..ROWS)
        .map(|i| (0..VECTORS).map(|j| x.declare_register(format!("acc{i}_{j}"), vector)).collect())
        .collect();
    body.extend(acc.iter().flatten().map(|&register| Stmt::Register(register, zeros)));

    let (depth, step) = x.fresh_index("k", k);
    let mut inner = Vec::new();
    let k_columns = x.mul_const(step, columns as i64);
    let b_row = x.add2(panel_base, k_columns);
    let a_column = x.add2(row_base, step);
    for (i, acc_row) in acc.iter().enumerate() {
        let offset = x.add_const(a_column, (i * k) as i64);
        let scalar = x.load(a, offset, 1, None);
        let broadcast = x.splat(scalar, LANES);
        for (j, &register) in acc_row.iter().enumerate() {
            let offset = x.add_const(b_row, (j * LANES) as i64);
            let loaded = x.load(b, offset, LANES, None);
            let old = x.var(register);
            inner.push(Stmt::Assign(register, x.fma(broadcast, loaded, old)));
        }
    }
    let (start, end) = (x.index(0), x.index(k as i64));
    body.push(Stmt::For { var: depth, start, end, step: 1, kind: LoopKind::Serial, body: inner });

    let c_base = x.mul_const(row, (ROWS * n) as i64);
    let c_column = x.mul_const(column, columns as i64);
    let c_base = x.add2(c_base, c_column);
    for (i, acc_row) in acc.iter().enumerate() {
        for (j, &register) in acc_row.iter().enumerate() {
            let offset = x.add_const(c_base, (i * n + j * LANES) as i64);
            body.push(Stmt::Store { buffer: c, offset, value: x.var(register), mask: None });
        }
    }
    p.body = body;
    p
}

fn pattern(elems: usize, seed: usize) -> BufferData {
    let values = (0..elems).map(|i| ((i * 37 + seed * 11) % 17) as f32 - 8.0);
    BufferData { dtype: DType::F32, bytes: values.flat_map(f32::to_le_bytes).collect() }
}

#[test]
fn compiled_agrees_with_the_interpreter() {
    let (m, n, k) = (16, 96, 13);
    let program = gemm(m, n, k);
    let buffers = vec![pattern(m * k, 1), pattern(k * n, 2), BufferData::zeros(DType::F32, m * n)];
    let mut expected = buffers.clone();
    let report = interpret(&program, &mut expected, &ExecOptions::default()).unwrap();
    assert_eq!(report.unwritten, [0, 0, 0]);
    for toolchain in support::toolchains() {
        let name = toolchain.target.name;
        let directory = support::directory(&format!("gemm_{name}"));
        let results = support::run_compiled(&[(&program, &buffers)], &toolchain, &directory);
        assert_eq!(results[0][2], expected[2], "{name}");
    }
}

#[test]
fn the_inner_loop_keeps_its_accumulators_in_registers() {
    let toolchains = support::toolchains();
    let Some(toolchain) = toolchains.iter().find(|toolchain| toolchain.target.name == "x86-64-v4") else {
        return;
    };
    let text = c::emit(&[&support::after_passes(&gemm(64, 96, 256))], toolchain.target);
    let directory = support::directory("gemm_assembly");
    let assembly = std::fs::read_to_string(toolchain.compile(&text, &directory, &["-S"])).unwrap();
    let spills = assembly.lines().filter(|line| line.contains("zmm") && line.contains("(%rsp)")).count();
    assert_eq!(spills, 0, "vector registers are spilled:\n{assembly}");
    let products = assembly.lines().filter(|line| line.contains("vfmadd") && line.contains("ps")).count();
    assert!(products >= ROWS * VECTORS, "{products} multiply-adds");
    assert_eq!(products % (ROWS * VECTORS), 0, "whole copies of the inner loop: {products}");
}
