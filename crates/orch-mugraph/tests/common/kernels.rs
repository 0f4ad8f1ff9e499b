//! Runs µGraphs with their block graphs lowered to thread programs, each checked by the validator and the interpreter.
#![allow(dead_code)]

use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::eval::{Domain, Site};
use orch_mugraph::floats::Floats;
use orch_mugraph::lower::{Request, Stored, cpu};
use orch_mugraph::tiling::indices;
use orch_mugraph::{MuGraph, Node, Precision, TensorId};
use orch_tile::templates::kernel::{Binding, Kernel};
use orch_tile::{BufferData, CpuTarget, ExecOptions, Scope, interpret, print_thread, validate_thread};

/// All tensors as f32 in row-major order.
pub fn row_major(graph: &MuGraph) -> Vec<Stored> {
    graph.shapes().iter().map(|shape| Stored::row_major(DType::F32, shape)).collect()
}

/// The places of a tensor's elements in memory.
fn places(shape: &[usize], stored: &Stored) -> Vec<usize> {
    let place = |index: Vec<usize>| {
        stored.offset + index.iter().zip(&stored.strides).map(|(at, stride)| at * stride).sum::<usize>()
    };
    indices(shape).map(place).collect()
}

/// A number as it is stored.
fn bytes(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        _ => vec![u8::from(x != 0.0)],
    }
}

fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
        DType::F16 => half::f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
        _ => bytes[0].into(),
    }
}

/// A tensor in memory.
pub fn stored_bytes(array: &Array<f64>, stored: &Stored) -> Vec<u8> {
    let size = stored.dtype.size_bytes();
    let mut memory = vec![0; stored.elems * size];
    for (place, &x) in places(&array.shape, stored).into_iter().zip(&array.data) {
        memory[place * size..][..size].copy_from_slice(&bytes(stored.dtype, x));
    }
    memory
}

/// A tensor from memory.
pub fn loaded(memory: &[u8], shape: &[usize], stored: &Stored) -> Array<f64> {
    let size = stored.dtype.size_bytes();
    let element = |place: usize| number(stored.dtype, &memory[place * size..][..size]);
    Array { shape: shape.to_vec(), data: places(shape, stored).into_iter().map(element).collect() }
}

/// The outputs of a µGraph whose block graphs run as thread programs.
pub fn run(graph: &MuGraph, inputs: &[Array<f64>], stored: &[Stored], target: &CpuTarget) -> Vec<Array<f64>> {
    let mut values: Vec<Option<Array<f64>>> = vec![None; graph.shapes().len()];
    let mut inputs = inputs.iter();
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { .. } => {
                let memory = stored_bytes(inputs.next().expect("an input"), &stored[first.index()]);
                values[first.index()] = Some(loaded(&memory, graph.shape(first), &stored[first.index()]));
            }
            Node::Op { op, args } => {
                let args: Vec<&Array<f64>> =
                    args.iter().map(|arg| values[arg.index()].as_ref().expect("computed before")).collect();
                let site = Site { kernel: first, tile: None, block: 0, iteration: 0 };
                let result = Floats { precision: Precision::F32 }.apply(site, op, &args);
                values[first.index()] = Some(result.unwrap_or_else(|e| panic!("{e}")));
            }
            Node::Block(_) => {
                let request = Request { graph, kernel: first, stored, name: "kernel" };
                let kernel = cpu::lower(&request, target).unwrap_or_else(|e| panic!("{e}"));
                run_kernel(graph, &kernel, stored, &mut values);
            }
        }
    }
    let output = |(_, id): &(String, TensorId)| values[id.index()].clone().expect("computed");
    graph.outputs().iter().map(output).collect()
}

fn tensors(kernel: &Kernel) -> Vec<usize> {
    let tensor = |binding: &Binding| match binding {
        Binding::Arg(id) => id.index(),
        Binding::Packed(_) => panic!("nothing is constant here"),
    };
    kernel.bindings.iter().map(tensor).collect()
}

/// What a kernel is passed: the tensors that have values, and zeros.
pub fn arguments(kernel: &Kernel, stored: &[Stored], values: &[Option<Array<f64>>]) -> Vec<BufferData> {
    let argument = |id: usize| {
        let dtype = stored[id].dtype;
        let zeros = || vec![0; stored[id].elems * dtype.size_bytes()];
        let bytes = values[id].as_ref().map_or_else(zeros, |value| stored_bytes(value, &stored[id]));
        BufferData { dtype, bytes }
    };
    tensors(kernel).into_iter().map(argument).collect()
}

fn run_kernel(graph: &MuGraph, kernel: &Kernel, stored: &[Stored], values: &mut [Option<Array<f64>>]) {
    let program = &kernel.program;
    assert_eq!(validate_thread(program), Vec::<String>::new(), "{}", print_thread(program));
    let mut buffers = arguments(kernel, stored, values);
    let report = interpret(program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}\n{}", orch_mugraph::print(graph), print_thread(program)));
    for (at, id) in tensors(kernel).into_iter().enumerate() {
        if program.buffers[at].scope == Scope::Output {
            let shape = &graph.shapes()[id];
            let spare = stored[id].elems - shape.iter().product::<usize>();
            assert_eq!(report.unwritten[at], spare, "every element is stored");
            values[id] = Some(loaded(&buffers[at].bytes, shape, &stored[id]));
        }
    }
}
