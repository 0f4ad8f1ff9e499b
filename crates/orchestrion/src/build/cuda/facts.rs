//! What a GPU kernel does, counted from its block program, for the cost model.

use crate::build::operations::{Operations, operations, reads};
use orch_compute::{ArgRole, BlockProgram, Expr, ExprId, ReduceKind, Stage, VarId};
use orch_ir::DType;
use orch_template::contraction::{ContractionForm, GemmShape};
use orch_template::gpu;
use orch_template::gpu::attention::AttentionForm;
use orch_template::gpu::contraction::{access_bytes, form_of, is_for_threads, unused_stored_bytes};
use orch_thread::OperandPrecision;
use orch_tune::gpu::{ArithmeticUnit, AttentionCost, GemmCost, GpuKernelCost};

/// Simple operations that compute the address of an element: of one alone, and in the epilogue of a contraction, where the
/// elements of a tile share them.
const ADDRESS_OPS: u64 = 4;
const TILE_ADDRESS_OPS: u64 = 1;
/// Simple operations of a multiply-add whose operands a thread has loaded and converted for several of them.
const SHARED_PRODUCT_OPS: u64 = 3;
/// Operations of a product of two converted elements.
const PRODUCT_OPS: u64 = 3;
/// Elements of a result, or of the reduced axes, per CTA.
const TASK_ELEMS: usize = 512;
/// CTAs that share one row of a reduction, at most.
const ROW_TASKS: usize = 8;

/// Counts bytes and operations of one launch.
pub fn facts(block: &BlockProgram, operands: OperandPrecision) -> GpuKernelCost {
    let mut facts =
        GpuKernelCost { ctas: tasks(block), serial_loads: serial_loads(block), ..GpuKernelCost::default() };
    for (arg, reads) in block.args.iter().zip(reads(block)) {
        let size = arg.dtype.size_bytes();
        match arg.role {
            ArgRole::Output | ArgRole::Updated => facts.written_bytes += (arg.shape.elems() * size) as u64,
            ArgRole::Input => facts.read_bytes += (arg.shape.elems().min(reads) * size) as u64,
            ArgRole::Constant => facts.constant_bytes += (arg.shape.elems().min(reads) * size) as u64,
        }
    }
    let is_for_threads = is_for_threads(block);
    let form = form_of(block).ok().filter(|_| !is_for_threads);
    facts.product = form.map(|form| product(block, &form, operands));
    facts.attention = AttentionForm::of(block).ok().map(|form| attention(block, &form));
    if facts.product.is_none() && facts.attention.is_none() {
        facts.unused_bytes = gpu::unused_bytes(block) as u64;
    }
    let points = |axes: &[VarId]| points(block, axes) as u64;
    let has_products = facts.product.is_some() || facts.attention.is_some();
    let address_ops = if facts.product.is_some() { TILE_ADDRESS_OPS } else { ADDRESS_OPS };
    for stage in &block.stages {
        let (root, times) = match stage {
            Stage::Reduce { kind: ReduceKind::Dot { .. }, .. } if has_products => continue,
            Stage::Reduce { domain, reduced, body, .. } => (*body, points(domain) * points(reduced)),
            Stage::Store { domain, body, .. } => (*body, points(domain)),
        };
        let Operations { cheap, special } = operations(block, root);
        let addresses = address_ops * read_nodes(block, root).count() as u64;
        let shared = is_for_threads && matches!(stage, Stage::Reduce { kind: ReduceKind::Dot { .. }, .. });
        let simple = match shared {
            true => SHARED_PRODUCT_OPS + cheap.saturating_sub(PRODUCT_OPS),
            false => cheap + addresses + 1,
        };
        facts.cheap_ops += times * simple;
        facts.special_ops += times * special;
    }
    facts
}

fn attention(block: &BlockProgram, form: &AttentionForm) -> AttentionCost {
    /// Rows of a CTA, and keys of a warp, of which a CTA has up to [`WARPS`].
    const ROWS: usize = 16;
    const WARP_KEYS: usize = 48;
    const WARPS: usize = 4;
    let points = |axes: &[VarId]| AttentionForm::points(block, axes);
    let (rows, keys) = (points(&form.rows), points(&form.keys));
    let (k, columns) = (points(&form.head_dim), points(&form.columns));
    let mut ops = [0.0; 2];
    let bodies = form.statistics.iter().map(|statistic| statistic.body).chain([form.p]);
    for body in bodies {
        let Operations { cheap, special } = operations(block, body);
        let addresses = ADDRESS_OPS * read_nodes(block, body).count() as u64;
        ops[0] += (cheap + addresses) as f64;
        ops[1] += special as f64;
    }
    let computed: f64 =
        [form.q, form.k, form.v].map(|operand| computing(block, operand, ArithmeticUnit::Half)).iter().sum();
    // Operands that are computed before they are stored to shared memory are computed by every CTA.
    ops[0] += 4.0 * computed;
    AttentionCost {
        ctas: (points(&form.batch) * rows.div_ceil(ROWS)) as u64,
        cta_bytes: 2 * (keys * (k + columns) + ROWS * k) as u64,
        scores: (keys * ROWS / 32 / (keys / WARP_KEYS).clamp(1, WARPS)) as u64,
        ops,
        cta_flops: (2 * ROWS * keys * (k + columns)) as u64,
    }
}

/// Loads of a thread one after the other, in the stages of which a CTA computes several points: a thread reduces each alone.
fn serial_loads(block: &BlockProgram) -> u64 {
    /// Most threads of a CTA.
    const THREADS: usize = 1024;
    let ctas = common_points(block);
    let several = reductions(block).filter(|&(points, _)| points > ctas);
    several.map(|(points, reduced)| (reduced * (points / ctas).div_ceil(THREADS)) as u64).sum()
}

