//! Abstract expressions: what a tile is, as a function of labelled indices, up to the laws of arithmetic.
//!
//! The target is saturated once in an e-graph, under rules that hold for real numbers. In contrast to Mirage's abstract
//! expressions, which forget what is summed, a sum names its index; so a term is in the e-graph only if it is equal to
//! part of the target, summed over the right dimension. Each index has three *parts*, inner to outer: within the tile,
//! along the loop, along the grid. A sum over an index is a sum over its parts, innermost first.

use super::labels::Labels;
use super::rope::{Rope, ropes};
use crate::graph::{MuGraph, Node};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use egg::{
    Analysis, DidMerge, EGraph, Id, Language, Rewrite, Runner, StopReason, Subst, Symbol, Var, rewrite,
};
use rustc_hash::FxHashMap;

#[allow(missing_docs)] // The names of the operators say it.
mod term {
    use egg::{Id, Symbol, define_language};
    define_language! {
    /// A term.
    pub enum Term {
        "+" = Add([Id; 2]),
        "-" = Sub([Id; 2]),
        "*" = Mul([Id; 2]),
        "/" = Div([Id; 2]),
        "mask" = Mask([Id; 2]),
        "exp" = Exp(Id),
        "sqrt" = Sqrt(Id),
        "silu" = Silu(Id),
        "sigmoid" = Sigmoid(Id),
        "tanh" = Tanh(Id),
        "gelu" = Gelu(Id),
        "relu" = Relu(Id),
        "erf" = Erf(Id),
        "sum" = Sum([Id; 2]),
        "rope" = Rope([Id; 6]),
        Part(u32),
        Leaf(Symbol),
    }
    }
}
pub use term::Term;

impl Term {
    /// A function of one value, if it is one of the algebra.
    pub fn unary(f: UnaryFn, x: Id) -> Option<Term> {
        match f {
            UnaryFn::Exp => Some(Term::Exp(x)),
            UnaryFn::Square => Some(Term::Mul([x, x])),
            UnaryFn::Sqrt => Some(Term::Sqrt(x)),
            UnaryFn::Silu => Some(Term::Silu(x)),
            UnaryFn::Sigmoid => Some(Term::Sigmoid(x)),
            UnaryFn::Tanh => Some(Term::Tanh(x)),
            UnaryFn::Gelu => Some(Term::Gelu(x)),
            UnaryFn::Relu => Some(Term::Relu(x)),
            UnaryFn::Erf => Some(Term::Erf(x)),
            UnaryFn::Log | UnaryFn::Guard => None,
        }
    }

    /// A function of two values, if it is one of the algebra.
    pub fn binary(f: BinaryFn, a: Id, b: Id) -> Option<Term> {
        match f {
            BinaryFn::Add => Some(Term::Add([a, b])),
            BinaryFn::Sub => Some(Term::Sub([a, b])),
            BinaryFn::Mul => Some(Term::Mul([a, b])),
            BinaryFn::Div => Some(Term::Div([a, b])),
            BinaryFn::Mask => Some(Term::Mask([a, b])),
            BinaryFn::Max => None,
        }
    }
}

/// The part of an index within the tile.
pub const TILE: u8 = 1;
/// The part along the loop.
pub const LOOP: u8 = 2;
/// The part along the grid.
pub const GRID: u8 = 4;
/// All parts.
pub const WHOLE: u8 = 7;

/// The indices that a class depends on: three bits per label.
#[derive(Clone, Debug, Default)]
struct Indices;

#[derive(Clone, Debug, Default, PartialEq)]
struct ClassFacts {
    free: u64,
    part: Option<u32>,
}

impl Analysis<Term> for Indices {
    type Data = ClassFacts;

    fn make(egraph: &mut EGraph<Term, Self>, node: &Term, _: Id) -> ClassFacts {
        let leaf = match node {
            Term::Leaf(name) => free_of_leaf(name.as_str()),
            _ => 0,
        };
        let free = node.children().iter().fold(leaf, |free, child| free | egraph[*child].data.free);
        match node {
            Term::Part(part) => ClassFacts { free: 0, part: Some(*part) },
            Term::Sum([part, _]) => {
                let part = egraph[*part].data.part.unwrap_or(0);
                ClassFacts { free: free & !(1 << part), part: None }
            }
            // The axis has the indices that operands alone have: of angles before they are spread, and of parts.
            Term::Rope([axis, ..]) => ClassFacts { free: free & !egraph[*axis].data.free, part: None },
            _ => ClassFacts { free, part: None },
        }
    }

    fn merge(&mut self, a: &mut ClassFacts, b: ClassFacts) -> DidMerge {
        let joint = a.free & b.free;
        let merged = DidMerge(a.free != joint, b.free != joint);
        a.free = joint;
        merged
    }
}

