//! Columns that do not depend on each other, next to each other and in memory of their own, so that threads of a CPU may take their
//! work items as one list.
//!
//! A *group* is a number of consecutive columns without dependences. Which columns of a group run as one list depends on the number of
//! threads, and is decided by the run ([`crate::run::joined`]); a plan has the same groups for any number. A column is brought forward into
//! a group where that is modelled to gain on some usual number of threads, and where hardly more bytes live at once than at the column of
//! the given order where most do.
//!
//! It comes after tensors were given the memory of others ([`super::updates`], [`super::in_place`]): such memory is one storage here, and
//! what is written over comes after all that read it.

use super::context::PlanContext;
use super::implementation::{Implementation, PlannedColumn};
use super::kernel::KernelDesign;
use crate::manifest::Device;
use crate::plan::sharing::{SharedWork, gains};
use orch_ir::TensorId;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of threads one of which must gain by a group: few, many, and those between.
const THREADS: [usize; 4] = [4, 8, 16, 32];

/// Columns of a group, at most.
const MOST_COLUMNS: usize = 16;

/// By how many columns a column is brought forward, at most. Bounds the work of a plan of `n` columns to `n` times this squared.
const MOST_PASSED: usize = 32;

/// What may live at once beyond what does in the given order, as a part of that.
const MOST_MORE_BYTES: f64 = 1.0 / 16.0;

/// Bytes that may live at once in any plan: an L2.
const FEW_BYTES: usize = 1 << 20;

/// Orders the columns of a plan for a CPU into groups.
pub fn group_independent(implementation: &mut Implementation, ctx: PlanContext<'_>) {
    if ctx.planner.info().device != Device::Cpu {
        return;
    }
    let columns = &implementation.columns;
    let storage_of = storages(implementation);
    let root = |tensor: &TensorId| storage_of.get(tensor).copied().unwrap_or(*tensor);
    let touched: Vec<Touched> = columns.iter().map(|column| Touched::of(column, root)).collect();
    let outside: BTreeSet<TensorId> =
        ctx.graph.inputs.iter().chain(&ctx.graph.outputs).map(|(_, tensor)| root(tensor)).collect();
    let bytes =
        |tensor: TensorId| match outside.contains(&tensor) || tensor.index() >= ctx.graph.tensors().len() {
            // Tensors between the kernels of a substitute are small.
            true => 0,
            false => ctx.stored_bytes(tensor),
        };
    let works: Vec<Option<SharedWork>> =
        columns.iter().map(|column| work(column, &implementation.kernels)).collect();
    let groups = groups(&touched, &works, &bytes);
    let order: Vec<usize> = groups.iter().flatten().copied().collect();
    implementation.reorder(&order);
    implementation.groups =
        groups.iter().enumerate().flat_map(|(number, group)| vec![number; group.len()]).collect();
}

/// The tensor whose memory each tensor is in that has none of its own.
fn storages(implementation: &Implementation) -> BTreeMap<TensorId, TensorId> {
    let updates = implementation.updates.iter().map(|update| update.in_place());
    let mut storage_of: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    // What is written over comes first.
    for pair in updates.chain(implementation.in_place.iter().copied()) {
        let root = storage_of.get(&pair.input).copied().unwrap_or(pair.input);
        storage_of.insert(pair.output, root);
    }
    storage_of
}

fn work(column: &PlannedColumn, kernels: &[KernelDesign]) -> Option<SharedWork> {
    let kernel = &kernels[column.kernel()?];
    let program = &kernel.design.kernel.program;
    (program.phases == 1).then_some(SharedWork { tasks: program.tasks, alone_us: kernel.work.alone_us })
}

/// The storages that a column reads and writes.
#[derive(Debug)]
struct Touched {
    read: BTreeSet<TensorId>,
    written: BTreeSet<TensorId>,
}

impl Touched {
    fn of(column: &PlannedColumn, root: impl Fn(&TensorId) -> TensorId) -> Self {
        let read = column.inputs.iter().map(&root).collect();
        Self { read, written: column.outputs.iter().map(&root).collect() }
    }

