//! The published wrong graphs of the normalised attention (QKNorm), written again from what is known of them.
//!
//! The first kernel should give the logits `norm(q) x k`. It gives `(sum over d of norm(q)[i, d]) * k[i / r, j]` instead: a
//! block sees `r` rows of the queries and, because the same grid dimension cuts both, one row of the keys. Where heads have
//! one column only, that is the product, and the graphs are right. What follows is a softmax and a product with the
//! normalised values, divided into kernels in many ways. Only the first graph is known in full; the others vary what the
//! published search varies: the place of each norm, of the exponential and of the sum, how blocks' results are put together,
//! and the order of operands.

use super::programs;
use super::saved::{NONE, Saved, SavedBlock, SavedGraph};
use orch_mugraph::MuGraph;
use serde_json::Value;

/// Heads, rows, keys and columns of an attention. The columns divide the rows and the keys.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    pub heads: usize,
    pub rows: usize,
    pub keys: usize,
    pub columns: usize,
}

impl Extents {
    /// The published ones for a batch size.
    pub fn published(batch: usize) -> Extents {
        Extents { heads: 2 * batch, rows: 256, keys: 4096, columns: 64 }
    }

    /// Smaller ones, at which blocks also see four rows of the queries and one of the keys.
    pub fn small(batch: usize) -> Extents {
        Extents { heads: 2 * batch, rows: 64, keys: 128, columns: 16 }
    }

    /// The program that the graphs should compute.
    pub fn program(&self) -> MuGraph {
        let mut graph = MuGraph::new("qknorm");
        let extents = [self.heads, self.rows, self.keys, self.columns];
        let o = programs::attention(&mut graph, extents, true).expect("shapes that suit");
        graph.output("o", o).expect("a tensor of the graph");
        graph
    }
}

/// What the first kernel computes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logits {
    /// The sums of the queries times one row of the keys: the published mistake.
    SumTimesRow,
    /// The product of queries and keys; else the graph is the same.
    Product,
}

/// Where the values are normalised.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ValueNorm {
    FirstKernel,
    FirstKernelAfterLoop,
    SecondKernel,
    SecondKernelAfterLoop,
    PredefinedFirst,
    PredefinedLast,
}

/// Where exponentials are taken, and how the second kernel adds them.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Softmax {
    FirstKernel,
    Predefined,
    SecondKernel,
    /// The second kernel adds after its loop what it accumulated.
    SecondKernelAfterLoop,
}

/// One of the graphs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Form {
    softmax: Softmax,
    value_norm: ValueNorm,
    /// The queries are divided by their norm after what the first kernel adds up.
    norm_last: bool,
    /// The dimension along which the first kernel's results are put together: 2 gives `[heads, 4, 64 * 4096]`.
    joined: i64,
    divides_last: bool,
}

/// All forms; the first is the published first one.
pub fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for joined in [2, 1] {
        for norm_last in [false, true] {
            for value_norm in [
                ValueNorm::FirstKernel,
                ValueNorm::FirstKernelAfterLoop,
                ValueNorm::SecondKernel,
                ValueNorm::SecondKernelAfterLoop,
                ValueNorm::PredefinedFirst,
                ValueNorm::PredefinedLast,
            ] {
                for softmax in [
                    Softmax::Predefined,
                    Softmax::SecondKernel,
                    Softmax::SecondKernelAfterLoop,
                    Softmax::FirstKernel,
                ] {
                    for divides_last in [false, true] {
                        forms.push(Form { softmax, value_norm, norm_last, joined, divides_last });
                    }
                }
            }
        }
    }
    forms
}

impl Form {
    /// The graph in the published form.
    pub fn graph(&self, extents: Extents, logits: Logits) -> Value {
        let Extents { heads, rows, keys, columns } = extents;
        let mut graph = SavedGraph::new(columns);
        let q = graph.input(&[heads, rows, columns]);
        let k = graph.input(&[heads, columns, keys]);
        let v = graph.input(&[heads, keys, columns]);
        let grid = [heads, columns, 1];
        let is_first = self.value_norm == ValueNorm::PredefinedFirst;
        let v = if is_first { graph.op("rms_norm", &[&v]) } else { v };
        let [mut e, v] = self.first_kernel(&mut graph, grid, [&q, &k, &v], logits);
        if self.softmax == Softmax::Predefined {
            e = graph.op("exp", &[&e]);
        }
        let (p, v) = self.second_kernel(&mut graph, grid, &e, &v);
        let is_last = self.value_norm == ValueNorm::PredefinedLast;
        let v = if is_last { graph.op("rms_norm", &[&v]) } else { v };
        let o = graph.op("matmul", &[&p, &v]);
        graph.output(&o)
    }

