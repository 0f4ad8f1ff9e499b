//! The local rules, one file per family.

mod arithmetic;
mod bounds;
mod broadcast;
mod division;
mod function;
mod index;
mod layout;
mod logic;
mod reduce;
mod scale;
mod slice;
pub(crate) mod transpose;
mod weights;

use crate::Rule;

/// Every local rule, by family. At a node the first that matches is applied.
pub const ALL: &[&[Rule]] = &[
    layout::RULES,
    slice::RULES,
    broadcast::RULES,
    transpose::RULES,
    index::RULES,
    reduce::RULES,
    logic::RULES,
    arithmetic::RULES,
    bounds::RULES,
    division::RULES,
    function::RULES,
    scale::RULES,
    weights::RULES,
];
