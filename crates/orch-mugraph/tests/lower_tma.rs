//! Kernels whose wgmma operands TMA loads compute what their block graphs say; only tensors that a tensor map describes
//! are loaded by TMA.

mod common;

use common::gpu::{check_lowered, rounded};
use common::kernels::{outputs, row_major};
use common::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::graph::Node;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::{MuGraph, Precision, TensorId, VerifyOptions, interpret, print, stabilise};
use orch_thread::OperandPrecision;
use orch_thread::print_thread;
use orch_thread::target::{SM_80, SM_90};

/// Attention in one kernel.
#[derive(Clone, Copy, Debug)]
struct Attention {
    heads: usize,
    rows: usize,
    keys: usize,
    columns: usize,
    /// Blocks along rows and along keys, and iterations.
    row_blocks: usize,
    key_blocks: usize,
    range: usize,
    /// The statement that defines a mask, if there is one.
    mask: Option<&'static str>,
}

const SMALL: Attention = Attention {
    heads: 2,
    rows: 64,
    keys: 256,
    columns: 64,
    row_blocks: 1,
    key_blocks: 1,
    range: 4,
    mask: None,
};

impl Attention {
    /// The statements of the inputs, and the number of the next tensor.
    fn inputs(&self) -> (String, usize) {
        let Attention { heads, rows, keys, columns, .. } = self;
        let mask = self.mask.map_or(String::new(), |mask| format!("t3 = {mask}\n"));
        let text = format!(
            "t0 = input \"q\" [{heads}, {rows}, {columns}]\n t1 = input \"k\" [{heads}, {columns}, {keys}]\n \
             t2 = input \"v\" [{heads}, {keys}, {columns}]\n {mask}"
        );
        (text, if self.mask.is_some() { 4 } else { 3 })
    }

    /// The program of predefined operators.
    fn program(&self) -> MuGraph {
        let (inputs, t) = self.inputs();
        let names: Vec<String> = (t..t + 6).map(|number| format!("t{number}")).collect();
        let [s, m, e, sum, p, o] = [0, 1, 2, 3, 4, 5].map(|at| &names[at]);
        let masked = if self.mask.is_some() { format!("mask {s}, t3") } else { format!("scale(1/2) {s}") };
        valid(&format!(
            "mugraph \"p\" {{\n {inputs} {s} = matmul t0, t1\n {m} = {masked}\n {e} = exp {m}\n {sum} = sum(2) {e}\n \
             {p} = div {e}, {sum}\n {o} = matmul {p}, t2\n output \"o\" {o}\n}}\n"
        ))
    }

    /// In one kernel; with a second one if keys are split over blocks.
    fn fused(&self) -> MuGraph {
        let Attention { heads, row_blocks, key_blocks, range, columns, .. } = self;
        let (inputs, t) = self.inputs();
        let names: Vec<String> = (t..t + 5).map(|number| format!("t{number}")).collect();
        let [sum, o, all, total, result] = [0, 1, 2, 3, 4].map(|at| &names[at]);
        let (mask, masked) = match self.mask {
            Some(_) => ("s3 = load t3 [-, 1, 2] 2\n s4 = matmul s0, s1\n", "mask s4, s3"),
            None => ("s3 = matmul s0, s1\n s4 = scale(1/4) s3\n", "scale(2) s4"),
        };
        valid(&format!(
            "mugraph \"f\" {{\n {inputs} {sum}, {o} = block [{heads}, {row_blocks}, {key_blocks}] loop {range} {{\n \
             s0 = load t0 [0, 1, -] -\n s1 = load t1 [0, -, 2] 2\n s2 = load t2 [0, -, 1] 1\n {mask} \
             s5 = {masked}\n s6 = exp s5\n s7 = sum(2) s6\n s8 = accumulate sum s7\n s9 = matmul s6, s2\n \
             s10 = accumulate sum s9\n store s8 [0, 1, 2]\n store s10 [0, 1, 2]\n }}\n {all} = sum(2) {sum}\n \
             {total} = sum(2, {columns}) {o}\n {result} = div {total}, {all}\n output \"o\" {result}\n}}\n"
        ))
    }
}

