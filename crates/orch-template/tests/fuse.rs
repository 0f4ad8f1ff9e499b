//! Block programs against the reference interpreter, and their text.

mod support;

use orch_ir::*;
use support::{G, Random};

#[test]
fn softmax_shares_its_exponential() {
    let mut g = G::new();
    let x = g.f32(&[3, 5]);
    let y = g.softmax(x, &[1]);
    g.output(y);
    let block = g.check();
    assert_eq!(
        block.to_string(),
        "block test\n  a0: f32[3, 5] input t0\n  a1: f32[3, 5] output t7\n  i0 < 3\n  i1 < 5\n  \
         s0[i0] = max over i1 of a0[i0, i1]\n  \
         s1[i0] = sum over i1 of exp(a0[i0, i1] - s0)\n  \
         a1[i0, i1] = exp(a0[i0, i1] - s0) / s1    for i0, i1\n"
    );
}

#[test]
fn reductions_over_any_axes() {
    for axes in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
        for dims in [[3, 5, 4], [4, 4, 4], [1, 7, 1], [2, 0, 3], [0, 2, 2]] {
            let mut g = G::new();
            let x = g.f32(&dims);
            let softmax = g.softmax(x, axes);
            g.output(softmax);
            g.check();
            let mut g = G::new();
            let x = g.f32(&dims);
            let normal = g.normalize(x, axes);
            let normal = g.transpose(normal, &[2, 0, 1]);
            g.output(normal);
            g.check();
            let mut g = G::new();
            let x = g.f32(&dims);
            let sum = g.reduce(ReduceOp::Prod, x, axes);
            g.output(sum);
            g.check();
        }
    }
}

#[test]
fn every_reduction_of_every_type() {
    let args = [false, true].map(|last| [ReduceOp::ArgMax { last }, ReduceOp::ArgMin { last }]).concat();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min].into_iter().chain(args) {
        for dtype in DType::ALL {
            if dtype == DType::Bool {
                continue;
            }
            let mut g = G::new();
            let x = g.input(dtype, &[3, 7]);
            let y = g.reduce(op, x, &[1]);
            g.output(y);
            g.check();
        }
    }
}

#[test]
fn group_normalisation_has_affine_accesses() {
    let mut g = G::new();
    let x = g.f32(&[2, 6, 4, 3]);
    let grouped = g.reshape(x, &[2, 3, 24]);
    let normal = g.normalize(grouped, &[2]);
    let normal = g.reshape(normal, &[2, 6, 4, 3]);
    let scale = g.constant(&[6], 3);
    let scale = g.op(PrimOp::Broadcast { shape: [2, 6, 4, 3].into(), dims: vec![1] }, &[scale]);
    let y = g.binary(BinaryFn::Mul, normal, scale);
    g.output(y);
    let text = g.check().to_string();
    assert!(!text.contains("//") && !text.contains('%'), "{text}");
    assert_eq!(text.matches(" < ").count(), 5, "axes are shared:\n{text}");
}

#[test]
fn layout_primitives() {
    let dims = [2, 6, 4];
    let ops = [
        PrimOp::Transpose { perm: vec![2, 0, 1] },
        PrimOp::Reshape { shape: [3, 4, 4].into() },
        PrimOp::Reshape { shape: [48].into() },
        PrimOp::Reshape { shape: [4, 1, 12].into() },
        PrimOp::Slice { starts: vec![1, 5, 0], steps: vec![1, -2, 3], sizes: vec![1, 3, 2] },
        PrimOp::Broadcast { shape: [2, 3, 6, 4].into(), dims: vec![0, 2, 3] },
        PrimOp::Select { positions: vec![None, Some(vec![0, 0, 1, 1, 2, 2, 3, 3]), None] },
        PrimOp::Select { positions: vec![Some(vec![1, 0]), None, Some(vec![1, 3])] },
        PrimOp::Pad { mode: PadMode::Edge, low: vec![1, 0, 7], high: vec![0, 2, 1] },
        PrimOp::Pad { mode: PadMode::Reflect, low: vec![1, 5, 7], high: vec![0, 2, 9] },
        PrimOp::Pad { mode: PadMode::Wrap, low: vec![1, 0, 7], high: vec![5, 2, 1] },
    ];
    for first in &ops {
        let mut g = G::new();
        let x = g.f32(&dims);
        let y = g.op(first.clone(), &[x]);
        let y = g.unary(UnaryFn::Tanh, y);
        g.output(y);
        g.check();
        // Through a reshape on both sides.
        let mut g = G::new();
        let x = g.f32(&[12, 4]);
        let x = g.reshape(x, &dims);
        let y = g.op(first.clone(), &[x]);
        let flat = g.0.shape(y).elems();
        let y = g.reshape(y, &[flat]);
        g.output(y);
        g.check();
    }
}

