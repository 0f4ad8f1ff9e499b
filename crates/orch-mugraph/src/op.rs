//! Operators, shared by the kernel level (on tensors) and the block level (on tiles), and their shape rules.
//!
//! Operands have the same number of dimensions; an extent of 1 is repeated to the other operand's extent. Reductions
//! keep their dimension. A tile may be empty: remainders of a partition can leave a block without elements.

use crate::rational::Rational;
use serde::{Deserialize, Serialize};

/// A function of one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum UnaryFn {
    /// `e^x`; zero at minus infinity.
    Exp,
    /// `x * x`
    Square,
    /// The square root that is not negative.
    Sqrt,
    /// `x / (1 + e^-x)`
    Silu,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The Gaussian error linear unit by its tanh form.
    Gelu,
    /// `max(x, 0)`
    Relu,
    /// The error function.
    Erf,
    /// The natural logarithm.
    Log,
    /// Zero at minus infinity, else `x`: makes `a - guard(m)` meaningful where nothing was seen.
    Guard,
}

impl UnaryFn {
    /// All of them, with the names of the text form.
    pub const NAMES: [(UnaryFn, &'static str); 11] = [
        (UnaryFn::Exp, "exp"),
        (UnaryFn::Square, "square"),
        (UnaryFn::Sqrt, "sqrt"),
        (UnaryFn::Silu, "silu"),
        (UnaryFn::Sigmoid, "sigmoid"),
        (UnaryFn::Tanh, "tanh"),
        (UnaryFn::Gelu, "gelu"),
        (UnaryFn::Relu, "relu"),
        (UnaryFn::Erf, "erf"),
        (UnaryFn::Log, "log"),
        (UnaryFn::Guard, "guard"),
    ];

    /// The name of the text form.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(f, _)| *f == self).map_or("", |(_, name)| name)
    }
}

/// A function of two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum BinaryFn {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The larger.
    Max,
    /// `a` where the mask `b` is not 0, else minus infinity.
    Mask,
}

impl BinaryFn {
    /// All of them, with the names of the text form.
    pub const NAMES: [(BinaryFn, &'static str); 6] = [
        (BinaryFn::Add, "add"),
        (BinaryFn::Sub, "sub"),
        (BinaryFn::Mul, "mul"),
        (BinaryFn::Div, "div"),
        (BinaryFn::Max, "max"),
        (BinaryFn::Mask, "mask"),
    ];

    /// The name of the text form.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(f, _)| *f == self).map_or("", |(_, name)| name)
    }

    /// True if operands may be swapped.
    pub fn commutes(self) -> bool {
        matches!(self, BinaryFn::Add | BinaryFn::Mul | BinaryFn::Max)
    }
}

/// How elements are combined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub enum ReduceFn {
    /// Their sum.
    Sum,
    /// The largest; minus infinity of nothing.
    Max,
}

/// An operator: a value for each list of operands.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub enum Op {
    /// `[.., m, k] x [.., k, n] -> [.., m, n]`; leading extents of 1 are repeated.
    Matmul,
    /// Elementwise.
    Unary(UnaryFn),
    /// `x * c`
    Scale(Rational),
    /// `x + c`
    Offset(Rational),
    /// Elementwise of two.
    Binary(BinaryFn),
    /// Element `j` of the result along `dim` combines elements `j, j + keep, j + 2 keep, ..`.
    Reduce {
        /// How.
        f: ReduceFn,
        /// Along which dimension.
        dim: usize,
        /// Extent of the result along it; 1 reduces all.
        keep: usize,
    },
    /// `x / sqrt(mean of x² along the last dimension + eps)`.
    RmsNorm {
        /// What is added to the mean.
        eps: Rational,
    },
    /// Dimension `i` of the result is dimension `perm[i]` of the operand.
    Transpose(Vec<usize>),
    /// The same elements in row-major order, seen by another shape. Tensors only.
    Reshape(Vec<usize>),
    /// Extents of 1 repeated. Tensors only.
    Broadcast(Vec<usize>),
    /// Elements `start .. start + len` along `dim`.
    Slice {
        /// Along which dimension.
        dim: usize,
        /// First element.
        start: usize,
        /// Number of elements.
        len: usize,
    },
    /// Each element along `dim` several times in a row.
    Repeat {
        /// Along which dimension.
        dim: usize,
        /// How often.
        times: usize,
    },
    /// In each run of `2 * group` elements along `dim`, the halves `(a, b)` become `(-b, a)`: a quarter turn of the pairs of
    /// a rotary position embedding. `group` is half the extent where halves are paired, 1 where neighbours are.
    Rotate {
        /// Along which dimension.
        dim: usize,
        /// Distance between the elements of a pair.
        group: usize,
    },
    /// Operands one after the other along a dimension.
    Concat {
        /// The dimension.
        dim: usize,
    },
    /// A mask: 1 where `column <= row + offset` in the last two dimensions. Tensors only.
    Causal {
        /// The shape of the mask.
        shape: Vec<usize>,
        /// How far right of the diagonal.
        offset: i64,
    },
    /// A mask: 1 where the index along `dim` is below `limit`. Tensors only.
    Below {
        /// The shape of the mask.
        shape: Vec<usize>,
        /// The dimension.
        dim: usize,
        /// The first index that is masked out.
        limit: usize,
    },
}

