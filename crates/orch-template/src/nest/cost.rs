//! A rough count of cycles of a loop nest, to choose between vector axes and to size work items.

use super::flat::{Nest, NestStage, StageWork};
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, DType, UnaryFn};
use orch_thread::target::{CpuTarget, is_short_stride};

/// The modelled cost of a nest.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct NestCost {
    /// Cycles of one core with all data in L1.
    pub cycles: f64,
}

/// Cycles of each vector that a load of elements a few steps apart is picked from.
const PICKED: f64 = 1.0;

/// Cycles per element of another access with a constant stride other than 0 and 1. Staging in tiles does not cost more.
const STRIDED: f64 = 1.2;

/// The same where each lane is on a page of its own, or each element of a loop of scalar code.
const FAR: f64 = 2.2;

/// The same of stores to more lines of one cache set than it has ways, each of which misses all caches. 21 images of 256 x 256 written pixel by
/// pixel, all images of a pixel in one vector, take 4 ns an element on an Emerald Rapids.
const COLLIDING: f64 = 6.0;

/// Ways of a set of the L1, of usual processors.
const L1_WAYS: usize = 12;

/// Elements of f32 of a page.
const PAGE_ELEMS: u64 = 1 << 10;

/// Cycles per element of an access without a constant stride.
const GATHERED: f64 = 2.0;

/// The same where lanes read elements that lie close together, as in a resize: one or two cache lines serve a vector.
const NEAR: f64 = 0.8;

/// Cycles of a horizontal reduction of one accumulator's lanes.
const LANE_REDUCTION: f64 = 12.0;

impl NestCost {
    /// The cost with `vector`, an axis and a number of lanes, or of scalar code.
    pub fn of(nest: &mut Nest, vector: Option<(VarId, usize)>) -> Self {
        let stages = nest.stages.clone();
        Self { cycles: stages.iter().map(|stage| stage_cycles(nest, stage, vector)).sum() }
    }
}

/// Cycles of a stage over its whole domain.
fn stage_cycles(nest: &mut Nest, stage: &NestStage, vector: Option<(VarId, usize)>) -> f64 {
    let axes = stage.axes();
    let points = nest.points(&axes) as f64;
    let Some((axis, lanes)) = vector.filter(|(axis, _)| axes.contains(axis)) else {
        return points * point_cycles(nest, stage, None);
    };
    let extent = nest.extent(axis);
    let vectors = points / extent.max(1) as f64 * extent.div_ceil(lanes) as f64;
    let lane_reductions = if stage.reduced().contains(&axis) {
        nest.points(&stage.domain) as f64 * LANE_REDUCTION
    } else {
        0.0
    };
    vectors * point_cycles(nest, stage, Some((axis, lanes))) + lane_reductions
}

/// What an access does: constants may be packed in the order in which they are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Load,
    LoadOfConstant,
    Store,
}

/// Cycles of a stage at one point, or at one vector of points.
fn point_cycles(nest: &mut Nest, stage: &NestStage, vector: Option<(VarId, usize)>) -> f64 {
    let roots = stage.roots();
    let axes = nest.axes.clone();
    let Nest { program, simplifier, constants, .. } = nest;
    let mut cycles = 0.5;
    let extent = |var: VarId| axes.iter().find(|axis| axis.var == var).map_or(1, |axis| axis.extent);
    let collides =
        |stride: i64, axis: VarId| stride.unsigned_abs().is_multiple_of(PAGE_ELEMS) && extent(axis) > L1_WAYS;
    // Scalar loops walk the axis along which results are contiguous innermost.
    let innermost = match (&stage.work, vector) {
        (&StageWork::Store { offset, .. }, None) => {
            let mut stride = |var: &VarId| simplifier.stride(&mut program.exprs, offset, *var);
            stage.domain.iter().copied().filter(|&var| extent(var) > 1).find(|var| stride(var) == Some(1))
        }
        _ => None,
    };
    let mut access = |exprs: &mut Exprs, offset: ExprId, kind: AccessKind| match vector {
        None => match innermost.map(|axis| simplifier.stride(exprs, offset, axis)) {
            Some(Some(stride)) if stride.unsigned_abs() >= PAGE_ELEMS => FAR,
            _ => 0.5,
        },
        Some((axis, lanes)) => match simplifier.stride(exprs, offset, axis) {
            Some(0 | 1) => 0.5,
            Some(_) if kind == AccessKind::LoadOfConstant => 0.5,
            Some(stride) if kind == AccessKind::Load && is_short_stride(stride) => {
                PICKED * stride.unsigned_abs() as f64
            }
            Some(stride) if kind == AccessKind::Store && collides(stride, axis) => COLLIDING * lanes as f64,
            Some(stride) if stride.unsigned_abs() >= PAGE_ELEMS => FAR * lanes as f64,
            Some(_) => STRIDED * lanes as f64,
            None if are_near(exprs, offset, &axes, (axis, lanes)) => NEAR * lanes as f64,
            None => GATHERED * lanes as f64,
        },
    };
    for id in program.exprs.reachable(&roots) {
        cycles += match program.exprs.get(id) {
            &Expr::Load { buffer, offset, .. } => {
                let is_constant = constants.contains(&buffer);
                let kind = if is_constant { AccessKind::LoadOfConstant } else { AccessKind::Load };
                access(&mut program.exprs, offset, kind)
            }
            _ => operation_cycles(&program.exprs, id),
        };
    }
    if let StageWork::Store { offset, .. } = stage.work {
        cycles += 2.0 * access(&mut program.exprs, offset, AccessKind::Store);
    }
    cycles
}

