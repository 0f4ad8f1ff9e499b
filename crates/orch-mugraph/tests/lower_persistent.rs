//! Persistent CTAs compute what their block graphs say: blocks follow each other in a CTA, their loads overlap with the block before.

mod common;

use common::gpu::{error, rounded};
use common::kernels::{outputs, row_major};
use common::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::tiling::indices;
use orch_mugraph::{Band, MuGraph, Node, Precision, TensorId, VerifyOptions, interpret, print, stabilise};
use orch_thread::target::SM_90;
use orch_thread::{GpuTarget, OperandPrecision, print_thread};

/// A GPU of three SMs, each of which runs one CTA at a time.
const SMALL: GpuTarget = GpuTarget { sms: 3, sm_registers: 48 << 10, ..SM_90 };

/// Attention in one kernel, each head of queries by the keys of its group.
#[derive(Clone, Copy, Debug)]
struct Attention {
    heads: usize,
    rows: usize,
    keys: usize,
    columns: usize,
    row_blocks: usize,
    range: usize,
    band: Option<Band>,
}

const PLAIN: Attention =
    Attention { heads: 4, rows: 256, keys: 256, columns: 64, row_blocks: 2, range: 4, band: None };

/// The tensor of the mask.
const MASK: usize = 3;

const CAUSAL: Option<Band> = Some(Band { above: Some(0), below: None });

impl Attention {
    fn inputs(&self) -> String {
        let Attention { heads, rows, keys, columns, band, .. } = self;
        let mask = band.map_or(String::new(), |_| format!("t3 = mask \"m\" [1, {rows}, {keys}]\n"));
        format!(
            "t0 = input \"q\" [{heads}, {rows}, {columns}]\n t1 = input \"k\" [{heads}, {columns}, {keys}]\n \
             t2 = input \"v\" [{heads}, {keys}, {columns}]\n {mask}"
        )
    }

    /// The text with `{n}` the number of the first tensor behind the inputs.
    fn numbered(&self, text: &str) -> MuGraph {
        let first = if self.band.is_some() { 4 } else { 3 };
        valid(
            &(0..6).fold(text.to_owned(), |text, at| {
                text.replace(&format!("u{at}"), &format!("t{}", first + at))
            }),
        )
    }

    fn program(&self) -> MuGraph {
        let masked = if self.band.is_some() { "mask u0, t3" } else { "scale(1/2) u0" };
        self.numbered(&format!(
            "mugraph \"p\" {{\n {} u0 = matmul t0, t1\n u1 = {masked}\n u2 = exp u1\n u3 = sum(2) u2\n u4 = div u2, u3\n \
             u5 = matmul u4, t2\n output \"o\" u5\n}}\n",
            self.inputs()
        ))
    }

    fn stable(&self) -> MuGraph {
        let Attention { heads, row_blocks, range, .. } = self;
        let (mask, masked) = match self.band {
            Some(_) => ("s3 = load t3 [-, 1] 2\n s4 = matmul s0, s1\n", "mask s4, s3"),
            None => ("s3 = scale(1/2) s0\n s4 = matmul s3, s1\n", "scale(1) s4"),
        };
        let fused = self.numbered(&format!(
            "mugraph \"f\" {{\n {} u0 = block [{heads}, {row_blocks}] loop {range} {{\n s0 = load t0 [0, 1] -\n \
             s1 = load t1 [0, -] 2\n s2 = load t2 [0, -] 1\n {mask} s5 = {masked}\n s6 = exp s5\n \
             s7 = sum(2) s6\n s8 = accumulate sum s7\n s9 = matmul s6, s2\n s10 = accumulate sum s9\n \
             s11 = div s10, s8\n store s11 [0, 1]\n }}\n output \"o\" u0\n}}\n",
            self.inputs()
        ));
        let stable = stabilise(&self.program(), &fused, &VerifyOptions::default());
        stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&fused))).graph
    }
}

impl Attention {
    /// Random inputs, and the mask of the band.
    fn values(&self, graph: &MuGraph) -> Vec<Array<f64>> {
        let mut inputs = random_inputs(graph, 11, 0.3);
        if let Some(band) = self.band {
            let kept = |index: Vec<usize>| f64::from(u8::from(band.contains(index[1], index[2])));
            inputs[MASK].data = indices(&[1, self.rows, self.keys]).map(kept).collect();
        }
        inputs
    }
}

fn request<'a>(graph: &'a MuGraph, stored: &'a [Stored]) -> Request<'a> {
    let is_block = |(tensor, node): (TensorId, &Node)| matches!(node, Node::Block(_)).then_some(tensor);
    let kernel = graph.nodes().find_map(is_block).expect("a block");
    Request { graph, kernel, stored, name: "kernel" }
}

/// Lowers a kernel to persistent CTAs, compares what it computes, and gives its text.
fn check(attention: Attention, target: &GpuTarget) -> String {
    let graph = attention.stable();
    let inputs = rounded(&attention.values(&graph), DType::F16);
    let mut stored = row_major(&graph, DType::F16);
    if attention.band.is_some() {
        stored[MASK] = Stored {
            band: attention.band,
            ..Stored::row_major(DType::Bool, graph.shape(TensorId(MASK as u32)))
        };
    }
    check_graph(&graph, &inputs, &stored, target)
}