impl Op {
    /// How many operands it takes; `None` if any number but none.
    pub fn arity(&self) -> Option<usize> {
        match self {
            Op::Causal { .. } | Op::Below { .. } => Some(0),
            Op::Matmul | Op::Binary(_) => Some(2),
            Op::Concat { .. } => None,
            Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Reduce { .. } | Op::RmsNorm { .. } => Some(1),
            Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => Some(1),
            Op::Slice { .. } | Op::Repeat { .. } | Op::Rotate { .. } => Some(1),
        }
    }

    /// True if it may stand in a block graph, whose tiles have extents that depend on the block.
    pub fn suits_tiles(&self) -> bool {
        !matches!(self, Op::Reshape(_) | Op::Broadcast(_) | Op::Causal { .. } | Op::Below { .. })
    }

    /// True if each element of the result depends on the elements at its own place only.
    pub fn is_elementwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_))
    }

    /// The shape of the result.
    ///
    /// # Errors
    /// Says what is wrong with the operands.
    pub fn infer(&self, args: &[&[usize]]) -> Result<Vec<usize>, String> {
        if self.arity().map_or(args.is_empty(), |arity| arity != args.len()) {
            return Err(format!("{} operands, expected {}", args.len(), self.arity().unwrap_or(1)));
        }
        match self {
            Op::Matmul => matmul_shape(args[0], args[1]),
            Op::Unary(_) | Op::Scale(_) | Op::Offset(_) => Ok(args[0].to_vec()),
            Op::RmsNorm { .. } if args[0].is_empty() => Err("a scalar has no last dimension".into()),
            Op::RmsNorm { .. } => Ok(args[0].to_vec()),
            Op::Binary(BinaryFn::Mask) => {
                let shape = broadcast_shape(args[0], args[1])?;
                if shape == args[0] { Ok(shape) } else { Err("a mask larger than what it masks".into()) }
            }
            Op::Binary(_) => broadcast_shape(args[0], args[1]),
            Op::Reduce { dim, keep, .. } => {
                let extent = *args[0].get(*dim).ok_or_else(|| no_dim(*dim, args[0]))?;
                if *keep == 0 || extent % keep != 0 {
                    return Err(format!("an extent of {extent} is no multiple of {keep}"));
                }
                Ok(with(args[0], *dim, *keep))
            }
            Op::Transpose(perm) => {
                let mut sorted = perm.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..args[0].len()) {
                    return Err(format!("{perm:?} does not order the dimensions of {:?}", args[0]));
                }
                Ok(perm.iter().map(|&dim| args[0][dim]).collect())
            }
            Op::Reshape(shape) => {
                if elems(shape) != elems(args[0]) {
                    return Err(format!("{:?} has other elements than {shape:?}", args[0]));
                }
                Ok(shape.clone())
            }
            Op::Broadcast(shape) => {
                let fits =
                    shape.len() == args[0].len() && shape.iter().zip(args[0]).all(|(s, a)| s == a || *a == 1);
                if fits {
                    Ok(shape.clone())
                } else {
                    Err(format!("{:?} does not repeat to {shape:?}", args[0]))
                }
            }
            Op::Slice { dim, start, len } => {
                let extent = *args[0].get(*dim).ok_or_else(|| no_dim(*dim, args[0]))?;
                if start.checked_add(*len).is_none_or(|end| end > extent) {
                    return Err(format!("elements {start} to {start} + {len} of {extent}"));
                }
                Ok(with(args[0], *dim, *len))
            }
            Op::Repeat { dim, times } => {
                let extent = *args[0].get(*dim).ok_or_else(|| no_dim(*dim, args[0]))?;
                let repeated = extent.checked_mul(*times).ok_or("a repetition that is too long")?;
                Ok(with(args[0], *dim, repeated))
            }
            Op::Rotate { dim, group } => {
                let extent = *args[0].get(*dim).ok_or_else(|| no_dim(*dim, args[0]))?;
                let run = group.checked_mul(2).filter(|&run| run > 0);
                if run.is_none_or(|run| !extent.is_multiple_of(run)) {
                    return Err(format!(
                        "an extent of {extent} does not hold whole pairs of {group} elements"
                    ));
                }
                Ok(args[0].to_vec())
            }
            Op::Concat { dim } => {
                let mut shape = args[0].to_vec();
                if *dim >= shape.len() {
                    return Err(no_dim(*dim, &shape));
                }
                for arg in &args[1..] {
                    if arg.len() != shape.len() || with(arg, *dim, shape[*dim]) != shape {
                        return Err(format!("{arg:?} does not join {shape:?} along dimension {dim}"));
                    }
                    let joint = shape[*dim].checked_add(arg[*dim]);
                    shape[*dim] = joint.ok_or("a concatenation that is too long")?;
                }
                Ok(shape)
            }
            Op::Causal { shape, .. } if shape.len() < 2 => Err("a causal mask has two dimensions".into()),
            Op::Below { shape, dim, .. } if *dim >= shape.len() => Err(no_dim(*dim, shape)),
            Op::Causal { shape, .. } | Op::Below { shape, .. } => Ok(shape.clone()),
        }
    }
}

