//! Tests of the library and its calls, with a driver and a library that have no device. The own kernel of every step computes
//! something else than its call, so that results tell which of them ran.

use super::sys;
use crate::cuda::testing::{Fake, FakeLibrary, floats, function};
use crate::cuda::*;
use crate::program::{Base, BufferRef};
use std::sync::Arc;

fn load_error(fake: &FakeLibrary) -> String {
    Cudnn::load(&fake.paths).unwrap_err().to_string()
}

#[test]
fn releases_are_told() {
    let fake = FakeLibrary::cudnn();
    let library = fake.load_cudnn();
    assert_eq!(library.version(), Version { major: 9, minor: 28 });
    assert_eq!(library.release(), "cuDNN 9.28.1");
    assert!(library.path().ends_with("libcudnn.so.9"));
    fake.set("version", "", 100_203);
    assert_eq!(fake.load_cudnn().release(), "cuDNN 10.2.3");
}

#[test]
fn libraries_that_do_not_serve_are_refused() {
    let text = load_error(&FakeLibrary::cudnn_without("cudnnConvolutionForward"));
    assert!(text.contains("has no function `cudnnConvolutionForward`; install cuDNN again (`pip"), "{text}");
    let text = load_error(&FakeLibrary::cudnn_without("cudnnGetVersion"));
    assert!(text.contains("has no function `cudnnGetVersion`"), "{text}");
    let old = FakeLibrary::cudnn();
    old.set("version", "", 8907);
    let text = load_error(&old);
    assert!(
        text.starts_with("cuDNN 8.9 (") && text.contains("9.0 or later is needed: `pip install"),
        "{text}"
    );
    assert!(text.ends_with("the option --cudnn"), "{text}");
}

#[test]
fn without_a_library_the_error_says_what_to_do() {
    let paths = SearchPaths { cudnn: Some("none".into()), ..SearchPaths::default() };
    let text = Cudnn::load(&paths).unwrap_err().to_string();
    assert!(text.starts_with("cuDNN (a library of convolutions) is not there: none: "), "{text}");
    assert!(
        text.contains("cuDNN is not needed") && text.contains("`pip install nvidia-cudnn-cu13`"),
        "{text}"
    );
}

#[test]
fn statuses_are_named() {
    let library = FakeLibrary::cudnn().load_cudnn();
    let error = |status| library.check(status, || "testing".to_owned()).unwrap_err().to_string();
    let text = error(sys::NOT_SUPPORTED);
    assert!(text.starts_with("cuDNN 9.28.1 reports CUDNN_STATUS_NOT_SUPPORTED while testing; "), "{text}");
    assert!(text.ends_with("without it (--cudnn none) the own kernels run"), "{text}");
    assert!(error(77).starts_with("cuDNN 9.28.1 reports status 77 while testing"));
}

/// A window that leaves an image as large as it is.
fn sliding(input: usize, window: usize, stride: usize, dilation: usize, padding: usize) -> Sliding {
    let result = (input + 2 * padding - dilation * (window - 1) - 1) / stride + 1;
    Sliding { input, result, window, stride, dilation, padding }
}

/// A convolution in f32 of the first tensor of a launch by the second one into the last one, with bias, addend and rectifier
/// as requested.
fn convolution(vertical: Sliding, horizontal: Sliding, epilogue: [bool; 3]) -> Convolution {
    let (images, channels, maps) = (2, 3, 4);
    let pixels = |argument, rows: usize, columns: usize, depth: usize| {
        // Channels, pixels, rows and images that are apart.
        let pixel = depth + 1;
        let row = pixel * columns + 2;
        Pixels { argument, offset: 3, image: row * rows + 1, row, pixel }
    };
    let [has_bias, has_addend, is_rectified] = epilogue;
    let target = |argument| pixels(argument, vertical.result, horizontal.result, maps);
    let addend = 2 + usize::from(has_bias);
    Convolution {
        element: Element::F32,
        is_tf32: false,
        images,
        channels,
        maps,
        vertical,
        horizontal,
        input: pixels(0, vertical.input, horizontal.input, channels),
        filter: Vector { argument: 1, offset: 2 },
        result: target(addend + usize::from(has_addend)),
        bias: has_bias.then_some(Vector { argument: 2, offset: 1 }),
        addend: has_addend.then(|| Pixels { image: 400, offset: 5, ..target(addend) }),
        is_rectified,
    }
}

