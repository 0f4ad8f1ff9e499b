//! Scaled dot product attention, whole: `softmax(scale q k^T + mask) v`, as PyTorch calls it on CPUs, with its gradient, and on GPUs.
//!
//! f16 and bf16 compute in f32 and are rounded once. The second result is `ln sum e^score`, from which the gradient
//! recomputes the weights. A causal mask keeps keys up to the query's own position. A row of which all keys are
//! masked by -inf gives zeros, as eager's flash kernel does.

use super::{Applied, Rule, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, invalid, unsupported};
use orch_ir::DType;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "query key value dropout_p is_causal attn_mask scale",
        forward,
    )
    .when("no dropout, heads of keys divide those of queries"),
    rule(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
        backward,
    )
    .when("no dropout, heads of keys divide those of queries"),
    rule(
        "aten._scaled_dot_product_flash_attention.default",
        "query key value dropout_p is_causal return_debug_mask scale",
        output_only,
    )
    .when(OUTPUT_ONLY),
    rule(
        "aten._scaled_dot_product_efficient_attention.default",
        "query key value attn_bias compute_log_sumexp dropout_p is_causal scale",
        output_only,
    )
    .when(OUTPUT_ONLY),
    rule(
        "aten._scaled_dot_product_cudnn_attention.default",
        "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale",
        output_only,
    )
    .when(OUTPUT_ONLY),
];

/// The condition of calls on GPUs, whose other results are for a gradient that these kernels compute themselves.
const OUTPUT_ONLY: &str = "no dropout, heads of keys divide those of queries, only the first result is used";

/// Operands in the type to compute in.
struct Heads {
    query: Val,
    key: Val,
    value: Val,
    scale: f64,
    /// Heads of queries that share one of keys.
    group: usize,
}

/// Keys or values `[n, g, s, d]` for each head of queries: `group` neighbours `[n, g * group, s, d]` share one.
fn grouped(emitter: &mut Emitter, x: &Val, group: usize) -> Emitted {
    if group == 1 {
        return Ok(x.clone());
    }
    let [n, heads, s, d] = [0, 1, 2, 3].map(|dim| x.shape[dim]);
    let apart = emitter.reshape(x, [n, heads, 1, s, d])?;
    let repeated = emitter.expand(&apart, &[n, heads, group, s, d].into())?;
    emitter.reshape(&repeated, [n, heads * group, s, d])
}

impl Heads {
    fn read(emitter: &mut Emitter, call: &Call) -> Result<Self, Refusal> {
        if call.float_or("dropout_p", 0.0)? != 0.0 {
            return unsupported("attention with dropout");
        }
        let operands = [call.float_tensor("query")?, call.float_tensor("key")?, call.float_tensor("value")?];
        let [query, key, value] = operands;
        let fits = operands.iter().all(|operand| operand.rank() == 4 && operand.dtype == query.dtype)
            && query.shape[0] == key.shape[0]
            && query.shape[3] == key.shape[3]
            && key.shape[..3] == value.shape[..3];
        if !fits {
            let [query, key, value] = operands.map(Val::describe);
            return invalid(format!("attention of {query} to {key} with {value}"));
        }
        if query.shape.elems() == 0 || key.shape.elems() == 0 {
            return unsupported("attention of or to nothing");
        }
        let (heads, of_keys) = (query.shape[1], key.shape[1]);
        if heads % of_keys != 0 {
            return unsupported(format!("{heads} heads of queries and {of_keys} of keys"));
        }
        let scale = call.float_or("scale", (query.shape[3] as f64).powf(-0.5))?;
        let [query, key, value] = operands.map(|operand| emitter.widen(operand));
        let group = heads / of_keys;
        let (key, value) = (grouped(emitter, &key, group)?, grouped(emitter, &value, group)?);
        Ok(Self { query, key, value, scale, group })
    }

    /// Of a gradient per head of queries `[n, h, s, d]` that per head of keys: the sum over those that share one.
    fn summed(&self, emitter: &mut Emitter, gradient: &Val) -> Emitted {
        if self.group == 1 {
            return Ok(gradient.clone());
        }
        let [n, heads, s, d] = [0, 1, 2, 3].map(|dim| gradient.shape[dim]);
        let apart = emitter.reshape(gradient, [n, heads / self.group, self.group, s, d])?;
        Ok(emitter.reduce("ReduceSum", &apart, &[2], false))
    }

