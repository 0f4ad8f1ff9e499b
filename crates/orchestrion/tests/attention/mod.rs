//! A graph of which the superoptimizer finds kernels.

use orch_ir::PrimGraph;
use orch_ir::text::parse;

/// Attention with stable softmax over two heads: rows and keys as given.
pub fn attention(rows: usize, keys: usize) -> PrimGraph {
    let text = format!(
        "graph \"attention\" {{
  input \"q\" t0: f32[2, {rows}, 16]
  input \"k\" t1: f32[2, 16, {keys}]
  input \"v\" t2: f32[2, {keys}, 16]
  t3: f32[2, {rows}, {keys}] = contract t0, t1 labels=\"bmk,bkn->bmn\"
  t4: f32[2, {rows}] = reduce.max t3 axes=[2]
  t5: f32[2, {rows}, {keys}] = broadcast t4 dims=[0, 1]
  t6: f32[2, {rows}, {keys}] = sub t3, t5
  t7: f32[2, {rows}, {keys}] = exp t6
  t8: f32[2, {rows}] = reduce.sum t7 axes=[2]
  t9: f32[2, {rows}, {keys}] = broadcast t8 dims=[0, 1]
  t10: f32[2, {rows}, {keys}] = div t7, t9
  t11: f32[2, {rows}, 16] = contract t10, t2 labels=\"bmk,bkn->bmn\"
  output \"o\" t11
}}
"
    );
    parse(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
}
