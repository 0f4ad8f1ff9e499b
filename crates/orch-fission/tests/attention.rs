//! Attention against its definition, and what it must not do.

mod common;

use common::{Operator, assert_close, f32s, i64s, numbers, operator};
use orch_ir::Tensor;

/// One row of attention by its definition: scores, softmax over the allowed keys, weighted values.
fn attend(query: &[f64], keys: &[&[f64]], values: &[&[f64]], allowed: &[bool]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let dot = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * scale;
    let powers: Vec<f64> =
        keys.iter().zip(allowed).map(|(key, &allowed)| if allowed { dot(key).exp() } else { 0.0 }).collect();
    let sum: f64 = powers.iter().sum();
    (0..values[0].len())
        .map(|at| powers.iter().zip(values).map(|(power, value)| power * value[at]).sum::<f64>())
        .map(|y| if sum == 0.0 { 0.0 } else { y / sum })
        .collect()
}

/// Attention of `[batch, heads, sequence, size]` operands by its definition; `allowed(query, key)`.
fn by_definition(q: &Tensor, k: &Tensor, v: &Tensor, allowed: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let (qs, ks, vs) = (q.shape(), k.shape(), v.shape());
    let (q_values, k_values, v_values) = (q.to_f64(), k.to_f64(), v.to_f64());
    let group = qs[1] / ks[1];
    let mut result = Vec::new();
    for batch in 0..qs[0] {
        for head in 0..qs[1] {
            let plane = batch * ks[1] + head / group;
            let rows = |values: &[f64], size: usize| -> Vec<Vec<f64>> {
                values.chunks(size).skip(plane * ks[2]).take(ks[2]).map(<[f64]>::to_vec).collect()
            };
            let (keys, values) = (rows(&k_values, ks[3]), rows(&v_values, vs[3]));
            let keys: Vec<&[f64]> = keys.iter().map(Vec::as_slice).collect();
            let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
            for query in 0..qs[2] {
                let at = ((batch * qs[1] + head) * qs[2] + query) * qs[3];
                let seen: Vec<bool> = (0..ks[2]).map(|key| allowed(query, key)).collect();
                result.extend(attend(&q_values[at..at + qs[3]], &keys, &values, &seen));
            }
        }
    }
    result
}

fn attention() -> Operator {
    operator("Attention").opset(24)
}

#[test]
fn heads_in_groups_share_keys_without_a_copy() {
    let (q, k, v) = (numbers(&[2, 6, 3, 4]), numbers(&[2, 2, 5, 4]), numbers(&[2, 2, 5, 7]));
    let attention = attention().input(q.clone()).input(k.clone()).input(v.clone());
    assert_close(&attention.values(), &by_definition(&q, &k, &v, |_, _| true));
    let primitives = attention.primitives();
    assert!(!primitives.contains(&"transpose".to_owned()), "{primitives:?}");
    // Softmax and the scale broadcast; keys and values do not.
    assert_eq!(primitives.iter().filter(|name| *name == "broadcast").count(), 3, "{primitives:?}");
}

#[test]
fn packed_heads_are_read_in_place() {
    let packed = attention().int("q_num_heads", 2).int("kv_num_heads", 1);
    let packed = packed.input(numbers(&[1, 3, 8])).input(numbers(&[1, 5, 4])).input(numbers(&[1, 5, 6]));
    assert!(!packed.primitives().contains(&"transpose".to_owned()));
    assert_eq!(packed.run()[0].shape()[..], [1, 3, 12]);
}

#[test]
fn causal_masks_align_with_the_past() {
    let (q, k, v) = (numbers(&[1, 1, 3, 2]), numbers(&[1, 1, 5, 2]), numbers(&[1, 1, 5, 2]));
    let causal = attention().int("is_causal", 1).input(q.clone()).input(k.clone()).input(v.clone());
    assert_close(&causal.values(), &by_definition(&q, &k, &v, |query, key| key <= query));
    let part = |x: &Tensor, from: usize, to: usize| {
        let values: Vec<f32> = x.to_f64()[2 * from..2 * to].iter().map(|&x| x as f32).collect();
        f32s(&[1, 1, to - from, 2], &values)
    };
    let cached = attention().int("is_causal", 1).outputs(3);
    let cached = cached.input(q.clone()).input(part(&k, 2, 5)).input(part(&v, 2, 5)).absent();
    let results = cached.input(part(&k, 0, 2)).input(part(&v, 0, 2)).run();
    assert_close(&results[0].to_f64(), &by_definition(&q, &k, &v, |query, key| key <= query + 2));
    assert_eq!((&results[1], &results[2]), (&k, &v));
}

