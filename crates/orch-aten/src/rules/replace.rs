//! A tensor with a part replaced: slice_scatter, select_scatter, copy.

use super::view::{insert_unit, selected, sliced};
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, Refusal, Val, invalid, unsupported};
use orch_ir::Tensor;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.slice_scatter.default", "self src dim start end step", slice_scatter)
        .when("step 1, or at most 2^20 positions along the axis"),
    rule("aten.select_scatter.default", "self src dim index", select_scatter),
    rule("aten.copy.default", "self src non_blocking", copy),
];

/// The longest axis along which a part with gaps is replaced: its positions are stored.
const MAX_POSITIONS: usize = 1 << 20;

fn slice_scatter(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (axis, range) = sliced(call, x)?;
    let src = emitter.cast(call.tensor("src")?, x.dtype);
    one(replaced(emitter, x, &src, axis, range)?)
}

fn select_scatter(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (axis, at) = selected(call, x)?;
    let src = emitter.cast(call.tensor("src")?, x.dtype);
    if axis > src.rank() {
        return invalid(format!("{} replaces a part of {}", src.describe(), x.describe()));
    }
    let src = insert_unit(emitter, &src, axis)?;
    one(replaced(emitter, x, &src, axis, (at, 1, 1))?)
}

/// `x` with `count` positions of an axis, from `start` by `step`, taken from `src`.
fn replaced(
    emitter: &mut Emitter,
    x: &Val,
    src: &Val,
    axis: usize,
    (start, step, count): (usize, i64, usize),
) -> Result<Val, Refusal> {
    let mut expected = x.shape.to_vec();
    expected[axis] = count;
    if src.shape[..] != expected[..] {
        return invalid(format!("{} replaces {expected:?} of {}", src.describe(), x.describe()));
    }
    let extent = x.shape[axis];
    if step == 1 {
        let before = emitter.slice(x, axis, (0, 1, start))?;
        let after = emitter.slice(x, axis, (start + count, 1, extent - start - count))?;
        let parts = [before, src.clone(), after].into_iter().filter(|part| part.shape[axis] > 0);
        let parts: Vec<Val> = parts.collect();
        return if parts.is_empty() { Ok(x.clone()) } else { emitter.concat(&parts, axis) };
    }
    if extent > MAX_POSITIONS {
        return unsupported(format!("a part with gaps of an axis of {extent} positions"));
    }
    let mut positions: Vec<i64> = (0..extent as i64).collect();
    for number in 0..count {
        positions[start + number * step as usize] = (extent + number) as i64;
    }
    let joined = emitter.concat(&[x.clone(), src.clone()], axis)?;
    let positions = emitter.table(Tensor::from_vec([extent], positions))?;
    emitter.gather(&joined, &positions, axis)
}

fn copy(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, src) = (call.tensor("self")?, call.tensor("src")?);
    let src = emitter.cast(src, x.dtype);
    one(emitter.expand(&src, &x.shape)?)
}
