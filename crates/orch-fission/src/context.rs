//! The state of one fission: the primitive graph under construction and what each value of the model became.
//!
//! Constructors of primitives are in `build`, constant folding in `fold.rs`.

use crate::fold::MAX_ASKED_BYTES;
use crate::{Call, FissionOptions, RuleError};
use orch_ir::validate::validate_opaque;
use orch_ir::{DType, Encoding, OpaqueOp, PrimGraph, PrimOp, Shape, Tensor, TensorId};
use std::collections::BTreeMap;

/// What a value of the model became.
#[derive(Clone, PartialEq, Debug)]
pub enum Operand {
    /// A tensor: nearly everything.
    Tensor(TensorId),
    /// A tensor of a type that nothing computes in, as its codes.
    Encoded {
        /// One code per element.
        codes: TensorId,
        /// What the codes mean.
        encoding: Encoding,
    },
    /// A sequence of tensors; its length is known.
    Sequence(Vec<TensorId>),
    /// An optional that holds nothing.
    Absent,
}

impl From<TensorId> for Operand {
    fn from(tensor: TensorId) -> Self {
        Operand::Tensor(tensor)
    }
}

/// What a name of the model stands for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Binding {
    /// A value.
    Value(Operand),
    /// A value that could not be computed; the reason is already among the errors.
    Poisoned,
}

/// Builds a [`PrimGraph`]; rules see the model through it.
pub struct Context<'a> {
    pub(crate) options: &'a FissionOptions,
    pub(crate) graph: PrimGraph,
    /// What the names of the model stand for here, those of enclosing graphs included.
    pub(crate) names: BTreeMap<String, Binding>,
    /// Tensors that depend on constants alone, with the bytes of the constants they come from.
    pub(crate) known: BTreeMap<TensorId, usize>,
    /// Values of known tensors that are not constants of the graph, as far as somebody asked for them.
    pub(crate) values: BTreeMap<TensorId, Tensor>,
    /// The sizes of all values that were ever evaluated because a rule asked for them.
    pub(crate) asked_bytes: usize,
    /// The sizes of `values`.
    pub(crate) kept_bytes: usize,
    /// Operators of the model that rules were applied to so far.
    pub(crate) operators: usize,
    scalars: BTreeMap<(DType, i64), TensorId>,
}

impl<'a> Context<'a> {
    /// An empty graph.
    pub fn new(name: &str, options: &'a FissionOptions) -> Self {
        Self {
            options,
            graph: PrimGraph::new(name),
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            values: BTreeMap::new(),
            asked_bytes: 0,
            kept_bytes: 0,
            operators: 0,
            scalars: BTreeMap::new(),
        }
    }

    /// The graph as it is so far.
    pub fn graph(&self) -> &PrimGraph {
        &self.graph
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: TensorId) -> Shape {
        self.graph.shape(tensor).clone()
    }

    /// The number of dimensions of a tensor.
    pub fn rank(&self, tensor: TensorId) -> usize {
        self.graph.shape(tensor).rank()
    }

    /// The element type of a tensor.
    pub fn dtype(&self, tensor: TensorId) -> DType {
        self.graph.dtype(tensor)
    }

    /// Adds a constant.
    pub fn tensor(&mut self, value: Tensor) -> TensorId {
        let bytes = value.bytes().len();
        let id = self.graph.add_constant(value);
        self.known.insert(id, bytes);
        id
    }

    /// A scalar constant: floats are rounded to nearest even, integers truncated and saturated. Equal ones are
    /// shared.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> TensorId {
        let tensor = Tensor::from_f64(dtype, Shape::scalar(), &[value]);
        self.shared_scalar(tensor)
    }

    /// A scalar constant from an integer, exact for the 64-bit types; narrower integers wrap.
    pub fn scalar_int(&mut self, dtype: DType, value: i64) -> TensorId {
        let tensor = Tensor::from_i64(dtype, Shape::scalar(), &[value]);
        self.shared_scalar(tensor)
    }

    /// A scalar constant of the element type of `like`. Elementwise constructors broadcast it.
    pub fn scalar_like(&mut self, like: TensorId, value: f64) -> TensorId {
        self.scalar(self.dtype(like), value)
    }

    fn shared_scalar(&mut self, tensor: Tensor) -> TensorId {
        let mut bits = [0u8; 8];
        bits[..tensor.bytes().len()].copy_from_slice(tensor.bytes());
        let key = (tensor.dtype(), i64::from_le_bytes(bits));
        if let Some(&id) = self.scalars.get(&key) {
            return id;
        }
        let id = self.tensor(tensor);
        self.scalars.insert(key, id);
        id
    }

    /// The value of constant operand `index`.
    ///
    /// # Errors
    /// If it is left out, or not known when compiling; `what` names it in the message.
    pub fn constant_operand(
        &mut self,
        call: &Call<'_>,
        index: usize,
        what: &str,
    ) -> Result<Tensor, RuleError> {
        let tensor = call.tensor(index)?;
        self.constant(tensor).ok_or_else(|| match self.is_known(tensor) {
            true => RuleError::unsupported(format!(
                "operand {index} ({what}) is constant, but takes values of more than {} MiB, or of {} MiB in all so far, to compute: store \
                 it in the model",
                MAX_ASKED_BYTES >> 20,
                self.most_asked_bytes() >> 20
            )),
            false => RuleError::NotConstant(format!("{index} ({what})")),
        })
    }

    /// The values of constant integer operand `index` (shapes, axes, ...).
    ///
    /// # Errors
    /// If it is left out, not known when compiling, or not of integers.
    pub fn int_operand(&mut self, call: &Call<'_>, index: usize, what: &str) -> Result<Vec<i64>, RuleError> {
        let value = self.constant_operand(call, index, what)?;
        value.to_i64().ok_or_else(|| {
            RuleError::invalid(format!(
                "operand {index} ({what}) is {}, integers are expected",
                value.dtype()
            ))
        })
    }

    /// Like [`Context::int_operand`], for an operand that may be left out.
    ///
    /// # Errors
    /// If it is there and not known when compiling, or not of integers.
    pub fn optional_int_operand(
        &mut self,
        call: &Call<'_>,
        index: usize,
        what: &str,
    ) -> Result<Option<Vec<i64>>, RuleError> {
        match call.optional_tensor(index)? {
            None => Ok(None),
            Some(_) => self.int_operand(call, index, what).map(Some),
        }
    }

    /// Adds a primitive with one result, or its value if it can be computed now; see `fold.rs`.
    ///
    /// # Errors
    /// If the operands do not suit the primitive.
    pub fn emit(&mut self, op: PrimOp, inputs: &[TensorId]) -> Result<TensorId, RuleError> {
        Ok(self.emit_all(op, inputs)?[0])
    }

    /// Adds an opaque operation, which may have several results.
    ///
    /// # Errors
    /// If the operands do not suit the operation.
    pub fn emit_opaque(&mut self, op: OpaqueOp, inputs: &[TensorId]) -> Result<Vec<TensorId>, RuleError> {
        let types: Vec<_> =
            inputs.iter().map(|&t| (self.graph.dtype(t), self.graph.shape(t).clone())).collect();
        match validate_opaque(&op, &types).into_iter().next() {
            Some(violation) => Err(RuleError::invalid(violation.message)),
            None => self.emit_all(PrimOp::Opaque(Box::new(op)), inputs),
        }
    }
}
