//! Small networks with the structures of large ones, as primitive graphs.

use orch_ir::{
    Activation, ActivationFn, BinaryFn, Contract, ConvSpec, DType, PadMode, PrimGraph, PrimOp, Recurrence,
    ReduceOp, RnnCell, RnnDirection, ScalarFn, Tensor, TensorId, UnaryFn, Window,
};

/// All of them.
pub fn all() -> Vec<PrimGraph> {
    vec![
        perceptron(),
        transformer(),
        linear_attention(),
        residual_block(),
        inverted_bottleneck(),
        recurrent_layers(),
        training_norms(),
    ]
}

/// Building blocks of networks.
struct Network {
    graph: PrimGraph,
    state: u64,
}

impl Network {
    fn new(name: &str) -> Self {
        Self { graph: PrimGraph::new(name), state: 0x9e37_79b9_7f4a_7c15 }
    }

    fn input(&mut self, shape: &[usize]) -> TensorId {
        let name = format!("x{}", self.graph.inputs.len());
        self.graph.add_input(name, DType::F32, shape)
    }

    /// Weights between -0.5 and 0.5, scaled so that sums of `terms` of them stay near 1.
    fn weights(&mut self, shape: &[usize], terms: usize) -> TensorId {
        let scale = (terms.max(1) as f32).sqrt().recip();
        let values = (0..shape.iter().product()).map(|_| {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            ((self.state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.0 * scale
        });
        let tensor = Tensor::from_vec(shape, values.collect::<Vec<f32>>());
        self.graph.add_constant(tensor)
    }

    fn op(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.graph.add(op, inputs).expect("operands that fit")
    }

    fn unary(&mut self, f: UnaryFn, x: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Unary(f)), &[x])
    }

    fn binary(&mut self, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
    }

    /// `x` repeated to the shape of `like`, its dimensions being `dims` there.
    fn spread(&mut self, x: TensorId, like: TensorId, dims: &[usize]) -> TensorId {
        let shape = self.graph.shape(like).clone();
        self.op(PrimOp::Broadcast { shape, dims: dims.to_vec() }, &[x])
    }

    fn scalar(&mut self, value: f32, like: TensorId) -> TensorId {
        let scalar = self.graph.add_constant(Tensor::scalar(value));
        self.spread(scalar, like, &[])
    }

    fn relu(&mut self, x: TensorId) -> TensorId {
        let zero = self.scalar(0.0, x);
        self.binary(BinaryFn::Max, x, zero)
    }

    /// `x / (1 + exp(-x))`
    fn silu(&mut self, x: TensorId) -> TensorId {
        let negative = self.unary(UnaryFn::Neg, x);
        let exp = self.unary(UnaryFn::Exp, negative);
        let one = self.scalar(1.0, x);
        let divisor = self.binary(BinaryFn::Add, exp, one);
        self.binary(BinaryFn::Div, x, divisor)
    }

    fn gelu(&mut self, x: TensorId) -> TensorId {
        let scale = self.scalar(std::f32::consts::FRAC_1_SQRT_2, x);
        let scaled = self.binary(BinaryFn::Mul, x, scale);
        let erf = self.unary(UnaryFn::Erf, scaled);
        let one = self.scalar(1.0, x);
        let sum = self.binary(BinaryFn::Add, erf, one);
        let half = self.scalar(0.5, x);
        let weighted = self.binary(BinaryFn::Mul, x, half);
        self.binary(BinaryFn::Mul, weighted, sum)
    }

    fn matmul(&mut self, x: TensorId, y: TensorId, batch: usize) -> TensorId {
        self.op(PrimOp::Contract(Contract::matmul(batch)), &[x, y])
    }

    /// `x w + b` for `x[rows, k]`.
    fn linear(&mut self, x: TensorId, columns: usize) -> TensorId {
        let terms = self.graph.shape(x)[1];
        let weights = self.weights(&[terms, columns], terms);
        let product = self.matmul(x, weights, 0);
        let bias = self.weights(&[columns], 4);
        let bias = self.spread(bias, product, &[1]);
        self.binary(BinaryFn::Add, product, bias)
    }

