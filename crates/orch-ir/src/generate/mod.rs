//! Random valid graphs for differential tests: the same graph is interpreted, compiled and run, and results compared.
//!
//! Graphs are *well conditioned*, so that a difference beyond rounding is a bug. For each tensor the generator knows an
//! interval that holds its values when inputs are those of [`random_inputs`] (floats in -1..1), and whether it is *exact*:
//! free of rounding in any precision. Functions get operands inside their domain (squashed into it if need be), results
//! stay below [`MAX_MAGNITUDE`], and functions that jump (comparisons, rounding, arg-reductions, casts to integers) get
//! exact operands only.
//!
//! One file per class of primitives; each function draws operands, makes one node and says whether it could.

mod elementwise;
mod index;
mod layout;
mod linear;
mod opaque;
mod recurrence;
mod reduce;
mod rng;

pub use rng::Rng;

use crate::infer::infer;
use crate::{DType, PrimGraph, PrimOp, Shape, Tensor, TensorId};

/// Values of generated tensors stay below this.
pub const MAX_MAGNITUDE: f64 = 1e4;

/// What graphs to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Calls of operation generators; some add several nodes, some none.
    pub steps: usize,
    /// The largest number of elements of a tensor.
    pub max_elems: usize,
    /// The largest number of dimensions of a graph input.
    pub max_rank: usize,
    /// Types of graph inputs, and of all floating tensors: floats.
    pub dtypes: Vec<DType>,
    /// True to include opaque operations.
    pub opaque: bool,
    /// True to include dimensions of extent 0.
    pub empty: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { steps: 12, max_elems: 4096, max_rank: 4, dtypes: vec![DType::F32], opaque: true, empty: true }
    }
}

/// A valid graph that depends on the seed and options alone. Tensors that no node reads are its outputs.
pub fn generate(seed: u64, options: &GenerateOptions) -> PrimGraph {
    let mut generator = Generator {
        rng: Rng::new(seed),
        graph: PrimGraph::new(format!("random {seed}")),
        facts: Vec::new(),
        options,
    };
    let rank = 1 + generator.rng.below(options.max_rank.max(1));
    let shape = generator.shape(rank);
    generator.input(&shape);
    for _ in 0..options.steps {
        generator.step();
    }
    let consumers = generator.graph.consumers();
    let results = generator.graph.nodes().iter().flat_map(|node| node.outputs.clone());
    let unread: Vec<TensorId> = results.filter(|id| consumers[id.index()].is_empty()).collect();
    for (index, id) in unread.into_iter().enumerate() {
        generator.graph.add_output(format!("y{index}"), id);
    }
    generator.graph
}

/// Inputs for a graph: floats in -1..1, integers in -8..8, booleans.
pub fn random_inputs(graph: &PrimGraph, seed: u64) -> Vec<Tensor> {
    let mut rng = Rng::new(seed);
    let types = graph.inputs.iter().map(|(_, id)| (graph.dtype(*id), graph.shape(*id).clone()));
    types.map(|(dtype, shape)| random_tensor(&mut rng, dtype, &shape)).collect()
}

fn random_tensor(rng: &mut Rng, dtype: DType, shape: &Shape) -> Tensor {
    if dtype.is_float() {
        let values: Vec<f64> = (0..shape.elems()).map(|_| rng.uniform(-1.0, 1.0)).collect();
        return Tensor::from_f64(dtype, shape.clone(), &values);
    }
    let low = if dtype.is_signed_int() { -8 } else { 0 };
    let high = if dtype == DType::Bool { 1 } else { 8 };
    let values: Vec<i64> = (0..shape.elems()).map(|_| rng.between(low, high)).collect();
    Tensor::from_i64(dtype, shape.clone(), &values)
}

/// What is known of a tensor's values.
#[derive(Clone, Copy, PartialEq, Debug)]
struct TensorFacts {
    /// No value is below; infinite where unknown.
    low: f64,
    /// No value is above.
    high: f64,
    /// True if values are the same in any precision.
    exact: bool,
}

impl TensorFacts {
    fn exact(low: f64, high: f64) -> Self {
        Self { low, high, exact: true }
    }

    fn rounded(low: f64, high: f64) -> Self {
        Self { low, high, exact: false }
    }