/// Runs the kernels of a µGraph, compares, and gives the text of the first one.
fn check(graph: &MuGraph, inputs: &[Array<f64>], stored: &[Stored]) -> String {
    let (factors, limit) = match stored[0].dtype {
        DType::F16 => (OperandPrecision::F16, 1e-2),
        _ => (OperandPrecision::Bf16, 5e-2),
    };
    let mut first = None;
    let expected = interpret(graph, inputs, Precision::F32).unwrap();
    let given = outputs(graph, inputs, stored, |request| {
        let kernel = gpu::lower(request, &SM_90, factors).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)));
        first.get_or_insert_with(|| print_thread(&kernel.program));
        let older = gpu::lower(request, &SM_80, factors).expect("smaller tiles");
        assert!(!print_thread(&older.program).contains("tma_load"));
        kernel
    });
    for (expected, given) in expected.iter().zip(&given) {
        let error = relative_error(expected, given);
        assert!(error < limit, "{factors:?}: {error:e}\n{}", print(graph));
    }
    first.expect("there is a kernel")
}

/// The unstable and the stable form of an attention.
fn forms(attention: &Attention) -> [MuGraph; 2] {
    let fused = attention.fused();
    let stable = stabilise(&attention.program(), &fused, &VerifyOptions::default());
    let stable = stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&fused))).graph;
    [fused, stable]
}

fn count(text: &str, what: &str) -> usize {
    text.lines().filter(|line| line.trim_start().starts_with(what)).count()
}

#[test]
fn attention_loads_keys_and_values_by_tma() {
    for (dtype, attention, slots, is_overlapped) in [
        (DType::F16, SMALL, "of 1 loads", true),
        (DType::BF16, Attention { rows: 128, ..SMALL }, "of 1 loads", true),
        // Two panels of columns, and two TMA tiles of the keys; two panels of both.
        (DType::F16, Attention { heads: 1, columns: 128, ..SMALL }, "of 2 loads", true),
        (DType::F16, Attention { heads: 1, columns: 128, range: 2, ..SMALL }, "of 2 loads", true),
        // Rows that are no multiple of 64, and that blocks share unevenly.
        (DType::F16, Attention { heads: 1, rows: 100, ..SMALL }, "of 1 loads", false),
        (DType::F16, Attention { heads: 1, rows: 200, row_blocks: 3, ..SMALL }, "of 1 loads", false),
        // Keys that are split over blocks, all keys in one iteration, and masks.
        (DType::F16, Attention { key_blocks: 2, range: 2, ..SMALL }, "of 1 loads", true),
        (DType::F16, Attention { keys: 128, range: 1, ..SMALL }, "of 2 loads", false),
        (DType::F16, Attention { mask: Some("causal(192, 1, 64, 256)"), ..SMALL }, "of 1 loads", true),
        (
            DType::F16,
            Attention { heads: 1, mask: Some("below(2, 200, 1, 64, 256)"), ..SMALL },
            "of 1 loads",
            true,
        ),
    ] {
        for graph in forms(&attention) {
            let inputs = rounded(&random_inputs(&graph, 5, 0.3), dtype);
            let mut stored = row_major(&graph, dtype);
            let text = check(&graph, &inputs, &stored);
            assert!(text.contains("tma_load") && text.contains(slots), "{attention:?}\n{text}");
            // Keys and values have an mbarrier wait each, just before their wgmma; values are multiplied one iteration
            // later, those of the last iteration after the loop.
            assert_eq!(count(&text, "tensor_map"), 2, "{text}");
            assert_eq!(text.contains(", async"), is_overlapped, "{attention:?}\n{text}");
            let order: Vec<&str> = (text.lines().map(str::trim_start))
                .filter_map(|line| {
                    ["mbarrier_wait_full", "wgmma ", "wgmma_wait"]
                        .into_iter()
                        .find(|what| line.starts_with(what))
                })
                .collect();
            let product = ["mbarrier_wait_full", "wgmma "];
            let expected = match is_overlapped {
                true => {
                    let inner = [
                        "wgmma ",
                        "mbarrier_wait_full",
                        "wgmma ",
                        "wgmma_wait",
                        "mbarrier_wait_full",
                        "wgmma_wait",
                    ];
                    [&["mbarrier_wait_full"][..], &inner, &product].concat()
                }
                false => [product, product].concat(),
            };
            assert_eq!(order, expected, "{text}");
            // Keys are stored as `[key, channel]`.
            stored[1].strides = vec![attention.columns * attention.keys, 1, attention.columns];
            assert_eq!(count(&check(&graph, &inputs, &stored), "tensor_map"), 2);
        }
    }
}