#[test]
fn constant_padding_and_concatenation() {
    for value in [0.0f32, 1.5] {
        let mut g = G::new();
        let x = g.f32(&[3, 4]);
        let fill = g.0.add_constant(Tensor::scalar(value));
        let exp = g.unary(UnaryFn::Exp, x);
        let pad = PrimOp::Pad { mode: PadMode::Constant, low: vec![1, 2], high: vec![0, 3] };
        let y = g.op(pad.clone(), &[exp, fill]);
        let twice = g.op(pad, &[y, fill]);
        let y = g.op(PrimOp::Slice { starts: vec![0, 0], steps: vec![1, 1], sizes: vec![4, 9] }, &[twice]);
        let z = g.op(PrimOp::Slice { starts: vec![0, 0], steps: vec![1, 1], sizes: vec![0, 9] }, &[twice]);
        let y = g.op(PrimOp::Concat { axis: 0 }, &[y, z, y]);
        let y = g.unary(UnaryFn::Neg, y);
        g.output(y);
        g.check();
    }
}

#[test]
fn gathers() {
    let mut g = G::new();
    let table = g.f32(&[5, 3, 4]);
    let indices = g.input(DType::I64, &[2, 3]);
    let taken = g.op(PrimOp::Take { axis: 1 }, &[table, indices]);
    let taken = g.unary(UnaryFn::Exp, taken);
    g.output(taken);
    g.check();

    let mut g = G::new();
    let table = g.f32(&[5, 3, 4]);
    let indices = g.input(DType::I8, &[2, 3, 6]);
    let taken = g.op(PrimOp::TakeAlong { axis: 2 }, &[table, indices]);
    let sum = g.reduce(ReduceOp::Sum, taken, &[2]);
    g.output(sum);
    g.check();

    let mut g = G::new();
    let table = g.f32(&[2, 3, 4, 5]);
    let indices = g.input(DType::U16, &[2, 7, 2]);
    let taken = g.op(PrimOp::GatherNd { batch_dims: 1 }, &[table, indices]);
    g.output(taken);
    g.check();
}

fn window(kernel: &[usize], strides: &[usize], dilations: &[usize], low: &[usize], high: &[usize]) -> Window {
    let [kernel, strides, dilations, low, high] =
        [kernel, strides, dilations, low, high].map(<[usize]>::to_vec);
    Window { kernel, strides, dilations, low, high }
}

#[test]
fn pooling() {
    let windows = [
        window(&[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        window(&[2, 3], &[1, 2], &[2, 1], &[0, 1], &[1, 0]),
        window(&[1, 1], &[2, 2], &[1, 1], &[0, 0], &[0, 0]),
        window(&[7, 6], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
    ];
    for window in windows {
        for op in
            [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod, ReduceOp::ArgMax { last: false }]
        {
            for dtype in [DType::F32, DType::I8] {
                let mut g = G::new();
                let x = g.input(dtype, &[2, 3, 7, 6]);
                let x = g.unary(UnaryFn::Neg, x);
                let y = g.op(PrimOp::Window { op, window: window.clone() }, &[x]);
                let y = g.reshape(y, &[g.0.shape(y).elems()]);
                g.output(y);
                g.check();
            }
        }
    }
}

#[test]
fn convolutions() {
    let specs = [
        (window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), 1),
        (window(&[3, 2], &[2, 1], &[1, 2], &[1, 0], &[0, 2]), 2),
        (window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), 1),
        (window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), 4),
    ];
    for (window, groups) in specs {
        let mut g = G::new();
        let x = g.f32(&[2, 4, 6, 5]);
        let w = g.constant(&[8, 4 / groups, window.kernel[0], window.kernel[1]], 5);
        let x = g.unary(UnaryFn::Exp, x);
        let y = g.op(PrimOp::Conv(ConvSpec { window: window.clone(), groups }), &[x, w]);
        let bias = g.constant(&[8], 9);
        let bias = g.spread(bias, y, &[0, 2, 3]);
        let y = g.binary(BinaryFn::Add, y, bias);
        let y = g.transpose(y, &[0, 2, 3, 1]);
        let y = g.reshape(y, &[g.0.shape(y).elems()]);
        g.output(y);
        g.check();

        let mut g = G::new();
        let x = g.f32(&[2, 4, 6, 5]);
        let w = g.constant(&[4, 8 / groups, window.kernel[0], window.kernel[1]], 5);
        let spec = ConvSpec { window, groups };
        let y = g.op(PrimOp::ConvTranspose { spec, output_padding: vec![0, 0], may_pad: false }, &[x, w]);
        let y = g.unary(UnaryFn::Abs, y);
        g.output(y);
        g.check();
    }
}

