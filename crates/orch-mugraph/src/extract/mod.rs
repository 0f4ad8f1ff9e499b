//! Parts of primitive graphs that are worth a search, as programs.
//!
//! A region grows backward from a product or a normalisation (`grow`), is written in index notation (`translate`),
//! where views have vanished and what programs have an operator for is recognised (`expr`), and gets an order of
//! dimensions (`arrange`). Primitives that are a rotary position embedding are one from the start (`rotary`). Fission
//! emits stable softmax; its maxima are left out, since the search works on programs without, provided that they can be
//! put back ([`crate::stabilise()`]).
//!
//! A region equals its primitives for real numbers, under the premises that it states.

mod arrange;
mod expr;
mod grow;
mod index;
mod rotary;
mod translate;
mod views;

use crate::graph::{MuGraph, Node};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::stabilise::{Axis, analyse};
use arrange::{Arranged, arrange, join_labels, reachable};
use expr::{Expr, ExprId, Exprs};
use grow::{End, Readers, choices};
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ScalarFn, TensorId};
use rotary::Rotaries;
use std::collections::{BTreeMap, BTreeSet};
use translate::translate;

/// A part of a primitive graph as a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// What it computes, with one output, by predefined operators.
    pub program: MuGraph,
    /// What each input of the program is, in order.
    pub inputs: Vec<View>,
    /// How the program's output is seen in the primitive tensor it computes.
    pub output: View,
    /// The primitives that it stands for, ascending, views among them. Others may read what some of them compute.
    pub nodes: Vec<NodeId>,
    /// True if the primitives subtract maxima from exponents, which the program does not: what computes it must be
    /// [stabilised](crate::stabilise()), and can be.
    pub subtracts_maxima: bool,
    /// What is taken for granted.
    pub premises: Vec<Premise>,
}

/// A stored tensor of the primitive graph seen by the shape of a program's tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The tensor. Elements are converted to f32 as they are read.
    pub tensor: TensorId,
    /// Elements, in row-major order of the primitive tensor, from one index to the next one, for each dimension of the
    /// program's tensor; 0 where it is repeated or has an extent of 1.
    pub strides: Vec<usize>,
    /// The first element.
    pub offset: usize,
}

/// What must hold for a region to equal its primitives, beyond inputs being finite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Premise {
    /// Every row of a softmax has an element that is not masked out: the primitives' masks are finite, so that a row
    /// whose elements are all masked out is as if none were.
    RowsAreSeen,
    /// Every row of a softmax has an element that is not masked out, or a quotient `0 / 0` is made 0: the primitives
    /// replace NaN by 0.
    HiddenRowsAreZero,
    /// Vectors that are divided by their length are longer than this, or a quotient `0 / 0` is made 0 and vectors
    /// that are shorter, but not 0, may become longer: the primitives divide by no less than this.
    LongerThan(f64),
}

/// How large regions may be.
#[derive(Clone, Copy, Debug)]
pub struct RegionLimits {
    /// Operators of a program, those that it has for rotary position embeddings not counted.
    pub max_ops: usize,
    /// Matrix products of a program.
    pub max_products: usize,
    /// Inputs of a program, angles of rotary position embeddings not counted.
    pub max_inputs: usize,
    /// Dimensions of its tensors, at least 2.
    pub max_dims: usize,
    /// Regions that end in the same primitive.
    pub max_per_sink: usize,
}

impl Default for RegionLimits {
    fn default() -> Self {
        RegionLimits { max_ops: 9, max_products: 3, max_inputs: 6, max_dims: 4, max_per_sink: 4 }
    }
}

/// The regions of a valid graph, in the order of the primitives they end in, each from small to large. Values between
/// primitives may be f32, f16 or bf16: a region does not round them.
pub fn regions(graph: &PrimGraph, limits: &RegionLimits) -> Vec<Region> {
    let (rotaries, consumers) = (Rotaries::of(graph), graph.consumers());
    let readers = Readers::of(graph, &rotaries);
    let mut found: BTreeMap<NodeId, Vec<Region>> = BTreeMap::new();
    // Later results first: what is within one of their regions needs none of its own.
    for sink in graph.node_ids().rev() {
        let is_within = match readers.end(sink) {
            End::Never => true,
            End::Unless(last) => found.get(&last).is_some_and(|regions| have(regions, sink)),
            End::Always => false,
        };
        if is_within {
            continue;
        }
        let mut here: Vec<Region> = Vec::new();
        for members in choices(&readers, sink, limits) {
            let region = region(graph, &rotaries, &members, limits);
            here.extend(region.filter(|region| !here.iter().any(|other| other.program == region.program)));
        }
        // What takes in more products is better: fewer results are stored in between.
        let most = here.iter().map(|region| products(&region.program)).max();
        here.retain(|region| Some(products(&region.program)) == most);
        here.truncate(limits.max_per_sink);
        here.iter_mut().for_each(|region| round(graph, &consumers, region));
        found.insert(sink, here);
    }
    found.into_values().flatten().collect()
}

fn have(regions: &[Region], node: NodeId) -> bool {
    regions.iter().any(|region| region.nodes.contains(&node))
}

