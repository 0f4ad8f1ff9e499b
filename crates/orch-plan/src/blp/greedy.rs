//! A first choice: for each class the producer whose columns, with those its inputs need, weigh least together.
//!
//! Shared columns count once (greedy extraction of a directed acyclic graph, not of a tree). Not optimal, because a
//! class does not know what its readers need anyway.

use super::execute::derivable;
use super::instance::{Instance, Weight};
use super::structure::Groups;

/// A set of columns, ascending, with its weight.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub columns: Vec<u32>,
    pub weight: Weight,
}

impl Selection {
    /// Sorts columns, removes repetitions, and weighs the rest.
    pub fn new(instance: &Instance, mut columns: Vec<u32>) -> Self {
        columns.sort_unstable();
        columns.dedup();
        let weight = columns.iter().map(|&column| instance.columns[column as usize].weight).sum();
        Selection { columns, weight }
    }

    pub fn contains(&self, column: usize) -> bool {
        self.columns.binary_search(&(column as u32)).is_ok()
    }
}

/// A choice among the columns that `may_use`, if they suffice.
pub(super) fn greedy(
    instance: &Instance,
    groups: &Groups,
    may_use: impl Fn(usize) -> bool,
) -> Option<Selection> {
    let producers = instance.producers();
    let mut best: Vec<Option<Selection>> = vec![None; instance.classes];
    for members in &groups.members {
        // Classes in a circle are settled one by one, each by a column that finds its inputs.
        for _ in 0..members.len() {
            for &class in members {
                let columns = producers[class as usize].iter().map(|&column| column as usize);
                for column in columns.filter(|&column| may_use(column)) {
                    let known = best[class as usize].as_ref().map_or(Weight::INFINITE, |old| old.weight);
                    if floor(instance, column, &best) < known
                        && let Some(selection) = with_inputs(instance, column, &best)
                        && best[class as usize].as_ref().is_none_or(|old| selection.weight < old.weight)
                    {
                        best[class as usize] = Some(selection);
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    for &class in &instance.required {
        all.extend(&best[class as usize].as_ref()?.columns);
    }
    Some(pruned(instance, Selection::new(instance, all)))
}

/// What a column weighs at least together with what its inputs need.
fn floor(instance: &Instance, column: usize, best: &[Option<Selection>]) -> Weight {
    let column = &instance.columns[column];
    let inputs = column.inputs.iter().filter_map(|&input| best[input as usize].as_ref());
    column.weight + inputs.map(|input| input.weight).max().unwrap_or(Weight::ZERO)
}

fn with_inputs(instance: &Instance, column: usize, best: &[Option<Selection>]) -> Option<Selection> {
    let mut columns = vec![column as u32];
    for &input in &instance.columns[column].inputs {
        columns.extend(&best[input as usize].as_ref()?.columns);
    }
    Some(Selection::new(instance, columns))
}

/// Takes away columns that the others make superfluous, the heaviest first.
pub(super) fn pruned(instance: &Instance, selection: Selection) -> Selection {
    let chosen = selection.columns.iter().map(|&column| instance.columns[column as usize].clone());
    let small = Instance { columns: chosen.collect(), required: instance.required.clone(), ..*instance };
    let mut is_kept = vec![true; small.columns.len()];
    let is_needed = sole_producers(&small);
    let mut order: Vec<usize> = (0..small.columns.len()).filter(|&index| !is_needed[index]).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(small.columns[index].weight));
    for index in order {
        is_kept[index] = false;
        let is_there = derivable(&small, |column| is_kept[column]);
        if !small.required.iter().all(|&class| is_there[class as usize]) {
            is_kept[index] = true;
        }
    }
    let kept = selection.columns.iter().zip(is_kept).filter(|&(_, is_kept)| is_kept);
    Selection::new(instance, kept.map(|(&column, _)| column).collect())
}

/// Which columns alone produce a class that is required, or that one of them reads: none of these is superfluous.
fn sole_producers(instance: &Instance) -> Vec<bool> {
    let producers = instance.producers();
    let mut is_needed = vec![false; instance.columns.len()];
    let mut pending = instance.required.clone();
    while let Some(class) = pending.pop() {
        if let [column] = producers[class as usize][..]
            && !std::mem::replace(&mut is_needed[column as usize], true)
        {
            pending.extend(&instance.columns[column as usize].inputs);
        }
    }
    is_needed
}
