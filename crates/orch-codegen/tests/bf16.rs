//! Products of bf16: dot products of pairs on every target that this machine runs, and matrix tiles, which are compiled
//! where the compiler knows them and run where the machine has them.
//!
//! Operands are small integers, so that every sum is exact and does not depend on the order of its terms.

mod support;

use orch_codegen::c;
use orch_compute::{Layout, fuse};
use orch_ir::{Contract, DType, PrimGraph, PrimOp, ScalarFn, Tensor};
use orch_template::designs;
use orch_thread::kernel::Kernel;
use orch_thread::{BufferData, ExecOptions, Scope, ThreadProgram, interpret, parse_thread, target};
use support::{Toolchain, run_compiled};

/// Small integers as elements of any type.
fn integers(dtype: DType, elems: usize, seed: usize) -> BufferData {
    let values: Vec<f64> = (0..elems).map(|i| ((i * 37 + seed * 11) % 17) as f64 - 8.0).collect();
    BufferData::from_tensor(&Tensor::from_f64(dtype, [elems], &values))
}

/// Contents of the global buffers: zeros where the program writes.
fn buffers(program: &ThreadProgram) -> Vec<BufferData> {
    (program.buffers.iter().filter(|buffer| buffer.scope != Scope::Scratch))
        .enumerate()
        .map(|(seed, buffer)| match buffer.scope {
            Scope::Output => BufferData::zeros(buffer.dtype, buffer.elems),
            _ => integers(buffer.dtype, buffer.elems, seed),
        })
        .collect()
}

#[track_caller]
fn agrees(program: &ThreadProgram, toolchain: &Toolchain, name: &str) {
    let given = buffers(program);
    let mut expected = given.clone();
    interpret(program, &mut expected, &ExecOptions::default()).unwrap();
    let directory = support::directory(&format!("bf16_{name}_{}", toolchain.target.name));
    let results = run_compiled(&[(program, &given)], toolchain, &directory);
    assert_eq!(results[0], expected, "{name} for {}", toolchain.target.name);
}

/// `y[lanes]` is the sum of 8 pairs of products per lane; `z` holds lanes of two vectors by turns.
fn pairs(lanes: usize) -> ThreadProgram {
    let (wide, all) = (2 * lanes, 16 * lanes);
    let text = format!(
        "program pairs{lanes}, 1 tasks task: i64 [0..=0]\n  input x: bf16[16]\n  input w: bf16[{all}]\n  \
         input v: bf16[{all}]\n  output y: f32[{wide}]\n  output z: bf16[{wide}]\n{{\n  \
         reg one: f32x{lanes} = splat(0.0; {lanes})\n  reg two: f32x{lanes} = splat(1.0; {lanes})\n  \
         for k: i64 [0..=7] = 0 to 8 step 1 {{\n    \
         one = dot_pairs(x[(k * 2); 2], w[(k * {wide}); {wide}], one)\n    \
         two = dot_pairs(v[(k * {wide}); {wide}], w[(k * {wide}); {wide}], two)\n  }}\n  \
         y[0] = one\n  y[{lanes}] = two\n  z[0] = interleave(w[0; {lanes}], v[0; {lanes}])\n}}\n"
    );
    parse_thread(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn pairs_agree_with_the_interpreter() {
    for toolchain in support::toolchains() {
        for lanes in [2, 4, 8, 16, 32] {
            agrees(&pairs(lanes), &toolchain, &format!("pairs{lanes}"));
        }
    }
}

/// A product of bf16 matrices as a kernel for machines with matrix tiles, the second factor computed too.
fn tiled_product(m: usize, n: usize, k: usize) -> Kernel {
    let mut graph = PrimGraph::new("product");
    let shapes = [vec![m, k], vec![k, n]];
    let factors: Vec<_> = (shapes.into_iter().enumerate())
        .map(|(index, shape)| {
            let x = graph.add_input(format!("x{index}"), DType::BF16, shape);
            graph.add(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[x]).unwrap()
        })
        .collect();
    let y = graph.add(PrimOp::Contract(Contract::matmul(0)), &factors).unwrap();
    graph.add_output("y", y);
    let nodes: Vec<_> = graph.node_ids().collect();
    let name = format!("product_{m}_{n}_{k}");
    let block = fuse::build(&graph, &nodes, &[y], &|_| Layout::row_major(2), name).unwrap();
    let design = designs(&block, &target::X86_64_AMX, 1).pop().unwrap();
    assert!(design.schedule.starts_with("contraction tiles"), "{}", design.schedule);
    design.kernel
}

#[test]
fn tiles_compile_and_agree_where_the_machine_has_them() {
    let Some(compiler) = support::tile_compiler() else {
        println!("skipped: the C compiler does not know AMX");
        return;
    };
    let runs = support::toolchains().into_iter().find(|toolchain| toolchain.target.has_amx_bf16);
    if runs.is_none() {
        println!("compiled only: this machine has no matrix tiles");
    }
    for (m, n, k) in [(4, 8, 16), (16, 16, 32), (49, 40, 96), (70, 33, 40)] {
        let program = support::after_passes(&tiled_product(m, n, k).program);
        let text = c::emit(&[&program], &target::X86_64_AMX);
        for word in ["_tile_loadconfig", "_tile_loadd", "_tile_dpbf16ps", "_tile_stored", "_tile_release"] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
        let directory = support::directory(&format!("bf16_tiles_{m}_{n}_{k}"));
        compiler.compile(&text, &directory, &["-c"]);
        if let Some(toolchain) = &runs {
            agrees(&program, toolchain, &format!("product_{m}_{n}_{k}"));
        }
    }
}
