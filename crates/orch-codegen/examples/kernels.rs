//! Emits, compiles and times kernels that the templates make: `cargo run --example kernels [-- NAME..]`, with
//! `--print` to see the C instead. Times are of one thread on data that fits L2.

use orch_codegen::c;
use orch_compute::{Layout, fuse};
use orch_ir::*;
use orch_template::{injective, row};
use orch_thread::passes::{PassContext, run_all};
use orch_thread::{CpuTarget, Scope, ThreadProgram, target};
use std::fmt::Write as _;
use std::process::Command;

/// Adds nodes to a graph.
struct Builder(PrimGraph);

impl Builder {
    fn input(&mut self, dtype: DType, dims: &[usize]) -> TensorId {
        let name = format!("x{}", self.0.inputs.len());
        self.0.add_input(name, dtype, dims)
    }

    fn op(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.0.add(op, inputs).expect("operands that fit")
    }

    fn unary(&mut self, f: UnaryFn, x: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Unary(f)), &[x])
    }

    fn binary(&mut self, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
    }

    fn scalar(&mut self, value: f32, like: TensorId) -> TensorId {
        let shape = self.0.shape(like).clone();
        let scalar = self.0.add_constant(Tensor::scalar(value));
        self.op(PrimOp::Broadcast { shape, dims: vec![] }, &[scalar])
    }

    /// The reduction of the last axis, repeated along it.
    fn reduced(&mut self, op: ReduceOp, x: TensorId) -> TensorId {
        let shape = self.0.shape(x).clone();
        let last = shape.rank() - 1;
        let y = self.op(PrimOp::Reduce { op, axes: vec![last] }, &[x]);
        self.op(PrimOp::Broadcast { shape, dims: (0..last).collect() }, &[y])
    }
}

/// The activations that most kernels read.
const SHAPE: [usize; 2] = [128, 768];

type Build = fn(&mut Builder) -> TensorId;

/// Kernels by name.
const KERNELS: [(&str, Build); 9] = [
    ("relu", |b| {
        let x = b.input(DType::F32, &SHAPE);
        let zero = b.scalar(0.0, x);
        b.binary(BinaryFn::Max, x, zero)
    }),
    ("exp", |b| {
        let x = b.input(DType::F32, &SHAPE);
        b.unary(UnaryFn::Exp, x)
    }),
    ("log", |b| {
        let x = b.input(DType::F32, &SHAPE);
        b.unary(UnaryFn::Log, x)
    }),
    ("tanh", |b| {
        let x = b.input(DType::F32, &SHAPE);
        b.unary(UnaryFn::Tanh, x)
    }),
    ("gelu", |b| {
        let x = b.input(DType::F32, &SHAPE);
        let (half, one, root) = (b.scalar(0.5, x), b.scalar(1.0, x), b.scalar(0.5f32.sqrt(), x));
        let scaled = b.binary(BinaryFn::Mul, x, root);
        let erf = b.unary(UnaryFn::Erf, scaled);
        let erf = b.binary(BinaryFn::Add, erf, one);
        let y = b.binary(BinaryFn::Mul, x, half);
        b.binary(BinaryFn::Mul, y, erf)
    }),
    ("softmax", |b| {
        let x = b.input(DType::F32, &SHAPE);
        let max = b.reduced(ReduceOp::Max, x);
        let x = b.binary(BinaryFn::Sub, x, max);
        let exp = b.unary(UnaryFn::Exp, x);
        let sum = b.reduced(ReduceOp::Sum, exp);
        b.binary(BinaryFn::Div, exp, sum)
    }),
    ("layer_norm", |b| {
        let x = b.input(DType::F32, &SHAPE);
        let count = b.scalar(1.0 / SHAPE[1] as f32, x);
        let sum = b.reduced(ReduceOp::Sum, x);
        let mean = b.binary(BinaryFn::Mul, sum, count);
        let centred = b.binary(BinaryFn::Sub, x, mean);
        let square = b.binary(BinaryFn::Mul, centred, centred);
        let sum = b.reduced(ReduceOp::Sum, square);
        let variance = b.binary(BinaryFn::Mul, sum, count);
        let epsilon = b.scalar(1e-5, x);
        let variance = b.binary(BinaryFn::Add, variance, epsilon);
        let deviation = b.unary(UnaryFn::Sqrt, variance);
        b.binary(BinaryFn::Div, centred, deviation)
    }),
    ("transpose", |b| {
        let x = b.input(DType::F32, &SHAPE);
        b.op(PrimOp::Transpose { perm: vec![1, 0] }, &[x])
    }),
    ("take", |b| {
        let table = b.input(DType::F32, &[1000, 768]);
        let indices = b.input(DType::I64, &[128]);
        b.op(PrimOp::Take { axis: 0 }, &[table, indices])
    }),
];

