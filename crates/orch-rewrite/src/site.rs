//! What a rule sees of the graph, and what it may do: look at the node it is tried at and at what leads to it, and
//! add nodes. Nodes that a rule adds and does not use in the end are dropped.

use crate::draft::{Draft, Provenance};
use orch_ir::{BinaryFn, DType, NodeId, PrimOp, ScalarFn, Shape, Tensor, TensorId};
use std::rc::Rc;

/// A node at which a rule is tried.
pub(crate) struct Site<'d> {
    draft: &'d mut Draft,
    node: NodeId,
    provenance: Provenance,
}

/// A primitive with its operands.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) op: Rc<PrimOp>,
    pub(crate) inputs: Rc<[TensorId]>,
    origin: Rc<str>,
}

/// The most operators of the user's model that the origin of one node names.
const MAX_ORIGINS: usize = 3;

/// Between operators in the origin of a node that comes from several.
const AND: &str = " + ";

impl<'d> Site<'d> {
    /// The site of `node`.
    pub(crate) fn new(draft: &'d mut Draft, node: NodeId) -> Self {
        let root = &draft.nodes[node.index()];
        let provenance = Provenance { origin: root.origin.clone(), rank: root.rank };
        Self { draft, node, provenance }
    }

    /// The node's primitive and operands.
    pub(crate) fn root(&self) -> Made {
        self.made(self.node)
    }

    /// The node's result.
    pub(crate) fn result(&self) -> TensorId {
        self.draft.nodes[self.node.index()].outputs[0]
    }

    /// What computes a tensor, if it is the only result of a node.
    pub(crate) fn maker(&self, id: TensorId) -> Option<Made> {
        let producer = self.draft.tensors[id.index()].producer?;
        (self.draft.nodes[producer.index()].outputs.len() == 1).then(|| self.made(producer))
    }

    /// The operands of the elementwise function `f`, if that is what computes a tensor.
    pub(crate) fn mapped<const N: usize>(
        &self,
        id: TensorId,
        f: impl Into<ScalarFn>,
    ) -> Option<[TensorId; N]> {
        let made = self.maker(id)?;
        let wanted = f.into();
        if !matches!(&*made.op, PrimOp::Map(f) if *f == wanted) {
            return None;
        }
        made.inputs[..].try_into().ok()
    }

    /// The operand of the elementwise function that the root applies, if it is `f`.
    pub(crate) fn root_map<const N: usize>(&self, f: impl Into<ScalarFn>) -> Option<[TensorId; N]> {
        self.mapped(self.result(), f)
    }

    /// `(x, c)` if `f` of `x` and the known `c` computes a tensor, and `x` is not known. Operands of commutative functions
    /// count in either order.
    pub(crate) fn with_constant(&self, id: TensorId, f: BinaryFn) -> Option<(TensorId, TensorId)> {
        let [lhs, rhs] = self.mapped(id, f)?;
        match (self.is_known(lhs), self.is_known(rhs)) {
            (false, true) => Some((lhs, rhs)),
            (true, false) if f.is_commutative() => Some((rhs, lhs)),
            _ => None,
        }
    }

    /// The shape of a tensor.
    pub(crate) fn shape(&self, id: TensorId) -> &Shape {
        &self.draft.tensors[id.index()].shape
    }

    /// The element type of a tensor.
    pub(crate) fn dtype(&self, id: TensorId) -> DType {
        self.draft.tensors[id.index()].dtype
    }

    /// The number of uses of a tensor: operands and graph outputs.
    pub(crate) fn uses(&self, id: TensorId) -> usize {
        self.draft.uses(id)
    }

    /// True if a tensor has a single use.
    pub(crate) fn single(&self, id: TensorId) -> bool {
        self.uses(id) == 1
    }

    /// True if a tensor depends on constants alone.
    pub(crate) fn is_known(&self, id: TensorId) -> bool {
        self.draft.tensors[id.index()].source_bytes.is_some()
    }

    /// The value of a tensor that depends on constants alone, if it is not too large.
    pub(crate) fn known(&self, id: TensorId) -> Option<Tensor> {
        self.draft.known_value(id)
    }

    /// The value of a stored constant.
    pub(crate) fn constant(&self, id: TensorId) -> Option<&Tensor> {
        self.draft.tensors[id.index()].value.as_ref()
    }

    /// Adds a primitive that comes from the root's operator.
    pub(crate) fn emit(&mut self, op: PrimOp, inputs: &[TensorId]) -> Option<TensorId> {
        let provenance = self.provenance.clone();
        self.draft.add(Rc::new(op), inputs, &provenance)?.first().copied()
    }

    /// Adds a primitive that does the work of `made` and of the root.
    pub(crate) fn emit_for(&mut self, made: &Made, op: PrimOp, inputs: &[TensorId]) -> Option<TensorId> {
        let origin = joined(&made.origin, &self.provenance.origin);
        let provenance = Provenance { origin, rank: self.provenance.rank };
        self.draft.add(Rc::new(op), inputs, &provenance)?.first().copied()
    }

    /// Adds a constant whose elements are all `value`.
    pub(crate) fn full(&mut self, dtype: DType, value: f64, shape: &Shape) -> Option<TensorId> {
        let scalar = self.draft.constant(Tensor::from_f64(dtype, Shape::scalar(), &[value]));
        self.broadcast(scalar, shape, &[])
    }

