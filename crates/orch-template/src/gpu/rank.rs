//! The order in which ranked schedules are tried.

use std::collections::BTreeSet;

/// Ranked schedules, the first one of every kind before all others: those of one kind take about as long, so that timing
/// both tells little. Schedules without a kind keep their place behind the first ones.
pub(super) fn varied<T, K: Ord>(
    ranked: impl Iterator<Item = T>,
    kind: impl Fn(&T) -> Option<K>,
) -> impl Iterator<Item = T> {
    let mut kinds = BTreeSet::new();
    let (first, later): (Vec<_>, Vec<_>) =
        ranked.partition(|schedule| kind(schedule).is_some_and(|kind| kinds.insert(kind)));
    first.into_iter().chain(later)
}