    fn magnitude(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    fn is_within(self, low: f64, high: f64) -> bool {
        low <= self.low && self.high <= high
    }

    /// The facts of what may be either.
    fn union(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            exact: self.exact && other.exact,
        }
    }
}

/// A graph under construction.
struct Generator<'a> {
    rng: Rng,
    graph: PrimGraph,
    /// By tensor.
    facts: Vec<TensorFacts>,
    options: &'a GenerateOptions,
}

/// Adds nodes; `None` if no operand suits.
type GraphStep = fn(&mut Generator<'_>) -> Option<TensorId>;

/// Classes of primitives, the more frequent ones several times.
const STEPS: &[GraphStep] = &[
    elementwise::unary,
    elementwise::unary,
    elementwise::binary,
    elementwise::binary,
    elementwise::binary,
    elementwise::comparison,
    elementwise::select,
    elementwise::cast,
    elementwise::integers,
    layout::broadcast,
    layout::broadcast,
    layout::transpose,
    layout::reshape,
    layout::slice,
    layout::pad,
    layout::concat,
    layout::pick,
    layout::iota,
    reduce::reduce,
    reduce::reduce,
    reduce::window,
    reduce::softmax,
    linear::contract,
    linear::contract,
    linear::conv,
    linear::conv,
    linear::conv_transpose,
    recurrence::recurrence,
    index::take,
    index::take_along,
    index::gather_nd,
    index::scatter_along,
    index::scatter_nd,
];

/// Opaque operations.
const OPAQUE_STEPS: &[GraphStep] =
    &[opaque::top_k, opaque::cumulative, opaque::branch, opaque::repeat, opaque::scan, opaque::routine];

impl Generator<'_> {
    fn step(&mut self) {
        let opaque = self.options.opaque && self.rng.one_in(12);
        let steps = if opaque { OPAQUE_STEPS } else { STEPS };
        let step = *self.rng.choose(steps);
        step(self);
    }

    /// An extent: mostly 1, primes and neighbours of powers of two.
    fn extent(&mut self) -> usize {
        if self.options.empty && self.rng.one_in(40) {
            return 0;
        }
        *self.rng.choose(&[1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31])
    }

    /// A shape of a rank, within the limit of elements.
    fn shape(&mut self, rank: usize) -> Vec<usize> {
        let mut shape: Vec<usize> = (0..rank).map(|_| self.extent()).collect();
        for dim in 0..rank {
            if shape.iter().product::<usize>() > self.options.max_elems {
                shape[dim] = 1 + dim % 3;
            }
        }
        shape
    }

    /// A new graph input.
    fn input(&mut self, shape: &[usize]) -> TensorId {
        let dtype = *self.rng.choose(&self.options.dtypes);
        let name = format!("x{}", self.graph.inputs.len());
        let id = self.graph.add_input(name, dtype, shape);
        self.facts.push(TensorFacts::exact(-1.0, 1.0));
        id
    }

    fn constant(&mut self, value: Tensor, facts: TensorFacts) -> TensorId {
        let id = self.graph.add_constant(value);
        self.facts.push(facts);
        id
    }

    /// A constant of random floats between two bounds.
    fn floats(&mut self, dtype: DType, shape: &[usize], low: f64, high: f64) -> TensorId {
        let elems = shape.iter().product();
        let values: Vec<f64> = (0..elems).map(|_| self.rng.uniform(low, high)).collect();
        // Rounding to a narrow type may step over the bounds.
        let slack = 0.01 * low.abs().max(high.abs());
        self.constant(Tensor::from_f64(dtype, shape, &values), TensorFacts::exact(low - slack, high + slack))
    }

    /// A constant of random integers between two bounds, of any integer type.
    fn integers(&mut self, dtype: DType, shape: &[usize], low: i64, high: i64) -> TensorId {
        let elems = shape.iter().product();
        let values: Vec<i64> = (0..elems).map(|_| self.rng.between(low, high)).collect();
        self.constant(Tensor::from_i64(dtype, shape, &values), TensorFacts::exact(low as f64, high as f64))
    }

    fn facts(&self, id: TensorId) -> TensorFacts {
        self.facts[id.index()]
    }

    fn dims(&self, id: TensorId) -> Vec<usize> {
        self.graph.shape(id).to_vec()
    }

    /// A tensor that suits, with a preference for recent ones.
    fn pick(&mut self, suits: impl Fn(&PrimGraph, TensorId, TensorFacts) -> bool) -> Option<TensorId> {
        let all = (0..self.facts.len()).map(TensorId::new);
        let candidates: Vec<TensorId> = all.filter(|&id| suits(&self.graph, id, self.facts(id))).collect();
        if candidates.is_empty() {
            return None;
        }
        let recent = candidates.len().saturating_sub(4);
        let start = if self.rng.one_in(3) { 0 } else { recent };
        Some(candidates[start + self.rng.below(candidates.len() - start)])
    }

    /// A tensor of floats of bounded values.
    fn float(&mut self) -> Option<TensorId> {
        self.pick(|graph, id, facts| graph.dtype(id).is_float() && facts.magnitude() <= MAX_MAGNITUDE)
    }

    /// A tensor of floats of this rank or more, a new input if there is none.
    fn float_of_rank(&mut self, ranks: std::ops::RangeInclusive<usize>) -> TensorId {
        let suits = |graph: &PrimGraph, id: TensorId, facts: TensorFacts| {
            let fits = ranks.contains(&graph.shape(id).rank());
            fits && graph.dtype(id).is_float() && facts.magnitude() <= MAX_MAGNITUDE
        };
        if let Some(id) = self.pick(suits) {
            return id;
        }
        let span = ranks.end() - ranks.start() + 1;
        let rank = ranks.start() + self.rng.below(span);
        let shape = self.shape(rank);
        self.input(&shape)
    }

    /// A tensor of the type and shape of another: an existing one, or constants between -2 and 2.
    fn like(&mut self, other: TensorId) -> TensorId {
        let (dtype, dims) = (self.graph.dtype(other), self.dims(other));
        let suits = |graph: &PrimGraph, id: TensorId, facts: TensorFacts| {
            graph.dtype(id) == dtype && graph.shape(id)[..] == dims[..] && facts.magnitude() <= MAX_MAGNITUDE
        };
        match self.pick(suits) {
            Some(id) if !self.rng.one_in(4) => id,
            _ if dtype.is_float() => self.floats(dtype, &dims, -2.0, 2.0),
            _ => self.integers(dtype, &dims, 0, 1),
        }
    }

    /// Adds a node with one result, unless inference refuses it, or the result is too large or its values unbounded.
    fn add(&mut self, op: PrimOp, inputs: &[TensorId], facts: TensorFacts) -> Option<TensorId> {
        self.add_all(op, inputs, &[facts]).map(|results| results[0])
    }

    /// Adds a node, likewise.
    fn add_all(&mut self, op: PrimOp, inputs: &[TensorId], facts: &[TensorFacts]) -> Option<Vec<TensorId>> {
        let types: Vec<(DType, &Shape)> =
            inputs.iter().map(|&id| (self.graph.dtype(id), self.graph.shape(id))).collect();
        let results = infer(&op, &types).ok()?;
        let fits = results.iter().all(|(_, shape)| shape.elems() <= self.options.max_elems);
        let bounded = results.iter().zip(facts).all(|((dtype, _), facts)| {
            // The maximum of nothing is infinite by definition.
            !dtype.is_float() || facts.magnitude() <= MAX_MAGNITUDE || facts.magnitude() == f64::INFINITY
        });
        if !fits || !bounded {
            return None;
        }
        let results = self.graph.add_node(op, inputs.to_vec()).ok()?;
        self.facts.extend(facts);
        Some(results)
    }

    /// A scalar constant broadcast to the type and shape of `like`.
    fn filled(&mut self, like: TensorId, value: f64) -> Option<TensorId> {
        let (dtype, shape) = (self.graph.dtype(like), self.graph.shape(like).clone());
        let value = Tensor::from_f64(dtype, Shape::scalar(), &[value]);
        let rounded = value.to_f64()[0];
        let facts = TensorFacts::exact(rounded, rounded);
        let scalar = self.constant(value, facts);
        self.add(PrimOp::Broadcast { shape, dims: vec![] }, &[scalar], facts)
    }
}
