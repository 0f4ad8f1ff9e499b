//! Primitives: the small closed set of operations that every operator is fissioned into.
//!
//! Operands have equal shapes in elementwise primitives: broadcasting is a primitive of its own, which costs
//! nothing once fused. Shape and type rules are in [`infer`](mod@crate::infer); semantics are the interpreter's
//! (`orch-interp`).

use crate::{BinaryFn, DType, OpaqueOp, Recurrence, ScalarFn, Shape};

/// What a node of a [`PrimGraph`](crate::PrimGraph) computes. Axes are counted from 0, never negative.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum PrimOp {
    /// `out[x] = f(in_0[x], in_1[x], ..)`: operands of equal shape.
    Map(ScalarFn),
    /// Reduces `axes` (sorted, distinct), which disappear from the shape.
    Reduce { op: ReduceOp, axes: Vec<usize> },
    /// Windowed reduction over the trailing `window.rank()` dimensions: `[n, c, d_0, ..] -> [n, c, e_0, ..]`.
    /// Positions in the padding do not take part; windows of arg-reductions must hold at least one element.
    Window { op: ReduceOp, window: Window },
    /// Each input dimension `i` becomes output dimension `dims[i]` (strictly increasing) and must have that
    /// extent or 1; other output dimensions repeat.
    Broadcast { shape: Shape, dims: Vec<usize> },
    /// Output dimension `i` is input dimension `perm[i]`.
    Transpose { perm: Vec<usize> },
    /// The same elements in row-major order under another shape.
    Reshape { shape: Shape },
    /// `out[i..] = in[starts + i * steps ..]` with `sizes` elements per dimension; steps may be negative.
    Slice { starts: Vec<i64>, steps: Vec<i64>, sizes: Vec<usize> },
    /// Adds `low`/`high` elements around each dimension. `Constant` takes a second, scalar operand.
    Pad { mode: PadMode, low: Vec<usize>, high: Vec<usize> },
    /// Joins one or more operands along `axis`.
    Concat { axis: usize },
    /// `out[i] = in[map_d(i_d) for each dimension d]`: an arbitrary per-dimension selection of positions known at
    /// compile time (nearest resize, irregular repeats). `positions[d]` is `None` for the identity.
    Select { positions: Vec<Option<Vec<usize>>> },
    /// Multiply and add over shared labels: every matrix product and einsum of two operands.
    Contract(Contract),
    /// `x [n, c, d_0, ..]`, `w [m, c / groups, k_0, ..]` -> `[n, m, e_0, ..]`: cross-correlation, zero padding.
    Conv(ConvSpec),
    /// `x [n, c, d_0, ..]`, `w [c, m / groups, k_0, ..]` -> `[n, m, e_0, ..]`: the adjoint of [`PrimOp::Conv`].
    /// `window.low`/`high` crop the result. With `may_pad` it may be computed as a convolution with zero padding: as for one, results at
    /// the border may be NaN where weights are not finite. PyTorch's transposed convolutions and gradients leave that open.
    ConvTranspose { spec: ConvSpec, output_padding: Vec<usize>, may_pad: bool },
    /// `(data, indices: integer)`: `data` with dimension `axis` replaced by the dimensions of `indices`. Indices
    /// are in `0..extent`; others clamp into it.
    Take { axis: usize },
    /// `(data, indices: integer)`: `out[i..] = data[i.., indices[i..] at axis, ..]`; indices clamp.
    TakeAlong { axis: usize },
    /// `(data, indices [.., k])`: the last dimension of `indices` addresses `k` dimensions of `data` after the
    /// `batch_dims` leading ones, which both share.
    GatherNd { batch_dims: usize },
    /// `(data, indices, updates)`: a copy of `data` with `data[.., indices[i..] at axis, ..] = updates[i..]`,
    /// in row-major order of the updates.
    ScatterAlong { axis: usize, combine: Option<ReduceOp> },
    /// `(data, indices [.., k], updates)`: a copy of `data` with slices addressed by `indices` replaced, in order.
    ScatterNd { combine: Option<ReduceOp> },
    /// `out[i..] = i_axis`, no operands; an integer or float type.
    Iota { dtype: DType, shape: Shape, axis: usize },
    /// The recurrence of RNN, GRU and LSTM over time: `(x [t, b, d, g*h], r [d, h, g*h], ..) -> (y [t, b, d, h],
    /// last states [d, b, h]..)`. Operands and formulas are in [`Recurrence`].
    Recurrence(Box<Recurrence>),
    /// Runs as one host routine; the rest of the graph is still optimized.
    Opaque(Box<OpaqueOp>),
}

