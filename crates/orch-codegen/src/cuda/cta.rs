//! Statements of CTAs: barriers, TMA, cp.async, DSMEM, mma and wgmma.

use super::expression::CppValue;
use super::function::Emitter;
use super::in_flight::InFlightWgmma;
use super::types::CppType;
use orch_compute::ExprId;
use orch_ir::DType;
use orch_thread::cta::WARP_GROUP;
use orch_thread::{CtaStmt, Location, MmaType, Scope, ThreadProgram};
use std::collections::BTreeSet;

/// Rows of `a` of a wgmma: m64.
const WGMMA_M: usize = 16 * WARP_GROUP;

impl Emitter<'_> {
    pub(super) fn cta_stmt(&mut self, stmt: &CtaStmt) {
        match stmt {
            CtaStmt::Barrier | CtaStmt::ReuseShared => {
                if self.needs_proxy_fence {
                    self.line("o_fence_proxy_async();");
                }
                self.line("__syncthreads();");
            }
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
            CtaStmt::Shuffle { var, value, with } => {
                let value = self.eval(*value);
                let text = format!("o_shfl_xor({}, {with})", value.text);
                self.declare("const ", *var, CppValue { text, ty: value.ty });
            }
            CtaStmt::Exceeds { var, accs: sums, count, limits } => {
                let (sums, limits) = (self.place(sums), self.place(limits));
                let text = format!("o_any_exceeds<{count}>({sums}, {limits})");
                self.declare("const ", *var, CppValue { text, ty: CppType::of(DType::Bool, 1) });
            }
            CtaStmt::LoadDsmem { var, rank, from } => {
                let ty = self.program.var_type(*var);
                let rank = self.eval(*rank).text;
                let width = self.aligned(from.offset, ty.lanes, ty.dtype);
                let place = self.place(from);
                let read = format!("o_load_dsmem<{}, {width}>({place}, {rank})", ty.lanes);
                let text = if ty.lanes == 1 { format!("{read}.v[0]") } else { read };
                self.declare("const ", *var, CppValue { text, ty: CppType::of(ty.dtype, ty.lanes) });
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                let value = self.eval(*value);
                let width = self.aligned(to.offset, value.ty.lanes, self.program.buffer(to.buffer).dtype);
                let (offset, rank) = (self.eval(to.offset).text, self.eval(*rank).text);
                let buffer = &self.buffers[to.buffer.index()];
                let give = format!("o_store_dsmem<{width}>({buffer}, {offset}, {rank}, {});", value.text);
                self.line(&give);
            }
            CtaStmt::CpAsync { to, from, elems, real, mask } => {
                let size = self.program.buffer(to.buffer).dtype.size_bytes();
                let bytes = elems * size;
                let real = match real {
                    Some(real) => format!("{size} * ({})", self.eval(*real).text),
                    None => bytes.to_string(),
                };
                let real = match mask {
                    Some(mask) => format!("{} ? {real} : 0", self.eval(*mask).text),
                    None => real,
                };
                // Chunks of a swizzled tile fill rows of 128 bytes, which are contiguous in global memory.
                let cache = if bytes == 16 && self.tiles.contains(&to.buffer) { "_cg" } else { "_ca" };
                let (to, from) = (self.place(to), self.place(from));
                self.line(&format!("o_cp_async{cache}<{bytes}>({to}, {from}, {real});"));
            }
            CtaStmt::TmaLoad { to, map: tensor_map, at, mbarrier } => {
                let at: Vec<String> = at.iter().map(|&at| self.eval(at).text).collect();
                let (to, mbarrier) = (self.place(to), self.eval(*mbarrier).text);
                let own = &self.program.tensor_maps[tensor_map.index()];
                let (bytes, hint) = (own.tile_elems() * 2, self.evict_first_suffix(own.buffer));
                let (tensor_map, mbarriers) = (&self.tensor_maps[tensor_map.index()], &self.mbarriers);
                let at = at.join(", ");
                let copy = format!(
                    "o_tma_load{hint}<{bytes}>({to}, &{tensor_map}, {mbarriers} + {mbarrier}, {at});"
                );
                self.line(&format!("if ({} && o_elect_one()) {copy}", self.copies));
            }
            CtaStmt::MbarrierWaitFull { mbarrier, phase } => {
                let (mbarrier, phase) = (self.eval(*mbarrier).text, self.eval(*phase).text);
                self.line(&format!("o_mbarrier_wait({} + {mbarrier}, {phase});", self.mbarriers));
            }
            CtaStmt::MbarrierArriveEmpty { mbarrier, .. } => {
                let mbarrier = self.mbarrier(*mbarrier);
                self.line(&format!("o_mbarrier_arrive({mbarrier});"));
            }
            CtaStmt::MbarrierWaitEmpty { mbarrier, phase } => {
                let (mbarrier, phase) = (self.mbarrier(*mbarrier), self.eval(*phase).text);
                self.line(&format!("if ({}) o_mbarrier_wait({mbarrier}, {phase});", self.copies));
            }
            CtaStmt::Ldmatrix { to, from, matrices, transposed } => {
                let (to, from) = (self.pair(to), self.place(from));
                self.line(&format!("o_ldmatrix<{matrices}, {transposed}>({to}, {from});"));
            }
            CtaStmt::Wgmma { acc: sum, a, b, .. } => {
                let kind = WgmmaFunction::of(self.program, stmt).expect("the statement is a wgmma");
                let a = if kind.a_in_registers { self.pair(a) } else { self.place(a) };
                let (sums, b) = (self.place(sum), self.place(b));
                self.line(&format!("{}({sums}, {a}, {b});", kind.name()));
                let in_flight = InFlightWgmma { sum: *sum, count: kind.columns / 2, stored: BTreeSet::new() };
                self.pin_accumulators(kind.is_async.then_some(in_flight));
            }
            CtaStmt::Mma { ty: product, acc: sum, a, b } => {
                let sum = self.place(sum);
                let (a, b) = match product {
                    MmaType::Tf32 => (self.place(a), self.place(b)),
                    MmaType::F16 | MmaType::Bf16 => (self.pair(a), self.pair(b)),
                };
                self.line(&format!("o_mma_{}({sum}, {a}, {b});", product.name()));
            }
        }
    }

    /// A pointer to an element.
    pub(super) fn place(&mut self, location: &Location) -> String {
        let offset = self.eval(location.offset).text;
        format!("{} + {offset}", self.buffers[location.buffer.index()])
    }

    /// A pointer to an "empty" mbarrier: they lie after the "full" ones.
    fn mbarrier(&mut self, mbarrier: ExprId) -> String {
        let mbarrier = self.eval(mbarrier).text;
        format!("{} + {} + {mbarrier}", self.mbarriers, self.program.mbarriers.full)
    }

    /// A pointer to a pair of elements of a fragment.
    fn pair(&mut self, location: &Location) -> String {
        let offset = self.eval(location.offset).text;
        format!("{} + ({offset}) / 2", self.buffers[location.buffer.index()])
    }
}

