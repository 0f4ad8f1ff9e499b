//! Modelled times of host routines: what the reference interpreter takes for the primitives of a step.
//!
//! The interpreter runs on one thread, primitive by primitive, and reads and writes whole tensors. Its time is modelled from
//! elements that are read and written, from operations (multiplications of a contraction, comparisons of a sort), and from the
//! number of primitives, of which bodies of loops run many. The model is rough: a loop may end early, and a routine may work
//! less than its operands allow.

use super::context::PlanContext;
use crate::manifest::Device;
use orch_ir::{NodeId, OpaqueKind, PrimGraph, PrimOp, Shape, TensorId};
use orch_plan::enumerate::Candidate;

// Measured steps on an AMD EPYC, and what these constants make of them: DFT of four times 1024 values 10.6 ms (10.1), TopK
// of 100000 elements 14.7 ms (14.1), DeformConv of 16 channels of 32 x 32 9.9 ms (11.4), ScatterElements of 1000 x 256 5.7 ms
// (5.6). Steps of a few elements take 3 to 6 us (2 to 3).

/// Time of a step with nothing to do.
const STEP_US: f64 = 1.0;

/// Time of a primitive of no elements.
const PRIMITIVE_US: f64 = 1.0;

/// Time of an element that is read or written.
const ELEMENT_NS: f64 = 1.0;

/// Time of an operation: a multiplication of a contraction.
const OPERATION_NS: f64 = 1.2;

/// A comparison of a sort, in operations.
const COMPARISON: f64 = 7.0;

/// A sample between elements, in operations.
const SAMPLE: f64 = 32.0;

/// An element that is written at an index, in operations.
const SCATTERED: f64 = 15.0;

/// Time of a step on a GPU beyond that: it waits for the kernels before it, and copies its tensors to the host and back.
const TRANSFER_US: f64 = 30.0;

/// Bytes per microsecond that are copied between a GPU and the host.
const TRANSFER_BYTES_PER_US: f64 = 10_000.0;

impl PlanContext<'_> {
    /// Modelled time of a candidate as a host routine.
    pub fn host_us(&self, candidate: &Candidate) -> f64 {
        let bytes = |&tensor: &TensorId| self.stored_bytes(tensor) as f64;
        let transfers_us = match self.planner.info().device {
            Device::Cpu => 0.0,
            Device::Cuda => {
                let tensors = candidate.inputs.iter().chain(&candidate.outputs);
                TRANSFER_US + tensors.map(bytes).sum::<f64>() / TRANSFER_BYTES_PER_US
            }
        };
        let nodes = self.units.primitives(self.graph, &candidate.nodes);
        STEP_US + transfers_us + nodes.iter().map(|&node| primitive_us(self.graph, node)).sum::<f64>()
    }
}

/// Time of one primitive.
fn primitive_us(graph: &PrimGraph, id: NodeId) -> f64 {
    let node = graph.node(id);
    // The same bytes under another shape.
    if matches!(node.op, PrimOp::Reshape { .. }) {
        return PRIMITIVE_US;
    }
    let shapes = |tensors: &[TensorId]| tensors.iter().map(|&tensor| graph.shape(tensor)).collect::<Vec<_>>();
    let (inputs, outputs) = (shapes(&node.inputs), shapes(&node.outputs));
    let elements: f64 = inputs.iter().chain(&outputs).map(|shape| elems(shape)).sum();
    PRIMITIVE_US
        + bodies_us(&node.op, &inputs)
        + 1e-3 * (ELEMENT_NS * elements + OPERATION_NS * operations(&node.op, &inputs, &outputs))
}

/// Time of the graphs that a primitive runs.
fn bodies_us(op: &PrimOp, inputs: &[&Shape]) -> f64 {
    let PrimOp::Opaque(opaque) = op else { return 0.0 };
    let once = |body: &PrimGraph| body.node_ids().map(|node| primitive_us(body, node)).sum::<f64>();
    match &opaque.kind {
        OpaqueKind::If { then_graph, else_graph } => once(then_graph).max(once(else_graph)),
        // How often a loop without scans runs is not known.
        OpaqueKind::Loop { body, trips, .. } => (*trips).max(1) as f64 * once(body),
        OpaqueKind::Scan { body, spec } => {
            let scanned = inputs.get(spec.states).zip(spec.inputs.first());
            let trips = scanned.and_then(|(shape, (axis, _))| shape.get(*axis)).copied().unwrap_or(1);
            trips as f64 * once(body)
        }
        OpaqueKind::TopK { .. } | OpaqueKind::Cumulative(_) | OpaqueKind::Routine { .. } => 0.0,
    }
}

