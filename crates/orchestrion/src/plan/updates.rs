//! Outputs that are new values of inputs, such as caches of keys and values, in the memory of these inputs.
//!
//! 1. Before the choice ([`UpdateRule`]): what lies between an input and its new value is one kernel, which writes no other tensor
//!    of it, so that no other kernel reads the old value by computing the new one again.
//! 2. After it ([`update_in_place`]): such a kernel is designed anew to write only what changes
//!    ([`orch_compute::block::update`]), if nothing reads the input after it; columns that read the input before come first.
//!
//! What is not updated in place is an output like any other, which the caller copies.

mod order;

use super::context::PlanContext;
use super::definition::KernelDefinition;
use super::implementation::{ColumnBody, Implementation, PlannedColumn};
use super::kernel::KernelDesign;
use super::updated::{InPlace, UpdatedTensor};
use crate::plan::candidates::CandidateColumn;
use orch_compute::ArgId;
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_template::Design;
use order::ColumnOrder;
use std::collections::{BTreeMap, BTreeSet};

/// What a pair asks of kernels.
struct Between {
    output: TensorId,
    /// Primitives that compute the new value from the old one, but for free ones.
    nodes: BTreeSet<NodeId>,
}

/// Which candidates keep the new value of each input in one kernel.
pub struct UpdateRule {
    between: Vec<Between>,
    /// Primitives that need a new value, but for those that lie between others.
    readers: BTreeSet<NodeId>,
}

impl UpdateRule {
    /// The rule for the pairs; those whose old value is needed by other primitives too, or of whose kernel there is no candidate among
    /// `columns`, ask for nothing.
    pub fn of(ctx: PlanContext<'_>, columns: &[CandidateColumn]) -> Self {
        let mut rule = Self { between: Vec::new(), readers: BTreeSet::new() };
        rule.between = ctx.updates.iter().filter_map(|update| between(ctx, update)).collect();
        let nodes: Vec<Vec<NodeId>> =
            columns.iter().map(|column| ctx.units.primitives(ctx.graph, &column.candidate.nodes)).collect();
        loop {
            let inner: BTreeSet<NodeId> =
                rule.between.iter().flat_map(|pair| pair.nodes.iter().copied()).collect();
            let outputs = rule.between.iter().map(|pair| pair.output);
            rule.readers = after(ctx.graph, outputs).difference(&inner).copied().collect();
            let is_served = |pair: &Between| {
                columns.iter().zip(&nodes).any(|(column, nodes)| {
                    column.kernel.is_some()
                        && nodes.contains(pair.nodes.first().expect("not empty"))
                        && rule.allows(nodes, &column.candidate.outputs, ctx.graph)
                })
            };
            let served: Vec<bool> = rule.between.iter().map(is_served).collect();
            if !served.contains(&false) {
                return rule;
            }
            let mut served = served.into_iter();
            rule.between.retain(|_| served.next() == Some(true));
        }
    }

    /// Drops the columns that the rule does not allow.
    pub fn keep_allowed(&self, ctx: PlanContext<'_>, columns: &mut Vec<CandidateColumn>) {
        if !self.between.is_empty() {
            columns.retain(|column| {
                let nodes = ctx.units.primitives(ctx.graph, &column.candidate.nodes);
                self.allows(&nodes, &column.candidate.outputs, ctx.graph)
            });
        }
    }

    fn allows(&self, nodes: &[NodeId], outputs: &[TensorId], graph: &PrimGraph) -> bool {
        let met: Vec<&Between> =
            self.between.iter().filter(|pair| nodes.iter().any(|node| pair.nodes.contains(node))).collect();
        met.is_empty()
            || !nodes.iter().any(|node| self.readers.contains(node))
                && met.iter().all(|pair| {
                    let is_inside = |tensor: &TensorId| {
                        graph.producer(*tensor).is_some_and(|node| pair.nodes.contains(&node))
                    };
                    let is_new_value = |tensor: &TensorId| met.iter().any(|other| other.output == *tensor);
                    pair.nodes.iter().all(|node| nodes.contains(node))
                        && outputs.contains(&pair.output)
                        && outputs.iter().filter(|tensor| is_inside(tensor)).all(is_new_value)
                })
    }
}

