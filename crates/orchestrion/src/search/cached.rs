//! Whether the µGraphs of a plan from the cache compute what they stand for: their regions are extracted and their proofs made anew, as
//! if somebody else had written them.

use super::requests::{candidate, is_searched, regions_of_products};
use super::views::region_views;
use crate::plan::context::PlanContext;
use crate::plan::implementation::Chosen;
use crate::plan::substitute::Substitute;
use crate::{Error, Options, parallel};
use orch_mugraph::{MuGraph, Region};

/// True if each substitute is of a region of the graph, and is proved to compute it.
///
/// # Errors
/// If the work is cancelled.
pub fn all_hold(ctx: PlanContext<'_>, chosen: &[Chosen], options: &Options) -> Result<bool, Error> {
    let uses = chosen.iter().filter_map(|chosen| Some((chosen, chosen.substitute.as_ref()?)));
    let uses: Vec<(&Chosen, &Substitute)> = uses.collect();
    if uses.is_empty() {
        return Ok(true);
    }
    let consumers = ctx.graph.consumers();
    let regions = regions_of_products(ctx.graph);
    let is_of = |region: &&Region, (chosen, substitute): &(&Chosen, &Substitute)| {
        let found = || {
            let views = region_views(region, ctx).filter(|views| *views == substitute.views)?;
            candidate(&region.nodes, &views, &consumers, ctx)
        };
        substitute.views.outputs.iter().all(|view| view.tensor == region.output.tensor.0)
            && region.subtracts_maxima == substitute.must_be_stable
            && is_searched(region, ctx)
            && found().is_some_and(|found| found == chosen.candidate)
            && orch_mugraph::print(&region.program) == substitute.proved.certificate.program
    };
    let mut distinct: Vec<(&MuGraph, &Substitute)> = Vec::new();
    for one in &uses {
        let Some(region) = regions.iter().find(|region| is_of(region, one)) else { return Ok(false) };
        let is_same = |(_, other): &(&MuGraph, &Substitute)| {
            other.proved == one.1.proved && other.must_be_stable == one.1.must_be_stable
        };
        if !distinct.iter().any(is_same) {
            distinct.push((&region.program, one.1));
        }
    }
    let holds = parallel::map(&distinct, options, |(program, substitute)| {
        substitute.proved.check(program, substitute.must_be_stable).is_ok()
    })?;
    Ok(holds.into_iter().all(|holds| holds))
}
