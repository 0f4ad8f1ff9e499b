//! Host routines: primitives that run through the reference interpreter, between kernels.

use crate::manifest::{Slot, typed};
use orch_compute::Layout;
use orch_interp::{EvalOptions, evaluate, evaluate_node};
use orch_ir::{DType, PrimGraph, PrimOp, Tensor};
use orch_runtime::program::HostRoutine;

/// A primitive graph that is interpreted on tensors in their memory layouts.
pub struct InterpretedPart {
    /// What to compute.
    pub graph: PrimGraph,
    /// How each input lies in memory.
    pub input_layouts: Vec<Layout>,
    /// How each output is to lie in memory.
    pub output_layouts: Vec<Layout>,
    /// The type in which each output is to be stored.
    pub output_dtypes: Vec<DType>,
}

impl InterpretedPart {
    /// The routine of a step: primitives as text, the dimension order of each input and then of each output, and the
    /// slots of these.
    ///
    /// # Errors
    /// If they do not fit each other: a clause about the step.
    pub fn of(graph: &str, layouts: &[Vec<usize>], slots: &[Slot]) -> Result<Self, String> {
        let graph = orch_ir::text::parse(graph)
            .map_err(|error| format!("has a graph that does not parse: {error}"))?;
        let layouts: Option<Vec<Layout>> = layouts.iter().cloned().map(Layout::from_order).collect();
        let mut input_layouts = layouts.ok_or("has a bad layout")?;
        if graph.inputs.len() + graph.outputs.len() != slots.len() {
            return Err("has a graph of other tensors".to_owned());
        }
        if input_layouts.len() != slots.len() {
            return Err("does not name a layout per tensor".to_owned());
        }
        let output_layouts = input_layouts.split_off(graph.inputs.len());
        let orders = input_layouts.iter().chain(&output_layouts).map(|layout| layout.order().len());
        if !orders.eq(slots.iter().map(|slot| slot.shape.len())) {
            return Err("has a layout of another rank than its tensor".to_owned());
        }
        let dtype = |slot: &Slot| DType::from_name(&slot.dtype).ok_or("has a tensor of unknown type");
        let output_dtypes = slots[graph.inputs.len()..].iter().map(dtype).collect::<Result<_, _>>()?;
        Ok(Self { graph, input_layouts, output_layouts, output_dtypes })
    }
}

impl HostRoutine for InterpretedPart {
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let dtypes = self.graph.inputs.iter().map(|(_, input)| self.graph.dtype(*input));
        let logical: Result<Vec<Tensor>, String> = inputs
            .iter()
            .zip(&self.input_layouts)
            .zip(dtypes)
            .map(|((tensor, layout), dtype)| from_layout(&converted(tensor, dtype), layout))
            .collect();
        let results = evaluate(&self.graph, &logical?, &EvalOptions::default()).map_err(|e| e.to_string())?;
        (results.iter().zip(&self.output_layouts).zip(&self.output_dtypes))
            .map(|((tensor, layout), &dtype)| to_layout(&converted(tensor, dtype), layout))
            .collect()
    }
}

/// The bytes of a slot as a tensor of its type and logical shape.
///
/// # Errors
/// If there are not as many as these say.
pub fn tensor_of_slot(slot: &Slot, bytes: Vec<u8>) -> Result<Tensor, String> {
    let (dtype, shape) = typed(&slot.dtype, &slot.shape).map_err(|error| error.to_string())?;
    Tensor::from_bytes(dtype, shape, bytes.into()).map_err(|error| error.to_string())
}

/// A tensor in the type that is computed in, or stored: half precision is widened and rounded here as in kernels.
fn converted(tensor: &Tensor, dtype: DType) -> Tensor {
    if tensor.dtype() == dtype {
        return tensor.clone();
    }
    Tensor::from_f64(dtype, tensor.shape().clone(), &tensor.to_f64())
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
