//! Whole rewrites of small graphs, in text.

use orch_interp::{EvalOptions, evaluate};
use orch_ir::Tensor;
use orch_ir::text::{parse, print};
use orch_ir::validate::validate;
use orch_rewrite::{RewriteOptions, rewrite};

/// Rewrites `text`, checks that the result is valid and computes the same, and compares it with `expected`.
fn check(text: &str, expected: &str) {
    let graph = parse(text).expect("a valid graph");
    let (rewritten, report) = rewrite(&graph, &RewriteOptions::default());
    assert_eq!(validate(&rewritten), []);
    let inputs: Vec<Tensor> = graph
        .inputs
        .iter()
        .map(|(_, id)| {
            let shape = graph.shape(*id).clone();
            let values: Vec<f64> =
                (0..shape.elems()).map(|i| ((i * 37 + 11) % 23) as f64 / 8.0 - 1.25).collect();
            Tensor::from_f64(graph.dtype(*id), shape, &values)
        })
        .collect();
    let options = EvalOptions::wide();
    let before = evaluate(&graph, &inputs, &options).expect("evaluates");
    let after = evaluate(&rewritten, &inputs, &options).expect("evaluates");
    for (a, b) in before.iter().zip(&after) {
        assert_eq!(a.shape(), b.shape());
        for (x, y) in a.to_f64().iter().zip(b.to_f64()) {
            assert!((x - y).abs() <= 1e-6 * (1.0 + x.abs()), "{x} became {y}");
        }
    }
    assert_eq!(print(&rewritten).trim(), expected.trim(), "\n{}\n{report}", print(&rewritten));
}

#[test]
fn batch_normalization_folds_into_the_convolution() {
    check(
        r#"graph "bn" {
  input "x" t0: f32[1, 2, 3]
  const t1: f32[2, 2, 1] = [1, 2, 3, 4]
  const t2: f32[2] = [0.5, 2]
  const t3: f32[2] = [1, -1]
  t4: f32[1, 2, 3] = conv t0, t1 kernel=[1] ; from "conv"
  t5: f32[1, 2, 3] = broadcast t2 dims=[1] ; from "bn"
  t6: f32[1, 2, 3] = mul t4, t5 ; from "bn"
  t7: f32[1, 2, 3] = broadcast t3 dims=[1] ; from "bn"
  t8: f32[1, 2, 3] = add t6, t7 ; from "bn"
  output "y" t8
}"#,
        r#"graph "bn" {
  input "x" t0: f32[1, 2, 3]
  const t1: f32[2] = [1, -1]
  const t2: f32[2, 2, 1] = [0.5, 1, 6, 8]
  t3: f32[1, 2, 3] = conv t0, t2 kernel=[1] ; from "conv + bn"
  t4: f32[1, 2, 3] = broadcast t1 dims=[1] ; from "bn"
  t5: f32[1, 2, 3] = add t3, t4 ; from "bn"
  output "y" t5
}"#,
    );
}