#[test]
fn a_query_without_keys_gives_zeros() {
    let (q, k, v) = (numbers(&[1, 1, 2, 2]), numbers(&[1, 1, 2, 2]), numbers(&[1, 1, 2, 2]));
    let mask = Tensor::from_bools([2, 2], &[false, false, true, false]);
    let y = attention().input(q.clone()).input(k.clone()).input(v.clone()).input(mask).values();
    assert_close(&y, &by_definition(&q, &k, &v, |query, key| query == 1 && key == 0));
    let hidden = f32s(&[2, 2], &[f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
    let y = attention().input(q.clone()).input(k.clone()).input(v.clone()).input(hidden).values();
    assert_close(&y, &by_definition(&q, &k, &v, |query, key| query == 1 && key == 0));
}

#[test]
fn windows_and_lengths_restrict_keys() {
    let (q, k, v) = (numbers(&[1, 1, 6, 2]), numbers(&[1, 1, 6, 2]), numbers(&[1, 1, 6, 2]));
    let window = attention().int("left_window_size", 1).int("right_window_size", 2);
    let window = window.input(q.clone()).input(k.clone()).input(v.clone());
    let near = |query: usize, key: usize| query <= key + 1 && key <= query + 2;
    assert_close(&window.values(), &by_definition(&q, &k, &v, near));
    let filled = attention().input(q.clone()).input(k.clone()).input(v.clone()).absent().absent().absent();
    let filled = filled.input(i64s(&[1], &[4]));
    assert_close(&filled.values(), &by_definition(&q, &k, &v, |_, key| key < 4));
}

#[test]
fn operands_that_disagree_are_refused() {
    let attention = || attention().input(numbers(&[1, 3, 2, 4]));
    let heads = attention().input(numbers(&[1, 2, 5, 4])).input(numbers(&[1, 2, 5, 4])).error();
    assert!(heads.contains("[1, 3, 2, 4], [1, 2, 5, 4] and [1, 2, 5, 4]"), "{heads}");
    let past = attention().input(numbers(&[1, 3, 5, 4])).input(numbers(&[1, 3, 5, 4]));
    assert!(past.absent().input(numbers(&[1, 3, 1, 4])).error().contains("together"));
}

#[test]
fn rotations_keep_lengths() {
    let x = numbers(&[1, 2, 3, 8]);
    let angles: Vec<f32> = (0..9).map(|at| at as f32 * 0.3).collect();
    let cache = |f: fn(f32) -> f32| f32s(&[3, 3], &angles.iter().map(|&angle| f(angle)).collect::<Vec<_>>());
    for interleaved in [0, 1] {
        let rotary = operator("RotaryEmbedding")
            .opset(23)
            .int("rotary_embedding_dim", 6)
            .int("interleaved", interleaved);
        let rotary = rotary.input(x.clone()).input(cache(f32::cos)).input(cache(f32::sin));
        let y = rotary.input(i64s(&[1, 3], &[0, 2, 1])).values();
        let x = x.to_f64();
        let pair = |at: usize| if interleaved == 1 { (2 * at, 2 * at + 1) } else { (at, at + 3) };
        for row in 0..6 {
            let position = [0, 2, 1][row % 3];
            for at in 0..3 {
                let (a, b) = (row * 8 + pair(at).0, row * 8 + pair(at).1);
                let (sin, cos) = f64::from(angles[position * 3 + at]).sin_cos();
                assert_close(&[y[a], y[b]], &[x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos]);
            }
            assert_close(&y[row * 8 + 6..row * 8 + 8], &x[row * 8 + 6..row * 8 + 8]);
        }
    }
}
