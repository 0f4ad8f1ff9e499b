//! The state of a build: the program so far, the axes and where they come from, and what is known already.

use super::axes::{AxisKey, Splits};
use super::error::CannotFuse;
use crate::block::{Arg, ArgRole, Axis, BlockProgram, Stage};
use crate::expr::{ArgId, Const, Expr, ExprId, Exprs, StageId, VarId};
use crate::layout::Layout;
use crate::operands::OperandRounding;
use crate::simplify::Simplifier;
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, Tensor, TensorId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// An axis under construction.
#[derive(Clone, Debug)]
pub(super) struct AxisState {
    pub var: VarId,
    pub extent: usize,
    pub class: AxisClass,
    /// Which dimensions it is (a part of), with the position among the parts.
    pub owners: Vec<(AxisKey, usize)>,
}

/// A slice by steps of one that is all that a kernel computes from the anchor's result.
pub(super) struct KeptSlice {
    pub node: NodeId,
    /// Of each dimension the first index and the extent that are kept.
    pub ranges: Vec<(usize, usize)>,
}

/// What an axis may be reused for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AxisClass {
    /// A dimension of tensors: any reduction over a dimension of that extent may bind it.
    Dimension,
    /// An offset within a window.
    Window,
}

/// A tensor at an index, the guard included: the key of what has been substituted already.
type Site = (TensorId, Vec<ExprId>, Option<ExprId>);

/// How each tensor is stored.
pub(super) type Stored<'a> = &'a dyn Fn(TensorId) -> (Layout, DType);

/// Builds one block program.
pub(super) struct Builder<'a> {
    pub graph: &'a PrimGraph,
    pub nodes: BTreeSet<NodeId>,
    pub stored: Stored<'a>,
    pub splits: &'a Splits,
    pub exprs: Exprs,
    pub simplifier: Simplifier,
    pub axes: Vec<AxisState>,
    pub stages: Vec<Stage>,
    /// The domain of each reducing stage.
    pub stage_domains: Vec<Vec<VarId>>,
    /// Where tensors computed from the anchor (or the first output) lie in the index space.
    pub places: BTreeMap<TensorId, Vec<ExprId>>,
    /// The anchor: the contraction or convolution whose axes are the program's.
    pub main: Option<NodeId>,
    /// The slice of the anchor's result that the kernel computes, if not all of it.
    pub kept: Option<KeptSlice>,
    /// The anchor's result, once it has a stage.
    pub anchor: Option<TensorId>,
    /// The axes that the anchor reduces: reductions of what it multiplies are over these, if they fit.
    pub anchor_terms: Vec<VarId>,
    /// Splits that this build found worthwhile.
    pub wanted: Splits,
    args: Vec<Arg>,
    arg_ids: BTreeMap<TensorId, ArgId>,
    memo: FxHashMap<Site, ExprId>,
}

/// The type in which elements of `dtype` are computed.
pub(crate) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

impl<'a> Builder<'a> {
    pub fn new(graph: &'a PrimGraph, nodes: &[NodeId], stored: Stored<'a>, splits: &'a Splits) -> Self {
        Self {
            graph,
            nodes: nodes.iter().copied().collect(),
            stored,
            splits,
            exprs: Exprs::new(),
            simplifier: Simplifier::new(),
            axes: Vec::new(),
            stages: Vec::new(),
            stage_domains: Vec::new(),
            places: BTreeMap::new(),
            main: None,
            kept: None,
            anchor: None,
            anchor_terms: Vec::new(),
            wanted: splits.clone(),
            args: Vec::new(),
            arg_ids: BTreeMap::new(),
            memo: FxHashMap::default(),
        }
    }

    /// Builds everything.
    pub fn run(&mut self, outputs: &[TensorId]) -> Result<(), CannotFuse> {
        let mut producers = Vec::with_capacity(outputs.len());
        for &output in outputs {
            producers.push((self.inner_producer(output).ok_or(CannotFuse::ForeignOutput(output))?, output));
        }
        // What is computed from the earliest output is reached by walking forward.
        let &(_, first) = producers.iter().min().ok_or(CannotFuse::NoOutputs)?;
        self.main = self.find_anchor()?;
        match self.main {
            Some(node) => {
                self.find_kept(node, outputs);
                self.place_anchor(node)?;
            }
            None => self.place_output(first),
        }
        self.place_forward();
        for &output in outputs {
            self.store(output, first)?;
        }
        if self.anchor.is_none() {
            self.want_affine_reads();
        }
        Ok(())
    }

