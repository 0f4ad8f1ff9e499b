//! Parts of primitive graphs that are worth a search, as programs.
//!
//! ```text
//! PrimGraph --rotary--> rotary position embeddings, each as one primitive
//!           --grow----> sets of primitives that end in one result
//!           --translate (index, views, expr)--> expressions in index notation, without layouts and views
//!           --arrange-> MuGraph: every value has an order of dimensions
//! ```
//!
//! Fission emits a softmax that subtracts the maximum. The search works on programs without maxima, so a region leaves
//! them out, provided that [`crate::stabilise()`] can restore them.
//!
//! A region computes the same as its primitives for real numbers, under the premises that it states.

mod arrange;
mod band;
mod expr;
mod grow;
mod index;
mod rotary;
mod translate;
mod views;

use crate::band::Band;
use crate::graph::{InputKind, MuGraph, Node};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::stabilise::{Axis, analyse};
use arrange::{Arranged, arrange, join_labels, reachable};
pub use band::mask_band;
use expr::{Expr, ExprId, Exprs};
use grow::{End, Readers, choices};
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ScalarFn, TensorId};
use rotary::Rotaries;
use std::collections::{BTreeMap, BTreeSet};
use translate::translate;

/// A part of a primitive graph, as a program with one output.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// What it computes, by predefined operators.
    pub program: MuGraph,
    /// For each input of the program, in order, the view of a primitive tensor that it is.
    pub inputs: Vec<View>,
    /// The program's output as a view of the primitive tensor that it computes.
    pub output: View,
    /// The primitives that it replaces, ascending, views among them. Primitives outside may read results of some of
    /// them: those must be computed outside as well.
    pub nodes: Vec<NodeId>,
    /// True if the primitives subtract maxima from exponents and the program does not: a kernel that computes the
    /// program must be [stabilised](crate::stabilise()), which is possible.
    pub subtracts_maxima: bool,
    /// The conditions under which the program equals the primitives.
    pub premises: Vec<Premise>,
}

/// A strided view of a tensor of the primitive graph, with the dimensions of a program's tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The tensor. Elements are converted to f32 as they are read.
    pub tensor: TensorId,
    /// The stride of each dimension of the program's tensor, in elements of the row-major primitive tensor; 0 for
    /// repeated dimensions and those of extent 1.
    pub strides: Vec<usize>,
    /// The element of the primitive tensor, in row-major order, at index 0.
    pub offset: usize,
}

/// What must hold for a region to equal its primitives, beyond inputs being finite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Premise {
    /// Every row of a softmax has an element that is not masked out: the primitives' masks are finite, so they treat a
    /// row whose elements are all masked out as one without a mask.
    RowsAreSeen,
    /// Every row of a softmax has an element that is not masked out, or a quotient `0 / 0` is made 0: the primitives
    /// replace NaN by 0.
    HiddenRowsAreZero,
    /// Vectors that are divided by their length are longer than this, or a quotient `0 / 0` is made 0 and vectors
    /// that are shorter, but not 0, may become longer: the primitives divide by no less than this.
    LongerThan(f64),
}

