//! Operators as text: a name, and parameters in parentheses.

use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;

/// The text of an operator without its operands.
pub fn op_text(op: &Op) -> String {
    let list = |items: &[usize]| items.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match op {
        Op::Matmul => "matmul".into(),
        Op::Unary(f) => f.name().into(),
        Op::Binary(f) => f.name().into(),
        Op::Scale(c) => format!("scale({c})"),
        Op::Offset(c) => format!("offset({c})"),
        Op::Reduce { f, dim, keep } => {
            let name = if *f == ReduceFn::Sum { "sum" } else { "largest" };
            if *keep == 1 { format!("{name}({dim})") } else { format!("{name}({dim}, {keep})") }
        }
        Op::RmsNorm { eps } => format!("rms_norm({eps})"),
        Op::Transpose(perm) => format!("transpose({})", list(perm)),
        Op::Reshape(shape) => format!("reshape({})", list(shape)),
        Op::Broadcast(shape) => format!("broadcast({})", list(shape)),
        Op::Slice { dim, start, len } => format!("slice({dim}, {start}, {len})"),
        Op::Repeat { dim, times } => format!("repeat({dim}, {times})"),
        Op::Rotate { dim, group } => format!("rotate({dim}, {group})"),
        Op::Concat { dim } => format!("concat({dim})"),
        Op::Causal { shape, offset } => format!("causal({offset}, {})", list(shape)),
        Op::Below { shape, dim, limit } => format!("below({dim}, {limit}, {})", list(shape)),
    }
}

/// The operator of a name and parameters.
pub(super) fn parse_op(name: &str, params: &[&str]) -> Result<Op, String> {
    let wrong = || format!("{name} does not take the parameters {params:?}");
    let numbers = || -> Result<Vec<usize>, String> {
        params.iter().map(|param| param.parse().map_err(|_| wrong())).collect()
    };
    let ratio = || match params {
        [param] => Rational::parse(param).ok_or_else(wrong),
        _ => Err(wrong()),
    };
    if let Some((f, _)) = UnaryFn::NAMES.into_iter().find(|(_, known)| *known == name) {
        return if params.is_empty() { Ok(Op::Unary(f)) } else { Err(wrong()) };
    }
    if let Some((f, _)) = BinaryFn::NAMES.into_iter().find(|(_, known)| *known == name) {
        return if params.is_empty() { Ok(Op::Binary(f)) } else { Err(wrong()) };
    }
    match name {
        "matmul" if params.is_empty() => Ok(Op::Matmul),
        "scale" => Ok(Op::Scale(ratio()?)),
        "offset" => Ok(Op::Offset(ratio()?)),
        "rms_norm" => Ok(Op::RmsNorm { eps: ratio()? }),
        "sum" | "largest" => {
            let f = if name == "sum" { ReduceFn::Sum } else { ReduceFn::Max };
            match numbers()?[..] {
                [dim] => Ok(Op::Reduce { f, dim, keep: 1 }),
                [dim, keep] => Ok(Op::Reduce { f, dim, keep }),
                _ => Err(wrong()),
            }
        }
        "transpose" => Ok(Op::Transpose(numbers()?)),
        "reshape" => Ok(Op::Reshape(numbers()?)),
        "broadcast" => Ok(Op::Broadcast(numbers()?)),
        "slice" => match numbers()?[..] {
            [dim, start, len] => Ok(Op::Slice { dim, start, len }),
            _ => Err(wrong()),
        },
        "repeat" => match numbers()?[..] {
            [dim, times] => Ok(Op::Repeat { dim, times }),
            _ => Err(wrong()),
        },
        "rotate" => match numbers()?[..] {
            [dim, group] => Ok(Op::Rotate { dim, group }),
            _ => Err(wrong()),
        },
        "concat" => match numbers()?[..] {
            [dim] => Ok(Op::Concat { dim }),
            _ => Err(wrong()),
        },
        "causal" => {
            let (offset, shape) = params.split_first().ok_or_else(wrong)?;
            let offset = offset.parse().map_err(|_| wrong())?;
            let shape = shape.iter().map(|param| param.parse().map_err(|_| wrong()));
            Ok(Op::Causal { shape: shape.collect::<Result<_, _>>()?, offset })
        }
        "below" => match &numbers()?[..] {
            [dim, limit, shape @ ..] => Ok(Op::Below { shape: shape.to_vec(), dim: *dim, limit: *limit }),
            _ => Err(wrong()),
        },
        _ => Err(format!("no operator {name}")),
    }
}
