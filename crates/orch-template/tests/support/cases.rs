//! Graphs at adversarial shapes for the templates that are not matrix products.

use super::{G, Random, random_step};
use orch_ir::*;

pub fn elementwise(check: &dyn Fn(&G)) {
    for dims in [&[][..], &[1], &[7], &[16], &[17], &[300], &[0], &[3, 5, 7], &[1, 64, 1, 3]] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::I8, DType::I64] {
            let mut g = G::new();
            let x = g.input(dtype, dims);
            let y = g.input(dtype, dims);
            let z = g.binary(BinaryFn::Max, x, y);
            let z = g.binary(BinaryFn::Sub, z, y);
            g.output(z);
            check(&g);
        }
    }
}

pub fn mixed_types_and_broadcasts(check: &dyn Fn(&G)) {
    let mut g = G::new();
    let x = g.input(DType::U8, &[3, 37]);
    let scale = g.f32(&[37]);
    let bias = g.f32(&[3]);
    let x = g.op(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[x]);
    let scale = g.op(PrimOp::Broadcast { shape: [3, 37].into(), dims: vec![1] }, &[scale]);
    let bias = g.op(PrimOp::Broadcast { shape: [3, 37].into(), dims: vec![0] }, &[bias]);
    let y = g.binary(BinaryFn::Mul, x, scale);
    let y = g.binary(BinaryFn::Add, y, bias);
    let less = g.op(PrimOp::Map(ScalarFn::Compare(CompareFn::Lt)), &[y, bias]);
    let y = g.op(PrimOp::Map(ScalarFn::Select), &[less, x, y]);
    let z = g.op(PrimOp::Map(ScalarFn::Cast(DType::I8)), &[y]);
    g.output(z).output(less);
    check(&g);
}

pub fn moved_elements(check: &dyn Fn(&G)) {
    let dims = [3, 5, 18];
    let fill = |g: &mut G| g.0.add_constant(Tensor::scalar(0.5f32));
    let ops: [(PrimOp, bool); 9] = [
        (PrimOp::Transpose { perm: vec![2, 0, 1] }, false),
        (PrimOp::Transpose { perm: vec![1, 0, 2] }, false),
        (PrimOp::Reshape { shape: [9, 30].into() }, false),
        (PrimOp::Slice { starts: vec![1, 4, 0], steps: vec![1, -2, 3], sizes: vec![1, 2, 5] }, false),
        (PrimOp::Select { positions: vec![None, None, Some((0..36).map(|i| i / 2).collect())] }, false),
        (PrimOp::Pad { mode: PadMode::Constant, low: vec![0, 1, 2], high: vec![1, 0, 17] }, true),
        (PrimOp::Pad { mode: PadMode::Edge, low: vec![1, 0, 7], high: vec![0, 2, 1] }, false),
        (PrimOp::Pad { mode: PadMode::Reflect, low: vec![1, 2, 7], high: vec![0, 2, 9] }, false),
        (PrimOp::Pad { mode: PadMode::Wrap, low: vec![1, 0, 7], high: vec![5, 2, 1] }, false),
    ];
    for (op, takes_fill) in ops {
        let mut g = G::new();
        let x = g.f32(&dims);
        let y = if takes_fill {
            let fill = fill(&mut g);
            g.op(op, &[x, fill])
        } else {
            g.op(op, &[x])
        };
        let y = g.unary(UnaryFn::Abs, y);
        g.output(y);
        check(&g);
    }
}

/// Transposes of all types, of lengths that are no multiples of a vector; of images, and with a padding or one of two inputs along the way.
pub fn transposes(check: &dyn Fn(&G)) {
    for dtype in [DType::F32, DType::F16, DType::I64, DType::I32, DType::U8, DType::Bool] {
        for (dims, perm) in [(vec![37, 70], vec![1, 0]), (vec![2, 19, 3, 21], vec![0, 2, 3, 1])] {
            let mut g = G::new();
            let x = g.input(dtype, &dims);
            let y = g.transpose(x, &perm);
            g.output(y);
            check(&g);
        }
    }
    let mut g = G::new();
    let fill = g.0.add_constant(Tensor::scalar(0.5f32));
    let x = g.f32(&[33, 45]);
    let padded = g.op(PrimOp::Pad { mode: PadMode::Constant, low: vec![1, 2], high: vec![0, 3] }, &[x, fill]);
    let y = g.transpose(padded, &[1, 0]);
    let y = g.unary(UnaryFn::Abs, y);
    g.output(y);
    check(&g);
    let mut g = G::new();
    let (x, other) = (g.f32(&[20, 18]), g.f32(&[7, 18]));
    let both = g.op(PrimOp::Concat { axis: 0 }, &[x, other]);
    let y = g.transpose(both, &[1, 0]);
    g.output(y);
    check(&g);
}

