//! Teams in the interpreter: all threads of a cluster in lockstep.
//!
//! A statement that holds nothing of a team is run by one thread after the other. Loops around statements of a team
//! have the same bounds in every thread; branches around them are taken by whole warps, and barriers met by all
//! threads. Shared memory remembers who touched an element since the last barrier, so that a missing barrier is an
//! error whatever the order.

use crate::expr::{BufferId, ExprId};
use crate::thread::Stmt;
use crate::thread_box_interp::{Slot, slot_at};
use crate::thread_interp::{ExecError, Machine, Value};
use crate::thread_product_interp::Running;
use crate::thread_scalar::{self, Number};
use crate::thread_team::{Product, Spot, Team, TeamStmt, WARP, WARP_GROUP};
use orch_ir::DType;
use std::rc::Rc;

/// Threads of a warp group.
pub(crate) const GROUP: usize = WARP * WARP_GROUP;

/// The threads of a cluster between statements.
pub(crate) struct Cluster {
    /// The first task.
    first: usize,
    /// Variables of each thread.
    vars: Vec<Vec<Option<Value>>>,
    /// Groups of copies of each thread that are not done; the last one is open.
    copies: Vec<Vec<Vec<Copy>>>,
    /// Of each warp group, its product of tiles that is under way.
    pub(crate) products: Vec<Option<Running>>,
    /// The slots of each task.
    slots: Vec<Vec<Slot>>,
    presence: Presence,
}

/// What tasks of a cluster know of each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// Nothing: others may not have started.
    Unknown,
    /// They have told that they run, and not waited for the others.
    Told,
    /// All run.
    Known,
}

/// A copy under way.
pub(crate) struct Copy {
    pub(crate) buffer: BufferId,
    pub(crate) offset: i64,
    pub(crate) values: Vec<Number>,
}