/// Leaves carry what they depend on in their names: `name@mask`.
fn leaf(name: &str, free: u64) -> Term {
    Term::Leaf(Symbol::from(format!("{name}@{free:x}")))
}

fn free_of_leaf(name: &str) -> u64 {
    name.rsplit_once('@').and_then(|(_, mask)| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
}

/// The saturated target: classes by term.
#[derive(Clone, Debug)]
pub struct Algebra {
    nodes: FxHashMap<Term, Id>,
    free: FxHashMap<Id, u64>,
    parents: FxHashMap<Id, Vec<(Term, Id)>>,
    /// The classes of the program's tensors.
    pub tensors: Vec<Id>,
    /// Constants that are multiplied or added, in the order of the program.
    pub constants: Vec<(Op, Id)>,
    /// Rotary position embeddings, in the order of [`ropes`].
    pub ropes: Vec<RopeTerm>,
    /// Terms in the e-graph.
    pub size: usize,
    /// True if no rule has anything to add.
    pub saturated: bool,
}

/// A rotary position embedding as a term: `rope axis result operand cos sin rest`. Where there is no rest the axis stands for
/// it and for the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RopeTerm {
    /// The class of the axis.
    pub axis: Id,
    /// The dimension of the pairs.
    pub dim: usize,
    /// The index of that dimension.
    pub label: Option<u8>,
    /// The indices of cosines and sines that are spread along it.
    pub of_angles: [Option<u8>; 2],
    /// The indices of what is joined to it, and of the result, along the dimension.
    pub of_rest: Option<[Option<u8>; 2]>,
}

/// Terms at which saturation stops.
pub const TERM_LIMIT: usize = 60_000;
const ITERATION_LIMIT: usize = 40;

impl Algebra {
    /// Saturates a program of predefined kernels.
    ///
    /// # Errors
    /// Names the operator that the algebra lacks.
    pub fn new(program: &MuGraph, labels: &Labels) -> Result<Algebra, String> {
        let Terms { egraph, tensors, constants, ropes } = terms(program, labels)?;
        let runner = Runner::default()
            .with_egraph(egraph)
            .with_node_limit(TERM_LIMIT)
            .with_iter_limit(ITERATION_LIMIT)
            // Limits are counts, so that results do not depend on the machine.
            .with_time_limit(std::time::Duration::from_secs(3600))
            .with_scheduler(egg::SimpleScheduler)
            .run(&rules());
        let saturated = matches!(runner.stop_reason, Some(StopReason::Saturated));
        let egraph = runner.egraph;
        let mut nodes = FxHashMap::default();
        let mut parents: FxHashMap<Id, Vec<(Term, Id)>> = FxHashMap::default();
        let mut free = FxHashMap::default();
        for class in egraph.classes() {
            free.insert(class.id, class.data.free);
            for node in &class.nodes {
                let node = node.clone().map_children(|child| egraph.find(child));
                for &child in node.children() {
                    parents.entry(child).or_default().push((node.clone(), class.id));
                }
                nodes.insert(node, class.id);
            }
        }
        for list in parents.values_mut() {
            list.sort();
            list.dedup();
        }
        let tensors = tensors.into_iter().map(|id| egraph.find(id)).collect();
        let constants = constants.into_iter().map(|(op, id)| (op, egraph.find(id))).collect();
        let ropes = ropes.into_iter().map(|rope| RopeTerm { axis: egraph.find(rope.axis), ..rope }).collect();
        let size = egraph.total_size();
        Ok(Algebra { nodes, free, parents, tensors, constants, ropes, size, saturated })
    }

    /// The constants of a program, in order.
    ///
    /// # Errors
    /// Names the operator that the algebra lacks.
    pub fn constants(program: &MuGraph, labels: &Labels) -> Result<Vec<Op>, String> {
        terms(program, labels).map(|terms| terms.constants.into_iter().map(|(op, _)| op).collect())
    }

    /// The class of a term, if it is part of the target.
    pub fn lookup(&self, term: &Term) -> Option<Id> {
        self.nodes.get(term).copied()
    }

    /// The class of a sum over parts of a label, innermost first.
    pub fn sum(&self, class: Id, label: u8, parts: u8) -> Option<Id> {
        (0..3).filter(|part| parts >> part & 1 == 1).try_fold(class, |class, part| {
            let part = self.lookup(&Term::Part(u32::from(label) * 3 + part))?;
            self.lookup(&Term::Sum([part, class]))
        })
    }

    /// Terms that a class is an operand of, and their classes.
    pub fn parents(&self, class: Id) -> &[(Term, Id)] {
        self.parents.get(&class).map_or(&[], Vec::as_slice)
    }

    /// Parts of indices that a class depends on: three bits per label.
    pub fn free(&self, class: Id) -> u64 {
        self.free.get(&class).copied().unwrap_or(0)
    }
}

