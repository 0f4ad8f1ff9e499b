//! Primitives that are a kernel by themselves, on CPUs and GPUs: selections of the best and scattering through the interpreter of thread
//! programs, against the reference interpreter. Results are exact.

mod support;

use orch_compute::expr::ArgId;
use orch_compute::{Arg, ArgRole, CumulativeProgram, ScatterProgram, SelectionProgram, Storage, layouts};
use orch_ir::*;
use orch_template::selection::{SelectionSchedule, schedule};
use orch_template::{cumulative, gpu, scatter, selection};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::target::GPU_TARGETS;
use orch_thread::{BufferData, ExecOptions, interpret, validate_thread};
use support::{Random, TARGETS};

/// A tensor as it is stored in a type.
fn stored(tensor: &Tensor, dtype: DType) -> Tensor {
    let cast = PrimOp::Map(ScalarFn::Cast(dtype));
    orch_interp::evaluate_node(&cast, &[tensor], &orch_interp::EvalOptions::default())
        .expect("numbers of any type")
        .remove(0)
}

/// Runs a kernel on the inputs of a graph, and compares its outputs with the graph's.
fn check(graph: &PrimGraph, args: &[Arg], kernel: &Kernel, inputs: &[Tensor], what: &str) {
    assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
    let value = |tensor: TensorId| {
        let position = graph.inputs.iter().position(|(_, input)| *input == tensor).expect("an input");
        &inputs[position]
    };
    let bound: Vec<&Arg> = (kernel.bindings.iter())
        .map(|binding| match binding {
            Binding::Arg(id) => &args[id.index()],
            Binding::Packed(_) | Binding::Own { .. } => {
                panic!("nothing is packed, and there is no memory of their own")
            }
        })
        .collect();
    let mut buffers: Vec<BufferData> = (bound.iter())
        .map(|arg| match arg.role {
            ArgRole::Output => BufferData::zeros(arg.dtype, arg.shape.elems()),
            ArgRole::Input | ArgRole::Constant => {
                BufferData::from_tensor(&stored(value(arg.tensor), arg.dtype))
            }
            // A result in the memory of the first input.
            ArgRole::Updated => BufferData::from_tensor(&inputs[0]),
        })
        .collect();
    let report = interpret(&kernel.program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|error| panic!("{error}\n{what}\n{}", kernel.program));
    assert!(report.unwritten.iter().all(|&count| count == 0), "elements are not written\n{what}");
    let expected = orch_interp::evaluate(graph, inputs, &orch_interp::EvalOptions::default()).unwrap();
    let is_result = |arg: &Arg| matches!(arg.role, ArgRole::Output | ArgRole::Updated);
    for (arg, buffer) in bound.iter().zip(&buffers).filter(|(arg, _)| is_result(arg)) {
        let number = graph.outputs.iter().position(|(_, output)| *output == arg.tensor).expect("an output");
        let given = buffer.to_tensor(arg.shape.clone()).expect("as many elements");
        for (position, (e, g)) in expected[number].to_f64().into_iter().zip(given.to_f64()).enumerate() {
            assert!(e == g || e.is_nan() && g.is_nan(), "element {position}: expected {e}, got {g}\n{what}");
        }
    }
}

/// Elements of which many are equal, and of floats some are infinite, zeros of both signs or NaN.
fn repeated(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed + 1));
    let mut values = random.tensor(DType::F32, &Shape::from(shape.to_vec())).to_f64();
    for (at, value) in values.iter_mut().enumerate() {
        *value = (*value * 8.0).round();
        match (dtype.is_float(), (at * 7 + seed as usize) % 23) {
            (true, 0) => *value = f64::NAN,
            (true, 1) => *value = -0.0,
            (true, 2) => *value = f64::INFINITY,
            (true, 3) => *value = f64::NEG_INFINITY,
            (false, _) if !matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64) => {
                *value = value.abs()
            }
            _ => {}
        }
    }
    Tensor::from_f64(dtype, shape.to_vec(), &values)
}

