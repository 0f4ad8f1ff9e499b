//! CTAs in the interpreter: all threads of a cluster in lockstep.
//!
//! A statement that holds nothing of a CTA is run by one thread after the other. Loops around statements of a CTA
//! have the same bounds in every thread; whole warps take branches around them, and all threads reach barriers.
//! Shared memory records which thread accessed an element since the last barrier (of its warp, for threads of one), so that a
//! missing barrier is an error in whatever order threads run; a TMA load may overwrite an element once the threads that have read it have arrived at an
//! empty mbarrier for which the load waited.

use crate::cta::{Cta, CtaStmt, Location, MmaType, WARP};
use crate::interp::cluster::{Cluster, ClusterSync};
use crate::interp::fragment::{GROUP, a_element, operand};
use crate::interp::in_flight::CopyInFlight;
use crate::interp::tma::{EmptyBarriers, FullBarrier, full_at};
use crate::interp::{ExecError, ThreadInterpreter, Value};
use crate::program::Stmt;
use orch_compute::expr::ExprId;
use orch_compute::expr::scalar::{self, Number};
use orch_ir::{CompareFn, DType};
use std::rc::Rc;

impl ThreadInterpreter<'_> {
    /// Runs all CTAs of a program.
    pub(crate) fn run_ctas(&mut self, cta: &Cta) -> Result<(), ExecError> {
        let ctas = cta.synchronised();
        let places = cta.threads * ctas;
        for first in (0..self.program.tasks).step_by(ctas) {
            let mut cluster = Cluster {
                first,
                vars: Vec::with_capacity(places),
                copies: (0..places).map(|_| vec![Vec::new()]).collect(),
                wgmmas: vec![None; places.div_ceil(GROUP)],
                mbarriers: (0..ctas).map(|_| FullBarrier::all(self.program)).collect(),
                empty: (0..ctas).map(|_| EmptyBarriers::of(self.program)).collect(),
                sync: ClusterSync::NotArrived,
            };
            for place in 0..places {
                self.start(first, place)?;
                cluster.vars.push(self.vars.clone());
            }
            let all_places: Vec<usize> = (0..places).collect();
            self.list(&mut cluster, &self.program.body, &all_places)?;
            if self.memory.has_copies() {
                return Err(ExecError::divergence("a CTA ends before its copies are waited for"));
            }
            if cluster.sync == ClusterSync::Arrived {
                return Err(ExecError::divergence("a CTA ends between cluster_arrive and cluster_wait"));
            }
            if cluster.wgmmas.iter().any(Option::is_some) {
                return Err(ExecError::divergence("a CTA ends before its wgmma is waited for"));
            }
        }
        Ok(())
    }

    /// Runs `act` as the thread at a place.
    pub(crate) fn at<T>(
        &mut self,
        cluster: &mut Cluster,
        place: usize,
        act: impl FnOnce(&mut Self) -> Result<T, ExecError>,
    ) -> Result<T, ExecError> {
        std::mem::swap(&mut self.vars, &mut cluster.vars[place]);
        self.switch_to(cluster.first, place);
        let result = act(self);
        std::mem::swap(&mut self.vars, &mut cluster.vars[place]);
        result
    }

    fn list(&mut self, cluster: &mut Cluster, body: &[Stmt], active: &[usize]) -> Result<(), ExecError> {
        for stmt in body {
            if !is_of_cta(stmt) {
                for &place in active {
                    self.at(cluster, place, |interpreter| interpreter.run(std::slice::from_ref(stmt)))?;
                }
                continue;
            }
            self.step()?;
            match stmt {
                Stmt::For { var, start, end, step, body, .. } => {
                    let start = self.common(cluster, active, *start)?;
                    let end = self.common(cluster, active, *end)?;
                    let mut value = start;
                    while value < end {
                        for &place in active {
                            let number: Value = Rc::new([Number::Int(value.into())]);
                            self.at(cluster, place, |interpreter| interpreter.bind(*var, number))?;
                        }
                        self.list(cluster, body, active)?;
                        self.step()?;
                        value += step;
                    }
                }
                Stmt::If { condition, then, otherwise } => {
                    let (mut taken, mut not_taken) = (Vec::new(), Vec::new());
                    for &place in active {
                        let holds =
                            self.at(cluster, place, |interpreter| interpreter.eval(*condition))?[0].is_true();
                        if holds { &mut taken } else { &mut not_taken }.push(place);
                    }
                    for (side, body) in [(taken, then), (not_taken, otherwise)] {
                        if !side.is_empty() {
                            self.list(cluster, body, &side)?;
                        }
                    }
                }
                Stmt::Cta(stmt) => self.cta_stmt(cluster, stmt, active)?,
                _ => unreachable!("only loops, branches and statements of a cta hold any"),
            }
        }
        Ok(())
    }

    /// The value that an index has in every active thread.
    pub(crate) fn common(
        &mut self,
        cluster: &mut Cluster,
        active: &[usize],
        id: ExprId,
    ) -> Result<i64, ExecError> {
        let mut common = None;
        for &place in active {
            let value = self.at(cluster, place, |interpreter| interpreter.eval_index(id))?;
            if common.is_some_and(|common| common != value) {
                return Err(ExecError::divergence(
                    "threads differ in an index that must be the same for all",
                ));
            }
            common = Some(value);
        }
        Ok(common.unwrap_or(0))
    }

    fn cta_stmt(&mut self, cluster: &mut Cluster, stmt: &CtaStmt, active: &[usize]) -> Result<(), ExecError> {
        match stmt {
            CtaStmt::Barrier | CtaStmt::ClusterBarrier | CtaStmt::ReuseShared => {
                if active.len() < cluster.vars.len() {
                    return Err(ExecError::divergence("some threads do not reach a barrier"));
                }
                if *stmt == CtaStmt::ClusterBarrier && cluster.sync == ClusterSync::Arrived {
                    return Err(ExecError::divergence(
                        "cluster_barrier stands between cluster_arrive and cluster_wait",
                    ));
                }
                if *stmt == CtaStmt::ClusterBarrier {
                    cluster.sync = ClusterSync::Complete;
                }
                self.memory.barrier(*stmt == CtaStmt::ClusterBarrier);
                self.repeat_wgmma_reads(cluster)?;
                if *stmt == CtaStmt::ReuseShared {
                    if self.memory.has_copies() {
                        return Err(ExecError::divergence(
                            "shared memory is reused before copies to it are waited for",
                        ));
                    }
                    self.memory.reuse_shared();
                }
            }
            CtaStmt::GridBarrier { arrived } => {
                if active.len() < cluster.vars.len() {
                    return Err(ExecError::divergence("some threads do not reach a grid barrier"));
                }
                let counter = self.common(cluster, active, arrived.offset)?;
                self.memory.grid_barrier(arrived.buffer, counter)?;
            }
            CtaStmt::LoadRelaxed { .. } => unreachable!("each thread loads by itself"),
            CtaStmt::WarpBarrier => {
                for warp in warps(active)? {
                    self.memory.warp_barrier(warp[0]);
                }
            }
            CtaStmt::Shuffle { var, value, with } => {
                for warp in warps(active)? {
                    let mut values = Vec::with_capacity(WARP);
                    for &place in warp {
                        values.push(self.at(cluster, place, |interpreter| interpreter.eval(*value))?);
                    }
                    for (lane, &place) in warp.iter().enumerate() {
                        let received = Rc::clone(&values[(lane ^ with) % WARP]);
                        self.at(cluster, place, |interpreter| interpreter.bind(*var, received))?;
                    }
                }
            }
            CtaStmt::Exceeds { var, accs, count, limits } => {
                for warp in warps(active)? {
                    let accs = self.fragment(cluster, warp, *accs, *count)?;
                    let limits = self.fragment(cluster, warp, *limits, 2)?;
                    let exceeds = accs.iter().zip(&limits).any(|(accs, limits)| exceed(accs, limits));
                    for &place in warp {
                        let value: Value = Rc::new([Number::bool(exceeds)]);
                        self.at(cluster, place, |interpreter| interpreter.bind(*var, value))?;
                    }
                }
            }
            CtaStmt::LoadDsmem { var, rank, from } => {
                let lanes = self.program.var_type(*var).lanes as i64;
                for &place in active {
                    self.at(cluster, place, |interpreter| {
                        let rank = interpreter.eval_index(*rank)?;
                        let offset = interpreter.eval_index(from.offset)?;
                        let values: Result<Value, ExecError> = (0..lanes)
                            .map(|lane| interpreter.memory.load_from(rank, from.buffer, offset + lane))
                            .collect();
                        interpreter.bind(*var, values?)
                    })?;
                }
            }
            CtaStmt::ClusterArrive | CtaStmt::ClusterWait => {
                let (before, after) = match stmt {
                    CtaStmt::ClusterArrive => (ClusterSync::NotArrived, ClusterSync::Arrived),
                    _ => (ClusterSync::Arrived, ClusterSync::Complete),
                };
                if active.len() < cluster.vars.len() || cluster.sync != before {
                    return Err(ExecError::divergence(
                        "cluster_arrive and then cluster_wait are run once, by all threads",
                    ));
                }
                cluster.sync = after;
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                if cluster.sync != ClusterSync::Complete {
                    return Err(ExecError::divergence("store_dsmem to a CTA that may not have started"));
                }
                for &place in active {
                    self.at(cluster, place, |interpreter| {
                        let (rank, offset) =
                            (interpreter.eval_index(*rank)?, interpreter.eval_index(to.offset)?);
                        let values = interpreter.eval(*value)?;
                        (offset..).zip(values.iter()).try_for_each(|(offset, &value)| {
                            interpreter.memory.store_to(rank, to.buffer, offset, value)
                        })
                    })?;
                }
            }
            CtaStmt::Red { op, to, value, mask } => {
                for &place in active {
                    self.at(cluster, place, |interpreter| {
                        if let Some(mask) = mask
                            && !interpreter.eval(*mask)?[0].is_true()
                        {
                            return Ok(());
                        }
                        let (offset, value) =
                            (interpreter.eval_index(to.offset)?, interpreter.eval(*value)?[0]);
                        interpreter.memory.red(*op, to.buffer, offset, value)
                    })?;
                }
            }
            CtaStmt::CpAsync { .. } => {
                for &place in active {
                    let copy = self.at(cluster, place, |interpreter| interpreter.start_copy(stmt))?;
                    cluster.copies[place].last_mut().expect("a group is open").push(copy);
                }
            }
            CtaStmt::TmaLoad { .. }
            | CtaStmt::MbarrierWaitFull { .. }
            | CtaStmt::MbarrierArriveEmpty { .. }
            | CtaStmt::MbarrierWaitEmpty { .. } => {
                if active.len() < cluster.vars.len() {
                    return Err(ExecError::divergence(
                        "some threads do not reach a statement on TMA loads or mbarriers",
                    ));
                }
                self.tma_stmt(cluster, stmt)?;
            }
            CtaStmt::ComputeFirst(_) => {
                warps(active)?;
            }
            CtaStmt::LaunchDependents | CtaStmt::GridDependencyWait => {}
            CtaStmt::CpAsyncCommit => active.iter().for_each(|&place| cluster.copies[place].push(Vec::new())),
            CtaStmt::CpAsyncWait(groups) => {
                for &place in active {
                    let done = cluster.copies[place].len().saturating_sub(groups + 1);
                    let copies: Vec<CopyInFlight> = cluster.copies[place].drain(..done).flatten().collect();
                    self.at(cluster, place, |interpreter| {
                        for CopyInFlight { buffer, offset, values } in copies {
                            for (at, value) in (offset..).zip(values) {
                                interpreter.memory.finish_copy(buffer, at, value)?;
                            }
                        }
                        Ok(())
                    })?;
                }
            }
            CtaStmt::Ldmatrix { to, from, matrices, transposed } => {
                for warp in warps(active)? {
                    self.ldmatrix(cluster, warp, (*to, *from), *matrices, *transposed)?;
                }
            }
            CtaStmt::Wgmma { .. } | CtaStmt::WgmmaWait => {
                let groups: Vec<&[usize]> = active.chunk_by(|a, b| a / GROUP == b / GROUP).collect();
                for group in groups {
                    if group.len() != GROUP {
                        return Err(ExecError::divergence("some warps of a warp group do not reach a wgmma"));
                    }
                    self.wgmma_wait(cluster, group)?;
                    self.wgmma(cluster, group, stmt)?;
                }
            }
            CtaStmt::Mma { ty, acc, a, b } => {
                for warp in warps(active)? {
                    self.mma(cluster, warp, *ty, [*acc, *a, *b])?;
                }
            }
        }
        Ok(())
    }

    /// Runs a TMA load, or a wait or arrival at a full or empty mbarrier, in each CTA of a cluster.
    fn tma_stmt(&mut self, cluster: &mut Cluster, stmt: &CtaStmt) -> Result<(), ExecError> {
        let threads = cluster.vars.len() / cluster.mbarriers.len();
        for rank in 0..cluster.mbarriers.len() {
            let places: Vec<usize> = (rank * threads..(rank + 1) * threads).collect();
            match stmt {
                CtaStmt::MbarrierWaitFull { mbarrier, phase } => {
                    let (mbarrier, phase) = self.mbarrier_and_phase(cluster, &places, [*mbarrier, *phase])?;
                    let (copies, waited_for) =
                        full_at(&mut cluster.mbarriers[rank], mbarrier)?.end_phase(phase)?;
                    cluster.empty[rank].confirm(waited_for);
                    self.at(cluster, places[0], |interpreter| interpreter.finish_loads(copies))?;
                }
                CtaStmt::MbarrierArriveEmpty { mbarrier, phase } => {
                    let (mbarrier, phase) = self.mbarrier_and_phase(cluster, &places, [*mbarrier, *phase])?;
                    cluster.empty[rank].arrive(mbarrier, phase, self.memory.arrive_empty())?;
                }
                CtaStmt::MbarrierWaitEmpty { mbarrier, phase } => {
                    let (mbarrier, phase) = self.mbarrier_and_phase(cluster, &places, [*mbarrier, *phase])?;
                    self.memory.wait_empty(cluster.empty[rank].wait(mbarrier, phase)?);
                }
                CtaStmt::TmaLoad { to, map, at, mbarrier } => {
                    let mbarrier = self.common(cluster, &places, *mbarrier)?;
                    let copy =
                        self.at(cluster, places[0], |interpreter| interpreter.start_tma(*to, *map, at))?;
                    let waited_for = cluster.empty[rank].waited_for();
                    full_at(&mut cluster.mbarriers[rank], mbarrier)?.add(copy, waited_for)?;
                }
                _ => unreachable!("only statements on TMA loads and mbarriers"),
            }
        }
        // A `wgmma` in flight goes on reading after all threads have arrived at an empty mbarrier.
        if matches!(stmt, CtaStmt::MbarrierArriveEmpty { .. }) {
            self.repeat_wgmma_reads(cluster)?;
        }
        Ok(())
    }

    /// The number of an mbarrier and its phase, which must be the same in all of these threads.
    fn mbarrier_and_phase(
        &mut self,
        cluster: &mut Cluster,
        places: &[usize],
        [mbarrier, phase]: [ExprId; 2],
    ) -> Result<(i64, i64), ExecError> {
        Ok((self.common(cluster, places, mbarrier)?, self.common(cluster, places, phase)?))
    }

    /// Starts a `cp.async` of one thread.
    fn start_copy(&mut self, stmt: &CtaStmt) -> Result<CopyInFlight, ExecError> {
        let CtaStmt::CpAsync { to, from, elems, real, mask } = *stmt else {
            unreachable!("only copies are started");
        };
        let offset = self.eval_index(to.offset)?;
        let is_real = match mask {
            Some(mask) => self.eval(mask)?[0].is_true(),
            None => true,
        };
        let dtype = self.program.buffer(to.buffer).dtype;
        let zero = if dtype.is_float() { Number::Float(0.0) } else { Number::Int(0) };
        let mut values = vec![zero; elems];
        if is_real {
            let source = self.eval_index(from.offset)?;
            self.aligned(from, source, elems)?;
            let real = match real {
                Some(real) => self.eval_index(real)?,
                None => elems as i64,
            };
            if !(0..=elems as i64).contains(&real) {
                return Err(ExecError::Divergence {
                    problem: format!("{real} of the {elems} elements of a copy are real"),
                });
            }
            for (at, value) in (source..source + real).zip(&mut values) {
                self.report.loads += 1;
                *value = self.memory.load(from.buffer, at)?;
            }
        }
        self.aligned(to, offset, elems)?;
        for at in offset..offset + elems as i64 {
            self.memory.start_copy(to.buffer, at)?;
        }
        Ok(CopyInFlight { buffer: to.buffer, offset, values })
    }

    /// Copies and matrix rows start at multiples of their size.
    fn aligned(&self, location: Location, offset: i64, elems: usize) -> Result<(), ExecError> {
        if offset % elems as i64 == 0 {
            return Ok(());
        }
        let name = &self.program.buffer(location.buffer).name;
        Err(ExecError::divergence(&format!(
            "{name}[{offset}] is not at a multiple of the {elems} elements of the access"
        )))
    }

    /// `ldmatrix`: `matrices` matrices `[8, 8]`, of which each lane receives two elements.
    fn ldmatrix(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        (to, from): (Location, Location),
        matrices: usize,
        transposed: bool,
    ) -> Result<(), ExecError> {
        // rows: [matrix * 8 + row][column]
        let mut rows = Vec::with_capacity(8 * matrices);
        for &place in &warp[..8 * matrices] {
            rows.push(self.at(cluster, place, |interpreter| {
                let offset = interpreter.eval_index(from.offset)?;
                interpreter.aligned(from, offset, 8)?;
                let row: Result<Vec<Number>, ExecError> =
                    (offset..offset + 8).map(|at| interpreter.memory.load_operand(from.buffer, at)).collect();
                row
            })?);
        }
        for (lane, &place) in warp.iter().enumerate() {
            self.at(cluster, place, |interpreter| {
                let offset = interpreter.eval_index(to.offset)?;
                for matrix in 0..matrices {
                    for parity in 0..2 {
                        let (major, minor) = (lane / 4, 2 * (lane % 4) + parity);
                        let (row, column) = if transposed { (minor, major) } else { (major, minor) };
                        let value = rows[8 * matrix + row][column];
                        interpreter.memory.store(to.buffer, offset + (2 * matrix + parity) as i64, value)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// `mma`: `acc[16, 8] += a[16, k] * b[k, 8]`, all in fragments.
    fn mma(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        ty: MmaType,
        [acc, a, b]: [Location; 3],
    ) -> Result<(), ExecError> {
        let k_extent = ty.instruction_k();
        let per_thread = |elems: usize| elems / WARP;
        let a_elems = self.fragment(cluster, warp, a, per_thread(16 * k_extent))?;
        let b_elems = self.fragment(cluster, warp, b, per_thread(8 * k_extent))?;
        let accs = self.fragment(cluster, warp, acc, 4)?;
        // a_tile: [row, k], b_tile: [k, column]
        let mut a_tile = vec![vec![Number::Float(0.0); k_extent]; 16];
        let mut b_tile = vec![vec![Number::Float(0.0); 8]; k_extent];
        for lane in 0..WARP {
            let (g, c) = (lane / 4, lane % 4);
            for (at, &value) in a_elems[lane].iter().enumerate() {
                let [row, k] = a_element(ty, lane, at);
                a_tile[row][k] = operand(ty, value);
            }
            for (at, &value) in b_elems[lane].iter().enumerate() {
                let k = match ty {
                    MmaType::Tf32 => c + 4 * at,
                    _ => 2 * c + at % 2 + 8 * (at / 2),
                };
                b_tile[k][g] = operand(ty, value);
            }
        }
        for (lane, &place) in warp.iter().enumerate() {
            let (g, c) = (lane / 4, lane % 4);
            let mut results = Vec::with_capacity(4);
            for (at, &start) in accs[lane].iter().enumerate() {
                let (row, column) = (g + 8 * (at / 2), 2 * c + at % 2);
                let total = (0..k_extent).try_fold(start, |total, k| {
                    scalar::fma(DType::F32, a_tile[row][k], b_tile[k][column], total)
                });
                results.push(total.ok_or_else(|| ExecError::Undefined { node: "mma".to_owned() })?);
            }
            self.at(cluster, place, |interpreter| {
                let offset = interpreter.eval_index(acc.offset)?;
                for (at, value) in (offset..).zip(results) {
                    interpreter.memory.store(acc.buffer, at, value)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// `[thread][element]`: the elements of a fragment that each of these threads holds.
    pub(crate) fn fragment(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        location: Location,
        elems: usize,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let mut all = Vec::with_capacity(WARP);
        for &place in warp {
            all.push(self.at(cluster, place, |interpreter| {
                let offset = interpreter.eval_index(location.offset)?;
                let elems: Result<Vec<Number>, ExecError> = (offset..offset + elems as i64)
                    .map(|at| interpreter.memory.load(location.buffer, at))
                    .collect();
                elems
            })?);
        }
        Ok(all)
    }
}

/// Whether one of a thread's accumulators is above the limit of its row, or a limit has its sign bit set.
fn exceed(accs: &[Number], limits: &[Number]) -> bool {
    let above = |(at, acc): (usize, &Number)| scalar::compare(CompareFn::Lt, limits[at / 2 % 2], *acc);
    accs.iter().enumerate().any(above) || limits.iter().any(|limit| limit.to_bits(DType::F32) >> 31 == 1)
}

/// The active threads in whole warps.
fn warps(active: &[usize]) -> Result<Vec<&[usize]>, ExecError> {
    let warps: Vec<&[usize]> = active.chunk_by(|a, b| a / WARP == b / WARP).collect();
    match warps.iter().all(|warp| warp.len() == WARP) {
        true => Ok(warps),
        false => Err(ExecError::divergence("some threads of a warp do not reach a statement of the warp")),
    }
}

/// True if a statement is, or holds, one that threads run together.
fn is_of_cta(stmt: &Stmt) -> bool {
    let is_common = |stmt: &CtaStmt| !matches!(stmt, CtaStmt::LoadRelaxed { .. });
    matches!(stmt, Stmt::Cta(stmt) if is_common(stmt)) || stmt.bodies().any(|body| body.iter().any(is_of_cta))
}

#[cfg(test)]
mod tests;
