//! The published saved sets that are right, written again from what is known of them: their programs, how many graphs
//! each has, the first graph's kernels, grids and loops, and what the published search varies (grids, loops, which kernels
//! are predefined, when sums are made). Only the first graphs are the published ones; the others are of the same kinds.

use super::programs;
use super::saved::{NONE, Saved, SavedGraph};
use orch_mugraph::MuGraph;
use serde_json::Value;

/// A saved set and the program that its graphs compute.
pub struct SavedSet {
    pub name: &'static str,
    pub program: MuGraph,
    pub graphs: Vec<Value>,
}

/// A benchmark program.
pub fn program(name: &str, batch: usize) -> MuGraph {
    let programs = programs::programs(batch).expect("small shapes");
    programs.into_iter().find(|program| program.name == name).expect("a known program").graph
}

/// All sets, with as many graphs as the published ones.
pub fn good_sets() -> Vec<SavedSet> {
    let attention = |name, program_name, batch, first: Split, count| {
        let program = program(program_name, batch);
        let graphs = split_attentions(first).into_iter().take(count).map(|form| form.graph(&program));
        SavedSet { name, graphs: graphs.collect(), program }
    };
    vec![
        attention("gqa_bs1", "osdi_gqa", 1, Split::first([2, 8, 16], [2, 16, 1], 1), 28),
        attention("gqa_bs8", "osdi_gqa", 8, Split::first([16, 16, 4], [16, 16, 1], 1), 10),
        attention("mqa_bs1", "mqa_spec", 1, Split::first([1, 8, 16], [1, 128, 1], 1), 12),
        attention("mqa_bs8", "mqa_spec", 8, Split::first([8, 8, 16], [8, 8, 1], 4), 17),
        multi_head(),
        rms_norm("rmsnorm_bs1", 1, (256, 32), 18),
        rms_norm("rmsnorm_bs8", 8, (256, 4), 20),
        rms_norm("rmsnorm_bs16", 16, (64, 32), 26),
        lora(),
        gated_mlp(),
        normalised_transformer(),
    ]
}

/// An attention whose keys are split over blocks, and whose partial sums a second kernel adds and divides.
#[derive(Clone, Copy, PartialEq)]
struct Split {
    /// Heads, splits of the keys, splits of the rows.
    grid: [usize; 3],
    loop_range: usize,
    /// The exponentials are accumulated one by one and added by the second kernel, rather than added in the loop.
    keeps_exponentials: bool,
    second_grid: [usize; 3],
    second_range: usize,
    /// The quotient is a predefined kernel.
    divides_last: bool,
}

impl Split {
    fn first(grid: [usize; 3], second_grid: [usize; 3], second_range: usize) -> Split {
        let (keeps_exponentials, divides_last) = (true, false);
        Split { grid, loop_range: 4, keeps_exponentials, second_grid, second_range, divides_last }
    }

    fn graph(&self, program: &MuGraph) -> Value {
        let (mut graph, [q, k, v]) = with_inputs(program);
        let mut block = graph.kernel(self.grid, self.loop_range);
        let q = block.load(&q, [0, NONE, 1], NONE);
        let k = block.load(&k, [0, 2, NONE], 2);
        let v = block.load(&v, [0, 1, NONE], 1);
        let logits = block.op("matmul", &[&q, &k]);
        let e = block.op("exp", &[&logits]);
        let how = if self.keeps_exponentials { "accum_nored" } else { "accum_red_ld_sum" };
        let sum = block.op(how, &[&e]);
        let product = block.op("matmul", &[&e, &v]);
        let product = block.op("accum_nored", &[&product]);
        block.store(&sum, [0, 2, 1]);
        block.store(&product, [0, 2, 1]);
        let [sum, product] = block.finish();
        let mut block = graph.kernel(self.second_grid, self.second_range);
        let along_loop = if self.second_range > 1 { 2 } else { NONE };
        let sum = block.load(&sum, [0, 1, NONE], along_loop);
        let product = block.load(&product, [0, 1, NONE], along_loop);
        let sum = block.op("accum_red_ld_sum", &[&sum]);
        let product = block.op("accum_redtox_ld_sum", &[&product]);
        if self.divides_last {
            block.store(&product, [0, 1, NONE]);
            block.store(&sum, [0, 1, NONE]);
            let [product, sum] = block.finish();
            let o = graph.op("div", &[&product, &sum]);
            return graph.output(&o);
        }
        let o = block.op("div", &[&product, &sum]);
        block.store(&o, [0, 1, NONE]);
        let [o] = block.finish();
        graph.output(&o)
    }
}