    /// The program; to be called after a successful [`Builder::run`].
    pub fn finish(self, name: String) -> BlockProgram {
        let axes = self.axes.iter().map(|axis| Axis { var: axis.var, extent: axis.extent }).collect();
        let Self { exprs, args, stages, .. } = self;
        BlockProgram { name, exprs, args, axes, stages, rounding: OperandRounding::default() }
    }

    /// The node of this kernel that computes a tensor.
    pub fn inner_producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.graph.producer(tensor).filter(|node| self.nodes.contains(node))
    }

    /// The only contraction or convolution among the nodes, or the second of two of which it needs the first.
    fn find_anchor(&self) -> Result<Option<NodeId>, CannotFuse> {
        let mut anchors = (self.nodes.iter().copied())
            .filter(|&node| matches!(self.graph.node(node).op, PrimOp::Contract(_) | PrimOp::Conv(_)));
        match (anchors.next(), anchors.next(), anchors.next()) {
            (Some(first), Some(second), None) if self.needs(second, first) => Ok(Some(second)),
            (Some(first), Some(second), _) => Err(CannotFuse::SeveralAnchors(first, second)),
            (first, ..) => Ok(first),
        }
    }

    /// True if a node is computed from another one through nodes of this kernel.
    fn needs(&self, user: NodeId, wanted: NodeId) -> bool {
        let (mut pending, mut seen) = (vec![user], BTreeSet::new());
        while let Some(node) = pending.pop() {
            if node == wanted {
                return true;
            }
            let inputs = self.graph.node(node).inputs.iter();
            pending.extend(
                inputs.filter_map(|&input| self.inner_producer(input)).filter(|&node| seen.insert(node)),
            );
        }
        false
    }

    /// One axis per dimension of a result.
    fn place_output(&mut self, output: TensorId) {
        let shape = self.graph.shape(output).clone();
        let index = (0..shape.rank())
            .map(|dim| self.fresh_dimension(AxisKey::Output(dim), shape[dim], &format!("i{dim}")))
            .collect();
        self.places.insert(output, index);
    }

    /// Declares the axes of a dimension and returns its index: 0 for an extent of 1.
    pub fn fresh_dimension(&mut self, key: AxisKey, extent: usize, name: &str) -> ExprId {
        let parts = self.splits.parts(key, extent);
        let vars: Vec<VarId> = (parts.iter().enumerate())
            .map(|(position, &part)| {
                let suffix = if parts.len() > 1 { format!("_{position}") } else { String::new() };
                let owner = Some((key, position));
                self.declare_axis(owner, part, AxisClass::Dimension, &format!("{name}{suffix}"))
            })
            .collect();
        self.join(&vars)
    }

    /// Declares one axis.
    pub fn declare_axis(
        &mut self,
        owner: Option<(AxisKey, usize)>,
        extent: usize,
        class: AxisClass,
        name: &str,
    ) -> VarId {
        let var = self.exprs.declare_index(name, extent);
        self.axes.push(AxisState { var, extent, class, owners: owner.into_iter().collect() });
        var
    }

    /// The index of a dimension made of these axes, outermost first.
    pub fn join(&mut self, vars: &[VarId]) -> ExprId {
        let mut joined = self.exprs.index(0);
        for &var in vars {
            let extent = self.axis(var).map_or(1, |axis| axis.extent) as i64;
            let scaled = self.affine(joined, extent, 0);
            let var = self.exprs.var(var);
            joined = self.sum(scaled, var);
        }
        joined
    }

    /// The axis with this variable.
    pub fn axis(&self, var: VarId) -> Option<&AxisState> {
        self.axes.iter().find(|axis| axis.var == var)
    }

    /// The argument through which a tensor is passed.
    pub fn arg(&mut self, tensor: TensorId, role: ArgRole) -> ArgId {
        if let Some(&id) = self.arg_ids.get(&tensor) {
            return id;
        }
        let (layout, dtype) = (self.stored)(tensor);
        let id = self.exprs.declare_arg(dtype);
        self.args.push(Arg { tensor, dtype, shape: self.graph.shape(tensor).clone(), layout, role });
        self.arg_ids.insert(tensor, id);
        id
    }

    /// The value of a tensor at an index, substituting producers. Where `guard` is false nothing is read and
    /// the value is arbitrary but for plain reads, where it is 0.
    pub fn expr_at(
        &mut self,
        tensor: TensorId,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let site = (tensor, index.to_vec(), guard);
        if let Some(&known) = self.memo.get(&site) {
            return Ok(known);
        }
        let value = match self.inner_producer(tensor) {
            Some(node) => self.substitute(node, tensor, index, guard)?,
            None => self.read(tensor, index, guard),
        };
        self.memo.insert(site, value);
        Ok(value)
    }

    /// Remembers the value of a tensor.
    pub fn remember(&mut self, tensor: TensorId, index: Vec<ExprId>, value: ExprId) {
        self.memo.insert((tensor, index, None), value);
    }

    fn read(&mut self, tensor: TensorId, index: &[ExprId], guard: Option<ExprId>) -> ExprId {
        let constant = self.graph.constant(tensor);
        if let (Some(value), None) = (constant.and_then(repeated_value), guard) {
            let value = self.exprs.add(Expr::Const(value));
            return self.exprs.cast(compute_type(self.graph.dtype(tensor)), value);
        }
        let role = if constant.is_some() { ArgRole::Constant } else { ArgRole::Input };
        let arg = self.arg(tensor, role);
        let read = self.exprs.read(arg, index.to_vec(), guard);
        self.exprs.cast(compute_type(self.graph.dtype(tensor)), read)
    }

    /// `value`, whose reads happen where `readable` holds, where `condition` holds, else `otherwise`.
    pub fn guarded(
        &mut self,
        condition: Option<ExprId>,
        readable: Option<ExprId>,
        value: ExprId,
        otherwise: ExprId,
    ) -> ExprId {
        let Some(condition) = condition else { return value };
        if self.is_zero(otherwise) && readable.is_some_and(|readable| self.zero_unless(value, readable)) {
            return value;
        }
        self.exprs.select(condition, value, otherwise)
    }

    fn is_zero(&self, value: ExprId) -> bool {
        matches!(self.exprs.get(value), Expr::Const(Const { bits: 0, .. }))
    }

    /// True for a read with this very guard.
    fn zero_unless(&self, value: ExprId, expected: ExprId) -> bool {
        match self.exprs.get(value) {
            Expr::Read { guard, .. } => *guard == Some(expected),
            Expr::Cast(_, inner) => self.zero_unless(*inner, expected),
            _ => false,
        }
    }

    /// Conjunction of two guards.
    pub fn both(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        let both = self.exprs.and_guard(a, b)?;
        Some(self.normal(both))
    }

    /// The axes that an expression depends on, in order of declaration.
    pub fn axes_in(&self, roots: &[ExprId]) -> Vec<VarId> {
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            match self.exprs.get(id) {
                Expr::Var(var) => {
                    found.insert(*var);
                }
                Expr::Stage(stage) => found.extend(&self.stage_domains[stage.index()]),
                node => node.for_each_operand(|operand| open.push(operand)),
            }
        }
        found.into_iter().collect()
    }

    /// Adds a reducing stage.
    pub fn push_stage(
        &mut self,
        dtype: DType,
        domain: Vec<VarId>,
        make: impl FnOnce(StageId) -> Stage,
    ) -> ExprId {
        let id = self.exprs.declare_stage(dtype);
        self.stage_domains.push(domain);
        self.stages.push(make(id));
        self.exprs.stage(id)
    }

    /// Stores an output.
    fn store(&mut self, output: TensorId, first: TensorId) -> Result<(), CannotFuse> {
        let index = match self.places.get(&output) {
            Some(index) => index.clone(),
            None => self.place_like_first(output, first)?,
        };
        let value = self.expr_at(output, &index, None)?;
        let domain = self.axes_in(&index);
        let arg = self.arg(output, ArgRole::Output);
        let body = self.exprs.cast(self.args[arg.index()].dtype, value);
        self.stages.push(Stage::Store { arg, index, domain, body });
        Ok(())
    }
}

/// The value that a constant repeats, if it does.
fn repeated_value(tensor: &Tensor) -> Option<Const> {
    let size = tensor.dtype().size_bytes();
    let mut chunks = tensor.bytes().chunks_exact(size);
    let first = chunks.next()?;
    if !chunks.all(|chunk| chunk == first) {
        return None;
    }
    let mut bits = [0; 8];
    bits[..size].copy_from_slice(first);
    Some(Const { dtype: tensor.dtype(), bits: u64::from_le_bytes(bits) })
}
