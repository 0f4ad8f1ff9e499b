//! Operators and the shapes of their results.
//!
//! Composite functions of the text form are expanded when they are read: `sigmoid x` is `1 / (1 + e^-x)`, `silu x` is
//! `x sigmoid(x)`, `tanh x` is `2 sigmoid(2 x) - 1`, `gelu x` is `x sigmoid(c (x + 0.044715 x³))` with the constant
//! `c = 2 sqrt(2 / pi)`, and `rms_norm x` is `x / sqrt(mean x² + eps)`.

/// An exact constant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The numerator.
    pub num: i64,
    /// The denominator, positive.
    pub den: i64,
}

impl Ratio {
    /// Reads `3`, `-1/8`.
    pub fn parse(text: &str) -> Option<Ratio> {
        let (num, den) = text.split_once('/').unwrap_or((text, "1"));
        let (num, den) = (num.parse().ok()?, den.parse().ok()?);
        (den > 0 && num != i64::MIN).then_some(Ratio { num, den })
    }
}

/// An operator.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // The names say it; what needs more has it.
pub enum Op {
    /// `[.., m, k] x [.., k, n] -> [.., m, n]`
    Matmul,
    Exp,
    Square,
    Sqrt,
    Log,
    Erf,
    Relu,
    /// `1 / x`
    Reciprocal,
    /// Zero for minus infinity.
    Guard,
    /// `2 sqrt(2 / pi) x`
    GeluFactor,
    Scale(Ratio),
    Offset(Ratio),
    Add,
    Sub,
    Mul,
    Div,
    Max,
    /// The first operand where the second is 1, minus infinity where it is 0.
    Mask,
    /// Element `j` of the result combines elements `j, j + keep, ..` along a dimension.
    Sum {
        dim: usize,
        keep: usize,
    },
    Largest {
        dim: usize,
        keep: usize,
    },
    /// The mean along the last dimension.
    Mean,
    Transpose(Vec<usize>),
    Reshape(Vec<usize>),
    Broadcast(Vec<usize>),
    Slice {
        dim: usize,
        start: usize,
        len: usize,
    },
    Repeat {
        dim: usize,
        times: usize,
    },
    /// In each run of `2 group` elements, the halves `(a, b)` become `(-b, a)`.
    Rotate {
        dim: usize,
        group: usize,
    },
    Concat {
        dim: usize,
    },
    /// One where the last index is at most the one before it plus an offset, else zero.
    Causal {
        shape: Vec<usize>,
        offset: i64,
    },
    /// One where the index along a dimension is below a limit, else zero.
    Below {
        shape: Vec<usize>,
        dim: usize,
        limit: usize,
    },
}

/// The number of elements, if it can be counted.
pub fn elems(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
}

/// `shape` with another extent.
pub fn with(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = extent;
    shape
}

fn joint(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let extent = |(&a, &b): (&usize, &usize)| match (a, b) {
        _ if a == b || b == 1 => Some(a),
        (1, _) => Some(b),
        _ => None,
    };
    let shape: Option<Vec<usize>> = a.iter().zip(b).map(extent).collect();
    shape.filter(|_| a.len() == b.len()).ok_or_else(|| format!("{a:?} does not suit {b:?}"))
}

impl Op {
    /// The number of operands; `None` for one or more.
    fn arity(&self) -> Option<usize> {
        match self {
            Op::Causal { .. } | Op::Below { .. } => Some(0),
            Op::Matmul | Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max | Op::Mask => Some(2),
            Op::Concat { .. } => None,
            _ => Some(1),
        }
    }

    /// True if it may not stand in a block, whose tiles have extents that depend on the block.
    pub fn is_for_tensors(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::Broadcast(_) | Op::Causal { .. } | Op::Below { .. })
    }

    /// The shape of the result.
    pub fn shape(&self, args: &[&[usize]]) -> Result<Vec<usize>, String> {
        if self.arity().map_or(args.is_empty(), |arity| arity != args.len()) {
            return Err(format!("{self:?} does not take {} operands", args.len()));
        }
        let wrong = || format!("{self:?} does not suit {args:?}");
        let extent = |dim: usize| args[0].get(dim).copied().ok_or_else(wrong);
        match self {
            Op::Matmul => {
                let ([lhs @ .., m, k], [rhs @ .., rows, n]) = (args[0], args[1]) else { return Err(wrong()) };
                if k != rows {
                    return Err(wrong());
                }
                Ok([joint(lhs, rhs)?, vec![*m, *n]].concat())
            }
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max => joint(args[0], args[1]),
            Op::Mask => joint(args[0], args[1]).ok().filter(|shape| shape == args[0]).ok_or_else(wrong),
            Op::Sum { dim, keep } | Op::Largest { dim, keep } => {
                if *keep == 0 || !extent(*dim)?.is_multiple_of(*keep) {
                    return Err(wrong());
                }
                Ok(with(args[0], *dim, *keep))
            }
            Op::Mean => Ok(with(args[0], args[0].len().checked_sub(1).ok_or_else(wrong)?, 1)),
            Op::Transpose(order) => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..args[0].len()) {
                    return Err(wrong());
                }
                Ok(order.iter().map(|&dim| args[0][dim]).collect())
            }
            Op::Reshape(shape) => match (elems(shape), elems(args[0])) {
                (Some(new), Some(old)) if new == old => Ok(shape.clone()),
                _ => Err(wrong()),
            },
            Op::Broadcast(shape) => {
                let fits = shape.len() == args[0].len() && joint(shape, args[0]).as_ref() == Ok(shape);
                if fits { Ok(shape.clone()) } else { Err(wrong()) }
            }
            Op::Slice { dim, start, len } => {
                let end = start.checked_add(*len).ok_or_else(wrong)?;
                if end > extent(*dim)? { Err(wrong()) } else { Ok(with(args[0], *dim, *len)) }
            }
            Op::Repeat { dim, times } => {
                let repeated = extent(*dim)?.checked_mul(*times).ok_or_else(wrong)?;
                Ok(with(args[0], *dim, repeated))
            }
            Op::Rotate { dim, group } => {
                let run = group.checked_mul(2).filter(|&run| run > 0).ok_or_else(wrong)?;
                if extent(*dim)?.is_multiple_of(run) { Ok(args[0].to_vec()) } else { Err(wrong()) }
            }
            Op::Concat { dim } => {
                extent(*dim)?;
                let mut shape = args[0].to_vec();
                for arg in &args[1..] {
                    if arg.len() != shape.len() || with(arg, *dim, shape[*dim]) != shape {
                        return Err(wrong());
                    }
                    shape[*dim] = shape[*dim].checked_add(arg[*dim]).ok_or_else(wrong)?;
                }
                Ok(shape)
            }
            Op::Causal { shape, .. } if shape.len() < 2 => Err(wrong()),
            Op::Below { shape, dim, .. } if *dim >= shape.len() => Err(wrong()),
            Op::Causal { shape, .. } | Op::Below { shape, .. } => Ok(shape.clone()),
            _ => Ok(args[0].to_vec()),
        }
    }
}