/// What a convolution of these tensors computes, by its definition.
fn expected(conv: &Convolution, tensors: &[Vec<f32>], result: &mut [f32]) {
    let at = |pixels: &Pixels, image: usize, row: usize, pixel: usize| {
        pixels.offset + image * pixels.image + row * pixels.row + pixel * pixels.pixel
    };
    let (v, h) = (conv.vertical, conv.horizontal);
    let source = |s: Sliding, place: usize, offset: usize| {
        (place * s.stride + offset * s.dilation).checked_sub(s.padding).filter(|&at| at < s.input)
    };
    for image in 0..conv.images {
        for (y, x) in (0..v.result).flat_map(|y| (0..h.result).map(move |x| (y, x))) {
            for map in 0..conv.maps {
                let mut sum = 0.0;
                for (r, s) in (0..v.window).flat_map(|r| (0..h.window).map(move |s| (r, s))) {
                    let (Some(row), Some(pixel)) = (source(v, y, r), source(h, x, s)) else { continue };
                    for c in 0..conv.channels {
                        let weight = ((map * v.window + r) * h.window + s) * conv.channels + c;
                        sum += tensors[conv.input.argument][at(&conv.input, image, row, pixel) + c]
                            * tensors[conv.filter.argument][conv.filter.offset + weight];
                    }
                }
                sum += conv.bias.map_or(0.0, |bias| tensors[bias.argument][bias.offset + map]);
                sum += conv
                    .addend
                    .map_or(0.0, |addend| tensors[addend.argument][at(&addend, image, y, x) + map]);
                result[at(&conv.result, image, y, x) + map] =
                    if conv.is_rectified { sum.max(0.0) } else { sum };
            }
        }
    }
}

/// Elements of every tensor here.
const ELEMS: usize = 1000;

