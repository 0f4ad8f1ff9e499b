//! Which block programs are convolutions of images in memory, and that their descriptions are right: a convolution is
//! computed from its description alone, element by element, and compared with the reference interpreter.

use orch_compute::{BlockProgram, Layout, Storage, fuse, layouts};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{
    BinaryFn, Contract, ConvSpec, DType, PadMode, PrimGraph, PrimOp, ScalarFn, Tensor, TensorId, Window,
};
use orch_template::gpu::contraction::{ConvolutionForm, SpatialDim, StridedImage};
use orch_template::gpu::designs;
use orch_thread::BufferData;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Binding;
use orch_thread::target::SM_90;

/// A graph, values of its inputs, and the layouts of tensors that differ from the usual ones.
struct Case {
    graph: PrimGraph,
    inputs: Vec<Tensor>,
    row_major: Vec<TensorId>,
}

/// Multiples of 1/8, which every type here represents exactly.
fn values(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let elems: usize = shape.iter().product();
    let data: Vec<f64> = (0..elems).map(|i| ((i * 37 + seed * 11) % 23) as f64 / 8.0 - 1.25).collect();
    Tensor::from_f64(dtype, shape.to_vec(), &data)
}

fn window(kernel: [usize; 2], strides: [usize; 2], dilations: [usize; 2], padding: [usize; 2]) -> Window {
    Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        low: padding.to_vec(),
        high: padding.to_vec(),
    }
}

/// A 3 x 3 window with padding that keeps the size of the image.
fn three() -> Window {
    window([3, 3], [1, 1], [1, 1], [1, 1])
}

/// The epilogue of a convolution: what is added, and the activation.
#[derive(Clone, Copy, Default)]
struct Epilogue {
    has_bias: bool,
    has_addend: bool,
    has_relu: bool,
}

impl Case {
    fn new() -> Self {
        Self { graph: PrimGraph::new("case"), inputs: Vec::new(), row_major: Vec::new() }
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

    fn convolve(&mut self, x: TensorId, w: TensorId, window: Window) -> TensorId {
        self.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w])
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

    fn relu(&mut self, x: TensorId) -> TensorId {
        let (shape, dtype) = (self.graph.shape(x).clone(), self.graph.dtype(x));
        let zero = self.graph.add_constant(Tensor::from_f64(dtype, Vec::<usize>::new(), &[0.0]));
        let zero = self.add(PrimOp::Broadcast { shape, dims: Vec::new() }, &[zero]);
        self.binary(BinaryFn::Max, x, zero)
    }

    /// Adds the epilogue, in f32, as graphs with 16-bit storage have it.
    fn finished(&mut self, y: TensorId, dtype: DType, epilogue: Epilogue) -> TensorId {
        let mut y = y;
        if epilogue.has_bias {
            let bias = self.vector(dtype, y, 1);
            let bias = self.cast(DType::F32, bias);
            y = self.binary(BinaryFn::Add, y, bias);
        }
        if epilogue.has_addend {
            let shape = self.graph.shape(y).to_vec();
            let addend = self.input(dtype, &shape);
            let addend = self.cast(DType::F32, addend);
            y = self.binary(BinaryFn::Add, y, addend);
        }
        if epilogue.has_relu {
            y = self.relu(y);
        }
        if dtype == DType::F32 { y } else { self.cast(dtype, y) }
    }

    /// The layouts: channels-last for images and weights, as between kernels, except for those that are set to
    /// row-major.
    fn layouts(&self) -> Vec<Layout> {
        let mut layouts = layouts::assign_gpu(&self.graph);
        for (at, info) in self.graph.tensors().iter().enumerate() {
            let tensor = TensorId::new(at);
            if info.shape.rank() == 4 {
                let is_row_major = self.row_major.contains(&tensor);
                layouts[at] = if is_row_major { Layout::row_major(4) } else { Layout::channels_last(4) };
            }
        }
        layouts
    }