/// Two warp groups use empty mbarriers, which only the warp that issues TMA waits for; one group, or few stages, use
/// barriers.
#[test]
fn two_warp_groups_use_empty_mbarriers() {
    for (attention, passes) in [
        (Attention { heads: 1, rows: 128, keys: 512, range: 8, ..SMALL }, true),
        (Attention { heads: 1, rows: 256, keys: 512, row_blocks: 2, range: 8, ..SMALL }, true),
        (Attention { heads: 1, rows: 128, keys: 192, range: 3, ..SMALL }, false),
        (Attention { heads: 1, keys: 512, range: 8, ..SMALL }, false),
        (
            Attention {
                heads: 1,
                rows: 128,
                keys: 512,
                range: 8,
                mask: Some("causal(0, 1, 128, 512)"),
                ..SMALL
            },
            true,
        ),
    ] {
        for graph in forms(&attention) {
            let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
            let stored = row_major(&graph, DType::F16);
            check(&graph, &inputs, &stored);
            // CTAs of a cluster would have too few iterations for that.
            let mut text = String::new();
            check_lowered(&graph, &inputs, &stored, 1e-2, |request| {
                let kernel = gpu::lower_as(request, &SM_90, OperandPrecision::F16, MugraphSchedule::PLAIN);
                let kernel = kernel.unwrap_or_else(|e| panic!("{e}\n{}", print(&graph)));
                text = print_thread(&kernel.program);
                kernel
            });
            let looped = text.split("for iteration").nth(1).expect("a loop");
            let inner = looped.split("wgmma_wait").next().expect("products that run on");
            let gates = [
                count(inner, "mbarrier_arrive_empty"),
                count(inner, "mbarrier_wait_empty"),
                count(inner, "barrier"),
            ];
            assert_eq!(gates, if passes { [1, 1, 0] } else { [0, 0, 1] }, "{attention:?}\n{text}");
        }
    }
}

/// Registers keep the rows of one head through the loop. Of two heads of a CTA they are read from shared memory in each iteration: ptxas
/// 13.0 overwrites registers that hold more.
#[test]
fn registers_keep_the_queries_of_one_head() {
    let attention = Attention { heads: 2, ..SMALL };
    for (heads_of_a_cta, keeps) in [(1, true), (2, false)] {
        let [_, graph] = forms(&attention);
        let grid = format!("block [{}, ", attention.heads / heads_of_a_cta);
        let graph = valid(&print(&graph).replace("block [2, ", &grid));
        let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
        let text = check(&graph, &inputs, &row_major(&graph, DType::F16));
        let inner = text.split("for iteration").nth(1).expect("a loop");
        assert_eq!(text.contains("a_held"), keeps, "{text}");
        assert_eq!(inner.contains("ldmatrix"), !keeps, "{text}");
    }
}

