//! Which block programs are products of matrices in memory, and that their descriptions are right: a product is
//! computed from its description alone, element by element, and compared with the reference interpreter.

use orch_compute::operands::OperandRounding;
use orch_compute::{BlockProgram, Storage, fuse, layouts};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ScalarFn, Tensor, TensorId, UnaryFn};
use orch_template::contraction::ContractionForm;
use orch_template::gpu::contraction::{MatrixProductForm, StorageOrder, StridedMatrix, access_bytes};
use orch_template::gpu::designs;
use orch_thread::BufferData;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Binding;
use orch_thread::target::SM_90;

/// A graph with one output, and values of its inputs.
struct Case {
    graph: PrimGraph,
    inputs: Vec<Tensor>,
}

/// Multiples of 1/8, which every type here represents exactly.
fn values(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let elems: usize = shape.iter().product();
    let data: Vec<f64> = (0..elems).map(|i| ((i * 37 + seed * 11) % 23) as f64 / 8.0 - 1.25).collect();
    Tensor::from_f64(dtype, shape.to_vec(), &data)
}

impl Case {
    fn new() -> Self {
        Self { graph: PrimGraph::new("case"), inputs: Vec::new() }
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> TensorId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(values(dtype, shape, self.inputs.len()));
        self.graph.add_input(name, dtype, shape.to_vec())
    }

    fn constant(&mut self, dtype: DType, shape: &[usize]) -> TensorId {
        self.graph.add_constant(values(dtype, shape, 99))
    }

    fn add(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.graph.add(op, inputs).expect("a valid primitive")
    }

    fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        self.add(PrimOp::Transpose { perm: perm.to_vec() }, &[x])
    }

    fn multiply(&mut self, batch_dims: usize, x: TensorId, w: TensorId) -> TensorId {
        self.add(PrimOp::Contract(Contract::matmul(batch_dims)), &[x, w])
    }

    fn binary(&mut self, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
        self.add(PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
    }

    fn cast(&mut self, dtype: DType, x: TensorId) -> TensorId {
        self.add(PrimOp::Map(ScalarFn::Cast(dtype)), &[x])
    }

    /// A constant vector along a dimension of `x`, as large as `x`.
    fn vector(&mut self, dtype: DType, x: TensorId, dim: usize) -> TensorId {
        let shape = self.graph.shape(x).clone();
        let vector = self.constant(dtype, &[shape[dim]]);
        self.add(PrimOp::Broadcast { shape, dims: vec![dim] }, &[vector])
    }

    fn block(&mut self, result: TensorId) -> BlockProgram {
        self.graph.add_output("y", result);
        let storage = Storage::as_stated(&self.graph, layouts::assign_gpu(&self.graph));
        let nodes: Vec<_> = self.graph.node_ids().collect();
        fuse::build_stored(&self.graph, &nodes, &[result], &storage, "kernel")
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The description of the whole graph as a matrix product; its result is compared with the graph's.
    fn product(&mut self, result: TensorId, factors: OperandPrecision) -> MatrixProductForm {
        let block = self.block(result);
        let product = MatrixProductForm::of(&block, factors).expect("a product of matrices in memory");
        let got = self.computed(&block, &product);
        let expected = evaluate(&self.graph, &self.inputs, &EvalOptions::default()).expect("the oracle runs");
        let tolerance = if factors == OperandPrecision::F32 { 1e-5 } else { 1e-2 };
        for (got, want) in got.iter().zip(expected[0].to_f64()) {
            assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{got} instead of {want}");
        }
        // Arguments are those that kernels of the template have.
        let kernels = designs(&block, &SM_90, factors, 4);
        let tiled = kernels.iter().find(|kernel| kernel.schedule.starts_with("contraction"));
        assert_eq!(tiled.expect("the template serves it").kernel.bindings, product.bindings);
        product
    }

    fn is_none(&mut self, result: TensorId, factors: OperandPrecision) -> bool {
        let block = self.block(result);
        MatrixProductForm::of(&block, factors).is_none()
    }

    /// The output in memory, from the description alone. Outputs here are row-major.
    fn computed(&self, block: &BlockProgram, product: &MatrixProductForm) -> Vec<f64> {
        let value = |tensor: TensorId| {
            let given = self.graph.inputs.iter().position(|(_, input)| *input == tensor);
            given.map(|i| &self.inputs[i]).or_else(|| self.graph.constant(tensor)).cloned()
        };
        let buffer = |binding: &Binding| match binding {
            Binding::Arg(arg) => {
                let arg = block.arg(*arg);
                value(arg.tensor).map(|tensor| (arg.dtype, tensor.to_f64()))
            }
            Binding::Packed(packed) => {
                let source = value(block.arg(packed.arg).tensor).expect("constants have values");
                let data = BufferData { dtype: packed.dtype, bytes: packed.pack(&source) };
                Some((packed.dtype, data.to_tensor([data.elems()]).unwrap().to_f64()))
            }
            Binding::Own { .. } => panic!("products have no memory of their own"),
        };
        let buffers: Vec<_> = product.bindings.iter().map(buffer).collect();
        let read = |buffer: usize, dtype: DType, place: usize| {
            let (stored, values) = buffers[buffer].as_ref().expect("what is read has a value");
            assert_eq!(*stored, dtype);
            values[place]
        };
        let at = |matrix: &StridedMatrix, z: usize, row: usize, column: usize| {
            let (line, place) = match matrix.order {
                StorageOrder::RowMajor => (row, column),
                StorageOrder::ColumnMajor => (column, row),
            };
            matrix.offset + z * matrix.batch + line * matrix.lead + place
        };
        let extents = product.extents;
        let mut result = vec![f64::NAN; extents.batch * extents.m * extents.n];
        for z in 0..extents.batch {
            for i in 0..extents.m {
                for j in 0..extents.n {
                    let term = |t| {
                        read(product.a.buffer.index(), product.operands, at(&product.a, z, i, t))
                            * read(product.b.buffer.index(), product.operands, at(&product.b, z, t, j))
                    };
                    let sum: f64 = (0..extents.k).map(term).sum();
                    let bias = product
                        .bias
                        .map_or(0.0, |(buffer, offset)| read(buffer.index(), product.stored, offset + j));
                    let addend = product.addend.map_or(0.0, |matrix| {
                        read(matrix.buffer.index(), product.stored, at(&matrix, z, i, j))
                    });
                    result[at(&product.result, z, i, j)] = sum + bias + addend;
                }
            }
        }
        assert!(result.iter().all(|value| !value.is_nan()), "every element is computed");
        result
    }
}

const PRECISIONS: [(DType, OperandPrecision); 4] = [
    (DType::F32, OperandPrecision::F32),
    (DType::F32, OperandPrecision::Tf32),
    (DType::F16, OperandPrecision::F16),
    (DType::BF16, OperandPrecision::Bf16),
];

#[test]
fn operands_of_any_order_and_type_are_products() {
    for (dtype, factors) in PRECISIONS {
        for (is_constant, flip_a, flip_b) in [
            (true, false, false),
            (false, false, false),
            (false, true, false),
            (false, false, true),
            (true, true, true),
        ] {
            let (m, n, k) = (5, 6, 7);
            let mut case = Case::new();
            let x = case.input(dtype, &if flip_a { [k, m] } else { [m, k] });
            let shape = if flip_b { [n, k] } else { [k, n] };
            let w = if is_constant { case.constant(dtype, &shape) } else { case.input(dtype, &shape) };
            let x = if flip_a { case.transpose(x, &[1, 0]) } else { x };
            let w = if flip_b { case.transpose(w, &[1, 0]) } else { w };
            let y = case.multiply(0, x, w);
            let product = case.product(y, factors);
            let order = |flip| if flip { StorageOrder::ColumnMajor } else { StorageOrder::RowMajor };
            assert_eq!(product.a.order, order(flip_a));
            // Constants are packed, K-major.
            assert_eq!(product.b.order, order(is_constant || flip_b));
            assert_eq!((product.operands, product.stored, product.bias), (dtype, dtype, None));
            assert_eq!(product.is_tf32, factors == OperandPrecision::Tf32);
        }
    }
}

#[test]
fn batches_at_equal_distances_are_products() {
    // Heads within rows `[row, head, channel]`: the rows of one head are not contiguous.
    let mut case = Case::new();
    let x = case.input(DType::F16, &[9, 3, 8]);
    let x = case.transpose(x, &[1, 0, 2]);
    let w = case.input(DType::F16, &[3, 5, 8]);
    let w = case.transpose(w, &[0, 2, 1]);
    let y = case.multiply(1, x, w);
    let product = case.product(y, OperandPrecision::F16);
    assert_eq!((product.a.lead, product.a.batch, product.b.batch, product.result.batch), (24, 8, 40, 45));

    // Several dimensions form the rows, or the batch, if they are contiguous.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[2, 4, 7]), case.constant(DType::F32, &[7, 6]));
    let y = case.add(PrimOp::Reshape { shape: [8, 7].into() }, &[x]);
    let y = case.multiply(0, y, w);
    assert_eq!(case.product(y, OperandPrecision::F32).extents.m, 8);
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[2, 3, 4, 7]), case.input(DType::F32, &[2, 3, 7, 5]));
    let y = case.multiply(2, x, w);
    assert_eq!(case.product(y, OperandPrecision::F32).extents.batch, 6);

    // If they are not, there is no single row stride or batch stride.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[2, 4, 3, 7]), case.input(DType::F32, &[2, 3, 7, 5]));
    let x = case.transpose(x, &[0, 2, 1, 3]);
    let y = case.multiply(2, x, w);
    assert!(case.is_none(y, OperandPrecision::F32));
}

