//! Rotary position embeddings in programs: `x * cos + rotate(x) * sin`, one operator of the search.
//!
//! What they are made of is not searched for: the four operators stand side by side wherever the whole is needed, on tiles
//! that have all of the index that is rotated. Angles may be those of one element of each pair; they are spread to both
//! then, by a concatenation of two copies or by a repetition. Where part of an index is rotated, the rest is joined to it.

use crate::graph::{MuGraph, Node, TensorId};
use crate::op::{BinaryFn, Op};

/// Operators that a rotary position embedding counts for beside its operand: two angles, and itself.
pub const OPS: usize = 3;

/// Operators that it counts for beside those if there is a rest.
pub const REST_OPS: usize = 1;

/// A rotary position embedding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rope {
    /// What it gives.
    pub result: TensorId,
    /// What is rotated.
    pub operand: TensorId,
    /// Cosines and sines, before they are spread.
    pub angles: [TensorId; 2],
    /// The dimension of the pairs.
    pub dim: usize,
    /// Distance between the elements of a pair.
    pub group: usize,
    /// What spreads angles to both elements of a pair.
    pub spread: Option<Op>,
    /// What is joined to what is rotated, along that dimension.
    pub rest: Option<Rest>,
    /// The tensors in between that nothing else reads.
    pub inner: Vec<TensorId>,
}

/// What is not rotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// What it is.
    pub tensor: TensorId,
    /// True if it comes before what is rotated.
    pub is_first: bool,
}

/// All rotary position embeddings of a program of predefined kernels, in order. What others read too, of the tensors in
/// between, is a value of its own and left out.
pub fn ropes(program: &MuGraph) -> Vec<Rope> {
    let is_output = |id: TensorId| program.outputs().iter().any(|(_, output)| *output == id);
    let mut found: Vec<Rope> =
        program.nodes().filter_map(|(id, _)| joined(program, id).or_else(|| rope(program, id))).collect();
    let inner: Vec<TensorId> = found.iter().flat_map(|rope| rope.inner.iter().copied()).collect();
    found.retain(|rope| !inner.contains(&rope.result));
    for rope in &mut found {
        let all = rope.inner.clone();
        let is_known = |reader: &TensorId| all.contains(reader) || *reader == rope.result;
        rope.inner.retain(|id| !is_output(*id) && readers(program, *id).iter().all(is_known));
    }
    found
}

fn readers(program: &MuGraph, id: TensorId) -> Vec<TensorId> {
    program.nodes().filter(|(_, node)| node.args().contains(&id)).map(|(reader, _)| reader).collect()
}

/// One that is joined to what is not rotated, and read for nothing else.
fn joined(program: &MuGraph, result: TensorId) -> Option<Rope> {
    let Node::Op { op: Op::Concat { dim }, args } = program.definition(result)? else { return None };
    let [first, last] = args[..] else { return None };
    let mut ways = [(first, last, false), (last, first, true)].into_iter();
    ways.find_map(|(turned, tensor, is_first)| {
        let mut rope = rope(program, turned).filter(|rope| rope.dim == *dim)?;
        let is_output = program.outputs().iter().any(|(_, output)| *output == turned);
        if is_output || readers(program, turned) != [result] || turned == tensor {
            return None;
        }
        rope.inner.push(turned);
        Some(Rope { result, rest: Some(Rest { tensor, is_first }), ..rope })
    })
}

fn rope(program: &MuGraph, result: TensorId) -> Option<Rope> {
    let summands = operands(program, result, BinaryFn::Add)?;
    let [turned, plain] = [summands, [summands[1], summands[0]]]
        .into_iter()
        .find(|[turned, _]| rotated_factor(program, *turned).is_some())?;
    let (rotated, operand, sine, dim, group) = rotated_factor(program, turned)?;
    let [a, b] = operands(program, plain, BinaryFn::Mul)?;
    let cosine = if a == operand { b } else { (b == operand).then_some(a)? };
    let (cos, sin) = (spread(program, cosine, dim), spread(program, sine, dim));
    if cos.1 != sin.1 {
        return None;
    }
    let mut inner = vec![turned, plain, rotated];
    inner.extend(cos.1.iter().flat_map(|_| [cosine, sine]));
    Some(Rope { result, operand, angles: [cos.0, sin.0], dim, group, spread: cos.1, rest: None, inner })
}

/// The operands of a function of two values.
fn operands(program: &MuGraph, id: TensorId, f: BinaryFn) -> Option<[TensorId; 2]> {
    match program.definition(id)? {
        Node::Op { op: Op::Binary(own), args } if *own == f => Some([args[0], args[1]]),
        _ => None,
    }
}

/// `rotate(x) * sin`: the rotated tensor, `x`, the other factor, dimension and distance.
fn rotated_factor(program: &MuGraph, id: TensorId) -> Option<(TensorId, TensorId, TensorId, usize, usize)> {
    let [a, b] = operands(program, id, BinaryFn::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(rotated, other)| match program.definition(rotated)? {
        Node::Op { op: Op::Rotate { dim, group }, args } => Some((rotated, args[0], other, *dim, *group)),
        _ => None,
    })
}

/// Angles before they are spread along a dimension, and what spreads them.
fn spread(program: &MuGraph, id: TensorId, along: usize) -> (TensorId, Option<Op>) {
    match program.definition(id) {
        Some(Node::Op { op: op @ Op::Concat { dim }, args })
            if *dim == along && args.len() == 2 && args[0] == args[1] =>
        {
            (args[0], Some(op.clone()))
        }
        Some(Node::Op { op: op @ Op::Repeat { dim, times: 2 }, args }) if *dim == along => {
            (args[0], Some(op.clone()))
        }
        _ => (id, None),
    }
}