#[test]
fn contractions_with_prologue_and_epilogue() {
    for (dims_a, dims_b) in
        [([2, 3, 4], [2, 4, 5]), ([1, 1, 7], [1, 7, 1]), ([3, 4, 4], [3, 4, 4]), ([2, 2, 0], [2, 0, 3])]
    {
        let mut g = G::new();
        let a = g.f32(&dims_a);
        let b = g.f32(&[dims_b[0], dims_b[2], dims_b[1]]);
        let a = g.softmax(a, &[2]);
        let b = g.transpose(b, &[0, 2, 1]);
        let y = g.op(PrimOp::Contract(Contract::matmul(1)), &[a, b]);
        let residual = g.f32(&[dims_a[1], dims_a[0] * dims_b[2]]);
        let tanh = g.unary(UnaryFn::Tanh, y);
        let y = g.binary(BinaryFn::Mul, y, tanh);
        let y = g.transpose(y, &[1, 0, 2]);
        let y = g.reshape(y, &[dims_a[1], dims_a[0] * dims_b[2]]);
        let y = g.binary(BinaryFn::Add, y, residual);
        g.output(y);
        g.check();
    }
}

#[test]
fn a_contraction_of_a_contraction() {
    let mut g = G::new();
    let (x, w) = (g.f32(&[3, 4]), g.f32(&[4, 5]));
    let a = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    let a = g.softmax(a, &[1]);
    let z = g.f32(&[5, 2]);
    let b = g.op(PrimOp::Contract(Contract::matmul(0)), &[a, z]);
    g.output(b);
    g.check();
}

#[test]
fn heads_are_merged_after_a_product() {
    let mut g = G::new();
    let x = g.f32(&[6, 8]);
    let w = g.constant(&[8, 12], 4);
    let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    let y = g.reshape(y, &[2, 3, 3, 4]);
    let y = g.transpose(y, &[0, 2, 1, 3]);
    g.output(y);
    g.check();
}

#[test]
fn half_precision_is_computed_wide() {
    for dtype in [DType::F16, DType::BF16] {
        let mut g = G::new();
        let x = g.input(dtype, &[3, 8]);
        let y = g.softmax(x, &[1]);
        let y = g.op(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[y]);
        let y = g.op(PrimOp::Map(ScalarFn::Cast(DType::F16)), &[y]);
        g.output(y);
        let text = g.check().to_string();
        assert!(text.contains("f32(a0[i0, i1])"), "{text}");
    }
}

#[test]
fn several_outputs_share_a_domain() {
    let mut g = G::new();
    let x = g.f32(&[3, 4]);
    let y = g.f32(&[3, 4]);
    let sum = g.binary(BinaryFn::Add, x, y);
    let normal = g.normalize(sum, &[1]);
    let flat = g.reshape(normal, &[1, 12]);
    g.output(sum).output(flat);
    g.check();
}

#[test]
fn scalars() {
    let mut g = G::new();
    let x = g.f32(&[]);
    let y = g.unary(UnaryFn::Exp, x);
    g.output(y);
    g.check();
}

#[test]
fn refusals_say_why() {
    let mut g = G::new();
    let x = g.f32(&[3, 3]);
    let a = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, x]);
    let b = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, x]);
    let sum = g.binary(BinaryFn::Add, a, b);
    g.output(sum);
    assert_eq!(g.build().unwrap_err().to_string(), "n0 and n1 are both contractions or convolutions");

    let mut g = G::new();
    let x = g.f32(&[3, 3]);
    let a = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, x]);
    let part = g.op(PrimOp::Slice { starts: vec![0, 1], steps: vec![1, 1], sizes: vec![3, 2] }, &[a]);
    // What the slice leaves out is needed, too.
    g.output(a).output(part);
    assert_eq!(g.build().unwrap_err().to_string(), "output t2 has another index space than the first output");
}

/// Chains of random layout and elementwise primitives, with a reduction now and then.
#[test]
fn random_chains() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..150 {
        let mut g = G::new();
        let mut x = g.f32(&[[2, 3, 4], [4, 6, 2], [1, 8, 3], [5, 1, 7]][random.below(4)]);
        for _ in 0..1 + random.below(6) {
            x = support::random_step(&mut g, x, &mut random);
        }
        g.output(x);
        if g.0.producer(x).is_none() {
            continue;
        }
        match g.build() {
            Ok(_) => {
                g.check();
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("times per element") || text.contains("without a pattern"), "{text}");
            }
        }
    }
}
