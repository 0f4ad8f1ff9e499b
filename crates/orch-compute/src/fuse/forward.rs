//! Where the tensors computed from the anchor (or the first output) lie in its index space: inverse index maps,
//! derived by walking forward through primitives that keep elements apart.

use super::builder::Builder;
use super::error::CannotFuse;
use crate::expr::ExprId;
use orch_ir::{NodeId, PrimOp, TensorId};

impl Builder<'_> {
    /// Places every tensor that is reached.
    pub fn place_forward(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.iter().copied().collect();
        for node in nodes {
            let graph = self.graph;
            let prim = graph.node(node);
            let Some(&output) = prim.outputs.first() else { continue };
            let source = prim.inputs.iter().find_map(|input| Some((*input, self.places.get(input)?.clone())));
            let Some((input, place)) = source else { continue };
            if !self.places.contains_key(&output)
                && let Some(place) = self.moved(node, input, output, &place)
            {
                self.places.insert(output, place);
            }
        }
    }

    /// The place of a node's result, given its operand's; `None` if elements are dropped, repeated or combined.
    fn moved(
        &mut self,
        node: NodeId,
        input: TensorId,
        output: TensorId,
        place: &[ExprId],
    ) -> Option<Vec<ExprId>> {
        let graph = self.graph;
        let (from, to) = (graph.shape(input), graph.shape(output));
        if from.elems() != to.elems() && !self.is_kept_slice(node) {
            return None;
        }
        match &graph.node(node).op {
            PrimOp::Map(_) => Some(place.to_vec()),
            PrimOp::Transpose { perm } => Some(perm.iter().map(|&dim| place[dim]).collect()),
            PrimOp::Reshape { .. } => Some(self.reshaped(place, from, to)),
            PrimOp::Broadcast { dims, .. } => {
                let mut moved = vec![self.exprs.index(0); to.rank()];
                for (dim, &target) in dims.iter().enumerate() {
                    moved[target] = place[dim];
                }
                Some(moved)
            }
            PrimOp::Slice { starts, steps, .. } if steps.iter().all(|step| step.abs() == 1) => Some(
                (place.iter().zip(steps).zip(starts))
                    .map(|((&at, &step), &start)| self.affine(at, step, -start * step))
                    .collect(),
            ),
            _ => None,
        }
    }

    /// The index of an output that is not placed but has the dimensions of the first one.
    pub fn place_like_first(&mut self, output: TensorId, first: TensorId) -> Result<Vec<ExprId>, CannotFuse> {
        let graph = self.graph;
        let place = self.places.get(&first).ok_or(CannotFuse::DifferentDomains(output))?;
        let long = |tensor: TensorId| graph.shape(tensor).iter().copied().filter(|&extent| extent != 1);
        if self.anchor.is_some() || !long(first).eq(long(output)) {
            return Err(CannotFuse::DifferentDomains(output));
        }
        let mut components: Vec<ExprId> = (graph.shape(first).iter().zip(place))
            .filter(|&(&extent, _)| extent != 1)
            .map(|(_, &component)| component)
            .rev()
            .collect();
        let zero = self.exprs.index(0);
        let mut take = || components.pop().unwrap_or(zero);
        Ok(graph.shape(output).iter().map(|&extent| if extent == 1 { zero } else { take() }).collect())
    }
}
