//! DepthToSpace: `[n, c b b, h, w] -> [n, c, h b, w b]`; SpaceToDepth is its inverse. Mode `DCR` counts the blocks
//! before the channels, `CRD` after.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::TensorId;

pub(super) fn depth_to_space(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, [n, c, h, w], block) = image(ctx, call)?;
    let area = block * block;
    if !c.is_multiple_of(area) {
        return Err(RuleError::invalid(format!("{c} channels in blocks of {block} x {block}")));
    }
    let depth = c / area;
    // To [n, depth, h, block row, w, block column].
    let (split, perm) = match blocks_first(call)? {
        true => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]),
        false => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]),
    };
    let split = ctx.reshape(x, split)?;
    let turned = ctx.transpose(split, &perm)?;
    one(ctx.reshape(turned, [n, depth, h * block, w * block])?)
}

pub(super) fn space_to_depth(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, [n, c, h, w], block) = image(ctx, call)?;
    if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
        return Err(RuleError::invalid(format!("an image of {h} x {w} in blocks of {block} x {block}")));
    }
    let split = ctx.reshape(x, [n, c, h / block, block, w / block, block])?;
    let perm = if blocks_first(call)? { [0, 3, 5, 1, 2, 4] } else { [0, 1, 3, 5, 2, 4] };
    let turned = ctx.transpose(split, &perm)?;
    one(ctx.reshape(turned, [n, c.saturating_mul(block * block), h / block, w / block])?)
}

/// The operand, its shape `[n, c, h, w]`, and the block size.
fn image(ctx: &Context<'_>, call: &Call<'_>) -> Result<(TensorId, [usize; 4], usize), RuleError> {
    // The bound keeps the block's area far from overflow.
    const MAX_BLOCK: usize = 1 << 16;
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let block = call.int("blocksize")?.and_then(|block| usize::try_from(block).ok()).unwrap_or(0);
    match (shape.dims(), block) {
        (&[n, c, h, w], 1..=MAX_BLOCK) => Ok((x, [n, c, h, w], block)),
        _ => Err(RuleError::invalid(format!("blocks of size {block} of a tensor of shape {shape}"))),
    }
}

/// True if the block's row and column count before the channels.
fn blocks_first(call: &Call<'_>) -> Result<bool, RuleError> {
    match call.text_or("mode", "DCR")? {
        "DCR" => Ok(true),
        "CRD" => Ok(false),
        other => Err(RuleError::invalid(format!("mode is {other}, expected DCR or CRD"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn the_two_are_inverse() {
        let values: Vec<f32> = (0..48).map(|value| value as f32).collect();
        for mode in ["DCR", "CRD"] {
            let turn = |op_type, dims: &[usize], values: &[f32]| {
                let call = apply(op_type, 28).floats(dims, values).with("blocksize", Attribute::Int(2));
                call.with("mode", Attribute::String(mode.to_owned())).first()
            };
            let (dims, deep) = turn("SpaceToDepth", &[1, 2, 4, 6], &values);
            assert_eq!(dims, [1, 8, 2, 3]);
            let deep: Vec<f32> = deep.iter().map(|&value| value as f32).collect();
            let (dims, wide) = turn("DepthToSpace", &dims, &deep);
            assert_eq!(dims, [1, 2, 4, 6]);
            assert!(wide.iter().zip(&values).all(|(&got, &want)| got == f64::from(want)));
        }
    }
}
