//! How the steps of a program are enqueued: one call of the driver for each, or as graphs.
//!
//! In a graph the steps between host routines are together; in a branched one a node depends on those that wrote or read the bytes that it
//! accesses, and on no others; an output that updates an input counts as its memory, whether it has that in a run or not. Each graph remembers which addresses its nodes have: those that changed since it was launched last are set
//! when it is next used.

use super::executable::{CudaExecutable, Execution, is_move, is_port};
use super::graph::{Graph, GraphBuilder, Node};
use super::launch::{Action, CudaStep, Launch, Program};
use super::library_calls::{Call, Calls};
use super::placement::{Arguments, Ports};
use crate::cuda::driver::error::CudaError;
use crate::dependencies;
use crate::program::{Base, BufferRef, Update};
use std::ops::Range;

/// The steps of a program as one way of execution enqueues them.
pub(super) struct Form {
    pub(super) execution: Execution,
    pub(super) segments: Vec<Segment>,
    /// For each step that is a node of a graph its segment and nodes.
    nodes: Vec<Option<(usize, StepNodes)>>,
    /// The addresses that the nodes have; `None` if that is not known.
    ports: Option<Ports>,
    /// For each update whether its output has the memory of its input: then graphs leave the copy of the old value out.
    in_place: Vec<bool>,
}

/// Steps that are enqueued together.
pub(super) enum Segment {
    /// Launches and copies, one call of the driver each.
    Direct(Range<usize>),
    /// Launches and copies, as a graph.
    Graph(GraphSegment),
    /// A host routine.
    Host(usize),
}

/// Steps that are one graph.
pub(super) struct GraphSegment {
    pub(super) steps: Range<usize>,
    pub(super) graph: Graph,
}

/// A graph, and the nodes of each step that has any.
struct StepGraph {
    graph: Graph,
    nodes: Vec<(usize, StepNodes)>,
}

/// The nodes of a step.
struct StepNodes {
    node: Node,
    /// The copies of zeros that it waits for, in the order of [`Launch::clears`].
    clears: Vec<Node>,
}

/// A step that accesses memory whose address may change: inputs, outputs, working memory.
pub(super) struct BoundaryStep {
    step: usize,
    /// Those that it accesses.
    ports: Vec<Base>,
}

impl BoundaryStep {
    /// Whether it accesses one whose address differs from, or is not known to be, the one before.
    fn has_moved(&self, before: Option<&Ports>, now: &Ports) -> bool {
        let has_moved =
            |before: &Ports| self.ports.iter().any(|port| before.address(*port) != now.address(*port));
        before.is_none_or(has_moved)
    }
}

/// The steps that access memory whose address may change, except calls of libraries.
pub(super) fn boundary_steps(program: &Program, calls: &Calls) -> Vec<BoundaryStep> {
    let step = |(step, info): (usize, &CudaStep)| {
        let ports = info.buffers().into_iter().map(|buffer| buffer.base);
        let ports: Vec<Base> = ports.filter(|base| *base == Base::Arena || is_port(*base)).collect();
        let can_move = calls.of(step).is_none() && !ports.is_empty();
        can_move.then_some(BoundaryStep { step, ports })
    };
    program.steps.iter().enumerate().filter_map(step).collect()
}

impl CudaExecutable {
    /// The form of the present way of execution, if it was made.
    pub(super) fn form(&self) -> Option<&Form> {
        self.forms.iter().find(|form| form.execution == self.execution)
    }

    /// Whether arguments and graphs have the addresses of `placement.ports`.
    pub(super) fn is_bound(&self) -> bool {
        let ports = Some(&self.placement.ports);
        self.arguments_ports.as_ref() == ports && self.form().is_some_and(|form| form.ports.as_ref() == ports)
    }

    /// Gives the arguments of kernels and the graphs these addresses.
    pub(super) fn bind(&mut self, ports: Ports) -> Result<(), CudaError> {
        self.placement.ports = ports;
        if self.is_bound() {
            return Ok(());
        }
        self.bind_arguments()?;
        let in_place = self.in_place();
        match self.forms.iter().position(|form| form.execution == self.execution) {
            None => {
                let form = self.make_form(in_place)?;
                self.forms.push(form);
                self.has_new_form = true;
            }
            Some(number) if self.forms[number].in_place != in_place => {
                self.forms[number] = self.make_form(in_place)?;
                self.has_new_form = true;
            }
            Some(number) => {
                // After an error it is not known what was set, and all is set again.
                let before = self.forms[number].ports.take();
                self.bind_graphs(&self.forms[number], before.as_ref())?;
                self.forms[number].ports = Some(self.placement.ports.clone());
            }
        }
        Ok(())
    }

