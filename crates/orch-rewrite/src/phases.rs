//! Transposed convolutions as convolutions, one for each phase of their strides.
//!
//! With stride `s`, results `y[s q + r]` of one phase `r` meet every `s`-th weight only, so that a sum over all weights is mostly of
//! zeros. In one dimension with `k0 = (r + low) mod s` and `c = (r + low) / s`, rounded down, and dilation 1 unless `s = 1`:
//!
//! ```text
//! y[s q + r]  =  sum over t of x[q + c - d t] w[k0 + s t]     a convolution of the reversed weights k0, k0 + s, ..
//! ```
//!
//! Phases with one window are one convolution to more maps; phases whose windows differ can be, with zeros among its weights. A phase
//! without weights, as three of four have of a kernel of 1 x 1 with stride 2, is zero. Results are interleaved. Weights that the graph
//! computes, as in gradients, are reversed by the graph. Stands after the rewriting.
//! Exact, but for the order in which floats are added up, and for computed weights that are not finite where zeros around the operand meet
//! them, so that results at the border, where the transposed convolution has no such term, are NaN too.

use crate::prepare::{computed, rebuilt, sliced};
use crate::weights::Weights;
use orch_ir::{ConvSpec, PrimGraph, PrimNode, PrimOp, Shape, Tensor, TensorId, Window};

/// Which transposed convolutions are convolutions.
#[derive(Clone, Copy, Debug)]
pub struct PhaseLimits {
    /// Phases whose windows differ are one convolution of at most so many FLOPs, with zeros where a phase has no weight; else each is one.
    pub joined_flops: f64,
    /// Whether zeros around the operand may meet weights that the graph computes, which may be infinite, though the primitive does not
    /// say so.
    pub has_computed: bool,
}

/// The graph with transposed convolutions as convolutions, but those by constants that are not finite, those with stride and dilation
/// in one dimension, and those that [`PhaseLimits::has_computed`] excludes.
pub fn phase_convolutions(graph: &PrimGraph, limits: PhaseLimits) -> PrimGraph {
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let Some(phases) = Phases::of(graph, node, limits) else { return false };
        let x = computed(known, node.inputs[0]);
        let weights = Weights::of_graph(graph, known, node.inputs[1]);
        known[node.outputs[0].index()] = Some(phases.emit(result, x, &weights));
        true
    })
}

/// What the results of a phase in one dimension are sums of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taps {
    /// The first weight; others follow at the stride.
    first: usize,
    /// 0 if the phase has none.
    count: usize,
    /// Elements of the operand from one weight to the next.
    dilation: usize,
    /// Zeros before and after the operand; fewer than none leave its first or last elements out.
    low: i64,
    high: i64,
}

impl Taps {
    /// How many weights meet elements before the one at the result's place, and how many meet that and later ones; fewer than none
    /// where the first that is met lies beyond it.
    fn reach(&self) -> [i64; 2] {
        [self.low, ((self.count - 1) * self.dilation + 1) as i64 - self.low]
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
    /// The window that all phases are given, with zeros where they have no weight.
    joined: Option<Vec<Taps>>,
}

impl Phases {
    fn of(graph: &PrimGraph, node: &PrimNode, limits: PhaseLimits) -> Option<Self> {
        let PrimOp::ConvTranspose { spec, may_pad, .. } = &node.op else { return None };
        let window = &spec.window;
        let mut dims = window.dilations.iter().zip(&window.strides);
        let is_finite = |weights: &Tensor| weights.to_f64().iter().all(|weight| weight.is_finite());
        let stored = graph.constant(node.inputs[1]);
        if !dims.all(|(&dilation, &stride)| dilation == 1 || stride == 1) || !stored.is_none_or(is_finite) {
            return None;
        }
        let may_pad = stored.is_some() || *may_pad || limits.has_computed;
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
        let mut phases =
            Self { groups: spec.groups, strides, from, to, each, maps: y[1], taps, joined: None };
        let mut with_weights = phases.taps.iter().filter(|taps| has_weights(taps));
        if !may_pad && with_weights.any(|taps| taps.iter().any(|taps| taps.low > 0 || taps.high > 0)) {
            return None;
        }
        if phases.groups > 1
            || !may_pad
            || phases.is_one_convolution()
            || !phases.taps.iter().all(|taps| has_weights(taps))
        {
            return Some(phases);
        }
        let window = phases.joined_window()?;
        let k: usize = window.iter().map(|taps| taps.count).product::<usize>() * x[1];
        let results = x[0] * phases.maps * phases.taps.len() * phases.each.iter().product::<usize>();
        if 2.0 * results as f64 * k as f64 <= limits.joined_flops {
            phases.joined = Some(window);
        }
        Some(phases)
    }

