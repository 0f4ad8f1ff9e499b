//! Split: consecutive pieces along an axis, of stated sizes or as equal as possible (the last one is smaller).

use super::super::operand_lists::{attribute_or_operand, extents};
use crate::registry::Applied;
use crate::{Call, Context, Operand, RuleError, normalize_axis};

pub(super) fn split(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    let sizes = match attribute_or_operand(ctx, call, "split", 1)? {
        Some(sizes) => extents(&sizes, "split")?,
        None => equal_sizes(call, shape[axis])?,
    };
    let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if total != Some(shape[axis]) {
        return Err(RuleError::invalid(format!(
            "pieces of sizes {sizes:?} do not make up dimension {axis} of {shape}"
        )));
    }
    let mut start = 0;
    let mut pieces = Vec::with_capacity(sizes.len());
    for size in sizes {
        pieces.push(Operand::Tensor(ctx.slice_axis(x, axis, start, size)?));
        start += size;
    }
    Ok(pieces)
}

/// The sizes of `num_outputs` pieces (or where that is missing, one per result) of an axis.
fn equal_sizes(call: &Call<'_>, extent: usize) -> Result<Vec<usize>, RuleError> {
    let results = call.node.outputs.len();
    let (count, must_divide) = match call.int("num_outputs")? {
        Some(count) => (usize::try_from(count).unwrap_or(0), false),
        None => (results, true),
    };
    if count == 0 || count != results || (must_divide && !extent.is_multiple_of(count)) {
        return Err(RuleError::invalid(format!(
            "an axis of extent {extent} in {count} pieces, {results} results"
        )));
    }
    let size = extent.div_ceil(count);
    Ok((0..count).map(|piece| size.min(extent.saturating_sub(piece * size))).collect())
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn the_last_piece_is_smaller() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let pieces = apply("Split", 18).floats(&[5], &x).results(3).with("num_outputs", Attribute::Int(3));
        let pieces: Vec<_> = pieces.run().expect("valid").iter().map(|piece| piece.to_f64()).collect();
        assert_eq!(pieces, [vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0]]);
    }

    #[test]
    fn sizes_must_make_up_the_axis() {
        let x = [1.0, 2.0, 3.0];
        assert!(apply("Split", 13).floats(&[3], &x).ints(&[1, 1]).results(2).run().is_err());
        assert!(apply("Split", 13).floats(&[3], &x).results(2).run().is_err());
        let with_empty = apply("Split", 13).floats(&[3], &x).ints(&[3, 0]).results(2).run();
        assert_eq!(with_empty.expect("valid")[1].shape()[..], [0]);
    }
}
