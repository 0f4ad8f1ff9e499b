//! A graph under construction by the parser: inputs are stated in signature order, but take their place among the tensors by
//! id.

use super::lex::{ParseError, Position};
use crate::{DType, PrimGraph, Shape, TensorId};

/// A tensor's definition: where it stands, its id and type.
pub struct Typed {
    pub position: Position,
    pub id: TensorId,
    pub dtype: DType,
    pub shape: Shape,
}

/// A graph under construction.
#[derive(Default)]
pub struct Draft {
    /// What is defined so far.
    pub graph: PrimGraph,
    /// Inputs in signature order.
    pub inputs: Vec<(String, Typed)>,
    /// Positions in `inputs` of those whose tensors are not defined yet, by descending id.
    pending: Vec<usize>,
    /// Outputs and where they name their tensors.
    pub outputs: Vec<(String, TensorId, Position)>,
    /// True once another statement than an input was met.
    pub inputs_end: bool,
}

impl Draft {
    /// A draft of an empty graph.
    pub fn new(name: String) -> Self {
        Self { graph: PrimGraph::new(name), ..Self::default() }
    }

    /// Defines the tensors of pending inputs up to `next`, or all.
    fn define_inputs(&mut self, next: Option<TensorId>) -> Result<(), ParseError> {
        if !self.inputs_end {
            self.inputs_end = true;
            self.pending = (0..self.inputs.len()).collect();
            self.pending.sort_by_key(|&index| std::cmp::Reverse(self.inputs[index].1.id));
        }
        while let Some(&index) = self.pending.last() {
            let (name, typed) = &self.inputs[index];
            if next.is_some_and(|next| typed.id > next) {
                break;
            }
            self.check_next(typed.id, typed.position)?;
            self.graph.add_input(name.clone(), typed.dtype, typed.shape.clone());
            self.pending.pop();
        }
        Ok(())
    }

    /// Prepares for the definition of a tensor by the statement at `position`.
    pub fn define_up_to(&mut self, id: TensorId, position: Position) -> Result<(), ParseError> {
        self.define_inputs(Some(id))?;
        self.check_next(id, position)
    }

    /// Checks that the next tensor has this id.
    fn check_next(&self, id: TensorId, position: Position) -> Result<(), ParseError> {
        let next = TensorId::new(self.graph.tensors().len());
        let message = match id.cmp(&next) {
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Less => format!("{id} is defined twice or out of order"),
            std::cmp::Ordering::Greater => format!("{id} is defined, but nothing defines {next} before it"),
        };
        Err(ParseError::new(position, message))
    }

    /// The finished graph, its inputs in signature order.
    pub fn finish(mut self) -> Result<PrimGraph, ParseError> {
        self.define_inputs(None)?;
        self.graph.inputs = self.inputs.into_iter().map(|(name, typed)| (name, typed.id)).collect();
        for (name, id, position) in self.outputs {
            if id.index() >= self.graph.tensors().len() {
                return Err(ParseError::new(position, format!("{id} is not defined")));
            }
            self.graph.add_output(name, id);
        }
        Ok(self.graph)
    }
}
