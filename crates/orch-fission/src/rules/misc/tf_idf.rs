//! TfIdfVectorizer: how often each n-gram of a pool occurs in each row of integers, weighted.
//!
//! The items of an n-gram may be apart by up to `max_skip_count` others, equally many between all of them.

use super::super::operand_lists::{extent, extents};
use crate::registry::{Applied, one};
use crate::rules::index::select_along;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, ScalarFn, Tensor, TensorId};

/// The n-grams of one length: their items one after the other.
struct Grams {
    length: usize,
    items: Vec<i64>,
}

/// The most items that an n-gram may skip: each distance is counted by primitives of its own.
const MAX_SKIPS: usize = 256;

pub(super) fn tf_idf_vectorizer(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let (rows, columns) = match shape[..] {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        _ => return Err(RuleError::invalid(format!("an operand of shape {shape}, expected [c] or [n, c]"))),
    };
    let skips = extent(call.int_or("max_skip_count", 0)?, "max_skip_count")?;
    if skips > MAX_SKIPS {
        return Err(RuleError::unsupported(format!("max_skip_count = {skips}")));
    }
    let shortest = extent(call.int_or("min_gram_length", 1)?, "min_gram_length")?;
    let longest = extent(call.int_or("max_gram_length", 1)?, "max_gram_length")?;
    let x = ctx.cast(x, DType::I64)?;
    let x = ctx.reshape(x, [rows, 1, columns])?;
    let mut counts = Vec::new();
    for grams in pool(call)? {
        let count = if (shortest..=longest).contains(&grams.length) {
            occurrences(ctx, x, &grams, skips)?
        } else {
            ctx.full(DType::F32, 0.0, &[rows, grams.items.len() / grams.length].into())?
        };
        counts.push(count);
    }
    let counts = ctx.concat(&counts, 1)?;
    let weighted = weighted(ctx, call, counts)?;
    let y = in_result_order(ctx, call, weighted)?;
    one(if shape.rank() == 1 { ctx.reshape(y, [ctx.shape(y)[1]])? } else { y })
}

/// The n-grams that are counted, by length.
fn pool(call: &Call<'_>) -> Result<Vec<Grams>, RuleError> {
    let pool = call.ints("pool_int64s")?.ok_or_else(|| RuleError::unsupported("n-grams of strings"))?;
    let starts = extents(call.ints("ngram_counts")?.unwrap_or(&[]), "ngram_counts")?;
    let broken = || RuleError::invalid(format!("ngram_counts {starts:?} of a pool of {} items", pool.len()));
    let mut all = Vec::new();
    for (position, &start) in starts.iter().enumerate() {
        let end = starts.get(position + 1).copied().unwrap_or(pool.len());
        let items = pool.get(start..end).ok_or_else(broken)?;
        if !items.len().is_multiple_of(position + 1) {
            return Err(broken());
        }
        all.push(Grams { length: position + 1, items: items.to_vec() });
    }
    if all.is_empty() { Err(broken()) } else { Ok(all) }
}

/// How often each n-gram occurs in `x [rows, 1, columns]`: `[rows, n-grams]`.
fn occurrences(
    ctx: &mut Context<'_>,
    x: TensorId,
    grams: &Grams,
    skips: usize,
) -> Result<TensorId, RuleError> {
    let (rows, columns) = (ctx.shape(x)[0], ctx.shape(x)[2]);
    let count = grams.items.len() / grams.length;
    let mut total = ctx.full(DType::F32, 0.0, &[rows, count].into())?;
    // A single item skips nothing.
    let distances = if grams.length == 1 { 1 } else { skips.saturating_add(1) };
    for distance in 1..=distances {
        let span = (grams.length - 1).saturating_mul(distance);
        let Some(positions) = columns.checked_sub(span).filter(|&positions| positions > 0) else { break };
        let mut matches = None;
        for item in 0..grams.length {
            let own: Vec<i64> = grams.items.iter().skip(item).step_by(grams.length).copied().collect();
            let own = ctx.tensor(Tensor::from_vec([count, 1], own));
            let here = ctx.slice_axis(x, 2, item * distance, positions)?;
            let equal = ctx.compare(CompareFn::Eq, here, own)?;
            matches = Some(match matches {
                None => equal,
                Some(others) => ctx.map(ScalarFn::Binary(BinaryFn::And), &[others, equal])?,
            });
        }
        let matches = matches.ok_or_else(|| RuleError::invalid("n-grams of no items"))?;
        let ones = ctx.cast(matches, DType::F32)?;
        let found = ctx.reduce(ReduceOp::Sum, ones, &[2])?;
        total = ctx.add(total, found)?;
    }
    Ok(total)
}

/// Counts as the attribute `mode` says.
fn weighted(ctx: &mut Context<'_>, call: &Call<'_>, counts: TensorId) -> Result<TensorId, RuleError> {
    let weights = match call.floats("weights")? {
        Some(weights) if weights.len() == ctx.shape(counts)[1] => {
            Some(ctx.tensor(Tensor::from_vec([weights.len()], weights.to_vec())))
        }
        Some(weights) => {
            return Err(RuleError::invalid(format!(
                "{} weights for counts {}",
                weights.len(),
                ctx.shape(counts)
            )));
        }
        None => None,
    };
    let counts = match call.text_or("mode", "TF")? {
        "TF" => return Ok(counts),
        "IDF" => ctx.binary_scalar(BinaryFn::Min, counts, 1.0)?,
        "TFIDF" => counts,
        other => return Err(RuleError::invalid(format!("mode is {other}, expected TF, IDF or TFIDF"))),
    };
    weights.map_or(Ok(counts), |weights| ctx.mul(counts, weights))
}

/// Columns where `ngram_indexes` puts them, zeros where it puts none.
fn in_result_order(ctx: &mut Context<'_>, call: &Call<'_>, counts: TensorId) -> Result<TensorId, RuleError> {
    // The bound keeps a hostile index from asking for a huge table.
    const MAX_RESULTS: usize = 1 << 26;
    let [rows, grams] = ctx.shape(counts)[..] else {
        return Err(RuleError::invalid("the counts are no matrix"));
    };
    let indices = extents(call.ints("ngram_indexes")?.unwrap_or(&[]), "ngram_indexes")?;
    let results = indices.iter().max().map_or(0, |&last| last.saturating_add(1));
    if indices.len() != grams || results > MAX_RESULTS {
        return Err(RuleError::invalid(format!("{} ngram_indexes for {grams} n-grams", indices.len())));
    }
    let mut columns = vec![grams; results];
    for (gram, &index) in indices.iter().enumerate() {
        if columns[index] != grams {
            return Err(RuleError::unsupported(format!("several n-grams counted as result {index}")));
        }
        columns[index] = gram;
    }
    let none = ctx.full(DType::F32, 0.0, &[rows, 1].into())?;
    let with_none = ctx.concat(&[counts, none], 1)?;
    select_along(ctx, with_none, 1, columns)
}
