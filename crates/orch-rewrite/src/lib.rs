//! Verified rewriting of primitive graphs (DESIGN section 3.2; Korch, ASPLOS'24, section 4.1).
//!
//! [`rewrite`] turns a primitive graph into a cheaper one that computes the same. Rules are data ([`Rule`]): a name,
//! the equation, its guards, how far results may differ, and where it comes from; they are listed in [`rules::ALL`],
//! one file per family. Common subexpressions are merged, constants evaluated and dead nodes dropped on the way.
//!
//! [`split_wide_concats`], [`index_selections`] and [`unflatten_reductions`] prepare a graph for kernels, [`expand_routines`],
//! [`split_long_reductions`], [`split_products`], [`phase_convolutions`] and [`split_taps`] as far as a target wants, [`stage_images`]
//! and [`stage_depthwise_weights`] for CPUs, [`merge_products`], [`stage_inputs`], [`patch_products`], [`align_channels`] and [`align_rows`] for GPUs. [`read_outputs`] saves copies of what is an output in another view;
//! [`unmerge_products`] shows merged products as single ones.
//!
//! [`narrow_contractions`] is the one step that does not compute the same: callers ask for it by precision.
//!
//! This crate knows no device and measures no time.

mod channels;
#[cfg(test)]
mod check;
mod draft;
mod egraph;
mod expand;
mod facts;
#[cfg(test)]
mod field;
mod finish;
mod fold;
mod images;
mod long_reductions;
mod narrow;
mod normalize;
mod options;
mod outputs;
mod patches;
mod phases;
mod prepare;
mod report;
mod rule;
pub mod rules;
mod select;
mod site;
mod split_k;
mod taps;
mod unflatten;
mod unmerge;
mod weights;
mod wide;

pub use channels::{ChannelAlignment, ShortProducts, align_channels};
pub use egraph::rules as graph_rules;
pub use egraph::{CostModel, GraphLimits, GraphReport, GraphRule};
pub use expand::{ExpandLimits, SplitLimits, expand_routines};
pub use images::{stage_depthwise_weights, stage_images};
pub use long_reductions::{LongReductions, split_long_reductions};
pub use narrow::{NarrowReport, narrow_contractions};
pub use options::{Numerics, RewriteOptions};
pub use outputs::read_outputs;
pub use patches::patch_products;
pub use phases::{PhaseLimits, phase_convolutions};
pub use prepare::{RowAlignment, align_rows, merge_products, stage_inputs};
pub use report::RewriteReport;
pub use rule::Rule;
pub use select::index_selections;
pub use split_k::{ProductExtents, split_products};
pub use taps::split_taps;
pub use unflatten::unflatten_reductions;
pub use unmerge::{UnmergedProducts, unmerge_products};
pub use wide::split_wide_concats;

use draft::Draft;
use orch_ir::PrimGraph;

/// Rewrites a graph. The result has the same inputs and outputs, in the same order and under the same names.
///
/// Deterministic: the same graph and options give the same result.
pub fn rewrite(graph: &PrimGraph, options: &RewriteOptions) -> (PrimGraph, RewriteReport) {
    rewrite_with(graph, rules::ALL, graph_rules::ALL, options)
}

/// [`rewrite`] with these rules only.
pub fn rewrite_with(
    graph: &PrimGraph,
    local: &[&[Rule]],
    alternatives: &[&[GraphRule]],
    options: &RewriteOptions,
) -> (PrimGraph, RewriteReport) {
    let mut report = RewriteReport { nodes_before: graph.nodes().len(), ..RewriteReport::default() };
    let mut draft = Draft::new(graph, options);
    normalize::normalize(&mut draft, local, options, &mut report);
    if egraph::improve(&mut draft, alternatives, options, &mut report) {
        normalize::normalize(&mut draft, local, options, &mut report);
    }
    (report.merged, report.folded) = (draft.merged, draft.folded);
    let rewritten = draft.finish();
    report.nodes_after = rewritten.nodes().len();
    (rewritten, report)
}