    /// Whether all phases read the same of the operand, all of its channels: groups keep their maps together.
    fn is_one_convolution(&self) -> bool {
        let window =
            |taps: &[Taps]| -> Vec<_> { taps.iter().map(|taps| (taps.count, taps.low, taps.high)).collect() };
        let is_one_window = self.taps.iter().all(|taps| window(taps) == window(&self.taps[0]));
        self.groups == 1 && (self.joined.is_some() || is_one_window && has_weights(&self.taps[0]))
    }

    /// A window that has those of all phases.
    fn joined_window(&self) -> Option<Vec<Taps>> {
        let window = |dim: usize| {
            let first = self.taps[0][dim];
            if self.strides[dim] == 1 {
                return Some(first);
            }
            let furthest = |side: usize| self.taps.iter().map(|taps| taps[dim].reach()[side]).max();
            let (low, ahead) = (furthest(0)?, furthest(1)?);
            let high = self.each[dim] as i64 - 1 + ahead - self.from[dim] as i64;
            Some(Taps { first: 0, count: usize::try_from(low + ahead).ok()?, low, high, ..first })
        };
        (0..self.strides.len()).map(window).collect()
    }

    /// The weights of a phase, with zeros where those of the window that all are given has more.
    fn weights_of(&self, graph: &mut PrimGraph, flipped: &Weights, taps: &[Taps]) -> Weights {
        let own = of_taps(graph, flipped, taps, &self.strides);
        let Some(window) = &self.joined else { return own };
        let (mut low, mut high) = (vec![0; 2], vec![0; 2]);
        for (own, all) in taps.iter().zip(window) {
            let [before, after] =
                [0, 1].map(|side| (all.reach()[side] - own.reach()[side]).unsigned_abs() as usize);
            low.push(before);
            high.push(after);
        }
        own.padded(graph, low, high)
    }

