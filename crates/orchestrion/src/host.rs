//! Host routines: primitives that run through the reference interpreter, between kernels.

use orch_interp::{EvalOptions, evaluate, evaluate_node};
use orch_ir::{PrimGraph, PrimOp, Tensor};
use orch_runtime::cpu::HostRoutine;
use orch_tile::Layout;

/// A primitive graph that is interpreted on tensors in their memory layouts.
pub struct InterpretedPart {
    /// What to compute.
    pub graph: PrimGraph,
    /// How each input lies in memory.
    pub input_layouts: Vec<Layout>,
    /// How each output is to lie in memory.
    pub output_layouts: Vec<Layout>,
}

impl HostRoutine for InterpretedPart {
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let logical: Result<Vec<Tensor>, String> = inputs
            .iter()
            .zip(&self.input_layouts)
            .map(|(tensor, layout)| from_layout(tensor, layout))
            .collect();
        let results = evaluate(&self.graph, &logical?, &EvalOptions::default()).map_err(|e| e.to_string())?;
        results.iter().zip(&self.output_layouts).map(|(tensor, layout)| to_layout(tensor, layout)).collect()
    }
}

/// The row-major tensor whose elements lie in `layout` in `stored` (which claims to be row-major of that shape).
fn from_layout(stored: &Tensor, layout: &Layout) -> Result<Tensor, String> {
    if layout.is_row_major() {
        return Ok(stored.clone());
    }
    let physical: Vec<usize> = layout.order().iter().map(|&dim| stored.shape()[dim]).collect();
    let mut perm = vec![0; physical.len()];
    for (position, &dim) in layout.order().iter().enumerate() {
        perm[dim] = position;
    }
    transposed(&stored.reshaped(physical), perm)
}

/// A tensor with the elements of `logical` as `layout` stores them, under the logical shape.
fn to_layout(logical: &Tensor, layout: &Layout) -> Result<Tensor, String> {
    if layout.is_row_major() {
        return Ok(logical.clone());
    }
    let stored = transposed(logical, layout.order().to_vec())?;
    Ok(stored.reshaped(logical.shape().clone()))
}

fn transposed(tensor: &Tensor, perm: Vec<usize>) -> Result<Tensor, String> {
    let results = evaluate_node(&PrimOp::Transpose { perm }, &[tensor], &EvalOptions::default());
    let results = results.map_err(|error| error.to_string())?;
    results.into_iter().next().ok_or_else(|| "a transpose has one result".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_round_trip() {
        let logical = Tensor::from_vec([1, 2, 2, 3], (0..12).map(|v| v as f32).collect());
        let layout = Layout::channels_last(4);
        let stored = to_layout(&logical, &layout).unwrap();
        assert_eq!(stored.to_f64()[..4], [0.0, 6.0, 1.0, 7.0]);
        assert_eq!(from_layout(&stored, &layout).unwrap(), logical);
    }
}