#[test]
fn a_bias_of_columns_is_part_of_the_product() {
    for (dtype, factors) in PRECISIONS {
        // As in graphs with 16-bit storage: operands and bias are widened, and the result is rounded.
        let mut case = Case::new();
        let (x, w) = (case.input(dtype, &[5, 7]), case.constant(dtype, &[7, 6]));
        let (wide_x, wide_w) = (case.cast(DType::F32, x), case.cast(DType::F32, w));
        let y = case.multiply(0, wide_x, wide_w);
        let bias = case.vector(dtype, y, 1);
        let bias = case.cast(DType::F32, bias);
        let y = case.binary(BinaryFn::Add, bias, y);
        let y = case.cast(dtype, y);
        let product = case.product(y, factors);
        assert!(product.bias.is_some());
        assert_eq!(product.stored, dtype);

        // Kernels compute a 16-bit model's products in f32, and so does the library.
        let mut case = Case::new();
        let (x, w) = (case.input(dtype, &[5, 7]), case.input(dtype, &[7, 6]));
        let y = case.multiply(0, x, w);
        let bias = case.vector(dtype, y, 1);
        let y = case.binary(BinaryFn::Add, y, bias);
        assert!(case.product(y, factors).bias.is_some());
    }
}

#[test]
fn an_addend_of_every_element_is_part_of_the_product() {
    for (dtype, factors) in PRECISIONS {
        for (has_bias, is_first) in [(false, false), (true, false), (true, true)] {
            let mut case = Case::new();
            let (x, w) = (case.input(dtype, &[2, 5, 7]), case.input(dtype, &[2, 7, 6]));
            let y = case.multiply(1, x, w);
            let other = case.input(dtype, &[5, 2, 6]);
            let other = case.transpose(other, &[1, 0, 2]);
            let bias = has_bias.then(|| case.vector(dtype, y, 2));
            let y = if is_first { case.binary(BinaryFn::Add, other, y) } else { y };
            let y = bias.map_or(y, |bias| case.binary(BinaryFn::Add, y, bias));
            let y = if is_first { y } else { case.binary(BinaryFn::Add, y, other) };
            let product = case.product(y, factors);
            assert_eq!(product.bias.is_some(), has_bias);
            let addend = product.addend.expect("it is added");
            assert_eq!((addend.lead, addend.batch), (12, 6));
        }
    }
}

