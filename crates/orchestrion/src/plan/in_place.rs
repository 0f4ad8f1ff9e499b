//! Results in the memory of what their kernels read last: a residual connection is added where the sum before it lies, so that its bytes
//! are fetched once and no other lines of the caches are given up for the result.
//!
//! For CPUs, where steps run one after the other. A kernel that reads an operand only where it stores is designed anew with one argument
//! for both ([`orch_compute::block::update`]).

use super::context::PlanContext;
use super::implementation::{ColumnBody, Implementation};
use super::updated::InPlace;
use super::updates::{Redesigned, redesign};
use crate::manifest::Device;
use orch_ir::TensorId;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a tensor, at least: of smaller ones both find room in the L1, and kernels of two forms would be compiled for nothing.
const MIN_BYTES: usize = 16 << 10;

/// Lets kernels write over tensors that no later column reads.
pub fn write_in_place(implementation: &mut Implementation, ctx: PlanContext<'_>) {
    if ctx.planner.info().device != Device::Cpu {
        return;
    }
    let mut last_reader: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut arena: BTreeSet<TensorId> = BTreeSet::new();
    for (number, column) in implementation.columns.iter().enumerate() {
        last_reader.extend(column.inputs.iter().map(|&tensor| (tensor, number)));
        arena.extend(&column.outputs);
    }
    // Tensors between the kernels of a substitute are small, and not of the graph.
    arena.retain(|tensor| tensor.index() < ctx.graph.tensors().len());
    for (_, tensor) in &ctx.graph.outputs {
        arena.remove(tensor);
    }
    let form =
        |tensor: TensorId| (ctx.storage.dtype(tensor), ctx.graph.shape(tensor), ctx.storage.layout(tensor));
    let mut redesigned = Redesigned::new();
    for number in 0..implementation.columns.len() {
        let column = &implementation.columns[number];
        if column.proof.is_some() || !matches!(column.body, ColumnBody::Kernel { .. }) {
            continue;
        }
        let is_free = |input: &TensorId| {
            arena.contains(input)
                && last_reader.get(input) == Some(&number)
                && ctx.stored_bytes(*input) >= MIN_BYTES
        };
        let free: Vec<TensorId> = column.inputs.iter().copied().filter(is_free).collect();
        let mut pairs = Vec::new();
        for &output in column.outputs.iter().filter(|output| arena.contains(output)) {
            let fits = free.iter().filter(|&&input| form(input) == form(output));
            pairs.extend(fits.map(|&input| InPlace { output, input }));
        }
        if !pairs.is_empty() {
            let kept = redesign(implementation, ctx, number, pairs, &mut redesigned);
            implementation.in_place.extend(kept);
        }
    }
    implementation.drop_unused_kernels();
}

#[cfg(test)]
mod tests;
