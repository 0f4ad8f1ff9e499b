//! Tests of programs with library calls, with a driver and a library that have no device. The own kernel of every step
//! computes something else than its call, so that results tell which of them ran.

use crate::cuda::testing::{Fake, FakeLibrary, floats, function};
use crate::cuda::*;
use crate::program::{Base, BufferRef};
use std::sync::Arc;

/// A product in f32 of the first two tensors of a launch into the last one, with the third one as bias if there are four.
fn product([batch, m, n, k]: [usize; 4], orders: [MatrixOrder; 2], has_bias: bool) -> MatrixProduct {
    let matrix = |argument, order, (rows, columns): (usize, usize)| {
        let lead = if order == MatrixOrder::Rows { columns } else { rows };
        Matrix { argument, offset: 0, order, lead, batch: rows * columns }
    };
    let bias = has_bias.then_some(Vector { argument: 2, offset: 0 });
    let result = matrix(if has_bias { 3 } else { 2 }, MatrixOrder::Rows, (m, n));
    let (a, b) = (matrix(0, orders[0], (m, k)), matrix(1, orders[1], (k, n)));
    let (operands, stored) = (Element::F32, Element::F32);
    MatrixProduct { batch, m, n, k, operands, stored, is_tf32: false, a, b, result, bias, addend: None }
}

/// What a product of these tensors computes, by its definition.
fn expected(product: &MatrixProduct, tensors: &[Vec<f32>], result: &mut [f32]) {
    let at = |matrix: &Matrix, z: usize, row: usize, column: usize| {
        let place = match matrix.order {
            MatrixOrder::Rows => row * matrix.lead + column,
            MatrixOrder::Columns => column * matrix.lead + row,
        };
        matrix.offset + z * matrix.batch + place
    };
    for z in 0..product.batch {
        for i in 0..product.m {
            for j in 0..product.n {
                let read =
                    |matrix: &Matrix, row, column| tensors[matrix.argument][at(matrix, z, row, column)];
                let products = (0..product.k).map(|t| read(&product.a, i, t) * read(&product.b, t, j));
                let bias = product.bias.map_or(0.0, |bias| tensors[bias.argument][bias.offset + j]);
                let addend = product.addend.map_or(0.0, |addend| read(&addend, i, j));
                result[at(&product.result, z, i, j)] = products.sum::<f32>() + bias + addend;
            }
        }
    }
}

/// Small whole numbers, of which every sum is exact.
fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

/// One step: a call beside a kernel that writes nothing useful.
fn step(
    context: &Context,
    library: &Arc<CublasLt>,
    product: &MatrixProduct,
    buffers: Vec<BufferRef>,
) -> CudaStep {
    let shape = LaunchShape { is_programmatic: true, ..LaunchShape::new(1, 1) };
    let call = Some(LibraryCall::Product(Ok(Arc::clone(library)), product.clone()));
    let launch = Launch {
        function: function(context, "neg"),
        shape,
        buffers,
        tensor_maps: Vec::new(),
        cleared: Vec::new(),
        call,
    };
    CudaStep { name: "product".into(), action: Action::Launch(launch) }
}

/// A program of one call, whose tensors are inputs and an output of so many elements.
fn single(context: &Context, library: &Arc<CublasLt>, product: &MatrixProduct, elems: &[usize]) -> Program {
    let bytes: Vec<usize> = elems.iter().map(|elems| 4 * elems).collect();
    let (output, inputs) = bytes.split_last().unwrap();
    let reads = inputs.iter().enumerate().map(|(idx, &len)| BufferRef::read(Base::Input(idx), 0, len));
    let buffers = reads.chain([BufferRef::write(Base::Output(0), 0, *output)]).collect();
    Program {
        input_bytes: inputs.to_vec(),
        output_bytes: vec![*output],
        steps: vec![step(context, library, product, buffers)],
        ..Program::default()
    }
}