/// A selection to test: `x [outer, extent, inner]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    shape: [usize; 3],
    k: usize,
    largest: bool,
}

impl Case {
    fn graph(&self) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let [outer, _, inner] = self.shape;
        let x = graph.add_input("x", self.dtype, self.shape.to_vec());
        let dims = Shape::from([outer, self.k, inner]);
        let kind = OpaqueKind::TopK { axis: 1, k: self.k, largest: self.largest, sorted: true };
        let results = vec![(self.dtype, dims.clone()), (DType::I64, dims)];
        let outputs = graph.add_node(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), vec![x]).unwrap();
        outputs.into_iter().for_each(|output| graph.add_output("y", output));
        graph
    }

    /// On every target, with both results and with each alone.
    fn check(&self, x: &Tensor) {
        let graph = self.graph();
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        let outputs: Vec<TensorId> = graph.outputs.iter().map(|(_, id)| *id).collect();
        for outputs in [&outputs[..], &outputs[..1], &outputs[1..]] {
            let program = SelectionProgram::of(&graph, &[NodeId(0)], outputs, &storage, "test").unwrap();
            let run = |kernel: &Kernel, what: String| {
                check(&graph, &program.args, kernel, std::slice::from_ref(x), &what);
            };
            for target in TARGETS {
                let chosen = schedule(&program);
                run(
                    &selection::lower(&program, &chosen, target),
                    format!("{} {self:?}: {chosen}", target.name),
                );
                // A limit that few come before, so that lines are looked at twice, and one that never fails.
                let ranks = if chosen.sorts_line { vec![None] } else { vec![Some(1), Some(self.k)] };
                for speculative_rank in ranks {
                    let other = SelectionSchedule { lines: 2, speculative_rank, ..chosen };
                    run(
                        &selection::lower(&program, &other, target),
                        format!("{} {self:?}: {other}", target.name),
                    );
                }
            }
            for target in GPU_TARGETS {
                let design = gpu::selection::design(&program, target).unwrap();
                run(&design.kernel, format!("{} {self:?}: {}", target.name, design.schedule));
            }
        }
    }

    fn check_seeds(&self) {
        for seed in 0..3 {
            self.check(&repeated(self.dtype, &self.shape, seed));
        }
    }
}

#[test]
fn selections_of_all_types() {
    use DType::*;
    for dtype in [F32, F64, F16, BF16, I64, I32, I8, U8, U64, Bool] {
        for (k, largest) in [(3, true), (3, false), (40, true), (40, false)] {
            Case { dtype, shape: [2, 40, 1], k, largest }.check_seeds();
        }
    }
}

#[test]
fn lines_about_the_lengths_of_runs_and_chunks() {
    for extent in [1, 2, 31, 33, 64, 65, 100, 257] {
        for k in [1, 2, extent / 7, extent / 4, extent / 2, extent] {
            if k > 0 && k <= extent {
                Case { dtype: DType::F32, shape: [1, extent, 1], k, largest: extent % 2 == 0 }.check_seeds();
            }
        }
    }
}

#[test]
fn lines_beside_one_another() {
    for largest in [false, true] {
        Case { dtype: DType::F32, shape: [2, 90, 3], k: 4, largest }.check_seeds();
        Case { dtype: DType::I64, shape: [3, 17, 5], k: 17, largest }.check_seeds();
    }
}

/// Of 300 of 8400 boxes about eleven are among the first 304.
#[test]
fn most_lines_are_looked_at_once() {
    let case = Case { dtype: DType::F32, shape: [1, 8400, 1], k: 300, largest: true };
    let graph = case.graph();
    let storage = Storage::as_stated(&graph, layouts::assign(&graph));
    let outputs: Vec<TensorId> = graph.outputs.iter().map(|(_, id)| *id).collect();
    let program = SelectionProgram::of(&graph, &[NodeId(0)], &outputs, &storage, "test").unwrap();
    assert_eq!(schedule(&program).speculative_rank, Some(22));
}

