//! Whether chosen columns can run, and in which order.

use super::instance::Instance;
use super::{ClassId, ColumnId, Problem};

/// An order in which columns can run, and who produces what in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Columns that find their inputs, in order.
    pub columns: Vec<ColumnId>,
    /// For each class the first column that produces it; `None` for available and missing ones.
    pub producers: Vec<Option<ColumnId>>,
    /// Columns that never find all their inputs, ascending.
    pub stuck: Vec<ColumnId>,
    /// Required classes that are not produced.
    pub missing: Vec<ClassId>,
}

impl Schedule {
    /// True if every column runs and every required class is produced.
    pub fn is_complete(&self) -> bool {
        self.stuck.is_empty() && self.missing.is_empty()
    }
}

/// Runs the chosen columns of a problem on paper: of those that find their inputs, the lowest id runs next.
///
/// # Panics
/// If a column or class id is out of range.
pub fn schedule(problem: &Problem, chosen: &[ColumnId]) -> Schedule {
    let mut is_there = vec![false; problem.classes];
    for &class in &problem.available {
        is_there[class.index()] = true;
    }
    let mut waiting: Vec<ColumnId> = chosen.to_vec();
    waiting.sort_unstable();
    waiting.dedup();
    let mut producers = vec![None; problem.classes];
    let mut columns = Vec::with_capacity(waiting.len());
    loop {
        let runs =
            |id: &ColumnId| problem.columns[id.index()].inputs.iter().all(|class| is_there[class.index()]);
        let Some(position) = waiting.iter().position(runs) else { break };
        let id = waiting.remove(position);
        for &class in &problem.columns[id.index()].outputs {
            if !is_there[class.index()] {
                is_there[class.index()] = true;
                producers[class.index()] = Some(id);
            }
        }
        columns.push(id);
    }
    let missing = problem.required.iter().copied().filter(|class| !is_there[class.index()]).collect();
    Schedule { columns, producers, stuck: waiting, missing }
}

/// The classes of an instance that some columns, given by a mask, can derive, in any order.
pub(super) fn derivable(instance: &Instance, is_chosen: impl Fn(usize) -> bool) -> Vec<bool> {
    let readers = instance.readers();
    let mut missing: Vec<usize> = instance.columns.iter().map(|column| column.inputs.len()).collect();
    let mut is_there = vec![false; instance.classes];
    let is_ready = |index: &usize| instance.columns[*index].inputs.is_empty() && is_chosen(*index);
    let mut ready: Vec<usize> = (0..instance.columns.len()).filter(is_ready).collect();
    while let Some(index) = ready.pop() {
        for &class in &instance.columns[index].outputs {
            if std::mem::replace(&mut is_there[class as usize], true) {
                continue;
            }
            for &reader in &readers[class as usize] {
                missing[reader as usize] -= 1;
                if missing[reader as usize] == 0 && is_chosen(reader as usize) {
                    ready.push(reader as usize);
                }
            }
        }
    }
    is_there
}