/// The terms of a program, the class of each tensor, constants and rotary position embeddings.
struct Terms {
    egraph: EGraph<Term, Indices>,
    tensors: Vec<Id>,
    constants: Vec<(Op, Id)>,
    ropes: Vec<RopeTerm>,
}

fn terms(program: &MuGraph, labels: &Labels) -> Result<Terms, String> {
    let mut egraph: EGraph<Term, Indices> = EGraph::default();
    let mut tensors: Vec<Id> = Vec::new();
    let mut constants: Vec<(Op, Id)> = Vec::new();
    let mut terms: Vec<RopeTerm> = Vec::new();
    let ropes = ropes(program);
    let free = |id| labels.dims(id).iter().flatten().fold(0, |free, label| free | 7 << (3 * label));
    for (id, node) in program.nodes() {
        let class = match node {
            Node::Input { .. } => egraph.add(leaf(&format!("{id}"), free(id))),
            Node::Op { op, args } if args.is_empty() => {
                egraph.add(leaf(&format!("{id} {}", crate::text::op_text(op)), free(id)))
            }
            // Nothing is made of the parts of a rotary position embedding but the whole.
            Node::Op { .. } if ropes.iter().any(|rope| rope.inner.contains(&id)) => {
                egraph.add(leaf(&format!("{id}"), free(id)))
            }
            Node::Op { op, args } => {
                if let Some(rope) = ropes.iter().find(|rope| rope.result == id) {
                    let (term, class) = add_rope(&mut egraph, rope, labels, &tensors);
                    terms.push(term);
                    tensors.push(class);
                    continue;
                }
                let classes: Vec<Id> = args.iter().map(|arg| tensors[arg.index()]).collect();
                let mut add = Adder { egraph: &mut egraph, constants: &mut constants };
                add.op(
                    op,
                    &classes,
                    &|at, dim| labels.dims(args[at])[dim],
                    program.shape(args.first().copied().unwrap_or(id)),
                )
                .ok_or_else(|| format!("{id}: the search does not know {}", crate::text::op_text(op)))?
            }
            Node::Block(_) => return Err(format!("{id}: is defined by a block graph")),
        };
        tensors.push(class);
    }
    Ok(Terms { egraph, tensors, constants, ropes: terms })
}

/// Adds a rotary position embedding of tensors whose classes are known.
fn add_rope(egraph: &mut Graph, rope: &Rope, labels: &Labels, tensors: &[Id]) -> (RopeTerm, Id) {
    let label = labels.dims(rope.operand)[rope.dim];
    let of_angles = rope.angles.map(|id| labels.dims(id)[rope.dim].filter(|_| rope.spread.is_some()));
    let spread = match &rope.spread {
        None => "whole",
        Some(Op::Repeat { .. }) => "of neighbours",
        Some(_) => "of halves",
    };
    let of_rest = rope.rest.map(|rest| [rest.tensor, rope.result].map(|id| labels.dims(id)[rope.dim]));
    let side = match rope.rest {
        None => "alone",
        Some(rest) if rest.is_first => "after",
        Some(_) => "before",
    };
    let parts = of_rest.iter().flat_map(|[rest, _]| [label, *rest]);
    let bound = of_angles.into_iter().chain(parts).flatten().fold(0, |bound, label| bound | 7 << (3 * label));
    let axis = format!("axis {label:?} {} {spread} {side} {of_rest:?}", rope.group);
    let axis = egraph.add(leaf(&axis, bound));
    let [x, cos, sin] = [rope.operand, rope.angles[0], rope.angles[1]].map(|id| tensors[id.index()]);
    let mut rest = axis;
    let mut result = axis;
    if let Some(([_, label], own)) = of_rest.zip(rope.rest) {
        rest = tensors[own.tensor.index()];
        result = egraph.add(leaf("result", label.map_or(0, |label| 7 << (3 * label))));
    }
    let class = egraph.add(Term::Rope([axis, result, x, cos, sin, rest]));
    (RopeTerm { axis, dim: rope.dim, label, of_angles, of_rest }, class)
}

struct Adder<'a> {
    egraph: &'a mut EGraph<Term, Indices>,
    constants: &'a mut Vec<(Op, Id)>,
}

