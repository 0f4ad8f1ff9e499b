//! Persistent CTAs compute what their block graphs say: blocks follow each other in a CTA, their loads overlap with the block before.

mod common;

use common::gpu::{check_lowered, rounded};
use common::kernels::row_major;
use common::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::{Band, MuGraph, Node, TensorId, VerifyOptions, print, stabilise};
use orch_thread::kernel::Kernel;
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
        valid(&(0..6).fold(text.to_owned(), |text, at| text.replace(&format!("u{at}"), &format!("t{}", first + at))))
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

fn request<'a>(graph: &'a MuGraph, stored: &'a [Stored]) -> Request<'a> {
    let is_block = |(tensor, node): (TensorId, &Node)| matches!(node, Node::Block(_)).then_some(tensor);
    let kernel = graph.nodes().find_map(is_block).expect("a block");
    Request { graph, kernel, stored, name: "kernel" }
}

#[test]
fn thin() {
    let graph = PLAIN.stable();
    let inputs = rounded(&random_inputs(&graph, 5, 0.3), DType::F16);
    let stored = row_major(&graph, DType::F16);
    let kernel = gpu::lower_as(&request(&graph, &stored), &SMALL, OperandPrecision::F16, MugraphSchedule::PERSISTENT).unwrap_or_else(|e| panic!("{e}"));
    println!("{}", print_thread(&kernel.program));
    check_lowered(&graph, &inputs, &stored, 1e-2, |_| kernel.clone());
}
