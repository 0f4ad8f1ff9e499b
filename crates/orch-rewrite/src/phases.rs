//! Transposed convolutions as convolutions, one for each phase of their strides.
//!
//! With stride `s`, results `y[s q + r]` of one phase `r` meet every `s`-th weight only, so that a sum over all weights is mostly of
//! zeros. In one dimension, without dilation, with `k0 = (r + low) mod s` and `c = (r + low) / s`, rounded down:
//!
//! ```text
//! y[s q + r]  =  sum over t of x[q + c - t] w[k0 + s t]       a convolution of the reversed weights k0, k0 + s, ..
//! ```
//!
//! Phases with one window are one convolution to more maps; phases whose windows differ can be, with zeros among its weights. Their
//! results are interleaved. Stands after the rewriting. Exact, but for the order in which floats are added up.

use crate::prepare::{computed, rebuilt};
use orch_interp::{EvalOptions, evaluate_node};
use orch_ir::{ConvSpec, PadMode, PrimGraph, PrimNode, PrimOp, Shape, Tensor, TensorId, Window};

/// The graph with transposed convolutions by finite constants, without dilation, as convolutions. Phases whose windows differ are one
/// convolution if that has at most `joined_flops` FLOPs, with zeros where a phase has no weight; else each is one.
pub fn phase_convolutions(graph: &PrimGraph, joined_flops: f64) -> PrimGraph {
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let Some(phases) = Phases::of(graph, node, joined_flops) else { return false };
        let x = computed(known, node.inputs[0]);
        known[node.outputs[0].index()] = Some(phases.emit(result, x));
        true
    })
}

/// What the results of a phase in one dimension are sums of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taps {
    /// The first weight; others follow at the stride.
    first: usize,
    count: usize,
    /// Zeros before and after the operand; fewer than none leave its first or last elements out.
    low: i64,
    high: i64,
}

impl Taps {
    /// How many weights meet elements before the one at the result's place, and how many meet that and later ones; fewer than none
    /// where the first that is met lies beyond it.
    fn reach(&self) -> [i64; 2] {
        [self.low, self.count as i64 - self.low]
    }
}

/// A transposed convolution by phases.
struct Phases {
    groups: usize,
    strides: Vec<usize>,
    /// Extents of the operand and of the result.
    from: Vec<usize>,
    to: Vec<usize>,
    /// Results of a phase.
    each: Vec<usize>,
    /// Maps of the result.
    maps: usize,
    /// Phases in row-major order, each by dimension.
    taps: Vec<Vec<Taps>>,
    /// The weights of each phase, `[m, c / groups, taps..]`.
    weights: Vec<Tensor>,
}

impl Phases {
    fn of(graph: &PrimGraph, node: &PrimNode, joined_flops: f64) -> Option<Self> {
        let PrimOp::ConvTranspose { spec, .. } = &node.op else { return None };
        let weights = graph.constant(node.inputs[1])?;
        let window = &spec.window;
        let is_plain = window.dilations.iter().all(|&dilation| dilation == 1);
        if !is_plain || !weights.to_f64().iter().all(|weight| weight.is_finite()) {
            return None;
        }
        let (x, y) = (graph.shape(node.inputs[0]), graph.shape(node.outputs[0]));
        let (from, to) = (x[2..].to_vec(), y[2..].to_vec());
        let strides = window.strides.clone();
        let each: Vec<usize> = to.iter().zip(&strides).map(|(to, stride)| to.div_ceil(*stride)).collect();
        let mut taps = vec![Vec::new()];
        for dim in 0..strides.len() {
            let of_dim: Vec<Taps> = (0..strides[dim])
                .map(|phase| taps_of(window, dim, phase, [from[dim], each[dim]]))
                .collect::<Option<_>>()?;
            taps = taps
                .into_iter()
                .flat_map(|before: Vec<Taps>| of_dim.iter().map(move |&taps| [&before[..], &[taps]].concat()))
                .collect();
        }
        let flipped = as_convolution(weights, spec.groups)?;
        let weights: Option<Vec<Tensor>> =
            taps.iter().map(|taps| of_taps(&flipped, taps, &strides)).collect();
        let mut phases =
            Self { groups: spec.groups, strides, from, to, each, maps: y[1], taps, weights: weights? };
        if phases.groups > 1 || phases.is_one_convolution() {
            return Some(phases);
        }
        let window = phases.joined_window()?;
        let k: usize = window.iter().map(|taps| taps.count).product::<usize>() * x[1];
        let results = x[0] * phases.maps * phases.taps.len() * phases.each.iter().product::<usize>();
        if 2.0 * results as f64 * k as f64 <= joined_flops {
            phases.join(window)?;
        }
        Some(phases)
    }

