//! Stage "superoptimize": proved µGraphs as further candidates.
//!
//! A region of the graph ([`regions`](orch_mugraph::extract::regions)) is a program of its own. The cheapest µGraphs that are
//! proved to compute it, of one or more kernels, become columns beside the kernels of templates, and the binary linear program
//! chooses.

use super::finder::{Finder, SearchQuery, Searched};
use super::requests::{KernelCost, search_requests};
use crate::manifest::SearchInfo;
use crate::plan::candidates::{CandidateColumn, CandidateColumns};
use crate::plan::context::PlanContext;
use crate::plan::substitute::Substitute;
use crate::{Error, Options, parallel};
use orch_mugraph::SuperoptimizeError;
use orch_plan::blp::ColumnId;
use orch_plan::enumerate::Candidate;

/// Where times are measured, µGraphs are searched that are modelled to cost up to so many times what templates cost.
const MODEL_SLACK: f64 = 2.0;

/// States that a search may visit if its program might gain the whole plan; others in proportion to their gain.
const STATES: f64 = 5e6;

/// A substitute with the units that it computes.
pub struct SubstituteCandidate {
    /// The units and tensors.
    pub candidate: Candidate,
    /// The µGraph that computes them.
    pub substitute: Substitute,
    /// Modelled time.
    pub cost_us: f64,
}

/// Adds substitutes for the regions on which a choice spends most.
///
/// # Errors
/// If the work is cancelled.
pub fn add_substitutes(
    candidates: &mut CandidateColumns,
    ctx: PlanContext<'_>,
    chosen: &[ColumnId],
    options: &Options,
) -> Result<(), Error> {
    let spent: Vec<KernelCost<'_>> = chosen
        .iter()
        .map(|id| &candidates.columns[id.index()])
        .map(|column| KernelCost { units: &column.candidate.nodes, cost_us: column.counted_us() })
        .collect();
    let (found, searches) = substitute_candidates(ctx, &spent, options)?;
    candidates.searches = searches;
    for SubstituteCandidate { candidate, substitute, cost_us } in found {
        let key = substitute.key();
        let known = candidates.signatures.iter().position(|known| *known == key);
        let number = known.unwrap_or_else(|| {
            candidates.signatures.push(key);
            candidates.signatures.len() - 1
        });
        candidates.columns.push(CandidateColumn {
            substitute: Some(substitute),
            is_preferred: options.prefer_found,
            ..CandidateColumn::plain(candidate, cost_us, Some(number))
        });
    }
    Ok(())
}

/// Proved µGraphs for regions of a graph, and what was searched, where `spent` is the plan by templates: the regions on which it spends most are
/// searched.
///
/// # Errors
/// If the work is cancelled.
fn substitute_candidates(
    ctx: PlanContext<'_>,
    spent: &[KernelCost<'_>],
    options: &Options,
) -> Result<(Vec<SubstituteCandidate>, Vec<SearchInfo>), Error> {
    let finder = Finder::new(ctx.planner, options);
    let spent_us: f64 = spent.iter().map(|kernel| kernel.cost_us).sum();
    let slack = if ctx.planner.info().is_tuned(options) { MODEL_SLACK } else { 1.0 };
    let margins = ctx.planner.info().substitute_margins;
    let mut found = Vec::new();
    let mut searches = Vec::new();
    for request in search_requests(ctx, spent, options) {
        let [(_, views), ..] = &request.uses[..] else { continue };
        let query = SearchQuery {
            program: &request.program,
            must_be_stable: request.must_be_stable,
            below_us: if options.prefer_found {
                f64::INFINITY
            } else {
                slack * request.spent_us / margins.computed
            },
            states: (STATES * if options.prefer_found { 1.0 } else { request.gain_us / spent_us }).ceil()
                as u64,
            budget: None,
            layout: &views.key(),
            inputs: views.input_storage(ctx),
            stored: &|graph| Some(views.memory(graph, ctx)?.0),
        };
        let query_info = SearchInfo {
            program: orch_mugraph::print(&request.program),
            uses: request.uses.len(),
            spent_us: request.spent_us,
            gain_us: request.gain_us,
            below_us: query.below_us,
            state_limit: query.states,
            ..SearchInfo::default()
        };
        let proved = match finder.find(&query) {
            Ok(searched) => {
                searches.push(finished(query_info, &searched));
                searched.found.proved
            }
            Err(SuperoptimizeError::Interrupted) => return Err(Error::Interrupted),
            Err(SuperoptimizeError::Outside(reason)) => {
                searches.push(SearchInfo { stopped: format!("not searched: {reason}"), ..query_info });
                continue;
            }
        };
        let must_be_stable = request.must_be_stable;
        for (candidate, views) in request.uses {
            found.extend(proved.iter().map(|proved| {
                let (views, proved) = (views.clone(), proved.clone());
                (candidate.clone(), Substitute { views, must_be_stable, proved })
            }));
        }
    }
    let costs = parallel::map(&found, options, |(_, substitute)| {
        let kernels = substitute.kernels(ctx, 1)?;
        Some(kernels.iter().map(|kernel| kernel.cost_us).sum::<f64>())
    })?;
    let candidate = |((candidate, substitute), cost_us): ((Candidate, Substitute), Option<f64>)| {
        let by_constants = substitute.multiplies_by_constants(ctx);
        let margin = if by_constants { margins.by_constants } else { margins.computed };
        Some(SubstituteCandidate { candidate, substitute, cost_us: margin * cost_us? })
    };
    Ok((found.into_iter().zip(costs).filter_map(candidate).collect(), searches))
}

/// A query with what came of it.
fn finished(query: SearchInfo, Searched { found, is_cached }: &Searched) -> SearchInfo {
    let report = &found.report;
    SearchInfo {
        states: report.counts.states,
        structures: report.structures,
        screened: report.screened,
        pruned: report.counts.pruned.iter().map(|(rule, &count)| (rule.clone(), count)).collect(),
        stopped: report.stopped.clone(),
        proved_us: found.proved.iter().map(|proved| proved.cost_us).collect(),
        refused: found.refused.clone(),
        is_cached: *is_cached,
        ..query
    }
}