    /// For each update whether its output has the memory of its input.
    fn in_place(&self) -> Vec<bool> {
        let ports = &self.placement.ports;
        let is_in_place = |update: &Update| ports.inputs[update.input] == ports.outputs[update.output];
        self.source.program.updates.iter().map(is_in_place).collect()
    }

    fn bind_arguments(&mut self) -> Result<(), CudaError> {
        let now = &self.placement.ports;
        if self.arguments_ports.as_ref() == Some(now) {
            return Ok(());
        }
        let context = self.current.context();
        let address = |range: &BufferRef| self.placement.address(range);
        let before = self.arguments_ports.take();
        let steps = &self.source.program.steps;
        if self.arguments.is_empty() {
            self.arguments =
                steps.iter().map(|step| Arguments::of(step, address, context)).collect::<Result<_, _>>()?;
        } else {
            for boundary in self.boundary_steps.iter().filter(|step| step.has_moved(before.as_ref(), now)) {
                self.arguments[boundary.step] = Arguments::of(&steps[boundary.step], address, context)?;
            }
        }
        self.arguments_ports = Some(now.clone());
        Ok(())
    }

    /// Sets in the graphs of a form what has moved since its nodes had the addresses `before`.
    fn bind_graphs(&self, form: &Form, before: Option<&Ports>) -> Result<(), CudaError> {
        let address = |range: &BufferRef| self.placement.address(range);
        for boundary in &self.boundary_steps {
            let Some((segment, StepNodes { node, clears })) = &form.nodes[boundary.step] else { continue };
            if !boundary.has_moved(before, &self.placement.ports) {
                continue;
            }
            let Segment::Graph(GraphSegment { graph, .. }) = &form.segments[*segment] else { continue };
            match &self.source.program.steps[boundary.step].action {
                Action::Launch(launch @ Launch { function, shape, .. }) => {
                    for ((zeros, to), clear) in launch.clears().zip(clears) {
                        graph.set_copy(*clear, address(zeros), address(to), to.len_bytes)?;
                    }
                    let pointers = self.arguments[boundary.step].pointers();
                    // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                    unsafe { graph.set_kernel(*node, function, shape, pointers)? };
                }
                Action::Copy { from, to } => {
                    graph.set_copy(*node, address(from), address(to), from.len_bytes)?;
                }
                Action::Host(_) => {}
            }
        }
        Ok(())
    }

    /// The form of the present way of execution, with the present arguments: steps cut at host routines.
    fn make_form(&self, in_place: Vec<bool>) -> Result<Form, CudaError> {
        let steps = &self.source.program.steps;
        let is_host = |idx: &usize| matches!(steps[*idx].action, Action::Host(_));
        let mut segments = Vec::new();
        let mut nodes: Vec<Option<(usize, StepNodes)>> = (0..steps.len()).map(|_| None).collect();
        let mut start = 0;
        for host in (0..steps.len()).filter(is_host).chain([steps.len()]) {
            if start < host {
                let graph = match self.execution {
                    Execution::Direct => None,
                    Execution::StraightGraph | Execution::BranchedGraph => self.graph_of(start..host)?,
                };
                segments.push(match graph {
                    None => Segment::Direct(start..host),
                    Some(StepGraph { graph, nodes: of_steps }) => {
                        let number = segments.len();
                        of_steps
                            .into_iter()
                            .for_each(|(step, of_step)| nodes[step] = Some((number, of_step)));
                        Segment::Graph(GraphSegment { steps: start..host, graph })
                    }
                });
            }
            if host < steps.len() {
                segments.push(Segment::Host(host));
            }
            start = host + 1;
        }
        let ports = Some(self.placement.ports.clone());
        Ok(Form { execution: self.execution, segments, nodes, ports, in_place })
    }