    /// Whether all phases read the same of the operand, all of its channels: groups keep their maps together.
    fn is_one_convolution(&self) -> bool {
        let window =
            |taps: &[Taps]| -> Vec<_> { taps.iter().map(|taps| (taps.count, taps.low, taps.high)).collect() };
        self.groups == 1 && self.taps.iter().all(|taps| window(taps) == window(&self.taps[0]))
    }

    /// A window that has those of all phases.
    fn joined_window(&self) -> Option<Vec<Taps>> {
        let window = |dim: usize| {
            let furthest = |side: usize| self.taps.iter().map(|taps| taps[dim].reach()[side]).max();
            let (low, ahead) = (furthest(0)?, furthest(1)?);
            let high = self.each[dim] as i64 - 1 + ahead - self.from[dim] as i64;
            Some(Taps { first: 0, count: usize::try_from(low + ahead).ok()?, low, high })
        };
        (0..self.strides.len()).map(window).collect()
    }

    /// Gives all phases this window, with zeros where a phase has no weight.
    fn join(&mut self, window: Vec<Taps>) -> Option<()> {
        let widened = |taps: &[Taps], weights: &Tensor| {
            let (mut low, mut high) = (vec![0; 2], vec![0; 2]);
            for (own, all) in taps.iter().zip(&window) {
                let [before, after] = [0, 1].map(|side| all.reach()[side] - own.reach()[side]);
                low.push(usize::try_from(before).ok()?);
                high.push(usize::try_from(after).ok()?);
            }
            let zero = Tensor::zeros(weights.dtype(), Shape::scalar());
            evaluated(&PrimOp::Pad { mode: PadMode::Constant, low, high }, &[weights, &zero])
        };
        let each = self.taps.iter().zip(&self.weights);
        self.weights = each.map(|(taps, weights)| widened(taps, weights)).collect::<Option<_>>()?;
        self.taps = vec![window; self.taps.len()];
        Some(())
    }

    fn emit(&self, graph: &mut PrimGraph, x: TensorId) -> TensorId {
        let expected = "phases have the extents they were given";
        let add = |graph: &mut PrimGraph, op: PrimOp, operands: &[TensorId]| {
            graph.add(op, operands).expect(expected)
        };
        let batch = graph.shape(x)[0];
        let phases = self.taps.len();
        let stacked = if self.is_one_convolution() {
            let values: Vec<&Tensor> = self.weights.iter().collect();
            let joined = evaluated(&PrimOp::Concat { axis: 0 }, &values);
            let weights = graph.add_constant(joined.expect(expected));
            self.convolution(graph, (x, weights), &self.taps[0])
        } else {
            let mut parts = Vec::new();
            for (taps, weights) in self.taps.iter().zip(&self.weights) {
                let weights = graph.add_constant(weights.clone());
                parts.push(self.convolution(graph, (x, weights), taps));
            }
            add(graph, PrimOp::Concat { axis: 1 }, &parts)
        };
        if phases == 1 {
            return stacked;
        }
        // [n, s.., m, q..] to [n, m, q, s, ..]
        let rank = self.strides.len();
        let apart = [&[batch], &self.strides[..], &[self.maps], &self.each[..]].concat();
        let apart = add(graph, PrimOp::Reshape { shape: apart.into() }, &[stacked]);
        let perm =
            [0, rank + 1].into_iter().chain((0..rank).flat_map(|dim| [rank + 2 + dim, 1 + dim])).collect();
        let interleaved = add(graph, PrimOp::Transpose { perm }, &[apart]);
        let whole: Vec<usize> =
            self.each.iter().zip(&self.strides).map(|(each, stride)| each * stride).collect();
        let dims = [&[batch, self.maps], &whole[..]].concat();
        let result = add(graph, PrimOp::Reshape { shape: dims.clone().into() }, &[interleaved]);
        if whole == self.to {
            return result;
        }
        let sizes = [&[batch, self.maps], &self.to[..]].concat();
        let slice = PrimOp::Slice { starts: vec![0; sizes.len()], steps: vec![1; sizes.len()], sizes };
        add(graph, slice, &[result])
    }

