//! Reductions become stages: over axes that exist already where extents allow, or over fresh ones.

use super::axes::AxisKey;
use super::builder::{AxisClass, AxisState, Builder};
use super::error::CannotFuse;
use crate::block::{ReduceKind, Stage};
use crate::expr::{ExprId, VarId};
use orch_ir::{ConvSpec, DType, NodeId, ReduceOp, Tensor, Window};

/// A stage to be.
pub(super) struct Reduction {
    pub node: NodeId,
    pub op: ReduceOp,
    pub reduced: Vec<VarId>,
    pub body: ExprId,
    pub kind: ReduceKind,
}

impl Builder<'_> {
    /// An element of a reduction over whole dimensions.
    pub fn reduced(
        &mut self,
        node: NodeId,
        op: ReduceOp,
        axes: &[usize],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let prim = graph.node(node);
        let shape = graph.shape(prim.inputs[0]);
        let guard = self.needed_guard(node, at, guard);
        let mut used = self.domain(at, guard);
        let mut reduced = Vec::new();
        let mut source = Vec::with_capacity(shape.rank());
        let mut kept = at.iter();
        for (dim, &extent) in shape.iter().enumerate() {
            if !axes.contains(&dim) {
                source.extend(kept.next());
                continue;
            }
            let key = AxisKey::Reduced(node, dim);
            let parts = if op.is_arg() { vec![extent] } else { self.splits.parts(key, extent) };
            let vars: Vec<VarId> = (parts.iter().enumerate())
                .map(|(position, &part)| {
                    let owner = (!op.is_arg()).then_some((key, position));
                    let var = self.take_axis(part, AxisClass::Dimension, &used, owner, &format!("r{dim}"));
                    used.push(var);
                    var
                })
                .collect();
            source.push(self.join(&vars));
            reduced.extend(vars);
        }
        let body = self.expr_at(prim.inputs[0], &source, guard)?;
        if reduced.is_empty() {
            return Ok(body);
        }
        self.reduction(Reduction { node, op, reduced, body, kind: ReduceKind::Plain }, at, guard)
    }

    /// An axis to reduce over that is not in use, shared with other reductions if possible.
    fn take_axis(
        &mut self,
        extent: usize,
        class: AxisClass,
        used: &[VarId],
        owner: Option<(AxisKey, usize)>,
        name: &str,
    ) -> VarId {
        let terms = self.anchor_terms.clone();
        let fits =
            |axis: &AxisState| axis.extent == extent && axis.class == class && !used.contains(&axis.var);
        let of_anchor = self.axes.iter().position(|axis| fits(axis) && terms.contains(&axis.var));
        let free = of_anchor.or_else(|| self.axes.iter().position(fits));
        match free.map(|at| &mut self.axes[at]) {
            Some(axis) => {
                axis.owners.extend(owner.filter(|owner| !axis.owners.contains(owner)));
                axis.var
            }
            None => self.declare_axis(owner, extent, class, name),
        }
    }

    /// The guard, unless the index never leaves the node's result.
    fn needed_guard(&mut self, node: NodeId, at: &[ExprId], guard: Option<ExprId>) -> Option<ExprId> {
        let graph = self.graph;
        let shape = graph.shape(graph.node(node).outputs[0]);
        let inside = at
            .iter()
            .zip(shape.iter())
            .all(|(&component, &extent)| self.range(component).is_within(0, extent as i64 - 1));
        guard.filter(|_| !inside)
    }

    /// The axes over which a value at this index varies.
    fn domain(&self, at: &[ExprId], guard: Option<ExprId>) -> Vec<VarId> {
        let roots: Vec<ExprId> = at.iter().copied().chain(guard).collect();
        self.axes_in(&roots)
    }

    /// The result of a reduction at an index, through a stage that computes nothing twice.
    pub fn reduction(
        &mut self,
        reduction: Reduction,
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let Reduction { node, op, reduced, body, kind } = reduction;
        let domain = self.domain(at, guard);
        let points: usize = domain.iter().map(|&var| self.axis(var).map_or(1, |axis| axis.extent)).product();
        let elems = self.graph.shape(self.graph.node(node).outputs[0]).elems();
        if points > elems {
            self.want_plain(at);
            return Err(CannotFuse::Recomputed { node, times: points.div_ceil(elems.max(1)) });
        }
        let dtype = op.result(self.exprs.dtype(body));
        Ok(self.reduce_stage(dtype, op, domain, reduced, body, kind))
    }

    /// The result of a reducing stage, which may exist already.
    pub fn reduce_stage(
        &mut self,
        dtype: DType,
        op: ReduceOp,
        domain: Vec<VarId>,
        reduced: Vec<VarId>,
        body: ExprId,
        kind: ReduceKind,
    ) -> ExprId {
        let known = self.stages.iter().find_map(|stage| match stage {
            Stage::Reduce { stage, op: o, domain: d, reduced: r, body: b, .. }
                if (*o, d, r, *b) == (op, &domain, &reduced, body) =>
            {
                Some(*stage)
            }
            _ => None,
        });
        if let Some(stage) = known {
            return self.exprs.stage(stage);
        }
        self.push_stage(dtype, domain.clone(), |stage| Stage::Reduce {
            stage,
            op,
            domain,
            reduced,
            body,
            kind,
        })
    }

    /// An element of a windowed reduction.
    pub fn windowed(
        &mut self,
        node: NodeId,
        op: ReduceOp,
        window: &Window,
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let input = graph.node(node).inputs[0];
        let shape = graph.shape(input);
        let guard = self.needed_guard(node, at, guard);
        let used = self.domain(at, guard);
        let (reduced, offsets) = if op.is_arg() {
            let extent = window.kernel.iter().product();
            let var = self.take_axis(extent, AxisClass::Window, &used, None, "w");
            let position = self.exprs.var(var);
            (vec![var], self.delinearized(position, &window.kernel))
        } else {
            self.window_axes(&window.kernel, used)
        };
        let mut source = at[..2].to_vec();
        let mut inside = None;
        for (dim, &offset) in offsets.iter().enumerate() {
            let component = self.window_index(window, dim, at[dim + 2], offset);
            let in_range = self.in_range(component, shape[dim + 2]);
            inside = self.both(inside, in_range);
            source.push(component);
        }
        let readable = self.both(guard, inside);
        let value = self.expr_at(input, &source, readable)?;
        let neutral = self.identity(op, self.exprs.dtype(value));
        let body = self.guarded(inside, readable, value, neutral);
        if reduced.is_empty() {
            return Ok(body);
        }
        let reduction = Reduction { node, op, reduced, body, kind: ReduceKind::Plain };
        let result = self.reduction(reduction, at, guard)?;
        if op.is_arg() {
            let offsets = self.delinearized(result, &window.kernel);
            return Ok(self.chosen_position(op, window, &at[2..], &offsets, &shape[2..]));
        }
        Ok(result)
    }

    /// The offset in the plane of the element that an arg-reduction chose; 0 if the window is all padding.
    ///
    /// Where no element of the window is preferred to padding, the choice is the first (or last) position of the whole
    /// window, which may be padding; the first (or last) one outside of the padding is meant.
    fn chosen_position(
        &mut self,
        op: ReduceOp,
        window: &Window,
        at: &[ExprId],
        offsets: &[ExprId],
        extents: &[usize],
    ) -> ExprId {
        let is_last = matches!(op, ReduceOp::ArgMax { last: true } | ReduceOp::ArgMin { last: true });
        let zero = self.exprs.index(0);
        let mut inside = None;
        let mut plane = Vec::with_capacity(offsets.len());
        for (dim, &offset) in offsets.iter().enumerate() {
            let chosen = self.window_index(window, dim, at[dim], offset);
            let top = extents[dim] as i64 - 1;
            if self.range(chosen).is_within(0, top) {
                plane.push(chosen);
                continue;
            }
            let start = self.window_index(window, dim, at[dim], zero);
            let component = if is_last {
                let to_top = self.affine(start, -1, top);
                let phase = self.remainder(to_top, window.dilations[dim]);
                let last = self.affine(phase, -1, top);
                self.exprs.min(chosen, last)
            } else {
                let first = self.remainder(start, window.dilations[dim]);
                self.exprs.max(chosen, first)
            };
            let component = self.normal(component);
            let in_range = self.in_range(component, extents[dim]);
            inside = self.both(inside, in_range);
            plane.push(component);
        }
        let position = self.linearized(&plane, extents);
        self.guarded(inside, None, position, zero)
    }

    /// One axis per window dimension of extent other than 1, and the offset in every dimension.
    pub fn window_axes(&mut self, kernel: &[usize], mut used: Vec<VarId>) -> (Vec<VarId>, Vec<ExprId>) {
        let mut vars = Vec::new();
        let mut offsets = Vec::new();
        for (dim, &extent) in kernel.iter().enumerate() {
            if extent == 1 {
                offsets.push(self.exprs.index(0));
                continue;
            }
            let var = self.take_axis(extent, AxisClass::Window, &used, None, &format!("w{dim}"));
            used.push(var);
            vars.push(var);
            offsets.push(self.exprs.var(var));
        }
        (vars, offsets)
    }

    /// `at * stride + offset * dilation - low` in a spatial dimension.
    pub fn window_index(&mut self, window: &Window, dim: usize, at: ExprId, offset: ExprId) -> ExprId {
        let start = self.affine(at, window.strides[dim] as i64, -(window.low[dim] as i64));
        let within = self.affine(offset, window.dilations[dim] as i64, 0);
        self.sum(start, within)
    }

    /// An element of a transposed convolution: a sum over the input elements whose windows cover it.
    ///
    /// Between strides and beyond the borders no element meets a weight, and there is no product. Reading the element as 0 makes the
    /// product 0 if the weight is finite; where weights may be infinite or NaN they are read as 0 there, too.
    pub fn transposed_convolution(
        &mut self,
        node: NodeId,
        spec: &ConvSpec,
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let inputs = &graph.node(node).inputs;
        let (x, w) = (graph.shape(inputs[0]), graph.shape(inputs[1]));
        let window = &spec.window;
        let guard = self.needed_guard(node, at, guard);
        let mut used = self.domain(at, guard);
        let group = self.quotient(at[1], w[1]);
        let filter = self.remainder(at[1], w[1]);
        let depth = x[1] / spec.groups;
        let mut reduced = Vec::new();
        let mut channel = self.exprs.index(0);
        if depth != 1 {
            let var = self.take_axis(depth, AxisClass::Dimension, &used, None, "c");
            used.push(var);
            reduced.push(var);
            channel = self.exprs.var(var);
        }
        let (vars, offsets) = self.window_axes(&window.kernel, used);
        reduced.extend(vars);
        let first = self.affine(group, depth as i64, 0);
        let channel = self.sum(first, channel);
        let mut source = vec![at[0], channel];
        let mut inside = None;
        for (dim, &offset) in offsets.iter().enumerate() {
            let back = self.affine(offset, -(window.dilations[dim] as i64), 0);
            let shifted = self.affine(at[dim + 2], 1, window.low[dim] as i64);
            let reached = self.sum(shifted, back);
            let stride = window.strides[dim];
            let phase = self.remainder(reached, stride);
            let component = self.quotient(reached, stride);
            let hit = self.is_zero_index(phase);
            inside = self.both(inside, hit);
            let in_range = self.in_range(component, x[dim + 2]);
            inside = self.both(inside, in_range);
            source.push(component);
        }
        let readable = self.both(guard, inside);
        let value = self.expr_at(inputs[0], &source, readable)?;
        let zero = self.exprs.zero(self.exprs.dtype(value));
        let lhs = self.guarded(inside, readable, value, zero);
        let weight: Vec<ExprId> = [channel, filter].into_iter().chain(offsets).collect();
        let rhs = match inside.is_none() || graph.constant(inputs[1]).is_some_and(is_finite) {
            true => self.expr_at(inputs[1], &weight, guard)?,
            false => {
                let rhs = self.expr_at(inputs[1], &weight, readable)?;
                self.guarded(inside, readable, rhs, zero)
            }
        };
        let body = self.exprs.mul(lhs, rhs);
        if reduced.is_empty() {
            return Ok(body);
        }
        let kind = ReduceKind::Dot { lhs, rhs };
        self.reduction(Reduction { node, op: ReduceOp::Sum, reduced, body, kind }, at, guard)
    }

    /// `component == 0`; `None` if that is always so.
    fn is_zero_index(&mut self, component: ExprId) -> Option<ExprId> {
        let zero = self.exprs.index(0);
        let is_zero = self.exprs.eq(component, zero);
        let is_zero = self.normal(is_zero);
        (self.exprs.as_bool(is_zero) != Some(true)).then_some(is_zero)
    }

    /// The value that does not change a reduction; for arg-reductions one that is never preferred.
    fn identity(&mut self, op: ReduceOp, dtype: DType) -> ExprId {
        match op {
            ReduceOp::Sum => self.exprs.zero(dtype),
            ReduceOp::Prod => self.exprs.constant(dtype, 1.0),
            ReduceOp::Max | ReduceOp::ArgMax { .. } => self.extreme(dtype, false),
            ReduceOp::Min | ReduceOp::ArgMin { .. } => self.extreme(dtype, true),
        }
    }

    /// The highest or lowest value of a type.
    fn extreme(&mut self, dtype: DType, highest: bool) -> ExprId {
        let value = if highest { f64::INFINITY } else { f64::NEG_INFINITY };
        self.exprs.constant(dtype, value)
    }
}

/// True if no element is NaN or infinite: none has all bits of its exponent.
fn is_finite(tensor: &Tensor) -> bool {
    let exponent: u64 = match tensor.dtype() {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F32 => 0x7f80_0000,
        DType::F64 => 0x7ff0_0000_0000_0000,
        _ => return true,
    };
    let size = tensor.dtype().size_bytes();
    tensor.bytes().chunks_exact(size).all(|element| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(element);
        u64::from_le_bytes(bits) & exponent != exponent
    })
}