/// The number of elements of a shape; saturates.
pub fn elems(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent))
}

/// `shape` with another extent in one dimension.
pub(crate) fn with(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = extent;
    shape
}

fn no_dim(dim: usize, shape: &[usize]) -> String {
    format!("no dimension {dim} in {shape:?}")
}

fn broadcast_shape(lhs: &[usize], rhs: &[usize]) -> Result<Vec<usize>, String> {
    let extent = |(&a, &b): (&usize, &usize)| match (a, b) {
        (a, b) if a == b => Some(a),
        (1, b) => Some(b),
        (a, 1) => Some(a),
        _ => None,
    };
    let shape: Option<Vec<usize>> = lhs.iter().zip(rhs).map(extent).collect();
    shape.filter(|_| lhs.len() == rhs.len()).ok_or_else(|| format!("{lhs:?} does not suit {rhs:?}"))
}

fn matmul_shape(lhs: &[usize], rhs: &[usize]) -> Result<Vec<usize>, String> {
    let ([lhs_batch @ .., m, k], [rhs_batch @ .., rows, n]) = (lhs, rhs) else {
        return Err("a matrix has two dimensions".into());
    };
    if k != rows {
        return Err(format!("{k} columns times {rows} rows"));
    }
    let mut shape = broadcast_shape(lhs_batch, rhs_batch)?;
    shape.extend([*m, *n]);
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_the_rules() {
        assert_eq!(Op::Matmul.infer(&[&[2, 3, 4], &[1, 4, 5]]), Ok(vec![2, 3, 5]));
        assert!(Op::Matmul.infer(&[&[3, 4], &[3, 4]]).is_err());
        assert_eq!(Op::Binary(BinaryFn::Add).infer(&[&[2, 1], &[2, 7]]), Ok(vec![2, 7]));
        assert!(Op::Binary(BinaryFn::Mask).infer(&[&[2, 1], &[2, 7]]).is_err());
        assert_eq!(Op::Reduce { f: ReduceFn::Sum, dim: 1, keep: 3 }.infer(&[&[2, 12]]), Ok(vec![2, 3]));
        assert!(Op::Reduce { f: ReduceFn::Sum, dim: 1, keep: 5 }.infer(&[&[2, 12]]).is_err());
        assert_eq!(Op::Concat { dim: 0 }.infer(&[&[2, 5], &[1, 5], &[0, 5]]), Ok(vec![3, 5]));
        assert_eq!(Op::Transpose(vec![1, 0]).infer(&[&[2, 5]]), Ok(vec![5, 2]));
        assert!(Op::Slice { dim: 0, start: 1, len: usize::MAX }.infer(&[&[2, 5]]).is_err());
        assert!(Op::Concat { dim: 0 }.infer(&[&[usize::MAX], &[1]]).is_err());
        assert_eq!(Op::Rotate { dim: 1, group: 3 }.infer(&[&[2, 12]]), Ok(vec![2, 12]));
        for (dim, group) in [(1, 4), (1, 12), (1, 0), (2, 1), (1, usize::MAX)] {
            assert!(Op::Rotate { dim, group }.infer(&[&[2, 12]]).is_err());
        }
    }
}
