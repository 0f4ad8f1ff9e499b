//! What the tests of this crate share: graphs, random values, comparison with the reference interpreter.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod cases;
pub mod gpu;

use orch_compute::{
    BlockProgram, Layout,
    block::{interp::interpret_block, validate::validate_block},
    fuse,
};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::*;

/// A window with the same extent, stride and padding along both spatial dimensions.
pub fn square_window(kernel: usize, stride: usize, pad: usize, dilation: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        low: vec![pad; 2],
        high: vec![pad; 2],
    }
}

/// A deterministic stream of numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A tensor of small values: floats in -2..2 with few digits, integers in -4..=4, or 0..=4 if unsigned.
    pub fn tensor(&mut self, dtype: DType, shape: &Shape) -> Tensor {
        let values: Vec<f64> = (0..shape.elems())
            .map(|_| match dtype {
                DType::Bool => (self.next() % 2) as f64,
                _ if dtype.is_float() => (self.below(257) as f64 - 128.0) / 64.0,
                _ if dtype.is_signed_int() => self.below(9) as f64 - 4.0,
                _ => self.below(5) as f64,
            })
            .collect();
        Tensor::from_f64(dtype, shape.clone(), &values)
    }
}

/// The layout of each tensor.
pub type Layouts<'a> = &'a dyn Fn(TensorId) -> Layout;

/// A primitive graph that is being built, with short methods for common primitives.
pub struct G(pub PrimGraph);

impl G {
    /// An empty graph.
    pub fn new() -> Self {
        G(PrimGraph::new("test"))
    }

    /// An input.
    pub fn input(&mut self, dtype: DType, dims: &[usize]) -> TensorId {
        let name = format!("x{}", self.0.inputs.len());
        self.0.add_input(name, dtype, dims)
    }

    /// An `f32` input.
    pub fn f32(&mut self, dims: &[usize]) -> TensorId {
        self.input(DType::F32, dims)
    }

    /// An `f32` constant.
    pub fn constant(&mut self, dims: &[usize], seed: u64) -> TensorId {
        self.0.add_constant(Random(seed + 1).tensor(DType::F32, &dims.into()))
    }

    /// A scalar constant, broadcast.
    pub fn fill(&mut self, value: f32, dims: &[usize]) -> TensorId {
        let scalar = self.0.add_constant(Tensor::scalar(value));
        self.op(PrimOp::Broadcast { shape: dims.into(), dims: vec![] }, &[scalar])
    }

    /// A node.
    pub fn op(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.0.add(op, inputs).expect("operands that fit")
    }