    fn all(&self) -> impl Iterator<Item = TensorId> {
        self.read.union(&self.written).copied()
    }
}

/// For each column the earlier ones that it comes after: those that write what it reads or writes, and those that read what it writes
/// since that was written last.
fn waits(touched: &[Touched]) -> Vec<BTreeSet<usize>> {
    let mut writer: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut readers: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
    let mut waits = Vec::with_capacity(touched.len());
    for (at, column) in touched.iter().enumerate() {
        let mut own: BTreeSet<usize> =
            column.all().filter_map(|tensor| writer.get(&tensor).copied()).collect();
        for tensor in &column.written {
            own.extend(readers.remove(tensor).into_iter().flatten());
            writer.insert(*tensor, at);
        }
        for tensor in column.read.difference(&column.written) {
            readers.entry(*tensor).or_default().push(at);
        }
        waits.push(own);
    }
    waits
}

/// Bytes that may live at once where so many live at each column of the given order.
fn allowed_bytes(live: &[usize]) -> usize {
    let most = live.iter().copied().max().unwrap_or(0);
    (most + (most as f64 * MOST_MORE_BYTES) as usize).max(FEW_BYTES)
}

/// Bytes that live at each column.
fn live_bytes(touched: &[Touched], bytes: &dyn Fn(TensorId) -> usize) -> Vec<usize> {
    let mut first: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut last: BTreeMap<TensorId, usize> = BTreeMap::new();
    for (at, column) in touched.iter().enumerate() {
        column.written.iter().for_each(|tensor| _ = first.entry(*tensor).or_insert(at));
        last.extend(column.all().map(|tensor| (tensor, at)));
    }
    let mut born = vec![0; touched.len()];
    let mut dead = vec![0; touched.len() + 1];
    for (tensor, first) in first {
        born[first] += bytes(tensor);
        dead[last[&tensor] + 1] += bytes(tensor);
    }
    let mut live = 0;
    (0..touched.len())
        .map(|at| {
            live = live + born[at] - dead[at];
            live
        })
        .collect()
}

/// The columns in groups. Each group begins with the first column that is left, so that the order stays as close to the given one as
/// groups allow; a column that is brought forward has its results live since, which is counted to the bytes of all columns it passes.
fn groups(
    touched: &[Touched],
    works: &[Option<SharedWork>],
    bytes: &dyn Fn(TensorId) -> usize,
) -> Vec<Vec<usize>> {
    let waits = waits(touched);
    let mut live = live_bytes(touched, bytes);
    let most_bytes = allowed_bytes(&live);
    let mut is_done = vec![false; touched.len()];
    let mut is_born: BTreeSet<TensorId> = BTreeSet::new();
    let mut groups = Vec::new();
    for first in 0..touched.len() {
        if is_done[first] {
            continue;
        }
        let mut group = vec![first];
        let mut list: Vec<SharedWork> = works[first].into_iter().collect();
        let passed = (first + 1..touched.len()).filter(|&at| !is_done[at]).take(MOST_PASSED);
        for next in passed.collect::<Vec<usize>>() {
            let Some(work) = works[next].filter(|_| !list.is_empty() && group.len() < MOST_COLUMNS) else {
                continue;
            };
            let new = touched[next].written.iter().filter(|tensor| !is_born.contains(tensor));
            let new_bytes: usize = new.map(|tensor| bytes(*tensor)).sum();
            let is_ready = waits[next].iter().all(|&earlier| is_done[earlier]);
            let fits = || live[first..next].iter().all(|live| live + new_bytes <= most_bytes);
            if is_ready && fits() && THREADS.iter().any(|&threads| gains(&list, work, threads)) {
                live[first..next].iter_mut().for_each(|live| *live += new_bytes);
                group.push(next);
                list.push(work);
            }
        }
        for &column in &group {
            is_done[column] = true;
            is_born.extend(&touched[column].written);
        }
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests;