/// Takes in the rounding of a region's output to f16 or bf16: the kernel that stores a result rounds it.
fn round(graph: &PrimGraph, consumers: &[Vec<NodeId>], region: &mut Region) {
    let tensor = region.output.tensor;
    let is_output = graph.outputs.iter().any(|(_, output)| *output == tensor);
    let [reader] = consumers[tensor.index()][..] else { return };
    let is_rounding = matches!(graph.node(reader).op, PrimOp::Map(ScalarFn::Cast(DType::F16 | DType::BF16)));
    if is_rounding && !is_output {
        region.nodes.push(reader);
        region.output.tensor = graph.node(reader).outputs[0];
    }
}

/// The region of a set of primitives, if there is one that is worth a search.
fn region(
    graph: &PrimGraph,
    rotaries: &Rotaries,
    members: &BTreeSet<NodeId>,
    limits: &RegionLimits,
) -> Option<Region> {
    let mut translated = translate(graph, rotaries, members)?;
    join_labels(&mut translated);
    let used = reachable(&translated.exprs, translated.root);
    let premises = premises(&translated.exprs, &used);
    let maxima = translated.exprs.without_maximum.clone();
    let has_plain = maxima.keys().any(|exp| translated.exprs.plain.contains(exp));
    let nodes = translated.nodes.iter().copied().collect();
    let tensor = *graph.node(*members.last()?).outputs.first()?;
    let Arranged { mut program, inputs, output, exponentials } = arrange(graph, translated, limits)?;
    // Equal parts are equal programs.
    "part".clone_into(&mut program.name);
    let has_maxima = count(&program, is_maximum) > 0;
    let angles = 2 * count(&program, |op| matches!(op, Op::Rotate { .. }));
    if inputs.len() > limits.max_inputs + angles || has_plain || has_maxima || !is_worth_it(&program) {
        return None;
    }
    let mut subtracts_maxima = false;
    for exponential in exponentials {
        let Some(over) = maxima.get(&exponential.value) else { continue };
        subtracts_maxima = true;
        let group = analyse(&program, (exponential.tensor, None)).ok()?;
        // The maximum must have been the same for all that are summed.
        let is_one = |axis: &Axis| match axis {
            Axis::Dim(dim) => exponential.labels[*dim].is_none_or(|label| over.contains(&label)),
            Axis::Loop | Axis::Grid(_) => false,
        };
        if !group.reduced.iter().all(is_one) {
            return None;
        }
    }
    let output = View { tensor, strides: output, offset: 0 };
    Some(Region { program, inputs, output, nodes, subtracts_maxima, premises })
}

/// False for what templates serve best: a product without anything that is summed before or after it, and a single row
/// of sums without a product.
fn is_worth_it(program: &MuGraph) -> bool {
    let sums = count(program, |op| matches!(op, Op::Reduce { .. } | Op::RmsNorm { .. }));
    products(program) + sums >= 2
}

/// Maxima that stay are nothing that the search knows.
fn is_maximum(op: &Op) -> bool {
    matches!(op, Op::Reduce { f: ReduceFn::Max, .. } | Op::Binary(BinaryFn::Max))
}

fn products(program: &MuGraph) -> usize {
    count(program, |op| *op == Op::Matmul)
}

fn count(program: &MuGraph, is_counted: impl Fn(&Op) -> bool) -> usize {
    let is_counted = |node: &Node| matches!(node, Node::Op { op, .. } if is_counted(op));
    program.nodes().filter(|(_, node)| is_counted(node)).count()
}

fn premises(exprs: &Exprs, used: &BTreeSet<ExprId>) -> Vec<Premise> {
    let may_be_nan = used.iter().any(|id| may_hide_rows(exprs, *id));
    let bound = exprs.without_bound.iter().copied().fold(0.0, f64::max);
    let premises = [
        (!exprs.finite_masks.is_disjoint(used), Premise::RowsAreSeen),
        (may_be_nan && !exprs.without_nan.is_disjoint(used), Premise::HiddenRowsAreZero),
        (bound > 0.0, Premise::LongerThan(bound)),
    ];
    premises.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, premise)| premise).collect()
}

/// True for exponentials all of whose row may be masked out. A tensor that is added may be a mask.
fn may_hide_rows(exprs: &Exprs, id: ExprId) -> bool {
    match *exprs.get(id) {
        Expr::Unary(UnaryFn::Exp, exponent) => may_be_infinite(exprs, exponent),
        _ => false,
    }
}

fn may_be_infinite(exprs: &Exprs, exponent: ExprId) -> bool {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![exponent]);
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        match *exprs.get(id) {
            Expr::Binary(BinaryFn::Add, a, b) => {
                if [a, b].iter().any(|&operand| matches!(exprs.get(operand), Expr::Input(_))) {
                    return true;
                }
                pending.extend([a, b]);
            }
            // No row of a causal mask is empty.
            Expr::Binary(BinaryFn::Mask, value, mask) => match exprs.get(mask) {
                Expr::Causal { .. } => pending.push(value),
                _ => return true,
            },
            Expr::Scale(_, x) | Expr::Offset(_, x) | Expr::Reduce(ReduceFn::Max, _, x) => pending.push(x),
            _ => {}
        }
    }
    false
}
