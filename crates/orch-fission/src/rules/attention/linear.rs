//! LinearAttention: a recurrent state per head, `[key size, value size]`, written and read at each position:
//! `s = exp(decay) s + k (beta (v - s' k))'`, `y = scale q' s`. Which of `decay` and `beta` there are is up to
//! `update_rule`.
//!
//! Everything is computed in f32. A single position is plain primitives, several are a scan.

use super::heads::{head_count, split_heads};
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, OpaqueKind, OpaqueOp, ScanSpec, Shape, TensorId, UnaryFn};

/// The scanned operands: query `[batch, time, key heads, group, size]`, key and value
/// `[batch, time, key heads, size]`, decay and update rate `[batch, time, key heads or 1, size or 1]`.
struct Scanned {
    query: TensorId,
    key: TensorId,
    value: TensorId,
    decay: Option<TensorId>,
    rate: Option<TensorId>,
}

pub(super) fn linear_attention(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (query_heads, key_heads) = (head_count(call, "q_num_heads")?, head_count(call, "kv_num_heads")?);
    if key_heads == 0 || !query_heads.is_multiple_of(key_heads) {
        return Err(RuleError::invalid(format!("{query_heads} query heads share {key_heads} key heads")));
    }
    let dtype = ctx.dtype(call.tensor(0)?);
    let scanned = read(ctx, call, [query_heads, key_heads])?;
    let (q, v) = (ctx.shape(scanned.query), ctx.shape(scanned.value));
    let [batch, time, key_size, value_size] = [q[0], q[1], q[4], v[3]];
    let scale = match call.float_or("scale", 0.0)? {
        0.0 => 1.0 / (key_size as f64).sqrt(),
        scale => scale,
    };
    let state_shape: Shape = crate::build::checked_shape(vec![batch, key_heads, key_size, value_size])?;
    let (state, state_type) = match call.optional_tensor(3)? {
        Some(state) => (ctx.cast(state, DType::F32)?, ctx.dtype(state)),
        None => (ctx.full(DType::F32, 0.0, &state_shape)?, dtype),
    };
    let (state, y) = if time == 1 {
        let now = scanned.map(|x| {
            let mut dims = ctx.shape(x).to_vec();
            dims.remove(1);
            ctx.reshape(x, dims)
        })?;
        step(ctx, state, &now, scale)?
    } else {
        scan(ctx, state, &scanned, scale)?
    };
    let y = ctx.reshape(y, [batch, time, query_heads * value_size])?;
    Ok(vec![ctx.cast(y, dtype)?.into(), ctx.cast(state, state_type)?.into()])
}

/// The operands by heads, in f32.
fn read(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    [query_heads, key_heads]: [usize; 2],
) -> Result<Scanned, RuleError> {
    let (gated, corrected) = match call.text_or("update_rule", "gated_delta")? {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(RuleError::invalid(format!("update_rule is {other}"))),
    };
    if call.operand(4).is_some() != gated || call.operand(5).is_some() != corrected {
        return Err(RuleError::invalid("the operands decay and beta do not fit update_rule"));
    }
    let mut split = |index: usize, heads: Option<usize>| {
        let x = ctx.cast(call.tensor(index)?, DType::F32)?;
        let heads = heads.unwrap_or_else(|| ctx.shape(x).last().copied().unwrap_or(0));
        split_heads(ctx, x, heads)
    };
    let (query, key, value) =
        (split(0, Some(query_heads))?, split(1, Some(key_heads))?, split(2, Some(key_heads))?);
    let decay = if gated { Some(split(4, Some(key_heads))?) } else { None };
    let rate = if corrected { Some(split(5, None)?) } else { None };
    let shape = ctx.shape(query);
    let query = ctx.reshape(query, [shape[0], shape[1], key_heads, query_heads / key_heads, shape[3]])?;
    Ok(Scanned { query, key, value, decay, rate })
}

/// One position: the new state, and what is read, `[batch, key heads, group, value size]`.
fn step(
    ctx: &mut Context<'_>,
    mut state: TensorId,
    now: &Scanned,
    scale: f64,
) -> Result<(TensorId, TensorId), RuleError> {
    const BATCH: u8 = 0;
    const HEAD: u8 = 1;
    const GROUP: u8 = 2;
    const KEY: u8 = 3;
    const VALUE: u8 = 4;
    let state_labels: &[u8] = &[BATCH, HEAD, KEY, VALUE];
    if let Some(decay) = now.decay {
        let factor = ctx.unary(UnaryFn::Exp, decay)?;
        let factor = ctx.unsqueeze(factor, 3)?;
        state = ctx.mul(state, factor)?;
    }
    let mut value = now.value;
    if let Some(rate) = now.rate {
        let known =
            ctx.contract(state, now.key, [state_labels, &[BATCH, HEAD, KEY], &[BATCH, HEAD, VALUE]])?;
        let error = ctx.sub(value, known)?;
        value = ctx.mul(error, rate)?;
    }
    let key = ctx.unsqueeze(now.key, 3)?;
    let value = ctx.unsqueeze(value, 2)?;
    let written = ctx.mul(key, value)?;
    state = ctx.add(state, written)?;
    let query_labels: &[u8] = &[BATCH, HEAD, GROUP, KEY];
    let y = ctx.contract(now.query, state, [query_labels, state_labels, &[BATCH, HEAD, GROUP, VALUE]])?;
    Ok((state, ctx.binary_scalar(BinaryFn::Mul, y, scale)?))
}

/// All positions, along dimension 1.
fn scan(
    ctx: &mut Context<'_>,
    state: TensorId,
    scanned: &Scanned,
    scale: f64,
) -> Result<(TensorId, TensorId), RuleError> {
    let mut body = Context::new("linear_attention", ctx.options);
    let body_state = body.graph.add_input("state", DType::F32, ctx.shape(state));
    let mut operands = vec![state];
    let now = scanned.map(|x| {
        let mut dims = ctx.shape(x).to_vec();
        dims.remove(1);
        operands.push(x);
        Ok(body.graph.add_input(format!("slice_{}", operands.len()), DType::F32, dims))
    })?;
    let (new_state, y) = step(&mut body, body_state, &now, scale)?;
    body.graph.add_output("state", new_state);
    body.graph.add_output("y", y);
    let mut y_shape = body.shape(y).to_vec();
    y_shape.insert(1, ctx.shape(scanned.query)[1]);
    let spec =
        ScanSpec { states: 1, inputs: vec![(1, false); operands.len() - 1], outputs: vec![(1, false)] };
    let results = vec![(DType::F32, ctx.shape(state)), (DType::F32, crate::build::checked_shape(y_shape)?)];
    let kind = OpaqueKind::Scan { body: Box::new(crate::prune::prune(&body.graph)), spec };
    let outputs = ctx.emit_opaque(OpaqueOp { kind, results }, &operands)?;
    Ok((outputs[0], outputs[1]))
}

impl Scanned {
    /// The same with `f` applied to each operand, in order.
    fn map(&self, mut f: impl FnMut(TensorId) -> Result<TensorId, RuleError>) -> Result<Scanned, RuleError> {
        Ok(Scanned {
            query: f(self.query)?,
            key: f(self.key)?,
            value: f(self.value)?,
            decay: self.decay.map(&mut f).transpose()?,
            rate: self.rate.map(&mut f).transpose()?,
        })
    }
}
