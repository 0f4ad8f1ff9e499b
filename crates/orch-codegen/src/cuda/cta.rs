//! Statements of CTAs: barriers, TMA, cp.async, DSMEM, mma and wgmma.

use super::emitter::{CppValue, Emitter, InFlightWgmma};
use super::types::CppType;
use super::wgmma::WgmmaFunction;
use orch_compute::ExprId;
use orch_ir::DType;
use orch_thread::{CtaStmt, Location, MmaType};
use std::collections::BTreeSet;

impl Emitter<'_> {
    pub(super) fn cta_stmt(&mut self, stmt: &CtaStmt) {
        match stmt {
            CtaStmt::Barrier | CtaStmt::ReuseShared => {
                if self.needs_proxy_fence {
                    self.line("o_fence_proxy_async();");
                }
                self.line("__syncthreads();");
            }
            CtaStmt::WarpBarrier => self.line("__syncwarp();"),
            CtaStmt::LaunchDependents if self.uses_pdl => self.line("o_launch_dependents();"),
            CtaStmt::GridDependencyWait if self.uses_pdl => self.wait_for_inputs(),
            CtaStmt::LaunchDependents | CtaStmt::GridDependencyWait => {}
            CtaStmt::WgmmaWait => {
                self.line("o_wgmma_wait();");
                self.pin_accumulators(None);
            }
            CtaStmt::ClusterBarrier => self.line("o_cluster_barrier();"),
            CtaStmt::ClusterArrive => self.line("o_cluster_arrive();"),
            CtaStmt::ClusterWait => self.line("o_cluster_wait();"),
            CtaStmt::CpAsyncCommit => self.line("o_cp_async_commit();"),
            CtaStmt::CpAsyncWait(groups) => self.line(&format!("o_cp_async_wait<{groups}>();")),
            CtaStmt::ComputeFirst(value) => {
                let value = self.eval(*value).text;
                self.line(&format!("o_compute_first({value});"));
            }
            CtaStmt::Shuffle { var, value, with } => {
                let value = self.eval(*value);
                let text = format!("o_shfl_xor({}, {with})", value.text);
                self.declare("const ", *var, CppValue { text, ty: value.ty });
            }
            CtaStmt::Exceeds { var, accs, count, limits } => {
                let (accs, limits) = (self.pointer(accs), self.pointer(limits));
                let text = format!("o_any_exceeds<{count}>({accs}, {limits})");
                self.declare("const ", *var, CppValue { text, ty: CppType::of(DType::Bool, 1) });
            }
            CtaStmt::LoadDsmem { var, rank, from } => {
                let ty = self.program.var_type(*var);
                let rank = self.eval(*rank).text;
                let width = self.aligned(from.offset, ty.lanes, ty.dtype);
                let address = self.pointer(from);
                let load = format!("o_load_dsmem<{}, {width}>({address}, {rank})", ty.lanes);
                let text = if ty.lanes == 1 { format!("{load}.v[0]") } else { load };
                self.declare("const ", *var, CppValue { text, ty: CppType::of(ty.dtype, ty.lanes) });
            }
            CtaStmt::GridBarrier { arrived } => {
                let ctas = self.program.cta.as_ref().map_or(1, |cta| cta.barrier_group);
                let counter = self.pointer(arrived);
                self.line(&format!("o_grid_barrier<{ctas}>({counter});"));
            }
            CtaStmt::LoadRelaxed { var, from } => {
                let ty = self.program.var_type(*var);
                let width = self.aligned(from.offset, ty.lanes, ty.dtype);
                let load = format!("o_load_relaxed<{}, {width}>({})", ty.lanes, self.pointer(from));
                let text = if ty.lanes == 1 { format!("{load}.v[0]") } else { load };
                self.declare("const ", *var, CppValue { text, ty: CppType::of(ty.dtype, ty.lanes) });
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                let value = self.eval(*value);
                let width = self.aligned(to.offset, value.ty.lanes, self.program.buffer(to.buffer).dtype);
                let (offset, rank) = (self.eval(to.offset).text, self.eval(*rank).text);
                let buffer = &self.buffers[to.buffer.index()];
                let store = format!("o_store_dsmem<{width}>({buffer}, {offset}, {rank}, {});", value.text);
                self.line(&store);
            }
            CtaStmt::Red { op, to, value, mask } => {
                let guard = mask.map_or(String::new(), |mask| format!("if ({}) ", self.eval(mask).text));
                let (value, address) = (self.eval(*value).text, self.pointer(to));
                self.line(&format!("{guard}o_red_{}({address}, {value});", op.name()));
            }
            CtaStmt::CpAsync { to, from, elems, real, mask } => {
                let elem_bytes = self.program.buffer(to.buffer).dtype.size_bytes();
                let cp_size = elems * elem_bytes;
                let src_size = match real {
                    Some(real) => format!("{elem_bytes} * ({})", self.eval(*real).text),
                    None => cp_size.to_string(),
                };
                let src_size = match mask {
                    Some(mask) => format!("{} ? {src_size} : 0", self.eval(*mask).text),
                    None => src_size,
                };
                // Chunks of a swizzled tile fill rows of 128 bytes, which are contiguous in global memory.
                let cache = if cp_size == 16 && self.tiles.contains(&to.buffer) { "_cg" } else { "_ca" };
                let (dst, src) = (self.pointer(to), self.pointer(from));
                self.line(&format!("o_cp_async{cache}<{cp_size}>({dst}, {src}, {src_size});"));
            }
            CtaStmt::TmaLoad { to, map: tensor_map, at, mbarrier } => {
                let coords: Vec<String> = at.iter().map(|&coord| self.eval(coord).text).collect();
                let coords = coords.join(", ");
                let (dst, mbarrier) = (self.pointer(to), self.eval(*mbarrier).text);
                let info = &self.program.tensor_maps[tensor_map.index()];
                let (bytes, hint) = (info.tile_elems() * 2, self.evict_first_suffix(info.buffer));
                let (tensor_map, mbarriers) = (&self.tensor_maps[tensor_map.index()], &self.mbarriers);
                let load = format!(
                    "o_tma_load{hint}<{bytes}>({dst}, &{tensor_map}, {mbarriers} + {mbarrier}, {coords});"
                );
                self.line(&format!("if ({} && o_elect_one()) {load}", self.is_producer_warp));
            }
            CtaStmt::MbarrierWaitFull { mbarrier, phase } => {
                let (mbarrier, phase) = (self.eval(*mbarrier).text, self.eval(*phase).text);
                self.line(&format!("o_mbarrier_wait({} + {mbarrier}, {phase});", self.mbarriers));
            }
            CtaStmt::MbarrierArriveEmpty { mbarrier, .. } => {
                let mbarrier = self.empty_mbarrier(*mbarrier);
                self.line(&format!("o_mbarrier_arrive({mbarrier});"));
            }
            CtaStmt::MbarrierWaitEmpty { mbarrier, phase } => {
                let (mbarrier, phase) = (self.empty_mbarrier(*mbarrier), self.eval(*phase).text);
                self.line(&format!("if ({}) o_mbarrier_wait({mbarrier}, {phase});", self.is_producer_warp));
            }
            CtaStmt::Ldmatrix { to, from, matrices, transposed } => {
                let (dst, src) = (self.fragment(to), self.pointer(from));
                self.line(&format!("o_ldmatrix<{matrices}, {transposed}>({dst}, {src});"));
            }
            CtaStmt::Wgmma { acc, a, b, .. } => {
                let function = WgmmaFunction::of(self.program, stmt).expect("the statement is a wgmma");
                let a = if function.a_in_registers { self.fragment(a) } else { self.pointer(a) };
                let (accs, b) = (self.pointer(acc), self.pointer(b));
                self.line(&format!("{}({accs}, {a}, {b});", function.name()));
                let (count, stored) = (function.accumulators(), BTreeSet::new());
                let in_flight = InFlightWgmma { acc: *acc, count, stored };
                self.pin_accumulators(function.is_async.then_some(in_flight));
            }
            CtaStmt::Mma { ty, acc, a, b } => {
                let acc = self.pointer(acc);
                let (a, b) = match ty {
                    MmaType::Tf32 => (self.pointer(a), self.pointer(b)),
                    MmaType::F16 | MmaType::Bf16 => (self.fragment(a), self.fragment(b)),
                };
                self.line(&format!("o_mma_{}({acc}, {a}, {b});", ty.name()));
            }
        }
    }

    /// A pointer to an element.
    pub(super) fn pointer(&mut self, location: &Location) -> String {
        let offset = self.eval(location.offset).text;
        format!("{} + {offset}", self.buffers[location.buffer.index()])
    }

    /// A pointer to an "empty" mbarrier: they lie after the "full" ones.
    fn empty_mbarrier(&mut self, mbarrier: ExprId) -> String {
        let mbarrier = self.eval(mbarrier).text;
        format!("{} + {} + {mbarrier}", self.mbarriers, self.program.mbarriers.full)
    }

    /// A pointer to the 32-bit register of a fragment that holds an element.
    fn fragment(&mut self, location: &Location) -> String {
        let offset = self.eval(location.offset).text;
        format!("{} + ({offset}) / 2", self.buffers[location.buffer.index()])
    }
}