/// A function of the prelude around a sequence of `wgmma.mma_async`, whose shapes and registers are spelled out in its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WgmmaFunction {
    product: MmaType,
    columns: usize,
    terms: usize,
    /// Whether operand `a` is in registers.
    a_in_registers: bool,
    transposed: bool,
    is_async: bool,
}

impl WgmmaFunction {
    /// The function that a statement calls, if it is a wgmma.
    pub fn of(program: &ThreadProgram, stmt: &CtaStmt) -> Option<WgmmaFunction> {
        let CtaStmt::Wgmma { ty: product, a, n: columns, k: terms, transposed, is_async, .. } = *stmt else {
            return None;
        };
        let a_in_registers = program.buffer(a.buffer).scope == Scope::Scratch;
        Some(WgmmaFunction { product, columns, terms, a_in_registers, transposed, is_async })
    }

    /// The name of its function.
    pub fn name(&self) -> String {
        let Self { product, columns, terms, .. } = self;
        let first = if self.a_in_registers { "_fragments" } else { "" };
        let second = if self.transposed { "_transposed" } else { "" };
        let third = if self.is_async { "_async" } else { "" };
        format!("o_wgmma_{}_{columns}_{terms}{first}{second}{third}", product.name())
    }

    /// Its text: one `wgmma.mma_async` for each 16 of the K dimension, all in flight together, in one group.
    pub fn text(&self) -> String {
        let Self { product, columns, terms, a_in_registers, transposed, is_async } = *self;
        let (sums, steps, name) = (columns / 2, terms / product.instruction_k(), product.name());
        let registers = |from: usize, count: usize| {
            let list: Vec<String> = (from..from + count).map(|at| format!("%{at}")).collect();
            format!("{{{}}}", list.join(", "))
        };
        let (words, first_kind) =
            if a_in_registers { (4, "const unsigned *a") } else { (1, "const void *a") };
        let b_first = sums + words * steps;
        let mut lines = vec!["wgmma.fence.sync.aligned;".to_owned()];
        for step in 0..steps {
            let (a, phases) = match a_in_registers {
                true => (registers(sums + 4 * step, 4), format!("{}", u8::from(transposed))),
                false => (format!("%{}", sums + step), format!("0, {}", u8::from(transposed))),
            };
            lines.push(format!(
                "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {}, {a}, %{}, 1, 1, 1, {phases};",
                registers(0, sums),
                b_first + step,
            ));
        }
        lines.push("wgmma.commit_group.sync.aligned;".to_owned());
        lines.push(format!("wgmma.wait_group.sync.aligned {};", u8::from(is_async)));
        let sums: Vec<String> = (0..sums).map(|at| format!("\"+f\"(c[{at}])")).collect();
        let mut factors: Vec<String> = match a_in_registers {
            true => (0..4 * steps).map(|at| format!("\"r\"(a[{at}])")).collect(),
            false => (0..steps).map(|step| format!("\"l\"(at + {})", k_step_offset(step, WGMMA_M))).collect(),
        };
        factors.extend((0..steps).map(|step| {
            // `b[k, n]`: 16 rows of k, 128 bytes each, are 2 KiB.
            let offset = if transposed { 128 * step } else { k_step_offset(step, columns) };
            format!("\"l\"(bt + {offset})")
        }));
        // `b[k, n]`: a panel of 64 columns holds k rows of 128 bytes.
        let panel = if transposed { 8 * terms } else { 1 };
        let at = if a_in_registers { "" } else { "at = o_wgmma_descriptor(a, 1), " };
        format!(
            "ORC void {}(float *c, {first_kind}, const void *b) {{\n    \
             const unsigned long long {at}bt = o_wgmma_descriptor(b, {panel});\n    \
             asm volatile(\"{}\"\n        : {}\n        : {}\n        : \"memory\");\n}}\n",
            self.name(),
            lines.join("\\n\"\n        \""),
            sums.join(", "),
            factors.join(", "),
        )
    }
}

/// Offset, in units of 16 bytes, of K step `step` (16 elements, 32 bytes) in a swizzled tile `[line, k]`: four steps fill a row of
/// 128 bytes, after which comes the next panel of `lines` rows.
fn k_step_offset(step: usize, lines: usize) -> usize {
    2 * (step % 4) + step / 4 * lines * 8
}
