//! NonZero: the coordinates of all elements that are not 0, `[rank, count]`, of an operand that is known when
//! compiling.

use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::Tensor;

pub(super) fn non_zero(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let value = ctx.constant_operand(call, 0, "X")?;
    let (shape, strides) = (value.shape(), value.shape().strides());
    let places: Vec<usize> =
        value.to_f64().iter().enumerate().filter(|(_, element)| **element != 0.0).map(|(at, _)| at).collect();
    let coordinates = (0..shape.rank())
        .flat_map(|dim| {
            places.iter().map(|place| (place / strides[dim] % shape[dim]) as i64).collect::<Vec<_>>()
        })
        .collect();
    one(ctx.tensor(Tensor::from_vec([shape.rank(), places.len()], coordinates)))
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;

    #[test]
    fn coordinates_are_in_row_major_order() {
        let call = apply("NonZero", 13).floats(&[2, 2], &[1.0, 0.0, 3.0, 4.0]);
        assert_eq!(call.first(), (vec![2, 3], vec![0.0, 1.0, 1.0, 0.0, 0.0, 1.0]));
        assert_eq!(apply("NonZero", 13).floats(&[0, 2], &[]).first().0, [2, 0]);
    }
}