/// Where an SM runs one CTA, row sums are computed before the product that they overlap with is waited for; where it runs two,
/// these overlap with each other.
#[test]
fn the_softmax_of_a_cta_alone_is_computed_before_the_wait() {
    let few = Attention { heads: 1, rows: 128, keys: 256, range: 4, ..SMALL };
    let many = Attention { heads: 2 * SM_90.sms, ..few };
    for (attention, is_alone) in [(few, true), (many, false), (Attention { columns: 128, ..many }, true)] {
        let [_, graph] = forms(&attention);
        let stored = row_major(&graph, DType::F16);
        let is_block = |(tensor, node): (TensorId, &Node)| matches!(node, Node::Block(_)).then_some(tensor);
        let kernel = graph.nodes().find_map(is_block).expect("a block");
        let request = Request { graph: &graph, kernel, stored: &stored, name: "kernel" };
        let lowered = gpu::lower_as(&request, &SM_90, OperandPrecision::F16, MugraphSchedule::PLAIN);
        let text = print_thread(&lowered.unwrap_or_else(|e| panic!("{e}\n{}", print(&graph))).program);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let place = lines.iter().position(|line| line.starts_with("compute_first"));
        assert_eq!(place.is_some(), is_alone, "{attention:?}\n{text}");
        assert!(place.is_none_or(|place| lines[place + 1] == "wgmma_wait"), "{text}");
    }
}

/// 16-bit results are stored by whole rows through shared memory, if they are row-major; f32 and column-major ones from
/// registers.
#[test]
fn results_of_16_bits_are_stored_by_rows() {
    for graph in forms(&SMALL) {
        let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
        let mut stored = row_major(&graph, DType::F16);
        let are_whole = |stored: &[Stored]| {
            let text = check(&graph, &inputs, stored);
            text.lines().any(|line| line.trim_start().starts_with("t4[") && line.contains("; 8)] = "))
        };
        assert!(are_whole(&stored));
        // The second result of the first kernel.
        let sums = &mut stored[4];
        sums.strides = vec![SMALL.rows * SMALL.columns, 1, SMALL.rows];
        assert!(!are_whole(&stored));
        stored[4] = Stored::row_major(DType::F32, graph.shape(TensorId(4)));
        assert!(!are_whole(&stored));
    }
}

/// With few queries warps split the keys and use mma on tiles that TMA loads: 1 query, several, more than 16.
#[test]
fn attention_of_few_queries_loads_by_tma_too() {
    for (rows, keys, range) in [(1, 256, 1), (1, 1024, 4), (8, 512, 2), (20, 256, 4), (33, 512, 4)] {
        let attention = Attention { rows, keys, range, ..SMALL };
        for graph in forms(&attention) {
            let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
            let mut stored = row_major(&graph, DType::F16);
            let text = check(&graph, &inputs, &stored);
            assert_eq!(count(&text, "tensor_map"), 2, "{attention:?}\n{text}");
            assert!(!text.contains("wgmma "), "{attention:?}\n{text}");
            stored[1].strides = vec![attention.columns * attention.keys, 1, attention.columns];
            assert_eq!(count(&check(&graph, &inputs, &stored), "tensor_map"), 2);
        }
    }
}