    /// A unary function.
    pub fn unary(&mut self, f: UnaryFn, x: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Unary(f)), &[x])
    }

    /// A binary function.
    pub fn binary(&mut self, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
    }

    /// A reduction.
    pub fn reduce(&mut self, op: ReduceOp, x: TensorId, axes: &[usize]) -> TensorId {
        self.op(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x])
    }

    /// The reduced tensor repeated along `axes` of the shape of `like`.
    pub fn spread(&mut self, x: TensorId, like: TensorId, axes: &[usize]) -> TensorId {
        let shape = self.0.shape(like).clone();
        let dims = (0..shape.rank()).filter(|dim| !axes.contains(dim)).collect();
        self.op(PrimOp::Broadcast { shape, dims }, &[x])
    }

    /// A reshape.
    pub fn reshape(&mut self, x: TensorId, dims: &[usize]) -> TensorId {
        self.op(PrimOp::Reshape { shape: dims.into() }, &[x])
    }

    /// A transpose.
    pub fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        self.op(PrimOp::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// Softmax over some axes.
    pub fn softmax(&mut self, x: TensorId, axes: &[usize]) -> TensorId {
        let max = self.reduce(ReduceOp::Max, x, axes);
        let max = self.spread(max, x, axes);
        let shifted = self.binary(BinaryFn::Sub, x, max);
        let exp = self.unary(UnaryFn::Exp, shifted);
        let sum = self.reduce(ReduceOp::Sum, exp, axes);
        let sum = self.spread(sum, x, axes);
        self.binary(BinaryFn::Div, exp, sum)
    }

    /// Normalisation to zero mean and unit variance over some axes.
    pub fn normalize(&mut self, x: TensorId, axes: &[usize]) -> TensorId {
        let shape = self.0.shape(x).clone();
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let mean = |g: &mut Self, x: TensorId| {
            let sum = g.reduce(ReduceOp::Sum, x, axes);
            let dims = g.0.shape(sum).to_vec();
            let scale = g.fill(1.0 / count as f32, &dims);
            g.binary(BinaryFn::Mul, sum, scale)
        };
        let average = mean(self, x);
        let average = self.spread(average, x, axes);
        let centred = self.binary(BinaryFn::Sub, x, average);
        let square = self.binary(BinaryFn::Mul, centred, centred);
        let variance = mean(self, square);
        let dims = self.0.shape(variance).to_vec();
        let epsilon = self.fill(1e-5, &dims);
        let variance = self.binary(BinaryFn::Add, variance, epsilon);
        let deviation = self.unary(UnaryFn::Sqrt, variance);
        let deviation = self.spread(deviation, x, axes);
        self.binary(BinaryFn::Div, centred, deviation)
    }

    /// Makes a tensor an output.
    pub fn output(&mut self, x: TensorId) -> &mut Self {
        let name = format!("y{}", self.0.outputs.len());
        self.0.add_output(name, x);
        self
    }

    /// The block program of the whole graph.
    pub fn build(&self) -> Result<BlockProgram, fuse::CannotFuse> {
        self.build_with(&|tensor| Layout::row_major(self.0.shape(tensor).rank()))
    }

    /// The block program of the whole graph, with these layouts.
    pub fn build_with(&self, layouts: &dyn Fn(TensorId) -> Layout) -> Result<BlockProgram, fuse::CannotFuse> {
        let nodes: Vec<NodeId> = self.0.node_ids().collect();
        let outputs: Vec<TensorId> = self.0.outputs.iter().map(|(_, tensor)| *tensor).collect();
        fuse::build(&self.0, &nodes, &outputs, layouts, "test")
    }

    /// Random inputs.
    pub fn inputs(&self, seed: u64) -> Vec<Tensor> {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed + 1));
        let types = self.0.inputs.iter().map(|(_, tensor)| (self.0.dtype(*tensor), self.0.shape(*tensor)));
        types.map(|(dtype, shape)| random.tensor(dtype, shape)).collect()
    }

    /// The outputs by the reference interpreter.
    pub fn expected(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        evaluate(&self.0, inputs, &EvalOptions::default()).expect("a graph that can be evaluated")
    }

    /// The value of each argument of a block program; `None` for outputs.
    pub fn arguments(&self, block: &BlockProgram, inputs: &[Tensor]) -> Vec<Option<Tensor>> {
        let value = |tensor: TensorId| {
            let position = self.0.inputs.iter().position(|(_, input)| *input == tensor);
            position.map(|position| inputs[position].clone()).or_else(|| self.0.constant(tensor).cloned())
        };
        block.args.iter().map(|arg| value(arg.tensor)).collect()
    }

    /// Builds the block program, validates it, interprets it, and compares with the reference; the block program.
    pub fn check(&self) -> BlockProgram {
        let block = self.build().expect("a kernel");
        assert_eq!(validate_block(&block), Vec::<String>::new(), "{block}");
        let inputs = self.inputs(7);
        let actual = interpret_block(&block, &self.arguments(&block, &inputs));
        let actual = actual.unwrap_or_else(|error| panic!("{error}\n{block}"));
        self.compare(&block, &self.expected(&inputs), &actual);
        block
    }

    /// Compares values of the graph's outputs with values of the block's outputs.
    pub fn compare(&self, block: &BlockProgram, expected: &[Tensor], actual: &[Tensor]) {
        let stored = block.args.iter().filter(|arg| arg.role == orch_compute::ArgRole::Output);
        let stored: Vec<TensorId> = stored.map(|arg| arg.tensor).collect();
        for ((_, tensor), expected) in self.0.outputs.iter().zip(expected) {
            let position = stored.iter().position(|other| other == tensor).expect("every output is stored");
            assert_close(expected, &actual[position], &block.to_string());
        }
    }
}