    /// A known tensor whose elements are all the same, in another shape.
    pub(crate) fn first_element_repeated(&mut self, id: TensorId, shape: &Shape) -> Option<TensorId> {
        let mut source = id;
        while self.constant(source).is_none() {
            let made = self.maker(source)?;
            let repeats = matches!(&*made.op, PrimOp::Broadcast { .. } | PrimOp::Reshape { .. });
            source = repeats.then(|| made.inputs[0])?;
        }
        let value = self.constant(source)?;
        let first = value.bytes().slice(..value.dtype().size_bytes().min(value.bytes().len()));
        let scalar = Tensor::from_bytes(value.dtype(), Shape::scalar(), first).ok()?;
        let scalar = self.draft.constant(scalar);
        self.broadcast(scalar, shape, &[])
    }

    /// `value` broadcast to `shape`, its dimension `i` along `dims[i]`, in any order.
    pub(crate) fn spread(&mut self, value: TensorId, shape: &Shape, dims: &[usize]) -> Option<TensorId> {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&at| dims[at]);
        let sorted: Vec<usize> = order.iter().map(|&at| dims[at]).collect();
        let value = self.transpose(value, order)?;
        self.broadcast(value, shape, &sorted)
    }

    /// An elementwise function: computed before broadcasting, if its operands are broadcasts.
    pub(crate) fn map(&mut self, f: impl Into<ScalarFn>, inputs: &[TensorId]) -> Option<TensorId> {
        let f = f.into();
        self.map_under_broadcast(f, inputs).or_else(|| self.emit(PrimOp::Map(f), inputs))
    }

    /// An elementwise function of broadcasts along the same dimensions, or of scalars, computed before broadcasting.
    pub(crate) fn map_under_broadcast(&mut self, f: ScalarFn, inputs: &[TensorId]) -> Option<TensorId> {
        let operands: Vec<(TensorId, Vec<usize>)> =
            inputs.iter().map(|&input| self.broadcast_of(input)).collect::<Option<_>>()?;
        let (widest, dims) = operands.iter().max_by_key(|(_, dims)| dims.len()).cloned()?;
        let (narrow, wide) = (self.shape(widest).clone(), self.shape(inputs[0]).clone());
        let fits = |(source, own): &(TensorId, Vec<usize>)| {
            own.is_empty() || (*own == dims && *self.shape(*source) == narrow)
        };
        if narrow.elems() >= wide.elems() || !operands.iter().all(fits) {
            return None;
        }
        let mut sources = Vec::with_capacity(operands.len());
        for (source, own) in operands {
            sources.push(if own.is_empty() { self.broadcast(source, &narrow, &[])? } else { source });
        }
        let value = self.emit(PrimOp::Map(f), &sources)?;
        self.broadcast(value, &wide, &dims)
    }

    /// Operand and dimensions of the broadcast that computes a tensor.
    pub(crate) fn broadcast_of(&self, id: TensorId) -> Option<(TensorId, Vec<usize>)> {
        let made = self.maker(id)?;
        let PrimOp::Broadcast { dims, .. } = &*made.op else { return None };
        Some((made.inputs[0], dims.clone()))
    }

    /// An elementwise function of two operands.
    pub(crate) fn binary(&mut self, f: BinaryFn, lhs: TensorId, rhs: TensorId) -> Option<TensorId> {
        self.map(f, &[lhs, rhs])
    }

    /// The same elements under another shape.
    pub(crate) fn reshape(&mut self, x: TensorId, shape: Shape) -> Option<TensorId> {
        if *self.shape(x) == shape { Some(x) } else { self.emit(PrimOp::Reshape { shape }, &[x]) }
    }

    /// Output dimension `i` is dimension `perm[i]` of `x`.
    pub(crate) fn transpose(&mut self, x: TensorId, perm: Vec<usize>) -> Option<TensorId> {
        let identity = perm.iter().copied().eq(0..perm.len());
        if identity { Some(x) } else { self.emit(PrimOp::Transpose { perm }, &[x]) }
    }

    /// Dimension `i` of `x` becomes dimension `dims[i]`; the others repeat.
    pub(crate) fn broadcast(&mut self, x: TensorId, shape: &Shape, dims: &[usize]) -> Option<TensorId> {
        if self.shape(x) == shape && dims.len() == shape.rank() {
            return Some(x);
        }
        self.emit(PrimOp::Broadcast { shape: shape.clone(), dims: dims.to_vec() }, &[x])
    }

    fn made(&self, id: NodeId) -> Made {
        let node = &self.draft.nodes[id.index()];
        Made { op: node.op.clone(), inputs: node.inputs.clone(), origin: node.origin.clone() }
    }
}

/// The origin of a node that comes from two.
fn joined(first: &Rc<str>, second: &Rc<str>) -> Rc<str> {
    let parts: Vec<&str> = first.split(AND).collect();
    let new: Vec<&str> = second.split(AND).filter(|part| !parts.contains(part)).collect();
    if new.is_empty() || parts.len() + new.len() > MAX_ORIGINS {
        return first.clone();
    }
    [parts, new].concat().join(AND).into()
}
