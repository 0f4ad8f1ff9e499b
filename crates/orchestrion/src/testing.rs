//! Graphs, contexts and manifests for the tests of several stages.

use crate::build::find;
use crate::manifest::{ActionInfo, Device, Manifest, ModelInfo, PlanReport, Slot, SlotMemory, StepInfo};
use crate::plan::backend::Backend;
use crate::plan::context::PlanContext;
use crate::plan::prepared::{PreparedGraph, with_storage};
use crate::plan::units::UnitOptions;
use crate::{Options, Precision};
use orch_files::Scratch;
use orch_ir::PrimGraph;

/// Sixteen rows by a large weight, and by two of rank 16 (LoRA).
pub const LORA: &str = "graph \"lora\" {
  input \"x\" t0: f16[16, 4096]
  input \"w\" t1: f16[4096, 4096]
  input \"a\" t2: f16[4096, 16]
  input \"c\" t3: f16[16, 4096]
  t4: f32[16, 4096] = cast.f32 t0
  t5: f32[4096, 4096] = cast.f32 t1
  t6: f32[4096, 16] = cast.f32 t2
  t7: f32[16, 4096] = cast.f32 t3
  t8: f32[16, 4096] = contract t4, t5 labels=\"mk,kn->mn\"
  t9: f32[16, 16] = contract t4, t6 labels=\"mk,kr->mr\"
  t10: f32[16, 4096] = contract t9, t7 labels=\"mr,rn->mn\"
  t11: f32[16, 4096] = add t8, t10
  t12: f16[16, 4096] = cast.f16 t11
  output \"o\" t12
}
";

/// Options of plans for sm_90 in f16 with kernels of templates only, and a cache of their own.
pub fn half_on_gpu(cache: &Scratch) -> Options {
    Options {
        cache_dir: cache.path().to_owned(),
        target: Some("cuda:sm_90".to_owned()),
        precision: Precision::F16,
        superoptimize: false,
        ..Options::default()
    }
}

/// A graph from its text.
pub fn graph(text: &str) -> PrimGraph {
    orch_ir::text::parse(text).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Calls a function with a graph as the stages after "identify" see it.
pub fn with_context(text: &str, options: &Options, body: impl FnOnce(PlanContext<'_>, &dyn Backend)) {
    let graph = graph(text);
    let backend =
        &*find(options, orch_compute::operands::half_operands(&graph).map(|operands| operands.half)).unwrap();
    let (graph, storage) = with_storage(backend.prepared(graph), &[], backend);
    let prepared = PreparedGraph::of(graph, storage, &[], UnitOptions::of(backend.info(), options)).unwrap();
    body(prepared.context(backend), backend);
}

/// A slot of bytes.
pub fn slot(memory: SlotMemory, bytes: usize, written: bool) -> Slot {
    Slot { memory, bytes, written, dtype: "u8".to_owned(), shape: vec![bytes] }
}

/// A plan for a GPU of steps with these slots, each of which takes a microsecond.
pub fn manifest(steps: &[&[Slot]]) -> Manifest {
    let step = |(number, slots): (usize, &&[Slot])| StepInfo {
        name: format!("k{number}"),
        action: ActionInfo::Copy,
        cleared: Vec::new(),
        slots: slots.to_vec(),
        computes: Vec::new(),
        origins: vec![format!("op{number}")],
        cost_us: 1.0,
        tuned_us: None,
        roofline_us: 0.5,
        alone_us: 1.0,
        traffic_bytes: 8,
        flops: 0.0,
        proof: None,
        considered: None,
    };
    Manifest {
        compiler: "0".into(),
        model: ModelInfo::default(),
        device: Device::Cuda,
        target: "sm_90".into(),
        precision: crate::Precision::F32,
        machine: "m".into(),
        kernel_compiler: "cc".into(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        updatable: Vec::new(),
        updates: Vec::new(),
        arena_bytes: 0,
        kernels: Vec::new(),
        steps: steps.iter().enumerate().map(step).collect(),
        constant_bytes: Vec::new(),
        library_bytes: Vec::new(),
        extensions: Vec::new(),
        proofs: Vec::new(),
        parts: Vec::new(),
        report: PlanReport::default(),
    }
}
