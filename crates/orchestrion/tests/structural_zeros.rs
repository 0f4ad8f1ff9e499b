//! Where a kernel has zeros that the model does not have, infinities and NaN do not meet them.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::{ConvSpec, DType, PrimGraph, PrimOp, Tensor, Window};
use orchestrion::{Model, Precision};
use plan_options::options;

const TARGETS: [&str; 3] = ["x86-64-v3", "x86-64-v4", "cuda:sm_90"];

/// `x [1, 4, 3, 4]`, `w [4, 3, 3, 2]`, the weights with some numbers that are not finite.
struct Transposed {
    window: Window,
    groups: usize,
    output_padding: Vec<usize>,
}

impl Transposed {
    fn weights(&self, special: &[(usize, f32)]) -> Tensor {
        let kernel = &self.window.kernel;
        let elems = 4 * 3 * kernel[0] * kernel[1];
        let mut values: Vec<f32> = (0..elems).map(|at| (at * 7 % 11) as f32 - 5.0).collect();
        special.iter().for_each(|&(at, value)| values[at % elems] = value);
        Tensor::from_vec([4, 3, kernel[0], kernel[1]], values)
    }

    /// A graph whose weights are an input or a constant, and its inputs.
    fn graph(&self, weights: Tensor, is_constant: bool) -> (PrimGraph, Vec<Tensor>) {
        let mut graph = PrimGraph::new("transposed");
        let image: Vec<f32> = (0..4 * 3 * 4).map(|at| (at * 5 % 13) as f32 + 1.0).collect();
        let x = graph.add_input("x", DType::F32, [1, 4, 3, 4]);
        let mut inputs = vec![Tensor::from_vec([1, 4, 3, 4], image)];
        let w = match is_constant {
            true => graph.add_constant(weights),
            false => {
                let w = graph.add_input("w", DType::F32, weights.shape().clone());
                inputs.push(weights);
                w
            }
        };
        let spec = ConvSpec { window: self.window.clone(), groups: self.groups };
        let op = PrimOp::ConvTranspose { spec, output_padding: self.output_padding.clone(), may_pad: false };
        let y = graph.add(op, &[x, w]).unwrap();
        graph.add_output("y", y);
        (graph, inputs)
    }
}

/// True for equal numbers, up to rounding, and for two NaN.
fn are_same(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-4 * b.abs().max(1.0)
}

#[test]
fn weights_of_transposed_convolutions_meet_elements_only() {
    let cache = CacheDir::new("structural-zeros");
    let window = |kernel: [usize; 2], strides: [usize; 2], dilations: [usize; 2], pads: [usize; 4]| Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        low: pads[..2].to_vec(),
        high: pads[2..].to_vec(),
    };
    let cases = [
        (window([3, 2], [2, 2], [1, 1], [0; 4]), 1, [0, 0]),
        (window([3, 2], [1, 1], [1, 1], [1, 0, 1, 1]), 1, [0, 0]),
        (window([3, 2], [3, 2], [2, 1], [1, 1, 0, 1]), 2, [1, 0]),
        (window([2, 2], [2, 3], [1, 2], [0; 4]), 4, [1, 2]),
    ];
    let special: [&[(usize, f32)]; 3] =
        [&[], &[(1, f32::INFINITY)], &[(0, f32::NEG_INFINITY), (17, f32::NAN)]];
    for (window, groups, output_padding) in cases {
        let case = Transposed { window, groups, output_padding: output_padding.to_vec() };
        for special in special {
            for is_constant in [false, true] {
                let (graph, inputs) = case.graph(case.weights(special), is_constant);
                let model = Model::from_graph(graph);
                let expected = model.interpret(&inputs, false).unwrap();
                let expected = expected[0].to_f64();
                assert!(expected.iter().any(|value| value.is_finite()));
                assert_eq!(expected.iter().all(|value| value.is_finite()), special.is_empty());
                for target in TARGETS {
                    let planned = model.plan(&options(&cache, Some(target), Precision::F32)).unwrap();
                    assert_eq!(planned.host_steps(), Vec::<&str>::new());
                    let got = planned.emulate(&inputs).unwrap()[0].to_f64();
                    let wrong = got.iter().zip(&expected).position(|(&got, &want)| !are_same(got, want));
                    assert_eq!(
                        wrong.map(|at| (at, got[at], expected[at])),
                        None,
                        "{target}, {:?}, {groups} groups, {special:?}, constant: {is_constant}",
                        case.window
                    );
                }
            }
        }
    }
}
