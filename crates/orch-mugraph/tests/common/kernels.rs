//! Runs µGraphs with their block graphs lowered to thread programs, each checked by the validator and the interpreter.

use orch_ir::{DType, Tensor};
use orch_mugraph::array::Array;
use orch_mugraph::eval::{Domain, Site};
use orch_mugraph::floats::Floats;
use orch_mugraph::lower::{Request, Stored};
use orch_mugraph::op::elems;
use orch_mugraph::tiling::indices;
use orch_mugraph::{MuGraph, Node, Precision, TensorId, print};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::{BufferData, ExecOptions, Scope, interpret, print_thread, validate_thread};

/// Every tensor in row-major order.
pub fn row_major(graph: &MuGraph, dtype: DType) -> Vec<Stored> {
    graph.shapes().iter().map(|shape| Stored::row_major(dtype, shape)).collect()
}

/// A tensor in memory, with zeros in the gaps between its elements.
pub fn to_memory(array: &Array<f64>, stored: &Stored) -> BufferData {
    let mut memory = vec![0.0; stored.elems];
    for (index, &value) in indices(&array.shape).zip(&array.data) {
        memory[place(stored, &index)] = value;
    }
    BufferData::from_tensor(&Tensor::from_f64(stored.dtype, [stored.elems], &memory))
}

/// A tensor from memory.
pub fn from_memory(memory: &BufferData, shape: &[usize], stored: &Stored) -> Array<f64> {
    let all = memory.to_tensor([stored.elems]).expect("as many elements").to_f64();
    let data = indices(shape).map(|index| all[place(stored, &index)]).collect();
    Array { shape: shape.to_vec(), data }
}

fn place(stored: &Stored, index: &[usize]) -> usize {
    stored.offset + index.iter().zip(&stored.strides).map(|(at, stride)| at * stride).sum::<usize>()
}

/// The outputs of a µGraph whose block graphs are lowered and run as thread programs.
pub fn outputs(
    graph: &MuGraph,
    inputs: &[Array<f64>],
    stored: &[Stored],
    mut lower: impl FnMut(&Request<'_>) -> Kernel,
) -> Vec<Array<f64>> {
    let mut values: Vec<Option<Array<f64>>> = vec![None; graph.shapes().len()];
    let mut inputs = inputs.iter();
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { .. } => {
                let stored = &stored[first.index()];
                let memory = to_memory(inputs.next().expect("an input"), stored);
                values[first.index()] = Some(from_memory(&memory, graph.shape(first), stored));
            }
            Node::Op { op, args } => {
                let args: Vec<&Array<f64>> =
                    args.iter().map(|arg| values[arg.index()].as_ref().expect("computed before")).collect();
                let site = Site { kernel: first, tile: None, block: 0, iteration: 0 };
                let result = Floats { precision: Precision::F32 }.apply(site, op, &args);
                values[first.index()] = Some(result.unwrap_or_else(|e| panic!("{e}")));
            }
            Node::Block(block) => {
                let kernel = lower(&Request { graph, kernel: first, stored, name: "kernel" });
                run_kernel(graph, &kernel, stored, &mut values);
                let results = &values[first.index()..][..block.stores.len()];
                assert!(results.iter().all(Option::is_some), "a result of {first} is not bound");
            }
        }
    }
    let output = |(_, id): &(String, TensorId)| values[id.index()].clone().expect("computed");
    graph.outputs().iter().map(output).collect()
}

fn tensors(kernel: &Kernel) -> Vec<usize> {
    let tensor = |binding: &Binding| match binding {
        Binding::Arg(id) => id.index(),
        Binding::Packed(_) | Binding::Own { .. } => panic!("nothing is constant here"),
    };
    kernel.bindings.iter().map(tensor).collect()
}

/// The arguments of a kernel: tensors that have values, and zeros for others.
pub fn arguments(kernel: &Kernel, stored: &[Stored], values: &[Option<Array<f64>>]) -> Vec<BufferData> {
    let argument = |id: usize| match &values[id] {
        Some(value) => to_memory(value, &stored[id]),
        None => BufferData::zeros(stored[id].dtype, stored[id].elems),
    };
    tensors(kernel).into_iter().map(argument).collect()
}

/// Runs a kernel. Exactly the tensors that had no values are its outputs, and have values afterwards.
fn run_kernel(graph: &MuGraph, kernel: &Kernel, stored: &[Stored], values: &mut [Option<Array<f64>>]) {
    let program = &kernel.program;
    let text = || format!("{}\n{}", print(graph), print_thread(program));
    assert_eq!(validate_thread(program), Vec::<String>::new(), "{}", text());
    let mut buffers = arguments(kernel, stored, values);
    let report = interpret(program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", text()));
    for (at, id) in tensors(kernel).into_iter().enumerate() {
        let is_output = program.buffers[at].scope == Scope::Output;
        assert_eq!(is_output, values[id].is_none(), "the scope of t{id}\n{}", text());
        if is_output {
            let shape = &graph.shapes()[id];
            let spare = stored[id].elems - elems(shape);
            assert_eq!(report.unwritten[at], spare, "elements of t{id} that are not written\n{}", text());
            values[id] = Some(from_memory(&buffers[at], shape, &stored[id]));
        }
    }
}
