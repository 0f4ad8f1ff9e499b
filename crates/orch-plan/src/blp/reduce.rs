//! Columns that no optimal choice needs: those that cannot run, that serve nobody, or that another column makes
//! superfluous.

use super::execute::derivable;
use super::instance::{Col, Instance};

/// Drops columns with inputs that nothing can derive. Returns the required classes that nothing can derive.
pub(super) fn drop_underivable(instance: &mut Instance) -> Vec<u32> {
    let is_there = derivable(instance, |_| true);
    let runs: Vec<bool> = instance
        .columns
        .iter()
        .map(|column| column.inputs.iter().all(|&class| is_there[class as usize]))
        .collect();
    instance.retain(&runs);
    instance.required.iter().copied().filter(|&class| !is_there[class as usize]).collect()
}

/// Drops columns of whose outputs none is required, directly or through columns that read it.
pub(super) fn drop_irrelevant(instance: &mut Instance) {
    let producers = instance.producers();
    let mut is_wanted = vec![false; instance.classes];
    let mut is_relevant = vec![false; instance.columns.len()];
    let mut pending = instance.required.clone();
    while let Some(class) = pending.pop() {
        if std::mem::replace(&mut is_wanted[class as usize], true) {
            continue;
        }
        for &column in &producers[class as usize] {
            if !std::mem::replace(&mut is_relevant[column as usize], true) {
                pending.extend(&instance.columns[column as usize].inputs);
            }
        }
    }
    for column in &mut instance.columns {
        column.outputs.retain(|&class| is_wanted[class as usize]);
    }
    instance.retain(&is_relevant);
}

/// Drops every column for which another one produces at least as much from at most the same inputs at no higher
/// weight. Of equal columns the first stays.
pub(super) fn drop_dominated(instance: &mut Instance) {
    let producers = instance.producers();
    let input_masks: Vec<u64> = instance.columns.iter().map(|column| mask(&column.inputs)).collect();
    let is_dominated = |index: usize| {
        let column = &instance.columns[index];
        let rivals = &producers[column.outputs[0] as usize];
        rivals.iter().map(|&rival| rival as usize).any(|rival| {
            rival != index
                && input_masks[rival] & !input_masks[index] == 0
                && dominates(&instance.columns[rival], column, rival < index)
        })
    };
    let keep: Vec<bool> = (0..instance.columns.len()).map(|index| !is_dominated(index)).collect();
    instance.retain(&keep);
}

fn dominates(rival: &Col, column: &Col, rival_is_first: bool) -> bool {
    rival.weight <= column.weight
        && is_subset(&rival.inputs, &column.inputs)
        && is_subset(&column.outputs, &rival.outputs)
        && (rival_is_first
            || rival.weight != column.weight
            || rival.inputs.len() != column.inputs.len()
            || rival.outputs.len() != column.outputs.len())
}

/// A subset's mask is a subset of the mask.
fn mask(classes: &[u32]) -> u64 {
    classes.iter().fold(0, |mask, class| mask | 1 << (class % 64))
}

/// Both ascending.
fn is_subset(small: &[u32], large: &[u32]) -> bool {
    let mut rest = large.iter();
    small.iter().all(|class| rest.any(|other| other == class))
}