pub fn concatenations_and_gathers(check: &dyn Fn(&G)) {
    for axis in 0..2 {
        let mut g = G::new();
        let x = g.f32(&[3, 20]);
        let y = if axis == 0 { g.f32(&[4, 20]) } else { g.f32(&[3, 7]) };
        let z = g.op(PrimOp::Concat { axis }, &[x, y, x]);
        g.output(z);
        check(&g);
    }
    let mut g = G::new();
    let table = g.f32(&[5, 3, 20]);
    let indices = g.input(DType::I64, &[2, 3]);
    let taken = g.op(PrimOp::Take { axis: 1 }, &[table, indices]);
    g.output(taken);
    check(&g);
    let mut g = G::new();
    let table = g.f32(&[20, 9]);
    let indices = g.input(DType::I32, &[20, 9]);
    let taken = g.op(PrimOp::TakeAlong { axis: 0 }, &[table, indices]);
    g.output(taken);
    check(&g);
}

pub fn softmax_and_normalisation(check: &dyn Fn(&G)) {
    for dims in [[2, 3, 37], [1, 1, 16], [17, 2, 5], [3, 33, 1], [2, 0, 4], [2, 128, 3]] {
        for axes in [&[2][..], &[1], &[0, 2], &[1, 2], &[0, 1, 2]] {
            let mut g = G::new();
            let x = g.f32(&dims);
            let bias = g.f32(&dims);
            let sum = g.binary(BinaryFn::Add, x, bias);
            let y = g.softmax(sum, axes);
            g.output(y);
            check(&g);
            let mut g = G::new();
            let x = g.f32(&dims);
            let bias = g.f32(&dims);
            let sum = g.binary(BinaryFn::Add, x, bias);
            let y = g.normalize(sum, axes);
            g.output(y).output(sum);
            check(&g);
        }
    }
}

pub fn every_reduction_of_every_type(check: &dyn Fn(&G)) {
    let args = [false, true].map(|last| [ReduceOp::ArgMax { last }, ReduceOp::ArgMin { last }]).concat();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min].into_iter().chain(args) {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I8, DType::U16, DType::I32, DType::I64] {
            for axis in 0..2 {
                let mut g = G::new();
                let x = g.input(dtype, &[19, 70]);
                let y = g.reduce(op, x, &[axis]);
                g.output(y);
                check(&g);
            }
        }
    }
}

