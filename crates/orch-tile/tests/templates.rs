//! The injective and row templates at adversarial shapes: every schedule and target through the interpreter of
//! thread programs, which checks bounds, races and undefined scratch, against the reference interpreter.

mod support;

use support::cases;

#[test]
fn elementwise() {
    cases::elementwise(&|g| g.check_lowering());
}

#[test]
fn mixed_types_and_broadcasts() {
    cases::mixed_types_and_broadcasts(&|g| g.check_lowering());
}

#[test]
fn moved_elements() {
    cases::moved_elements(&|g| g.check_lowering());
}

#[test]
fn concatenations_and_gathers() {
    cases::concatenations_and_gathers(&|g| g.check_lowering());
}

#[test]
fn softmax_and_normalisation() {
    cases::softmax_and_normalisation(&|g| g.check_lowering());
}

#[test]
fn every_reduction_of_every_type() {
    cases::every_reduction_of_every_type(&|g| g.check_lowering());
}

#[test]
fn long_sums_are_several_chains() {
    cases::long_sums_are_several_chains(&|g| g.check_lowering());
}

#[test]
fn stages_of_inner_axes() {
    cases::stages_of_inner_axes(&|g| g.check_lowering());
}

#[test]
fn group_normalisation() {
    cases::group_normalisation(&|g| g.check_lowering());
}

#[test]
fn pooling() {
    cases::pooling(&|g| g.check_lowering());
}

#[test]
fn depthwise_and_transposed_convolutions() {
    cases::depthwise_and_transposed_convolutions(&|g| g.check_lowering());
}

#[test]
fn random_chains() {
    cases::random_chains(&|g| g.check_lowering());
}
