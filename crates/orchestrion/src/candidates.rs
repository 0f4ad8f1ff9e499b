//! Stage "candidates": sets of units that may be one kernel, with what each would cost.
//!
//! Costs come from block programs; only what is chosen is lowered further ([`implement`](crate::implement)).
//! Candidates that compute the same thing share one block program and are estimated once.

use crate::chains::chains;
use crate::implement::{Place, Unserved};
use crate::substitute::{Offer, Spent, Substitute, offers};
use crate::{Error, Options, parallel};
use orch_compute::fuse;
use orch_ir::{NodeId, TensorId};
use orch_plan::blp::ColumnId;
use orch_plan::dag::NodeKind;
use orch_plan::enumerate::{Admission, AnchorPolicy, ReducePolicy, Verdict};
use orch_plan::enumerate::{Candidate, EnumerationReport, Growing, KindRule, Limits, enumerate};
use std::collections::HashMap;

/// All that may be chosen from.
pub struct Candidates {
    /// Ways to compute units.
    pub columns: Vec<Column>,
    /// What the enumeration met.
    pub report: EnumerationReport,
    /// Candidates that have no block program, or no template.
    pub refused: usize,
    /// Distinct kernels among the candidates.
    pub distinct: usize,
    /// The signatures of kernels, by number.
    pub signatures: Vec<String>,
}

/// One candidate.
#[derive(Clone)]
pub struct Column {
    /// The units and tensors.
    pub candidate: Candidate,
    /// What the superoptimizer found for them; `None` for kernels of templates and host routines.
    pub substitute: Option<Substitute>,
    /// Modelled time.
    pub cost_us: f64,
    /// The number of its kernel, or of all kernels of the substitute together; `None` for host routines.
    pub kernel: Option<usize>,
}

/// Modelled times of columns.
pub fn costs_us(columns: &[Column]) -> Vec<f64> {
    columns.iter().map(|column| column.cost_us).collect()
}

impl Column {
    /// A kernel of a template, or a host routine.
    fn plain(candidate: Candidate, cost_us: f64, kernel: Option<usize>) -> Self {
        Self { candidate, substitute: None, cost_us, kernel }
    }
}

/// Time of a host routine beyond what its bytes take, relative to a kernel: never chosen where a kernel can run.
pub const HOST_ROUTINE_US: f64 = 1e4;

/// Kernels hold reductions, so recomputing what leaves a set and returns (re-entrant nodes) is rarely worth a kernel:
/// for whole models it triples the candidates, and the plans found among them within the same limits are no cheaper.
const LIMITS: Limits =
    Limits { max_nodes: 24, max_reentrant_nodes: 0, max_exports: 2, max_sets_per_sink: 256 };

/// Grows the candidates of a graph and estimates each distinct one.
///
/// # Errors
/// If the work is cancelled.
pub fn candidates(place: Place<'_>, options: &Options) -> Result<Candidates, Error> {
    let Place { graph, storage, units, signatures, backend } = place;
    let mut enumeration = enumerate(&units.dag, &Rule { fuse: options.fuse }, &LIMITS);
    if options.fuse && backend.chains_contractions() {
        enumeration.candidates.extend(chains(units));
    }
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut distinct: Vec<(Vec<NodeId>, &[TensorId])> = Vec::new();
    let mut number_of = Vec::with_capacity(enumeration.candidates.len());
    for candidate in &enumeration.candidates {
        let nodes = units.primitives(graph, &candidate.nodes);
        let signature = signatures.signature(graph, &nodes, &candidate.outputs);
        number_of.push(*numbers.entry(signature.text).or_insert_with(|| {
            distinct.push((nodes, &candidate.outputs));
            distinct.len() - 1
        }));
    }
    let costs = parallel::map(&distinct, options, |(nodes, outputs)| {
        let block = fuse::build_stored(graph, nodes, outputs, storage, "estimate").ok()?;
        backend.time_us(&block)
    })?;
    let distinct = costs.iter().flatten().count();
    let mut refused = 0;
    let mut columns = Vec::with_capacity(enumeration.candidates.len());
    for (candidate, number) in enumeration.candidates.into_iter().zip(number_of) {
        match costs[number] {
            Some(cost_us) => columns.push(Column::plain(candidate, cost_us, Some(number))),
            None if candidate.nodes.len() == 1 => {
                columns.push(Column::plain(candidate, HOST_ROUTINE_US, None))
            }
            None => refused += 1,
        }
    }
    let mut signatures = vec![String::new(); costs.len()];
    numbers.into_iter().for_each(|(text, number)| signatures[number] = text);
    Ok(Candidates { columns, report: enumeration.report, refused, distinct, signatures })
}