    fn reduce(&mut self, op: ReduceOp, x: TensorId, axes: &[usize]) -> TensorId {
        self.op(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x])
    }

    /// The mean over the last axis, repeated along it.
    fn row_mean(&mut self, x: TensorId) -> TensorId {
        let last = self.graph.shape(x).rank() - 1;
        let count = self.graph.shape(x)[last];
        let sum = self.reduce(ReduceOp::Sum, x, &[last]);
        let scale = self.scalar(1.0 / count as f32, sum);
        let mean = self.binary(BinaryFn::Mul, sum, scale);
        self.spread(mean, x, &(0..last).collect::<Vec<_>>())
    }

    fn layer_norm(&mut self, x: TensorId) -> TensorId {
        let last = self.graph.shape(x).rank() - 1;
        let mean = self.row_mean(x);
        let centred = self.binary(BinaryFn::Sub, x, mean);
        let square = self.binary(BinaryFn::Mul, centred, centred);
        let variance = self.row_mean(square);
        let epsilon = self.scalar(1e-5, x);
        let variance = self.binary(BinaryFn::Add, variance, epsilon);
        let deviation = self.unary(UnaryFn::Sqrt, variance);
        let normal = self.binary(BinaryFn::Div, centred, deviation);
        let columns = self.graph.shape(x)[last];
        let scale = self.weights(&[columns], 1);
        let scale = self.spread(scale, x, &[last]);
        self.binary(BinaryFn::Mul, normal, scale)
    }

    fn softmax(&mut self, x: TensorId) -> TensorId {
        let last = self.graph.shape(x).rank() - 1;
        let dims: Vec<usize> = (0..last).collect();
        let max = self.reduce(ReduceOp::Max, x, &[last]);
        let max = self.spread(max, x, &dims);
        let shifted = self.binary(BinaryFn::Sub, x, max);
        let exp = self.unary(UnaryFn::Exp, shifted);
        let sum = self.reduce(ReduceOp::Sum, exp, &[last]);
        let sum = self.spread(sum, x, &dims);
        self.binary(BinaryFn::Div, exp, sum)
    }

    /// A convolution with a square kernel, padded to keep the size at stride 1, and a bias.
    fn conv(&mut self, x: TensorId, maps: usize, kernel: usize, stride: usize, groups: usize) -> TensorId {
        let channels = self.graph.shape(x)[1];
        let depth = channels / groups;
        let pad = vec![kernel / 2; 2];
        let window = Window {
            kernel: vec![kernel; 2],
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            low: pad.clone(),
            high: pad,
        };
        let weights = self.weights(&[maps, depth, kernel, kernel], depth * kernel * kernel);
        let result = self.op(PrimOp::Conv(ConvSpec { window, groups }), &[x, weights]);
        let bias = self.weights(&[maps], 4);
        let bias = self.spread(bias, result, &[1]);
        self.binary(BinaryFn::Add, result, bias)
    }

    /// Batch normalisation as training does it, with the statistics that are kept, and a counter.
    fn training_norm(&mut self, x: TensorId) -> TensorId {
        let shape = self.graph.shape(x).clone();
        let channels = shape[1];
        let running = [0, 1].map(|_| self.input(&[channels]));
        let counter = self.input(&[]);
        let mean = |net: &mut Self, x: TensorId| {
            let sum = net.reduce(ReduceOp::Sum, x, &[0, 2, 3]);
            let scale = net.scalar(channels as f32 / shape.elems() as f32, sum);
            net.binary(BinaryFn::Mul, sum, scale)
        };
        let average = mean(self, x);
        let spread = self.spread(average, x, &[1]);
        let centred = self.binary(BinaryFn::Sub, x, spread);
        let square = self.binary(BinaryFn::Mul, centred, centred);
        let variance = mean(self, square);
        let epsilon = self.scalar(1e-5, variance);
        let deviation = self.binary(BinaryFn::Add, variance, epsilon);
        let deviation = self.unary(UnaryFn::Sqrt, deviation);
        let inverse = self.unary(UnaryFn::Recip, deviation);
        let spread = self.spread(inverse, x, &[1]);
        let normal = self.binary(BinaryFn::Mul, centred, spread);
        self.graph.add_output(format!("mean of {counter}"), average);
        self.graph.add_output(format!("inverse of {counter}"), inverse);
        for (before, value) in running.into_iter().zip([average, variance]) {
            let (old, new) = (self.scalar(0.9, value), self.scalar(0.1, value));
            let old = self.binary(BinaryFn::Mul, before, old);
            let new = self.binary(BinaryFn::Mul, value, new);
            let updated = self.binary(BinaryFn::Add, old, new);
            self.graph.add_output(format!("new {before}"), updated);
        }
        let one = self.graph.add_constant(Tensor::scalar(1.0f32));
        let counted = self.binary(BinaryFn::Add, counter, one);
        self.graph.add_output(format!("new {counter}"), counted);
        normal
    }

    fn max_pool(&mut self, x: TensorId) -> TensorId {
        let window = Window {
            kernel: vec![3; 2],
            strides: vec![2; 2],
            dilations: vec![1; 2],
            low: vec![1; 2],
            high: vec![1; 2],
        };
        self.op(PrimOp::Window { op: ReduceOp::Max, window }, &[x])
    }

    /// The mean over the pixels of each channel.
    fn global_mean(&mut self, x: TensorId) -> TensorId {
        let pixels = self.graph.shape(x)[2] * self.graph.shape(x)[3];
        let sum = self.reduce(ReduceOp::Sum, x, &[2, 3]);
        let scale = self.scalar(1.0 / pixels as f32, sum);
        self.binary(BinaryFn::Mul, sum, scale)
    }

    fn finish(mut self, output: TensorId) -> PrimGraph {
        self.graph.add_output("y", output);
        self.graph
    }
}