/// A kernel under its first schedule.
fn program(name: &str, build: Build, target: &CpuTarget) -> ThreadProgram {
    let mut builder = Builder(PrimGraph::new(name));
    let output = build(&mut builder);
    let graph = &builder.0;
    let nodes: Vec<NodeId> = graph.node_ids().collect();
    let layouts = |tensor: TensorId| Layout::row_major(graph.shape(tensor).rank());
    let block = fuse::build(graph, &nodes, &[output], &layouts, name).expect("one kernel");
    let kernel = match row::schedules(&block, target).first() {
        Some(schedule) => row::lower(&block, schedule),
        None => injective::lower(&block, &injective::schedules(&block, target)[0]),
    };
    kernel.expect("a schedule of its own").program
}

/// What the timing program starts with.
const CLOCK: &str = "
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

int main(void) {
";

/// A C `main` that times each program.
fn timing(programs: &[ThreadProgram]) -> String {
    let mut text = CLOCK.to_owned();
    for program in programs {
        let globals = program.buffers.iter().filter(|b| b.scope != Scope::Scratch);
        text += "    {\n        void *b[8];\n        double best = 1e30;\n";
        for (index, buffer) in globals.enumerate() {
            let bytes = (buffer.elems * buffer.dtype.size_bytes()).next_multiple_of(64);
            writeln!(text, "        b[{index}] = calloc({bytes}, 1);").expect("writes to a string");
            if buffer.dtype == DType::F32 {
                let elems = buffer.elems;
                writeln!(
                    text,
                    "        for (int i = 0; i < {elems}; i++) ((float *)b[{index}])[i] = (i * 37 % 101 + 1) / 16.0f;"
                )
                .expect("writes to a string");
            }
        }
        let (name, tasks) = (&program.name, program.tasks);
        writeln!(
            text,
            "        void *scratch = aligned_alloc(64, {});\n        \
             for (int run = 0; run < 300; run++) {{\n            const double start = now();\n            \
             {name}(b, 0, {tasks}, scratch, -1);\n            \
             best = fmin(best, now() - start);\n        }}\n        \
             printf(\"%-14s %8.2f us\\n\", \"{name}\", best);\n    }}",
            program.scratch_bytes().max(64),
        )
        .expect("writes to a string");
    }
    text + "    return 0;\n}\n"
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with("--"));
    let target = &target::X86_64_V4;
    let mut programs: Vec<ThreadProgram> = (KERNELS.iter())
        .filter(|(name, _)| names.is_empty() || names.iter().any(|wanted| wanted == name))
        .map(|(name, build)| program(&format!("k_{name}"), *build, target))
        .collect();
    for program in &mut programs {
        run_all(program, &PassContext::default(), &mut |_, _| {});
    }
    let text = c::emit(&programs.iter().collect::<Vec<_>>(), target);
    if options.iter().any(|option| *option == "--print") {
        print!("{text}");
        return Ok(());
    }
    let directory = std::env::temp_dir().join("orch-codegen-kernels");
    std::fs::create_dir_all(&directory)?;
    let (source, binary) = (directory.join("kernels.c"), directory.join("kernels"));
    std::fs::write(&source, text + &timing(&programs))?;
    let mut cc = Command::new("cc");
    cc.args(c::flags(target)).arg(&source).args(["-lm", "-o"]).arg(&binary);
    assert!(cc.status()?.success(), "{} does not compile", source.display());
    Command::new(&binary).status()?;
    Ok(())
}