#[test]
fn sums_may_be_stored_as_they_are() {
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F16, &[5, 7]), case.input(DType::F16, &[7, 6]));
    let (x, w) = (case.cast(DType::F32, x), case.cast(DType::F32, w));
    let y = case.multiply(0, x, w);
    let product = case.product(y, OperandPrecision::F16);
    assert_eq!((product.operands, product.stored), (DType::F16, DType::F32));
}

/// A change to a product with a bias that makes it none.
type Change = fn(&mut Case, x: TensorId, w: TensorId) -> TensorId;

#[test]
fn everything_else_is_refused() {
    let changes: [(&str, Change); 11] = [
        ("a bias of rows", |case, x, w| {
            let y = case.multiply(0, x, w);
            let bias = case.vector(DType::F32, y, 0);
            case.binary(BinaryFn::Add, y, bias)
        }),
        ("a second addend of every element", |case, x, w| {
            let y = case.multiply(0, x, w);
            let (one, other) = (case.input(DType::F32, &[5, 6]), case.input(DType::F32, &[5, 6]));
            let y = case.binary(BinaryFn::Add, y, one);
            case.binary(BinaryFn::Add, y, other)
        }),
        ("an addend that lies otherwise", |case, x, w| {
            let y = case.multiply(0, x, w);
            let other = case.input(DType::F32, &[6, 5]);
            let other = case.transpose(other, &[1, 0]);
            case.binary(BinaryFn::Add, y, other)
        }),
        ("the sum twice", |case, x, w| {
            let y = case.multiply(0, x, w);
            case.binary(BinaryFn::Add, y, y)
        }),
        ("a factor after the sum", |case, x, w| {
            let y = case.multiply(0, x, w);
            let scale = case.vector(DType::F32, y, 1);
            case.binary(BinaryFn::Mul, y, scale)
        }),
        ("a difference", |case, x, w| {
            let y = case.multiply(0, x, w);
            let bias = case.vector(DType::F32, y, 1);
            case.binary(BinaryFn::Sub, y, bias)
        }),
        ("a rectifier", |case, x, w| {
            let y = case.multiply(0, x, w);
            case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Abs)), &[y])
        }),
        ("an operand that is computed", |case, x, w| {
            let x = case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Exp)), &[x]);
            case.multiply(0, x, w)
        }),
        ("a result that is rounded to another type", |case, x, w| {
            let y = case.multiply(0, x, w);
            case.cast(DType::F16, y)
        }),
        ("every second k", |case, _, _| {
            let (x, w) = (case.input(DType::F32, &[5, 14]), case.input(DType::F32, &[7, 6]));
            let x =
                case.add(PrimOp::Slice { starts: vec![0, 1], steps: vec![1, 2], sizes: vec![5, 7] }, &[x]);
            case.multiply(0, x, w)
        }),
        ("rows in the order of the last first", |case, _, _| {
            let (x, w) = (case.input(DType::F32, &[5, 7]), case.input(DType::F32, &[7, 6]));
            let x =
                case.add(PrimOp::Slice { starts: vec![4, 0], steps: vec![-1, 1], sizes: vec![5, 7] }, &[x]);
            case.multiply(0, x, w)
        }),
    ];
    for (what, change) in changes {
        let mut case = Case::new();
        let (x, w) = (case.input(DType::F32, &[5, 7]), case.constant(DType::F32, &[7, 6]));
        let y = change(&mut case, x, w);
        assert!(case.is_none(y, OperandPrecision::F32), "{what}");
    }
    // Operands that are rounded before the product.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[5, 7]), case.input(DType::F32, &[7, 6]));
    let y = case.multiply(0, x, w);
    assert!(case.is_none(y, OperandPrecision::F16));
    // Types without tensor core instructions, and empty products.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F64, &[5, 7]), case.input(DType::F64, &[7, 6]));
    let y = case.multiply(0, x, w);
    assert!(case.is_none(y, OperandPrecision::F32));
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[5, 0]), case.input(DType::F32, &[0, 6]));
    let y = case.multiply(0, x, w);
    assert!(case.is_none(y, OperandPrecision::F32));
}

