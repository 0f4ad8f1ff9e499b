//! The rules, one small file per operator or close family of operators.
//!
//! Each family is a module with a list `RULES`.

use crate::registry::Rule;

mod activation;
mod attention;
mod control;
mod elementwise;
mod encoded;
mod generate;
mod image;
mod index;
mod layout;
mod learning;
mod linear;
mod misc;
mod normalization;
mod operand_lists;
mod optimizer;
mod pooling;
mod quantization;
mod recurrent;
mod reduction;
mod sequence;
#[cfg(test)]
mod testing;
mod window;

/// All families.
pub const FAMILIES: &[&[Rule]] = &[
    elementwise::RULES,
    activation::RULES,
    linear::RULES,
    pooling::RULES,
    normalization::RULES,
    reduction::RULES,
    attention::RULES,
    quantization::RULES,
    layout::RULES,
    index::RULES,
    image::RULES,
    generate::RULES,
    control::RULES,
    recurrent::RULES,
    sequence::RULES,
    optimizer::RULES,
    learning::RULES,
    misc::RULES,
];