    /// `scale q k^T`, masked: `[n, h, l, s]`.
    fn scores(&self, emitter: &mut Emitter, call: &Call) -> Emitted {
        let turned = emitter.transpose_last(&self.key)?;
        let products = emitter.matmul(&self.query, &turned)?;
        let mut scores = emitter.binary_scalar("Mul", &products, self.scale)?;
        let mask = match call.optional_tensor("attn_mask")? {
            None => call.optional_tensor("attn_bias")?,
            mask => mask,
        };
        if let Some(mask) = mask {
            if !mask.dtype.is_float() {
                return unsupported(format!("a mask {}", mask.describe()));
            }
            let mask = emitter.cast(mask, scores.dtype);
            let mask = emitter.expand(&mask, &scores.shape.clone())?;
            scores = emitter.binary("Add", &scores, &mask)?;
        }
        if call.flag_or("is_causal", false)? {
            let (queries, keys) = (scores.shape[2], scores.shape[3]);
            let rows = emitter.iota(queries);
            let rows = emitter.reshape(&rows, [queries, 1])?;
            let columns = emitter.iota(keys);
            let later = emitter.compare("Greater", &columns, &rows)?;
            let lowest = emitter.scalar(scores.dtype, f64::NEG_INFINITY);
            scores = emitter.select(&later, &lowest, &scores)?;
        }
        Ok(scores)
    }
}

/// The output, and per row the maximum and the sum that its weights were divided by.
struct Attended {
    output: Val,
    shift: Val,
    sum: Val,
}

fn attend(emitter: &mut Emitter, call: &Call) -> Result<Attended, Refusal> {
    let heads = Heads::read(emitter, call)?;
    let scores = heads.scores(emitter, call)?;
    let max = emitter.reduce("ReduceMax", &scores, &[3], true);
    // A row without keys has the maximum -inf, of which a difference would be NaN.
    let lowest = emitter.compare_scalar("Equal", &max, f64::NEG_INFINITY)?;
    let zero = emitter.scalar(max.dtype, 0.0);
    let shift = emitter.select(&lowest, &zero, &max)?;
    let shifted = emitter.binary("Sub", &scores, &shift)?;
    let powers = emitter.unary("Exp", &shifted);
    let sum = emitter.reduce("ReduceSum", &powers, &[3], true);
    let one = emitter.scalar(sum.dtype, 1.0);
    let divisor = emitter.select(&lowest, &one, &sum)?;
    let weights = emitter.binary("Div", &powers, &divisor)?;
    let output = emitter.matmul(&weights, &heads.value)?;
    Ok(Attended { output: emitter.cast(&output, call.dtype()?), shift, sum })
}

fn forward(emitter: &mut Emitter, call: &Call) -> Applied {
    let Attended { output, shift, sum } = attend(emitter, call)?;
    let log = emitter.unary("Log", &sum);
    let log = emitter.binary("Add", &log, &shift)?;
    let log = emitter.reshape(&log, log.shape[..3].to_vec())?;
    let dtype = call.result(1).map_or(DType::F32, |known| known.0);
    Ok(vec![Some(output), Some(emitter.cast(&log, dtype))])
}

/// Whoever uses another result finds that it is missing.
fn output_only(emitter: &mut Emitter, call: &Call) -> Applied {
    let Attended { output, .. } = attend(emitter, call)?;
    let others = call.results.iter().skip(1).map(|_| None);
    Ok([Some(output)].into_iter().chain(others).collect())
}

/// With `p = e^(score - ln sum)` and `d = sum_j g_j y_j`: `dv = p^T g`, `ds = p (g v^T - d)`, `dq = scale ds k`,
/// `dk = scale ds^T q`.
fn backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let heads = Heads::read(emitter, call)?;
    let scores = heads.scores(emitter, call)?;
    let [gradient, output, log] = ["grad_out", "out", "logsumexp"].map(|name| call.float_tensor(name));
    let [gradient, output, log] = [gradient?, output?, log?].map(|value| emitter.cast(value, scores.dtype));
    let log = emitter.reshape(&log, [&scores.shape[..3], &[1]].concat())?;
    let shifted = emitter.binary("Sub", &scores, &log)?;
    let powers = emitter.unary("Exp", &shifted);
    // Rows without keys have weights of zero.
    let lowest = emitter.compare_scalar("Equal", &log, f64::NEG_INFINITY)?;
    let zero = emitter.scalar(powers.dtype, 0.0);
    let weights = emitter.select(&lowest, &zero, &powers)?;
    let turned = emitter.transpose_last(&weights)?;
    let of_value = emitter.matmul(&turned, &gradient)?;
    let value = emitter.transpose_last(&heads.value)?;
    let of_weights = emitter.matmul(&gradient, &value)?;
    let products = emitter.binary("Mul", &gradient, &output)?;
    let sum = emitter.reduce("ReduceSum", &products, &[3], true);
    let difference = emitter.binary("Sub", &of_weights, &sum)?;
    let of_scores = emitter.binary("Mul", &weights, &difference)?;
    let of_scores = emitter.binary_scalar("Mul", &of_scores, heads.scale)?;
    let of_query = emitter.matmul(&of_scores, &heads.key)?;
    let turned = emitter.transpose_last(&of_scores)?;
    let of_key = emitter.matmul(&turned, &heads.query)?;
    let (of_key, of_value) = (heads.summed(emitter, &of_key)?, heads.summed(emitter, &of_value)?);
    let dtype = call.dtype()?;
    Ok([of_query, of_key, of_value].map(|value| Some(emitter.cast(&value, dtype))).to_vec())
}