    /// The logits, or their exponentials, and the values.
    fn first_kernel(
        &self,
        graph: &mut SavedGraph,
        grid: [usize; 3],
        [q, k, v]: [&Saved; 3],
        logits: Logits,
    ) -> [Saved; 2] {
        let mut block = graph.kernel(grid, 1);
        let q = block.load(q, [0, 1, NONE], NONE);
        let k_map = if logits == Logits::SumTimesRow { [0, 1, NONE] } else { [0, NONE, NONE] };
        let k = block.load(k, k_map, NONE);
        let v = block.load(v, [0, 1, NONE], NONE);
        let (row, norm) = if self.norm_last {
            let norm = block.op("accum_red_ld_rms", &[&q]);
            (q, Some(norm))
        } else {
            (block.op("rms_norm", &[&q]), None)
        };
        let e = match logits {
            Logits::SumTimesRow => {
                let k = block.op("accum_nored", &[&k]);
                let sum = block.op("accum_red_ld_sum", &[&row]);
                let sum = norm.map_or_else(|| sum.clone(), |norm| block.op("div", &[&sum, &norm]));
                block.op("mul", &[&k, &sum])
            }
            Logits::Product => {
                let product = block.op("matmul", &[&row, &k]);
                let product = block.op("accum_nored", &[&product]);
                norm.map_or_else(|| product.clone(), |norm| block.op("div", &[&product, &norm]))
            }
        };
        let e = if self.softmax == Softmax::FirstKernel { block.op("exp", &[&e]) } else { e };
        let norms = [ValueNorm::FirstKernel, ValueNorm::FirstKernelAfterLoop];
        let v = accumulated(&mut block, &v, norms.map(|norm| self.value_norm == norm));
        block.store(&e, [0, self.joined, NONE]);
        block.store(&v, [0, self.joined, NONE]);
        block.finish()
    }

    /// The rows of the softmax, and the normalised values.
    fn second_kernel(
        &self,
        graph: &mut SavedGraph,
        grid: [usize; 3],
        e: &Saved,
        v: &Saved,
    ) -> (Saved, Saved) {
        let mut block = graph.kernel(grid, 1);
        let v = block.load(v, [0, self.joined, NONE], NONE);
        let e = block.load(e, [0, self.joined, NONE], NONE);
        let norms = [ValueNorm::SecondKernel, ValueNorm::SecondKernelAfterLoop];
        let v = accumulated(&mut block, &v, norms.map(|norm| self.value_norm == norm));
        let in_loop = if self.softmax == Softmax::SecondKernel { block.op("exp", &[&e]) } else { e };
        let mut e = block.op("accum_nored", &[&in_loop]);
        let sum = if self.softmax == Softmax::SecondKernelAfterLoop {
            e = block.op("exp", &[&e]);
            block.op("reduction_2", &[&e])
        } else {
            block.op("accum_red_ld_sum", &[&in_loop])
        };
        block.store(&v, [0, 1, NONE]);
        if self.divides_last {
            block.store(&e, [0, 1, NONE]);
            block.store(&sum, [0, 1, NONE]);
            let [v, e, sum] = block.finish();
            return (graph.op("div", &[&e, &sum]), v);
        }
        let p = block.op("div", &[&e, &sum]);
        block.store(&p, [0, 1, NONE]);
        let [v, p] = block.finish();
        (p, v)
    }
}

/// A tile after the loop, normalised in it, after it, or not at all.
fn accumulated(block: &mut SavedBlock<'_>, tile: &Saved, [in_loop, after_loop]: [bool; 2]) -> Saved {
    let tile = if in_loop { block.op("rms_norm", &[tile]) } else { tile.clone() };
    let sum = block.op("accum_nored", &[&tile]);
    if after_loop { block.op("rms_norm", &[&sum]) } else { sum }
}
