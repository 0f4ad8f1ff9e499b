//! The rules of the e-graph, one file per family.

mod compose;
mod distribute;
mod layout;

use super::GraphRule;

/// Every rule of the e-graph, by family.
pub const ALL: &[&[GraphRule]] = &[layout::RULES, distribute::RULES, compose::RULES];