/// What lies between an input and its new value; `None` if that is nothing, or others need parts of it.
fn between(ctx: PlanContext<'_>, update: &UpdatedTensor) -> Option<Between> {
    let PlanContext { graph, units, .. } = ctx;
    let below = after(graph, [update.input]);
    let above = before(graph, update.output);
    let all: BTreeSet<NodeId> = below.intersection(&above).copied().collect();
    let is_inside = |tensor: &TensorId| {
        *tensor != update.output && graph.producer(*tensor).is_some_and(|node| all.contains(&node))
    };
    let others = graph.node_ids().filter(|node| !all.contains(node));
    let mut needed = others.flat_map(|node| graph.node(node).inputs.iter());
    let is_shared = needed.any(is_inside) || graph.outputs.iter().any(|(_, tensor)| is_inside(tensor));
    let nodes: BTreeSet<NodeId> = all.into_iter().filter(|&node| !units.is_free(node)).collect();
    (!nodes.is_empty() && !is_shared).then_some(Between { output: update.output, nodes })
}

/// The primitives that need one of these tensors.
fn after(graph: &PrimGraph, tensors: impl IntoIterator<Item = TensorId>) -> BTreeSet<NodeId> {
    let mut known: BTreeSet<TensorId> = tensors.into_iter().collect();
    let mut found = BTreeSet::new();
    // Primitives are in topological order.
    for node in graph.node_ids() {
        if graph.node(node).inputs.iter().any(|input| known.contains(input)) {
            known.extend(&graph.node(node).outputs);
            found.insert(node);
        }
    }
    found
}

/// The primitives that a tensor needs.
fn before(graph: &PrimGraph, tensor: TensorId) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut open = vec![tensor];
    while let Some(node) = open.pop().and_then(|tensor| graph.producer(tensor)) {
        if found.insert(node) {
            open.extend(&graph.node(node).inputs);
        }
    }
    found
}

/// Lets the kernels of a plan update inputs in place where that is right, and orders its columns so that what reads an input comes before
/// what updates it.
pub fn update_in_place(implementation: &mut Implementation, ctx: PlanContext<'_>) {
    let Some(mut order) = column_order(&implementation.columns) else { return };
    let mut granted: Vec<Granted> = Vec::new();
    for &update in ctx.updates {
        let writer = order.only_writer(update.output);
        let Some(column) = writer.filter(|&writer| is_template_kernel(&implementation.columns[writer]))
        else {
            continue;
        };
        if order.wait_for_readers(column, update.input) {
            granted.push(Granted { update, column });
        }
    }
    if granted.is_empty() {
        return;
    }
    let mut redesigned = BTreeMap::new();
    let columns: BTreeSet<usize> = granted.iter().map(|granted| granted.column).collect();
    for column in columns {
        let of_column = granted.iter().filter(|granted| granted.column == column);
        let pairs: Vec<InPlace> = of_column.map(|granted| granted.update.in_place()).collect();
        let kept = redesign(implementation, ctx, column, pairs, &mut redesigned);
        granted.retain(|granted| granted.column != column || kept.contains(&granted.update.in_place()));
    }
    // Not all that was granted was kept.
    let Some(mut order) = column_order(&implementation.columns) else { return };
    for Granted { update, column } in &granted {
        order.wait_for_readers(*column, update.input);
    }
    let Some(order) = order.lowest_first() else { return };
    implementation.reorder(&order);
    implementation.drop_unused_kernels();
    granted.sort_by_key(|granted| granted.update.ports.output);
    implementation.updates = granted.into_iter().map(|granted| granted.update).collect();
}

/// A pair and the column that writes the new value.
#[derive(Clone, Copy)]
struct Granted {
    update: UpdatedTensor,
    column: usize,
}

/// True for one kernel of a template.
fn is_template_kernel(column: &PlannedColumn) -> bool {
    matches!(column.body, ColumnBody::Kernel { .. }) && column.proof.is_none()
}

/// The columns in an order as close to the present one as updates allow; `None` if each waits for another.
fn column_order(columns: &[PlannedColumn]) -> Option<ColumnOrder> {
    ColumnOrder::of(columns.iter().map(|column| (&column.inputs[..], &column.outputs[..])))
}

/// Kernels with outputs in the memory of inputs, and their numbers in the plan.
pub type Redesigned = BTreeMap<Redesign, usize>;

/// A kernel with outputs in the memory of inputs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Redesign {
    /// Its number in the plan.
    kernel: usize,
    /// Inputs and the outputs that are their new values.
    changed: Vec<(ArgId, ArgId)>,
}