/// True if the offsets of a vector in the middle of an axis, and of no other axis, lie within two vectors.
fn are_near(exprs: &Exprs, offset: ExprId, axes: &[Axis], (along, lanes): (VarId, usize)) -> bool {
    let Some(extent) = axes.iter().find(|axis| axis.var == along).map(|axis| axis.extent) else {
        return false;
    };
    let lanes = lanes.min(extent);
    let first = (extent / 2 / lanes * lanes).min(extent - lanes);
    let mut point: Vec<(VarId, i64)> = axes.iter().map(|axis| (axis.var, 0)).collect();
    let mut offset_at = |position: usize| {
        point.iter_mut().filter(|(axis, _)| *axis == along).for_each(|(_, at)| *at = position as i64);
        exprs.evaluate(offset, &point)
    };
    let offsets: Option<Vec<i64>> = (first..first + lanes).map(&mut offset_at).collect();
    let range = offsets.and_then(|offsets| Some(offsets.iter().max()? - offsets.iter().min()?));
    range.is_some_and(|range| range < 2 * lanes as i64)
}

/// Cycles of an operation on one element or vector; index arithmetic and accesses are free.
pub(crate) fn operation_cycles(exprs: &Exprs, id: ExprId) -> f64 {
    match exprs.get(id) {
        _ if exprs.dtype(id) == DType::I64 => 0.0,
        Expr::Unary(f, _) => unary_cycles(*f),
        Expr::Binary(BinaryFn::Div, ..) => 6.0,
        Expr::Binary(BinaryFn::Pow | BinaryFn::Atan2, ..) => 40.0,
        Expr::Binary(BinaryFn::Philox, ..) => 60.0,
        Expr::Binary(BinaryFn::FloorMod | BinaryFn::TruncMod, ..) => 20.0,
        Expr::Const(_) | Expr::Var(_) | Expr::Load { .. } => 0.0,
        _ => 0.5,
    }
}

/// Cycles of a function of one value, per element or vector.
fn unary_cycles(f: UnaryFn) -> f64 {
    match f {
        UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Not => 0.5,
        UnaryFn::Sign | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::RoundEven | UnaryFn::Trunc => 1.0,
        UnaryFn::Sqrt | UnaryFn::Recip => 8.0,
        UnaryFn::Exp | UnaryFn::Tanh | UnaryFn::Erf | UnaryFn::Log => 12.0,
        _ => 30.0,
    }
}

/// Lanes of the target's vectors for the widest type that the nest computes with, `i64` apart, which is the type of
/// index arithmetic.
pub(crate) fn lanes_of(nest: &Nest, target: &CpuTarget) -> usize {
    let exprs = &nest.program.exprs;
    let mut widest = 1;
    for stage in &nest.stages {
        let body = match &stage.work {
            StageWork::Reduce(reduction) => reduction.body,
            StageWork::Store { body, .. } => *body,
        };
        widest = widest.max(exprs.dtype(body).size_bytes());
        let sizes = exprs.reachable(&[body]).into_iter().map(|id| exprs.dtype(id));
        widest = sizes.filter(|&dtype| dtype != DType::I64).map(DType::size_bytes).fold(widest, usize::max);
    }
    target.lanes(widest)
}