/// Panics unless the tensors agree up to rounding.
pub fn assert_close(expected: &Tensor, actual: &Tensor, context: &str) {
    assert_eq!((expected.dtype(), expected.shape()), (actual.dtype(), actual.shape()), "{context}");
    let tolerance = match expected.dtype() {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F32 => 2e-5,
        DType::F64 => 1e-12,
        _ => 0.0,
    };
    let scale = expected.to_f64().iter().fold(1.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
    for (position, (e, a)) in expected.to_f64().into_iter().zip(actual.to_f64()).enumerate() {
        let close = e == a || (e.is_nan() && a.is_nan()) || (e - a).abs() <= tolerance * scale;
        assert!(close, "element {position}: expected {e}, got {a}\n{context}");
    }
}

/// The elements of a row-major tensor in the order of a layout, and back.
pub fn laid_out(tensor: &Tensor, layout: &Layout) -> Tensor {
    permuted(tensor, layout, false)
}

/// The row-major tensor whose elements are given in the order of a layout.
pub fn logical(tensor: &Tensor, layout: &Layout) -> Tensor {
    permuted(tensor, layout, true)
}

fn permuted(tensor: &Tensor, layout: &Layout, back: bool) -> Tensor {
    let (shape, size) = (tensor.shape(), tensor.dtype().size_bytes());
    let (rows, strides) = (shape.strides(), layout.strides(shape));
    let mut bytes = vec![0; tensor.bytes().len()];
    for position in 0..shape.elems() {
        let there: usize = (0..shape.rank()).map(|d| position / rows[d] % shape[d].max(1) * strides[d]).sum();
        let (from, to) = if back { (there, position) } else { (position, there) };
        bytes[to * size..][..size].copy_from_slice(&tensor.bytes()[from * size..][..size]);
    }
    Tensor::from_bytes(tensor.dtype(), shape.clone(), bytes.into()).expect("as many bytes")
}

/// The targets that templates are tested for.
pub const TARGETS: [&orch_thread::CpuTarget; 3] =
    [&orch_thread::target::X86_64_V4, &orch_thread::target::X86_64_V3, &orch_thread::target::AARCH64];

/// Runs a kernel through the interpreter of thread programs; the outputs as row-major tensors.
pub fn run_kernel(
    block: &BlockProgram,
    kernel: &orch_thread::kernel::Kernel,
    values: &[Option<Tensor>],
) -> Vec<Tensor> {
    use orch_compute::ArgRole;
    use orch_thread::kernel::Binding;
    use orch_thread::{BufferData, ExecOptions, interpret};
    let mut buffers: Vec<BufferData> = (kernel.bindings.iter())
        .map(|binding| match binding {
            Binding::Arg(id) => {
                let arg = block.arg(*id);
                match &values[id.index()] {
                    Some(value) if arg.role != ArgRole::Output => {
                        BufferData::from_tensor(&laid_out(value, &arg.layout))
                    }
                    _ => BufferData::zeros(arg.dtype, arg.shape.elems()),
                }
            }
            Binding::Packed(packed) => {
                let source = values[packed.arg.index()].as_ref().expect("constants have values");
                BufferData { dtype: packed.dtype, bytes: packed.pack(source) }
            }
            Binding::Own { dtype, elems, .. } => BufferData::zeros(*dtype, *elems),
        })
        .collect();
    let report = interpret(&kernel.program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|error| panic!("{error}\n{block}\n{:#?}", kernel.program.body));
    assert!(report.unwritten.iter().all(|&count| count == 0), "elements are not written\n{block}");
    let mut outputs = Vec::new();
    for (binding, buffer) in kernel.bindings.iter().zip(&buffers) {
        let Binding::Arg(id) = binding else { continue };
        let arg = block.arg(*id);
        if arg.role == ArgRole::Output {
            let tensor = buffer.to_tensor(arg.shape.clone()).expect("as many elements");
            outputs.push(logical(&tensor, &arg.layout));
        }
    }
    outputs
}

impl G {
    /// Lowers with every schedule for every target, runs, and compares with the reference interpreter.
    pub fn check_kernels(&self, layouts: &dyn Fn(TensorId) -> Layout) {
        use orch_template::{injective, row};
        let block = self.build_with(layouts).expect("a kernel");
        assert_eq!(validate_block(&block), Vec::<String>::new(), "{block}");
        let inputs = self.inputs(11);
        let values = self.arguments(&block, &inputs);
        let expected = self.expected(&inputs);
        for target in TARGETS {
            let injective = injective::schedules(&block, target);
            let row = row::schedules(&block, target);
            assert!(!injective.is_empty() || !row.is_empty(), "no schedule for\n{block}");
            for schedule in injective {
                let kernel = injective::lower(&block, &schedule).expect("its own schedule");
                self.compare(&block, &expected, &run_kernel(&block, &kernel, &values));
            }
            for schedule in row {
                let kernel = row::lower(&block, &schedule).expect("its own schedule");
                self.compare(&block, &expected, &run_kernel(&block, &kernel, &values));
                let small = orch_template::NestSchedule { work_item_cycles: 1, ..schedule };
                let kernel = row::lower(&block, &small).expect("its own schedule");
                self.compare(&block, &expected, &run_kernel(&block, &kernel, &values));
            }
        }
    }

    /// As [`G::check_kernels`], in several layouts.
    pub fn check_lowering(&self) {
        self.in_layouts(&|layouts| self.check_kernels(layouts));
    }

    /// The layouts to test: row-major, those that the layout assignment chooses, and channels-last.
    pub fn in_layouts(&self, check: &dyn Fn(Layouts<'_>)) {
        check(&|tensor| Layout::row_major(self.0.shape(tensor).rank()));
        let assigned = orch_compute::layouts::assign(&self.0);
        check(&|tensor| assigned[tensor.index()].clone());
        check(&|tensor| match (self.0.constant(tensor), self.0.shape(tensor).rank()) {
            (Some(_), rank) => Layout::row_major(rank),
            (None, rank) => Layout::channels_last(rank),
        });
    }
}

/// Adds a random primitive.
pub fn random_step(g: &mut G, x: TensorId, random: &mut Random) -> TensorId {
    let shape = g.0.shape(x).clone();
    let rank = shape.rank();
    match random.below(8) {
        0 => g.unary(UnaryFn::Tanh, x),
        1 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                perm.swap(i, random.below(i + 1));
            }
            g.transpose(x, &perm)
        }
        2 => {
            let mut dims = shape.to_vec();
            let split = random.below(rank.max(1));
            if rank > 0 && dims[split].is_multiple_of(2) {
                dims.splice(split..=split, [2, shape[split] / 2]);
            } else if rank > 1 {
                let merged = dims.pop().unwrap_or(1);
                dims[rank - 2] *= merged;
            }
            g.reshape(x, &dims)
        }
        3 if rank > 0 => {
            let axis = random.below(rank);
            g.softmax(x, &[axis])
        }
        4 if rank > 1 => g.reduce(ReduceOp::Max, x, &[random.below(rank)]),
        5 => {
            let (low, high) = (0..rank).map(|_| (random.below(2), random.below(3))).unzip();
            let fill = g.0.add_constant(Tensor::scalar(random.below(2) as f32));
            g.op(PrimOp::Pad { mode: PadMode::Constant, low, high }, &[x, fill])
        }
        6 if rank > 0 => g.op(PrimOp::Concat { axis: random.below(rank) }, &[x, x]),
        _ => {
            let starts: Vec<i64> = shape.iter().map(|&d| i64::from(d > 1)).collect();
            let sizes = shape.iter().zip(&starts).map(|(&d, &s)| d - s as usize).collect();
            g.op(PrimOp::Slice { starts, steps: vec![1; rank], sizes }, &[x])
        }
    }
}