/// The first form and others of its kind, all different.
fn split_attentions(first: Split) -> Vec<Split> {
    let mut forms = vec![first];
    for (splits, row_splits) in [(first.grid[1], first.grid[2]), (16, 8), (4, 16)] {
        for second_range in [1, 4] {
            for loop_range in [4, 16] {
                for (keeps_exponentials, divides_last) in
                    [(true, false), (false, false), (true, true), (false, true)]
                {
                    let grid = [first.grid[0], splits, row_splits];
                    let form =
                        Split { grid, loop_range, keeps_exponentials, second_range, divides_last, ..first };
                    forms.extend((form != first).then_some(form));
                }
            }
        }
    }
    forms
}

/// A graph with the inputs of a program. Sums to some elements keep as many as the last input has columns.
fn with_inputs<const N: usize>(program: &MuGraph) -> (SavedGraph, [Saved; N]) {
    let shapes: Vec<&[usize]> = program.inputs().map(|(id, ..)| program.shape(id)).collect();
    let mut graph = SavedGraph::new(*shapes[N - 1].last().expect("no scalars"));
    let inputs: Vec<Saved> = shapes.iter().map(|shape| graph.input(shape)).collect();
    (graph, inputs.try_into().expect("as many inputs as are taken"))
}

/// Attention of many heads: most graphs leave the first product, or more, to predefined kernels.
fn multi_head() -> SavedSet {
    let program = program("mha_spec", 1);
    let mut graphs = Vec::new();
    for loop_range in [4, 16, 64] {
        for divides_last in [false, true] {
            for exponentials in [Exponentials::Predefined, Exponentials::AfterPredefinedLogits] {
                for row_splits in [1, 2] {
                    graphs.push(one_kernel(&program, (row_splits, loop_range), exponentials, divides_last));
                }
            }
            graphs.push(one_kernel(&program, (1, loop_range), Exponentials::InKernel, divides_last));
        }
        let split = Split { loop_range, ..Split::first([32, 4, 1], [32, 1, 1], 1) };
        graphs.push(split.graph(&program));
    }
    graphs.truncate(21);
    SavedSet { name: "mha_bs1", program, graphs }
}

#[derive(Clone, Copy, PartialEq)]
enum Exponentials {
    Predefined,
    AfterPredefinedLogits,
    InKernel,
}

/// An attention with one kernel of a block graph.
fn one_kernel(
    program: &MuGraph,
    (row_splits, loop_range): (usize, usize),
    exponentials: Exponentials,
    divides_last: bool,
) -> Value {
    let (mut graph, [q, k, v]) = with_inputs(program);
    let heads = program.shapes()[0][0];
    let mut given = None;
    if exponentials != Exponentials::InKernel {
        let logits = graph.op("matmul", &[&q, &k]);
        let is_predefined = exponentials == Exponentials::Predefined;
        given = Some(if is_predefined { graph.op("exp", &[&logits]) } else { logits });
    }
    let mut block = graph.kernel([heads, row_splits, 1], loop_range);
    let e = match given {
        Some(given) => block.load(&given, [0, 1, NONE], 2),
        None => {
            let (q, k) = (block.load(&q, [0, 1, NONE], NONE), block.load(&k, [0, NONE, NONE], 2));
            block.op("matmul", &[&q, &k])
        }
    };
    let v = block.load(&v, [0, NONE, NONE], 1);
    let e = if exponentials == Exponentials::Predefined { e } else { block.op("exp", &[&e]) };
    let sum = block.op("accum_red_ld_sum", &[&e]);
    let product = block.op("matmul", &[&e, &v]);
    let product = block.op("accum_nored", &[&product]);
    let o = if divides_last {
        block.store(&product, [0, 1, NONE]);
        block.store(&sum, [0, 1, NONE]);
        let [product, sum] = block.finish();
        graph.op("div", &[&product, &sum])
    } else {
        let o = block.op("div", &[&product, &sum]);
        block.store(&o, [0, 1, NONE]);
        let [o] = block.finish();
        o
    };
    graph.output(&o)
}