fn run(executable: &mut CudaExecutable, inputs: &[&[f32]], len: usize) -> Vec<f32> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|values| floats(values.iter().copied())).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &bytes[..]).collect();
    let mut bytes = vec![0; 4 * len];
    executable.run(&inputs, &mut [&mut bytes]).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn executable(context: &Context, program: Program, execution: Execution) -> CudaExecutable {
    let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
    let mut executable = CudaExecutable::new(context, program, options).unwrap();
    executable.use_own().unwrap();
    executable
}

#[test]
fn products_of_every_order_are_right() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let both = [MatrixOrder::Rows, MatrixOrder::Columns];
    let orders = both.into_iter().flat_map(|a| both.map(|b| [a, b]));
    let extents = [[1, 3, 4, 5], [2, 3, 2, 4], [3, 1, 4, 2], [1, 4, 1, 3], [1, 2, 3, 1]];
    for (orders, [batch, m, n, k]) in orders.flat_map(|orders| extents.map(|extents| (orders, extents))) {
        for (has_bias, has_addend) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut product = product([batch, m, n, k], orders, has_bias);
            // Lines, batches and starts that are apart.
            for matrix in [&mut product.a, &mut product.b, &mut product.result] {
                matrix.lead += 2;
                matrix.offset = 3;
                matrix.batch = 70;
            }
            if has_addend {
                let argument = product.result.argument;
                product.addend =
                    Some(Matrix { argument, lead: n + 1, offset: 5, batch: 60, ..product.result });
                product.result.argument += 1;
            }
            let inputs: Vec<Vec<f32>> = (0..product.result.argument).map(|seed| values(200, seed)).collect();
            let program = single(&context, &library, &product, &vec![200; inputs.len() + 1]);
            let mut executable = executable(&context, program, Execution::BranchedGraph);
            assert_eq!(executable.call_of(0), Some(Ok("cuBLASLt 13.1.0".to_owned())));
            let mut right = vec![0.0; 200];
            expected(&product, &inputs, &mut right);
            let given: Vec<&[f32]> = inputs.iter().map(|values| &values[..]).collect();
            assert_eq!(run(&mut executable, &given, 200), right, "{product:?}");
        }
    }
}

/// The call's addresses are fixed, so that its tensors are copied, and other kernels read the copies.
#[test]
fn tensors_of_the_device_are_staged_for_calls() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let product = product([1, 2, 2, 2], [MatrixOrder::Rows; 2], false);
    const BYTES: usize = 16;
    for execution in Execution::ALL {
        let mut program = single(&context, &library, &product, &[4, 4, 4]);
        // `-a`, by a kernel, into an output of its own.
        let shape = LaunchShape::new(1, 4);
        let buffers =
            vec![BufferRef::read(Base::Input(0), 0, BYTES), BufferRef::write(Base::Output(1), 0, BYTES)];
        let launch = Launch {
            function: function(&context, "neg"),
            shape,
            buffers,
            tensor_maps: Vec::new(),
            cleared: Vec::new(),
            call: None,
        };
        program.steps.push(CudaStep { name: "negative".into(), action: Action::Launch(launch) });
        program.output_bytes.push(BYTES);
        let mut executable = executable(&context, program, execution);
        let stream = Arc::new(Stream::new(&context).unwrap());
        let tensor = |values: &[f32]| {
            DeviceBuffer::copy_of(&stream, &floats(values.iter().copied()), "a test").unwrap()
        };
        for seed in 0..3 {
            let (a, b) = (values(4, seed), values(4, seed + 1));
            let tensors = [tensor(&a), tensor(&b), tensor(&[0.0; 4]), tensor(&[0.0; 4])];
            // SAFETY: the tensors outlive the run, which is done at once.
            let [a_at, b_at, y_at, z_at] =
                [0, 1, 2, 3].map(|idx: usize| unsafe { DeviceAddress::new(tensors[idx].address()) });
            fake.log();
            let inputs = [InputPlace::Device(a_at), InputPlace::Device(b_at)];
            let run = DeviceTensors { inputs: &inputs, outputs: &[y_at, z_at], scratch: None };
            executable.enqueue_on(&stream, &run).unwrap();
            let log = fake.log();
            assert_eq!(log.matches("copy 16").count(), 3, "two inputs and an output: {log}");
            let content = |tensor: &DeviceBuffer| {
                let mut bytes = vec![0; BYTES];
                tensor.copy_to_host(&stream, 0, &mut bytes).unwrap();
                bytes
            };
            let mut right = vec![0.0; 4];
            expected(&product, &[a.clone(), b], &mut right);
            assert_eq!(content(&tensors[2]), floats(right));
            assert_eq!(content(&tensors[3]), floats(a.iter().map(|value| -value)));
        }
    }
}