/// How elements are combined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum ReduceOp {
    /// Sum; 0 of nothing. f16 and bf16 accumulate in f32.
    Sum,
    /// Product; 1 of nothing.
    Prod,
    /// Largest; the type's lowest value (-inf) of nothing. NaN wins.
    Max,
    /// Smallest; the type's highest value (+inf) of nothing. NaN wins.
    Min,
    /// Index (`i64`) of the largest along exactly one axis (or in the window: row-major position in the
    /// unpadded `[d_0, ..]` plane): the first, or the last.
    ArgMax { last: bool },
    /// Index of the smallest, likewise.
    ArgMin { last: bool },
}

/// Where padded elements come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PadMode {
    /// The value of the second operand.
    Constant,
    /// The nearest element.
    Edge,
    /// Mirrored without repeating the border.
    Reflect,
    /// Periodic.
    Wrap,
}

/// A sliding window over spatial dimensions. All vectors have one entry per spatial dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// Window extents.
    pub kernel: Vec<usize>,
    /// Steps between windows, at least 1.
    pub strides: Vec<usize>,
    /// Distances between the elements of a window, at least 1.
    pub dilations: Vec<usize>,
    /// Padding before the first element.
    pub low: Vec<usize>,
    /// Padding after the last element.
    pub high: Vec<usize>,
}

impl Window {
    /// The number of spatial dimensions.
    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// The number of windows along spatial dimension `dim` of extent `extent`, or `None` if not even one fits.
    pub fn positions(&self, dim: usize, extent: usize) -> Option<usize> {
        let padded = extent.checked_add(self.low[dim])?.checked_add(self.high[dim])?;
        let reach = self.kernel[dim].checked_sub(1)?.checked_mul(self.dilations[dim])?.checked_add(1)?;
        Some(padded.checked_sub(reach)? / self.strides[dim] + 1)
    }
}

/// Window and grouping of a convolution.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvSpec {
    /// The window; `kernel` repeats the extents of the weight.
    pub window: Window,
    /// Channel groups; divides both channel counts.
    pub groups: usize,
}

/// A contraction of two operands by labels, as in `einsum`: each operand dimension carries a label, labels that
/// are not in `out` are summed. A label occurs at most once per operand and, if in `out`, once there; a label of
/// `out` occurs in an operand.
///
/// Text: `bmk,bkn->bmn`, labels named `a`, `b`, ... in order of their number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Contract {
    /// Labels of the first operand's dimensions.
    pub lhs: Vec<u8>,
    /// Labels of the second operand's dimensions.
    pub rhs: Vec<u8>,
    /// Labels of the result's dimensions.
    pub out: Vec<u8>,
}

impl Contract {
    /// `[.., m, k] x [.., k, n] -> [.., m, n]` with `batch` shared leading dimensions.
    pub fn matmul(batch: usize) -> Self {
        let batch_labels: Vec<u8> = (0..batch as u8).collect();
        let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
        let with = |tail: [u8; 2]| batch_labels.iter().copied().chain(tail).collect();
        Self { lhs: with([m, k]), rhs: with([k, n]), out: with([m, n]) }
    }
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::ArgMax { last: false },
        ReduceOp::ArgMax { last: true },
        ReduceOp::ArgMin { last: false },
        ReduceOp::ArgMin { last: true },
    ];

    /// The name in text forms; arg-reductions that take the last position read `argmax_last`.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::ArgMax { last: false } => "argmax",
            ReduceOp::ArgMax { last: true } => "argmax_last",
            ReduceOp::ArgMin { last: false } => "argmin",
            ReduceOp::ArgMin { last: true } => "argmin_last",
        }
    }

    /// True for [`ReduceOp::ArgMax`] and [`ReduceOp::ArgMin`], whose result is `i64`.
    pub fn is_arg(self) -> bool {
        matches!(self, ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. })
    }

    /// The function that combines two values; `None` of arg-reductions, which keep a position.
    pub fn combining(self) -> Option<BinaryFn> {
        match self {
            ReduceOp::Sum => Some(BinaryFn::Add),
            ReduceOp::Prod => Some(BinaryFn::Mul),
            ReduceOp::Max => Some(BinaryFn::Max),
            ReduceOp::Min => Some(BinaryFn::Min),
            ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. } => None,
        }
    }

    /// The result type for elements of `dtype`.
    pub fn result(self, dtype: DType) -> DType {
        if self.is_arg() { DType::I64 } else { dtype }
    }
}
