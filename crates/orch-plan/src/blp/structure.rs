//! What every plan has in common, and the parts it leaves independent.
//!
//! Two facts about a program are found here. Its *groups*: sets of classes that depend on each other in a circle (a
//! tensor in two layouts, say), in an order in which columns only lead upward. And its *forced* classes and nodes,
//! which every plan produces or executes: those of a class are common to all its producers, a producer's are its own
//! and those of its inputs (dominators, on an and-or graph).
//!
//! A forced class outside all circles is a *cut*: it will be there and must be there, whatever else is chosen, so
//! its producers and its readers are independent problems. Joining their solutions cannot make a circle, because
//! every dependence leads upward in the order of the groups.

use super::instance::Instance;
use fixedbitset::FixedBitSet;

/// Groups of classes in dependence order.
pub(super) struct Groups {
    /// For each class the position of its group; a column's inputs are never above its outputs, and equal only if
    /// they are in a circle.
    pub of: Vec<u32>,
    /// For each group its classes.
    pub members: Vec<Vec<u32>>,
}

/// Strongly connected components of the classes, an edge leading from each input of a column to each output. Outputs
/// of a column that reads its own group are put into that group.
///
/// Groups are numbered in the postorder of a depth-first search from the required classes towards what they need, so
/// that what a class needs stands near it.
pub(super) fn groups(instance: &Instance) -> Groups {
    let mut needs: Vec<Vec<u32>> = vec![Vec::new(); instance.classes];
    for column in &instance.columns {
        for &output in &column.outputs {
            needs[output as usize].extend(&column.inputs);
        }
    }
    for list in &mut needs {
        list.sort_unstable();
        list.dedup();
    }
    loop {
        let groups = components(&needs, &instance.required);
        if !tie_circular_outputs(instance, &groups, &mut needs) {
            return groups;
        }
    }
}

/// Adds needs such that the outputs of columns inside a circle end up in one group. True if there were any to add.
fn tie_circular_outputs(instance: &Instance, groups: &Groups, needs: &mut [Vec<u32>]) -> bool {
    let mut changed = false;
    let group = |class: &u32| groups.of[*class as usize];
    for column in &instance.columns {
        let Some(top) = column.inputs.iter().map(group).max() else { continue };
        let inside = column.outputs.iter().find(|class| group(class) == top);
        let Some(&inside) = inside else { continue };
        for &outside in column.outputs.iter().filter(|class| group(class) != top) {
            needs[inside as usize].push(outside);
            needs[outside as usize].push(inside);
            changed = true;
        }
    }
    changed
}

/// Tarjan's algorithm without recursion.
fn components(needs: &[Vec<u32>], roots: &[u32]) -> Groups {
    const UNSEEN: u32 = u32::MAX;
    let classes = needs.len();
    let mut groups = Groups { of: vec![UNSEEN; classes], members: Vec::new() };
    let mut number = vec![UNSEEN; classes];
    let mut low = vec![UNSEEN; classes];
    let mut open: Vec<u32> = Vec::new();
    let mut count = 0;
    let others = 0..classes as u32;
    for root in roots.iter().copied().chain(others) {
        if number[root as usize] != UNSEEN {
            continue;
        }
        let mut path: Vec<(u32, usize)> = vec![(root, 0)];
        while let Some((class, next)) = path.last_mut() {
            let at = *class as usize;
            if *next == 0 {
                number[at] = count;
                low[at] = count;
                count += 1;
                open.push(*class);
            }
            if let Some(&need) = needs[at].get(*next) {
                *next += 1;
                if number[need as usize] == UNSEEN {
                    path.push((need, 0));
                } else if groups.of[need as usize] == UNSEEN {
                    low[at] = low[at].min(number[need as usize]);
                }
                continue;
            }
            path.pop();
            if let Some(&(parent, _)) = path.last() {
                low[parent as usize] = low[parent as usize].min(low[at]);
            }
            if low[at] == number[at] {
                close_group(at as u32, &mut open, &mut groups);
            }
        }
    }
    groups
}

fn close_group(head: u32, open: &mut Vec<u32>, groups: &mut Groups) {
    let start = open.iter().rposition(|&class| class == head).expect("a group's head is open");
    let mut members = open.split_off(start);
    members.sort_unstable();
    for &class in &members {
        groups.of[class as usize] = groups.members.len() as u32;
    }
    groups.members.push(members);
}

/// What every plan produces and executes.
pub(super) struct Forced {
    /// Classes that every plan produces.
    pub classes: FixedBitSet,
    /// Nodes that every plan executes.
    pub nodes: FixedBitSet,
    /// For each class the nodes that every way to produce it executes.
    pub nodes_of_class: Vec<FixedBitSet>,
}

/// The forced classes and nodes. Every class that a column reads must be derivable.
pub(super) fn forced(instance: &Instance, groups: &Groups) -> Forced {
    let common = common(instance, groups);
    let mut forced = Forced {
        classes: FixedBitSet::with_capacity(instance.classes),
        nodes: FixedBitSet::new(),
        nodes_of_class: common.iter().map(|set| nodes_in(instance, set.as_ref())).collect(),
    };
    for &class in &instance.required {
        if let Some(set) = &common[class as usize] {
            forced.classes.extend(set.ones().take_while(|&bit| bit < instance.classes));
            forced.nodes.union_with(&forced.nodes_of_class[class as usize]);
        }
    }
    forced
}

/// The nodes among the bits of a set.
fn nodes_in(instance: &Instance, set: Option<&FixedBitSet>) -> FixedBitSet {
    let bits = set.into_iter().flat_map(|set| set.ones());
    bits.filter_map(|bit| bit.checked_sub(instance.classes)).collect()
}