/// RMSNorm and a product: in one kernel that divides last, or with one of the two predefined. The first has this grid
/// and loop.
fn rms_norm(name: &'static str, batch: usize, first: (usize, usize), count: usize) -> SavedSet {
    let program = program("osdi_rmsnorm", batch);
    let sizes = || [256, 128, 64].into_iter().flat_map(|grid| [32, 4, 16, 64].map(|range| (grid, range)));
    let mut graphs = vec![fused_norm(&program, first)];
    graphs.extend(sizes().filter(|size| *size != first).map(|size| fused_norm(&program, size)));
    graphs.push(predefined_product(&program));
    graphs.push(predefined_quotient(&program));
    graphs.extend(sizes().map(|size| predefined_norm(&program, size)));
    graphs.truncate(count);
    SavedSet { name, program, graphs }
}

fn fused_norm(program: &MuGraph, (grid, loop_range): (usize, usize)) -> Value {
    let (mut graph, [x, w]) = with_inputs(program);
    let mut block = graph.kernel([grid, 1, 1], loop_range);
    let (x, w) = (block.load(&x, [NONE; 3], 1), block.load(&w, [1, NONE, NONE], 0));
    let norm = block.op("accum_red_ld_rms", &[&x]);
    let product = block.op("matmul", &[&x, &w]);
    let product = block.op("accum_nored", &[&product]);
    let o = block.op("div", &[&product, &norm]);
    block.store(&o, [1, NONE, NONE]);
    let [o] = block.finish();
    graph.output(&o)
}

fn predefined_norm(program: &MuGraph, (grid, loop_range): (usize, usize)) -> Value {
    let (mut graph, [x, w]) = with_inputs(program);
    let x = graph.op("rms_norm", &[&x]);
    let mut block = graph.kernel([grid, 1, 1], loop_range);
    let (x, w) = (block.load(&x, [NONE; 3], 1), block.load(&w, [1, NONE, NONE], 0));
    let product = block.op("matmul", &[&x, &w]);
    let product = block.op("accum_nored", &[&product]);
    block.store(&product, [1, NONE, NONE]);
    let [o] = block.finish();
    graph.output(&o)
}

fn predefined_product(program: &MuGraph) -> Value {
    let (mut graph, [x, w]) = with_inputs(program);
    let rows = program.shapes()[0][0];
    let mut block = graph.kernel([rows, 1, 1], 1);
    let x = block.load(&x, [0, NONE, NONE], NONE);
    let norm = block.op("rms_norm", &[&x]);
    let norm = block.op("accum_nored", &[&norm]);
    block.store(&norm, [0, NONE, NONE]);
    let [norm] = block.finish();
    let o = graph.op("matmul", &[&norm, &w]);
    graph.output(&o)
}

fn predefined_quotient(program: &MuGraph) -> Value {
    let (mut graph, [x, w]) = with_inputs(program);
    let rows = program.shapes()[0][0];
    let mut block = graph.kernel([rows, 1, 1], 16);
    let tile = block.load(&x, [0, NONE, NONE], 1);
    let norm = block.op("accum_red_ld_rms", &[&tile]);
    block.store(&norm, [0, NONE, NONE]);
    let [norm] = block.finish();
    let product = graph.op("matmul", &[&x, &w]);
    let o = graph.op("div", &[&product, &norm]);
    graph.output(&o)
}

/// `x w + x a b` in one kernel: as two products and a sum, or as a product of concatenations.
fn lora() -> SavedSet {
    let program = program("osdi_lora", 1);
    let graphs = [(64, 1, false), (128, 2, false), (64, 1, true), (128, 2, true)];
    let graphs = graphs.map(|(grid, range, concatenates)| lora_kernel(&program, (grid, range), concatenates));
    SavedSet { name: "lora", graphs: graphs.into(), program }
}

fn lora_kernel(program: &MuGraph, (grid, loop_range): (usize, usize), concatenates: bool) -> Value {
    let (mut graph, [x, w, a, b]) = with_inputs(program);
    let mut block = graph.kernel([grid, 1, 1], loop_range);
    let along = |dim| if loop_range > 1 { dim } else { NONE };
    let x = block.load(&x, [NONE; 3], along(1));
    let w = block.load(&w, [1, NONE, NONE], along(0));
    let a = block.load(&a, [NONE; 3], along(0));
    let b = block.load(&b, [1, NONE, NONE], NONE);
    let low = block.op("matmul", &[&x, &a]);
    let sum = if concatenates {
        block.op("concat_then_matmul", &[&x, &low, &w, &b])
    } else {
        let (low, full) = (block.op("matmul", &[&low, &b]), block.op("matmul", &[&x, &w]));
        block.op("add", &[&full, &low])
    };
    let o = block.op("accum_nored", &[&sum]);
    block.store(&o, [1, NONE, NONE]);
    let [o] = block.finish();
    graph.output(&o)
}

