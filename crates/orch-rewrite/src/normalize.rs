//! The normalising pass: local rules, applied until none matches.
//!
//! Nodes are visited in topological order; a change queues the readers of what changed. When the queue is empty all
//! nodes are visited once more, because patterns reach further than one node, until a round changes nothing.

use crate::draft::Draft;
use crate::site::Site;
use crate::{RewriteOptions, RewriteReport, Rule};
use orch_ir::NodeId;

/// Applies `families` to a fixpoint.
pub(crate) fn normalize(
    draft: &mut Draft,
    families: &[&[Rule]],
    options: &RewriteOptions,
    report: &mut RewriteReport,
) {
    let rules: Vec<&Rule> =
        families.iter().copied().flatten().filter(|rule| rule.numerics <= options.numerics).collect();
    loop {
        let before = report.applications() + draft.merged;
        while let Some((_, node)) = draft.worklist.pop_first() {
            if report.applications() >= options.max_applications {
                report.limits_hit.push("max_applications");
                return;
            }
            visit(draft, node, &rules, report);
        }
        if report.applications() + draft.merged == before {
            return;
        }
        draft.requeue_all();
    }
}

/// Merges a node with an equal one, or applies the first rule that matches.
fn visit(draft: &mut Draft, node: NodeId, rules: &[&Rule], report: &mut RewriteReport) {
    if !draft.nodes[node.index()].live {
        return;
    }
    if let Some(other) = draft.duplicate_of(node) {
        let (kept, dropped) = (node.min(other), node.max(other));
        let pairs = draft.nodes[dropped.index()].outputs.clone().into_iter();
        let pairs: Vec<_> = pairs.zip(draft.nodes[kept.index()].outputs.clone()).collect();
        draft.merged += 1;
        pairs.into_iter().for_each(|(old, new)| draft.replace(old, new));
        return;
    }
    let [result] = draft.nodes[node.index()].outputs[..] else { return };
    for rule in rules {
        let (first_new, folded) = (draft.nodes.len(), draft.folded);
        let replacement = (rule.apply)(&mut Site::new(draft, node));
        let applies = replacement.filter(|&new| new != result && draft.same_type(result, new));
        if let Some(new) = applies {
            report.count(rule.name);
            draft.replace(result, new);
            draft.sweep(first_new);
            return;
        }
        draft.folded = folded;
        draft.sweep(first_new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Numerics, rewrite_with};
    use orch_ir::text::parse;
    use orch_ir::{Shape, TensorId};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);

    /// Reads the second operand, which nothing but the root read, and gives up.
    fn attempt(site: &mut Site<'_>) -> Option<TensorId> {
        assert!(ATTEMPTS.fetch_add(1, Ordering::Relaxed) < 100, "the attempt queues itself");
        let root = site.root();
        let operand = *root.inputs.get(1)?;
        site.reshape(operand, Shape::from([6]))?;
        None
    }

    #[test]
    fn a_failed_attempt_does_not_queue_itself() {
        let text = "graph \"g\" {\n  input \"x\" t0: f32[2, 3]\n  input \"y\" t1: f32[2, 3]\n  t2: f32[2, 3] = mul t0, t1\n  output \"z\" t2\n}\n";
        let graph = parse(text).expect("a valid graph");
        let rule = Rule {
            name: "attempt",
            equation: "",
            guards: "",
            numerics: Numerics::Exact,
            source: "",
            apply: attempt,
        };
        let (rewritten, report) = rewrite_with(&graph, &[&[rule]], &[], &RewriteOptions::default());
        assert_eq!((report.applications(), rewritten.nodes().len()), (0, 1));
    }
}