#[test]
fn parts_of_arrays_are_products() {
    // The second half of the columns of a wider array, as after a merge of two products.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[5, 14]), case.input(DType::F32, &[7, 6]));
    let x = case.add(PrimOp::Slice { starts: vec![0, 7], steps: vec![1, 1], sizes: vec![5, 7] }, &[x]);
    let y = case.multiply(0, x, w);
    let product = case.product(y, OperandPrecision::F32);
    assert_eq!((product.a.offset, product.a.lead), (7, 14));
}

#[test]
fn wide_operands_are_no_f16() {
    let mut case = Case::new();
    let x = case.input(DType::F32, &[1024, 4]);
    let x = case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[x]);
    let labels = Contract { lhs: vec![0, 1], rhs: vec![0, 2], out: vec![1, 2] };
    let sums = case.add(PrimOp::Contract(labels), &[x, x]);
    let square = case.multiply(0, sums, sums);
    let mixed = case.multiply(0, x, square);
    case.graph.add_output("y", mixed);
    let storage = Storage::narrowed(&case.graph, layouts::assign_gpu(&case.graph), DType::F16);
    let of = |result: TensorId| {
        let nodes: Vec<_> = case.graph.producer(result).into_iter().collect();
        let block = fuse::build_stored(&case.graph, &nodes, &[result], &storage, "kernel").expect("a kernel");
        (MatrixProductForm::of(&block, OperandPrecision::F16), block.rounding)
    };
    let told = |(product, rounding): (Option<MatrixProductForm>, OperandRounding)| {
        let types = product.map(|product| (product.operands, product.stored, product.is_tf32));
        (types, rounding)
    };
    assert_eq!(told(of(sums)), (Some((DType::F16, DType::F32, false)), OperandRounding::Half));
    assert_eq!(told(of(square)), (Some((DType::F32, DType::F32, true)), OperandRounding::Tf32));
    // Operands of two different types: one of them is not stored in the type that is multiplied.
    assert_eq!(told(of(mixed)), (None, OperandRounding::Tf32));
}

#[test]
fn operands_are_read_as_widely_as_their_elements_are_consecutive() {
    // The first operand is stored in this shape; permuted, its last two dimensions together are K.
    for (stored, permutation, bytes) in [
        // Rows of K as they are.
        ([64, 4, 32], [0, 1, 2], 16),
        // The rows are innermost.
        ([4, 32, 64], [2, 0, 1], 16),
        // Heads of 32, 4 and 2 channels: consecutive elements end with the head.
        ([4, 64, 32], [1, 0, 2], 16),
        ([32, 64, 4], [1, 0, 2], 8),
        ([32, 64, 2], [1, 0, 2], 4),
        // Heads are innermost: along K a head's channels come first.
        ([64, 32, 4], [0, 2, 1], 2),
        // No start of a row but the first is aligned.
        ([64, 3, 33], [0, 1, 2], 2),
    ] {
        let mut case = Case::new();
        let x = case.input(DType::F16, &stored);
        let x = case.transpose(x, &permutation);
        let shape = case.graph.shape(x).to_vec();
        let k = shape[1] * shape[2];
        let x = case.add(PrimOp::Reshape { shape: [shape[0], k].as_slice().into() }, &[x]);
        let w = case.constant(DType::F16, &[k, 48]);
        let y = case.multiply(0, x, w);
        let block = case.block(y);
        let form = ContractionForm::of(&block).expect("a contraction");
        assert_eq!(access_bytes(&block, &form), [bytes, 16], "{stored:?} permuted by {permutation:?}");
    }
}
