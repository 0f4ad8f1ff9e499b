//! Primitives from a name, attributes and result types. The inverse of [`describe`](super::describe).

use super::attr::{Attr, AttrError, Attrs, flag, float, graph, int, list, text, word};
use crate::{
    Activation, ActivationFn, Contract, ConvSpec, Cumulative, DType, OpaqueKind, OpaqueOp, PadMode, PrimOp,
    ROUTINES, Recurrence, RecurrenceOperand, ReduceOp, RnnCell, RnnDirection, ScalarFn, ScanSpec, Shape,
    Window,
};

/// The primitive of this name with these attributes; `results` are the types stated for its results.
///
/// # Errors
/// If there is no such primitive, or attributes are missing, unknown or of the wrong kind.
pub fn build(name: &str, mut attrs: Attrs, results: &[(DType, Shape)]) -> Result<PrimOp, AttrError> {
    let op = match name.split_once('.') {
        Some(("reduce", op)) => {
            PrimOp::Reduce { op: reduction(op)?, axes: attrs.required("axes", list(int))? }
        }
        Some(("window", op)) => PrimOp::Window { op: reduction(op)?, window: window(&mut attrs)? },
        Some(("pad", mode)) => PrimOp::Pad {
            mode: (PadMode::ALL.into_iter().find(|m| m.name() == mode)).ok_or_else(|| unknown(name))?,
            low: attrs.required("low", list(int))?,
            high: attrs.required("high", list(int))?,
        },
        Some(("recurrence", cell)) => PrimOp::Recurrence(Box::new(recurrence(cell, &mut attrs)?)),
        Some(("routine", routine)) => opaque(self::routine(routine, &mut attrs)?, results),
        _ => plain(name, &mut attrs, results)?,
    };
    attrs.finish()?;
    Ok(op)
}

/// A primitive whose name has no parameter.
fn plain(name: &str, attrs: &mut Attrs, results: &[(DType, Shape)]) -> Result<PrimOp, AttrError> {
    let stated = || match results {
        [(dtype, shape)] => Ok((*dtype, shape.clone())),
        _ => Err((None, format!("{name} has one result, {} are stated", results.len()))),
    };
    Ok(match name {
        "broadcast" => PrimOp::Broadcast { shape: stated()?.1, dims: attrs.required("dims", list(int))? },
        "transpose" => PrimOp::Transpose { perm: attrs.required("perm", list(int))? },
        "reshape" => PrimOp::Reshape { shape: stated()?.1 },
        "slice" => slice(attrs, stated()?.1)?,
        "concat" => PrimOp::Concat { axis: attrs.required("axis", int)? },
        "pick" => PrimOp::Select { positions: attrs.required("positions", list(positions))? },
        "contract" => PrimOp::Contract(attrs.required("labels", |value| labels(&text(value)?))?),
        "conv" => PrimOp::Conv(convolution(attrs)?),
        "conv_transpose" => {
            let spec = convolution(attrs)?;
            let none = vec![0; spec.window.rank()];
            let output_padding = attrs.optional("output_padding", list(int))?.unwrap_or(none);
            let may_pad = attrs.optional("may_pad", flag)?.unwrap_or(false);
            PrimOp::ConvTranspose { spec, output_padding, may_pad }
        }
        "take" => PrimOp::Take { axis: attrs.required("axis", int)? },
        "take_along" => PrimOp::TakeAlong { axis: attrs.required("axis", int)? },
        "gather_nd" => PrimOp::GatherNd { batch_dims: attrs.required("batch_dims", int)? },
        "scatter_along" => {
            PrimOp::ScatterAlong { axis: attrs.required("axis", int)?, combine: combine(attrs)? }
        }
        "scatter_nd" => PrimOp::ScatterNd { combine: combine(attrs)? },
        "iota" => {
            let (dtype, shape) = stated()?;
            PrimOp::Iota { dtype, shape, axis: attrs.required("axis", int)? }
        }
        _ => match ScalarFn::from_name(name) {
            Some(function) => PrimOp::Map(function),
            None => opaque(opaque_kind(name, attrs)?, results),
        },
    })
}

fn unknown(name: &str) -> AttrError {
    (None, format!("there is no operation {name}"))
}

fn opaque(kind: OpaqueKind, results: &[(DType, Shape)]) -> PrimOp {
    PrimOp::Opaque(Box::new(OpaqueOp { kind, results: results.to_vec() }))
}

fn reduction(name: &str) -> Result<ReduceOp, AttrError> {
    reduce_op(name).ok_or_else(|| (None, format!("there is no reduction {name}")))
}

fn reduce_op(name: &str) -> Option<ReduceOp> {
    ReduceOp::ALL.into_iter().find(|op| op.name() == name)
}

fn combine(attrs: &mut Attrs) -> Result<Option<ReduceOp>, AttrError> {
    attrs.optional("combine", |value| reduce_op(&word(value)?))
}

fn window(attrs: &mut Attrs) -> Result<Window, AttrError> {
    let kernel: Vec<usize> = attrs.required("kernel", list(int))?;
    let rank = kernel.len();
    let mut or_all = |name: &str, default: usize| -> Result<Vec<usize>, AttrError> {
        Ok(attrs.optional(name, list(int))?.unwrap_or_else(|| vec![default; rank]))
    };
    Ok(Window {
        strides: or_all("strides", 1)?,
        dilations: or_all("dilations", 1)?,
        low: or_all("low", 0)?,
        high: or_all("high", 0)?,
        kernel,
    })
}

fn convolution(attrs: &mut Attrs) -> Result<ConvSpec, AttrError> {
    Ok(ConvSpec { window: window(attrs)?, groups: attrs.optional("groups", int)?.unwrap_or(1) })
}