    /// A graph of steps, none of which is a host routine, and their nodes; `None` if the device has no memory for it.
    fn graph_of(&self, steps: Range<usize>) -> Result<Option<StepGraph>, CudaError> {
        let builder = GraphBuilder::new(self.stream().context())?;
        let part = self.add_steps(&builder, steps, GraphEnd::default())?;
        match builder.build(self.stream()) {
            Ok(graph) => Ok(Some(StepGraph { graph, nodes: part.nodes })),
            Err(CudaError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// For each of these steps those of them that it depends on.
    fn waits(&self, steps: Range<usize>) -> Vec<Vec<usize>> {
        match self.execution {
            Execution::Direct | Execution::StraightGraph => {
                (0..steps.len()).map(|idx| idx.checked_sub(1).into_iter().collect()).collect()
            }
            Execution::BranchedGraph => {
                let program = &self.source.program;
                let ranges: Vec<_> = (program.steps[steps].iter())
                    .map(|step| {
                        step.buffers().into_iter().map(|range| range.identity(&program.updates)).collect()
                    })
                    .collect();
                dependencies(&ranges)
            }
        }
    }

    /// Adds these steps, none of which is a host routine, to a graph after `start`.
    pub(in crate::cuda) fn add_steps(
        &self,
        builder: &GraphBuilder,
        steps: Range<usize>,
        start: GraphEnd,
    ) -> Result<GraphPart, CudaError> {
        let address = |range: &BufferRef| self.placement.address(range);
        let mut nodes = Vec::new();
        let waits = self.waits(steps.clone());
        let allow_early = self.source.options.allow_programmatic && builder.has_programmatic_edges();
        // For each step the nodes that later steps depend on: its own, or those that it depends on if it does nothing.
        let mut ends: Vec<GraphEnd> = Vec::with_capacity(steps.len());
        // The node of the last library call that uses the workspace: the next such call depends on it.
        let mut workspace_end: Vec<Node> = Vec::new();
        for (idx, waits) in steps.zip(&waits) {
            let before = if waits.is_empty() { start.clone() } else { GraphEnd::of(&ends, waits) };
            let (mut after, mut clears) = (before.nodes, Vec::new());
            let call = self.calls.of(idx);
            let captured = call.and_then(Call::captured);
            if call.is_some_and(Call::needs_workspace) {
                workspace_end.retain(|node| !after.contains(node));
                after.append(&mut workspace_end);
            }
            let node = match (&self.source.program.steps[idx].action, captured) {
                (Action::Launch(_), Some(captured)) => Some(builder.add_captured(captured, &after)?),
                (Action::Launch(launch), None) => {
                    let (function, shape) = (&launch.function, &launch.shape);
                    for (zeros, to) in launch.clears() {
                        clears.push(builder.add_copy(address(zeros), address(to), to.len_bytes, &after)?);
                    }
                    after.extend(&clears);
                    // A programmatic edge is the only one, because `griddepcontrol.wait` waits for all of them.
                    let is_early =
                        allow_early && shape.is_programmatic && before.is_kernel && clears.is_empty();
                    let pointers = self.arguments[idx].pointers();
                    // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                    Some(unsafe { builder.add_kernel(function, shape, pointers, &after, is_early)? })
                }
                (Action::Copy { from, to }, _) if is_move(from, to, address) => {
                    let (from_address, to_address) = (address(from), address(to));
                    Some(builder.add_copy(from_address, to_address, from.len_bytes, &after)?)
                }
                (Action::Copy { .. } | Action::Host(_), _) => None,
            };
            if call.is_some_and(Call::needs_workspace) {
                workspace_end.extend(node);
            }
            nodes.extend(node.map(|node| (idx, StepNodes { node, clears })));
            let is_launch = matches!(self.source.program.steps[idx].action, Action::Launch(_));
            let is_kernel = is_launch && captured.is_none();
            ends.push(GraphEnd { nodes: node.map_or(after, |node| vec![node]), is_kernel });
        }
        let is_last = |idx: &usize| !waits.iter().any(|waits| waits.contains(idx));
        let last: Vec<usize> = (0..ends.len()).filter(is_last).collect();
        let end = if last.is_empty() { start } else { GraphEnd::of(&ends, &last) };
        Ok(GraphPart { end, nodes })
    }
}

/// Steps that were added to a graph.
pub(in crate::cuda) struct GraphPart {
    /// The nodes that come last.
    pub(in crate::cuda) end: GraphEnd,
    /// The nodes of each step that has any.
    nodes: Vec<(usize, StepNodes)>,
}

/// The nodes that steps after a part of a graph depend on.
#[derive(Clone, Default)]
pub(in crate::cuda) struct GraphEnd {
    nodes: Vec<Node>,
    /// Whether it is one kernel, which a programmatic edge may leave.
    is_kernel: bool,
}

impl GraphEnd {
    /// The nodes of several steps together.
    fn of(ends: &[Self], steps: &[usize]) -> Self {
        let nodes = steps.iter().flat_map(|&step| ends[step].nodes.iter().copied()).collect();
        Self { nodes, is_kernel: matches!(steps[..], [step] if ends[step].is_kernel) }
    }
}
