//! Offsets for storages: greedy placement in several orders.

use super::occupied::Occupied;
use super::storage::Storage;
use std::cmp::Reverse;

/// Attempts to lower the arena by placing what reaches its top earlier.
const REPAIR_ROUNDS: usize = 24;

/// Offsets and the arena they need.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    pub offsets: Vec<u64>,
    pub arena_bytes: u64,
    /// Storages placed, and taken ranges looked at for them, in all attempts that led here.
    pub steps: usize,
}

/// How a gap is picked among those that fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The lowest.
    First,
    /// The smallest.
    Best,
}

/// The most bytes live at one step.
pub(super) fn live_bytes(storages: &[Storage]) -> u64 {
    // Lives are closed intervals: at equal steps, births come before deaths.
    let births = storages.iter().map(|storage| (u64::from(storage.first_use), storage.bytes as i128));
    let deaths = storages.iter().map(|storage| (u64::from(storage.last_use) + 1, -(storage.bytes as i128)));
    let mut events: Vec<(u64, i128)> = births.chain(deaths).collect();
    events.sort_unstable();
    let mut live = 0;
    let mut most = 0;
    for (_, change) in events {
        live += change;
        most = most.max(live);
    }
    u64::try_from(most).expect("a sum of checked sizes")
}

/// The smallest arena of all orders and fits that are tried.
pub(super) fn smallest_packing(storages: &[Storage]) -> Packing {
    let bound = live_bytes(storages);
    let mut best: Option<Packing> = None;
    let mut steps = 0;
    'attempts: for order in orders(storages) {
        for fit in [Fit::First, Fit::Best] {
            let packing = repaired(storages, order.clone(), fit, bound);
            steps += packing.steps;
            if best.as_ref().is_none_or(|best| packing.arena_bytes < best.arena_bytes) {
                best = Some(packing);
            }
            if best.as_ref().is_some_and(|best| best.arena_bytes == bound) {
                break 'attempts;
            }
        }
    }
    Packing { steps, ..best.expect("there are orders") }
}

/// Large first; large and long-lived first; in order of birth.
fn orders(storages: &[Storage]) -> [Vec<usize>; 3] {
    let all: Vec<usize> = (0..storages.len()).collect();
    let life = |index: usize| u64::from(storages[index].last_use - storages[index].first_use) + 1;
    let sorted_by = |key: &dyn Fn(usize) -> (Reverse<u128>, Reverse<u64>, u32)| {
        let mut order = all.clone();
        order.sort_by_key(|&index| key(index));
        order
    };
    let bytes = |index: usize| u128::from(storages[index].bytes);
    [
        sorted_by(&|index| (Reverse(bytes(index)), Reverse(life(index)), storages[index].first_use)),
        sorted_by(&|index| {
            (Reverse(bytes(index) * u128::from(life(index))), Reverse(life(index)), storages[index].first_use)
        }),
        sorted_by(&|index| (Reverse(0), Reverse(0), storages[index].first_use)),
    ]
}

/// Places in an order, then again with whatever reaches the top of the arena moved to the front, while that helps.
fn repaired(storages: &[Storage], mut order: Vec<usize>, fit: Fit, bound: u64) -> Packing {
    let mut best = place_all(storages, &order, fit);
    let mut steps = best.steps;
    for _ in 0..REPAIR_ROUNDS {
        if best.arena_bytes == bound {
            break;
        }
        let offsets = &best.offsets;
        let is_top = |index: usize| offsets[index] + storages[index].bytes == best.arena_bytes;
        // A stable sort: those at the top first, the others as they were.
        order.sort_by_key(|&index| !is_top(index));
        let next = place_all(storages, &order, fit);
        steps += next.steps;
        if next.arena_bytes >= best.arena_bytes {
            break;
        }
        best = next;
    }
    Packing { steps, ..best }
}

fn place_all(storages: &[Storage], order: &[usize], fit: Fit) -> Packing {
    let mut packing = Packing { offsets: vec![0; storages.len()], arena_bytes: 0, steps: 0 };
    let mut occupied = Occupied::new(storages);
    for &index in order {
        let storage = &storages[index];
        if storage.bytes == 0 {
            continue;
        }
        let taken = occupied.during(index);
        packing.steps += 1 + taken.len();
        let offset = place(storage, &taken, fit);
        occupied.take(index, offset, offset + storage.bytes);
        packing.offsets[index] = offset;
        packing.arena_bytes = packing.arena_bytes.max(offset + storage.bytes);
    }
    packing
}

/// An aligned offset in a gap between taken ranges (ascending by start; they may overlap), or after all.
fn place(storage: &Storage, taken: &[(u64, u64)], fit: Fit) -> u64 {
    let mut found: Option<(u64, u64)> = None;
    let mut free_from = 0;
    for &(start, end) in taken {
        let offset = u64::next_multiple_of(free_from, storage.alignment);
        if start > free_from && offset + storage.bytes <= start {
            let waste = start - free_from - storage.bytes;
            if fit == Fit::First {
                return offset;
            }
            if found.is_none_or(|(least, _)| waste < least) {
                found = Some((waste, offset));
            }
        }
        free_from = free_from.max(end);
    }
    found.map_or(free_from.next_multiple_of(storage.alignment), |(_, offset)| offset)
}