fn slice(attrs: &mut Attrs, shape: Shape) -> Result<PrimOp, AttrError> {
    let starts: Vec<i64> = attrs.required("starts", list(int))?;
    let steps = attrs.optional("steps", list(int))?.unwrap_or_else(|| vec![1; starts.len()]);
    Ok(PrimOp::Slice { starts, steps, sizes: shape.to_vec() })
}

/// The positions picked along one dimension, or the word `all`.
fn positions(value: Attr<'static>) -> Option<Option<Vec<usize>>> {
    match value {
        Attr::Word(word) => (word == "all").then_some(None),
        other => list(int)(other).map(Some),
    }
}

/// `bmk,bkn->bmn`.
fn labels(text: &str) -> Option<Contract> {
    let (operands, out) = text.split_once("->")?;
    let (lhs, rhs) = operands.split_once(',')?;
    Some(Contract { lhs: label_list(lhs)?, rhs: label_list(rhs)?, out: label_list(out)? })
}

fn label_list(text: &str) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        labels.push(match c {
            'a'..='z' => c as u8 - b'a',
            'A'..='Z' => c as u8 - b'A' + 26,
            '<' => {
                let (number, tail) = rest.as_str().split_once('>')?;
                rest = tail.chars();
                number.parse().ok()?
            }
            _ => return None,
        });
    }
    Some(labels)
}

/// The opaque operation of this name.
fn opaque_kind(name: &str, attrs: &mut Attrs) -> Result<OpaqueKind, AttrError> {
    Ok(match name {
        "top_k" => OpaqueKind::TopK {
            axis: attrs.required("axis", int)?,
            k: attrs.required("k", int)?,
            largest: attrs.required("largest", flag)?,
            sorted: attrs.required("sorted", flag)?,
        },
        "cumulative" => OpaqueKind::Cumulative(Cumulative {
            axis: attrs.required("axis", int)?,
            op: attrs.required("op", |value| reduce_op(&word(value)?))?,
            exclusive: attrs.required("exclusive", flag)?,
            reverse: attrs.required("reverse", flag)?,
        }),
        "if" => OpaqueKind::If {
            then_graph: attrs.required("then", graph)?,
            else_graph: attrs.required("else", graph)?,
        },
        "loop" => OpaqueKind::Loop {
            carried: attrs.required("carried", int)?,
            trips: attrs.required("trips", int)?,
            body: attrs.required("body", graph)?,
        },
        "scan" => {
            let spec = ScanSpec {
                states: attrs.required("states", int)?,
                inputs: attrs.required("inputs", list(placement))?,
                outputs: attrs.required("outputs", list(placement))?,
            };
            OpaqueKind::Scan { body: attrs.required("body", graph)?, spec }
        }
        _ => return Err(unknown(name)),
    })
}

/// `[axis, forward]` or `[axis, reverse]`.
fn placement(value: Attr<'static>) -> Option<(usize, bool)> {
    let Attr::List(pair) = value else { return None };
    let [axis, direction]: [Attr<'static>; 2] = pair.try_into().ok()?;
    Some((int(axis)?, rnn_direction(direction)? == RnnDirection::Reverse))
}

fn rnn_direction(value: Attr<'static>) -> Option<RnnDirection> {
    match word(value)?.as_str() {
        "forward" => Some(RnnDirection::Forward),
        "reverse" => Some(RnnDirection::Reverse),
        _ => None,
    }
}

/// The recurrence of a cell.
fn recurrence(cell: &str, attrs: &mut Attrs) -> Result<Recurrence, AttrError> {
    let cell = match cell {
        "rnn" => RnnCell::Rnn,
        "gru" => RnnCell::Gru { linear_before_reset: attrs.required("linear_before_reset", flag)? },
        "lstm" => RnnCell::Lstm { input_forget: attrs.required("input_forget", flag)? },
        _ => return Err((None, format!("there is no cell {cell}"))),
    };
    let functions = attrs.required("activations", list(activation_function))?;
    let (alphas, betas) = (attrs.required("alphas", list(float))?, attrs.required("betas", list(float))?);
    if [alphas.len(), betas.len()] != [functions.len(); 2] {
        return Err((None, format!("{} activations, and parameters of others", functions.len())));
    }
    let parameters = alphas.into_iter().zip(betas);
    let activations = functions.into_iter().zip(parameters);
    Ok(Recurrence {
        cell,
        directions: attrs.required("directions", list(rnn_direction))?,
        activations: activations
            .map(|(function, (alpha, beta))| Activation { function, alpha, beta })
            .collect(),
        clip: attrs.optional("clip", float)?,
        operands: attrs.optional("operands", list(recurrence_operand))?.unwrap_or_default(),
    })
}

fn activation_function(value: Attr<'static>) -> Option<ActivationFn> {
    let name = word(value)?;
    ActivationFn::ALL.into_iter().find(|function| function.name() == name)
}

fn recurrence_operand(value: Attr<'static>) -> Option<RecurrenceOperand> {
    let name = word(value)?;
    RecurrenceOperand::ALL.into_iter().find(|operand| operand.name() == name)
}

fn routine(name: &str, attrs: &mut Attrs) -> Result<OpaqueKind, AttrError> {
    let known = ROUTINES.iter().find(|known| **known == name);
    Ok(OpaqueKind::Routine {
        name: known.ok_or_else(|| (None, format!("there is no routine {name}")))?,
        ints: attrs.optional("ints", list(int))?.unwrap_or_default(),
        floats: attrs.optional("floats", list(float))?.unwrap_or_default(),
        texts: attrs.optional("texts", list(text))?.unwrap_or_default(),
    })
}