    fn block(&mut self, result: TensorId) -> BlockProgram {
        self.graph.add_output("y", result);
        let storage = Storage::as_stated(&self.graph, self.layouts());
        let nodes: Vec<_> = self.graph.node_ids().collect();
        fuse::build_stored(&self.graph, &nodes, &[result], &storage, "kernel")
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_none(&mut self, result: TensorId, precision: OperandPrecision) -> bool {
        let block = self.block(result);
        ConvolutionForm::of(&block, precision).is_none()
    }

    /// The description of the whole graph as a convolution; its result is compared with the graph's.
    fn convolution(&mut self, result: TensorId, precision: OperandPrecision) -> ConvolutionForm {
        let block = self.block(result);
        let conv =
            ConvolutionForm::of(&block, precision).unwrap_or_else(|| panic!("no convolution:\n{block}"));
        let got = self.computed(&block, &conv);
        let expected = evaluate(&self.graph, &self.inputs, &EvalOptions::default()).expect("the oracle runs");
        // The expected result in the order of its layout.
        let layout = &self.layouts()[result.index()];
        let shape = self.graph.shape(result).clone();
        let (own, logical) = (layout.strides(&shape), Layout::row_major(shape.rank()).strides(&shape));
        let tolerance = if precision == OperandPrecision::F32 { 1e-5 } else { 1e-2 };
        for (place, want) in expected[0].to_f64().into_iter().enumerate() {
            let at: usize = (0..shape.rank()).map(|dim| place / logical[dim] % shape[dim] * own[dim]).sum();
            let got = got[at];
            assert!(
                (got - want).abs() <= tolerance * want.abs().max(1.0),
                "{got} instead of {want}\n{conv:?}"
            );
        }
        // Arguments are those that kernels of the template have.
        let kernels = designs(&block, &SM_90, precision, 4);
        let tiled = kernels.iter().find(|kernel| kernel.schedule.starts_with("contraction"));
        assert_eq!(tiled.expect("the template serves it").kernel.bindings, conv.bindings);
        conv
    }

    /// The output in memory, from the description alone.
    fn computed(&self, block: &BlockProgram, conv: &ConvolutionForm) -> Vec<f64> {
        let in_memory = |tensor: TensorId, layout: &Layout| {
            let given = self.graph.inputs.iter().position(|(_, input)| *input == tensor);
            let value = given.map(|i| &self.inputs[i]).or_else(|| self.graph.constant(tensor))?;
            let shape = value.shape().clone();
            let (own, logical) = (layout.strides(&shape), Layout::row_major(shape.rank()).strides(&shape));
            let mut placed = vec![0.0; shape.elems()];
            for (place, value) in value.to_f64().into_iter().enumerate() {
                let at: usize =
                    (0..shape.rank()).map(|dim| place / logical[dim] % shape[dim] * own[dim]).sum();
                placed[at] = value;
            }
            Some(placed)
        };
        let buffer = |binding: &Binding| match binding {
            Binding::Arg(arg) => {
                let arg = block.arg(*arg);
                in_memory(arg.tensor, &arg.layout).map(|values| (arg.dtype, values))
            }
            Binding::Packed(packed) => {
                let source =
                    self.graph.constant(block.arg(packed.arg).tensor).expect("constants have values");
                let data = BufferData { dtype: packed.dtype, bytes: packed.pack(source) };
                Some((packed.dtype, data.to_tensor([data.elems()]).unwrap().to_f64()))
            }
            Binding::Own { .. } => panic!("convolutions have no memory of their own"),
        };
        let buffers: Vec<_> = conv.bindings.iter().map(buffer).collect();
        let read = |buffer: usize, place: usize| {
            let (stored, values) = buffers[buffer].as_ref().expect("what is read has a value");
            assert_eq!(*stored, conv.dtype);
            values[place]
        };
        let at = |pixels: &StridedImage, image: usize, row: usize, pixel: usize| {
            pixels.offset + image * pixels.image + row * pixels.row + pixel * pixels.pixel
        };
        let (v, h) = (conv.height, conv.width);
        let source = |s: SpatialDim, place: usize, offset: usize| {
            (place * s.stride + offset * s.dilation).checked_sub(s.padding).filter(|&at| at < s.input)
        };
        let mut result = vec![f64::NAN; conv.images * v.output * h.output * conv.out_channels];
        for image in 0..conv.images {
            for y in 0..v.output {
                for x in 0..h.output {
                    for map in 0..conv.out_channels {
                        let mut sum = 0.0;
                        for r in 0..v.kernel {
                            for s in 0..h.kernel {
                                let (Some(iy), Some(ix)) = (source(v, y, r), source(h, x, s)) else {
                                    continue;
                                };
                                for c in 0..conv.in_channels {
                                    let weight = ((map * v.kernel + r) * h.kernel + s) * conv.in_channels + c;
                                    sum +=
                                        read(conv.input.buffer.index(), at(&conv.input, image, iy, ix) + c)
                                            * read(conv.filter.0.index(), conv.filter.1 + weight);
                                }
                            }
                        }
                        sum += conv.bias.map_or(0.0, |(buffer, first)| read(buffer.index(), first + map));
                        sum += conv.addend.map_or(0.0, |pixels| {
                            read(pixels.buffer.index(), at(&pixels, image, y, x) + map)
                        });
                        let sum = if conv.has_relu { sum.max(0.0) } else { sum };
                        result[at(&conv.result, image, y, x) + map] = sum;
                    }
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
fn windows_of_every_kind_are_convolutions() {
    // Batch, channels, height and width, output channels; the window.
    let cases = [
        ([2, 8, 6, 7], 5, three()),
        ([1, 8, 6, 5], 16, window([3, 3], [2, 2], [1, 1], [1, 1])),
        ([2, 4, 7, 9], 3, window([1, 1], [1, 1], [1, 1], [0, 0])),
        ([2, 4, 7, 9], 3, window([1, 1], [2, 3], [1, 1], [0, 0])),
        ([1, 3, 11, 9], 4, window([7, 5], [2, 1], [1, 1], [3, 2])),
        ([2, 4, 9, 8], 3, window([3, 2], [1, 2], [2, 3], [2, 0])),
        ([1, 4, 1, 9], 3, window([1, 3], [1, 1], [1, 1], [0, 1])),
        ([3, 4, 3, 3], 2, window([3, 3], [1, 1], [1, 1], [0, 0])),
        ([2, 1, 5, 5], 2, three()),
        // Padding that is wider than the window.
        ([1, 2, 3, 3], 2, window([2, 2], [1, 1], [1, 1], [3, 2])),
    ];
    for (shape, maps, window) in cases {
        for (dtype, precision) in PRECISIONS {
            let mut case = Case::new();
            let x = case.input(dtype, &shape);
            let w = case.constant(dtype, &[maps, shape[1], window.kernel[0], window.kernel[1]]);
            let (x, w) = (case.cast(DType::F32, x), case.cast(DType::F32, w));
            let y = case.convolve(x, w, window.clone());
            let y = case.finished(y, dtype, Epilogue::default());
            let conv = case.convolution(y, precision);
            assert_eq!((conv.images, conv.in_channels, conv.out_channels), (shape[0], shape[1], maps));
            assert_eq!((conv.dtype, conv.is_tf32), (dtype, precision == OperandPrecision::Tf32));
            let is_as_stated = |spatial: SpatialDim, dim: usize| {
                spatial.padding == window.low[dim]
                    && spatial.kernel == window.kernel[dim]
                    && (spatial.kernel == 1 || spatial.dilation == window.dilations[dim])
                    && (spatial.output == 1 || spatial.stride == window.strides[dim])
            };
            assert!(is_as_stated(conv.height, 0) && is_as_stated(conv.width, 1), "{conv:?}");
        }
    }
}

#[test]
fn bias_addend_and_relu_are_part_of_the_convolution() {
    for (dtype, precision) in PRECISIONS {
        for bits in 0..8 {
            let epilogue =
                Epilogue { has_bias: bits & 1 != 0, has_addend: bits & 2 != 0, has_relu: bits & 4 != 0 };
            let mut case = Case::new();
            let x = case.input(dtype, &[2, 8, 5, 4]);
            let w = case.constant(dtype, &[6, 8, 3, 3]);
            let (x, w) = (case.cast(DType::F32, x), case.cast(DType::F32, w));
            let y = case.convolve(x, w, three());
            let y = case.finished(y, dtype, epilogue);
            if !epilogue.has_bias && (epilogue.has_addend || epilogue.has_relu) {
                assert!(case.is_none(y, precision), "libraries have that with a bias only");
                continue;
            }
            let conv = case.convolution(y, precision);
            assert_eq!(conv.bias.is_some(), epilogue.has_bias);
            assert_eq!(conv.addend.is_some(), epilogue.has_addend);
            assert_eq!(conv.has_relu, epilogue.has_relu);
        }
    }
}

#[test]
fn products_of_pixels_by_a_matrix_are_convolutions() {
    // 1 x 1 convolutions as rewriting leaves them, with a packed matrix.
    for (dtype, precision) in PRECISIONS {
        let mut case = Case::new();
        let (x, w) = (case.input(dtype, &[2, 8, 3, 5]), case.constant(dtype, &[6, 8]));
        let contract = Contract { lhs: vec![0, 1, 2, 3], rhs: vec![4, 1], out: vec![0, 2, 3, 4] };
        let y = case.add(PrimOp::Contract(contract), &[x, w]);
        let y = case.add(PrimOp::Transpose { perm: vec![0, 3, 1, 2] }, &[y]);
        let conv = case.convolution(y, precision);
        assert_eq!((conv.images, conv.height.output, conv.width.output, conv.in_channels), (2, 3, 5, 8));
        assert!(matches!(conv.bindings[conv.filter.0.index()], Binding::Packed(_)));
    }
    // Filters in another order are packed as well.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F16, &[2, 8, 3, 5]), case.constant(DType::F16, &[6, 8, 3, 3]));
    case.row_major.push(w);
    let y = case.convolve(x, w, three());
    let conv = case.convolution(y, OperandPrecision::F16);
    assert!(matches!(conv.bindings[conv.filter.0.index()], Binding::Packed(_)));
    // Library convolutions accept no padding of K.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F16, &[2, 7, 3, 5]), case.constant(DType::F16, &[6, 7]));
    let contract = Contract { lhs: vec![0, 1, 2, 3], rhs: vec![4, 1], out: vec![0, 2, 3, 4] };
    let y = case.add(PrimOp::Contract(contract), &[x, w]);
    let y = case.add(PrimOp::Transpose { perm: vec![0, 3, 1, 2] }, &[y]);
    assert!(case.is_none(y, OperandPrecision::F16));
}

#[test]
fn parts_of_images_are_convolutions() {
    // The second half of the channels.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[2, 8, 4, 5]), case.constant(DType::F32, &[6, 4, 3, 3]));
    let x = case
        .add(PrimOp::Slice { starts: vec![0, 4, 0, 0], steps: vec![1; 4], sizes: vec![2, 4, 4, 5] }, &[x]);
    let y = case.convolve(x, w, three());
    let conv = case.convolution(y, OperandPrecision::F32);
    assert_eq!((conv.input.offset, conv.input.pixel, conv.in_channels), (4, 8, 4));
}

/// A change to a 3 x 3 convolution that makes it none.
type Change = fn(&mut Case, x: TensorId, w: TensorId) -> TensorId;

#[test]
fn everything_else_is_refused() {
    let changes: [(&str, Change); 12] = [
        ("padding that differs between the sides", |case, x, w| {
            case.convolve(x, w, Window { low: vec![0, 1], high: vec![2, 1], ..three() })
        }),
        ("padding with something else than zeros", |case, x, w| {
            let x = case.add(
                PrimOp::Pad { mode: PadMode::Edge, low: vec![0, 0, 1, 1], high: vec![0, 0, 1, 1] },
                &[x],
            );
            case.convolve(x, w, window([3, 3], [1, 1], [1, 1], [0, 0]))
        }),
        ("a part of the rows", |case, x, w| {
            let slice =
                PrimOp::Slice { starts: vec![0, 0, 1, 0], steps: vec![1; 4], sizes: vec![2, 8, 4, 4] };
            let x = case.add(slice, &[x]);
            case.convolve(x, w, three())
        }),
        ("groups", |case, x, _| {
            let w = case.constant(DType::F32, &[8, 4, 3, 3]);
            case.add(PrimOp::Conv(ConvSpec { window: three(), groups: 2 }), &[x, w])
        }),
        ("a filter of another kernel, channels first", |case, x, _| {
            let w = case.input(DType::F32, &[6, 8, 3, 3]);
            case.row_major.push(w);
            case.convolve(x, w, three())
        }),
        ("an image with rows of channels", |case, x, w| {
            case.row_major.push(x);
            case.convolve(x, w, three())
        }),
        ("a result with rows of channels", |case, x, w| {
            let y = case.convolve(x, w, three());
            case.row_major.push(y);
            y
        }),
        ("an addend with rows of channels", |case, x, w| {
            let y = case.convolve(x, w, three());
            let bias = case.vector(DType::F32, y, 1);
            let y = case.binary(BinaryFn::Add, y, bias);
            let other = case.input(DType::F32, &[2, 6, 6, 4]);
            case.row_major.push(other);
            case.binary(BinaryFn::Add, y, other)
        }),
        ("a bias of rows", |case, x, w| {
            let y = case.convolve(x, w, three());
            let bias = case.vector(DType::F32, y, 2);
            case.binary(BinaryFn::Add, y, bias)
        }),
        ("an addend after the ReLU", |case, x, w| {
            let y = case.convolve(x, w, three());
            let bias = case.vector(DType::F32, y, 1);
            let y = case.binary(BinaryFn::Add, y, bias);
            let y = case.relu(y);
            let other = case.input(DType::F32, &[2, 6, 6, 4]);
            case.binary(BinaryFn::Add, y, other)
        }),
        ("another bound than zero", |case, x, w| {
            let y = case.convolve(x, w, three());
            let bias = case.vector(DType::F32, y, 1);
            let y = case.binary(BinaryFn::Add, y, bias);
            let bound = case.vector(DType::F32, y, 1);
            case.binary(BinaryFn::Max, y, bound)
        }),
        ("an operand that is computed", |case, x, w| {
            let x = case.relu(x);
            case.convolve(x, w, three())
        }),
    ];
    for (what, change) in changes {
        let mut case = Case::new();
        let (x, w) = (case.input(DType::F32, &[2, 8, 6, 4]), case.constant(DType::F32, &[6, 8, 3, 3]));
        let y = change(&mut case, x, w);
        assert!(case.is_none(y, OperandPrecision::F32), "{what}");
    }
    // Operands that are rounded before the product, results of another type, and types without tensor core
    // instructions.
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F32, &[2, 8, 6, 4]), case.constant(DType::F32, &[6, 8, 3, 3]));
    let y = case.convolve(x, w, three());
    assert!(case.is_none(y, OperandPrecision::F16));
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F16, &[2, 8, 6, 4]), case.constant(DType::F16, &[6, 8, 3, 3]));
    let (x, w) = (case.cast(DType::F32, x), case.cast(DType::F32, w));
    let y = case.convolve(x, w, three());
    assert!(case.is_none(y, OperandPrecision::F16));
    let mut case = Case::new();
    let (x, w) = (case.input(DType::F64, &[2, 8, 6, 4]), case.constant(DType::F64, &[6, 8, 3, 3]));
    let y = case.convolve(x, w, three());
    assert!(case.is_none(y, OperandPrecision::F32));
}