impl Machine<'_> {
    /// Runs all tasks of a program with a team.
    pub(crate) fn run_teams(&mut self, team: &Team) -> Result<(), ExecError> {
        let places = team.threads * team.cluster;
        for first in (0..self.program.tasks).step_by(team.cluster) {
            let mut cluster = Cluster {
                first,
                vars: Vec::with_capacity(places),
                copies: (0..places).map(|_| vec![Vec::new()]).collect(),
                products: vec![None; places.div_ceil(GROUP)],
                slots: (0..team.cluster).map(|_| Slot::all(self.program)).collect(),
                presence: Presence::Unknown,
            };
            for place in 0..places {
                self.start(first, place)?;
                cluster.vars.push(self.vars.clone());
            }
            let everyone: Vec<usize> = (0..places).collect();
            self.list(&mut cluster, &self.program.body, &everyone)?;
            if self.memory.has_copies() {
                return Err(divergence("a task ends before its copies are waited for"));
            }
            if cluster.presence == Presence::Told {
                return Err(divergence("a task ends before it has waited for those that joined the cluster"));
            }
            if cluster.products.iter().any(Option::is_some) {
                return Err(divergence("a task ends before its products are waited for"));
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
            if !is_of_team(stmt) {
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
                Stmt::Team(stmt) => self.team_stmt(cluster, stmt, active)?,
                _ => unreachable!("only loops, branches and the team's own statements are of a team"),
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
                return Err(divergence("threads differ in the bounds of a loop that they run together"));
            }
            common = Some(value);
        }
        Ok(common.unwrap_or(0))
    }

    fn team_stmt(
        &mut self,
        cluster: &mut Cluster,
        stmt: &TeamStmt,
        active: &[usize],
    ) -> Result<(), ExecError> {
        match stmt {
            TeamStmt::Barrier | TeamStmt::ClusterBarrier | TeamStmt::Recycle => {
                if active.len() < cluster.vars.len() {
                    return Err(divergence("some threads do not come to a barrier"));
                }
                if *stmt == TeamStmt::ClusterBarrier && cluster.presence == Presence::Told {
                    return Err(divergence(
                        "a barrier of the cluster comes before those that joined it are awaited",
                    ));
                }
                if *stmt == TeamStmt::ClusterBarrier {
                    cluster.presence = Presence::Known;
                }
                self.memory.barrier(*stmt == TeamStmt::ClusterBarrier);
                self.read_on(cluster)?;
                if *stmt == TeamStmt::Recycle {
                    if self.memory.has_copies() {
                        return Err(divergence(
                            "shared memory is recycled before copies to it are waited for",
                        ));
                    }
                    self.memory.recycle();
                }
            }
            TeamStmt::Shuffle { var, value, with } => {
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
            TeamStmt::Peer { var, rank, from } => {
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
            TeamStmt::Join | TeamStmt::AwaitJoined => {
                let (before, after) = match stmt {
                    TeamStmt::Join => (Presence::Unknown, Presence::Told),
                    _ => (Presence::Told, Presence::Known),
                };
                if active.len() < cluster.vars.len() || cluster.presence != before {
                    return Err(divergence(
                        "the cluster is joined, and then those that joined awaited, once by all threads",
                    ));
                }
                cluster.presence = after;
            }
            TeamStmt::Give { to, rank, value } => {
                if cluster.presence != Presence::Known {
                    return Err(divergence("something is given to a task that may not have started"));
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
            TeamStmt::Copy { to, from, elems, mask } => {
                for &place in active {
                    let copy =
                        self.at(cluster, place, |machine| machine.start_copy(*to, *from, *elems, *mask))?;
                    cluster.copies[place].last_mut().expect("a group is open").push(copy);
                }
            }
            TeamStmt::CopyBox { .. } | TeamStmt::AwaitBoxes { .. } => {
                if active.len() < cluster.vars.len() {
                    return Err(divergence("some threads do not come to a statement about boxes"));
                }
                self.box_stmt(cluster, stmt)?;
            }
            TeamStmt::Release | TeamStmt::Await => {}
            TeamStmt::Commit => active.iter().for_each(|&place| cluster.copies[place].push(Vec::new())),
            TeamStmt::Wait(groups) => {
                for &place in active {
                    let done = cluster.copies[place].len().saturating_sub(groups + 1);
                    let copies: Vec<Copy> = cluster.copies[place].drain(..done).flatten().collect();
                    self.at(cluster, place, |machine| {
                        for Copy { buffer, offset, values } in copies {
                            for (at, value) in (offset..).zip(values) {
                                machine.memory.finish_copy(buffer, at, value)?;
                            }
                        }
                        Ok(())
                    })?;
                }
            }
            TeamStmt::LoadMatrix { to, from, matrices, transposed } => {
                for warp in warps(active)? {
                    self.load_matrices(cluster, warp, (*to, *from), *matrices, *transposed)?;
                }
            }
            TeamStmt::MultiplyTiles { .. } | TeamStmt::Settle => {
                let groups: Vec<&[usize]> = active.chunk_by(|a, b| a / GROUP == b / GROUP).collect();
                for group in groups {
                    if group.len() != GROUP {
                        return Err(divergence("some warps of a group do not come to a product of tiles"));
                    }
                    self.settle(cluster, group)?;
                    self.multiply_tiles(cluster, group, stmt)?;
                }
            }
            TeamStmt::Multiply { product, sum, a, b } => {
                for warp in warps(active)? {
                    self.multiply(cluster, warp, *product, [*sum, *a, *b])?;
                }
            }
        }
        Ok(())
    }

    /// Starts a copy of a box, or ends those of a turn, in each task of a cluster.
    fn box_stmt(&mut self, cluster: &mut Cluster, stmt: &TeamStmt) -> Result<(), ExecError> {
        let threads = cluster.vars.len() / cluster.slots.len();
        for rank in 0..cluster.slots.len() {
            let places: Vec<usize> = (rank * threads..(rank + 1) * threads).collect();
            if let TeamStmt::AwaitBoxes { slot, turn } = stmt {
                let (slot, turn) =
                    (self.common(cluster, &places, *slot)?, self.common(cluster, &places, *turn)?);
                let copies = slot_at(&mut cluster.slots[rank], slot)?.end_turn(turn)?;
                self.at(cluster, places[0], |machine| machine.finish_boxes(copies))?;
            } else if let TeamStmt::CopyBox { to, view, at, slot } = stmt {
                let slot = self.common(cluster, &places, *slot)?;
                let copy = self.at(cluster, places[0], |machine| machine.start_box(*to, *view, at))?;
                slot_at(&mut cluster.slots[rank], slot)?.add(copy)?;
            }
        }
        Ok(())
    }

    fn start_copy(
        &mut self,
        to: Spot,
        from: Spot,
        elems: usize,
        mask: Option<ExprId>,
    ) -> Result<Copy, ExecError> {
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
            for (at, value) in (source..).zip(&mut values) {
                self.report.loads += 1;
                *value = self.memory.load(from.buffer, at)?;
            }
        }
        self.aligned(to, offset, elems)?;
        for at in offset..offset + elems as i64 {
            self.memory.start_copy(to.buffer, at)?;
        }
        Ok(Copy { buffer: to.buffer, offset, values })
    }

    /// Copies and matrix rows start at multiples of their size.
    fn aligned(&self, spot: Spot, offset: i64, elems: usize) -> Result<(), ExecError> {
        if offset % elems as i64 == 0 {
            return Ok(());
        }
        let name = &self.program.buffer(spot.buffer).name;
        Err(divergence(&format!(
            "{name}[{offset}] is not at a multiple of the {elems} elements of the access"
        )))
    }

    fn load_matrices(
        &mut self,
        cluster: &mut Cluster,
        warp: &[usize],
        (to, from): (Spot, Spot),
        matrices: usize,
        transposed: bool,
    ) -> Result<(), ExecError> {
        let mut rows = Vec::with_capacity(8 * matrices);
        for &place in &warp[..8 * matrices] {
            rows.push(self.at(cluster, place, |machine| {
                let offset = machine.eval_index(from.offset)?;
                machine.aligned(from, offset, 8)?;
                let row: Result<Vec<Number>, ExecError> =
                    (offset..offset + 8).map(|at| machine.memory.load(from.buffer, at)).collect();
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
        product: Product,
        [sum, a, b]: [Spot; 3],
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
                    Product::Tf32 => c + 4 * at,
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
                    thread_scalar::fma(DType::F32, a_tile[row][k], b_tile[k][column], total)
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
        spot: Spot,
        elems: usize,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let mut all = Vec::with_capacity(WARP);
        for &place in warp {
            all.push(self.at(cluster, place, |machine| {
                let offset = machine.eval_index(spot.offset)?;
                let elems: Result<Vec<Number>, ExecError> =
                    (offset..offset + elems as i64).map(|at| machine.memory.load(spot.buffer, at)).collect();
                elems
            })?);
        }
        Ok(all)
    }
}

/// The row and the term of an element that a lane has of a fragment of first factors.
pub(crate) fn first_place(product: Product, lane: usize, at: usize) -> [usize; 2] {
    let (g, c) = (lane / 4, lane % 4);
    match product {
        Product::Tf32 => [g + 8 * (at % 2), c + 4 * (at / 2)],
        Product::F16 | Product::Bf16 => [g + 8 * (at / 2 % 2), 2 * c + at % 2 + 8 * (at / 4)],
    }
}

/// A factor as the matrix unit sees it.
pub(crate) fn factor(product: Product, value: Number) -> Number {
    match (product, value) {
        // 13 of the 23 bits of the fraction are ignored.
        (Product::Tf32, Number::Float(value)) => {
            Number::Float(f64::from(f32::from_bits((value as f32).to_bits() & !0x1fff)))
        }
        _ => value,
    }
}

/// The active threads in whole warps.
fn warps(active: &[usize]) -> Result<Vec<&[usize]>, ExecError> {
    let warps: Vec<&[usize]> = active.chunk_by(|a, b| a / WARP == b / WARP).collect();
    match warps.iter().all(|warp| warp.len() == WARP) {
        true => Ok(warps),
        false => Err(divergence("some threads of a warp do not come to a statement of the warp")),
    }
}

/// True if a statement is, or holds, one of a team.
fn is_of_team(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Team(_)) || stmt.bodies().any(|body| body.iter().any(is_of_team))
}

pub(crate) fn divergence(problem: &str) -> ExecError {
    ExecError::Divergence { problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use crate::{BufferData, ExecError, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  team 64 threads thread: i64 [0..=63], clusters of 2\n  \
                          input x: f32[128]\n  output y: f32[128]\n  shared s: f32[64]\n";

    fn run(header: &str, body: &str, buffers: &mut [BufferData]) -> Result<(), ExecError> {
        let text = format!("{header}{{\n{body}}}\n");
        let program = parse_thread(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(validate_thread(&program), Vec::<String>::new());
        let printed = program.to_string();
        assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
        interpret(&program, buffers, &ExecOptions::default()).map(|_| ())
    }

    fn floats(values: impl IntoIterator<Item = f64>, dtype: DType) -> BufferData {
        let values: Vec<f64> = values.into_iter().collect();
        BufferData::from_tensor(&Tensor::from_f64(dtype, [values.len()], &values))
    }

    /// What 128 threads in two tasks make of `0, 1, 2, ..`.
    fn result(body: &str) -> Result<Vec<f64>, ExecError> {
        let mut buffers = [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
        run(HEADER, body, &mut buffers).map(|()| buffers[1].to_tensor([128]).unwrap().to_f64())
    }

    const COPY: &str = "  copy s[thread], x[((task * 64) + thread)], 1\n  commit\n  wait 0\n";

    #[test]
    fn threads_exchange_values_through_shared_memory() {
        let body = format!("{COPY}  barrier\n  y[((task * 64) + thread)] = s[(63 - thread)]\n");
        let expected: Vec<f64> =
            (0..2).flat_map(|task| (0..64).rev().map(move |t| f64::from(64 * task + t))).collect();
        assert_eq!(result(&body).unwrap(), expected);
    }

    #[test]
    fn tasks_of_a_cluster_exchange_values() {
        let body = format!(
            "{COPY}  cluster_barrier\n  peer v: f32 = s[thread], (1 - task)\n  y[((task * 64) + thread)] = v\n"
        );
        let expected: Vec<f64> = (64..128).chain(0..64).map(f64::from).collect();
        assert_eq!(result(&body).unwrap(), expected);
    }

    #[test]
    fn tasks_of_a_cluster_give_values() {
        let store = "  y[((task * 64) + thread)] = s[(63 - thread)]\n";
        let give = "  give s[thread], (1 - task) = x[((task * 64) + thread)]\n";
        let expected: Vec<f64> = (64..128).rev().chain((0..64).rev()).map(f64::from).collect();
        for before in
            ["  join\n  await_joined\n", "  join\n  barrier\n  await_joined\n", "  cluster_barrier\n"]
        {
            assert_eq!(result(&format!("{before}{give}  cluster_barrier\n{store}")).unwrap(), expected);
        }
        for (body, problem) in [
            // The other task may not run.
            (format!("{give}  cluster_barrier\n{store}"), "may not have started"),
            (format!("  join\n{give}  await_joined\n"), "may not have started"),
            // A barrier of the task does not order what the other one gives.
            (format!("  join\n  await_joined\n{give}  barrier\n{store}"), "also accessed by"),
            (format!("  join\n  await_joined\n  s[thread] = 0.0\n  barrier\n{give}"), "also accessed by"),
            // Hardware counts arrivals in turn.
            (
                "  join\n  cluster_barrier\n  await_joined\n".to_owned(),
                "before those that joined it are awaited",
            ),
            ("  await_joined\n".to_owned(), "once by all threads"),
            ("  join\n  join\n".to_owned(), "once by all threads"),
            ("  join\n".to_owned(), "ends before it has waited"),
            (
                "  cluster_barrier\n  give s[thread], 2 = 1.0\n".to_owned(),
                "rank that the cluster does not have",
            ),
        ] {
            let error = result(&body).unwrap_err();
            assert!(error.to_string().contains(problem), "{body}: {error}");
        }
    }

    #[test]
    fn lanes_are_shuffled() {
        let body = "  shuffle v: f32 = x[((task * 64) + thread)], 5\n  y[((task * 64) + thread)] = v\n";
        let expected: Vec<f64> = (0..128).map(|at| f64::from(at ^ 5)).collect();
        assert_eq!(result(body).unwrap(), expected);
    }

    #[test]
    fn what_is_not_ordered_is_a_race() {
        let store = "  y[((task * 64) + thread)] = s[(63 - thread)]\n";
        for body in [
            // No barrier between the copy and the reads.
            format!("{COPY}{store}"),
            // The copy is not waited for.
            format!("  copy s[thread], x[thread], 1\n  commit\n  barrier\n{store}  wait 0\n"),
            // A barrier of the task does not order what other tasks read.
            format!("{COPY}  barrier\n  peer v: f32 = s[thread], (1 - task)\n"),
            // Written again while others may still read.
            format!("{COPY}  barrier\n{store}  s[thread] = 0.0\n"),
            "  s[0] = 0.0\n".to_owned(),
        ] {
            let error = result(&body).unwrap_err();
            assert!(error.to_string().contains("also accessed by"), "{body}: {error}");
        }
    }

    #[test]
    fn memory_is_recycled_once_nobody_uses_it() {
        let header = HEADER.replace("  shared s", "  shared s: f32[64]\n  recycled r");
        let run = |body: &str| {
            let mut buffers =
                [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
            run(&header, body, &mut buffers).map(|()| buffers[1].to_tensor([128]).unwrap().to_f64())
        };
        let store = "  r[thread] = 1.0\n  barrier\n  y[((task * 64) + thread)] = r[(63 - thread)]\n";
        assert_eq!(run(&format!("{COPY}  recycle\n{store}")).unwrap(), [1.0; 128]);
        for body in [
            format!("{COPY}{store}"),
            format!("{COPY}  recycle\n  y[((task * 64) + thread)] = s[thread]\n"),
            format!("  copy s[thread], x[thread], 1\n  commit\n  recycle\n{store}  wait 0\n"),
        ] {
            assert!(run(&body).is_err(), "{body}");
        }
    }

    #[test]
    fn threads_meet_at_barriers() {
        for body in [
            "  if (thread < 32) {\n    barrier\n  }\n",
            "  if (thread < 8) {\n    shuffle v: f32 = 0.0, 1\n  }\n",
            "  for i: i64 [0..=63] = 0 to thread step 1 {\n    barrier\n  }\n",
        ] {
            assert!(matches!(result(body), Err(ExecError::Divergence { .. })), "{body}");
        }
        assert!(result("  if (thread < 32) {\n    shuffle v: f32 = 0.0, 1\n  }\n").is_ok());
    }

    #[test]
    fn fragments_are_matrices() {
        let header = "program k, 1 tasks task: i64 [0..=0]\n  team 32 threads thread: i64 [0..=31], clusters of 1\n  \
                      input a: f16[256]\n  input b: f16[128]\n  output y: f32[128]\n  shared sa: f16[256]\n  \
                      shared sb: f16[128]\n  scratch fa: f16[8]\n  scratch fb: f16[4]\n  scratch fc: f32[4]\n";
        // `a` is [16, 16] and `b` is [16, 8], both row-major; `b` is read transposed.
        let body = "  copy sa[(thread * 8)], a[(thread * 8)], 8\n  if (thread < 16) {\n    \
                    copy sb[(thread * 8)], b[(thread * 8)], 8\n  }\n  commit\n  wait 0\n  barrier\n  \
                    load_matrix fa[0], sa[(((thread % 16) * 16) + ((thread // 16) * 8))], 4\n  \
                    load_matrix fb[0], sb[((thread % 16) * 8)], 2, transposed\n  \
                    for i: i64 [0..=3] = 0 to 4 step 1 unroll {\n    fc[i] = 1.0\n  }\n  \
                    multiply f16, fc[0], fa[0], fb[0]\n  \
                    for j: i64 [0..=3] = 0 to 4 step 1 unroll {\n    \
                    y[(((((thread // 4) + ((j // 2) * 8)) * 8) + ((thread % 4) * 2)) + (j % 2))] = fc[j]\n  }\n";
        let a = |row: usize, k: usize| ((3 * row + 5 * k) % 7) as f64 - 3.0;
        let b = |k: usize, column: usize| ((2 * k + column) % 5) as f64 - 2.0;
        let mut buffers = [
            floats((0..256).map(|at| a(at / 16, at % 16)), DType::F16),
            floats((0..128).map(|at| b(at / 8, at % 8)), DType::F16),
            BufferData::zeros(DType::F32, 128),
        ];
        run(header, body, &mut buffers).unwrap();
        let expected: Vec<f64> =
            (0..128).map(|at| 1.0 + (0..16).map(|k| a(at / 8, k) * b(k, at % 8)).sum::<f64>()).collect();
        assert_eq!(buffers[2].to_tensor([128]).unwrap().to_f64(), expected);
    }

    /// Copies a tile of lines of `elems` elements, row-major from `first` of `from`, to a swizzled one at `to`.
    fn copied_tile(from: &str, [lines, elems]: [usize; 2], to: usize) -> String {
        let (parts, chunks) = (elems / 8, lines * elems / 8);
        let (line, part) = (format!("({from}_chunk // {parts})"), format!("({from}_chunk % {parts})"));
        // Part `p` of line `r` goes to place `p xor r % 8`: bit by bit, for there is no `xor`.
        let differs = |bit: usize| format!("((({line} // {bit}) + ({part} // {bit})) % 2)");
        let place = format!("(({} + ({} * 2)) + ({} * 4))", differs(1), differs(2), differs(4));
        let to = format!("(((((({part} // 8) * {lines}) + {line}) * 64) + ({place} * 8)) + {to})");
        format!(
            "for {from}_i: i64 [0..={last}] = 0 to {rounds} step 1 {{\nlet {from}_chunk: i64 = (({from}_i * 128) + thread)\nif ({from}_chunk < {chunks}) {{\n\
             copy s[{to}], {from}[({from}_chunk * 8)], 8\n}}\n}}\n",
            last = chunks.div_ceil(128) - 1,
            rounds = chunks.div_ceil(128),
        )
    }

    /// How factors of a product of tiles are given.
    #[derive(Clone, Copy, Debug)]
    struct TileProduct {
        columns: usize,
        terms: usize,
        is_fragment: bool,
        transposed: bool,
    }

    impl TileProduct {
        /// The head of a program that multiplies `a[64, terms]` by `b`, both row-major.
        fn header(&self) -> String {
            let Self { columns, terms, .. } = self;
            format!(
                "program k, 1 tasks task: i64 [0..=0]\n  team 128 threads thread: i64 [0..=127], clusters of 1\n  \
                 input a: f16[{}]\n  input b: f16[{}]\n  output y: f32[{}]\n  shared s: f16[{}]\n  \
                 scratch sums: f32[{}]\n  scratch f: f16[{}]\n",
                64 * terms,
                columns * terms,
                64 * columns,
                (64 + columns) * terms,
                columns / 2,
                terms / 2,
            )
        }

        /// The body, `b` at a place of shared memory.
        fn body(&self, b_at: usize) -> String {
            let Self { columns, terms, is_fragment, transposed } = *self;
            let row = "(((thread // 32) * 16) + ((thread % 32) // 4))";
            let sums = columns / 2;
            let b_lines = if transposed { [terms, columns] } else { [columns, terms] };
            let mut text = copied_tile("b", b_lines, b_at);
            text += &match is_fragment {
                true => format!(
                    "for e: i64 [0..={last}] = 0 to {elems} step 1 unroll {{\nf[e] = a[((({row} + (((e // 2) % 2) * 8)) * {terms}) \
                     + ((((e // 8) * 16) + (((e % 8) // 4) * 8)) + (((thread % 4) * 2) + (e % 2))))]\n}}\n",
                    elems = terms / 2,
                    last = terms / 2 - 1,
                ),
                false => copied_tile("a", [64, terms], 0),
            };
            let (a, turned) =
                (if is_fragment { "f" } else { "s" }, if transposed { ", transposed" } else { "" });
            text + &format!(
                "commit\nwait 0\nbarrier\nfor j: i64 [0..={last}] = 0 to {sums} step 1 unroll {{\nsums[j] = 1.0\n}}\n\
                 multiply_tiles f16, sums[0], {a}[0], s[{b_at}], {columns}, {terms}{turned}\n\
                 for j: i64 [0..={last}] = 0 to {sums} step 1 unroll {{\n\
                 y[(((({row} + (((j // 2) % 2) * 8)) * {columns}) + ((j // 4) * 8)) \
                 + (((thread % 4) * 2) + (j % 2)))] = sums[j]\n}}\n",
                last = sums - 1,
            )
        }

        fn a(row: usize, k: usize) -> f64 {
            ((3 * row + 5 * k) % 7) as f64 - 3.0
        }

        fn b(column: usize, k: usize) -> f64 {
            ((2 * k + 3 * column) % 5) as f64 - 2.0
        }

        fn buffers(&self) -> [BufferData; 3] {
            let Self { columns, terms, transposed, .. } = *self;
            let b = |at: usize| match transposed {
                true => Self::b(at % columns, at / columns),
                false => Self::b(at / terms, at % terms),
            };
            [
                floats((0..64 * terms).map(|at| Self::a(at / terms, at % terms)), DType::F16),
                floats((0..columns * terms).map(b), DType::F16),
                BufferData::zeros(DType::F32, 64 * columns),
            ]
        }

        fn expected(&self) -> Vec<f64> {
            let Self { columns, terms, .. } = *self;
            let sum = |row, column| (0..terms).map(|k| Self::a(row, k) * Self::b(column, k)).sum::<f64>();
            (0..64 * columns).map(|at| 1.0 + sum(at / columns, at % columns)).collect()
        }
    }

    #[test]
    fn swizzled_tiles_are_matrices() {
        // Columns, terms, whether the first factor is in fragments, and whether the second one is transposed.
        for (columns, terms, is_fragment, transposed) in [
            (24, 64, false, false),
            (64, 128, false, false),
            (128, 64, false, true),
            (64, 192, true, false),
            (8, 64, true, false),
            (64, 16, true, true),
            (128, 48, true, true),
        ] {
            let product = TileProduct { columns, terms, is_fragment, transposed };
            let mut results = product.buffers();
            run(&product.header(), &product.body(64 * terms), &mut results).unwrap();
            assert_eq!(
                results[2].to_tensor([64 * columns]).unwrap().to_f64(),
                product.expected(),
                "{product:?}"
            );
        }
    }

    #[test]
    fn tiles_start_at_lines_that_warp_groups_agree_on() {
        let product = TileProduct { columns: 24, terms: 64, is_fragment: false, transposed: false };
        // Lines are swizzled by their number from the start of a tile.
        let header = product.header().replace("5632", "5696");
        let error = run(&header, &product.body(4096 + 64), &mut product.buffers()).unwrap_err();
        assert!(error.to_string().contains("does not start at a multiple of 1024 bytes"), "{error}");
        let half = product.body(4096).replace("multiply_tiles", "if (thread < 64) {\nmultiply_tiles");
        let half = half.replace(", 24, 64\n", ", 24, 64\n}\n");
        let error = run(&header, &half, &mut product.buffers()).unwrap_err();
        assert!(error.to_string().contains("some warps of a group do not come"), "{error}");
    }

    #[test]
    fn products_that_run_on_are_waited_for() {
        let product = TileProduct { columns: 24, terms: 64, is_fragment: false, transposed: false };
        let run = |body: &str| {
            let mut results = product.buffers();
            run(&product.header(), body, &mut results)
                .map(|()| results[2].to_tensor([64 * 24]).unwrap().to_f64())
        };
        let body = product.body(4096);
        let running = |after: &str| body.replace(", 24, 64\n", &format!(", 24, 64, runs_on\n{after}"));
        assert_eq!(run(&running("settle\n")).unwrap(), product.expected());
        let error = run(&running("")).unwrap_err();
        assert!(error.to_string().contains("before it is written"), "{error}");
        // The barrier does not wait for the product, which still reads what is overwritten.
        let error = run(&running("barrier\ns[thread] = b[thread]\nsettle\n")).unwrap_err();
        assert!(error.to_string().contains("also accessed by"), "{error}");
        assert!(run(&running("settle\nbarrier\ns[thread] = b[thread]\n")).is_ok());
        let end = body.find("for j: i64 [0..=11] = 0 to 12 step 1 unroll {\ny[").expect("the stores");
        let error = run(&running("")[..end + ", runs_on".len()]).unwrap_err();
        assert!(error.to_string().contains("a task ends before its products"), "{error}");
    }

    #[test]
    fn fragments_stay_while_their_product_is_under_way() {
        let product = TileProduct { columns: 24, terms: 64, is_fragment: true, transposed: false };
        let run = |after: &str| {
            let body = product.body(4096).replace(", 24, 64\n", &format!(", 24, 64, runs_on\n{after}"));
            run(&product.header(), &body, &mut product.buffers())
        };
        assert!(run("settle\nf[0] = f16(0.25)\n").is_ok());
        let error = run("f[0] = f16(77.0)\nsettle\n").unwrap_err();
        assert!(error.to_string().contains("overwritten"), "{error}");
    }

    #[test]
    fn places_of_swizzled_tiles_are_taken_once() {
        use crate::thread_team::{swizzled, swizzled_place};
        use crate::{Exprs, Simplifier};
        let (lines, elems) = (24, 128);
        let mut places: Vec<usize> =
            (0..lines * elems).map(|at| swizzled(lines, at / elems, at % elems)).collect();
        for (at, &place) in places.iter().enumerate() {
            let mut exprs = Exprs::default();
            let [line, at] = [at / elems, at % elems].map(|value| exprs.index(value as i64));
            let expr = swizzled_place(&mut exprs, lines, line, at);
            let expr = Simplifier::new().simplify(&mut exprs, expr);
            assert_eq!(exprs.as_int(expr), Some(place as i64));
        }
        places.sort_unstable();
        assert!(places.into_iter().eq(0..lines * elems));
    }
}
