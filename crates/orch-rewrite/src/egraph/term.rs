//! The language of the e-graph: primitives by number, tensors of the draft as leaves.

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use orch_ir::infer::infer;
use orch_ir::{DType, PrimOp, Shape, TensorId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What stands at the head of a term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Symbol {
    /// A tensor that is not looked into: an input, a constant, a result of an operation with several.
    Leaf(TensorId),
    /// A primitive, by its number in [`Signature::ops`].
    Op(u32),
}

/// An e-node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Term {
    pub(crate) symbol: Symbol,
    pub(crate) children: Vec<Id>,
}

impl Language for Term {
    type Discriminant = Symbol;

    fn discriminant(&self) -> Symbol {
        self.symbol
    }

    fn matches(&self, other: &Self) -> bool {
        self.symbol == other.symbol && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

/// What is known about a class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TermFacts {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// It depends on constants alone.
    pub(crate) known: bool,
}

impl TermFacts {
    /// The bytes of the tensor.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.elems() * self.dtype.size_bytes()
    }
}

/// The table of primitives, and types by inference.
#[derive(Default)]
pub(crate) struct Signature {
    pub(crate) ops: Vec<Rc<PrimOp>>,
    numbers: BTreeMap<String, u32>,
    pub(crate) leaves: BTreeMap<TensorId, TermFacts>,
}

impl Signature {
    /// The number of a primitive.
    pub(crate) fn number(&mut self, op: &PrimOp) -> u32 {
        let ops = &mut self.ops;
        *self.numbers.entry(format!("{op:?}")).or_insert_with(|| {
            ops.push(Rc::new(op.clone()));
            u32::try_from(ops.len() - 1).expect("fewer primitives than nodes")
        })
    }

    /// The facts of a primitive's result, or `None` if the operands do not suit.
    pub(crate) fn result(&self, op: &PrimOp, operands: &[&TermFacts]) -> Option<TermFacts> {
        let types: Vec<(DType, &Shape)> = operands.iter().map(|facts| (facts.dtype, &facts.shape)).collect();
        let (dtype, shape) = infer(op, &types).ok()?.into_iter().next()?;
        Some(TermFacts { dtype, shape, known: operands.iter().all(|facts| facts.known) })
    }
}

impl Analysis<Term> for Signature {
    type Data = TermFacts;

    fn make(egraph: &mut EGraph<Term, Self>, term: &Term, _: Id) -> TermFacts {
        let signature = &egraph.analysis;
        match term.symbol {
            Symbol::Leaf(tensor) => signature.leaves[&tensor].clone(),
            Symbol::Op(number) => {
                let operands: Vec<&TermFacts> =
                    term.children.iter().map(|&child| &egraph[child].data).collect();
                let op = &signature.ops[number as usize];
                signature.result(op, &operands).expect("terms are inferred before they are added")
            }
        }
    }

    fn merge(&mut self, a: &mut TermFacts, b: TermFacts) -> DidMerge {
        let known = a.known || b.known;
        let merged = DidMerge(known != a.known, known != b.known);
        a.known = known;
        merged
    }
}
