//! The compute definition of a recurrence over time, which is a kernel by itself: its arguments as they are stored.
//!
//! Block programs have no order of steps; this stands beside them. What a recurrence computes is
//! [`Recurrence`]'s definition. All arguments are row-major.

use crate::alone::{operand_arg, result_arg};
use crate::block::Arg;
use crate::expr::ArgId;
use crate::storage::Storage;
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, Recurrence, RecurrenceExtents, RecurrenceOperand, TensorId};

/// One kernel's recurrence.
#[derive(Clone, Debug)]
pub struct RecurrenceProgram {
    /// A name for people, also the stem of the C function's name.
    pub name: String,
    /// What is computed.
    pub spec: Recurrence,
    /// Its extents.
    pub extents: RecurrenceExtents,
    /// The element type that the graph states: states are rounded to it after every step.
    pub dtype: DType,
    /// Tensor arguments: the operands in order, then the results that are wanted.
    pub args: Vec<Arg>,
    /// The hidden state after every step, if it is wanted.
    pub y: Option<ArgId>,
    /// The hidden state after the last step, if it is wanted.
    pub last_hidden: Option<ArgId>,
    /// The cell state after the last step, if it is wanted.
    pub last_cell: Option<ArgId>,
}

impl RecurrenceProgram {
    /// The recurrence among `nodes`, all others of which are views of its operands; `None` if there is none, or one of its
    /// tensors is not stored row by row.
    pub fn of(
        graph: &PrimGraph,
        nodes: &[NodeId],
        outputs: &[TensorId],
        storage: &Storage,
        name: impl Into<String>,
    ) -> Option<Self> {
        let is_recurrence = |id: &&NodeId| matches!(graph.node(**id).op, PrimOp::Recurrence(_));
        let node = graph.node(*nodes.iter().find(is_recurrence)?);
        let PrimOp::Recurrence(spec) = &node.op else { return None };
        let [x, r] = [0, 1].map(|at| graph.shape(node.inputs[at]));
        let extents = spec.extents(x, r).ok()?;
        let mut args = Vec::new();
        for &operand in &node.inputs {
            args.push(operand_arg(graph, nodes, storage, operand)?);
        }
        let mut result = |number: usize| -> Option<Option<ArgId>> {
            let Some(tensor) = node.outputs.get(number).filter(|tensor| outputs.contains(tensor)) else {
                return Some(None);
            };
            args.push(result_arg(graph, storage, *tensor)?);
            Some(Some(ArgId::new(args.len() - 1)))
        };
        let [y, last_hidden, last_cell] = [result(0)?, result(1)?, result(2)?];
        let (name, dtype) = (name.into(), graph.dtype(node.inputs[0]));
        Some(Self { name, spec: (**spec).clone(), extents, dtype, args, y, last_hidden, last_cell })
    }

    /// The argument that is `x`.
    pub const X: ArgId = ArgId(0);

    /// The argument that is the recurrence weights.
    pub const R: ArgId = ArgId(1);

    /// The argument that is an optional operand.
    pub fn operand(&self, operand: RecurrenceOperand) -> Option<ArgId> {
        self.spec.position(operand).map(ArgId::new)
    }

    /// The argument with this id.
    pub fn arg(&self, id: ArgId) -> &Arg {
        &self.args[id.index()]
    }

    /// The type in which states are computed.
    pub fn compute_type(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Products with recurrence weights in one step of one sequence in one direction.
    pub fn products(&self) -> usize {
        self.spec.cell.gates() * self.extents.hidden * self.extents.hidden
    }
}