/// CTAs of the stage that has the fewest.
fn tasks(block: &BlockProgram) -> u64 {
    let common = common_points(block);
    let has_reductions = reductions(block).next().is_some();
    // Results of several points of a row, as those of a pool before a norm, lie in the shared memory of one CTA.
    let row_tasks = if reductions(block).all(|(points, _)| points == common) { ROW_TASKS } else { 1 };
    let of_reductions =
        reductions(block).map(|(points, k)| (points * k).div_ceil(TASK_ELEMS).min(common * row_tasks));
    let of_stores = block.stages.iter().filter_map(|stage| match stage {
        Stage::Reduce { .. } => None,
        // What has reduced a row stores its result.
        Stage::Store { domain, .. } => {
            let least = if has_reductions { common } else { 1 };
            Some(points(block, domain).div_ceil(TASK_ELEMS).max(least))
        }
    });
    of_reductions.chain(of_stores).min().unwrap_or(1).max(1) as u64
}

/// Points at which each reduction has a result, and elements that it reduces for one.
fn reductions(block: &BlockProgram) -> impl Iterator<Item = (usize, usize)> {
    block.stages.iter().filter_map(|stage| match stage {
        Stage::Reduce { domain, reduced, .. } => Some((points(block, domain), points(block, reduced))),
        Stage::Store { .. } => None,
    })
}

/// Points of the axes that all stages vary over. One CTA, or a cluster of them, computes all that the stages do at such a point.
fn common_points(block: &BlockProgram) -> usize {
    let domains: Vec<&[VarId]> = (block.stages.iter())
        .map(|stage| match stage {
            Stage::Reduce { domain, .. } | Stage::Store { domain, .. } => domain.as_slice(),
        })
        .collect();
    let Some((first, others)) = domains.split_first() else { return 1 };
    let common = first.iter().filter(|axis| others.iter().all(|domain| domain.contains(axis)));
    common.map(|&axis| block.extent(axis)).product()
}

fn points(block: &BlockProgram, axes: &[VarId]) -> usize {
    axes.iter().map(|&axis| block.extent(axis)).product()
}

fn product(block: &BlockProgram, form: &ContractionForm, operands: OperandPrecision) -> GemmCost {
    let GemmShape { batch, m, n, k } = GemmShape::of(block, form);
    let pair = [form.a, form.b];
    let is_f32 = block.exprs.dtype(form.a) == DType::F32;
    let unit = match operands.within(block) {
        _ if !is_f32 => ArithmeticUnit::Scalar,
        OperandPrecision::F16 | OperandPrecision::Bf16 => ArithmeticUnit::Half,
        OperandPrecision::Tf32 => ArithmeticUnit::Tf32,
        OperandPrecision::F32 => ArithmeticUnit::Scalar,
    };
    let bytes =
        |operand| read_nodes(block, operand).map(|arg| arg.dtype.size_bytes() as u64).max().unwrap_or(4);
    GemmCost {
        batch: batch as u64,
        m: m as u64,
        n: n as u64,
        k: k as u64,
        unit,
        operand_bytes: pair.map(bytes),
        access_bytes: access_bytes(block, form),
        operand_ops: pair.map(|operand| computing(block, operand, unit)),
        index_divisions: pair.map(|operand| index_divisions(block, operand)),
        operand_pieces: pair.map(|operand| pieces(block, operand)),
        unused_stored_bytes: unused_stored_bytes(block, form),
    }
}

/// Tensors of a concatenation, one after the other of which is read where its part of an operand is reached; 1 if it is none.
fn pieces(block: &BlockProgram, operand: ExprId) -> u64 {
    let nodes = block.exprs.reachable(&[operand]);
    let guarded =
        nodes.iter().filter(|&&id| matches!(block.exprs.get(id), Expr::Read { guard: Some(_), .. }));
    guarded.count().max(1) as u64
}

/// Divisions and remainders in the indices of an operand; none of a constant, which is packed.
fn index_divisions(block: &BlockProgram, operand: ExprId) -> u64 {
    if read_nodes(block, operand).all(|arg| arg.role == ArgRole::Constant) {
        return 0;
    }
    let nodes = block.exprs.reachable(&[operand]);
    nodes.iter().filter(|&&id| matches!(block.exprs.get(id), Expr::FloorDiv(..) | Expr::FloorRem(..))).count()
        as u64
}

/// Operations that compute an element of an operand; 0 if it is read in the type in which it is multiplied.
fn computing(block: &BlockProgram, operand: ExprId, unit: ArithmeticUnit) -> f64 {
    /// Simple operations that take as long as an exponential.
    const SPECIAL: u64 = 8;
    let inner = block.exprs.without_casts(operand);
    if let Expr::Read { arg, .. } = block.exprs.get(inner) {
        let is_half = block.arg(*arg).dtype.size_bytes() == 2;
        if is_half == (unit == ArithmeticUnit::Half) {
            return 0.0;
        }
    }
    let Operations { cheap, special } = operations(block, operand);
    let addresses = ADDRESS_OPS * read_nodes(block, operand).count() as u64;
    (cheap + SPECIAL * special + addresses) as f64
}

/// The arguments that an expression reads.
fn read_nodes(block: &BlockProgram, root: ExprId) -> impl Iterator<Item = &orch_compute::Arg> {
    let nodes = block.exprs.reachable(&[root]).into_iter();
    nodes.filter_map(|id| match block.exprs.get(id) {
        Expr::Read { arg, .. } => Some(block.arg(*arg)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
