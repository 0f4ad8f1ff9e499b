//! Sequences and optionals, resolved while compiling: a sequence is a list of tensors whose length is known.

use crate::registry::Rule;

mod construct;
mod element;
mod join;
mod map;
mod optional;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("SequenceEmpty", construct::sequence_empty),
    Rule::onnx("SequenceConstruct", construct::sequence_construct),
    Rule::onnx("SequenceInsert", element::sequence_insert),
    Rule::onnx("SequenceErase", element::sequence_erase),
    Rule::onnx("SequenceAt", element::sequence_at),
    Rule::onnx("SequenceLength", element::sequence_length),
    Rule::onnx("SequenceMap", map::sequence_map),
    Rule::onnx("ConcatFromSequence", join::concat_from_sequence),
    Rule::onnx("SplitToSequence", join::split_to_sequence),
    Rule::onnx("Optional", optional::optional),
    Rule::onnx("OptionalGetElement", optional::optional_get_element),
    Rule::onnx("OptionalHasElement", optional::optional_has_element),
];
