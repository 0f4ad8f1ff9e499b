//! The templates for GPUs that are not matrix products, at adversarial shapes: through the interpreter of thread
//! programs, which checks bounds, races, divergence and undefined scratch, against the reference interpreter.

mod support;

use support::cases;
use support::gpu::Sample;

#[test]
fn elementwise() {
    cases::elementwise(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn mixed_types_and_broadcasts() {
    cases::mixed_types_and_broadcasts(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn moved_elements() {
    cases::moved_elements(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn concatenations_and_gathers() {
    cases::concatenations_and_gathers(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn softmax_and_normalisation() {
    cases::softmax_and_normalisation(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn every_reduction_of_every_type() {
    cases::every_reduction_of_every_type(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn long_sums_are_several_chains() {
    cases::long_sums_are_several_chains(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn stages_of_inner_axes() {
    cases::stages_of_inner_axes(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn group_normalisation() {
    cases::group_normalisation(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn pooling() {
    cases::pooling(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn depthwise_and_transposed_convolutions() {
    cases::depthwise_and_transposed_convolutions(&|g| g.check_gpu(Sample::Few));
}

#[test]
fn random_chains() {
    cases::random_chains(&|g| g.check_gpu(Sample::Few));
}
