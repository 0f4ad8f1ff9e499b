//! The contraction or convolution that a kernel is built around: its axes are the program's axes.

use super::builder::{AxisClass, Builder};
use super::error::CannotFuse;
use super::reduce::Reduction;
use crate::block::ReduceKind;
use crate::expr::{ExprId, VarId};
use orch_ir::{Contract, ConvSpec, NodeId, PrimOp, ReduceOp};

impl Builder<'_> {
    /// Declares the axes of an anchor, adds its stage and records where its result lies.
    pub fn place_anchor(&mut self, node: NodeId) -> Result<(), CannotFuse> {
        let graph = self.graph;
        let (place, reduced, factors) = match &graph.node(node).op {
            PrimOp::Contract(contract) => self.contraction(node, contract)?,
            PrimOp::Conv(spec) => self.convolution(node, spec)?,
            _ => return Err(CannotFuse::Unsupported { node, op: "not an anchor" }),
        };
        let output = graph.node(node).outputs[0];
        let (lhs, rhs) = factors;
        let body = self.exprs.mul(lhs, rhs);
        let value = if reduced.is_empty() {
            body
        } else {
            let domain = self.axes_in(&place);
            let dtype = self.exprs.dtype(body);
            self.reduce_stage(dtype, ReduceOp::Sum, domain, reduced, body, ReduceKind::Dot { lhs, rhs })
        };
        self.remember(output, place.clone(), value);
        self.places.insert(output, place);
        self.anchor = Some(output);
        Ok(())
    }

    /// An axis of an anchor as an index: none, hence 0, for an extent of 1.
    fn anchor_axis(&mut self, extent: usize, class: AxisClass, name: &str) -> (Option<VarId>, ExprId) {
        if extent == 1 {
            return (None, self.exprs.index(0));
        }
        let var = self.declare_axis(None, extent, class, name);
        (Some(var), self.exprs.var(var))
    }

    fn contraction(&mut self, node: NodeId, contract: &Contract) -> Result<Parts, CannotFuse> {
        let graph = self.graph;
        let inputs = &graph.node(node).inputs;
        let operands = [(&contract.lhs, inputs[0]), (&contract.rhs, inputs[1])];
        let mut labels: Vec<(u8, usize)> = Vec::new();
        for (list, input) in operands {
            for (&label, &extent) in list.iter().zip(graph.shape(input).iter()) {
                if !labels.iter().any(|&(known, _)| known == label) {
                    labels.push((label, extent));
                }
            }
        }
        let rank = |label: u8| contract.out.iter().position(|&l| l == label).unwrap_or(usize::MAX);
        labels.sort_by_key(|&(label, _)| rank(label));
        let mut components = Vec::new();
        let mut reduced = Vec::new();
        for &(label, extent) in &labels {
            let role = match (contract.lhs.contains(&label), contract.rhs.contains(&label)) {
                _ if !contract.out.contains(&label) => 'k',
                (true, true) => 'b',
                (true, false) => 'm',
                (false, _) => 'n',
            };
            let (start, extent) = match rank(label) {
                usize::MAX => (0, extent),
                dim => self.kept_range(dim, extent),
            };
            let (var, component) = self.anchor_axis(extent, AxisClass::Dimension, &format!("{role}{label}"));
            let component = self.affine(component, 1, start as i64);
            components.push((label, component));
            reduced.extend(var.filter(|_| role == 'k'));
        }
        self.anchor_terms.clone_from(&reduced);
        let index_of = |list: &[u8]| -> Vec<ExprId> {
            let component = |label: &u8| components.iter().find(|(known, _)| known == label);
            list.iter().filter_map(component).map(|&(_, component)| component).collect()
        };
        let lhs = self.expr_at(inputs[0], &index_of(&contract.lhs), None)?;
        let rhs = self.expr_at(inputs[1], &index_of(&contract.rhs), None)?;
        Ok((index_of(&contract.out), reduced, (lhs, rhs)))
    }

    /// An element of a contraction that the anchor needs.
    pub fn contracted(
        &mut self,
        node: NodeId,
        contract: &Contract,
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let inputs = &graph.node(node).inputs;
        let mut components: Vec<(u8, ExprId)> =
            contract.out.iter().copied().zip(at.iter().copied()).collect();
        let mut reduced = Vec::new();
        for (list, input) in [(&contract.lhs, inputs[0]), (&contract.rhs, inputs[1])] {
            for (&label, &extent) in list.iter().zip(graph.shape(input).iter()) {
                if !components.iter().any(|&(known, _)| known == label) {
                    let (var, component) = self.anchor_axis(extent, AxisClass::Window, &format!("t{label}"));
                    components.push((label, component));
                    reduced.extend(var);
                }
            }
        }
        let index_of = |list: &[u8]| -> Vec<ExprId> {
            let component = |label: &u8| components.iter().find(|(known, _)| known == label);
            list.iter().filter_map(component).map(|&(_, component)| component).collect()
        };
        let lhs = self.expr_at(inputs[0], &index_of(&contract.lhs), guard)?;
        let rhs = self.expr_at(inputs[1], &index_of(&contract.rhs), guard)?;
        let body = self.exprs.mul(lhs, rhs);
        if reduced.is_empty() {
            return Ok(body);
        }
        let kind = ReduceKind::Dot { lhs, rhs };
        self.reduction(Reduction { node, op: ReduceOp::Sum, reduced, body, kind }, at, guard)
    }

    fn convolution(&mut self, node: NodeId, spec: &ConvSpec) -> Result<Parts, CannotFuse> {
        let graph = self.graph;
        let inputs = &graph.node(node).inputs;
        let (x, w) = (graph.shape(inputs[0]), graph.shape(inputs[1]));
        let out = graph.shape(graph.node(node).outputs[0]);
        let (_, batch) = self.anchor_axis(x[0], AxisClass::Dimension, "n");
        let (_, group) = self.anchor_axis(spec.groups, AxisClass::Dimension, "g");
        let (start, filters) =
            if spec.groups == 1 { self.kept_range(1, w[0]) } else { (0, w[0] / spec.groups) };
        let (_, filter) = self.anchor_axis(filters, AxisClass::Dimension, "m");
        let filter = self.affine(filter, 1, start as i64);
        let spatial: Vec<ExprId> = (out[2..].iter().enumerate())
            .map(|(dim, &extent)| self.anchor_axis(extent, AxisClass::Dimension, &format!("o{dim}")).1)
            .collect();
        let (channel_var, channel) = self.anchor_axis(w[1], AxisClass::Dimension, "c");
        let (window_vars, offsets) = self.window_axes(&spec.window.kernel, Vec::new());
        let reduced = channel_var.into_iter().chain(window_vars).collect();

        let first = self.affine(group, w[1] as i64, 0);
        let mut source = vec![batch, self.sum(first, channel)];
        let mut inside = None;
        for (dim, &offset) in offsets.iter().enumerate() {
            let component = self.window_index(&spec.window, dim, spatial[dim], offset);
            let in_range = self.in_range(component, x[dim + 2]);
            inside = self.both(inside, in_range);
            source.push(component);
        }
        let value = self.expr_at(inputs[0], &source, inside)?;
        let zero = self.exprs.zero(self.exprs.dtype(value));
        let lhs = self.guarded(inside, inside, value, zero);

        let first = self.affine(group, (w[0] / spec.groups) as i64, 0);
        let filter = self.sum(first, filter);
        let weight: Vec<ExprId> = [filter, channel].into_iter().chain(offsets).collect();
        let rhs = self.expr_at(inputs[1], &weight, None)?;
        let place = [batch, filter].into_iter().chain(spatial).collect();
        Ok((place, reduced, (lhs, rhs)))
    }
}

/// The result's index, the reduced axes and the two factors.
type Parts = (Vec<ExprId>, Vec<VarId>, (ExprId, ExprId));