/// Products of odd extents, with what is between them.
fn perceptron() -> PrimGraph {
    let mut net = Network::new("perceptron");
    let x = net.input(&[37, 50]);
    let hidden = net.linear(x, 72);
    let hidden = net.gelu(hidden);
    let hidden = net.linear(hidden, 33);
    let gate = net.linear(x, 33);
    let gate = net.silu(gate);
    let y = net.binary(BinaryFn::Mul, hidden, gate);
    net.finish(y)
}

/// A layer of a transformer: 24 tokens, 2 heads of 16.
fn transformer() -> PrimGraph {
    let (tokens, heads, width) = (24, 2, 16);
    let mut net = Network::new("transformer");
    let x = net.input(&[tokens, heads * width]);
    let mask = net.input(&[tokens, tokens]);
    let normal = net.layer_norm(x);
    let head = |net: &mut Network, perm: [usize; 3]| {
        let projected = net.linear(normal, heads * width);
        let split = net.op(PrimOp::Reshape { shape: [tokens, heads, width].into() }, &[projected]);
        net.op(PrimOp::Transpose { perm: perm.to_vec() }, &[split])
    };
    let queries = head(&mut net, [1, 0, 2]);
    let keys = head(&mut net, [1, 2, 0]);
    let values = head(&mut net, [1, 0, 2]);
    let scores = net.matmul(queries, keys, 1);
    let scale = net.scalar(0.25, scores);
    let scores = net.binary(BinaryFn::Mul, scores, scale);
    let mask = net.spread(mask, scores, &[1, 2]);
    let scores = net.binary(BinaryFn::Add, scores, mask);
    let weights = net.softmax(scores);
    let mixed = net.matmul(weights, values, 1);
    let joined = net.op(PrimOp::Transpose { perm: vec![1, 0, 2] }, &[mixed]);
    let joined = net.op(PrimOp::Reshape { shape: [tokens, heads * width].into() }, &[joined]);
    let projected = net.linear(joined, heads * width);
    let x = net.binary(BinaryFn::Add, x, projected);
    let normal = net.layer_norm(x);
    let hidden = net.linear(normal, 80);
    let hidden = net.gelu(hidden);
    let hidden = net.linear(hidden, heads * width);
    let y = net.binary(BinaryFn::Add, x, hidden);
    net.finish(y)
}