/// The same of a graph.
fn check_graph(graph: &MuGraph, inputs: &[Array<f64>], stored: &[Stored], target: &GpuTarget) -> String {
    let schedules = gpu::schedules(&request(graph, stored), target, OperandPrecision::F16);
    assert_eq!(schedules.unwrap()[0], MugraphSchedule::PERSISTENT, "{}", print(graph));
    let mut text = String::new();
    let expected = interpret(graph, inputs, Precision::F32).unwrap();
    let given = outputs(graph, inputs, stored, |request| {
        let kernel = gpu::lower(request, target, OperandPrecision::F16);
        let kernel = kernel.unwrap_or_else(|e| panic!("{e}\n{}", print(graph)));
        text = print_thread(&kernel.program);
        assert_eq!(kernel.program.tasks, target.sms, "{text}");
        kernel
    });
    let error = error(&expected[0], &given[0]);
    assert!(error < 1e-2, "{error:e}\n{text}");
    // Threads wait for each other within warps only.
    assert!(!text.lines().any(|line| line.trim() == "barrier"), "{text}");
    text
}

/// Heads of queries that share keys and values, whose scores are scaled.
#[test]
fn grouped_heads_share_keys() {
    let body = |first: usize, exp: &str| {
        format!(
            "t0 = input \"q\" [2, 2, 256, 64]\n t1 = input \"k\" [2, 1, 64, 256]\n t2 = input \"v\" [2, 1, 256, 64]\n \
             t3 = causal(0, 1, 1, 256, 256)\n t{first} = {exp}"
        )
    };
    let program = valid(&format!(
        "mugraph \"p\" {{\n {}\n t5 = scale(1/8) t4\n t6 = mask t5, t3\n t7 = exp t6\n t8 = sum(3) t7\n t9 = div t7, t8\n \
         t10 = matmul t9, t2\n output \"o\" t10\n}}\n",
        body(4, "matmul t0, t1")
    ));
    let fused = valid(&format!(
        "mugraph \"f\" {{\n {} {{\n s0 = load t0 [0, 1, 2] -\n s1 = load t1 [0, -, -] 3\n s2 = load t2 [0, -, -] 2\n \
         s3 = load t3 [-, -, 2] 3\n s4 = scale(1/8) s0\n s5 = matmul s4, s1\n s6 = mask s5, s3\n s7 = exp s6\n s8 = sum(3) s7\n \
         s9 = accumulate sum s8\n s10 = matmul s7, s2\n s11 = accumulate sum s10\n s12 = div s11, s9\n store s12 [0, 1, 2]\n }}\n \
         output \"o\" t4\n}}\n",
        body(4, "block [2, 2, 2] loop 4")
    ));
    let graph =
        stabilise(&program, &fused, &VerifyOptions::default()).unwrap_or_else(|e| panic!("{e}")).graph;
    check_graph(
        &graph,
        &rounded(&random_inputs(&graph, 11, 0.3), DType::F16),
        &row_major(&graph, DType::F16),
        &SMALL,
    );
}

/// As many SMs as blocks, rows that TMA does not copy to registers, and two CTAs on an SM: a CTA for each block.
#[test]
fn other_blocks_have_ctas_of_their_own() {
    let few = GpuTarget { sms: 8, ..SMALL };
    let large = GpuTarget { sms: 3, ..SM_90 };
    let uneven = Attention { rows: 200, ..PLAIN };
    for (attention, target) in [(PLAIN, &few), (uneven, &SMALL), (PLAIN, &large)] {
        let graph = attention.stable();
        let stored = row_major(&graph, DType::F16);
        let request = request(&graph, &stored);
        let kernel = gpu::lower(&request, target, OperandPrecision::F16).unwrap_or_else(|e| panic!("{e}"));
        let plain = gpu::lower_as(&request, target, OperandPrecision::F16, MugraphSchedule::PLAIN);
        let plain = plain.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(print_thread(&kernel.program), print_thread(&plain.program), "{attention:?}");
        assert_eq!(kernel.program.tasks, 8);
        assert!(gpu::lower_as(&request, target, OperandPrecision::F16, MugraphSchedule::PERSISTENT).is_err());
    }
}

#[test]
fn blocks_follow_each_other_in_a_cta() {
    for (attention, sms) in [
        // As many blocks for each CTA, or for some one more.
        (Attention { heads: 3, ..PLAIN }, 3),
        (PLAIN, 3),
        (Attention { heads: 1, rows: 512, row_blocks: 4, ..PLAIN }, 3),
        // Iterations that are no multiple of the stages.
        (Attention { keys: 320, range: 5, ..PLAIN }, 3),
        // The last iteration has fewer keys.
        (Attention { keys: 296, range: 5, ..PLAIN }, 3),
        (Attention { heads: 2, columns: 128, ..PLAIN }, 3),
        (Attention { heads: 2, ..PLAIN }, 1),
    ] {
        let text = check(attention, &GpuTarget { sms, ..SMALL });
        assert!(text.contains("for wave"), "{text}");
    }
}

/// Blocks of one iteration, of fewer than the stages, and of all.
#[test]
fn blocks_of_any_number_of_iterations_follow_each_other() {
    let long = Attention { heads: 2, rows: 512, keys: 512, row_blocks: 4, range: 8, ..PLAIN };
    let window = |above, below| Some(Band { above: Some(above), below: Some(below) });
    for (attention, sms) in [
        (Attention { band: CAUSAL, ..long }, 3),
        (Attention { band: CAUSAL, heads: 5, ..long }, 3),
        (Attention { band: Some(Band { above: None, below: Some(0) }), ..long }, 3),
        (Attention { band: window(0, 0), ..long }, 3),
        (Attention { band: window(-1000, 0), ..long }, 3),
        (Attention { band: window(600, -64), ..long }, 3),
        (Attention { band: CAUSAL, columns: 128, ..long }, 3),
    ] {
        let text = check(attention, &GpuTarget { sms, ..SMALL });
        assert!(text.contains("let iterations"), "{text}");
    }
}
