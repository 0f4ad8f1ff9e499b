//! The injective and row templates at adversarial shapes: every schedule and target through the interpreter of
//! thread programs, which checks bounds, races and undefined scratch, against the reference interpreter.

mod support;

use orch_ir::{DType, ReduceOp};
use orch_tile::target::{X86_64_V3, X86_64_V4};
use orch_tile::templates::row;
use support::{G, cases};

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

/// A reduction of columns.
fn columns(op: ReduceOp, shape: [usize; 2]) -> G {
    let mut g = G::new();
    let x = g.input(DType::F32, &shape);
    let y = g.reduce(op, x, &[0]);
    g.output(y);
    g
}

/// Terms that lie pages apart are read in pieces as long as there are registers for.
#[test]
fn columns_of_long_rows() {
    for shape in [[40, 1024], [33, 1100], [7, 5000]] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin { last: true }] {
            columns(op, shape).check_lowering();
        }
    }
    for (target, length, vectors) in
        [(&X86_64_V4, 1024, 16), (&X86_64_V3, 1024, 8), (&X86_64_V4, 1023, 4), (&X86_64_V3, 1023, 4)]
    {
        let block = columns(ReduceOp::Sum, [100, length]).build().expect("a kernel");
        let schedule = row::schedules(&block, target).swap_remove(0);
        assert_eq!(schedule.vectors, vectors, "{length} on {}", target.name);
    }
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
