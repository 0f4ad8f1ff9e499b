//! The operations that prelude functions do.

use orch_compute::LaneGroup;
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

/// An operation of the prelude.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A function of one operand.
    Unary(UnaryFn),
    /// A function of two operands.
    Binary(BinaryFn),
    /// The larger of two floats, of which the first is never NaN.
    MaxOfNumber,
    /// The smaller of two floats, of which the first is never NaN.
    MinOfNumber,
    /// A comparison.
    Compare(CompareFn),
    /// `(condition, if_true, if_false)`.
    Select,
    /// `a * b + c`.
    Fma,
    /// `(a, b, c)`: products of pairs of bf16 added to f32, the lanes being those of the sums.
    DotPairs,
    /// `(pair)`: two elements repeated in all lanes.
    SplatPair,
    /// `(a, b)`: such groups of lanes by turns; the lanes are those of the result.
    Interleave(LaneGroup),
    /// Floor division by a positive number.
    FloorDiv,
    /// The remainder of it.
    FloorRem,
    /// The quotient of a number that is not negative by this constant.
    QuotientBy(u32),
    /// The remainder of it.
    RemainderBy(u32),
    /// Conversion from this type.
    Cast(DType),
    /// A scalar in every lane.
    Splat,
    /// The first half of the lanes.
    Low,
    /// The second half of the lanes.
    High,
    /// Two halves put together.
    Join,
    /// All lanes combined as a tree of halves.
    Reduce(ReduceOp),
    /// The largest or smallest of all lanes, of which none is NaN.
    ReduceNumbers(ReduceOp),
    /// `(pointer)`: consecutive elements.
    Load,
    /// `(pointer, flags)`: 0 where the flag is false.
    LoadMasked,
    /// `(pointer)`: elements at this distance, of which the first is the first lane's.
    LoadEvery(i32),
    /// `(pointer, offsets)`, offsets of this type.
    Gather(DType),
    /// `(pointer, offsets, flags)`.
    GatherMasked(DType),
    /// `(pointer, value)`.
    Store,
    /// `(pointer, value, flags)`.
    StoreMasked,
    /// `(pointer, value, n)`: the first `n` lanes; by families whose flags are vectors.
    StorePrefix,
    /// `(pointer, value, offsets)`, offsets of this type.
    Scatter(DType),
    /// `(pointer, value, offsets, flags)`.
    ScatterMasked(DType),
    /// `(n)`: flags of the first `n` lanes.
    Prefix,
    /// `(p, shifted)`: `p * 2^n` rounded once, `shifted = n + 1.5 * 2^23`.
    Scale,
    /// `(a, b)`: the power of a number that is not negative, to the precision that an `f32` result needs.
    PowCore,
    /// `(x, result)`: `result` with lanes of large `x` replaced by the C library's sine or cosine.
    LargeAngle(UnaryFn),
}

/// A prelude function: an operation on `lanes` elements of `dtype`. For a cast the type is the result's, for a
/// comparison the operands'.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Helper {
    /// Operation.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Lanes of the wider side.
    pub lanes: usize,
}
