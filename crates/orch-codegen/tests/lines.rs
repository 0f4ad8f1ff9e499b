//! Convolutions that read lines of an image where they lie: their inner loops have no access to the stack.

mod support;

use orch_codegen::c;
use orch_compute::{Layout, fuse};
use orch_ir::{ConvSpec, DType, PrimGraph, PrimOp, Tensor, Window};
use orch_template::designs;

/// Innermost loops with multiply-adds: the instructions between a label and a jump back to it without a label in between.
fn inner_loops(assembly: &str) -> Vec<Vec<&str>> {
    let mut loops = Vec::new();
    let mut since_label = Vec::new();
    let mut label = "";
    for line in assembly.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(':') {
            (label, since_label) = (name, Vec::new());
        } else if !line.starts_with('.') {
            since_label.push(line);
            let is_back = line.starts_with('j') && line.split_whitespace().nth(1) == Some(label);
            if is_back && since_label.iter().any(|line| line.contains("vfmadd")) {
                loops.push(since_label.clone());
            }
        }
    }
    loops
}

#[test]
fn inner_loops_leave_the_stack_alone() {
    for toolchain in support::toolchains() {
        let target = toolchain.target;
        if !matches!(target.name, "x86-64-v3" | "x86-64-v4") {
            continue;
        }
        // Channels, pixels of a side, kernel and step.
        for (channels, side, kernel, step) in
            [(64, 28, 3, 1), (64, 14, 3, 1), (64, 19, 3, 2), (256, 28, 1, 2)]
        {
            let mut graph = PrimGraph::new("convolution");
            let x = graph.add_input("x", DType::F32, [1, channels, side, side]);
            let shape = [64, channels, kernel, kernel];
            let weights: Vec<f32> = (0..shape.iter().product()).map(|at: usize| (at % 7) as f32).collect();
            let w = graph.add_constant(Tensor::from_vec(shape, weights));
            let (pad, pair) = (kernel / 2, |value: usize| vec![value; 2]);
            let window = Window {
                kernel: pair(kernel),
                strides: pair(step),
                dilations: pair(1),
                low: pair(pad),
                high: pair(pad),
            };
            let y = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w]).unwrap();
            graph.add_output("y", y);
            let nodes: Vec<_> = graph.node_ids().collect();
            let layout = |tensor| if tensor == w { Layout::row_major(4) } else { Layout::channels_last(4) };
            let block = fuse::build(&graph, &nodes, &[y], &layout, "convolution").unwrap();
            let all = designs(&block, target, usize::MAX);
            let of_lines = all.iter().find(|design| design.schedule.contains("line_rows"));
            let design = of_lines.unwrap_or_else(|| panic!("{channels} x {side} x {side}: no lines"));
            let what = format!("{} {channels} x {side} x {side}: {}", target.name, design.schedule);
            let text = c::emit(&[&support::after_passes(&design.kernel.program)], target);
            let directory = support::directory(&format!("lines_{}_{channels}_{side}_{step}", target.name));
            let args = ["-S", "-fira-region=all"];
            let assembly = std::fs::read_to_string(toolchain.compile(&text, &directory, &args)).unwrap();
            let loops = inner_loops(&assembly);
            assert!(!loops.is_empty(), "{what}:\n{assembly}");
            for inner in loops {
                assert!(inner.iter().all(|line| !line.contains("%rsp")), "{what}:\n{}", inner.join("\n"));
            }
        }
    }
}