    fn emit(&self, graph: &mut PrimGraph, x: TensorId, weights: &Weights) -> TensorId {
        let expected = "phases have the extents they were given";
        let add = |graph: &mut PrimGraph, op: PrimOp, operands: &[TensorId]| {
            graph.add(op, operands).expect(expected)
        };
        let batch = graph.shape(x)[0];
        let phases = self.taps.len();
        let flipped = as_convolution(graph, weights, self.groups);
        let stacked = if self.is_one_convolution() {
            let weights: Vec<Weights> =
                self.taps.iter().map(|taps| self.weights_of(graph, &flipped, taps)).collect();
            let all = match &weights[..] {
                [only] => only.tensor(graph),
                _ => {
                    let parts: Vec<&Weights> = weights.iter().collect();
                    Weights::of(graph, PrimOp::Concat { axis: 0 }, &parts).tensor(graph)
                }
            };
            self.convolution(graph, (x, all), self.joined.as_ref().unwrap_or(&self.taps[0]))
        } else {
            let mut parts = Vec::new();
            for taps in &self.taps {
                parts.push(match has_weights(taps) {
                    true => {
                        let weights = self.weights_of(graph, &flipped, taps).tensor(graph);
                        self.convolution(graph, (x, weights), taps)
                    }
                    false => {
                        let zero = Tensor::zeros(graph.dtype(x), Shape::scalar());
                        let zero = graph.add_constant(zero);
                        let shape = [&[batch, self.maps], &self.each[..]].concat();
                        add(graph, PrimOp::Broadcast { shape: shape.into(), dims: Vec::new() }, &[zero])
                    }
                });
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
        sliced(graph, result, vec![0; sizes.len()], sizes)
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
        let operand = if sizes[..] == shape[..] { x } else { sliced(graph, x, starts, sizes) };
        let pads = |of: fn(&Taps) -> i64| taps.iter().map(|taps| of(taps).max(0) as usize).collect();
        let window = Window {
            kernel: taps.iter().map(|taps| taps.count).collect(),
            strides: vec![1; taps.len()],
            dilations: taps.iter().map(|taps| taps.dilation).collect(),
            low: pads(|taps| taps.low),
            high: pads(|taps| taps.high),
        };
        graph
            .add(PrimOp::Conv(ConvSpec { window, groups: self.groups }), &[operand, weights])
            .expect(expected)
    }
}

/// Whether a phase has weights in all dimensions.
fn has_weights(taps: &[Taps]) -> bool {
    taps.iter().all(|taps| taps.count > 0)
}

/// The weights that a phase meets in a dimension; `None` if there are some, and nothing of the operand is read.
fn taps_of(window: &Window, dim: usize, phase: usize, [from, each]: [usize; 2]) -> Option<Taps> {
    let (stride, kernel, dilation) = (window.strides[dim], window.kernel[dim], window.dilations[dim]);
    let shifted = phase + window.low[dim];
    let (first, ahead) = (shifted % stride, (shifted / stride) as i64);
    let count = kernel.saturating_sub(first).div_ceil(stride);
    if count == 0 {
        return Some(Taps { first, count, dilation, low: 0, high: 0 });
    }
    let low = ((count - 1) * dilation) as i64 - ahead;
    let high = each as i64 - 1 + ahead - (from as i64 - 1);
    let left_out = low.min(0) + high.min(0);
    (from as i64 + left_out > 0).then_some(Taps { first, count, dilation, low, high })
}

/// Weights `[c, m / groups, k..]` of a transposed convolution as those of a convolution, `[m, c / groups, k..]`.
fn as_convolution(graph: &mut PrimGraph, weights: &Weights, groups: usize) -> Weights {
    let shape = weights.shape(graph);
    let (channels, maps, kernel) = (shape[0], shape[1], &shape[2..]);
    if groups == 1 {
        let perm = [1, 0].into_iter().chain(2..shape.rank()).collect();
        return weights.then(graph, PrimOp::Transpose { perm });
    }
    let apart = [&[groups, channels / groups, maps], kernel].concat();
    let perm = [0, 2, 1].into_iter().chain(3..apart.len()).collect();
    let joined = [&[groups * maps, channels / groups], kernel].concat();
    let apart = weights.then(graph, PrimOp::Reshape { shape: apart.into() });
    let moved = apart.then(graph, PrimOp::Transpose { perm });
    moved.then(graph, PrimOp::Reshape { shape: joined.into() })
}

/// The weights of a phase, the last one first.
fn of_taps(graph: &mut PrimGraph, weights: &Weights, taps: &[Taps], strides: &[usize]) -> Weights {
    let shape = weights.shape(graph);
    if shape[2..].iter().all(|&extent| extent == 1) {
        return weights.clone();
    }
    let (mut starts, mut steps, mut sizes) = (vec![0; 2], vec![1; 2], shape[..2].to_vec());
    for (taps, &stride) in taps.iter().zip(strides) {
        starts.push((taps.first + stride * (taps.count - 1)) as i64);
        steps.push(-(stride as i64));
        sizes.push(taps.count);
    }
    weights.then(graph, PrimOp::Slice { starts, steps, sizes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::DType;

    const NONE_JOINED: PhaseLimits = PhaseLimits { joined_flops: 0.0, has_computed: false };

    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let elems: usize = shape.iter().product();
        Tensor::from_vec(shape.to_vec(), (0..elems).map(|at| ((at * 7 + seed) % 11) as f32 - 5.0).collect())
    }

    /// Extents of the operand and of the weights, `[c, m / groups, ..]`, and the rest by dimension.
    struct Case<'a> {
        x: &'a [usize],
        weights: &'a [usize],
        strides: &'a [usize],
        dilations: &'a [usize],
        pads: [&'a [usize]; 2],
        output_padding: &'a [usize],
        groups: usize,
        may_pad: bool,
    }

    fn transposed(case: &Case<'_>, are_weights_stored: bool) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, case.x.to_vec());
        let w = match are_weights_stored {
            true => graph.add_constant(numbers(case.weights, 3)),
            false => graph.add_input("w", DType::F32, case.weights.to_vec()),
        };
        let window = Window {
            kernel: case.weights[2..].to_vec(),
            strides: case.strides.to_vec(),
            dilations: case.dilations.to_vec(),
            low: case.pads[0].to_vec(),
            high: case.pads[1].to_vec(),
        };
        let op = PrimOp::ConvTranspose {
            spec: ConvSpec { window, groups: case.groups },
            output_padding: case.output_padding.to_vec(),
            may_pad: case.may_pad,
        };
        let y = graph.add(op, &[x, w]).unwrap();
        graph.add_output("y", y);
        graph
    }

    #[test]
    fn phases_are_convolutions() {
        let case = |x, weights, strides, pads, output_padding, groups| Case {
            x,
            weights,
            strides,
            dilations: &[1, 1, 1][..strides.len()],
            pads,
            output_padding,
            groups,
            may_pad: false,
        };
        let cases: [Case<'_>; 14] = [
            case(&[2, 3, 4, 3], &[3, 4, 1, 1], &[2, 2], [&[0, 0], &[0, 0]], &[1, 0], 1),
            case(&[2, 4, 5], &[4, 2, 2], &[3], [&[0], &[0]], &[0], 2),
            case(&[1, 2, 3, 4], &[2, 3, 3, 1], &[2, 3], [&[1, 0], &[1, 0]], &[1, 2], 1),
            case(&[2, 3, 5, 4], &[3, 4, 2, 2], &[2, 2], [&[0, 0], &[0, 0]], &[0, 0], 1),
            case(&[1, 3, 5, 4], &[3, 2, 4, 4], &[2, 2], [&[1, 1], &[1, 1]], &[0, 0], 1),
            case(&[1, 4, 5, 3], &[4, 3, 3, 3], &[2, 2], [&[1, 1], &[1, 1]], &[0, 0], 2),
            case(&[1, 4, 5, 3], &[4, 1, 3, 3], &[2, 2], [&[1, 1], &[1, 1]], &[1, 1], 4),
            case(&[1, 2, 6], &[2, 3, 5], &[3], [&[4], &[2]], &[1], 1),
            case(&[1, 2, 6], &[2, 3, 3], &[1], [&[1], &[1]], &[0], 1),
            case(&[1, 2, 4, 6], &[2, 3, 2, 4], &[2, 4], [&[1, 0], &[0, 2]], &[0, 0], 1),
            case(&[1, 2, 3, 3, 2], &[2, 2, 2, 3, 2], &[2, 1, 2], [&[0, 1, 0], &[0, 1, 0]], &[0, 0, 0], 1),
            case(&[1, 2, 7], &[2, 2, 2], &[2], [&[1], &[1]], &[0], 1),
            Case {
                dilations: &[2, 1],
                ..case(&[2, 3, 6, 4], &[3, 2, 3, 3], &[1, 2], [&[1, 1], &[3, 0]], &[0, 0], 1)
            },
            Case { dilations: &[3], ..case(&[1, 2, 9], &[2, 3, 3], &[1], [&[2], &[7]], &[0], 1) },
        ];
        for case in cases {
            for are_weights_stored in [true, false] {
                let graph = transposed(&case, are_weights_stored);
                let inputs: Vec<Tensor> = graph
                    .inputs
                    .iter()
                    .zip([0, 3])
                    .map(|(&(_, input), seed)| numbers(graph.shape(input), seed))
                    .collect();
                let results =
                    |graph: &PrimGraph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].clone();
                let expected = results(&graph);
                for joined_flops in [0.0, f64::INFINITY] {
                    let by_phases =
                        phase_convolutions(&graph, PhaseLimits { joined_flops, has_computed: true });
                    let text = orch_ir::text::print(&by_phases);
                    let count = |is_it: fn(&PrimOp) -> bool| {
                        by_phases.nodes().iter().filter(|node| is_it(&node.op)).count()
                    };
                    assert_eq!(count(|op| matches!(op, PrimOp::ConvTranspose { .. })), 0, "{text}");
                    let convolutions = count(|op| matches!(op, PrimOp::Conv(_)));
                    let has_weights =
                        case.strides.iter().zip(&case.weights[2..]).all(|(stride, kernel)| kernel >= stride);
                    let is_one = joined_flops > 0.0 && case.groups == 1 && has_weights;
                    assert!(!is_one || convolutions == 1, "{text}");
                    let given = results(&by_phases);
                    assert_eq!(
                        (expected.shape(), expected.to_f64()),
                        (given.shape(), given.to_f64()),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn computed_weights_that_meet_no_zeros_may_be_infinite() {
        let case = Case {
            x: &[1, 2, 4, 3],
            weights: &[2, 3, 1, 1],
            strides: &[2, 2],
            dilations: &[1, 1],
            pads: [&[0, 0], &[0, 0]],
            output_padding: &[1, 0],
            groups: 1,
            may_pad: false,
        };
        let graph = transposed(&case, false);
        let by_phases = phase_convolutions(&graph, NONE_JOINED);
        let weights = Tensor::from_vec([2, 3, 1, 1], vec![1.0, f32::INFINITY, 2.0, -1.0, 3.0, f32::INFINITY]);
        let positive = Tensor::from_vec([1, 2, 4, 3], (1..=24).map(|x| x as f32).collect::<Vec<_>>());
        let result = |graph: &PrimGraph| {
            evaluate(graph, &[positive.clone(), weights.clone()], &EvalOptions::default()).unwrap()[0]
                .to_f64()
        };
        assert!(by_phases.nodes().iter().all(|node| !matches!(node.op, PrimOp::ConvTranspose { .. })));
        assert_eq!(result(&graph), result(&by_phases));
    }

    /// A stride with a dilation, weights that are infinite, and those that may be and meet zeros.
    #[test]
    fn others_stay() {
        for (stride, dilation, are_weights_stored) in [(2, 2, true), (1, 1, false)] {
            let case = Case {
                x: &[1, 1, 3],
                weights: &[1, 1, 2],
                strides: &[stride],
                dilations: &[dilation],
                pads: [&[0], &[0]],
                output_padding: &[0],
                groups: 1,
                may_pad: false,
            };
            let graph = transposed(&case, are_weights_stored);
            assert_eq!(
                orch_ir::text::print(&phase_convolutions(&graph, NONE_JOINED)),
                orch_ir::text::print(&graph)
            );
            if dilation == 1 {
                let graph = transposed(&Case { may_pad: true, ..case }, are_weights_stored);
                let by_phases = phase_convolutions(&graph, NONE_JOINED);
                let is_transposed = |op: &PrimOp| matches!(op, PrimOp::ConvTranspose { .. });
                assert!(!by_phases.nodes().iter().any(|node| is_transposed(&node.op)));
            }
        }
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [1, 1, 3]);
        let w = graph.add_constant(Tensor::from_vec(Shape::from([1, 1, 2]), vec![1.0, f32::INFINITY]));
        let window =
            Window { kernel: vec![2], strides: vec![2], dilations: vec![1], low: vec![0], high: vec![0] };
        let spec = ConvSpec { window, groups: 1 };
        let op = PrimOp::ConvTranspose { spec, output_padding: vec![0], may_pad: true };
        let y = graph.add(op, &[x, w]).unwrap();
        graph.add_output("y", y);
        assert_eq!(
            orch_ir::text::print(&phase_convolutions(&graph, NONE_JOINED)),
            orch_ir::text::print(&graph)
        );
    }
}