/// `x -> x * w -> x * w`, with a kernel between: `y = -(x * w) * w`, and another product beside it.
fn chain(context: &Context, library: &Arc<CublasLt>) -> Program {
    const BYTES: usize = 16;
    let product = product([1, 2, 2, 2], [MatrixOrder::Rows; 2], false);
    let (x, w) = (BufferRef::read(Base::Input(0), 0, BYTES), BufferRef::read(Base::Constant(0), 0, BYTES));
    let read = |slot: usize| BufferRef::read(Base::Arena, BYTES * slot, BYTES);
    let write = |slot: usize| BufferRef::write(Base::Arena, BYTES * slot, BYTES);
    let output = |idx| BufferRef::write(Base::Output(idx), 0, BYTES);
    let shape = LaunchShape { is_programmatic: true, ..LaunchShape::new(2, 2) };
    let negate = |from, to| {
        let (function, buffers) = (function(context, "neg"), vec![from, to]);
        let launch =
            Launch { function, shape, buffers, tensor_maps: Vec::new(), cleared: Vec::new(), call: None };
        CudaStep { name: "negate".into(), action: Action::Launch(launch) }
    };
    let multiply = |buffers: [BufferRef; 3]| step(context, library, &product, buffers.to_vec());
    Program {
        arena_bytes: 4 * BYTES,
        constants: vec![floats([1.0, 2.0, 0.0, 1.0]).into()],
        input_bytes: vec![BYTES],
        output_bytes: vec![BYTES; 2],
        updates: Vec::new(),
        steps: vec![
            multiply([x, w, write(0)]),
            negate(read(0), write(1)),
            negate(read(1), write(2)),
            negate(read(2), write(3)),
            multiply([read(3), w, output(0)]),
            multiply([w, x, output(1)]),
        ],
    }
}

fn check_chain(executable: &mut CudaExecutable) {
    let (mut first, mut second) = (vec![0; 16], vec![0; 16]);
    executable.run(&[&floats([1.0, 2.0, 3.0, 4.0])], &mut [&mut first, &mut second]).unwrap();
    // x w = [1 4; 3 10], x w w = [1 6; 3 16], w x = [7 10; 3 4].
    assert_eq!(first, floats([-1.0, -6.0, -3.0, -16.0]));
    assert_eq!(second, floats([7.0, 10.0, 3.0, 4.0]));
}