/// Linear attention as in EfficientViT: 1024 tokens, 2 heads of 16, whose sums over all tokens are beyond the range of f16.
fn linear_attention() -> PrimGraph {
    /// By which queries, keys and values are larger than their weights would make them.
    const SCALE: f32 = 64.0;
    let (tokens, heads, width) = (1024, 2, 16);
    let mut net = Network::new("linear_attention");
    let x = net.input(&[tokens, heads * width]);
    let head = |net: &mut Network, perm: [usize; 3]| {
        let projected = net.linear(x, heads * width);
        let scale = net.scalar(SCALE, projected);
        let scaled = net.binary(BinaryFn::Mul, projected, scale);
        let split = net.op(PrimOp::Reshape { shape: [tokens, heads, width].into() }, &[scaled]);
        net.op(PrimOp::Transpose { perm: perm.to_vec() }, &[split])
    };
    let queries = head(&mut net, [1, 0, 2]);
    let queries = net.relu(queries);
    let keys = head(&mut net, [1, 2, 0]);
    let keys = net.relu(keys);
    let values = head(&mut net, [1, 0, 2]);
    // A column of ones sums the keys.
    let one = net.graph.add_constant(Tensor::scalar(1.0f32));
    let pad = PrimOp::Pad { mode: PadMode::Constant, low: vec![0; 3], high: vec![0, 0, 1] };
    let values = net.op(pad, &[values, one]);
    let summed = net.matmul(keys, values, 1);
    let mixed = net.matmul(queries, summed, 1);
    let columns = |net: &mut Network, start: usize, size: usize| {
        let (starts, sizes) = (vec![0, 0, start as i64], vec![heads, tokens, size]);
        net.op(PrimOp::Slice { starts, steps: vec![1; 3], sizes }, &[mixed])
    };
    let numerator = columns(&mut net, 0, width);
    let denominator = columns(&mut net, width, 1);
    let epsilon = net.scalar(1e-2, denominator);
    let denominator = net.binary(BinaryFn::Add, denominator, epsilon);
    let denominator = net.spread(denominator, numerator, &[0, 1, 2]);
    let mixed = net.binary(BinaryFn::Div, numerator, denominator);
    let joined = net.op(PrimOp::Transpose { perm: vec![1, 0, 2] }, &[mixed]);
    let joined = net.op(PrimOp::Reshape { shape: [tokens, heads * width].into() }, &[joined]);
    let y = net.linear(joined, heads * width);
    net.finish(y)
}

/// The beginning of a residual network and one block of it.
fn residual_block() -> PrimGraph {
    let mut net = Network::new("residual_block");
    let x = net.input(&[1, 3, 17, 17]);
    let stem = net.conv(x, 16, 7, 2, 1);
    let stem = net.relu(stem);
    let pooled = net.max_pool(stem);
    let inner = net.conv(pooled, 8, 1, 1, 1);
    let inner = net.relu(inner);
    let inner = net.conv(inner, 8, 3, 2, 1);
    let inner = net.relu(inner);
    let inner = net.conv(inner, 24, 1, 1, 1);
    let shortcut = net.conv(pooled, 24, 1, 2, 1);
    let sum = net.binary(BinaryFn::Add, inner, shortcut);
    let block = net.relu(sum);
    let mean = net.global_mean(block);
    let y = net.linear(mean, 10);
    net.finish(y)
}

/// Convolutions with batch normalisation, in training.
pub fn training_norms() -> PrimGraph {
    let mut net = Network::new("training_norms");
    let x = net.input(&[2, 8, 9, 9]);
    let inner = net.conv(x, 16, 1, 1, 1);
    let inner = net.training_norm(inner);
    let inner = net.relu(inner);
    let inner = net.conv(inner, 8, 3, 1, 1);
    let inner = net.training_norm(inner);
    let y = net.binary(BinaryFn::Add, x, inner);
    net.finish(y)
}