/// The gated MLP: which of its parts are predefined kernels, beside grids and loops.
fn gated_mlp() -> SavedSet {
    let program = program("osdi_gated_mlp", 1);
    let mut graphs = Vec::new();
    for gate in [Gate::PredefinedProduct, Gate::Predefined, Gate::InKernel, Gate::OfOneProduct] {
        for grid in [128, 64, 32, 256] {
            for loop_range in [64, 16] {
                graphs.push(gated(&program, (grid, loop_range), gate));
            }
        }
    }
    SavedSet { name: "gated_mlp", program, graphs }
}

#[derive(Clone, Copy, PartialEq)]
enum Gate {
    /// The last product is a predefined kernel, as in the first published graph.
    PredefinedProduct,
    /// So is the activation.
    Predefined,
    /// All is in one kernel.
    InKernel,
    /// One of the two matrix products is predefined too.
    OfOneProduct,
}

fn gated(program: &MuGraph, (grid, loop_range): (usize, usize), gate: Gate) -> Value {
    let (mut graph, [x, w1, w2]) = with_inputs(program);
    let ready = (gate == Gate::OfOneProduct).then(|| graph.op("matmul", &[&x, &w2]));
    let mut block = graph.kernel([grid, 1, 1], loop_range);
    let x = block.load(&x, [NONE; 3], 1);
    let weights = if ready.is_some() { vec![w1] } else { vec![w1, w2] };
    let mut products = Vec::new();
    for weight in &weights {
        let weight = block.load(weight, [1, NONE, NONE], 0);
        let product = block.op("matmul", &[&x, &weight]);
        products.push(block.op("accum_nored", &[&product]));
    }
    if gate != Gate::Predefined {
        products[0] = block.op("silu", &[&products[0]]);
    }
    if gate == Gate::InKernel {
        products = vec![block.op("mul", &[&products[0], &products[1]])];
    }
    for product in &products {
        block.store(product, [1, NONE, NONE]);
    }
    let (gate_value, up) = match (gate, ready) {
        (Gate::InKernel, _) => {
            let [o] = block.finish();
            return graph.output(&o);
        }
        (_, Some(up)) => {
            let [gate_value] = block.finish();
            (gate_value, up)
        }
        (_, None) => {
            let [gate_value, up] = block.finish();
            (gate_value, up)
        }
    };
    let is_active = gate != Gate::Predefined;
    let gate_value = if is_active { gate_value } else { graph.op("silu", &[&gate_value]) };
    let o = graph.op("mul", &[&gate_value, &up]);
    graph.output(&o)
}

/// The update of the normalised transformer, whose first or last norm may be predefined.
fn normalised_transformer() -> SavedSet {
    let program = program("osdi_ntrans", 1);
    let mut graphs = Vec::new();
    for predefined in [None, Some(Norm::First), Some(Norm::Last)] {
        for grid in [8, 4, 2] {
            graphs.push(normalised(&program, grid, predefined));
        }
    }
    SavedSet { name: "ntrans", program, graphs }
}

#[derive(Clone, Copy, PartialEq)]
enum Norm {
    First,
    Last,
}

fn normalised(program: &MuGraph, grid: usize, predefined: Option<Norm>) -> Value {
    let (mut graph, [h, x, alpha]) = with_inputs(program);
    let is_predefined = |norm| predefined == Some(norm);
    let h = if is_predefined(Norm::First) { graph.op("rms_norm", &[&h]) } else { h };
    let mut block = graph.kernel([grid, 1, 1], 1);
    let [h, x, alpha] = [&h, &x, &alpha].map(|tensor| block.load(tensor, [0, NONE, NONE], NONE));
    let h = if is_predefined(Norm::First) { h } else { block.op("rms_norm", &[&h]) };
    let sum = block.op("add", &[&h, &x]);
    let step = block.op("mul", &[&sum, &alpha]);
    let next = block.op("add", &[&step, &x]);
    let next = if is_predefined(Norm::Last) { next } else { block.op("rms_norm", &[&next]) };
    let next = block.op("accum_nored", &[&next]);
    block.store(&next, [0, NONE, NONE]);
    let [next] = block.finish();
    let next = if is_predefined(Norm::Last) { graph.op("rms_norm", &[&next]) } else { next };
    graph.output(&next)
}
