//! Queries, keys and values by heads, without moving data: operands of three dimensions are seen as
//! `[batch, sequence, heads, size]`, of four as `[batch, heads, sequence, size]`, and the products name dimensions
//! by labels. Several query heads may share one key head (grouped query attention), which is then read by all,
//! not copied.

use crate::{Call, Context, RuleError};
use orch_ir::{Shape, TensorId};

const BATCH: u8 = 0;
const KEY_HEAD: u8 = 1;
const GROUP: u8 = 2;
const QUERY: u8 = 3;
const KEY: u8 = 4;
const SIZE: u8 = 5;
const VALUE_SIZE: u8 = 6;

/// Query, key and value of one attention.
pub(super) struct Heads {
    query: TensorId,
    pub key: TensorId,
    pub value: TensorId,
    /// Layout of query and result, and of key and value: `[batch, sequence, heads, size]`?
    query_by_position: bool,
    key_by_position: bool,
    /// Batch, query heads, key heads, query length, key length, query size, value size.
    pub batch: usize,
    pub query_heads: usize,
    key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub size: usize,
    value_size: usize,
}

/// `[batch, sequence, heads size]` as `[batch, sequence, heads, size]`.
pub(super) fn split_heads(ctx: &mut Context<'_>, x: TensorId, heads: usize) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(x);
    if shape.rank() != 3 || heads == 0 || !shape[2].is_multiple_of(heads) {
        return Err(RuleError::invalid(format!("{heads} heads of an operand of shape {shape}")));
    }
    ctx.reshape(x, [shape[0], shape[1], heads, shape[2] / heads])
}

/// A required attribute that counts heads.
pub(super) fn head_count(call: &Call<'_>, name: &str) -> Result<usize, RuleError> {
    let given = call.int(name)?.ok_or_else(|| RuleError::invalid(format!("attribute {name} is missing")))?;
    usize::try_from(given).map_err(|_| RuleError::invalid(format!("{name} is {given}")))
}

impl Heads {
    /// The first three operands, and the keys and values of earlier calls joined before the new ones.
    pub fn read(
        ctx: &mut Context<'_>,
        call: &Call<'_>,
        past: [Option<TensorId>; 2],
    ) -> Result<Self, RuleError> {
        let [mut query, mut key, mut value] = [call.tensor(0)?, call.tensor(1)?, call.tensor(2)?];
        let flat = ctx.rank(query) == 3;
        let mut key_by_position = flat;
        if flat {
            query = split_heads(ctx, query, head_count(call, "q_num_heads")?)?;
            key = split_heads(ctx, key, head_count(call, "kv_num_heads")?)?;
            value = split_heads(ctx, value, head_count(call, "kv_num_heads")?)?;
            if past[0].is_some() || call.wants_output(1) || call.wants_output(2) {
                // Past and present have the other layout.
                key = ctx.transpose(key, &[0, 2, 1, 3])?;
                value = ctx.transpose(value, &[0, 2, 1, 3])?;
                key_by_position = false;
            }
        }
        if let [Some(past_key), Some(past_value)] = past {
            key = ctx.concat(&[past_key, key], 2)?;
            value = ctx.concat(&[past_value, value], 2)?;
        }
        Self::new(ctx, [query, key, value], [flat, key_by_position])
    }

    /// Operands of four dimensions; `by_position` says for query, and for key and value, whether the sequence comes
    /// before the heads.
    pub fn new(
        ctx: &Context<'_>,
        [query, key, value]: [TensorId; 3],
        [query_by_position, key_by_position]: [bool; 2],
    ) -> Result<Self, RuleError> {
        let [q, k, v] = [query, key, value].map(|operand| ctx.shape(operand));
        let expected = || RuleError::invalid(format!("query, key and value have shapes {q}, {k} and {v}"));
        if [&q, &k, &v].iter().any(|shape| shape.rank() != 4) {
            return Err(expected());
        }
        let order = |shape: &Shape, by_position: bool| {
            let [heads, positions] = if by_position { [2, 1] } else { [1, 2] };
            (shape[heads], shape[positions])
        };
        let (query_heads, queries) = order(&q, query_by_position);
        let (key_heads, keys) = order(&k, key_by_position);
        let agree =
            order(&v, key_by_position) == (key_heads, keys) && q[3] == k[3] && q[0] == k[0] && k[0] == v[0];
        if !agree || key_heads == 0 || !query_heads.is_multiple_of(key_heads) {
            return Err(expected());
        }
        Ok(Self {
            query,
            key,
            value,
            query_by_position,
            key_by_position,
            batch: q[0],
            query_heads,
            key_heads,
            queries,
            keys,
            size: q[3],
            value_size: v[3],
        })
    }

