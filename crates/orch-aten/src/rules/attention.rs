//! Scaled dot product attention, whole: `softmax(scale q k^T + mask) v` with its gradient, as PyTorch calls it on CPUs and on GPUs.
//!
//! f16 and bf16 compute in f32 and are rounded once. The second result is `ln sum e^score`, from which the gradient
//! recomputes the weights. A causal mask keeps keys up to the query's own position. A row of which all keys are
//! masked by -inf gives zeros, as eager's flash kernel does.
//!
//! Forward and backward are separate graphs, of which either may stay with eager. So what a call saves for its gradient is what eager's
//! kernel saves, in its shape: `[n, h, l]` of flash attention, `[n, h, l rounded up to 32]` filled with infinity of the efficient one,
//! `[n, h, l, 1]` of cuDNN's. The state of the random generator is read with dropout only: it is zero here.

use super::{Applied, Rule, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, invalid, unsupported};
use orch_ir::{DType, Shape};

/// What eager's kernels do and these do not.
const CONDITION: &str = "no dropout, heads of keys divide those of queries";

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "query key value dropout_p is_causal attn_mask scale",
        forward,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
        backward,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_flash_attention.default",
        "query key value dropout_p is_causal return_debug_mask scale",
        forward_of_gpu,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_efficient_attention.default",
        "query key value attn_bias compute_log_sumexp dropout_p is_causal scale",
        forward_of_gpu,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_cudnn_attention.default",
        "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale",
        forward_of_gpu,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_flash_attention_backward.default",
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset scale",
        backward,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_efficient_attention_backward.default",
        "grad_out_ query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal scale",
        backward_with_bias,
    )
    .when(CONDITION),
    rule(
        "aten._scaled_dot_product_cudnn_attention_backward.default",
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p \
         is_causal scale",
        backward,
    )
    .when(CONDITION),
];

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

/// The output, and per row `[n, h, l, 1]` the maximum, the sum of powers, and what weights were divided by: that sum, or 1 if there is no
/// key.
struct Attended {
    output: Val,
    shift: Val,
    sum: Val,
    divisor: Val,
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
    Ok(Attended { output: emitter.cast(&output, call.dtype()?), shift, sum, divisor })
}

fn forward(emitter: &mut Emitter, call: &Call) -> Applied {
    let Attended { output, shift, sum, .. } = attend(emitter, call)?;
    let log = emitter.unary("Log", &sum);
    let log = emitter.binary("Add", &log, &shift)?;
    let log = emitter.reshape(&log, log.shape[..3].to_vec())?;
    let dtype = call.result(1).map_or(DType::F32, |known| known.0);
    Ok(vec![Some(output), Some(emitter.cast(&log, dtype))])
}

/// The results of eager's kernels on GPUs: the output, what the gradient needs of each row, and others that are only read with dropout.
/// A row without keys has the logarithm zero, from which all its weights come out as zero.
fn forward_of_gpu(emitter: &mut Emitter, call: &Call) -> Applied {
    let Attended { output, shift, divisor, .. } = attend(emitter, call)?;
    let log = emitter.unary("Log", &divisor);
    let log = emitter.binary("Add", &log, &shift)?;
    let mut results = vec![Some(output)];
    for (index, known) in call.results.iter().enumerate().skip(1) {
        results.push(match known {
            None => None,
            Some((dtype, shape)) if index == 1 && shape.elems() > 0 => {
                Some(saved(emitter, &log, *dtype, shape)?)
            }
            Some((dtype, shape)) => Some(emitter.zeros(*dtype, shape)?),
        });
    }
    Ok(results)
}

/// The logarithms `[n, h, l, 1]` in the shape in which a kernel saves them: rows are filled up with infinity.
fn saved(emitter: &mut Emitter, log: &Val, dtype: DType, shape: &Shape) -> Emitted {
    let log = emitter.cast(log, dtype);
    let rows = log.shape[2];
    let [.., width] = shape[..] else { return invalid(format!("{shape} of logarithms")) };
    if shape.rank() != 3 || width <= rows {
        return emitter.reshape(&log, shape.to_vec());
    }
    let log = emitter.reshape(&log, log.shape[..3].to_vec())?;
    let infinity = emitter.scalar(dtype, f64::INFINITY);
    emitter.pad(&log, &[0; 3], &[0, 0, (width - rows) as i64], &infinity)
}

fn backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let Gradients { operands, .. } = gradients(emitter, call, "grad_out")?;
    let dtype = call.dtype()?;
    Ok(operands.map(|value| Some(emitter.cast(&value, dtype))).to_vec())
}

/// The gradient of the mask is that of the scores.
fn backward_with_bias(emitter: &mut Emitter, call: &Call) -> Applied {
    let Gradients { operands, of_scores } = gradients(emitter, call, "grad_out_")?;
    let dtype = call.dtype()?;
    let mut results = operands.map(|value| Some(emitter.cast(&value, dtype))).to_vec();
    results.push(match call.optional_tensor("attn_bias")? {
        Some(bias) if call.flags("grad_input_mask")?.get(3) == Some(&true) => {
            if bias.shape != of_scores.shape {
                return unsupported(format!("the gradient of a mask {}", bias.describe()));
            }
            Some(emitter.cast(&of_scores, bias.dtype))
        }
        _ => None,
    });
    Ok(results)
}

/// Gradients in the type that is computed in.
struct Gradients {
    /// Of query, key and value.
    operands: [Val; 3],
    /// Of the masked scores.
    of_scores: Val,
}

/// With `p = e^(score - ln sum)` and `d = sum_j g_j y_j`: `dv = p^T g`, `ds = p (g v^T - d)`, `dq = scale ds k`,
/// `dk = scale ds^T q`.
fn gradients(emitter: &mut Emitter, call: &Call, gradient: &str) -> Result<Gradients, Refusal> {
    let heads = Heads::read(emitter, call)?;
    let scores = heads.scores(emitter, call)?;
    let [gradient, output, log] = [gradient, "out", "logsumexp"].map(|name| call.float_tensor(name));
    let [gradient, output, log] = [gradient?, output?, log?].map(|value| emitter.cast(value, scores.dtype));
    let rows = scores.shape[2];
    // The efficient kernel fills rows up.
    let log = match log.shape[..] {
        [.., width] if log.rank() == 3 && width > rows => emitter.slice(&log, 2, (0, 1, rows))?,
        _ => log,
    };
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
    let scaled = emitter.binary_scalar("Mul", &of_scores, heads.scale)?;
    let of_query = emitter.matmul(&scaled, &heads.key)?;
    let turned = emitter.transpose_last(&scaled)?;
    let of_key = emitter.matmul(&turned, &heads.query)?;
    let (of_key, of_value) = (heads.summed(emitter, &of_key)?, heads.summed(emitter, &of_value)?);
    Ok(Gradients { operands: [of_query, of_key, of_value], of_scores })
}
