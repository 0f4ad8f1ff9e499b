//! Bytes and operations of a CPU kernel, counted from its block program, for the cost model.

use crate::build::operations::{Operations, operations, reads};
use orch_compute::{ArgRole, BlockProgram, ExprId, Stage};
use orch_template::contraction::{self, ContractionWork, CpuMathUnit};
use orch_template::{NestWork, nest_work};
use orch_thread::CpuTarget;
use orch_tune::cost::KernelFacts;

/// Counts bytes and operations of one launch. No more bytes are read than the kernel has reads for: gathers and slices leave most of
/// a tensor alone.
pub fn facts(block: &BlockProgram, target: &CpuTarget) -> KernelFacts {
    let mut facts = KernelFacts { efficiency: EFFICIENCY, ..KernelFacts::default() };
    for (arg, reads) in block.args.iter().zip(reads(block)) {
        let (elems, bytes) = (arg.shape.elems(), arg.dtype.size_bytes());
        match arg.role {
            ArgRole::Output | ArgRole::Updated => facts.bytes_written += (elems * bytes) as u64,
            ArgRole::Input => facts.bytes_read += (elems.min(reads) * bytes) as u64,
            ArgRole::Constant => facts.constant_bytes += (elems.min(reads) * bytes) as u64,
        }
    }
    for stage in &block.stages {
        count_stage(block, stage, target, &mut facts);
    }
    match contraction::work(block, target, FILL_LANES) {
        Some(ContractionWork { grid, packing, relative_speed, epilogue }) => {
            facts.fma_speed = relative_speed;
            facts.packing_ops = 2 * packing.lanes + TRANSPOSE_OPS * packing.transposed;
            facts.packing_accesses = packing.gathered;
            facts.single_accesses = epilogue.near as u64;
            facts.scattered_accesses = epilogue.far as u64;
            facts.tasks = grid.tasks() as u64;
            facts.packed_blocks = (grid.batch * grid.row_blocks) as u64;
        }
        None => {
            if let Some(NestWork { work_items, singles, lanes_used }) = nest_work(block, target) {
                facts.efficiency *= lanes_used;
                facts.tasks = work_items as u64;
                facts.single_accesses = singles.near as u64;
                facts.scattered_accesses = singles.far as u64;
                facts.cheap_ops += TRANSPOSE_OPS * singles.transposed as u64;
            }
        }
    }
    facts
}

/// Lanes of the vectors that pack operands of contractions.
const FILL_LANES: usize = 16;

/// Simple operations for which an element is transposed in registers: a vector takes one shuffle in each of three or four rounds, two where
/// shuffles do not cross halves of a vector.
const TRANSPOSE_OPS: u64 = 6;

/// Share of the peak that generated inner loops reach.
const EFFICIENCY: f64 = 0.85;

fn count_stage(block: &BlockProgram, stage: &Stage, target: &CpuTarget, facts: &mut KernelFacts) {
    let points =
        |axes: &[orch_compute::VarId]| axes.iter().map(|&axis| block.extent(axis) as u64).product::<u64>();
    match stage {
        Stage::Reduce { domain, reduced, kind: orch_compute::ReduceKind::Dot { lhs, rhs }, .. } => {
            let terms = points(domain) * points(reduced);
            match contraction::cpu_form(block).map(|form| CpuMathUnit::of(block, &form, target)) {
                Ok(CpuMathUnit::Amx) => facts.tile_flops += 2 * terms,
                Ok(CpuMathUnit::Bf16Dot) => facts.pair_flops += 2 * terms,
                Ok(CpuMathUnit::Fma) | Err(_) => facts.fma_flops += 2 * terms,
            }
            // Operands are computed once per element that they vary over, not once per step of the K dimension.
            for factor in [*lhs, *rhs] {
                let axes = block.exprs.free_vars(factor);
                add_operations(block, factor, points(&axes), facts);
            }
        }
        Stage::Reduce { domain, reduced, body, .. } => {
            let terms = points(domain) * points(reduced);
            facts.cheap_ops += terms;
            add_operations(block, *body, terms, facts);
        }
        Stage::Store { domain, body, .. } => add_operations(block, *body, points(domain), facts),
    }
}

/// Adds the operations of an expression that is evaluated so often.
fn add_operations(block: &BlockProgram, root: ExprId, times: u64, facts: &mut KernelFacts) {
    let Operations { cheap, special } = operations(block, root);
    facts.cheap_ops += times * cheap;
    facts.transcendental_ops += times * special;
}

/// Floating-point operations in all, a multiply-add as two.
pub fn flops(facts: &KernelFacts) -> f64 {
    let multiply_adds = facts.fma_flops + facts.pair_flops + facts.tile_flops;
    (multiply_adds + facts.cheap_ops + facts.transcendental_ops) as f64
}

#[cfg(test)]
mod tests;
