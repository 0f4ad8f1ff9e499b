//! A stretch of a choice, to be chosen anew while the rest stays.
//!
//! Columns run in some order; a window is a stretch of it. What earlier columns produce is available in the window,
//! and what later ones read must be produced in it. Whatever is chosen instead, the whole can run in the same order.

use super::ColumnId;
use super::greedy::{Selection, pruned};
use super::instance::{Instance, Weight};
use std::ops::Range;

/// A stretch of a choice.
pub(super) struct Window {
    /// The problem of choosing the stretch anew. Its columns are those of the part, without available inputs.
    pub instance: Instance,
    /// What the stretch weighs now.
    pub weight: Weight,
    /// Columns of the stretch, and the others, as positions in the part.
    inside: Vec<u32>,
    outside: Vec<u32>,
}

impl Window {
    /// The window at some positions of the order in which a choice runs.
    pub fn new(part: &Instance, choice: &Selection, positions: Range<usize>) -> Self {
        let order = running_order(part, choice);
        let end = positions.end.min(order.len());
        let (before, rest) = order.split_at(positions.start.min(end));
        let (inside, after) = rest.split_at(end - before.len());
        let mut is_available = vec![false; part.classes];
        for &column in before {
            part.columns[column as usize]
                .outputs
                .iter()
                .for_each(|&class| is_available[class as usize] = true);
        }
        let mut is_wanted = vec![false; part.classes];
        let read_later = after.iter().flat_map(|&column| &part.columns[column as usize].inputs);
        read_later.chain(&part.required).for_each(|&class| is_wanted[class as usize] = true);
        let mut is_produced = vec![false; part.classes];
        for &column in inside {
            part.columns[column as usize]
                .outputs
                .iter()
                .for_each(|&class| is_produced[class as usize] = true);
        }
        let is_required = |&class: &u32| {
            let class = class as usize;
            is_wanted[class] && is_produced[class] && !is_available[class]
        };
        let mut columns = part.columns.clone();
        for column in &mut columns {
            column.inputs.retain(|&class| !is_available[class as usize]);
            column.outputs.retain(|&class| !is_available[class as usize]);
        }
        columns.retain(|column| !column.outputs.is_empty());
        let required = (0..part.classes as u32).filter(is_required).collect();
        let mut instance = Instance { classes: part.classes, required, columns };
        super::reduce::drop_underivable(&mut instance);
        Window {
            instance,
            weight: inside.iter().map(|&column| part.columns[column as usize].weight).sum(),
            inside: inside.to_vec(),
            outside: [before, after].concat(),
        }
    }

    /// The columns of the stretch.
    pub fn sources(&self, part: &Instance) -> Vec<ColumnId> {
        self.inside.iter().map(|&column| part.columns[column as usize].source).collect()
    }

    /// The choice with other columns in the window.
    pub fn replaced(&self, part: &Instance, inside: &Selection) -> Selection {
        let columns = [self.outside.as_slice(), inside.columns.as_slice()].concat();
        pruned(part, Selection::new(part, columns))
    }
}

/// The columns of a choice in an order in which they can run: always the one that produces the lowest class.
fn running_order(part: &Instance, choice: &Selection) -> Vec<u32> {
    let mut is_there = vec![false; part.classes];
    let mut waiting = choice.columns.clone();
    waiting.sort_by_key(|&column| part.columns[column as usize].outputs.clone());
    let mut order = Vec::with_capacity(waiting.len());
    loop {
        let runs = |column: &u32| {
            part.columns[*column as usize].inputs.iter().all(|&class| is_there[class as usize])
        };
        let Some(position) = waiting.iter().position(runs) else { break };
        let column = waiting.remove(position);
        part.columns[column as usize].outputs.iter().for_each(|&class| is_there[class as usize] = true);
        order.push(column);
    }
    order
}