/// In one chain all ones that are added after values of 2^24 are lost, since each is half a unit in the last place.
pub fn long_sums_are_several_chains(check: &dyn Fn(&G)) {
    // If lanes lie along the reduced axis, each of them begins with values of 2^24.
    let cases = [([1, 2200, 20], 1), ([3, 4000, 1], 1), ([17, 2200, 3], 1), ([1, 1, 140_000], 64)];
    for (dims, large) in cases {
        let axis = if dims[2] > 100 { 2 } else { 1 };
        let (count, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
        let value = |i: usize| if i / inner % count < large { f32::exp2(24.0) } else { 1.0 };
        let mut g = G::new();
        let values = (0..dims.iter().product()).map(value).collect();
        let x = g.0.add_constant(Tensor::from_vec(dims, values));
        let sum = g.reduce(ReduceOp::Sum, x, &[axis]);
        let kept: Vec<usize> = g.0.shape(sum).to_vec();
        // 1 if at least a quarter of the ones are in the sum.
        let larges = g.fill(large as f32 * f32::exp2(24.0), &kept);
        let quarters = g.fill(4.0 / count as f32, &kept);
        let one = g.fill(1.0, &kept);
        let ones = g.binary(BinaryFn::Sub, sum, larges);
        let parts = g.binary(BinaryFn::Mul, ones, quarters);
        let parts = g.binary(BinaryFn::Min, parts, one);
        g.output(parts);
        check(&g);
    }
}

pub fn stages_of_inner_axes(check: &dyn Fn(&G)) {
    // The sum over one axis varies over another axis, which is reduced afterwards.
    let mut g = G::new();
    let x = g.f32(&[3, 18, 5]);
    let inner = g.reduce(ReduceOp::Sum, x, &[2]);
    let y = g.softmax(inner, &[1]);
    g.output(y);
    check(&g);
    let mut g = G::new();
    let x = g.f32(&[18, 4, 20]);
    let max = g.reduce(ReduceOp::Max, x, &[0]);
    let max = g.spread(max, x, &[0]);
    let y = g.binary(BinaryFn::Sub, x, max);
    let norm = g.reduce(ReduceOp::Sum, y, &[2]);
    let total = g.reduce(ReduceOp::Max, norm, &[0, 1]);
    let total = g.spread(total, x, &[0, 1, 2]);
    let y = g.binary(BinaryFn::Add, y, total);
    g.output(y);
    check(&g);
}

pub fn group_normalisation(check: &dyn Fn(&G)) {
    let mut g = G::new();
    let x = g.f32(&[2, 36, 3, 3]);
    let grouped = g.reshape(x, &[2, 2, 162]);
    let normal = g.normalize(grouped, &[2]);
    let normal = g.reshape(normal, &[2, 36, 3, 3]);
    let scale = g.constant(&[36], 3);
    let scale = g.op(PrimOp::Broadcast { shape: [2, 36, 3, 3].into(), dims: vec![1] }, &[scale]);
    let y = g.binary(BinaryFn::Mul, normal, scale);
    g.output(y);
    check(&g);
}

fn window(kernel: &[usize], strides: &[usize], dilations: &[usize], low: &[usize], high: &[usize]) -> Window {
    let [kernel, strides, dilations, low, high] =
        [kernel, strides, dilations, low, high].map(<[usize]>::to_vec);
    Window { kernel, strides, dilations, low, high }
}

pub fn pooling(check: &dyn Fn(&G)) {
    let windows = [
        window(&[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]),
        window(&[2, 3], &[1, 1], &[2, 1], &[0, 1], &[1, 0]),
        window(&[9, 7], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
    ];
    for window in windows {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMax { last: false }] {
            for channels in [1, 19] {
                let mut g = G::new();
                let x = g.f32(&[2, channels, 9, 7]);
                let y = g.op(PrimOp::Window { op, window: window.clone() }, &[x]);
                g.output(y);
                check(&g);
            }
        }
    }
}

pub fn depthwise_and_transposed_convolutions(check: &dyn Fn(&G)) {
    let windows = [
        window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
        window(&[5, 3], &[2, 1], &[1, 2], &[2, 0], &[1, 2]),
    ];
    for window in windows {
        for (channels, groups) in [(19, 19), (6, 2)] {
            let mut g = G::new();
            let x = g.f32(&[2, channels, 9, 11]);
            let w = g.constant(&[channels, channels / groups, window.kernel[0], window.kernel[1]], 5);
            let y = g.op(PrimOp::Conv(ConvSpec { window: window.clone(), groups }), &[x, w]);
            let y = g.unary(UnaryFn::Tanh, y);
            g.output(y);
            check(&g);
            let mut g = G::new();
            let x = g.f32(&[1, channels, 5, 4]);
            let w = g.constant(&[channels, channels / groups, window.kernel[0], window.kernel[1]], 5);
            let spec = ConvSpec { window: window.clone(), groups };
            let y = g.op(PrimOp::ConvTranspose { spec, output_padding: vec![0, 0], may_pad: false }, &[x, w]);
            g.output(y);
            check(&g);
        }
    }
}

pub fn random_chains(check: &dyn Fn(&G)) {
    let mut random = Random(0x4321_5678_9abc_def1);
    for _ in 0..60 {
        let mut g = G::new();
        let mut x = g.f32(&[[2, 3, 34], [4, 6, 2], [1, 48, 3], [5, 1, 17]][random.below(4)]);
        for _ in 0..1 + random.below(6) {
            x = random_step(&mut g, x, &mut random);
        }
        g.output(x);
        if g.0.producer(x).is_some() && g.build().is_ok() {
            check(&g);
        }
    }
}
