//! Prints the statements of a CTA.

use crate::cta::CtaStmt;
use crate::text::print::Printer;

impl Printer<'_> {
    pub(crate) fn cta_stmt(&mut self, stmt: &CtaStmt, depth: usize) -> String {
        let locations: Vec<String> = (stmt.locations().into_iter())
            .map(|location| {
                let offset = self.expr(location.offset, depth);
                format!("{}[{offset}]", self.buffer(location.buffer))
            })
            .collect();
        match (stmt, &locations[..]) {
            (CtaStmt::Barrier, _) => "barrier".to_owned(),
            (CtaStmt::WarpBarrier, _) => "warp_barrier".to_owned(),
            (CtaStmt::ClusterBarrier, _) => "cluster_barrier".to_owned(),
            (CtaStmt::ClusterArrive, _) => "cluster_arrive".to_owned(),
            (CtaStmt::ClusterWait, _) => "cluster_wait".to_owned(),
            (CtaStmt::ReuseShared, _) => "reuse_shared".to_owned(),
            (CtaStmt::LaunchDependents, _) => "launch_dependents".to_owned(),
            (CtaStmt::GridDependencyWait, _) => "grid_dependency_wait".to_owned(),
            (CtaStmt::WgmmaWait, _) => "wgmma_wait".to_owned(),
            (CtaStmt::CpAsyncCommit, _) => "cp_async_commit".to_owned(),
            (CtaStmt::CpAsyncWait(groups), _) => format!("cp_async_wait {groups}"),
            (CtaStmt::ComputeFirst(value), _) => format!("compute_first {}", self.expr(*value, depth)),
            (CtaStmt::Shuffle { var, value, with }, _) => {
                let value = self.expr(*value, depth);
                format!("shuffle {} = {value}, {with}", self.declaration(*var))
            }
            (CtaStmt::Exceeds { var, count, .. }, [accs, limits]) => {
                format!("exceeds {} = {accs}, {count}, {limits}", self.declaration(*var))
            }
            (CtaStmt::LoadDsmem { var, rank, .. }, [from]) => {
                let rank = self.expr(*rank, depth);
                format!("load_dsmem {} = {from}, {rank}", self.declaration(*var))
            }
            (CtaStmt::GridBarrier { .. }, [arrived]) => format!("grid_barrier {arrived}"),
            (CtaStmt::LoadRelaxed { var, .. }, [from]) => {
                format!("load_relaxed {} = {from}", self.declaration(*var))
            }
            (CtaStmt::StoreDsmem { rank, value, .. }, [to]) => {
                format!("store_dsmem {to}, {} = {}", self.expr(*rank, depth), self.expr(*value, depth))
            }
            (CtaStmt::Red { op, value, mask, .. }, [to]) => {
                let mask = mask.map_or(String::new(), |mask| format!(", if {}", self.expr(mask, depth)));
                format!("red {} {to}, {}{mask}", op.name(), self.expr(*value, depth))
            }
            (CtaStmt::CpAsync { elems, real, mask, .. }, [to, from]) => {
                let real = real.map_or(String::new(), |real| format!(" real {}", self.expr(real, depth)));
                let mask = mask.map_or(String::new(), |mask| format!(", if {}", self.expr(mask, depth)));
                format!("cp_async {to}, {from}, {elems}{real}{mask}")
            }
            (CtaStmt::TmaLoad { map, at, mbarrier, .. }, [to]) => {
                let at: Vec<String> = at.iter().map(|&at| self.expr(at, depth)).collect();
                let map =
                    self.tensor_maps.get(map.index()).cloned().unwrap_or_else(|| format!("\"{}\"", map.0));
                format!("tma_load {to}, {map}[{}], {}", at.join(", "), self.expr(*mbarrier, depth))
            }
            (
                CtaStmt::MbarrierWaitFull { mbarrier, phase }
                | CtaStmt::MbarrierArriveEmpty { mbarrier, phase }
                | CtaStmt::MbarrierWaitEmpty { mbarrier, phase },
                _,
            ) => {
                let word = match stmt {
                    CtaStmt::MbarrierWaitFull { .. } => "mbarrier_wait_full",
                    CtaStmt::MbarrierArriveEmpty { .. } => "mbarrier_arrive_empty",
                    _ => "mbarrier_wait_empty",
                };
                format!("{word} {}, {}", self.expr(*mbarrier, depth), self.expr(*phase, depth))
            }
            (CtaStmt::Ldmatrix { matrices, transposed, .. }, [to, from]) => {
                let transposed = if *transposed { ", transposed" } else { "" };
                format!("ldmatrix {to}, {from}, {matrices}{transposed}")
            }
            (CtaStmt::Wgmma { ty, n, k, a_transposed, b_transposed, is_async, .. }, [acc, a, b]) => {
                let qualifiers = [
                    (*a_transposed, ", transposed_a"),
                    (*b_transposed, ", transposed_b"),
                    (*is_async, ", async"),
                ];
                let qualifiers = qualifiers.into_iter().filter(|(is_there, _)| *is_there);
                let qualifiers: String = qualifiers.map(|(_, qualifier)| qualifier).collect();
                format!("wgmma {}, {acc}, {a}, {b}, {n}, {k}{qualifiers}", ty.name())
            }
            (CtaStmt::Mma { ty, .. }, [acc, a, b]) => {
                format!("mma {}, {acc}, {a}, {b}", ty.name())
            }
            _ => unreachable!("each statement has its number of locations"),
        }
    }
}
