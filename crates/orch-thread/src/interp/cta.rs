//! CTAs in the interpreter: all threads of a cluster in lockstep.
//!
//! A statement that holds nothing of a CTA is run by one thread after the other. Loops around statements of a CTA
//! have the same bounds in every thread; branches around them are taken by whole warps, and barriers met by all
//! threads. Shared memory remembers who touched an element since the last barrier, so that a missing barrier is an
//! error whatever the order; and, of what TMA loads overwrite, who read it since the gate that they waited for was passed.

use crate::cta::{Cta, CtaStmt, Location, MmaType, WARP};
use crate::interp::cluster::{Cluster, Presence};
use crate::interp::fragment::{GROUP, factor, first_place};
use crate::interp::in_flight::CopyInFlight;
use crate::interp::tma::{EmptyBarriers, FullBarrier, full_at};
use crate::interp::{ExecError, ThreadInterpreter, Value};
use crate::program::Stmt;
use orch_compute::expr::ExprId;
use orch_compute::expr::scalar::{self, Number};
use orch_ir::{CompareFn, DType};
use std::rc::Rc;

impl ThreadInterpreter<'_> {
    /// Runs all tasks of a program with a CTA.
    pub(crate) fn run_ctas(&mut self, cta: &Cta) -> Result<(), ExecError> {
        let places = cta.threads * cta.cluster;
        for first in (0..self.program.tasks).step_by(cta.cluster) {
            let mut cluster = Cluster {
                first,
                vars: Vec::with_capacity(places),
                copies: (0..places).map(|_| vec![Vec::new()]).collect(),
                products: vec![None; places.div_ceil(GROUP)],
                mbarriers: (0..cta.cluster).map(|_| FullBarrier::all(self.program)).collect(),
                empty: (0..cta.cluster).map(|_| EmptyBarriers::of(self.program)).collect(),
                presence: Presence::Unknown,
            };
            for place in 0..places {
                self.start(first, place)?;
                cluster.vars.push(self.vars.clone());
            }
            let everyone: Vec<usize> = (0..places).collect();
            self.list(&mut cluster, &self.program.body, &everyone)?;
            if self.memory.has_copies() {
                return Err(ExecError::divergence("a task ends before its copies are waited for"));
            }
            if cluster.presence == Presence::Told {
                return Err(ExecError::divergence(
                    "a task ends before it has waited for those that joined the cluster",
                ));
            }
            if cluster.products.iter().any(Option::is_some) {
                return Err(ExecError::divergence("a task ends before its products are waited for"));
            }
        }
        Ok(())
    }

    /// Lets `act` be done by the thread at a place.
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
                    self.at(cluster, place, |machine| machine.run(std::slice::from_ref(stmt)))?;
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
                            self.at(cluster, place, |machine| machine.bind(*var, number))?;
                        }
                        self.list(cluster, body, active)?;
                        self.step()?;
                        value += step;
                    }
                }
                Stmt::If { condition, then, otherwise } => {
                    let (mut taken, mut refused) = (Vec::new(), Vec::new());
                    for &place in active {
                        let holds = self.at(cluster, place, |machine| machine.eval(*condition))?[0].is_true();
                        if holds { &mut taken } else { &mut refused }.push(place);
                    }
                    for (side, body) in [(taken, then), (refused, otherwise)] {
                        if !side.is_empty() {
                            self.list(cluster, body, &side)?;
                        }
                    }
                }
                Stmt::Cta(stmt) => self.cta_stmt(cluster, stmt, active)?,
                _ => unreachable!("only loops, branches and the cta's own statements are of a cta"),
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
            let value = self.at(cluster, place, |machine| machine.eval_index(id))?;
            if common.is_some_and(|common| common != value) {
                return Err(ExecError::divergence(
                    "threads differ in the bounds of a loop that they run together",
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
                    return Err(ExecError::divergence("some threads do not come to a barrier"));
                }
                if *stmt == CtaStmt::ClusterBarrier && cluster.presence == Presence::Told {
                    return Err(ExecError::divergence(
                        "a barrier of the cluster comes before those that joined it are awaited",
                    ));
                }
                if *stmt == CtaStmt::ClusterBarrier {
                    cluster.presence = Presence::Known;
                }
                self.memory.barrier(*stmt == CtaStmt::ClusterBarrier);
                self.read_on(cluster)?;
                if *stmt == CtaStmt::ReuseShared {
                    if self.memory.has_copies() {
                        return Err(ExecError::divergence(
                            "shared memory is recycled before copies to it are waited for",
                        ));
                    }
                    self.memory.recycle();
                }
            }
            CtaStmt::Shuffle { var, value, with } => {
                for warp in warps(active)? {
                    let mut values = Vec::with_capacity(WARP);
                    for &place in warp {
                        values.push(self.at(cluster, place, |machine| machine.eval(*value))?);
                    }
                    for (lane, &place) in warp.iter().enumerate() {
                        let given = Rc::clone(&values[(lane ^ with) % WARP]);
                        self.at(cluster, place, |machine| machine.bind(*var, given))?;
                    }
                }
            }
            CtaStmt::Exceeds { var, accs: sums, count, limits } => {
                for warp in warps(active)? {
                    let sums = self.fragment(cluster, warp, *sums, *count)?;
                    let limits = self.fragment(cluster, warp, *limits, 2)?;
                    let exceeds = sums.iter().zip(&limits).any(|(sums, limits)| exceed(sums, limits));
                    for &place in warp {
                        let value: Value = Rc::new([Number::bool(exceeds)]);
                        self.at(cluster, place, |machine| machine.bind(*var, value))?;
                    }
                }
            }
            CtaStmt::LoadDsmem { var, rank, from } => {
                let lanes = self.program.var_type(*var).lanes as i64;
                for &place in active {
                    self.at(cluster, place, |machine| {
                        let rank = machine.eval_index(*rank)?;
                        let offset = machine.eval_index(from.offset)?;
                        let values: Result<Value, ExecError> = (0..lanes)
                            .map(|lane| machine.memory.load_from(rank, from.buffer, offset + lane))
                            .collect();
                        machine.bind(*var, values?)
                    })?;
                }
            }
            CtaStmt::ClusterArrive | CtaStmt::ClusterWait => {
                let (before, after) = match stmt {
                    CtaStmt::ClusterArrive => (Presence::Unknown, Presence::Told),
                    _ => (Presence::Told, Presence::Known),
                };
                if active.len() < cluster.vars.len() || cluster.presence != before {
                    return Err(ExecError::divergence(
                        "the cluster is joined, and then those that joined awaited, once by all threads",
                    ));
                }
                cluster.presence = after;
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                if cluster.presence != Presence::Known {
                    return Err(ExecError::divergence(
                        "something is given to a task that may not have started",
                    ));
                }
                for &place in active {
                    self.at(cluster, place, |machine| {
                        let (rank, offset) = (machine.eval_index(*rank)?, machine.eval_index(to.offset)?);
                        let values = machine.eval(*value)?;
                        (offset..).zip(values.iter()).try_for_each(|(offset, &value)| {
                            machine.memory.store_to(rank, to.buffer, offset, value)
                        })
                    })?;
                }
            }
            CtaStmt::CpAsync { .. } => {
                for &place in active {
                    let copy = self.at(cluster, place, |machine| machine.start_copy(stmt))?;
                    cluster.copies[place].last_mut().expect("a group is open").push(copy);
                }
            }
            CtaStmt::TmaLoad { .. }
            | CtaStmt::MbarrierWaitFull { .. }
            | CtaStmt::MbarrierArriveEmpty { .. }
            | CtaStmt::MbarrierWaitEmpty { .. } => {
                if active.len() < cluster.vars.len() {
                    return Err(ExecError::divergence("some threads do not come to a statement about loads"));
                }
                self.box_stmt(cluster, stmt)?;
            }
            CtaStmt::LaunchDependents | CtaStmt::GridDependencyWait => {}
            CtaStmt::CpAsyncCommit => active.iter().for_each(|&place| cluster.copies[place].push(Vec::new())),
            CtaStmt::CpAsyncWait(groups) => {
                for &place in active {
                    let done = cluster.copies[place].len().saturating_sub(groups + 1);
                    let copies: Vec<CopyInFlight> = cluster.copies[place].drain(..done).flatten().collect();
                    self.at(cluster, place, |machine| {
                        for CopyInFlight { buffer, offset, values } in copies {
                            for (at, value) in (offset..).zip(values) {
                                machine.memory.finish_copy(buffer, at, value)?;
                            }
                        }
                        Ok(())
                    })?;
                }
            }
            CtaStmt::Ldmatrix { to, from, matrices, transposed } => {
                for warp in warps(active)? {
                    self.load_matrices(cluster, warp, (*to, *from), *matrices, *transposed)?;
                }
            }
            CtaStmt::Wgmma { .. } | CtaStmt::WgmmaWait => {
                let groups: Vec<&[usize]> = active.chunk_by(|a, b| a / GROUP == b / GROUP).collect();
                for group in groups {
                    if group.len() != GROUP {
                        return Err(ExecError::divergence(
                            "some warps of a group do not come to a product of tiles",
                        ));
                    }
                    self.wgmma_wait(cluster, group)?;
                    self.wgmma(cluster, group, stmt)?;
                }
            }
            CtaStmt::Mma { ty: product, acc: sum, a, b } => {
                for warp in warps(active)? {
                    self.multiply(cluster, warp, *product, [*sum, *a, *b])?;
                }
            }
        }
        Ok(())
    }

    /// Starts a copy of a TMA load, ends those of a phase, or passes or awaits an empty mbarrier, in each task of a cluster.
    fn box_stmt(&mut self, cluster: &mut Cluster, stmt: &CtaStmt) -> Result<(), ExecError> {
        let threads = cluster.vars.len() / cluster.mbarriers.len();
        for rank in 0..cluster.mbarriers.len() {
            let places: Vec<usize> = (rank * threads..(rank + 1) * threads).collect();
            match stmt {
                CtaStmt::MbarrierWaitFull { mbarrier, phase } => {
                    let (mbarrier, phase) = self.in_phase(cluster, &places, [*mbarrier, *phase])?;
                    let (copies, awaited) =
                        full_at(&mut cluster.mbarriers[rank], mbarrier)?.end_phase(phase)?;
                    cluster.empty[rank].open(awaited);
                    self.at(cluster, places[0], |machine| machine.finish_loads(copies))?;
                }
                CtaStmt::MbarrierArriveEmpty { mbarrier, phase } => {
                    let (mbarrier, phase) = self.in_phase(cluster, &places, [*mbarrier, *phase])?;
                    cluster.empty[rank].pass(mbarrier, phase, self.memory.arrive_empty())?;
                }
                CtaStmt::MbarrierWaitEmpty { mbarrier, phase } => {
                    let (mbarrier, phase) = self.in_phase(cluster, &places, [*mbarrier, *phase])?;
                    self.memory.wait_empty(cluster.empty[rank].wait(mbarrier, phase)?);
                }
                CtaStmt::TmaLoad { to, map: tensor_map, at, mbarrier } => {
                    let mbarrier = self.common(cluster, &places, *mbarrier)?;
                    let copy =
                        self.at(cluster, places[0], |machine| machine.start_tma(*to, *tensor_map, at))?;
                    let awaited = cluster.empty[rank].awaited();
                    full_at(&mut cluster.mbarriers[rank], mbarrier)?.add(copy, awaited)?;
                }
                _ => unreachable!("only statements about loads"),
            }
        }
        // What products in flight read, they still read when all have come to an empty mbarrier.
        if matches!(stmt, CtaStmt::MbarrierArriveEmpty { .. }) {
            self.read_on(cluster)?;
        }
        Ok(())
    }

    /// The number of an mbarrier, and its phase, which are the same for some threads.
    fn in_phase(
        &mut self,
        cluster: &mut Cluster,
        places: &[usize],
        [number, phase]: [ExprId; 2],
    ) -> Result<(i64, i64), ExecError> {
        Ok((self.common(cluster, places, number)?, self.common(cluster, places, phase)?))
    }

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

    fn load_matrices(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        (to, from): (Location, Location),
        matrices: usize,
        transposed: bool,
    ) -> Result<(), ExecError> {
        let mut rows = Vec::with_capacity(8 * matrices);
        for &place in &warp[..8 * matrices] {
            rows.push(self.at(cluster, place, |machine| {
                let offset = machine.eval_index(from.offset)?;
                machine.aligned(from, offset, 8)?;
                let row: Result<Vec<Number>, ExecError> =
                    (offset..offset + 8).map(|at| machine.memory.load_factor(from.buffer, at)).collect();
                row
            })?);
        }
        for (lane, &place) in warp.iter().enumerate() {
            self.at(cluster, place, |machine| {
                let offset = machine.eval_index(to.offset)?;
                for matrix in 0..matrices {
                    for half in 0..2 {
                        let (major, minor) = (lane / 4, 2 * (lane % 4) + half);
                        let (row, column) = if transposed { (minor, major) } else { (major, minor) };
                        let value = rows[8 * matrix + row][column];
                        machine.memory.store(to.buffer, offset + (2 * matrix + half) as i64, value)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn multiply(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        product: MmaType,
        [sum, a, b]: [Location; 3],
    ) -> Result<(), ExecError> {
        let terms = product.terms();
        let per_thread = |elems: usize| elems / WARP;
        let a_elems = self.fragment(cluster, warp, a, per_thread(16 * terms))?;
        let b_elems = self.fragment(cluster, warp, b, per_thread(8 * terms))?;
        let sums = self.fragment(cluster, warp, sum, 4)?;
        let mut a_tile = vec![vec![Number::Float(0.0); terms]; 16];
        let mut b_tile = vec![vec![Number::Float(0.0); 8]; terms];
        for lane in 0..WARP {
            let (g, c) = (lane / 4, lane % 4);
            for (at, &value) in a_elems[lane].iter().enumerate() {
                let [row, column] = first_place(product, lane, at);
                a_tile[row][column] = factor(product, value);
            }
            for (at, &value) in b_elems[lane].iter().enumerate() {
                let row = match product {
                    MmaType::Tf32 => c + 4 * at,
                    _ => 2 * c + at % 2 + 8 * (at / 2),
                };
                b_tile[row][g] = factor(product, value);
            }
        }
        for (lane, &place) in warp.iter().enumerate() {
            let (g, c) = (lane / 4, lane % 4);
            let mut results = Vec::with_capacity(4);
            for (at, &start) in sums[lane].iter().enumerate() {
                let (row, column) = (g + 8 * (at / 2), 2 * c + at % 2);
                let total = (0..terms).try_fold(start, |total, k| {
                    scalar::fma(DType::F32, a_tile[row][k], b_tile[k][column], total)
                });
                results.push(total.ok_or_else(|| ExecError::Undefined { node: "a product".to_owned() })?);
            }
            self.at(cluster, place, |machine| {
                let offset = machine.eval_index(sum.offset)?;
                for (at, value) in (offset..).zip(results) {
                    machine.memory.store(sum.buffer, at, value)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The elements that each of some threads holds of fragments.
    pub(crate) fn fragment(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        location: Location,
        elems: usize,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let mut all = Vec::with_capacity(WARP);
        for &place in warp {
            all.push(self.at(cluster, place, |machine| {
                let offset = machine.eval_index(location.offset)?;
                let elems: Result<Vec<Number>, ExecError> = (offset..offset + elems as i64)
                    .map(|at| machine.memory.load(location.buffer, at))
                    .collect();
                elems
            })?);
        }
        Ok(all)
    }
}

/// Whether one of a thread's sums is above the limit of its row, or a limit has a sign.
fn exceed(sums: &[Number], limits: &[Number]) -> bool {
    let above = |(at, sum): (usize, &Number)| scalar::compare(CompareFn::Lt, limits[at / 2 % 2], *sum);
    sums.iter().enumerate().any(above) || limits.iter().any(|limit| limit.to_bits(DType::F32) >> 31 == 1)
}

/// The active threads in whole warps.
fn warps(active: &[usize]) -> Result<Vec<&[usize]>, ExecError> {
    let warps: Vec<&[usize]> = active.chunk_by(|a, b| a / WARP == b / WARP).collect();
    match warps.iter().all(|warp| warp.len() == WARP) {
        true => Ok(warps),
        false => Err(ExecError::divergence("some threads of a warp do not come to a statement of the warp")),
    }
}

/// True if a statement is, or holds, one of a CTA.
fn is_of_cta(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Cta(_)) || stmt.bodies().any(|body| body.iter().any(is_of_cta))
}

#[cfg(test)]
mod tests;