/// A bottleneck with a convolution of each channel by itself, and squeeze and excitation.
fn inverted_bottleneck() -> PrimGraph {
    let mut net = Network::new("inverted_bottleneck");
    let x = net.input(&[1, 8, 9, 9]);
    let wide = net.conv(x, 24, 1, 1, 1);
    let wide = net.silu(wide);
    let wide = net.conv(wide, 24, 3, 1, 24);
    let wide = net.silu(wide);
    let squeezed = net.global_mean(wide);
    let squeezed = net.linear(squeezed, 6);
    let squeezed = net.silu(squeezed);
    let excited = net.linear(squeezed, 24);
    let excited = net.silu(excited);
    let excited = net.spread(excited, wide, &[0, 1]);
    let wide = net.binary(BinaryFn::Mul, wide, excited);
    let narrow = net.conv(wide, 8, 1, 1, 1);
    let y = net.binary(BinaryFn::Add, x, narrow);
    net.finish(y)
}

/// A recurrence in both directions over `x[time * batch, k]` of 3 sequences: `[time * batch, 2 * hidden]`.
fn recurrence(net: &mut Network, cell: RnnCell, x: TensorId, hidden: usize) -> TensorId {
    let rows = net.graph.shape(x)[0];
    let directions = [RnnDirection::Forward, RnnDirection::Reverse];
    let y = recurrence_results(net, cell, x, hidden, &directions)[0];
    net.op(PrimOp::Reshape { shape: [rows, 2 * hidden].into() }, &[y])
}

/// The results of a recurrence over `x[time * batch, k]` of 3 sequences.
fn recurrence_results(
    net: &mut Network,
    cell: RnnCell,
    x: TensorId,
    hidden: usize,
    directions: &[RnnDirection],
) -> Vec<TensorId> {
    let rows = net.graph.shape(x)[0];
    let (gates, count) = (cell.gates() * hidden, directions.len());
    let projected = net.linear(x, count * gates);
    let projected = net.op(PrimOp::Reshape { shape: [rows / 3, 3, count, gates].into() }, &[projected]);
    let weights = net.weights(&[count, hidden, gates], hidden);
    let functions = [ActivationFn::Sigmoid, ActivationFn::Tanh, ActivationFn::Tanh];
    let activations = functions[..cell.activations()].repeat(count).into_iter();
    let spec = Recurrence {
        cell,
        directions: directions.to_vec(),
        activations: activations.map(|function| Activation { function, alpha: 0.0, beta: 0.0 }).collect(),
        clip: None,
        operands: Vec::new(),
    };
    let op = PrimOp::Recurrence(Box::new(spec));
    net.graph.add_node(op, vec![projected, weights]).expect("operands that fit")
}

/// A recurrence of 2 steps and 3 sequences, of so many hidden units that many CTAs share them; its last state alone is used.
pub fn wide_recurrence() -> PrimGraph {
    let mut net = Network::new("wide_recurrence");
    let hidden = 512;
    let x = net.input(&[6, 16]);
    let results = recurrence_results(&mut net, RnnCell::Rnn, x, hidden, &[RnnDirection::Forward]);
    let last = net.op(PrimOp::Reshape { shape: [3, hidden].into() }, &[results[1]]);
    let y = net.linear(last, 4);
    net.finish(y)
}

/// An LSTM and a GRU in both directions, of 5 steps and 3 sequences, before a product.
fn recurrent_layers() -> PrimGraph {
    let mut net = Network::new("recurrent_layers");
    let x = net.input(&[15, 20]);
    let x = recurrence(&mut net, RnnCell::Lstm { input_forget: false }, x, 24);
    let x = recurrence(&mut net, RnnCell::Gru { linear_before_reset: true }, x, 17);
    let y = net.linear(x, 10);
    net.finish(y)
}
