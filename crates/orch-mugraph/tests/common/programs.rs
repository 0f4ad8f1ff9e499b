//! The benchmark programs of the Mirage papers, as graphs of predefined kernels: twelve of arXiv 2405.05751 and six of
//! OSDI'25, with the shapes of the published repository. And two of ours, with rotary position embeddings.

use orch_mugraph::graph::{GraphError, MuGraph, TensorId};
use orch_mugraph::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use orch_mugraph::rational::Rational;

/// A program by name.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, unique.
    pub name: &'static str,
    /// What it computes.
    pub graph: MuGraph,
}

/// All programs for a batch size.
///
/// # Errors
/// If the batch is so large that shapes do not fit; never for small ones.
pub fn programs(batch: usize) -> Result<Vec<Program>, GraphError> {
    let b = batch;
    let mut programs = Vec::new();
    let mut add = |name, build: &dyn Fn(&mut MuGraph) -> Result<TensorId, GraphError>| {
        let mut graph = MuGraph::new(name);
        let result = build(&mut graph)?;
        graph.output("o", result)?;
        programs.push(Program { name, graph });
        Ok::<(), GraphError>(())
    };
    for (name, heads, rows, keys) in [
        ("mha_inc", 32 * b, 16, 4096),
        ("mha_spec", 32 * b, 16, 4096),
        ("mha_prefill", 32 * b, 256, 1024),
        ("gqa_inc", 2 * b, 8, 4096),
        ("gqa_spec", 2 * b, 256, 4096),
        ("gqa_prefill", 2 * b, 256, 4096),
        ("mqa_inc", b, 32, 4096),
        ("mqa_spec", b, 1024, 4096),
        ("mqa_prefill", b, 4096, 4096),
    ] {
        add(name, &|g| attention(g, [heads, rows, keys, 64], false))?;
    }
    add("mlp_adapter", &|g| mlp(g, &[16, 8192], &[8192, 8], &[8, 8192]))?;
    add("moe", &|g| mlp(g, &[8, 8, 4096], &[8, 4096, 4096], &[8, 4096, 4096]))?;
    add("lora", &lora)?;
    add("rope_gqa", &|g| rotary_attention(g, [2 * b, 8, 4096, 64], false))?;
    add("rope_gqa_qk", &|g| rotary_attention(g, [2 * b, 8, 4096, 64], true))?;
    add("rope_gqa_part", &|g| partial_rotary_attention(g, [2 * b, 8, 4096, 64], 16))?;
    add("osdi_gqa", &|g| attention(g, [2 * b, 256, 4096, 64], false))?;
    add("osdi_qknorm", &|g| attention(g, [2 * b, 256, 4096, 64], true))?;
    add("osdi_rmsnorm", &|g| {
        let (x, w) = (g.input("x", &[2 * b, 4096]), g.input("w", &[4096, 6144]));
        let norm = g.op(Op::RmsNorm { eps: Rational::ZERO }, &[x])?;
        g.op(Op::Matmul, &[norm, w])
    })?;
    add("osdi_lora", &lora)?;
    add("osdi_gated_mlp", &|g| {
        let x = g.input("x", &[8, 4096]);
        let (w1, w2) = (g.input("w1", &[4096, 4096]), g.input("w2", &[4096, 4096]));
        let (gate, up) = (g.op(Op::Matmul, &[x, w1])?, g.op(Op::Matmul, &[x, w2])?);
        let gate = g.op(Op::Unary(UnaryFn::Silu), &[gate])?;
        g.op(Op::Binary(BinaryFn::Mul), &[gate, up])
    })?;
    add("osdi_ntrans", &|g| {
        let [h, x, alpha] = ["h", "x", "alpha"].map(|name| g.input(name, &[8 * b, 4096]));
        let norm = g.op(Op::RmsNorm { eps: Rational::ZERO }, &[h])?;
        let sum = g.op(Op::Binary(BinaryFn::Add), &[norm, x])?;
        let step = g.op(Op::Binary(BinaryFn::Mul), &[alpha, sum])?;
        let next = g.op(Op::Binary(BinaryFn::Add), &[x, step])?;
        g.op(Op::RmsNorm { eps: Rational::ZERO }, &[next])
    })?;
    Ok(programs)
}

/// `softmax(q k) v` with its sums spelled out: heads, rows, keys, columns. Optionally `q` and `v` are normalised, which
/// the paper calls QK-norm.
///
/// # Errors
/// Never for extents that fit.
pub fn attention(
    g: &mut MuGraph,
    [heads, rows, keys, columns]: [usize; 4],
    normalised: bool,
) -> Result<TensorId, GraphError> {
    let mut q = g.input("q", &[heads, rows, columns]);
    let k = g.input("k", &[heads, columns, keys]);
    let mut v = g.input("v", &[heads, keys, columns]);
    if normalised {
        q = g.op(Op::RmsNorm { eps: Rational::ZERO }, &[q])?;
        v = g.op(Op::RmsNorm { eps: Rational::ZERO }, &[v])?;
    }
    softmax_product(g, [q, k, v])
}

