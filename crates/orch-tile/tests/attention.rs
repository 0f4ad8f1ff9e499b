//! The attention template against the reference interpreter, through the interpreter of thread programs.

mod support;

use orch_ir::*;
use support::G;

#[test]
fn show() {
    let mut g = G::new();
    let q = g.input(DType::F32, &[2, 3, 5, 8]);
    let k = g.input(DType::F32, &[2, 3, 7, 8]);
    let v = g.input(DType::F32, &[2, 3, 7, 8]);
    let kt = g.transpose(k, &[0, 1, 3, 2]);
    let s = g.op(PrimOp::Contract(Contract::matmul(2)), &[q, kt]);
    let c = g.fill(0.5, &[2, 3, 5, 7]);
    let s = g.binary(BinaryFn::Mul, s, c);
    let p = g.softmax(s, &[3]);
    let o = g.op(PrimOp::Contract(Contract::matmul(2)), &[p, v]);
    let o = g.transpose(o, &[0, 2, 1, 3]);
    let o = g.reshape(o, &[2, 5, 24]);
    g.output(o);
    g.check();
    match g.build() { Ok(b) => println!("{b}"), Err(e) => println!("ERR {e}") }
}
