//! What is known of elements that must not change maxima and accumulators: those of a tile that a mask hides whole (`visible`), and
//! those that the last iteration of a loop has past the end of a tensor (`steps`).

use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};

/// What elements of a tile are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hidden {
    /// Minus infinity.
    Lowest,
    Zero,
    /// What inputs make it: finite if these are.
    Finite,
    /// Nothing is known, not even that it is finite.
    Unknown,
}

/// The elements of an operator's result, given those of its operands.
pub(super) fn hidden_value(op: &Op, args: &[Hidden]) -> Hidden {
    use Hidden::{Finite, Lowest, Unknown, Zero};
    match (op, args) {
        (Op::Binary(BinaryFn::Mask), [_, Zero]) => Lowest,
        (Op::Binary(BinaryFn::Mask), [Lowest, _]) => Lowest,
        // -inf where it is masked.
        (Op::Binary(BinaryFn::Mask), _) => Unknown,
        // A running maximum may be minus infinity; guarded, it is not.
        (Op::Unary(UnaryFn::Guard), [Unknown | Finite | Zero]) => Finite,
        (Op::Unary(UnaryFn::Exp), [Lowest]) => Zero,
        (Op::Scale(factor), [Lowest]) if factor.num() > 0 => Lowest,
        (Op::Scale(_), [Zero]) => Zero,
        (Op::Offset(_), [Lowest]) => Lowest,
        (Op::Binary(BinaryFn::Add | BinaryFn::Sub), [Lowest, Finite | Zero]) => Lowest,
        (Op::Binary(BinaryFn::Add), [Finite | Zero, Lowest]) => Lowest,
        (Op::Binary(BinaryFn::Add | BinaryFn::Sub | BinaryFn::Max), [Zero, Zero]) => Zero,
        (Op::Binary(BinaryFn::Max), [Lowest, Lowest]) => Lowest,
        (Op::Binary(BinaryFn::Mul) | Op::Matmul, [Zero, Zero | Finite] | [Finite, Zero]) => Zero,
        (Op::Unary(f), [Zero]) if is_zero_at_zero(*f) => Zero,
        (
            Op::Reduce { .. }
            | Op::Transpose(_)
            | Op::Slice { .. }
            | Op::Repeat { .. }
            | Op::Rotate { .. }
            | Op::Concat { .. },
            _,
        ) => moved_value(op, args),
        (_, args) if args.iter().all(|arg| matches!(arg, Zero | Finite)) && keeps_finite(op) => Finite,
        _ => Unknown,
    }
}

/// The elements of a result that are elements of the operands, or reductions of them.
fn moved_value(op: &Op, args: &[Hidden]) -> Hidden {
    use Hidden::{Finite, Lowest, Unknown, Zero};
    match (op, args) {
        (Op::Reduce { f: ReduceFn::Sum, .. } | Op::Rotate { .. }, [Lowest]) => Unknown,
        (_, [first, rest @ ..]) if rest.iter().all(|other| other == first) => *first,
        (_, args) if args.iter().all(|arg| matches!(arg, Zero | Finite)) => Finite,
        _ => Unknown,
    }
}

/// Whether a function of zero is zero.
fn is_zero_at_zero(f: UnaryFn) -> bool {
    match f {
        UnaryFn::Exp | UnaryFn::Sigmoid | UnaryFn::Log => false,
        UnaryFn::Square | UnaryFn::Sqrt | UnaryFn::Silu | UnaryFn::Tanh | UnaryFn::Gelu => true,
        UnaryFn::Relu | UnaryFn::Erf | UnaryFn::Guard => true,
    }
}

/// Whether results of finite operands count as finite: overflow aside, and division by zero, roots and logarithms.
fn keeps_finite(op: &Op) -> bool {
    !matches!(op, Op::Unary(UnaryFn::Log | UnaryFn::Sqrt) | Op::Binary(BinaryFn::Div | BinaryFn::Mask))
}