#[test]
fn calls_run_in_every_way() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    for workspace in [0, 4096] {
        lt.set("workspace", "", workspace);
        let (context, library) = (fake.context(), lt.load_cublaslt());
        for execution in Execution::ALL {
            let mut first = executable(&context, chain(&context, &library), execution);
            check_chain(&mut first);
            let mut second = first.duplicate_with_inputs().unwrap();
            drop(first);
            check_chain(&mut second);
            assert_eq!(fake.memory_used(), 64 + 256 + 3 * 16 + workspace);
            let options = TimeOptions { warmup: 1, replays: 3, flush_l2: true };
            let times = second.time_runs(&options).unwrap();
            assert!(times.iter().all(|time| (time - 24.0).abs() < 1e-2), "{times:?}");
            let times = second.time_steps(4..5, &options).unwrap();
            assert!(times.iter().all(|time| (time - 3.0).abs() < 1e-2), "{times:?}");
            let times: Vec<f64> =
                second.profile(3).unwrap().iter().map(|step| step.median_us.round()).collect();
            assert_eq!(times, [3.0, 5.0, 5.0, 5.0, 3.0, 3.0]);
        }
        let options = ExecutableOptions { check_each_step: true, ..ExecutableOptions::default() };
        check_chain(&mut CudaExecutable::new(&context, chain(&context, &library), options).unwrap());
        assert_eq!(fake.memory_used(), 0, "everything is freed");
    }
}

fn nodes(fake: &Fake) -> Vec<String> {
    let is_built = |line: &&str| line.starts_with("node") || line.starts_with(' ');
    fake.log().lines().filter(is_built).map(str::to_owned).collect()
}

#[test]
fn graphs_have_calls_as_nodes_that_nothing_starts_early_after() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let _executable = executable(&context, chain(&context, &library), Execution::BranchedGraph);
    let mut expected = [
        "node 0: graph of product after",
        "node 1: neg 2x2 shared 0 after 0",
        "node 2: neg 2x2 shared 0 after",
        "  early after 1",
        "node 3: neg 2x2 shared 0 after",
        "  early after 2",
        "node 4: graph of product after 3",
        "node 5: graph of product after",
    ]
    .map(str::to_owned);
    assert_eq!(nodes(&fake), expected);
    // Those that share a workspace come one after the other, waiting for each other once.
    lt.set("workspace", "", 64);
    let _executable = executable(&context, chain(&context, &library), Execution::BranchedGraph);
    expected[6] = "node 4: graph of product after 3 0".into();
    expected[7] = "node 5: graph of product after 4".into();
    assert_eq!(nodes(&fake), expected);
}

#[test]
fn what_the_library_declines_is_left_to_the_kernel() {
    for function in [
        "cublasLtCreate",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ] {
        let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
        let (context, library) = (fake.context(), lt.load_cublaslt());
        lt.set("status", function, 15);
        let product = product([1, 1, 1, 1], [MatrixOrder::Rows; 2], false);
        let program = single(&context, &library, &product, &[1, 1, 1]);
        // The kernel negates its first tensor into its second one, which is an input here and not looked at.
        let mut executable = executable(&context, program, Execution::BranchedGraph);
        let reason = executable.call_of(0).unwrap().unwrap_err().to_owned();
        assert!(reason.contains("cuBLASLt 13.1.0 reports CUBLAS_STATUS_NOT_SUPPORTED"), "{reason}");
        assert!(nodes(&fake)[0].starts_with("node 0: neg"));
        run(&mut executable, &[&[2.0], &[3.0]], 1);
        drop(executable);
        assert_eq!(fake.memory_used(), 0);
    }
}

#[test]
fn without_the_library_kernels_run() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let product = product([1, 1, 1, 1], [MatrixOrder::Rows; 2], false);
    let mut program = single(&context, &library, &product, &[1, 1, 1]);
    let Action::Launch(launch) = &mut program.steps[0].action else { unreachable!("it is a launch") };
    let paths = SearchPaths { cublaslt: Some("none".into()), ..SearchPaths::default() };
    launch.call = Some(LibraryCall::Product(CublasLt::load(&paths).map(Arc::new), product));
    let mut executable = executable(&context, program, Execution::BranchedGraph);
    let reason = executable.call_of(0).unwrap().unwrap_err();
    assert!(reason.starts_with("cuBLASLt (a library of matrix products) is not there"), "{reason}");
    assert!(nodes(&fake)[0].starts_with("node 0: neg"));
    run(&mut executable, &[&[2.0], &[3.0]], 1);
}

