//! Plans for GPUs without a GPU: every kernel of a plan runs through the interpreter of thread programs, step after
//! step, and what comes out agrees with the reference interpreter.
//!
//! NVRTC is taken from `ORCHESTRION_TEST_NVRTC` or from the usual places; one that was asked for must be there.
//!
//! `ORCH_SEEDS=1000..2000 cargo test -p orchestrion --test gpu_plans -- random --nocapture` draws other graphs.

mod cache_dir;
mod networks;
mod pipeline;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::generate::{GenerateOptions, generate, random_inputs};
use orch_ir::{ConvSpec, DType, PrimGraph, PrimOp, ScalarFn, Tensor, Window};
use orchestrion::compare::{ROUNDING_FACTOR, compare};
use orchestrion::manifest::Device;
use orchestrion::{Artifact, Error, Executable, Model, Options, Precision, RunOptions, SearchPaths};
use pipeline::{print_case, seeds, shrink};
use plan_options::options;

/// The graphs drawn when nothing else is asked for.
const SEEDS: std::ops::Range<u64> = 0..12;

/// Largest error against f64, relative to an output's largest magnitude.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::Tf32 | Precision::F16 => 2e-2,
        Precision::Bf16 => 1e-1,
    }
}

/// Plans, emulates and compares; `Err` says what went wrong. The names of host routines.
fn check(graph: &PrimGraph, inputs: &[Tensor], options: &Options) -> Result<Vec<String>, String> {
    let model = Model::from_graph(graph.clone());
    let planned = model.plan(options).map_err(|error| format!("plan: {error}"))?;
    let outputs = planned.emulate(inputs).map_err(|error| error.to_string())?;
    let wide = model.interpret(inputs, true).map_err(|error| error.to_string())?;
    let native = model.interpret(inputs, false).map_err(|error| error.to_string())?;
    for (index, (name, tensor)) in graph.outputs.iter().enumerate() {
        let (got, want) = (&outputs[index], &wide[index]);
        if got.dtype() != graph.dtype(*tensor) {
            return Err(format!("output `{name}` is {} instead of {}", got.dtype(), graph.dtype(*tensor)));
        }
        let rounding = compare(&native[index], want);
        let difference = compare(got, want);
        let allowed = tolerance(options.precision).max(ROUNDING_FACTOR * rounding.scaled);
        if difference.scaled > allowed || difference.mismatched > rounding.mismatched {
            return Err(format!("output `{name}`: {difference:?}, {allowed:e} allowed"));
        }
    }
    Ok(planned.host_steps().into_iter().map(ToOwned::to_owned).collect())
}