/// Each element is among the best so far, or none but the first ones is.
#[test]
fn lines_in_order() {
    for (k, largest) in [(1, true), (5, true), (5, false), (37, true), (37, false)] {
        let case = Case { dtype: DType::F32, shape: [1, 300, 1], k, largest };
        for sign in [-1.0, 1.0, 0.0] {
            case.check(&Tensor::from_vec([1, 300, 1], (0..300).map(|at| sign * at as f32).collect()));
        }
    }
}

/// The best of runs that a selection has made of `x [outer, runs, length, inner]`, ties within and between them.
#[test]
fn sorted_runs_are_merged() {
    for (dtype, shape, kept, k, largest) in [
        (DType::F32, [2, 3, 17, 1], 17, 51, true),
        (DType::F32, [2, 3, 17, 1], 17, 51, false),
        (DType::F32, [1, 11, 40, 1], 13, 20, true),
        (DType::F16, [1, 2, 90, 2], 90, 180, false),
        (DType::I64, [2, 9, 8, 3], 1, 5, true),
        (DType::U8, [1, 17, 33, 1], 33, 400, false),
    ] {
        let [outer, runs, _, inner] = shape;
        let mut graph = PrimGraph::new("g");
        let select = |x: TensorId, graph: &mut PrimGraph, axis: usize, k: usize| {
            let mut dims = graph.shape(x).to_vec();
            dims[axis] = k;
            let dims = Shape::from(dims);
            let kind = OpaqueKind::TopK { axis, k, largest, sorted: true };
            let results = vec![(dtype, dims.clone()), (DType::I64, dims)];
            graph.add_node(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), vec![x]).unwrap()
        };
        let x = graph.add_input("x", dtype, shape);
        let sorted = select(x, &mut graph, 2, kept)[0];
        let line = PrimOp::Reshape { shape: Shape::from([outer, runs * kept, inner]) };
        let line = graph.add(line, &[sorted]).unwrap();
        let best = select(line, &mut graph, 1, k);
        graph.add_output("runs", sorted);
        best.iter().for_each(|&output| graph.add_output("y", output));
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        let x = repeated(dtype, &shape, 1);
        let results =
            orch_interp::evaluate(&graph, std::slice::from_ref(&x), &orch_interp::EvalOptions::default());
        let results = results.unwrap();
        for outputs in [&best[..], &best[..1], &best[1..]] {
            let nodes = [NodeId(1), NodeId(2)];
            let program = SelectionProgram::of(&graph, &nodes, outputs, &storage, "test").unwrap();
            assert_eq!(program.runs, runs);
            let kernel = gpu::selection::design(&program, GPU_TARGETS[0]).unwrap().kernel;
            // The kernel reads what the first selection has made.
            let mut merging = PrimGraph::new("g");
            let given = merging.add_input("runs", dtype, [outer, runs * kept, inner]);
            let merged = select(given, &mut merging, 1, k);
            merged.iter().for_each(|&output| merging.add_output("y", output));
            let args: Vec<Arg> = (program.args.iter())
                .map(|arg| {
                    let number = best.iter().position(|&output| output == arg.tensor);
                    Arg { tensor: number.map_or(given, |number| merged[number]), ..arg.clone() }
                })
                .collect();
            let given = results[0].reshaped([outer, runs * kept, inner]);
            check(&merging, &args, &kernel, &[given], &format!("{dtype} {shape:?} {kept} {k} {largest}"));
        }
    }
}

