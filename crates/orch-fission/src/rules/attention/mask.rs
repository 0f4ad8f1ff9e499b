//! Which keys a query attends: the operand `attn_mask`, `is_causal`, sliding windows and the padding that
//! `nonpad_kv_seqlen` tells of, all composed.

use super::heads::Heads;
use crate::build::checked_shape;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, TensorId};

/// The parts of a mask; each broadcasts to `[batch, query heads, queries, keys]`.
pub(super) struct Mask {
    /// True where a key takes part.
    allowed: Option<TensorId>,
    /// What is added to the scores.
    bias: Option<TensorId>,
    /// Whether a query may be left without any key.
    may_hide_all: bool,
}

impl Mask {
    /// Reads the mask of an `Attention`; `past` is the number of keys that came before this call.
    pub fn read(
        ctx: &mut Context<'_>,
        call: &Call<'_>,
        heads: &Heads,
        past: usize,
    ) -> Result<Self, RuleError> {
        let mut mask = Self { allowed: None, bias: None, may_hide_all: false };
        let lengths = call.optional_tensor(6)?;
        mask.restrict_by_position(ctx, call, heads, (past, lengths))?;
        if let Some(operand) = call.optional_tensor(3)? {
            let operand = padded(ctx, call, operand, heads.keys)?;
            mask.may_hide_all = true;
            if ctx.dtype(operand) == DType::Bool {
                mask.restrict(ctx, operand)?;
            } else {
                mask.bias = Some(operand);
            }
        }
        if let Some(lengths) = lengths {
            let lengths = ctx.cast(lengths, DType::I64)?;
            let lengths = ctx.reshape(lengths, [heads.batch, 1, 1, 1])?;
            let keys = ctx.iota(DType::I64, [heads.keys], 0)?;
            let filled = ctx.compare(CompareFn::Lt, keys, lengths)?;
            mask.may_hide_all = true;
            mask.restrict(ctx, filled)?;
        }
        Ok(mask)
    }

    fn restrict(&mut self, ctx: &mut Context<'_>, allowed: TensorId) -> Result<(), RuleError> {
        self.allowed = Some(match self.allowed {
            None => allowed,
            Some(other) => ctx.binary(BinaryFn::And, other, allowed)?,
        });
        Ok(())
    }

    /// `is_causal` and windows: query `i` is at position `p = i + offset` and attends key `j` if
    /// `p - left <= j <= p + right`; causal means that `right` is 0 at most. The offset is the number of past keys,
    /// or with lengths of an external cache `length - queries`.
    fn restrict_by_position(
        &mut self,
        ctx: &mut Context<'_>,
        call: &Call<'_>,
        heads: &Heads,
        (past, lengths): (usize, Option<TensorId>),
    ) -> Result<(), RuleError> {
        let bound = |name| -> Result<Option<i64>, RuleError> {
            let value = call.int_or(name, -1)?;
            if value < -1 {
                return Err(RuleError::invalid(format!("{name} is {value}, expected -1 or more")));
            }
            Ok((value >= 0).then_some(value))
        };
        let (left, right) = (bound("left_window_size")?, bound("right_window_size")?);
        self.may_hide_all |= left.is_some();
        let right = if call.flag_or("is_causal", false)? { Some(0) } else { right };
        if left.is_none() && right.is_none() {
            return Ok(());
        }
        let plane = checked_shape(vec![heads.queries, heads.keys])?;
        let query = ctx.iota(DType::I64, plane.clone(), 0)?;
        let key = ctx.iota(DType::I64, plane, 1)?;
        let position = match lengths {
            Some(lengths) => {
                let lengths = ctx.cast(lengths, DType::I64)?;
                let offset = ctx.binary_scalar(BinaryFn::Sub, lengths, heads.queries as f64)?;
                let offset = ctx.reshape(offset, [heads.batch, 1, 1, 1])?;
                ctx.add(query, offset)?
            }
            None => ctx.binary_scalar(BinaryFn::Add, query, past as f64)?,
        };
        if let Some(right) = right {
            let last = ctx.binary_scalar(BinaryFn::Add, position, right as f64)?;
            let allowed = ctx.compare(CompareFn::Le, key, last)?;
            self.restrict(ctx, allowed)?;
        }
        if let Some(left) = left {
            let first = ctx.binary_scalar(BinaryFn::Sub, position, left as f64)?;
            let allowed = ctx.compare(CompareFn::Ge, key, first)?;
            self.restrict(ctx, allowed)?;
        }
        Ok(())
    }

    /// The scores with the bias added, -inf where a key takes no part.
    pub fn apply(&self, ctx: &mut Context<'_>, scores: TensorId) -> Result<TensorId, RuleError> {
        let mut masked = scores;
        if let Some(bias) = self.bias {
            let bias = ctx.cast(bias, ctx.dtype(scores))?;
            masked = ctx.add(masked, bias)?;
        }
        if let Some(allowed) = self.allowed {
            let hidden = ctx.scalar_like(masked, f64::NEG_INFINITY);
            masked = ctx.select(allowed, masked, hidden)?;
        }
        Ok(masked)
    }

    /// Weights are zero for a query that attends no key, where softmax gives NaN.
    pub fn clear_hidden(&self, ctx: &mut Context<'_>, weights: TensorId) -> Result<TensorId, RuleError> {
        if !self.may_hide_all {
            return Ok(weights);
        }
        let seen = match (self.allowed, self.bias) {
            (Some(allowed), None) => allowed,
            (allowed, Some(bias)) => {
                let finite = {
                    let hidden = ctx.scalar_like(bias, f64::NEG_INFINITY);
                    ctx.compare(CompareFn::Ne, bias, hidden)?
                };
                match allowed {
                    Some(allowed) => ctx.binary(BinaryFn::And, allowed, finite)?,
                    None => finite,
                }
            }
            (None, None) => return Ok(weights),
        };
        let last = ctx.rank(seen) - 1;
        let seen = ctx.reduce_keep(ReduceOp::Max, seen, &[last])?;
        let zero = ctx.scalar_like(weights, 0.0);
        ctx.select(seen, weights, zero)
    }
}

/// A mask with fewer keys than there are hides the rest (since version 24 of the operator set).
fn padded(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    mask: TensorId,
    keys: usize,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(mask);
    let Some((&extent, outer)) = shape.split_last() else {
        return Err(RuleError::invalid("attn_mask is a scalar"));
    };
    if extent >= keys || (extent == 1 && call.opset() < 24) {
        return Ok(mask);
    }
    let hidden = if ctx.dtype(mask) == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
    ctx.pad_axis(mask, outer.len(), [0, keys - extent], hidden)
}