/// Small whole numbers, of which every sum is exact.
fn values(seed: usize) -> Vec<f32> {
    (0..ELEMS).map(|i| ((i * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

/// A program of one call beside a kernel that writes nothing useful, whose tensors are inputs and an output.
fn single(context: &Context, library: Result<Arc<Cudnn>, CudaError>, conv: &Convolution) -> Program {
    const BYTES: usize = 4 * ELEMS;
    let inputs = conv.result.argument.min(4);
    let reads = (0..inputs).map(|input| BufferRef::read(Base::Input(input), 0, BYTES));
    let buffers = reads.chain([BufferRef::write(Base::Output(0), 0, BYTES)]).collect();
    let shape = LaunchShape { is_programmatic: true, ..LaunchShape::new(1, 1) };
    let call = Some(LibraryCall::Convolution(library, conv.clone()));
    let launch = Launch {
        function: function(context, "neg"),
        shape,
        buffers,
        tensor_maps: Vec::new(),
        cleared: Vec::new(),
        call,
    };
    Program {
        input_bytes: vec![BYTES; inputs],
        output_bytes: vec![BYTES],
        steps: vec![CudaStep { name: "convolution".into(), action: Action::Launch(launch) }],
        ..Program::default()
    }
}

fn executable(context: &Context, program: Program) -> CudaExecutable {
    CudaExecutable::new(context, program, ExecutableOptions::default()).unwrap()
}

fn run(executable: &mut CudaExecutable, inputs: &[Vec<f32>]) -> Vec<f32> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|values| floats(values.iter().copied())).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &bytes[..]).collect();
    let mut bytes = vec![0; 4 * ELEMS];
    executable.run(&inputs, &mut [&mut bytes]).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn convolutions_of_every_kind_are_right() {
    let (fake, dnn) = (Fake::new(), FakeLibrary::cudnn());
    let (context, library) = (fake.context(), dnn.load_cudnn());
    let directions = [
        (sliding(5, 3, 1, 1, 1), sliding(6, 3, 1, 1, 1)),
        (sliding(5, 3, 2, 1, 1), sliding(7, 1, 3, 1, 0)),
        (sliding(6, 2, 1, 3, 2), sliding(5, 2, 1, 2, 0)),
        (sliding(1, 1, 1, 1, 0), sliding(4, 1, 1, 1, 0)),
    ];
    let epilogues = [[false; 3], [true, false, false], [true, true, false], [true, false, true], [true; 3]];
    for (vertical, horizontal) in directions {
        for epilogue in epilogues {
            for workspace in [0, 4096] {
                dnn.set("workspace", "", workspace);
                let conv = convolution(vertical, horizontal, epilogue);
                let inputs: Vec<Vec<f32>> = (0..conv.result.argument).map(values).collect();
                let mut executable = executable(&context, single(&context, Ok(Arc::clone(&library)), &conv));
                assert_eq!(executable.call_of(0), Some(Ok("cuDNN 9.28.1".to_owned())));
                let mut right = vec![0.0; ELEMS];
                expected(&conv, &inputs, &mut right);
                assert_eq!(run(&mut executable, &inputs), right, "{conv:?}");
                let options = TimeOptions { warmup: 1, replays: 3, flush_l2: false };
                let times = executable.time_steps(0..1, &options).unwrap();
                assert!(times.iter().all(|time| (time - 3.0).abs() < 1e-2), "{times:?}");
            }
        }
    }
    assert_eq!(fake.memory_used(), 0, "everything is freed");
}

#[test]
fn algorithms_are_those_that_serve() {
    let (fake, dnn) = (Fake::new(), FakeLibrary::cudnn());
    let (context, library) = (fake.context(), dnn.load_cudnn());
    let outcome = |epilogue: [bool; 3]| {
        let conv = convolution(sliding(5, 3, 1, 1, 1), sliding(5, 3, 1, 1, 1), epilogue);
        let executable = executable(&context, single(&context, Ok(Arc::clone(&library)), &conv));
        executable.call_of(0).unwrap().map_err(str::to_owned)
    };
    // One that adds up what is transformed is not taken, nor another one than the API has for no rectifier.
    for (algorithm, is_plain, is_rectified, is_biased) in
        [(1, true, true, true), (0, true, true, false), (3, true, true, false), (7, false, false, false)]
    {
        dnn.set("algorithm", "", algorithm);
        assert_eq!(outcome([false; 3]).is_ok(), is_plain, "{algorithm}");
        assert_eq!(outcome([true, false, true]).is_ok(), is_rectified, "{algorithm}");
        assert_eq!(outcome([true, true, false]).is_ok(), is_biased, "{algorithm}");
    }
    dnn.set("algorithm", "", 1).set("workspace", "", 1 << 40);
    let reason = outcome([false; 3]).unwrap_err();
    assert!(reason.contains("reports CUDNN_STATUS_NOT_SUPPORTED while choosing an algorithm"), "{reason}");
}

#[test]
fn what_the_library_declines_is_left_to_the_kernel() {
    for function in [
        "cudnnCreate",
        "cudnnSetStream",
        "cudnnCreateTensorDescriptor",
        "cudnnSetTensor4dDescriptorEx",
        "cudnnSetFilter4dDescriptor",
        "cudnnSetConvolution2dDescriptor",
        "cudnnSetConvolutionGroupCount",
        "cudnnSetConvolutionMathType",
        "cudnnSetActivationDescriptor",
        "cudnnGetConvolutionForwardAlgorithm_v7",
        "cudnnGetConvolutionForwardWorkspaceSize",
        "cudnnConvolutionBiasActivationForward",
    ] {
        let (fake, dnn) = (Fake::new(), FakeLibrary::cudnn());
        let (context, library) = (fake.context(), dnn.load_cudnn());
        dnn.set("status", function, 2000);
        let conv = convolution(sliding(5, 3, 1, 1, 1), sliding(5, 3, 1, 1, 1), [true; 3]);
        let mut executable = executable(&context, single(&context, Ok(library), &conv));
        let reason = executable.call_of(0).unwrap().unwrap_err().to_owned();
        assert!(reason.contains("cuDNN 9.28.1 reports CUDNN_STATUS_BAD_PARAM"), "{function}: {reason}");
        run(&mut executable, &[0, 1, 2, 3].map(values));
        drop(executable);
        assert_eq!(fake.memory_used(), 0);
    }
}

#[test]
fn without_the_library_and_without_graphs_kernels_run() {
    let (fake, dnn) = (Fake::new(), FakeLibrary::cudnn());
    let (context, library) = (fake.context(), dnn.load_cudnn());
    let conv = convolution(sliding(5, 3, 1, 1, 1), sliding(5, 3, 1, 1, 1), [false; 3]);
    let paths = SearchPaths { cudnn: Some("none".into()), ..SearchPaths::default() };
    let absent = Cudnn::load(&paths).map(Arc::new);
    let without = executable(&context, single(&context, absent, &conv));
    let reason = without.call_of(0).unwrap().unwrap_err();
    assert!(reason.starts_with("cuDNN (a library of convolutions) is not there"), "{reason}");
    for symbol in ["cuStreamBeginCapture_v2", "cuStreamEndCapture"] {
        fake.fail(symbol, 901, 0);
        let mut executable = executable(&context, single(&context, Ok(Arc::clone(&library)), &conv));
        let reason = executable.call_of(0).unwrap().unwrap_err().to_owned();
        assert!(reason.contains("while capturing a call of a library"), "{reason}");
        run(&mut executable, &[0, 1].map(values));
    }
}

#[test]
fn convolutions_outside_of_their_tensors_are_refused() {
    let (fake, dnn) = (Fake::new(), FakeLibrary::cudnn());
    let (context, library) = (fake.context(), dnn.load_cudnn());
    let good = convolution(sliding(5, 3, 1, 1, 1), sliding(5, 3, 1, 1, 1), [true; 3]);
    let refused = |change: &dyn Fn(&mut Convolution)| {
        let mut conv = good.clone();
        change(&mut conv);
        let program = single(&context, Ok(Arc::clone(&library)), &conv);
        let made = CudaExecutable::new(&context, program, ExecutableOptions::default());
        made.err().map_or(String::new(), |error| error.to_string())
    };
    assert_eq!(refused(&|_| ()), "");
    type Change = fn(&mut Convolution);
    let changes: [(Change, &str); 18] = [
        (|c| c.images = 0, "calls for a convolution of 0 images"),
        (|c| c.maps = 1 << 31, "to 2147483648 maps"),
        (|c| c.vertical.stride = 0, "that moves by"),
        (|c| c.vertical.dilation = usize::MAX, "that moves by"),
        (|c| c.horizontal.result = 6, "that moves by"),
        (|c| c.horizontal.padding = usize::MAX, "that moves by"),
        (|c| c.horizontal.window = 8, "that moves by"),
        (|c| c.input.offset = ELEMS, "whose input is not in a tensor for it"),
        (|c| c.input.argument = 4, "whose input is not in a tensor for it"),
        (|c| c.input.pixel = 2, "whose input is not in a tensor for it"),
        (|c| c.input.row = usize::MAX, "whose input is not in a tensor for it"),
        (|c| c.input.image = 1 << 31, "whose input is not in a tensor for it"),
        (|c| c.filter.offset = usize::MAX, "whose filter is not in a tensor for it"),
        (|c| c.result.argument = 9, "whose result is not in a tensor for it"),
        (|c| c.result.row = 9, "whose result is not in a tensor for it"),
        (|c| c.addend = Some(Pixels { argument: 9, ..c.result }), "whose addend is not in a tensor for it"),
        (|c| c.bias = Some(Vector { argument: 2, offset: ELEMS }), "whose bias is not in a tensor for it"),
        (|c| c.bias = None, "with an addend or a rectifier but without a bias"),
    ];
    for (change, expected) in changes {
        let text = refused(&change);
        assert!(text.contains(expected), "`{expected}` in: {text}");
    }
}
