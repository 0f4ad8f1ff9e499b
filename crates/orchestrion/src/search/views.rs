//! Programs of parts of the graph in memory: the strides of inputs and outputs in tensors that are stored in any order.

use crate::plan::context::PlanContext;
use crate::plan::substitute::{StoredView, StoredViews};
use orch_compute::Layout;
use orch_ir::Shape;
use orch_mugraph::extract::{Region, View, mask_band};
use orch_mugraph::{InputKind, MuGraph};

/// Inputs and output of a region in memory, as [`stored_views`].
pub fn region_views(region: &Region, ctx: PlanContext<'_>) -> Option<StoredViews> {
    stored_views(&region.program, &region.inputs, std::slice::from_ref(&region.output), ctx)
}

/// Inputs and outputs of a program, which are views of the graph's tensors, in memory; `None` if one has no strides there.
pub fn stored_views(
    program: &MuGraph,
    inputs: &[View],
    outputs: &[View],
    ctx: PlanContext<'_>,
) -> Option<StoredViews> {
    let view = |view: &View, tensor| {
        let (shape, layout) = (ctx.graph.shape(view.tensor), ctx.storage.layout(view.tensor));
        in_memory(view, program.shape(tensor), shape, layout)
    };
    let computes_bands = ctx.planner.info().computes_bands;
    let band = |own: &View, tensor, kind| {
        let is_computed = computes_bands && kind == InputKind::Mask;
        is_computed.then(|| mask_band(ctx.graph, own, program.shape(tensor))).flatten()
    };
    let inputs = inputs.iter().zip(program.inputs());
    let inputs: Option<Vec<StoredView>> = inputs
        .map(|(own, (tensor, _, kind))| {
            Some(StoredView { band: band(own, tensor, kind), ..view(own, tensor)? })
        })
        .collect();
    let outputs = outputs.iter().zip(program.outputs()).map(|(own, (_, tensor))| view(own, *tensor));
    Some(StoredViews { inputs: inputs?, outputs: outputs.collect::<Option<_>>()? })
}

/// A view of a tensor, which is stated in row-major order, in the memory order of `layout`; `None` if some dimension of the view
/// has no single stride there.
fn in_memory(view: &View, extents: &[usize], shape: &Shape, layout: &Layout) -> Option<StoredView> {
    let tensor = view.tensor.0;
    if layout.is_row_major() {
        return Some(StoredView { tensor, strides: view.strides.clone(), offset: view.offset, band: None });
    }
    let (logical, memory) = (shape.strides(), layout.strides(shape));
    // Of each dimension the first element, and then the last one that is reached.
    let mut reached: Vec<usize> =
        (0..shape.rank()).map(|dim| view.offset / logical[dim].max(1) % shape[dim].max(1)).collect();
    let offset = reached.iter().zip(&memory).map(|(at, stride)| at * stride).sum();
    let mut strides = Vec::with_capacity(extents.len());
    for (&stride, &extent) in view.strides.iter().zip(extents) {
        if stride == 0 || extent == 1 {
            strides.push(0);
            continue;
        }
        let holds = |&dim: &usize| shape[dim] > 1 && logical[dim] <= stride;
        let dim = (0..shape.rank()).filter(holds).min_by_key(|&dim| stride - logical[dim])?;
        let step = stride / logical[dim];
        reached[dim] += step * (extent - 1);
        // Walks that leave a dimension go on elsewhere in memory.
        if !stride.is_multiple_of(logical[dim]) || reached[dim] >= shape[dim] {
            return None;
        }
        strides.push(step * memory[dim]);
    }
    Some(StoredView { tensor, strides, offset, band: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::TensorId;

    fn seen(strides: &[usize], offset: usize, extents: &[usize], order: &[usize]) -> Option<StoredView> {
        let view = View { tensor: TensorId(0), strides: strides.to_vec(), offset };
        let layout = Layout::from_order(order.to_vec()).expect("an order");
        in_memory(&view, extents, &Shape::from([2, 3, 8]), &layout)
    }

    #[test]
    fn views_follow_the_order_of_memory() {
        let stored = |strides: &[usize], offset| {
            Some(StoredView { tensor: 0, strides: strides.to_vec(), offset, band: None })
        };
        // Rows of 8 lie 6 apart each when the last dimension is outermost.
        let order = [2, 0, 1];
        assert_eq!(seen(&[24, 8, 1], 0, &[2, 3, 8], &order), stored(&[3, 1, 6], 0));
        assert_eq!(seen(&[8, 2], 9, &[2, 3], &order), stored(&[1, 12], 7));
        // Part of a dimension by two; an extent of 1 and a repetition have no stride.
        assert_eq!(seen(&[4, 1, 8, 0], 0, &[2, 4, 1, 5], &order), stored(&[24, 6, 0, 0], 0));
        // Two dimensions as one, and what begins late and leaves its dimension.
        assert_eq!(seen(&[8], 0, &[6], &order), None);
        assert_eq!(seen(&[1], 4, &[5], &order), None);
        assert_eq!(seen(&[8], 0, &[6], &[0, 1, 2]), stored(&[8], 0));
    }
}
