//! Elements that a kernel accesses one at a time: where the lanes of a vector are not neighbours in memory.
//!
//! ```text
//! vector axis v, stride s along it      0, 1: a vector or one element for all lanes      2, 3, 4: picked from vectors
//! s larger or none, no vector axis:     one at a time
//!                                       in a tile:  transposed in registers
//!                                       if L1 keeps the lines of a vector
//!                                       until the next vector reads their neighbours: near
//!                                       otherwise: far, a cache line for each element
//! ```

use super::flat::{Nest, NestStage, StageWork};
use super::plan::NestPlan;
use super::tile::is_transposed;
use orch_compute::affine::gcd;
use orch_compute::expr::{Expr, ExprId, VarId};
use orch_thread::target::{CpuTarget, is_short_stride};

/// Numbers of elements that no vector accesses where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SingleAccesses {
    /// Those of which a cache line holds several that are accessed soon after each other.
    pub near: usize,
    /// Those that take a cache line each.
    pub far: usize,
    /// Those of tiles that are transposed in registers.
    pub transposed: usize,
}

/// Bytes of a cache line.
const LINE_BYTES: i64 = 64;

/// Ways of L1: lines of addresses that agree modulo the bytes of a way which it keeps at once.
const WAYS: usize = 8;

/// Counts the accesses of all stages.
pub(super) fn count(nest: &mut Nest, plan: &NestPlan, target: &CpuTarget) -> SingleAccesses {
    let mut singles = SingleAccesses::default();
    let vector = plan.vector.as_ref().map(|axis| axis.var);
    let exprs = &nest.program.exprs;
    let (mut transposed, mut copied) = (Vec::new(), Vec::new());
    if let Some(tiling) = &plan.tiling {
        for &value in &tiling.values {
            let is_transposed = is_transposed(exprs, tiling, value, plan.lanes);
            if is_transposed { &mut transposed } else { &mut copied }.push(value);
        }
    }
    let [transposed, copied] = [transposed, copied].map(|values| exprs.reachable(&values));
    let lines = plan.lanes * plan.vectors;
    for stage in nest.stages.clone() {
        for (id, offset) in accesses(nest, &stage) {
            let exprs = &nest.program.exprs;
            let size = exprs.dtype(id).size_bytes() as i64;
            // Vectors are innermost, so that each is loaded at all points of the other axes, but once for the points of a register block.
            let is_shared = |&(axis, _): &(VarId, usize)| !exprs.depends_on(offset, axis);
            let shared = plan.block.filter(is_shared).map_or(1, |(_, points)| points);
            let varies_along_vector = vector.is_some_and(|vector| exprs.depends_on(offset, vector));
            let varying = |axis: &VarId| varies_along_vector || exprs.depends_on(offset, *axis);
            let axes: Vec<VarId> = stage.axes().into_iter().filter(varying).collect();
            let points = nest.points(&axes) / shared;
            let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
            let stride = vector.and_then(|vector| simplifier.stride(exprs, offset, vector));
            match stride {
                Some(0 | 1) => {}
                Some(stride) if is_short_stride(stride) => {}
                Some(_) if transposed.contains(&id) => singles.transposed += points,
                Some(stride) if !copied.contains(&id) && lines > lines_kept(target, stride * size) => {
                    singles.far += points;
                }
                _ => singles.near += points,
            }
        }
    }
    singles
}

/// The loads and the store of a stage, with their offsets. Constants are packed in the order in which they are read.
fn accesses(nest: &Nest, stage: &NestStage) -> Vec<(ExprId, ExprId)> {
    let exprs = &nest.program.exprs;
    let loads = exprs.reachable(&stage.roots()).into_iter().filter_map(|id| match *exprs.get(id) {
        Expr::Load { buffer, offset, .. } if !nest.constants.contains(&buffer) => Some((id, offset)),
        _ => None,
    });
    let store = match stage.work {
        StageWork::Store { offset, body, .. } => Some((body, offset)),
        StageWork::Reduce(_) => None,
    };
    loads.chain(store).collect()
}

/// Lines at a distance of so many bytes that L1 keeps at once.
fn lines_kept(target: &CpuTarget, stride_bytes: i64) -> usize {
    let sets = (target.l1_bytes / WAYS) as i64 / LINE_BYTES;
    let step = (stride_bytes.abs() / LINE_BYTES).max(1);
    // Lines at this distance are in every `gcd`-th set.
    WAYS * (sets / gcd(sets, step)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_thread::target::CPU_TARGETS;

    #[test]
    fn strides_of_powers_of_two_share_few_sets() {
        // 32 KiB of 8 ways: 64 sets.
        let target = CPU_TARGETS.iter().find(|target| target.l1_bytes == 32 << 10).unwrap();
        assert_eq!(lines_kept(target, 64), 512);
        assert_eq!(lines_kept(target, 2048), 16);
        assert_eq!(lines_kept(target, -4096), 8);
        assert_eq!(lines_kept(target, 4096 + 64), 512);
        assert_eq!(lines_kept(target, 4), 512);
    }
}