fn softmax_product(g: &mut MuGraph, [q, k, v]: [TensorId; 3]) -> Result<TensorId, GraphError> {
    let logits = g.op(Op::Matmul, &[q, k])?;
    let e = g.op(Op::Unary(UnaryFn::Exp), &[logits])?;
    let sum = g.op(Op::Reduce { f: ReduceFn::Sum, dim: 2, keep: 1 }, &[e])?;
    let p = g.op(Op::Binary(BinaryFn::Div), &[e, sum])?;
    g.op(Op::Matmul, &[p, v])
}

/// Attention of one new position, with the heads of a group as rows: queries, and optionally keys, are rotated by their
/// positions; the two elements of a pair are in different halves.
///
/// # Errors
/// If the number of columns is odd.
pub fn rotary_attention(
    g: &mut MuGraph,
    [heads, rows, keys, columns]: [usize; 4],
    rotates_keys: bool,
) -> Result<TensorId, GraphError> {
    let q = g.input("q", &[heads, rows, columns]);
    let mut k = g.input("k", &[heads, columns, keys]);
    let v = g.input("v", &[heads, keys, columns]);
    let q = rotary(g, q, ["cos", "sin"], (&[1, 1, columns], 2))?;
    if rotates_keys {
        k = rotary(g, k, ["key_cos", "key_sin"], (&[1, columns, keys], 1))?;
    }
    softmax_product(g, [q, k, v])
}

/// The same with only the first `rotated` columns of queries and keys rotated; the other columns are inputs of their
/// own.
///
/// # Errors
/// If `rotated` is odd or larger than the number of columns.
pub fn partial_rotary_attention(
    g: &mut MuGraph,
    [heads, rows, keys, columns]: [usize; 4],
    rotated: usize,
) -> Result<TensorId, GraphError> {
    let rest =
        columns.checked_sub(rotated).ok_or_else(|| GraphError::new("rest", "more columns than there are"))?;
    let [q, q_rest] =
        [("q", rotated), ("q_rest", rest)].map(|(name, extent)| g.input(name, &[heads, rows, extent]));
    let q = rotary(g, q, ["cos", "sin"], (&[1, 1, rotated], 2))?;
    let q = g.op(Op::Concat { dim: 2 }, &[q, q_rest])?;
    let [k, k_rest] =
        [("k", rotated), ("k_rest", rest)].map(|(name, extent)| g.input(name, &[heads, extent, keys]));
    let k = rotary(g, k, ["key_cos", "key_sin"], (&[1, rotated, keys], 1))?;
    let k = g.op(Op::Concat { dim: 1 }, &[k, k_rest])?;
    let v = g.input("v", &[heads, keys, columns]);
    softmax_product(g, [q, k, v])
}

/// `x * cos + rotate(x) * sin` in pairs of halves along a dimension, with angles of a shape as further inputs.
fn rotary(
    g: &mut MuGraph,
    x: TensorId,
    angles: [&str; 2],
    (shape, dim): (&[usize], usize),
) -> Result<TensorId, GraphError> {
    let [cos, sin] = angles.map(|name| g.input(name, shape));
    let rotated = g.op(Op::Rotate { dim, group: shape[dim] / 2 }, &[x])?;
    let plain = g.op(Op::Binary(BinaryFn::Mul), &[x, cos])?;
    let rotated = g.op(Op::Binary(BinaryFn::Mul), &[rotated, sin])?;
    g.op(Op::Binary(BinaryFn::Add), &[plain, rotated])
}

fn mlp(g: &mut MuGraph, x: &[usize], a: &[usize], b: &[usize]) -> Result<TensorId, GraphError> {
    let (x, a, b) = (g.input("x", x), g.input("a", a), g.input("b", b));
    let hidden = g.op(Op::Matmul, &[x, a])?;
    let hidden = g.op(Op::Unary(UnaryFn::Exp), &[hidden])?;
    g.op(Op::Matmul, &[hidden, b])
}

fn lora(g: &mut MuGraph) -> Result<TensorId, GraphError> {
    let (x, w) = (g.input("x", &[16, 256]), g.input("w", &[256, 4096]));
    let (a, b) = (g.input("a", &[256, 16]), g.input("b", &[16, 4096]));
    let low = g.op(Op::Matmul, &[x, a])?;
    let (low, full) = (g.op(Op::Matmul, &[low, b])?, g.op(Op::Matmul, &[x, w])?);
    g.op(Op::Binary(BinaryFn::Add), &[full, low])
}
