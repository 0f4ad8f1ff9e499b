//! The rule that needs only the kinds of nodes: what a back end with row reductions and one schedule per anchor can
//! run as one kernel.

use super::{Admission, Growing, Verdict};
use crate::dag::NodeKind;

/// What may surround a contraction or convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnchorPolicy {
    /// Nothing: it is a kernel by itself, as in the published code.
    Alone,
    /// Prologues and epilogues; one anchor per kernel, never recomputed.
    Fused,
}

/// Where reductions may stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReducePolicy {
    /// A reduction ends its kernel, as the back end of the published code has it.
    SinkOnly,
    /// Anywhere.
    Inside,
}

/// Admits sets by the kinds of their nodes. Opaque nodes are kernels by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindRule {
    /// What may surround an anchor.
    pub anchors: AnchorPolicy,
    /// Where reductions may stand.
    pub reduces: ReducePolicy,
}

impl KindRule {
    /// The published rules, without the back end's gate on reductions.
    pub const PUBLISHED: KindRule = KindRule { anchors: AnchorPolicy::Alone, reduces: ReducePolicy::Inside };
}

impl Admission for KindRule {
    fn judge(&self, set: &Growing<'_>) -> Verdict {
        let is_single = set.nodes().len() == 1;
        let newest = set.dag().node(set.newest()).kind;
        let anchors = set.count(NodeKind::Anchor);
        let has_lonely =
            set.count(NodeKind::Opaque) > 0 || anchors > 0 && self.anchors == AnchorPolicy::Alone;
        let has_inner_reduce =
            newest == NodeKind::Reduce && !is_single && self.reduces == ReducePolicy::SinkOnly;
        if has_lonely && !is_single || anchors > 1 || has_inner_reduce {
            Verdict::Stop
        } else if anchors == 1 && self.recomputes_anchor(set) {
            Verdict::KeepExporting
        } else {
            Verdict::Keep
        }
    }
}

impl KindRule {
    fn recomputes_anchor(&self, set: &Growing<'_>) -> bool {
        set.escaping_nodes().iter().any(|&node| set.dag().node(node).kind == NodeKind::Anchor)
    }
}
