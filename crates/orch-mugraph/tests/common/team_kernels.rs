//! Lowered kernels in the interpreter of thread programs.

use orch_ir::{DType, Tensor};
use orch_mugraph::array::Array;
use orch_mugraph::eval::{Domain, Site};
use orch_mugraph::floats::Floats;
use orch_mugraph::lower::{Request, Stored};
use orch_mugraph::op::elems;
use orch_mugraph::tiling::indices;
use orch_mugraph::{MuGraph, Node, Precision, TensorId};
use orch_tile::templates::kernel::{Binding, Kernel};
use orch_tile::{BufferData, ExecOptions, interpret, validate_thread};

/// How a tensor's elements are given to kernels.
pub fn to_memory(array: &Array<f64>, stored: &Stored) -> BufferData {
    let mut memory = vec![0.0; stored.elems];
    for (index, &value) in indices(&array.shape).zip(&array.data) {
        memory[place(stored, &index)] = value;
    }
    BufferData::from_tensor(&Tensor::from_f64(stored.dtype, [stored.elems], &memory))
}

fn from_memory(memory: &BufferData, shape: &[usize], stored: &Stored) -> Array<f64> {
    let all = memory.to_tensor([stored.elems]).unwrap().to_f64();
    let data = indices(shape).map(|index| all[place(stored, &index)]).collect();
    Array { shape: shape.to_vec(), data }
}

fn place(stored: &Stored, index: &[usize]) -> usize {
    stored.offset + index.iter().zip(&stored.strides).map(|(at, stride)| at * stride).sum::<usize>()
}

/// Every tensor in row-major order.
pub fn row_major(graph: &MuGraph, dtype: DType) -> Vec<Stored> {
    graph.shapes().iter().map(|shape| Stored::row_major(dtype, shape)).collect()
}

/// The outputs of a µGraph whose block graphs are lowered and interpreted.
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
            Node::Input { .. } => values[first.index()] = inputs.next().cloned(),
            Node::Op { op, args } => {
                let args: Vec<&Array<f64>> =
                    args.iter().map(|arg| values[arg.index()].as_ref().expect("defined before")).collect();
                let mut floats = Floats { precision: Precision::F32 };
                let site = Site { kernel: first, tile: None, block: 0, iteration: 0 };
                values[first.index()] = Some(floats.apply(site, op, &args).unwrap());
            }
            Node::Block(block) => {
                let kernel = lower(&Request { graph, kernel: first, stored, name: "kernel" });
                run(graph, &kernel, stored, &mut values);
                for at in 0..block.stores.len() as u32 {
                    assert!(values[first.index() + at as usize].is_some(), "a result is not bound");
                }
            }
        }
    }
    graph.outputs().iter().map(|(_, id)| values[id.index()].clone().expect("defined")).collect()
}

/// Runs a kernel, with its results defined afterwards.
fn run(graph: &MuGraph, kernel: &Kernel, stored: &[Stored], values: &mut [Option<Array<f64>>]) {
    assert_eq!(validate_thread(&kernel.program), Vec::<String>::new());
    let tensors: Vec<TensorId> = (kernel.bindings.iter())
        .map(|binding| match binding {
            Binding::Arg(arg) => TensorId(arg.0),
            Binding::Packed(_) => panic!("nothing is packed"),
        })
        .collect();
    let mut buffers: Vec<BufferData> = (tensors.iter())
        .map(|id| match &values[id.index()] {
            Some(array) => to_memory(array, &stored[id.index()]),
            None => BufferData::zeros(stored[id.index()].dtype, stored[id.index()].elems),
        })
        .collect();
    let report = interpret(&kernel.program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", kernel.program));
    for ((id, memory), unwritten) in tensors.iter().zip(&buffers).zip(report.unwritten) {
        let shape = graph.shape(*id);
        if values[id.index()].is_none() {
            let holes = stored[id.index()].elems - elems(shape);
            assert_eq!(unwritten, holes, "elements of {id} that are not written");
            values[id.index()] = Some(from_memory(memory, shape, &stored[id.index()]));
        }
    }
}