/// Sums and products of `[outer, extent, inner]` in all directions, under the chosen schedule and others.
fn cumulative_case(op: ReduceOp, dtype: DType, shape: [usize; 3]) {
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", dtype, shape);
        let kind = OpaqueKind::Cumulative(Cumulative { axis: 1, op, exclusive, reverse });
        let results = vec![(dtype, Shape::from(shape))];
        let y = graph.add(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), &[x]).unwrap();
        graph.add_output("y", y);
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        let program = CumulativeProgram::of(&graph, &[NodeId(0)], &storage, "test").unwrap();
        for target in TARGETS {
            let chosen = cumulative::CumulativeSchedule::of(&program, target);
            let other = cumulative::CumulativeSchedule { outer: 2, columns: 5, steps: 3 };
            for schedule in [chosen, other] {
                let kernel = cumulative::lower(&program, &schedule, target);
                let what = format!("{} {op:?} {dtype} {shape:?}: {schedule}", target.name);
                check(&graph, &program.args, &kernel, &[repeated(dtype, &shape, 1)], &what);
            }
        }
    }
}

#[test]
fn sums_up_to_each_position() {
    use DType::*;
    for dtype in [F32, F64, F16, BF16, I32, I64, U8] {
        cumulative_case(ReduceOp::Sum, dtype, [2, 37, 1]);
        cumulative_case(ReduceOp::Sum, dtype, [3, 9, 21]);
    }
    for shape in [[1, 1, 1], [1, 3, 300], [5, 16, 2], [2, 17, 64], [1, 100, 7]] {
        cumulative_case(ReduceOp::Sum, F32, shape);
    }
    for dtype in [F32, I64] {
        cumulative_case(ReduceOp::Prod, dtype, [2, 5, 3]);
    }
}

/// Data, indices of which some repeat and some are out of range, and updates.
fn scatter_case(op: PrimOp, dtype: DType, shapes: [&[usize]; 3]) {
    scatter_to((op.clone(), dtype, shapes), None, |graph| graph.add_input("x", dtype, shapes[0].to_vec()));
    if dtype != DType::F32 {
        return;
    }
    // Zeros that are not read.
    scatter_to((op, dtype, shapes), None, |graph| {
        graph.add_input("x", dtype, shapes[0].to_vec());
        let zero = graph.add_constant(Tensor::zeros(dtype, Shape::from([])));
        let shape = Shape::from(shapes[0].to_vec());
        graph.add(PrimOp::Broadcast { shape, dims: Vec::new() }, &[zero]).unwrap()
    });
}

/// With an argument that is stored in f16, if one is named.
fn scatter_to(
    (op, dtype, shapes): (PrimOp, DType, [&[usize]; 3]),
    in_f16: Option<ArgId>,
    data: impl Fn(&mut PrimGraph) -> TensorId,
) {
    let mut graph = PrimGraph::new("g");
    let operands = [
        data(&mut graph),
        graph.add_input("i", DType::I64, shapes[1].to_vec()),
        graph.add_input("u", dtype, shapes[2].to_vec()),
    ];
    let y = graph.add(op.clone(), &operands).unwrap();
    graph.add_output("y", y);
    let elems: usize = shapes[1].iter().product();
    let indices = (0..elems).map(|at| (at * 5 % 11) as i64 - 1).collect();
    let inputs = [
        repeated(dtype, shapes[0], 1),
        Tensor::from_vec(shapes[1].to_vec(), indices),
        repeated(dtype, shapes[2], 2),
    ];
    let storage = Storage::as_stated(&graph, layouts::assign(&graph));
    let nodes: Vec<NodeId> = graph.node_ids().collect();
    let mut program = ScatterProgram::of(&graph, &nodes, &storage, "test").unwrap();
    if let Some(arg) = in_f16 {
        program.args[arg.index()].dtype = DType::F16;
    }
    for target in &GPU_TARGETS[..1] {
        for program in [Some(program.clone()), program.updated()].into_iter().flatten() {
            let design = gpu::scatter::design(&program, target).unwrap();
            let what = format!("{} {op:?} {dtype} {shapes:?}: {}", target.name, design.schedule);
            check(&graph, &program.args, &design.kernel, &inputs, &what);
        }
    }
    for (rows, columns) in [(3, program.inner), (2, program.inner.min(5))] {
        let schedule = gpu::scatter::GpuScatterSchedule { rows, columns, threads: 64 };
        let kernel = gpu::scatter::lower(&program, &schedule);
        check(&graph, &program.args, &kernel, &inputs, &format!("{op:?} {dtype} {shapes:?}: {schedule}"));
    }
    for target in TARGETS {
        let chosen = scatter::ScatterSchedule::of(&program);
        for rows in [chosen.rows, program.extent.div_ceil(3)] {
            for columns in [chosen.columns, program.inner.min(16), program.inner] {
                let schedule = scatter::ScatterSchedule { rows, columns };
                let kernel = scatter::lower(&program, &schedule, target);
                let what = format!("{} {op:?} {dtype} {shapes:?}: {schedule}", target.name);
                check(&graph, &program.args, &kernel, &inputs, &what);
            }
        }
    }
}

