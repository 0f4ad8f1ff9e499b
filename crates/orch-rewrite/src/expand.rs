//! Sorting and scattering as comparisons of all pairs, and cumulative sums as masked sums ([`cumulative`]), which kernels do in
//! parallel.
//!
//! ```text
//! top_k:    rank[i]  =  how many x[j] come before x[i]
//!           index[r] =  the i with rank[i] = r                 values[r] = x[index[r]]
//!
//! scatter:  last[p]  =  the last update u with index[u] = p, or -1
//!           y[p]     =  last[p] >= 0 ? updates[last[p]] : x[p]
//! with a sum, or another combination:
//!           y[p]     =  x[p] + sum over updates u with index[u] = p of updates[u]
//! ```
//!
//! Work grows with the square of what is sorted, so that long ones stay, for kernels of their own or for the host; how long is for the
//! target to say. Where it says so, long lines are sorted in parts, which are merged. Stands after the rewriting. Exact, but for the order in which floats are added up.

mod cumulative;

use crate::prepare::{computed, rebuilt};
use orch_ir::{
    BinaryFn, CompareFn, DType, OpaqueKind, OpaqueOp, PadMode, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape,
    Tensor, TensorId,
};

/// Up to which size routines become primitives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpandLimits {
    /// Elements along the axis of a `top_k`.
    pub sorted: usize,
    /// Pairs of a position and an update that a scatter compares, and of elements that it adds up.
    pub scattered: usize,
    /// The same for each element of the result.
    pub pairs_of_element: usize,
    /// Elements from which on their number counts: for fewer ones, as many pairs are compared as for these, in less time than starting
    /// a kernel takes.
    pub few_elements: usize,
    /// Elements along the axis of cumulative sums and products.
    pub cumulated: usize,
    /// How longer selections are split; `None` where a kernel serves any length.
    pub split: Option<SplitLimits>,
}

/// How the selection of a long line is split: into the best of parts, which are sorted runs, of which the best are selected by
/// merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitLimits {
    /// Elements of a part; lines of more than two are split.
    pub part: usize,
    /// Comparisons that merging takes as long for as a further kernel takes to start.
    pub kernel_comparisons: usize,
}

/// Runs that are merged at once, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Merging {
    fan_in: usize,
    passes: u32,
}

impl SplitLimits {
    /// The merging that takes least time for lines of so many runs of a length. An element is searched for in each other run of its
    /// group.
    fn merging(&self, lines: usize, runs: usize, length: usize) -> Merging {
        /// More passes than any line needs.
        const MOST_PASSES: u32 = 8;
        let of = |passes: u32| {
            let fan_in = (2..).find(|fan_in: &usize| fan_in.saturating_pow(passes) >= runs).unwrap_or(runs);
            let searches = [lines, runs, length, fan_in, length.ilog2() as usize + 1];
            let comparisons = searches.into_iter().fold(1usize, usize::saturating_mul);
            let cost = comparisons.saturating_add(self.kernel_comparisons).saturating_mul(passes as usize);
            (cost, Merging { fan_in, passes })
        };
        let best = (1..=MOST_PASSES).map(of).min_by_key(|(cost, _)| *cost);
        best.expect("there are numbers of passes").1
    }
}

/// An element that is better than none, where NaN counts as larger than any number.
fn worst(dtype: DType, largest: bool) -> Tensor {
    let value = match (dtype.is_float(), largest) {
        (true, true) => f64::NEG_INFINITY,
        (true, false) => f64::NAN,
        (false, true) if dtype == DType::Bool => 0.0,
        // The type's limits, to which integers saturate.
        (false, true) => f64::MIN,
        (false, false) => f64::MAX,
    };
    Tensor::from_f64(dtype, Shape::scalar(), &[value])
}