    fn convolution(
        &self,
        graph: &mut PrimGraph,
        (x, weights): (TensorId, TensorId),
        taps: &[Taps],
    ) -> TensorId {
        let expected = "windows of a phase fit";
        let shape = graph.shape(x).clone();
        let (mut starts, mut sizes) = (vec![0; shape.rank()], shape.to_vec());
        for (dim, taps) in taps.iter().enumerate() {
            let [before, after] = [taps.low, taps.high].map(|pad| pad.min(0).unsigned_abs() as usize);
            starts[dim + 2] = before as i64;
            sizes[dim + 2] = self.from[dim] - before - after;
        }
        let operand = if sizes[..] == shape[..] {
            x
        } else {
            let slice = PrimOp::Slice { starts, steps: vec![1; sizes.len()], sizes };
            graph.add(slice, &[x]).expect(expected)
        };
        let pads = |of: fn(&Taps) -> i64| taps.iter().map(|taps| of(taps).max(0) as usize).collect();
        let ones = vec![1; taps.len()];
        let window = Window {
            kernel: taps.iter().map(|taps| taps.count).collect(),
            strides: ones.clone(),
            dilations: ones,
            low: pads(|taps| taps.low),
            high: pads(|taps| taps.high),
        };
        graph
            .add(PrimOp::Conv(ConvSpec { window, groups: self.groups }), &[operand, weights])
            .expect(expected)
    }
}

/// The weights that a phase meets in a dimension; `None` if there are none, or nothing of the operand is read.
fn taps_of(window: &Window, dim: usize, phase: usize, [from, each]: [usize; 2]) -> Option<Taps> {
    let (stride, kernel) = (window.strides[dim], window.kernel[dim]);
    let shifted = phase + window.low[dim];
    let (first, ahead) = (shifted % stride, (shifted / stride) as i64);
    let count = kernel.checked_sub(first)?.div_ceil(stride);
    let low = count as i64 - 1 - ahead;
    let high = each as i64 - 1 + ahead - (from as i64 - 1);
    let left_out = low.min(0) + high.min(0);
    (count > 0 && from as i64 + left_out > 0).then_some(Taps { first, count, low, high })
}

/// Weights `[c, m / groups, k..]` of a transposed convolution as those of a convolution, `[m, c / groups, k..]`.
fn as_convolution(weights: &Tensor, groups: usize) -> Option<Tensor> {
    let shape = weights.shape();
    let (channels, maps, kernel) = (shape[0], shape[1], &shape[2..]);
    let apart = [&[groups, channels / groups, maps], kernel].concat();
    let perm = [0, 2, 1].into_iter().chain(3..apart.len()).collect();
    let joined = [&[groups * maps, channels / groups], kernel].concat();
    let apart = evaluated(&PrimOp::Reshape { shape: apart.into() }, &[weights])?;
    let moved = evaluated(&PrimOp::Transpose { perm }, &[&apart])?;
    evaluated(&PrimOp::Reshape { shape: joined.into() }, &[&moved])
}

/// The weights of a phase, the last one first.
fn of_taps(weights: &Tensor, taps: &[Taps], strides: &[usize]) -> Option<Tensor> {
    let shape = weights.shape();
    let (mut starts, mut steps, mut sizes) = (vec![0; 2], vec![1; 2], shape[..2].to_vec());
    for (taps, &stride) in taps.iter().zip(strides) {
        starts.push((taps.first + stride * (taps.count - 1)) as i64);
        steps.push(-(stride as i64));
        sizes.push(taps.count);
    }
    evaluated(&PrimOp::Slice { starts, steps, sizes }, &[weights])
}