/// Updates and data of a type other than the result's, which storage may give them.
#[test]
fn updates_are_of_the_stored_type() {
    for combine in [None, Some(ReduceOp::Sum)] {
        for (op, shapes) in [
            (PrimOp::ScatterNd { combine }, [&[10, 37][..], &[6, 1], &[6, 37]]),
            (PrimOp::ScatterNd { combine }, [&[40][..], &[9, 1], &[9]]),
            (PrimOp::ScatterAlong { axis: 0, combine }, [&[8, 36][..], &[5, 36], &[5, 36]]),
        ] {
            for narrow in [ScatterProgram::UPDATES, ArgId(3)] {
                let data = |graph: &mut PrimGraph| graph.add_input("x", DType::F32, shapes[0].to_vec());
                scatter_to((op.clone(), DType::F32, shapes), Some(narrow), data);
            }
        }
    }
}

#[test]
fn updates_apply_in_order() {
    use ReduceOp::{Max, Min, Prod, Sum};
    for combine in [None, Some(Sum), Some(Prod), Some(Max), Some(Min)] {
        for dtype in [DType::F32, DType::F16, DType::I64, DType::I32, DType::F64] {
            let nd = || PrimOp::ScatterNd { combine };
            scatter_case(nd(), dtype, [&[10, 37], &[6, 1], &[6, 37]]);
            scatter_case(nd(), dtype, [&[3, 4, 5], &[2, 3, 2], &[2, 3, 5]]);
            scatter_case(nd(), dtype, [&[40], &[9, 1], &[9]]);
            let along = |axis: usize| PrimOp::ScatterAlong { axis, combine };
            scatter_case(along(0), dtype, [&[8, 36], &[5, 36], &[5, 36]]);
            scatter_case(along(1), dtype, [&[2, 7, 3], &[2, 9, 3], &[2, 9, 3]]);
            scatter_case(along(0), dtype, [&[30], &[12], &[12]]);
        }
    }
    // More updates than a CTA looks at in one step, none, and those of one row.
    for combine in [None, Some(Sum)] {
        let nd = || PrimOp::ScatterNd { combine };
        scatter_case(nd(), DType::F32, [&[13], &[701, 1], &[701]]);
        scatter_case(nd(), DType::F32, [&[13, 7], &[601, 1], &[601, 7]]);
        scatter_case(nd(), DType::F32, [&[13, 3], &[0, 1], &[0, 3]]);
        scatter_case(nd(), DType::F32, [&[1, 100], &[3, 1], &[3, 100]]);
        scatter_case(
            PrimOp::ScatterAlong { axis: 1, combine },
            DType::F32,
            [&[3, 17, 5], &[3, 131, 5], &[3, 131, 5]],
        );
    }
    scatter_case(PrimOp::ScatterNd { combine: None }, DType::Bool, [&[10, 3], &[6, 1], &[6, 3]]);
}