/// The graph with `top_k`, cumulative sums and scattering within these limits as primitives.
pub fn expand_routines(graph: &PrimGraph, limits: ExpandLimits) -> PrimGraph {
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let inputs: Vec<TensorId> = node.inputs.iter().map(|&input| computed(known, input)).collect();
        let mut emit = Emit { graph: result };
        let outputs = match &node.op {
            PrimOp::Opaque(opaque) => match opaque.kind {
                OpaqueKind::TopK { axis, k, largest, .. } => {
                    let selection = (axis, k, largest);
                    emit.top_k(inputs[0], selection, limits)
                        .or_else(|| emit.split_top_k(inputs[0], selection, limits.split?))
                }
                OpaqueKind::Cumulative(spec) => emit.cumulative(inputs[0], spec, limits),
                _ => None,
            },
            PrimOp::ScatterNd { combine } => emit.scatter_nd(&inputs, *combine, limits),
            PrimOp::ScatterAlong { axis, combine } => emit.scatter_along(&inputs, *axis, *combine, limits),
            _ => None,
        };
        let Some(outputs) = outputs else { return false };
        for (old, new) in node.outputs.iter().zip(outputs) {
            known[old.index()] = Some(new);
        }
        true
    })
}

/// Adds primitives to a graph.
struct Emit<'a> {
    graph: &'a mut PrimGraph,
}