fn evaluated(op: &PrimOp, operands: &[&Tensor]) -> Option<Tensor> {
    evaluate_node(op, operands, &EvalOptions::default()).ok().map(|mut results| results.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::evaluate;
    use orch_ir::DType;

    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let elems: usize = shape.iter().product();
        Tensor::from_vec(shape.to_vec(), (0..elems).map(|at| ((at * 7 + seed) % 11) as f32 - 5.0).collect())
    }

    /// `(x, weights, strides, low, high, output padding, groups)`.
    type Case<'a> = (&'a [usize], &'a [usize], &'a [usize], &'a [usize], &'a [usize], &'a [usize], usize);

    fn transposed((x, weights, strides, low, high, output_padding, groups): Case<'_>) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, x.to_vec());
        let w = graph.add_constant(numbers(weights, 3));
        let window = Window {
            kernel: weights[2..].to_vec(),
            strides: strides.to_vec(),
            dilations: vec![1; strides.len()],
            low: low.to_vec(),
            high: high.to_vec(),
        };
        let op = PrimOp::ConvTranspose {
            spec: ConvSpec { window, groups },
            output_padding: output_padding.to_vec(),
        };
        let y = graph.add(op, &[x, w]).unwrap();
        graph.add_output("y", y);
        graph
    }

    #[test]
    fn phases_are_convolutions() {
        let cases: [Case<'_>; 9] = [
            (&[2, 3, 5, 4], &[3, 4, 2, 2], &[2, 2], &[0, 0], &[0, 0], &[0, 0], 1),
            (&[1, 3, 5, 4], &[3, 2, 4, 4], &[2, 2], &[1, 1], &[1, 1], &[0, 0], 1),
            (&[1, 4, 5, 3], &[4, 3, 3, 3], &[2, 2], &[1, 1], &[1, 1], &[0, 0], 2),
            (&[1, 4, 5, 3], &[4, 1, 3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1], 4),
            (&[1, 2, 6], &[2, 3, 5], &[3], &[4], &[2], &[1], 1),
            (&[1, 2, 6], &[2, 3, 3], &[1], &[1], &[1], &[0], 1),
            (&[1, 2, 4, 6], &[2, 3, 2, 4], &[2, 4], &[1, 0], &[0, 2], &[0, 0], 1),
            (&[1, 2, 3, 3, 2], &[2, 2, 2, 3, 2], &[2, 1, 2], &[0, 1, 0], &[0, 1, 0], &[0, 0, 0], 1),
            (&[1, 2, 7], &[2, 2, 2], &[2], &[1], &[1], &[0], 1),
        ];
        for case in cases {
            let graph = transposed(case);
            let inputs = [numbers(graph.shape(graph.inputs[0].1), 0)];
            let results =
                |graph: &PrimGraph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].clone();
            let expected = results(&graph);
            let groups = case.6;
            for joined_flops in [0.0, f64::INFINITY] {
                let by_phases = phase_convolutions(&graph, joined_flops);
                let count = |is_it: fn(&PrimOp) -> bool| {
                    by_phases.nodes().iter().filter(|node| is_it(&node.op)).count()
                };
                assert_eq!(count(|op| matches!(op, PrimOp::ConvTranspose { .. })), 0, "{case:?}");
                let convolutions = count(|op| matches!(op, PrimOp::Conv(_)));
                assert!(joined_flops == 0.0 || groups > 1 || convolutions == 1, "{case:?}: {convolutions}");
                let given = results(&by_phases);
                assert_eq!(
                    (expected.shape(), expected.to_f64()),
                    (given.shape(), given.to_f64()),
                    "{case:?}"
                );
            }
        }
    }

    /// A phase without weights, and weights that are infinite.
    #[test]
    fn others_stay() {
        let sparse: Case<'_> = (&[1, 1, 3], &[1, 1, 2], &[3], &[0], &[0], &[0], 1);
        let graph = transposed(sparse);
        assert_eq!(orch_ir::text::print(&phase_convolutions(&graph, 0.0)), orch_ir::text::print(&graph));
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [1, 1, 3]);
        let w = graph.add_constant(Tensor::from_vec(Shape::from([1, 1, 2]), vec![1.0, f32::INFINITY]));
        let window =
            Window { kernel: vec![2], strides: vec![2], dilations: vec![1], low: vec![0], high: vec![0] };
        let op = PrimOp::ConvTranspose { spec: ConvSpec { window, groups: 1 }, output_padding: vec![0] };
        let y = graph.add(op, &[x, w]).unwrap();
        graph.add_output("y", y);
        assert_eq!(orch_ir::text::print(&phase_convolutions(&graph, 0.0)), orch_ir::text::print(&graph));
    }
}