impl Candidates {
    /// Adds what the superoptimizer finds where a choice spends most.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn superoptimize(
        &mut self,
        place: Place<'_>,
        chosen: &[ColumnId],
        options: &Options,
    ) -> Result<(), Error> {
        let spent: Vec<Spent<'_>> = chosen
            .iter()
            .map(|id| &self.columns[id.index()])
            .map(|column| Spent { units: &column.candidate.nodes, cost_us: column.cost_us })
            .collect();
        for Offer { candidate, substitute, cost_us } in offers(place, &spent, options)? {
            let key = substitute.key();
            let known = self.signatures.iter().position(|known| *known == key);
            let number = known.unwrap_or_else(|| {
                self.signatures.push(key);
                self.signatures.len() - 1
            });
            let substitute = Some(substitute);
            self.columns.push(Column { candidate, substitute, cost_us, kernel: Some(number) });
        }
        Ok(())
    }

    /// Kernels of templates and host routines.
    pub fn plain(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| column.substitute.is_none())
    }

    /// Takes out kernels that turned out to have no template; what remains of them are host routines of single units.
    pub fn strike(&mut self, unserved: &Unserved) {
        let is_unserved =
            |column: &Column| column.kernel.is_some_and(|kernel| unserved.contains(&self.signatures[kernel]));
        let before = self.columns.len();
        let mut kept = Vec::with_capacity(before);
        for column in std::mem::take(&mut self.columns) {
            match is_unserved(&column) {
                false => kept.push(column),
                true if column.candidate.nodes.len() == 1 && column.substitute.is_none() => {
                    kept.push(Column { cost_us: HOST_ROUTINE_US, kernel: None, ..column });
                }
                true => {}
            }
        }
        self.refused += before - kept.len();
        self.columns = kept;
    }
}

/// What may be one kernel on this target: any reductions, or one contraction with what surrounds it.
struct Rule {
    fuse: bool,
}

impl Admission for Rule {
    fn judge(&self, set: &Growing<'_>) -> Verdict {
        let kinds = KindRule { anchors: AnchorPolicy::Fused, reduces: ReducePolicy::Inside };
        let mixes = set.count(NodeKind::Anchor) > 0 && set.count(NodeKind::Reduce) > 0;
        if mixes || !self.fuse && set.nodes().len() > 1 { Verdict::Stop } else { kinds.judge(set) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn struck_kernels_leave_host_routines_of_single_units() {
        let column = |units: &[u32], kernel| {
            let candidate = Candidate {
                nodes: units.iter().map(|&unit| NodeId(unit)).collect(),
                inputs: Vec::new(),
                outputs: vec![TensorId(0)],
                is_convex: true,
            };
            Column::plain(candidate, 1.0, Some(kernel))
        };
        let mut candidates = Candidates {
            columns: vec![column(&[0], 0), column(&[0, 1], 1), column(&[1], 2)],
            report: EnumerationReport::default(),
            refused: 3,
            distinct: 3,
            signatures: ["a", "b", "c"].map(str::to_owned).to_vec(),
        };
        candidates.strike(&["a", "b"].map(str::to_owned).into());
        let left: Vec<_> = candidates.columns.iter().map(|column| (column.kernel, column.cost_us)).collect();
        assert_eq!(left, [(None, HOST_ROUTINE_US), (Some(2), 1.0)]);
        assert_eq!(candidates.refused, 4);
    }
}
