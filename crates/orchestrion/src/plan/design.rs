//! The kernels of candidates: thread programs under one or several schedules.

use super::candidates::CandidateColumn;
use super::context::PlanContext;
use super::definition::KernelDefinition;
use super::explain;
use super::kernel::{KernelDesign, KernelEstimate};
use super::library;
use crate::{Error, Library, Options, parallel};
use orch_ir::{NodeId, PrimGraph, TensorId};

impl PlanContext<'_> {
    /// The kernels of columns, with the preferred schedules; `None` where they are not lowered.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn designs(
        &self,
        columns: &[&CandidateColumn],
        options: &Options,
    ) -> Result<Vec<Option<Vec<KernelDesign>>>, Error> {
        parallel::map(columns, options, |column| {
            if let Some(substitute) = &column.substitute {
                let kernels = substitute.kernels(*self, 1)?;
                return Some(kernels.into_iter().flat_map(|kernel| kernel.schedules(*self)).collect());
            }
            let nodes = self.units.primitives(self.graph, &column.candidate.nodes);
            Some(vec![self.kernel(&nodes, &column.candidate.outputs)?])
        })
    }

    /// `[column][kernel][implementation]`: each kernel of the columns under several schedules, the preferred one first, and then
    /// with the library calls of the column's releases; empty for columns none of whose kernels has a second implementation.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn schedules(
        &self,
        columns: &[(&CandidateColumn, Vec<(Library, String)>)],
        options: &Options,
    ) -> Result<Vec<Vec<Vec<KernelDesign>>>, Error> {
        let limit = options.tune_schedules;
        let precision = self.planner.info().library_precision;
        parallel::map(columns, options, |(column, releases)| {
            let kernels = match &column.substitute {
                Some(substitute) => {
                    let kernels = substitute.kernels(*self, limit).unwrap_or_default();
                    kernels.into_iter().map(|kernel| kernel.schedules(*self)).collect()
                }
                None => {
                    let nodes = self.units.primitives(self.graph, &column.candidate.nodes);
                    let kernels = self.kernels(&nodes, &column.candidate.outputs, limit);
                    let with_call = |(mut all, definition): (Vec<KernelDesign>, KernelDefinition)| {
                        let called =
                            |called| library::with_call(&all, definition.block()?, precision, called);
                        let calls: Vec<KernelDesign> = releases.iter().filter_map(called).collect();
                        all.extend(calls);
                        vec![all]
                    };
                    kernels.map_or_else(Vec::new, with_call)
                }
            };
            if kernels.iter().any(|all: &Vec<KernelDesign>| all.len() > 1) { kernels } else { Vec::new() }
        })
    }

    /// A kernel under its short name, with the preferred schedule.
    fn kernel(&self, nodes: &[NodeId], outputs: &[TensorId]) -> Option<KernelDesign> {
        Some(self.kernels(nodes, outputs, 1)?.0.swap_remove(0))
    }

    /// A kernel under at most `limit` schedules, the preferred one first, and what it computes; `None` if there is no schedule.
    pub fn kernels(
        &self,
        nodes: &[NodeId],
        outputs: &[TensorId],
        limit: usize,
    ) -> Option<(Vec<KernelDesign>, KernelDefinition)> {
        let name = name(self.graph, nodes);
        let definition = KernelDefinition::of(self.graph, nodes, outputs, self.storage, &name)?;
        let KernelEstimate { time_us: cost_us, work } = self.planner.estimate(&definition)?;
        let designs = self.planner.designs(&definition, limit).into_iter();
        let read = definition.args().iter().filter(|arg| !arg.role.is_stored());
        let is_cold = self.is_cold(read.map(|arg| arg.tensor));
        let kernel = |design| KernelDesign {
            name: name.clone(),
            design,
            work,
            cost_us,
            is_cold,
            inner: Vec::new(),
            call: None,
        };
        let kernels: Vec<KernelDesign> = designs.map(kernel).collect();
        (!kernels.is_empty()).then_some((kernels, definition))
    }
}

/// `k_conv_add_relu`: the primitives tell what runs. It is part of the kernel's source, and so of what the cache of
/// kernels knows it by; a number would keep equal kernels of different plans apart.
fn name(graph: &PrimGraph, nodes: &[NodeId]) -> String {
    const SHOWN: usize = 4;
    let words = nodes.iter().map(|&node| explain::short_name(&graph.node(node).op));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    let mut name = String::from("k");
    for word in words.iter().take(SHOWN) {
        name.push('_');
        name.push_str(word);
    }
    if words.len() > SHOWN {
        name.push_str("_etc");
    }
    name
}
