//! A proved µGraph as the whole plan of its program.

use super::requests::candidate;
use super::views::stored_views;
use crate::Error;
use crate::plan::context::PlanContext;
use crate::plan::implementation::Chosen;
use crate::plan::substitute::Substitute;
use orch_ir::{NodeId, TensorId};
use orch_mugraph::extract::View;
use orch_mugraph::lower::Stored;
use orch_mugraph::{MuGraph, Proved};

/// A program, and a µGraph that computes all of it.
#[derive(Clone, Copy)]
pub struct WholeProgram<'a> {
    /// The program.
    pub program: &'a MuGraph,
    /// The µGraph.
    pub proved: &'a Proved,
    /// True if the program's exponentials were relative to maxima before these were taken out.
    pub must_be_stable: bool,
}

impl WholeProgram<'_> {
    /// The only step of a plan for the program's primitives.
    ///
    /// # Errors
    /// If an output of the program is a view of another tensor.
    pub fn chosen(&self, ctx: PlanContext<'_>) -> Result<Chosen, Error> {
        let graph = ctx.graph;
        let limit = |reason: &str| Error::Unsupported(format!("program `{}`: {reason}", self.program.name));
        let view = |tensor: TensorId| {
            let shape = graph.shape(tensor);
            let mut strides = Stored::row_major(graph.dtype(tensor), shape).strides;
            strides
                .iter_mut()
                .zip(shape.iter())
                .filter(|(_, extent)| **extent == 1)
                .for_each(|(s, _)| *s = 0);
            View { tensor, strides, offset: 0 }
        };
        let views_of = |tensors: &[(String, TensorId)]| -> Vec<View> {
            tensors.iter().map(|(_, tensor)| view(*tensor)).collect()
        };
        let (inputs, outputs) = (views_of(&graph.inputs), views_of(&graph.outputs));
        let views = stored_views(self.program, &inputs, &outputs, ctx)
            .ok_or_else(|| limit("its tensors have no order in memory"))?;
        let nodes: Vec<NodeId> = graph.node_ids().collect();
        let candidate = candidate(&nodes, &views, &graph.consumers(), ctx)
            .ok_or_else(|| limit("an output is a view of another tensor"))?;
        let substitute =
            Substitute { views, must_be_stable: self.must_be_stable, proved: self.proved.clone() };
        Ok(Chosen { candidate, substitute: Some(substitute) })
    }
}