#[test]
fn what_no_graph_takes_is_left_to_the_kernel() {
    for symbol in ["cuStreamBeginCapture_v2", "cuStreamEndCapture"] {
        let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
        let (context, library) = (fake.context(), lt.load_cublaslt());
        fake.fail(symbol, 901, 0);
        let product = product([1, 1, 1, 1], [MatrixOrder::Rows; 2], false);
        let program = single(&context, &library, &product, &[1, 1, 1]);
        let mut executable = executable(&context, program, Execution::BranchedGraph);
        let reason = executable.call_of(0).unwrap().unwrap_err().to_owned();
        assert!(reason.contains("while capturing a call of a library"), "{reason}");
        run(&mut executable, &[&[2.0], &[3.0]], 1);
        let again = executable.duplicate_with_inputs().unwrap();
        assert!(again.call_of(0).unwrap().is_ok(), "the next capture works");
    }
}

#[test]
fn devices_that_fail_are_no_fallback() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    fake.fail("cuStreamSynchronize", 719, 0);
    let made = CudaExecutable::new(&context, chain(&context, &library), ExecutableOptions::default());
    assert!(matches!(made, Err(ExecutableError::Cuda(error)) if error.is_final()));
}

#[test]
fn failing_calls_are_named() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let product = product([1, 1, 1, 1], [MatrixOrder::Rows; 2], false);
    let program = single(&context, &library, &product, &[1, 1, 1]);
    let mut executable = executable(&context, program, Execution::BranchedGraph);
    fake.fail("cuGraphLaunch", 1, 0);
    let text = executable.run_on_device(1).unwrap_err().to_string();
    assert!(text.ends_with("while launching the call of cuBLASLt 13.1.0 of step `product`"), "{text}");
}

#[test]
fn products_outside_of_their_tensors_are_refused() {
    let (fake, lt) = (Fake::new(), FakeLibrary::cublaslt());
    let (context, library) = (fake.context(), lt.load_cublaslt());
    let good = product([2, 3, 4, 5], [MatrixOrder::Rows; 2], true);
    let refused = |change: &dyn Fn(&mut MatrixProduct)| {
        let mut product = good.clone();
        change(&mut product);
        let program = single(&context, &library, &product, &[30, 40, 4, 24]);
        let made = CudaExecutable::new(&context, program, ExecutableOptions::default());
        made.err().map_or(String::new(), |error| error.to_string())
    };
    assert_eq!(refused(&|_| ()), "");
    type Change = fn(&mut MatrixProduct);
    let changes: [(Change, &str); 13] = [
        (|p| p.k = 0, "calls for 2 products of 3 x 0 by 0 x 4"),
        (|p| p.m = 1 << 31, "calls for 2 products of 2147483648 x"),
        (|p| p.a.offset = 1, "whose A operand is not in a tensor for it"),
        (|p| p.a.argument = 4, "whose A operand is not in a tensor for it"),
        (|p| p.a.argument = 3, "whose A operand is not in a tensor for it"),
        (|p| p.b.lead = 3, "whose B operand is not in a tensor for it"),
        (|p| p.b.batch = usize::MAX, "whose B operand is not in a tensor for it"),
        (|p| p.result.argument = 0, "whose result is not in a tensor for it"),
        (|p| p.result.lead = 5, "whose result is not in a tensor for it"),
        (|p| p.result.order = MatrixOrder::Columns, "calls for a result or addend by columns"),
        (|p| p.addend = Some(Matrix { batch: 13, ..p.result }), "whose addend is not in a tensor for it"),
        (|p| p.stored = Element::F16, "calls for a result in F16 of F32"),
        (|p| p.bias = Some(Vector { argument: 2, offset: 1 }), "whose bias is not in a tensor for it"),
    ];
    for (change, expected) in changes {
        let text = refused(&change);
        assert!(text.contains(expected), "`{expected}` in: {text}");
    }
}