/// For each class what every way to produce it produces (bits below the number of classes) and executes (nodes,
/// after those). `None` for classes that no column produces.
fn common(instance: &Instance, groups: &Groups) -> Vec<Option<FixedBitSet>> {
    let highest_node = instance.columns.iter().filter_map(|column| column.executes.last()).max();
    let bits = instance.classes + highest_node.map_or(0, |&node| node as usize + 1);
    let producers = instance.producers();
    // The greatest solution of the equations, from the full set (`None`: nothing known yet) downward.
    let mut common: Vec<Option<FixedBitSet>> = vec![None; instance.classes];
    loop {
        let mut changed = false;
        for &class in groups.members.iter().flatten() {
            let found = of_class(instance, &producers, class, &common, bits);
            if found != common[class as usize] {
                common[class as usize] = found;
                changed = true;
            }
        }
        if !changed {
            return common;
        }
    }
}

/// What all producers of a class have in common, given what is known of their inputs.
fn of_class(
    instance: &Instance,
    producers: &[Vec<u32>],
    class: u32,
    common: &[Option<FixedBitSet>],
    bits: usize,
) -> Option<FixedBitSet> {
    let mut shared: Option<FixedBitSet> = None;
    for &producer in &producers[class as usize] {
        let column = &instance.columns[producer as usize];
        let mut own = FixedBitSet::with_capacity(bits);
        let inputs: Option<Vec<&FixedBitSet>> =
            column.inputs.iter().map(|&input| common[input as usize].as_ref()).collect();
        // An unknown input stands for the full set, which leaves `shared` as it is.
        let Some(inputs) = inputs else { continue };
        for input in inputs {
            own.union_with(input);
        }
        for &node in &column.executes {
            own.insert(instance.classes + node as usize);
        }
        match &mut shared {
            Some(shared) => shared.intersect_with(&own),
            None => shared = Some(own),
        }
    }
    if let Some(shared) = &mut shared {
        shared.insert(class as usize);
    }
    shared
}

/// Makes cuts of the forced classes outside circles: they count as required, and as available to their readers.
/// Returns their number.
pub(super) fn cut_at_forced(instance: &mut Instance, groups: &Groups, forced: &Forced) -> usize {
    let is_cut = |class: u32| {
        forced.classes.contains(class as usize)
            && groups.members[groups.of[class as usize] as usize].len() == 1
    };
    for column in &mut instance.columns {
        column.inputs.retain(|&class| !is_cut(class));
    }
    let cuts: Vec<u32> = (0..instance.classes as u32).filter(|&class| is_cut(class)).collect();
    let count = cuts.len();
    instance.required.extend(cuts);
    instance.required.sort_unstable();
    instance.required.dedup();
    count
}

/// The independent parts: columns are together if they share a class that one produces.
pub(super) fn parts(instance: &Instance) -> Vec<Instance> {
    let mut leader: Vec<u32> = (0..instance.classes as u32).collect();
    for column in &instance.columns {
        let first = column.outputs[0];
        for &class in column.outputs.iter().chain(&column.inputs) {
            let (left, right) = (find(&mut leader, first), find(&mut leader, class));
            leader[left.max(right) as usize] = left.min(right);
        }
    }
    let mut part_of = vec![u32::MAX; instance.classes];
    let mut parts: Vec<Instance> = Vec::new();
    for column in &instance.columns {
        let head = find(&mut leader, column.outputs[0]) as usize;
        if part_of[head] == u32::MAX {
            part_of[head] = parts.len() as u32;
            let empty = Instance { classes: instance.classes, required: Vec::new(), columns: Vec::new() };
            parts.push(empty);
        }
        parts[part_of[head] as usize].columns.push(column.clone());
    }
    for &class in &instance.required {
        let head = find(&mut leader, class) as usize;
        parts[part_of[head] as usize].required.push(class);
    }
    parts.into_iter().map(renumbered).collect()
}

fn find(leader: &mut [u32], class: u32) -> u32 {
    let mut at = class;
    while leader[at as usize] != at {
        leader[at as usize] = leader[leader[at as usize] as usize];
        at = leader[at as usize];
    }
    at
}

/// The same instance with its classes and its nodes numbered without gaps, in the same order.
pub(super) fn renumbered(mut part: Instance) -> Instance {
    let classes = part.columns.iter().flat_map(|column| column.inputs.iter().chain(&column.outputs));
    let classes = Numbering::new(classes.chain(&part.required));
    let nodes = Numbering::new(part.columns.iter().flat_map(|column| &column.executes));
    for column in &mut part.columns {
        classes.renumber(&mut column.inputs);
        classes.renumber(&mut column.outputs);
        nodes.renumber(&mut column.executes);
    }
    classes.renumber(&mut part.required);
    part.classes = classes.count;
    part
}

/// New numbers for those that are used.
struct Numbering {
    /// By old number.
    new: Vec<u32>,
    count: usize,
}

impl Numbering {
    fn new<'a>(used: impl Iterator<Item = &'a u32> + Clone) -> Self {
        let mut new = vec![u32::MAX; used.clone().max().map_or(0, |&highest| highest as usize + 1)];
        used.for_each(|&number| new[number as usize] = 0);
        let mut count = 0;
        for number in new.iter_mut().filter(|number| **number == 0) {
            *number = count;
            count += 1;
        }
        Numbering { new, count: count as usize }
    }

    fn renumber(&self, list: &mut [u32]) {
        list.iter_mut().for_each(|number| *number = self.new[*number as usize]);
    }
}
