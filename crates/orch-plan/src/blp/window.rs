//! A stretch of a choice, to be chosen anew while the rest stays.
//!
//! Columns run in some order; a window is a stretch of it. What earlier columns produce is available in the window,
//! and what later ones read must be produced in it. Whatever is chosen instead, the whole can run in the same order.

use super::ColumnId;
use super::greedy::{Selection, pruned};
use super::instance::{Instance, Subprogram, Weight};
use super::structure::renumbered;
use rustc_hash::FxHashSet;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

/// Columns before a stretch whose nodes may be executed in its window as well.
const MARGIN_COLUMNS: usize = 12;

/// A stretch of a choice.
pub(super) struct Window {
    /// What the stretch weighs now.
    pub weight: Weight,
    /// The columns of the problem, and those outside of the stretch, as positions in the part.
    columns: Vec<ColumnId>,
    outside: Vec<u32>,
}

impl Window {
    /// The window at some positions of the order in which a choice runs, and its problem. Takes time in proportion to the columns that can be of use
    /// in it, beside what is needed to look at the choice. `producers`: of the part's classes.
    pub fn new(
        part: &Instance,
        producers: &[Vec<u32>],
        order: &[u32],
        positions: Range<usize>,
    ) -> (Self, Subprogram) {
        let end = positions.end.min(order.len());
        let (before, rest) = order.split_at(positions.start.min(end));
        let (inside, after) = rest.split_at(end - before.len());
        let marked = |columns: &[u32]| {
            let mut is_produced = vec![false; part.classes];
            let outputs = columns.iter().flat_map(|&column| &part.columns[column as usize].outputs);
            outputs.for_each(|&class| is_produced[class as usize] = true);
            is_produced
        };
        let (is_available, is_produced) = (marked(before), marked(inside));
        let mut is_wanted = vec![false; part.classes];
        let read_later = after.iter().flat_map(|&column| &part.columns[column as usize].inputs);
        read_later.chain(&part.required).for_each(|&class| is_wanted[class as usize] = true);
        let is_required = |&class: &u32| {
            let class = class as usize;
            is_wanted[class] && is_produced[class] && !is_available[class]
        };
        let required: Vec<u32> = (0..part.classes as u32).filter(is_required).collect();
        let nearby = Nearby::new(part, &before[before.len().saturating_sub(MARGIN_COLUMNS)..], inside);
        let mut columns = Vec::new();
        for position in leading_to(part, producers, &required, &is_available, &nearby) {
            let mut column = part.columns[position as usize].clone();
            column.source = ColumnId(position);
            column.inputs.retain(|&class| !is_available[class as usize]);
            column.outputs.retain(|&class| !is_available[class as usize]);
            columns.push(column);
        }
        let mut instance = Instance { classes: part.classes, required, columns };
        super::reduce::drop_underivable(&mut instance);
        let mut chosen: Vec<ColumnId> = inside.iter().copied().map(ColumnId).collect();
        chosen.sort_unstable();
        let (subprogram, columns) = Subprogram::new(renumbered(instance), &chosen);
        let window = Window {
            weight: inside.iter().map(|&column| part.columns[column as usize].weight).sum(),
            columns,
            outside: [before, after].concat(),
        };
        (window, subprogram)
    }

    /// The choice with other columns, by their positions in the problem, in the window.
    pub fn replaced(&self, part: &Instance, inside: &[ColumnId]) -> Selection {
        let inside = inside.iter().map(|column| self.columns[column.index()].0);
        pruned(part, Selection::new(part, self.outside.iter().copied().chain(inside).collect()))
    }
}

/// The nodes that a window may execute: those of the stretch, and of the columns right before it, which may be worth computing again.
/// Without this bound, whatever is not kept in memory could be derived from the very beginning, and windows would grow with the part.
struct Nearby(FxHashSet<u32>);

impl Nearby {
    fn new(part: &Instance, before: &[u32], inside: &[u32]) -> Self {
        let columns = before.iter().chain(inside).map(|&column| &part.columns[column as usize]);
        Nearby(columns.flat_map(|column| column.executes.iter().copied()).collect())
    }

    fn has_all(&self, nodes: &[u32]) -> bool {
        nodes.iter().all(|node| self.0.contains(node))
    }
}

/// The columns of nearby nodes from which some classes can be derived, without those that serve for available classes alone;
/// ascending.
fn leading_to(
    part: &Instance,
    producers: &[Vec<u32>],
    classes: &[u32],
    is_available: &[bool],
    nearby: &Nearby,
) -> BTreeSet<u32> {
    let mut columns = BTreeSet::new();
    let mut is_seen = is_available.to_vec();
    let mut pending = classes.to_vec();
    while let Some(class) = pending.pop() {
        if std::mem::replace(&mut is_seen[class as usize], true) {
            continue;
        }
        for &column in &producers[class as usize] {
            if nearby.has_all(&part.columns[column as usize].executes) && columns.insert(column) {
                pending.extend(&part.columns[column as usize].inputs);
            }
        }
    }
    columns
}

/// The columns of a choice in an order in which they can run: always the one that produces the lowest class.
pub(super) fn running_order(part: &Instance, choice: &Selection) -> Vec<u32> {
    let columns = choice.columns.iter().map(|&column| &part.columns[column as usize]);
    let mut missing: Vec<usize> = columns.clone().map(|column| column.inputs.len()).collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); part.classes];
    for (position, column) in columns.clone().enumerate() {
        column.inputs.iter().for_each(|&class| readers[class as usize].push(position));
    }
    let entry = |position: usize| {
        let column = choice.columns[position];
        Reverse((&part.columns[column as usize].outputs, position))
    };
    let mut ready: BinaryHeap<_> =
        (0..missing.len()).filter(|&position| missing[position] == 0).map(entry).collect();
    let mut is_there = vec![false; part.classes];
    let mut order = Vec::with_capacity(missing.len());
    while let Some(Reverse((outputs, position))) = ready.pop() {
        order.push(choice.columns[position]);
        for &class in outputs {
            if std::mem::replace(&mut is_there[class as usize], true) {
                continue;
            }
            for &reader in &readers[class as usize] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.push(entry(reader));
                }
            }
        }
    }
    order
}