/// The value that combining with changes nothing; `None` for reductions that no mask stands for: of arg-reductions, and of integers to
/// their largest or least, whose types have no infinity.
fn identity(op: ReduceOp, dtype: DType) -> Option<f64> {
    match op {
        ReduceOp::Sum => Some(0.0),
        ReduceOp::Prod => Some(1.0),
        ReduceOp::Max if dtype.is_float() => Some(f64::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => Some(f64::INFINITY),
        _ => None,
    }
}

impl Emit<'_> {
    fn add(&mut self, op: PrimOp, operands: &[TensorId]) -> TensorId {
        self.graph.add(op, operands).expect("operands are made for the primitive")
    }

    fn map(&mut self, function: ScalarFn, operands: &[TensorId]) -> TensorId {
        self.add(PrimOp::Map(function), operands)
    }

    fn binary(&mut self, function: BinaryFn, lhs: TensorId, rhs: TensorId) -> TensorId {
        self.map(ScalarFn::Binary(function), &[lhs, rhs])
    }

    fn compare(&mut self, function: CompareFn, lhs: TensorId, rhs: TensorId) -> TensorId {
        self.map(ScalarFn::Compare(function), &[lhs, rhs])
    }

    fn cast(&mut self, to: DType, x: TensorId) -> TensorId {
        self.map(ScalarFn::Cast(to), &[x])
    }

    fn shape(&self, tensor: TensorId) -> Shape {
        self.graph.shape(tensor).clone()
    }

    fn iota(&mut self, shape: &Shape, axis: usize) -> TensorId {
        self.add(PrimOp::Iota { dtype: DType::I32, shape: shape.clone(), axis }, &[])
    }

    fn full(&mut self, dtype: DType, value: f64, shape: &Shape) -> TensorId {
        let scalar = self.graph.add_constant(Tensor::from_f64(dtype, Shape::scalar(), &[value]));
        self.add(PrimOp::Broadcast { shape: shape.clone(), dims: Vec::new() }, &[scalar])
    }

    fn reshape(&mut self, x: TensorId, dims: Vec<usize>) -> TensorId {
        if self.shape(x)[..] == dims[..] {
            return x;
        }
        self.add(PrimOp::Reshape { shape: dims.into() }, &[x])
    }

    fn reduce(&mut self, op: ReduceOp, x: TensorId, axis: usize) -> TensorId {
        self.add(PrimOp::Reduce { op, axes: vec![axis] }, &[x])
    }

    /// `x` repeated along a new dimension at `axis`.
    fn repeated(&mut self, x: TensorId, axis: usize, extent: usize) -> TensorId {
        let mut dims = self.shape(x).to_vec();
        dims.insert(axis, extent);
        let kept = (0..dims.len()).filter(|&dim| dim != axis).collect();
        self.add(PrimOp::Broadcast { shape: dims.into(), dims: kept }, &[x])
    }

    /// Values and positions of the `k` best along `axis`, best first.
    fn top_k(
        &mut self,
        x: TensorId,
        (axis, k, largest): (usize, usize, bool),
        limits: ExpandLimits,
    ) -> Option<Vec<TensorId>> {
        let shape = self.shape(x);
        let extent = shape[axis];
        if extent > limits.sorted || k == 0 || shape.elems() == 0 || self.graph.dtype(x) == DType::Bool {
            return None;
        }
        // [.., i, j, ..]
        let (of_i, of_j) = (self.repeated(x, axis + 1, extent), self.repeated(x, axis, extent));
        let square = self.shape(of_i);
        let better = if largest { CompareFn::Gt } else { CompareFn::Lt };
        let mut is_before = self.compare(better, of_j, of_i);
        let mut is_equal = self.compare(CompareFn::Eq, of_j, of_i);
        if self.graph.dtype(x).is_float() {
            // NaN counts as larger than any number.
            let [i_is_nan, j_is_nan] = [of_i, of_j].map(|x| self.map(ScalarFn::IsNan, &[x]));
            let both = self.binary(BinaryFn::And, i_is_nan, j_is_nan);
            is_equal = self.binary(BinaryFn::Or, is_equal, both);
            let one = self.binary(BinaryFn::Xor, i_is_nan, j_is_nan);
            let first = self.binary(BinaryFn::And, one, if largest { j_is_nan } else { i_is_nan });
            is_before = self.binary(BinaryFn::Or, is_before, first);
        }
        let (i, j) = (self.iota(&square, axis), self.iota(&square, axis + 1));
        let is_lower = self.compare(CompareFn::Lt, j, i);
        let is_tie = self.binary(BinaryFn::And, is_equal, is_lower);
        let is_before = self.binary(BinaryFn::Or, is_before, is_tie);
        let counted = self.cast(DType::I32, is_before);
        let rank = self.reduce(ReduceOp::Sum, counted, axis + 1);
        // [.., r, i, ..]
        let rank = self.repeated(rank, axis, k);
        let ranked = self.shape(rank);
        let (r, i) = (self.iota(&ranked, axis), self.iota(&ranked, axis + 1));
        let is_it = self.compare(CompareFn::Eq, rank, r);
        let zero = self.full(DType::I32, 0.0, &ranked);
        let found = self.map(ScalarFn::Select, &[is_it, i, zero]);
        let index = self.reduce(ReduceOp::Sum, found, axis + 1);
        let values = self.add(PrimOp::TakeAlong { axis }, &[x, index]);
        Some(vec![values, self.cast(DType::I64, index)])
    }

    /// The `k` best of the `k` best of parts, which are padded with elements that are worse than all others. Parts lie in order, so
    /// that ties go to the lower position. `None` where the line is short enough.
    fn split_top_k(
        &mut self,
        x: TensorId,
        (axis, k, largest): (usize, usize, bool),
        limits: SplitLimits,
    ) -> Option<Vec<TensorId>> {
        let (dtype, shape) = (self.graph.dtype(x), self.shape(x));
        let (extent, part) = (shape[axis], limits.part);
        if extent <= part.saturating_mul(2) || k == 0 || shape.elems() == 0 {
            return None;
        }
        let length = k.min(part);
        let Merging { fan_in, passes } =
            limits.merging(shape.elems() / extent, extent.div_ceil(part), length);
        // As many parts as every pass merges groups of.
        let last = fan_in.pow(passes - 1);
        let mut runs = extent.div_ceil(part).div_ceil(last) * last;
        let mut dims = shape.to_vec();
        let (low, mut high) = (vec![0; dims.len()], vec![0; dims.len()]);
        high[axis] = runs * part - extent;
        let worst = self.graph.add_constant(worst(dtype, largest));
        let pad = PrimOp::Pad { mode: PadMode::Constant, low, high };
        let padded = if runs * part > extent { self.add(pad, &[x, worst]) } else { x };
        dims[axis] = runs;
        dims.insert(axis + 1, part);
        let apart = self.reshape(padded, dims.clone());
        let [mut values, places] = self.selection(apart, (axis + 1, length, largest));
        dims[axis + 1] = length;
        let number = self.add(PrimOp::Iota { dtype: DType::I64, shape: dims.clone().into(), axis }, &[]);
        let elems = self.full(DType::I64, part as f64, &Shape::from(dims.clone()));
        let first = self.binary(BinaryFn::Mul, number, elems);
        let mut places = self.binary(BinaryFn::Add, first, places);
        while runs > 1 {
            let merged = fan_in.min(runs);
            let line = dims[axis + 1] * merged;
            runs /= merged;
            dims[axis + 1] = line;
            // The last pass has the shape of the result, which is stored as it is.
            let along = if runs > 1 {
                dims[axis] = runs;
                axis + 1
            } else {
                dims.remove(axis);
                axis
            };
            let (lines, from) = (self.reshape(values, dims.clone()), self.reshape(places, dims.clone()));
            let [best, at] = self.selection(lines, (along, k.min(line), largest));
            dims[along] = k.min(line);
            (values, places) = (best, self.add(PrimOp::TakeAlong { axis: along }, &[from, at]));
        }
        Some(vec![values, places])
    }

    /// A selection that stays one: values and positions.
    fn selection(&mut self, x: TensorId, (axis, k, largest): (usize, usize, bool)) -> [TensorId; 2] {
        let mut dims = self.shape(x).to_vec();
        dims[axis] = k;
        let dims = Shape::from(dims);
        let kind = OpaqueKind::TopK { axis, k, largest, sorted: true };
        let results = vec![(self.graph.dtype(x), dims.clone()), (DType::I64, dims)];
        let op = PrimOp::Opaque(Box::new(OpaqueOp { kind, results }));
        let outputs = self.graph.add_node(op, vec![x]).expect("there are as many elements");
        [outputs[0], outputs[1]]
    }

    /// `[data, indices [.., depth], updates]`.
    fn scatter_nd(
        &mut self,
        operands: &[TensorId],
        combine: Option<ReduceOp>,
        limits: ExpandLimits,
    ) -> Option<Vec<TensorId>> {
        let [data, indices, updates] = operands[..] else { return None };
        let (shape, index_shape) = (self.shape(data), self.shape(indices));
        let depth = *index_shape.last()?;
        let count: usize = index_shape[..index_shape.rank() - 1].iter().product();
        let extents = shape[..depth].to_vec();
        let rest = shape[depth..].to_vec();
        if depth == 0
            || !self.is_allowed([extents.iter().product(), count, rest.iter().product()], combine, limits)
        {
            return None;
        }
        let tuples = self.reshape(indices, vec![count, depth]);
        let mut position = None;
        for (dim, &extent) in extents.iter().enumerate() {
            let slice =
                PrimOp::Slice { starts: vec![0, dim as i64], steps: vec![1, 1], sizes: vec![count, 1] };
            let along = if depth == 1 { tuples } else { self.add(slice, &[tuples]) };
            let along = self.reshape(along, vec![count]);
            let along = self.limited(along, extent);
            position = Some(match position {
                None => along,
                Some(before) => {
                    let scale = self.full(DType::I32, extent as f64, &Shape::from([count]));
                    let scaled = self.binary(BinaryFn::Mul, before, scale);
                    self.binary(BinaryFn::Add, scaled, along)
                }
            });
        }
        let rows = extents.iter().product();
        let old = self.reshape(data, [&[rows], &rest[..]].concat());
        let new = self.reshape(updates, [&[count], &rest[..]].concat());
        let placed = self.scattered(old, position?, new, combine)?;
        Some(vec![self.reshape(placed, shape.to_vec())])
    }

    /// `[data, indices, updates]`, where the positions of all updates differ in nothing but the axis.
    fn scatter_along(
        &mut self,
        operands: &[TensorId],
        axis: usize,
        combine: Option<ReduceOp>,
        limits: ExpandLimits,
    ) -> Option<Vec<TensorId>> {
        let [data, indices, updates] = operands[..] else { return None };
        let (shape, written) = (self.shape(data), self.shape(indices));
        let (extent, count) = (shape[axis], written[axis]);
        let is_line = |dim: usize| dim == axis || written[dim] == shape[dim];
        let lines = shape.elems() / extent.max(1);
        if !(0..shape.rank()).all(is_line)
            || !self.is_allowed([extent, count, lines], Some(ReduceOp::Sum), limits)
        {
            return None;
        }
        // [.., position, update, ..]
        let index = self.limited(indices, extent);
        let index = self.repeated(index, axis, extent);
        let pairs = self.shape(index);
        let position = self.iota(&pairs, axis);
        let is_here = self.compare(CompareFn::Eq, index, position);
        let placed = match combine {
            None => {
                let last = self.last(is_here, axis + 1);
                let [is_written, update] = self.found(last);
                let new = self.add(PrimOp::TakeAlong { axis }, &[updates, update]);
                self.map(ScalarFn::Select, &[is_written, new, data])
            }
            Some(op) => {
                let new = self.repeated(updates, axis, extent);
                self.added(data, (is_here, new), axis + 1, op)?
            }
        };
        Some(vec![placed])
    }

    /// True if so many comparisons, or elements to add up, are within the limits.
    fn is_allowed(
        &self,
        [rows, count, rest]: [usize; 3],
        combine: Option<ReduceOp>,
        limits: ExpandLimits,
    ) -> bool {
        let each = if combine.is_some() { rest } else { 1 };
        let work = rows.checked_mul(count).and_then(|pairs| pairs.checked_mul(each));
        let few = limits.pairs_of_element.saturating_mul(rows.saturating_mul(rest).max(limits.few_elements));
        rows > 0 && count > 0 && rest > 0 && work.is_some_and(|work| work <= limits.scattered.min(few))
    }

    /// Indices limited to an extent, as the primitives limit them.
    fn limited(&mut self, indices: TensorId, extent: usize) -> TensorId {
        let shape = self.shape(indices);
        let wide =
            if self.graph.dtype(indices) == DType::I64 { indices } else { self.cast(DType::I64, indices) };
        let (zero, last) =
            (self.full(DType::I64, 0.0, &shape), self.full(DType::I64, extent as f64 - 1.0, &shape));
        let above = self.binary(BinaryFn::Max, wide, zero);
        let limited = self.binary(BinaryFn::Min, above, last);
        self.cast(DType::I32, limited)
    }

    /// The last update of each position, or -1, of what says which updates are of a position.
    fn last(&mut self, is_here: TensorId, axis: usize) -> TensorId {
        let pairs = self.shape(is_here);
        let number = self.iota(&pairs, axis);
        let none = self.full(DType::I32, -1.0, &pairs);
        let found = self.map(ScalarFn::Select, &[is_here, number, none]);
        self.reduce(ReduceOp::Max, found, axis)
    }

    /// Whether a position has an update, and its number, or 0.
    fn found(&mut self, last: TensorId) -> [TensorId; 2] {
        let shape = self.shape(last);
        let zero = self.full(DType::I32, 0.0, &shape);
        [self.compare(CompareFn::Ge, last, zero), self.binary(BinaryFn::Max, last, zero)]
    }

    /// `[row, rest..]` with updates `[update, rest..]` at positions `[update]`.
    fn scattered(
        &mut self,
        old: TensorId,
        position: TensorId,
        new: TensorId,
        combine: Option<ReduceOp>,
    ) -> Option<TensorId> {
        let (shape, count) = (self.shape(old), self.shape(new)[0]);
        let pairs = Shape::from([shape[0], count]);
        let row = self.iota(&pairs, 0);
        let position = self.repeated(position, 0, shape[0]);
        let is_here = self.compare(CompareFn::Eq, position, row);
        match combine {
            None if count == 1 => {
                let is_here = self.reshape(is_here, vec![shape[0]]);
                let is_here = self.add(PrimOp::Broadcast { shape: shape.clone(), dims: vec![0] }, &[is_here]);
                let new = self.reshape(new, shape[1..].to_vec());
                let dims = (1..shape.rank()).collect();
                let new = self.add(PrimOp::Broadcast { shape, dims }, &[new]);
                Some(self.map(ScalarFn::Select, &[is_here, new, old]))
            }
            None => {
                let last = self.last(is_here, 1);
                let [is_written, update] = self.found(last);
                let new = self.add(PrimOp::Take { axis: 0 }, &[new, update]);
                let is_written = self.add(PrimOp::Broadcast { shape, dims: vec![0] }, &[is_written]);
                Some(self.map(ScalarFn::Select, &[is_written, new, old]))
            }
            Some(op) => {
                let mut dims = shape.to_vec();
                dims.insert(1, count);
                let is_here =
                    self.add(PrimOp::Broadcast { shape: dims.into(), dims: vec![0, 1] }, &[is_here]);
                let new = self.repeated(new, 0, shape[0]);
                self.added(old, (is_here, new), 1, op)
            }
        }
    }

    /// `old` combined with those of `new` along `axis` that are here.
    fn added(
        &mut self,
        old: TensorId,
        (is_here, new): (TensorId, TensorId),
        axis: usize,
        op: ReduceOp,
    ) -> Option<TensorId> {
        let dtype = self.graph.dtype(old);
        let (function, identity) = (op.combining()?, identity(op, dtype)?);
        // Each update is rounded by itself in narrow types, so that they differ from a sum in f32.
        if dtype == DType::Bool || matches!(dtype, DType::F16 | DType::BF16) {
            return None;
        }
        let pairs = self.shape(new);
        let nothing = self.full(dtype, identity, &pairs);
        let chosen = self.map(ScalarFn::Select, &[is_here, new, nothing]);
        let combined = self.reduce(op, chosen, axis);
        Some(self.binary(function, old, combined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};

    pub(super) const LIMITS: ExpandLimits = ExpandLimits {
        sorted: 16,
        scattered: 1 << 12,
        pairs_of_element: usize::MAX,
        few_elements: 1,
        cumulated: usize::MAX,
        split: None,
    };

    /// A graph and its expansion give the same for these inputs.
    pub(super) fn is_the_same(graph: &PrimGraph, inputs: &[Tensor]) {
        let expanded = expand_routines(graph, LIMITS);
        let is_routine = |op: &PrimOp| {
            matches!(op, PrimOp::Opaque(_) | PrimOp::ScatterNd { .. } | PrimOp::ScatterAlong { .. })
        };
        assert!(expanded.nodes().iter().all(|node| !is_routine(&node.op)));
        let results = |graph| evaluate(graph, inputs, &EvalOptions::default()).unwrap();
        for (expected, given) in results(graph).iter().zip(results(&expanded)) {
            assert_eq!(expected.shape(), given.shape());
            let bits =
                |tensor: &Tensor| tensor.to_f64().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(expected), bits(&given));
        }
    }

    fn top_k(dtype: DType, shape: &[usize], axis: usize, k: usize, largest: bool) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", dtype, shape.to_vec());
        let mut dims = shape.to_vec();
        dims[axis] = k;
        let dims = Shape::from(dims);
        let kind = OpaqueKind::TopK { axis, k, largest, sorted: true };
        let results = vec![(dtype, dims.clone()), (DType::I64, dims)];
        let outputs = graph.add_node(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), vec![x]).unwrap();
        outputs.into_iter().for_each(|output| graph.add_output("y", output));
        graph
    }

    #[test]
    fn the_best_are_found_by_their_ranks() {
        let special =
            vec![0.5, f32::NAN, -0.0, 0.0, f32::INFINITY, 2.0, f32::NAN, -3.0, 2.0, f32::NEG_INFINITY];
        let special = Tensor::from_vec([2, 5, 1], special);
        let repeated = Tensor::from_vec([3, 2, 4], (0..24).map(|at| i64::from((at * 7) % 5)).collect());
        for largest in [false, true] {
            for k in [1, 3, 5] {
                is_the_same(&top_k(DType::F32, &[2, 5, 1], 1, k, largest), std::slice::from_ref(&special));
            }
            is_the_same(&top_k(DType::I64, &[3, 2, 4], 2, 4, largest), std::slice::from_ref(&repeated));
            is_the_same(&top_k(DType::I64, &[3, 2, 4], 0, 2, largest), std::slice::from_ref(&repeated));
        }
    }

    /// Parts of 8 elements, the last one padded, of which one, some or all are selected.
    #[test]
    fn the_best_of_parts_are_selected_again() {
        let split = Some(SplitLimits { part: 8, kernel_comparisons: 1 });
        let limits = ExpandLimits { sorted: 0, split, ..LIMITS };
        for dtype in [DType::F32, DType::F16, DType::I64, DType::U8, DType::I32] {
            for largest in [false, true] {
                for (shape, axis, k) in [
                    (vec![2, 45], 1, 1),
                    (vec![170, 2], 0, 1),
                    (vec![3, 45], 1, 2),
                    (vec![2, 45], 1, 45),
                    (vec![170, 2], 0, 101),
                ] {
                    let graph = top_k(dtype, &shape, axis, k, largest);
                    let elems: usize = shape.iter().product();
                    let mut values: Vec<f64> = (0..elems).map(|at| ((at * 7) % 13) as f64).collect();
                    if dtype.is_float() {
                        (values[3], values[40]) = (f64::NAN, f64::NEG_INFINITY);
                    }
                    let inputs = [Tensor::from_f64(dtype, shape.clone(), &values)];
                    let expanded = expand_routines(&graph, limits);
                    let selections =
                        expanded.nodes().iter().filter(|node| matches!(node.op, PrimOp::Opaque(_)));
                    let passes = if shape[axis] == 45 { 2..=4 } else { 3..=6 };
                    assert!(passes.contains(&selections.count()));
                    let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
                    for (expected, given) in results(&graph).iter().zip(results(&expanded)) {
                        let bits = |tensor: &Tensor| {
                            tensor.to_f64().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                        };
                        assert_eq!(bits(expected), bits(&given), "{dtype} {shape:?} {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_axes_stay_selections() {
        let graph = top_k(DType::F32, &[17], 0, 2, true);
        assert_eq!(orch_ir::text::print(&expand_routines(&graph, LIMITS)), orch_ir::text::print(&graph));
    }

    #[test]
    fn updates_are_found_by_their_positions() {
        let numbers = |shape: &[usize], from: f32| {
            Tensor::from_vec(shape, (0..shape.iter().product::<usize>()).map(|at| from + at as f32).collect())
        };
        let all = [None, Some(ReduceOp::Sum), Some(ReduceOp::Prod), Some(ReduceOp::Max), Some(ReduceOp::Min)];
        for combine in all {
            // Some positions twice, one out of range.
            for (data, indices, updates) in [
                (vec![5, 2], Tensor::from_vec([3, 1], vec![4i64, 1, 4]), vec![3, 2]),
                (vec![3, 4], Tensor::from_vec([2, 2, 2], vec![0i64, 1, 2, 3, 0, 1, 2, 9]), vec![2, 2]),
                (vec![4], Tensor::from_vec([2, 1], vec![3i64, -2]), vec![2]),
            ] {
                let mut graph = PrimGraph::new("g");
                let x = graph.add_input("x", DType::F32, data.clone());
                let index = graph.add_input("i", DType::I64, indices.shape().clone());
                let update = graph.add_input("u", DType::F32, updates.clone());
                let y = graph.add(PrimOp::ScatterNd { combine }, &[x, index, update]).unwrap();
                graph.add_output("y", y);
                is_the_same(&graph, &[numbers(&data, 1.0), indices, numbers(&updates, 100.0)]);
            }
            let indices = Tensor::from_vec([2, 3, 1], vec![1i32, 0, 1, 1, 1, 0]);
            let mut graph = PrimGraph::new("g");
            let x = graph.add_input("x", DType::F32, [2, 4, 1]);
            let index = graph.add_input("i", DType::I32, [2, 3, 1]);
            let update = graph.add_input("u", DType::F32, [2, 3, 1]);
            let y = graph.add(PrimOp::ScatterAlong { axis: 1, combine }, &[x, index, update]).unwrap();
            graph.add_output("y", y);
            is_the_same(&graph, &[numbers(&[2, 4, 1], 1.0), indices, numbers(&[2, 3, 1], 100.0)]);
        }
    }
}