/// Limits of the size of regions.
#[derive(Clone, Copy, Debug)]
pub struct RegionLimits {
    /// Most operators of a program, those of rotary position embeddings not counted.
    pub max_ops: usize,
    /// Most matrix products of a program.
    pub max_products: usize,
    /// Most inputs of a program, angles of rotary position embeddings not counted.
    pub max_inputs: usize,
    /// Most dimensions of its tensors, at least 2.
    pub max_dims: usize,
    /// Most regions that end in the same primitive.
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
    // Later results first: a result that lies within one of their regions needs no region that ends in it.
    for sink in graph.node_ids().rev() {
        let is_within = match readers.end(sink) {
            End::Never => true,
            End::Unless(last) => found.get(&last).is_some_and(|regions| any_contains(regions, sink)),
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
        // Of the regions that end here, those with the most products: they store the fewest intermediate results.
        let most = here.iter().map(|region| products(&region.program)).max();
        here.retain(|region| Some(products(&region.program)) == most);
        here.truncate(limits.max_per_sink);
        let copied: Vec<Region> = here.iter().filter_map(|region| of_copies(graph, region)).collect();
        here.extend(copied);
        here.iter_mut().for_each(|region| include_rounding(graph, &consumers, region));
        found.insert(sink, here);
    }
    found.into_values().flatten().collect()
}

/// True if one of the regions contains a primitive.
fn any_contains(regions: &[Region], node: NodeId) -> bool {
    regions.iter().any(|region| region.nodes.contains(&node))
}

/// The region that reads copies of tensors in place of the tensors, where it contains the copies (casts to the same type): a kernel
/// of its own may store them in the type that products take.
fn of_copies(graph: &PrimGraph, region: &Region) -> Option<Region> {
    let mut result = region.clone();
    let copies = region.nodes.iter().filter(|id| is_copy(graph, **id));
    for &id in copies {
        let node = graph.node(id);
        let reads = result.inputs.iter_mut().filter(|view| view.tensor == node.inputs[0]);
        for view in reads {
            view.tensor = node.outputs[0];
            result.nodes.retain(|other| *other != id);
        }
    }
    (result.nodes.len() < region.nodes.len()).then_some(result)
}

/// True for a cast of f32 to f32.
fn is_copy(graph: &PrimGraph, id: NodeId) -> bool {
    let node = graph.node(id);
    matches!(node.op, PrimOp::Map(ScalarFn::Cast(DType::F32))) && graph.dtype(node.inputs[0]) == DType::F32
}

/// Adds the rounding of a region's output to f16 or bf16 to the region, if nothing else reads the unrounded output: the
/// kernel that stores a result rounds it.
fn include_rounding(graph: &PrimGraph, consumers: &[Vec<NodeId>], region: &mut Region) {
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
    // All programs have the same name, so that regions that compute the same are equal.
    "part".clone_into(&mut program.name);
    let has_maxima = count(&program, is_maximum) > 0;
    let angles = 2 * count(&program, |op| matches!(op, Op::Rotate { .. }));
    if inputs.len() > limits.max_inputs + angles || has_plain || has_maxima || !is_worth_searching(&program) {
        return None;
    }
    let mut subtracts_maxima = false;
    for exponential in exponentials {
        let Some(over) = maxima.get(&exponential.value) else { continue };
        subtracts_maxima = true;
        let group = analyse(&program, (exponential.tensor, None)).ok()?;
        // One maximum must serve all exponentials that are summed.
        let shares_maximum = |axis: &Axis| match axis {
            Axis::Dim(dim) => exponential.labels[*dim].is_none_or(|label| over.contains(&label)),
            Axis::Loop | Axis::Grid(_) => false,
        };
        if !group.reduced.iter().all(shares_maximum) {
            return None;
        }
    }
    let output = View { tensor, strides: output, offset: 0 };
    let premises =
        premises.into_iter().filter(|&premise| !is_shown(graph, (&program, &inputs), premise)).collect();
    Some(Region { program, inputs, output, nodes, subtracts_maxima, premises })
}

/// True for a premise on rows that are masked out whole if the only mask is a band that hides no row.
fn is_shown(graph: &PrimGraph, (program, inputs): (&MuGraph, &[View]), premise: Premise) -> bool {
    let is_of_masks = match premise {
        Premise::RowsAreSeen => true,
        // What is added may be a mask too.
        Premise::HiddenRowsAreZero => count(program, |op| *op == Op::Binary(BinaryFn::Add)) == 0,
        Premise::LongerThan(_) => false,
    };
    let is_mask = |(_, (_, _, kind)): &(&View, (crate::TensorId, &str, InputKind))| *kind == InputKind::Mask;
    let masks: Vec<_> = inputs.iter().zip(program.inputs()).filter(is_mask).collect();
    let &[(view, (tensor, ..))] = &masks[..] else { return false };
    let (shape, uses) = (program.shape(tensor), count(program, |op| *op == Op::Binary(BinaryFn::Mask)));
    let [.., rows, columns] = *shape else { return false };
    let shows_all =
        |band: Band| band.shows_rows(rows, columns) && band.transposed().shows_rows(columns, rows);
    is_of_masks && uses == 1 && mask_band(graph, view, shape).is_some_and(shows_all)
}

/// False for programs that templates serve best: a product without a reduction before or after it, and a single
/// reduction without a product.
fn is_worth_searching(program: &MuGraph) -> bool {
    let reductions = count(program, |op| matches!(op, Op::Reduce { .. } | Op::RmsNorm { .. }));
    products(program) + reductions >= 2
}

/// True for the maxima, which the search does not support.
fn is_maximum(op: &Op) -> bool {
    matches!(op, Op::Reduce { f: ReduceFn::Max, .. } | Op::Binary(BinaryFn::Max))
}

/// The number of matrix products of a program.
fn products(program: &MuGraph) -> usize {
    count(program, |op| *op == Op::Matmul)
}

/// The number of a program's operators that satisfy a predicate.
fn count(program: &MuGraph, is_counted: impl Fn(&Op) -> bool) -> usize {
    let is_counted = |node: &Node| matches!(node, Node::Op { op, .. } if is_counted(op));
    program.nodes().filter(|(_, node)| is_counted(node)).count()
}

/// The premises of a region that uses these expressions.
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

/// True for exponentials whose whole row may be masked out. An input that is added to the exponent may be a mask.
fn may_hide_rows(exprs: &Exprs, id: ExprId) -> bool {
    match *exprs.get(id) {
        Expr::Unary(UnaryFn::Exp, exponent) => may_be_infinite(exprs, exponent),
        _ => false,
    }
}

/// True for exponents that may be minus infinity in a whole row.
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