impl Adder<'_> {
    fn sum(&mut self, value: Id, label: Option<u8>) -> Id {
        let Some(label) = label else { return value };
        (0..3).fold(value, |value, part| {
            let part = self.egraph.add(Term::Part(u32::from(label) * 3 + part));
            self.egraph.add(Term::Sum([part, value]))
        })
    }

    fn constant(&mut self, op: &Op) -> Id {
        let id = self.egraph.add(leaf(&crate::text::op_text(op), 0));
        self.constants.push((op.clone(), id));
        id
    }

    fn op(
        &mut self,
        op: &Op,
        args: &[Id],
        label: &dyn Fn(usize, usize) -> Option<u8>,
        shape: &[usize],
    ) -> Option<Id> {
        let rank = shape.len();
        match op {
            Op::Matmul => {
                let product = self.egraph.add(Term::Mul([args[0], args[1]]));
                Some(self.sum(product, label(0, rank - 1)))
            }
            Op::Unary(f) => Some(self.egraph.add(Term::unary(*f, args[0])?)),
            Op::Binary(f) => Some(self.egraph.add(Term::binary(*f, args[0], args[1])?)),
            Op::Scale(_) => {
                let constant = self.constant(op);
                Some(self.egraph.add(Term::Mul([constant, args[0]])))
            }
            Op::Offset(_) => {
                let constant = self.constant(op);
                Some(self.egraph.add(Term::Add([constant, args[0]])))
            }
            Op::Reduce { f: ReduceFn::Sum, dim, keep: 1 } => Some(self.sum(args[0], label(0, *dim))),
            Op::RmsNorm { eps } => {
                let mut values = vec![args[0]];
                for (op, positions) in crate::eval::rms_norm(shape, *eps).ok()? {
                    let args: Vec<Id> = positions.iter().map(|&at| values[at]).collect();
                    let value = self.op(&op, &args, label, shape)?;
                    values.push(value);
                }
                values.pop()
            }
            Op::Reduce { .. } | Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } => {
                None
            }
            Op::Repeat { .. }
            | Op::Rotate { .. }
            | Op::Concat { .. }
            | Op::Causal { .. }
            | Op::Below { .. } => None,
        }
    }
}

type Graph = EGraph<Term, Indices>;

/// `p` is no index of `a`.
fn absent(part: &'static str, value: &'static str) -> impl Fn(&mut Graph, Id, &Subst) -> bool {
    let (part, value): (Var, Var) = (variable(part), variable(value));
    move |egraph, _, subst| {
        let part = egraph[subst[part]].data.part.unwrap_or(0);
        egraph[subst[value]].data.free >> part & 1 == 0
    }
}

/// Sums over indices of different labels.
fn different(a: &'static str, b: &'static str) -> impl Fn(&mut Graph, Id, &Subst) -> bool {
    let (a, b) = (variable(a), variable(b));
    move |egraph, _, subst| {
        let label = |var: Var| egraph[subst[var]].data.part.unwrap_or(0) / 3;
        label(a) != label(b)
    }
}

fn variable(name: &str) -> Var {
    name.parse().unwrap_or_else(|_| Var::from(Symbol::from(name)))
}

/// Laws of arithmetic, and of sums.
fn rules() -> Vec<Rewrite<Term, Indices>> {
    let one_way = vec![
        rewrite!("add commutes"; "(+ ?a ?b)" => "(+ ?b ?a)"),
        rewrite!("mul commutes"; "(* ?a ?b)" => "(* ?b ?a)"),
        rewrite!("mul associates"; "(* (* ?a ?b) ?c)" => "(* ?a (* ?b ?c))"),
        rewrite!("sums commute"; "(sum ?p (sum ?q ?a))" => "(sum ?q (sum ?p ?a))" if different("?p", "?q")),
        rewrite!("factor out of sum"; "(sum ?p (* ?a ?b))" => "(* ?a (sum ?p ?b))" if absent("?p", "?a")),
        rewrite!("factor into sum"; "(* ?a (sum ?p ?b))" => "(sum ?p (* ?a ?b))" if absent("?p", "?a")),
        rewrite!("divisor out of sum"; "(sum ?p (/ ?a ?b))" => "(/ (sum ?p ?a) ?b)" if absent("?p", "?b")),
        rewrite!("divisor into sum"; "(/ (sum ?p ?a) ?b)" => "(sum ?p (/ ?a ?b))" if absent("?p", "?b")),
    ];
    let both_ways = [
        rewrite!("divide a product"; "(* (/ ?a ?b) ?c)" <=> "(/ (* ?a ?c) ?b)"),
        rewrite!("divide twice"; "(/ (/ ?a ?b) ?c)" <=> "(/ ?a (* ?b ?c))"),
        rewrite!("distribute"; "(* ?a (+ ?b ?c))" <=> "(+ (* ?a ?b) (* ?a ?c))"),
        rewrite!("divide a sum of two"; "(/ (+ ?a ?b) ?c)" <=> "(+ (/ ?a ?c) (/ ?b ?c))"),
        rewrite!("sum a sum of two"; "(sum ?p (+ ?a ?b))" <=> "(+ (sum ?p ?a) (sum ?p ?b))"),
    ];
    one_way.into_iter().chain(both_ways.into_iter().flatten()).collect()
}
