//! A draft as an e-graph.

use super::term::{Signature, Symbol, Term, TermFacts};
use crate::draft::{Draft, Provenance};
use egg::{EGraph, Id};
use orch_ir::{DType, PrimOp, ScalarFn, Shape, TensorId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A primitive with the classes of its operands.
#[derive(Clone)]
pub(crate) struct ClassView {
    pub(crate) op: Rc<PrimOp>,
    pub(crate) children: Vec<Id>,
}

/// A graph and alternatives to its parts.
pub(crate) struct Space {
    pub(crate) graph: EGraph<Term, Signature>,
    /// Tensors that must exist in the end, with their classes when added.
    pub(crate) roots: Vec<(TensorId, Id)>,
    /// The terms of the draft, in topological order, with the classes they were added to.
    pub(crate) originals: Vec<(Term, Id)>,
    /// Where the terms of a class come from.
    pub(crate) provenance: BTreeMap<Id, Provenance>,
}

impl Space {
    /// The e-graph of a draft: one class per tensor.
    pub(crate) fn new(draft: &Draft) -> Self {
        let mut space = Self {
            graph: EGraph::new(Signature::default()),
            roots: Vec::new(),
            originals: Vec::new(),
            provenance: BTreeMap::new(),
        };
        let mut classes: BTreeMap<TensorId, Id> = BTreeMap::new();
        let mut wanted: Vec<TensorId> = draft.outputs.iter().map(|(_, id)| *id).collect();
        for id in draft.order() {
            let node = &draft.nodes[id.index()];
            for &input in node.inputs.iter() {
                classes.entry(input).or_insert_with(|| space.add_leaf(draft, input));
            }
            let [output] = node.outputs[..] else {
                wanted.extend(node.inputs.iter());
                continue;
            };
            if matches!(*node.op, PrimOp::Opaque(_)) {
                wanted.extend(node.inputs.iter());
                continue;
            }
            let children = node.inputs.iter().map(|input| classes[input]).collect();
            let symbol = Symbol::Op(space.graph.analysis.number(&node.op));
            let term = Term { symbol, children };
            let class = space.graph.add(term.clone());
            space.originals.push((term, class));
            let provenance = Provenance { origin: node.origin.clone(), rank: node.rank };
            space.provenance.insert(class, provenance);
            classes.insert(output, class);
        }
        wanted.sort_unstable();
        wanted.dedup();
        for tensor in wanted {
            let class = *classes.entry(tensor).or_insert_with(|| space.add_leaf(draft, tensor));
            space.roots.push((tensor, class));
        }
        space.graph.rebuild();
        space
    }

    fn add_leaf(&mut self, draft: &Draft, id: TensorId) -> Id {
        let tensor = &draft.tensors[id.index()];
        let facts = TermFacts {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            known: tensor.source_bytes.is_some(),
        };
        self.graph.analysis.leaves.insert(id, facts);
        self.graph.add(Term { symbol: Symbol::Leaf(id), children: Vec::new() })
    }

    /// Primitive and operands of a term; `None` for leaves.
    pub(crate) fn view(&self, term: &Term) -> Option<ClassView> {
        let Symbol::Op(number) = term.symbol else { return None };
        let op = self.graph.analysis.ops[number as usize].clone();
        Some(ClassView { op, children: term.children.iter().map(|&child| self.graph.find(child)).collect() })
    }

    /// All ways that a class is computed.
    pub(crate) fn views(&self, class: Id) -> Vec<ClassView> {
        let mut terms: Vec<&Term> = self.graph[class].nodes.iter().collect();
        terms.sort();
        terms.into_iter().filter_map(|term| self.view(term)).collect()
    }

    /// What is known about a class.
    pub(crate) fn facts(&self, class: Id) -> &TermFacts {
        &self.graph[class].data
    }

    /// The shape of a class.
    pub(crate) fn shape(&self, class: Id) -> &Shape {
        &self.facts(class).shape
    }

    /// The element type of a class.
    pub(crate) fn dtype(&self, class: Id) -> DType {
        self.facts(class).dtype
    }

    /// True if a class depends on constants alone.
    pub(crate) fn is_known(&self, class: Id) -> bool {
        self.facts(class).known
    }

    /// Adds a term; `None` if the operands do not suit.
    pub(crate) fn emit(&mut self, op: PrimOp, children: &[Id]) -> Option<Id> {
        let operands: Vec<&TermFacts> = children.iter().map(|&child| self.facts(child)).collect();
        self.graph.analysis.result(&op, &operands)?;
        let symbol = Symbol::Op(self.graph.analysis.number(&op));
        Some(self.graph.add(Term { symbol, children: children.to_vec() }))
    }

    /// An elementwise function.
    pub(crate) fn map(&mut self, f: impl Into<ScalarFn>, children: &[Id]) -> Option<Id> {
        self.emit(PrimOp::Map(f.into()), children)
    }

    /// Output dimension `i` is dimension `perm[i]` of `x`.
    pub(crate) fn transpose(&mut self, x: Id, perm: Vec<usize>) -> Option<Id> {
        let identity = perm.iter().copied().eq(0..perm.len());
        if identity { Some(x) } else { self.emit(PrimOp::Transpose { perm }, &[x]) }
    }

    /// The same elements under another shape.
    pub(crate) fn reshape(&mut self, x: Id, shape: Shape) -> Option<Id> {
        if *self.shape(x) == shape { Some(x) } else { self.emit(PrimOp::Reshape { shape }, &[x]) }
    }

    /// Dimension `i` of `x` becomes dimension `dims[i]`, in any order; the others repeat.
    pub(crate) fn spread(&mut self, x: Id, shape: &Shape, dims: &[usize]) -> Option<Id> {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&at| dims[at]);
        let sorted: Vec<usize> = order.iter().map(|&at| dims[at]).collect();
        let x = self.transpose(x, order)?;
        if self.shape(x) == shape && sorted.len() == shape.rank() {
            return Some(x);
        }
        self.emit(PrimOp::Broadcast { shape: shape.clone(), dims: sorted }, &[x])
    }

    /// The number of e-nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.graph.total_size()
    }

    /// The number of classes.
    pub(crate) fn class_count(&self) -> usize {
        self.graph.number_of_classes()
    }
}