#[test]
fn networks_compute_what_they_should() {
    let cache = CacheDir::new("gpu-networks");
    let mut failures = String::new();
    for graph in networks::all() {
        let inputs = random_inputs(&graph, 5);
        for (target, precision) in [
            ("cuda:sm_90", Precision::F32),
            ("cuda:sm_90", Precision::F16),
            ("cuda:sm_90", Precision::Tf32),
            ("cuda:sm_80", Precision::Bf16),
        ] {
            let name = format!("{} for {target} in {}", graph.name, precision.name());
            match check(&graph, &inputs, &options(&cache, Some(target), precision)) {
                Ok(hosts) if hosts.is_empty() => {}
                Ok(hosts) => failures += &format!("{name}: host routines {}\n", hosts.join(", ")),
                Err(problem) => failures += &format!("{name}: {problem}\n"),
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Of each layer the convolution, all statistics that are kept, and what is normalised are a kernel each; all counters are one.
#[test]
fn training_keeps_statistics_with_few_kernels() {
    let cache = CacheDir::new("gpu-training-norms");
    for precision in [Precision::F32, Precision::F16] {
        let graph = networks::training_norms();
        let planned = Model::from_graph(graph).plan(&options(&cache, Some("cuda:sm_90"), precision));
        let planned = planned.unwrap_or_else(|error| panic!("{error}"));
        let steps = planned.step_names();
        assert!(steps.len() <= 7, "{steps:?} in {}", precision.name());
    }
}

/// CTAs that wait for each other count in memory of their own, which is cleared before their kernel starts.
#[test]
fn a_recurrence_of_many_units_counts_in_memory_of_its_own() {
    let cache = CacheDir::new("gpu-recurrences");
    let graph = networks::wide_recurrence();
    let inputs = random_inputs(&graph, 5);
    for precision in [Precision::F32, Precision::F16] {
        let options = options(&cache, Some("cuda:sm_90"), precision);
        assert_eq!(check(&graph, &inputs, &options), Ok(Vec::new()), "{}", precision.name());
        let planned = Model::from_graph(graph.clone()).plan(&options).expect("planned before");
        assert_eq!(planned.cleared_steps().len(), 1, "{:?}", planned.step_names());
    }
}

/// An image that is what attention makes, heads before pixels, is written before a convolution of many taps reads it: each read would divide
/// its index five times, for each map and tap.
#[test]
fn images_of_other_shapes_are_not_made_in_every_tap() {
    let cache = CacheDir::new("gpu-plans-taps");
    let mut graph = PrimGraph::new("upsampling");
    let x = graph.add_input("x", DType::F16, [1, 8, 49, 32]);
    let x = graph.add(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[x]).unwrap();
    let x = graph.add(PrimOp::Transpose { perm: vec![0, 1, 3, 2] }, &[x]).unwrap();
    let x = graph.add(PrimOp::Reshape { shape: [1, 256, 7, 7].into() }, &[x]).unwrap();
    let weights = graph.add_constant(Tensor::from_vec([512, 256, 3, 3], vec![0.01f32; 512 * 256 * 9]));
    let pad = vec![1; 2];
    let window = Window {
        kernel: vec![3; 2],
        strides: vec![1; 2],
        dilations: vec![1; 2],
        low: pad.clone(),
        high: pad,
    };
    let y = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, weights]).unwrap();
    graph.add_output("y", y);
    let planned =
        Model::from_graph(graph).plan(&options(&cache, Some("cuda:sm_90"), Precision::F16)).unwrap();
    let steps = planned.step_names();
    assert!(steps.len() == 2 && !steps[0].contains("conv"), "{steps:?}");
}

/// Code for GPUs is made where NVRTC is, and loaded where a GPU is.
#[test]
fn networks_compile_without_a_gpu() {
    let cache = CacheDir::new("gpu-networks-compiled");
    let asked = std::env::var_os("ORCHESTRION_TEST_NVRTC");
    let cuda = SearchPaths {
        driver: Some("/nonexistent/libcuda.so.1".into()),
        nvrtc: asked.clone().map(Into::into),
        ..SearchPaths::default()
    };
    for graph in networks::all() {
        let options = Options { cuda: cuda.clone(), ..options(&cache, Some("cuda:sm_90"), Precision::F16) };
        let artifact = match Model::from_graph(graph).compile(&options) {
            Err(Error::Environment(reason)) if asked.is_none() => return println!("skipped: {reason}"),
            compiled => compiled.expect("it compiles"),
        };
        assert_eq!((artifact.manifest.device, artifact.manifest.target.as_str()), (Device::Cuda, "sm_90"));
        for kernel in &artifact.manifest.kernels {
            let cta = kernel.cta.as_ref().expect("kernels of GPUs have threads");
            let resources = cta.resources.expect("the compiler tells");
            assert!((1..=255).contains(&resources.registers), "{}: {resources:?}", kernel.name);
            assert_eq!(resources.spill_bytes, 0, "{}", kernel.name);
        }
        assert_needs_a_gpu(artifact, &cuda);
    }
}

#[test]
fn executables_for_gpus_need_one() {
    let cache = CacheDir::new("gpu-artifact");
    let options = options(&cache, None, Precision::F32);
    let mut artifact = Model::from_graph(networks::all().remove(0)).compile(&options).expect("it compiles");
    artifact.manifest.device = Device::Cuda;
    let cuda = SearchPaths { driver: Some("/nonexistent/libcuda.so.1".into()), ..SearchPaths::default() };
    assert_needs_a_gpu(artifact, &cuda);
}

fn assert_needs_a_gpu(artifact: Artifact, cuda: &SearchPaths) {
    let loaded =
        Executable::load(artifact, RunOptions { threads: 1, cuda: cuda.clone(), ..RunOptions::default() });
    let error = loaded.err().expect("there is no driver");
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().starts_with("the executable is for a GPU"), "{error}");
}

#[test]
fn graphs_that_once_failed_compute_what_they_should() {
    let cache = CacheDir::new("gpu-graph-files");
    let mut failures = String::new();
    for (name, graph, inputs) in pipeline::files() {
        for precision in [Precision::F32, Precision::F16] {
            if let Err(problem) = check(&graph, &inputs, &options(&cache, Some("cuda:sm_90"), precision)) {
                failures += &format!("{name} in {}: {problem}\n", precision.name());
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn random_graphs_compute_what_they_should() {
    let cache = CacheDir::new("gpu-random-graphs");
    let mut failures = Vec::new();
    for seed in seeds(SEEDS) {
        let dtypes = if seed % 4 == 0 { vec![DType::F32, DType::F16] } else { vec![DType::F32] };
        let settings = GenerateOptions { steps: 8, max_elems: 512, dtypes, ..GenerateOptions::default() };
        let graph = generate(seed, &settings);
        let inputs = random_inputs(&graph, seed);
        let precision = [Precision::F32, Precision::F16][(seed % 2) as usize];
        let options = Options { fuse: seed % 8 != 7, ..options(&cache, Some("cuda:sm_90"), precision) };
        eprintln!("seed {seed}");
        let fails = |graph: &PrimGraph, inputs: &[Tensor]| check(graph, inputs, &options).err();
        let Some(first) = fails(&graph, &inputs) else { continue };
        let (small, values) = shrink(&graph, &inputs, |graph, inputs| fails(graph, inputs).is_some());
        let problem = fails(&small, &values).unwrap_or(first);
        failures.push(format!("seed {seed}: {problem}\n{}", print_case(&small, &values)));
    }
    assert!(failures.is_empty(), "{} graphs fail:\n{}", failures.len(), failures.join("\n"));
}