/// Conditional rescaling: maxima stay stale while rows grow little, and are updated where rows grow, fall, or are
/// negative.
#[test]
fn maxima_follow_rows_that_grow() {
    let [unstable, graph] = forms(&SMALL);
    let keys = SMALL.keys;
    let part = |at: usize| at % keys / (keys / SMALL.range);
    let inputs = |key: &dyn Fn(usize, f64) -> f64, query: &dyn Fn(f64) -> f64| {
        let mut inputs = random_inputs(&graph, 5, 0.3);
        inputs[0].data.iter_mut().for_each(|value| *value = query(*value));
        inputs[1].data.iter_mut().enumerate().for_each(|(at, value)| *value = key(at, *value));
        rounded(&inputs, DType::F16)
    };
    let stored = row_major(&graph, DType::F16);
    let plain = |value: f64| value;
    for (what, inputs) in [
        ("grow", inputs(&|at, value| value * [1.0, 20.0, 40.0, 60.0][part(at)], &plain)),
        ("fall", inputs(&|at, value| value * [60.0, 40.0, 20.0, 1.0][part(at)], &plain)),
        ("are negative", inputs(&|at, value| -value.abs() * [8.0, 4.0, 2.0, 1.0][part(at)], &f64::abs)),
    ] {
        let text = check(&graph, &inputs, &stored);
        assert_eq!(count(&text, "exceeds"), 1, "rows {what}: {text}");
    }
    let given = inputs(&|_, value| value, &plain);
    assert!(!check(&unstable, &given, &stored).contains("exceeds"));
    // Squares of exponentials would leave the range of f16.
    let squared = |line: &str| match line.contains("rescaled") {
        true => line.replace(" 1 s", " 2 s"),
        false => line.to_owned(),
    };
    let squared: Vec<String> = print(&graph).lines().map(squared).collect();
    assert!(!check(&valid(&squared.join("\n")), &given, &stored).contains("exceeds"));
}

#[test]
fn tensors_without_a_tensor_map_are_copied_by_cp_async() {
    let [graph, _] = forms(&SMALL);
    let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
    let elems = SMALL.heads * SMALL.keys * SMALL.columns;
    let rows = |line: usize, offset: usize| Stored {
        dtype: DType::F16,
        strides: vec![line * SMALL.keys, line, 1],
        offset,
        elems: SMALL.heads * SMALL.keys * line + offset,
        band: None,
    };
    // Values whose start, or the start of whose rows, TMA does not support; keys may still be loaded by TMA.
    for (values, views) in [(rows(64, 8), 2), (rows(64, 4), 1), (rows(68, 0), 1), (rows(80, 16), 2)] {
        let mut stored = row_major(&graph, DType::F16);
        assert_eq!(stored[2].elems, elems);
        stored[2] = values;
        let text = check(&graph, &inputs, &stored);
        assert_eq!(count(&text, "tensor_map"), views, "{text}");
    }
    // Nor are tensors loaded by TMA that are of another type than the products' operands.
    let mut stored = row_major(&graph, DType::F16);
    for at in [1, 2] {
        stored[at] = Stored::row_major(DType::F32, graph.shape(orch_mugraph::TensorId(at as u32)));
    }
    assert!(!check(&graph, &inputs, &stored).contains("tma_load"));
}

#[test]
fn batched_products_load_by_tma() {
    for (head, body, tma_tiles) in [
        // A B operand for each batch element, in panels.
        (
            "t0 = input \"x\" [2, 64, 64]\n t1 = input \"w\" [2, 64, 128]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n store s2 [0]\n }",
            "mbarriers 1 full of 4 loads",
        ),
        // More rows than a TMA tile may have.
        (
            "t0 = input \"x\" [128, 320]\n t1 = input \"w\" [320, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n store s2 [0]\n }",
            "mbarriers 1 full of 2 loads",
        ),
        // Two operands, one of which is loaded before the loop.
        (
            "t0 = input \"x\" [64, 64]\n t1 = input \"w\" [64, 128]\n",
            "block [1] loop 2 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n s3 = load t1 [-] 0\n \
             s4 = transpose(1, 0) s3\n s5 = matmul s2, s4\n s6 = sum(1) s5\n s7 = accumulate sum s6\n store s7 [0]\n }",
            "of 2 loads",
        ),
    ] {
        let graph = valid(&format!("mugraph \"t\" {{\n {head} t2 = {body}\n output \"o\" t2\n}}\n"));
        for dtype in [DType::F16, DType::BF16] {
            let inputs = rounded(&random_inputs(&graph, 7, 0.2), dtype);
            let text = check(&graph, &inputs, &row_major(&graph, dtype));
            assert!(text.contains(tma_tiles) && text.contains("tma_load"), "{text}");
        }
    }
}