    /// Dimensions of head and group in tensors with one entry per query head, with their labels.
    fn grouped(&self) -> (Vec<usize>, Vec<u8>) {
        match self.query_heads / self.key_heads {
            1 => (vec![self.key_heads], vec![KEY_HEAD]),
            group => (vec![self.key_heads, group], vec![KEY_HEAD, GROUP]),
        }
    }

    /// Labels (and extents) of a tensor by query heads, and one inner dimension, in the query's layout.
    fn query_layout(&self, size: usize, label: u8) -> (Vec<usize>, Vec<u8>) {
        let (heads, head_labels) = self.grouped();
        let (queries, query_label) = (vec![self.queries], vec![QUERY]);
        let (middle, labels) = if self.query_by_position {
            ([queries, heads].concat(), [query_label, head_labels].concat())
        } else {
            ([heads, queries].concat(), [head_labels, query_label].concat())
        };
        ([vec![self.batch], middle, vec![size]].concat(), [vec![BATCH], labels, vec![label]].concat())
    }

    /// Labels of key or value.
    fn key_labels(&self, label: u8) -> [u8; 4] {
        if self.key_by_position { [BATCH, KEY, KEY_HEAD, label] } else { [BATCH, KEY_HEAD, KEY, label] }
    }

    /// Labels and extents of the scores.
    fn score_layout(&self) -> (Vec<usize>, Vec<u8>) {
        let (heads, head_labels) = self.grouped();
        let dims = [vec![self.batch], heads, vec![self.queries, self.keys]].concat();
        (dims, [vec![BATCH], head_labels, vec![QUERY, KEY]].concat())
    }

    /// The shape of the scores, `[batch, query heads, queries, keys]`.
    pub fn score_shape(&self) -> Vec<usize> {
        vec![self.batch, self.query_heads, self.queries, self.keys]
    }

    /// `scale query key'`: `[batch, query heads, queries, keys]`. The query alone is scaled, before the product, so
    /// that narrow floats do not overflow.
    pub fn scores(&self, ctx: &mut Context<'_>, scale: f64) -> Result<TensorId, RuleError> {
        let query = ctx.binary_scalar(orch_ir::BinaryFn::Mul, self.query, scale)?;
        let (dims, query_labels) = self.query_layout(self.size, SIZE);
        let query = ctx.reshape(query, dims)?;
        let (_, out) = self.score_layout();
        let scores = ctx.contract(query, self.key, [&query_labels, &self.key_labels(SIZE), &out])?;
        ctx.reshape(scores, self.score_shape())
    }

    /// `weights value` in the layout of the query: `[batch, query heads, queries, value size]`, or, for operands of
    /// three dimensions, `[batch, queries, query heads value size]`.
    pub fn weighted(&self, ctx: &mut Context<'_>, weights: TensorId) -> Result<TensorId, RuleError> {
        let (dims, weight_labels) = self.score_layout();
        let weights = ctx.reshape(weights, dims)?;
        let (_, out) = self.query_layout(self.value_size, VALUE_SIZE);
        let y = ctx.contract(weights, self.value, [&weight_labels, &self.key_labels(VALUE_SIZE), &out])?;
        if self.query_by_position {
            ctx.reshape(y, [self.batch, self.queries, self.query_heads * self.value_size])
        } else {
            ctx.reshape(y, [self.batch, self.query_heads, self.queries, self.value_size])
        }
    }
}
