//! CumSum and CumProd: sums and products up to each position of an axis, `exclusive` (of what is before) or not, from the end if
//! `reverse`.

use super::super::operand_lists::single_int;
use crate::registry::{Applied, one};
use crate::{Call, Context, normalize_axis};
use orch_ir::{Cumulative, OpaqueKind, OpaqueOp, ReduceOp};

fn cumulative(ctx: &mut Context<'_>, call: &Call<'_>, op: ReduceOp) -> Applied {
    let x = call.tensor(0)?;
    let axis = normalize_axis(single_int(ctx, call, 1, "axis")?, ctx.rank(x))?;
    let (exclusive, reverse) = (call.flag_or("exclusive", false)?, call.flag_or("reverse", false)?);
    let kind = OpaqueKind::Cumulative(Cumulative { axis, op, exclusive, reverse });
    let results = vec![(ctx.dtype(x), ctx.shape(x).clone())];
    one(ctx.emit_opaque(OpaqueOp { kind, results }, &[x])?[0])
}

pub(super) fn sum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    cumulative(ctx, call, ReduceOp::Sum)
}

pub(super) fn product(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    cumulative(ctx, call, ReduceOp::Prod)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    fn running(op_type: &str, exclusive: bool, reverse: bool, values: &[f32]) -> Vec<f64> {
        let call = apply(op_type, 26).floats(&[values.len()], values).on(Tensor::scalar(0i64));
        let call = call.with("exclusive", Attribute::Int(exclusive.into()));
        call.with("reverse", Attribute::Int(reverse.into())).first().1
    }

    #[test]
    fn products_of_any_length() {
        for extent in [0usize, 1, 2, 3, 5, 8, 9] {
            let values: Vec<f32> = (0..extent).map(|at| at as f32 - 2.5).collect();
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let part = |at: usize| match (exclusive, reverse) {
                    (false, false) => &values[..=at],
                    (true, false) => &values[..at],
                    (false, true) => &values[at..],
                    (true, true) => &values[at + 1..],
                };
                let expected: Vec<f64> =
                    (0..extent).map(|at| part(at).iter().map(|&value| f64::from(value)).product()).collect();
                assert_eq!(running("CumProd", exclusive, reverse, &values), expected);
            }
        }
    }

    #[test]
    fn sums_run_from_either_end() {
        let values = [1.0, 2.0, 3.0];
        assert_eq!(running("CumSum", false, false, &values), [1.0, 3.0, 6.0]);
        assert_eq!(running("CumSum", true, true, &values), [5.0, 3.0, 0.0]);
    }

    #[test]
    fn sums_of_any_length() {
        for extent in [0usize, 1, 64, 65, 96, 200, 2100] {
            let values: Vec<f32> = (0..extent).map(|at| (at % 7) as f32 - 2.5).collect();
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut total = 0.0;
                let mut expected: Vec<f64> = (0..extent)
                    .map(|step| {
                        let value = f64::from(values[if reverse { extent - 1 - step } else { step }]);
                        total += value;
                        if exclusive { total - value } else { total }
                    })
                    .collect();
                if reverse {
                    expected.reverse();
                }
                assert_eq!(running("CumSum", exclusive, reverse, &values), expected, "{extent}");
            }
        }
    }
}