/// The pairs of a column that its kernel, designed anew, writes in place: as many as one after the other allow, each tensor once.
pub fn redesign(
    implementation: &mut Implementation,
    ctx: PlanContext<'_>,
    column: usize,
    pairs: Vec<InPlace>,
    known: &mut Redesigned,
) -> Vec<InPlace> {
    let PlannedColumn { nodes, outputs, inputs, .. } = &implementation.columns[column];
    let ColumnBody::Kernel { kernel, args } = &implementation.columns[column].body else { return Vec::new() };
    // What is written whole, whatever was there, needs no other kernel.
    let (read, mut kept): (Vec<InPlace>, Vec<InPlace>) =
        pairs.into_iter().partition(|pair| inputs.contains(&pair.input));
    let Some((_, mut definition)) = ctx.kernels(nodes, outputs, 1) else { return kept };
    let position = |tensor| args.iter().position(|arg| *arg == tensor).map(ArgId::new);
    let mut changed: Vec<(ArgId, ArgId)> = Vec::new();
    for pair in read {
        if kept.iter().any(|other| other.output == pair.output || other.input == pair.input) {
            continue;
        }
        let Some(ends) = position(pair.input).zip(position(pair.output)) else { continue };
        let Some(updated) = definition.updated(ends.0, ends.1) else { continue };
        definition = updated;
        changed.push(ends);
        kept.push(pair);
    }
    if changed.is_empty() {
        return kept;
    }
    let key = Redesign { kernel: *kernel, changed };
    let number = match known.get(&key) {
        Some(&number) => number,
        None => {
            let old = &implementation.kernels[*kernel];
            let Some(design) = ctx.design_again(&definition, &old.design.schedule) else {
                kept.retain(|pair| !inputs.contains(&pair.input));
                return kept;
            };
            let estimate = ctx.planner.estimate(&definition);
            let number = implementation.kernels.len();
            let name =
                format!("k{number}{}", old.name.trim_start_matches(|c: char| c == 'k' || c.is_ascii_digit()));
            let new = KernelDesign {
                name,
                design,
                work: estimate.map_or(old.work, |estimate| estimate.work),
                cost_us: estimate.map_or(old.cost_us, |estimate| estimate.time_us),
                call: None,
                ..old.clone()
            };
            implementation.kernels.push(new);
            known.insert(key, number);
            number
        }
    };
    let cost_us = implementation.kernels[number].cost_us;
    let column = &mut implementation.columns[column];
    (column.cost_us, column.measured_us) = (cost_us, None);
    if let ColumnBody::Kernel { kernel, .. } = &mut column.body {
        *kernel = number;
    }
    kept
}

impl PlanContext<'_> {
    /// The kernel of a definition under the schedule of this name, or else under the preferred one; `None` if no template serves it.
    fn design_again(&self, definition: &KernelDefinition, schedule: &str) -> Option<Design> {
        let mut designs = self.planner.designs(definition, 1);
        if designs.first()?.schedule != schedule {
            let others = self.planner.designs(definition, OTHER_SCHEDULES);
            designs.extend(others.into_iter().filter(|design| design.schedule == schedule));
        }
        designs.pop()
    }
}

/// Schedules among which that of a kernel is looked for, if it is not the preferred one.
const OTHER_SCHEDULES: usize = 8;

impl Implementation {
    /// Brings the columns into an order, by their numbers now.
    pub fn reorder(&mut self, order: &[usize]) {
        let mut columns: Vec<Option<PlannedColumn>> = self.columns.drain(..).map(Some).collect();
        self.columns.extend(order.iter().filter_map(|&column| columns[column].take()));
        let mut new_place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &old)| new_place[old] = place);
        for column in self.parts.iter_mut().flat_map(|part| &mut part.columns) {
            *column = new_place[*column];
        }
    }

    /// Drops the kernels that no column runs.
    pub fn drop_unused_kernels(&mut self) {
        let used: BTreeSet<usize> = self.columns.iter().filter_map(PlannedColumn::kernel).collect();
        let numbers: Vec<usize> = used.into_iter().collect();
        let mut kernels: Vec<Option<KernelDesign>> = self.kernels.drain(..).map(Some).collect();
        self.kernels.extend(numbers.iter().filter_map(|&kernel| kernels[kernel].take()));
        for column in &mut self.columns {
            if let ColumnBody::Kernel { kernel, .. } = &mut column.body {
                *kernel = numbers.binary_search(kernel).expect("a column's kernel is used");
            }
        }
    }
}

#[cfg(test)]
mod tests;
