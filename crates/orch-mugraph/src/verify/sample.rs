//! Random inputs: uniform residues, masks too.

use super::field::Stream;
use super::residues::{Residues, TestBase};
use crate::array::Array;
use crate::graph::MuGraph;
use std::sync::Arc;

/// Draws the inputs of a program. `needs`: which residues of each input are needed.
pub fn sample(
    program: &MuGraph,
    needs: &[(bool, bool)],
    base: &TestBase,
    stream: &mut Stream,
) -> Vec<Residues> {
    let draw = |((id, _, _), &(p, q)): ((crate::TensorId, &str, _), &(bool, bool))| {
        let shape = program.shape(id);
        let mut array = |limit: u64| Arc::new(Array::from_fn(shape, |_| stream.below(limit)));
        let (p, q) = (p.then(|| array(base.p().prime)), q.then(|| array(base.q().prime)));
        Residues { p, q, ..Residues::nothing(shape) }
    };
    program.inputs().zip(needs).map(draw).collect()
}