/// Operations of a primitive, bodies aside.
fn operations(op: &PrimOp, inputs: &[&Shape], outputs: &[&Shape]) -> f64 {
    let input = |number: usize| inputs.get(number).map_or(0.0, |shape| elems(shape));
    let output = outputs.first().map_or(0.0, |shape| elems(shape));
    // Of a convolution's weight, what one channel is multiplied with.
    let weight = || inputs.get(1).map_or(0.0, |shape| elems(shape) / extent(shape, 0));
    match op {
        PrimOp::Reduce { .. } => input(0),
        PrimOp::Window { window, .. } => output * window.kernel.iter().product::<usize>() as f64,
        PrimOp::Contract(labels) => {
            let summed =
                |(label, extent): (&u8, &usize)| (!labels.out.contains(label)).then_some(*extent as f64);
            let (lhs, rhs) =
                (labels.lhs.iter().zip(inputs[0].dims()), labels.rhs.iter().zip(inputs[1].dims()));
            let only_rhs = rhs.filter(|(label, _)| !labels.lhs.contains(label));
            output * lhs.chain(only_rhs).filter_map(summed).product::<f64>()
        }
        PrimOp::Conv(_) => output * weight(),
        PrimOp::ConvTranspose { .. } => input(0) * weight(),
        PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => SCATTERED * input(2),
        // Each input of a gate is added to as many products as there are hidden units.
        PrimOp::Recurrence(_) => input(0) * inputs.get(1).map_or(1.0, |shape| extent(shape, 1)),
        PrimOp::Opaque(opaque) => match &opaque.kind {
            OpaqueKind::TopK { axis, .. } => {
                COMPARISON * input(0) * inputs.first().map_or(1.0, |shape| extent(shape, *axis)).log2()
            }
            OpaqueKind::Cumulative(_) => output,
            OpaqueKind::Routine { name, ints, .. } => match (*name, &ints[..]) {
                // Four elements for each multiplication.
                ("DeformConv", _) => 4.0 * output * weight(),
                ("RoiAlign", [_, _, sampling, ..]) => SAMPLE * output * (sampling * sampling).max(1) as f64,
                ("DFT", [_, length, ..]) => output * *length as f64,
                ("Det", _) => input(0) * inputs.first().map_or(1.0, |shape| extent(shape, shape.rank() - 1)),
                _ => output,
            },
            OpaqueKind::If { .. } | OpaqueKind::Loop { .. } | OpaqueKind::Scan { .. } => 0.0,
        },
        PrimOp::Map(_)
        | PrimOp::Broadcast { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Slice { .. }
        | PrimOp::Pad { .. }
        | PrimOp::Concat { .. }
        | PrimOp::Select { .. }
        | PrimOp::Take { .. }
        | PrimOp::TakeAlong { .. }
        | PrimOp::GatherNd { .. }
        | PrimOp::Iota { .. } => output,
    }
}

fn elems(shape: &Shape) -> f64 {
    shape.elems() as f64
}

/// An extent, at least 1.
fn extent(shape: &Shape, axis: usize) -> f64 {
    shape.get(axis).copied().unwrap_or(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{DType, OpaqueOp, ScanSpec};

    /// Time of a primitive on f32 operands of these shapes.
    fn time_us(op: PrimOp, operands: &[&[usize]]) -> f64 {
        let mut graph = PrimGraph::new("g");
        let operands = operands.iter().map(|dims| graph.add_input("x", DType::F32, dims.to_vec())).collect();
        graph.add_node(op, operands).unwrap();
        primitive_us(&graph, NodeId(0))
    }

    fn top_k() -> PrimOp {
        let kind = OpaqueKind::TopK { axis: 1, k: 1, largest: true, sorted: true };
        let shape = Shape::from([1, 1]);
        PrimOp::Opaque(Box::new(OpaqueOp {
            kind,
            results: vec![(DType::F32, shape.clone()), (DType::I64, shape)],
        }))
    }

    #[test]
    fn times_follow_from_what_is_done() {
        let [few, many] = [9, 100_000].map(|extent| time_us(top_k(), &[&[1, extent]]));
        assert!((1.0..10.0).contains(&few) && (5e3..50e3).contains(&many), "{few} {many}");
        let product = time_us(PrimOp::Contract(orch_ir::Contract::matmul(0)), &[&[64, 512], &[512, 256]]);
        let expected = 1e-3 * OPERATION_NS * (64 * 512 * 256) as f64;
        assert!((expected..1.1 * expected).contains(&product), "{product}");
        let reshaped = PrimOp::Reshape { shape: Shape::from([512, 64]) };
        assert_eq!(time_us(reshaped, &[&[64, 512]]), PRIMITIVE_US);
    }

    #[test]
    fn bodies_run_once_for_each_slice() {
        let mut body = PrimGraph::new("body");
        let x = body.add_input("x", DType::F32, [8]);
        let y = body.add(PrimOp::Map(orch_ir::ScalarFn::Unary(orch_ir::UnaryFn::Exp)), &[x]).unwrap();
        body.add_output("y", y);
        let once = primitive_us(&body, NodeId(0));
        let spec = ScanSpec { states: 0, inputs: vec![(0, false)], outputs: vec![(0, false)] };
        let kind = OpaqueKind::Scan { body: Box::new(body), spec };
        let results = vec![(DType::F32, Shape::from([100, 8]))];
        let scan = time_us(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), &[&[100, 8]]);
        assert!((100.0 * once..101.0 * once + 10.0).contains(&scan), "{scan} of {once}");
    }
}
