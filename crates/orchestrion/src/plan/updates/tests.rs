//! Plans that update inputs, for both devices, against the interpreter of primitives.

use super::*;
use crate::manifest::{ActionInfo, SlotMemory, Update};
use crate::{Artifact, Executable, Model, Options, Planned, RunOptions, TensorView, TensorViewMut};
use orch_ir::Tensor;

/// A row of a cache, which is read before by others, and after it.
const CACHE: &str = "graph \"cache\" {
  input \"cache\" t0: f32[2, 32, 8]
  input \"new\" t1: f32[2, 8]
  input \"at\" t2: i64[]
  input \"q\" t3: f32[2, 1, 8]
  const t4: i64[] = [0]
  const t5: i64[] = [31]
  t6: i64[] = max t2, t4
  t7: i64[] = min t6, t5
  t8: i64[2, 32, 8] = broadcast t7 dims=[]
  t9: i64[2, 32, 8] = iota axis=1
  t10: bool[2, 32, 8] = eq t8, t9
  t11: f32[2, 32, 8] = broadcast t1 dims=[0, 2]
  t12: f32[2, 32, 8] = select t10, t11, t0
  t13: f32[2, 1, 32] = contract t3, t12 labels=\"bik,bjk->bij\"
  t14: f32[2, 8] = reduce.max t0 axes=[1]
  output \"scores\" t13
  output \"cache\" t12
  output \"before\" t14
}
";

/// The moments and the parameter of an optimizer.
const MOMENTUM: &str = "graph \"momentum\" {
  input \"m\" t0: f32[300]
  input \"p\" t1: f32[300]
  input \"g\" t2: f32[300]
  t3: f32[300] = add t0, t2
  t4: f32[300] = sub t1, t3
  output \"m1\" t3
  output \"p1\" t4
}
";

/// Two values of which each needs the other's old one.
const EXCHANGE: &str = "graph \"exchange\" {
  input \"a\" t0: f32[300]
  input \"b\" t1: f32[300]
  t2: f32[300] = add t0, t1
  t3: f32[300] = sub t0, t1
  output \"x\" t2
  output \"y\" t3
}
";

/// An update that needs elements elsewhere.
const CUMULATIVE: &str = "graph \"reversed\" {
  input \"x\" t0: f32[300]
  t1: f32[300] = slice t0 starts=[299] steps=[-1]
  t2: f32[300] = add t0, t1
  output \"y\" t2
}
";

fn update(output: usize, input: usize) -> Update {
    Update { output, input }
}

fn model(text: &str, updates: &[Update]) -> Model {
    Model { updates: updates.to_vec(), ..Model::from_graph(crate::testing::graph(text)) }
}

fn options(folder: &orch_files::Scratch, target: &str) -> Options {
    Options {
        cache_dir: folder.path().to_owned(),
        calibrate: false,
        superoptimize: false,
        target: Some(target.to_owned()),
        ..Options::default()
    }
}

fn inputs(model: &Model) -> Vec<Tensor> {
    let graph = &model.graph;
    let tensor = |(number, (_, tensor)): (usize, &(String, TensorId))| {
        let shape = graph.shape(*tensor);
        let value = |at: usize| ((at * 7 + number * 3) % 11) as f64 - 4.0;
        let values: Vec<f64> = (0..shape.elems()).map(value).collect();
        Tensor::from_f64(graph.dtype(*tensor), shape.clone(), &values)
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

/// The plan, which computes what the model does.
fn planned(text: &str, updates: &[Update], target: &str) -> Planned {
    let folder = orch_files::Scratch::new().unwrap();
    let model = model(text, updates);
    let planned = model.plan(&options(&folder, target)).unwrap();
    let given = inputs(&model);
    assert_eq!(planned.emulate(&given).unwrap(), model.interpret(&given, false).unwrap());
    planned
}

#[test]
fn caches_are_updated_after_their_readers() {
    for target in ["x86-64-v3", "cuda:sm_90"] {
        let planned = planned(CACHE, &[update(1, 0)], target);
        assert_eq!(planned.updated_inputs(), ["cache"]);
        let steps = &planned.assembly.steps;
        let uses = |memory, written| {
            let is_it = |step: &crate::manifest::StepInfo| {
                step.slots.iter().any(|slot| slot.memory == memory && slot.written == written)
            };
            (1..steps.len()).filter(|&step| is_it(&steps[step])).collect::<Vec<_>>()
        };
        assert_eq!(steps[0].action, ActionInfo::Copy);
        let [writer] = uses(SlotMemory::Output(1), true)[..] else { panic!("one step writes the cache") };
        assert!(uses(SlotMemory::Input(0), false).iter().all(|&reader| reader <= writer));
        assert!(uses(SlotMemory::Output(1), false).iter().all(|&reader| reader > writer));
        let ActionInfo::Kernel(kernel) = steps[writer].action else { panic!("a kernel writes it") };
        let program = &planned.implementation.kernels[kernel].design.kernel.program;
        let threads = program.tasks * program.cta.as_ref().map_or(1, |cta| cta.threads);
        assert!(threads <= 128, "{threads} threads store 16 elements");
    }
}

#[test]
fn moments_and_parameters_are_updated_together() {
    for target in ["x86-64-v3", "cuda:sm_90"] {
        let planned = planned(MOMENTUM, &[update(0, 0), update(1, 1)], target);
        assert_eq!(planned.updated_inputs(), ["m", "p"], "{target}");
    }
}

#[test]
fn what_would_be_read_too_late_is_copied() {
    for target in ["x86-64-v3", "cuda:sm_90"] {
        assert!(planned(EXCHANGE, &[update(0, 0), update(1, 1)], target).updated_inputs().len() <= 1);
        assert!(planned(CUMULATIVE, &[update(0, 0)], target).updated_inputs().is_empty());
        // One input has one new value.
        assert_eq!(planned(MOMENTUM, &[update(0, 0), update(1, 0)], target).updated_inputs(), ["m"]);
        assert!(planned(MOMENTUM, &[update(7, 0), update(0, 7)], target).updated_inputs().is_empty());
    }
}

fn compiled(text: &str, updates: &[Update]) -> (Model, Artifact) {
    let folder = orch_files::Scratch::new().unwrap();
    let model = model(text, updates);
    let artifact = model.compile(&Options { target: None, ..options(&folder, "cpu") }).unwrap();
    (model, artifact)
}

#[test]
fn runs_in_place_and_apart_give_the_same() {
    let (model, artifact) = compiled(CACHE, &[update(1, 0)]);
    let executable = Executable::load(artifact, RunOptions { threads: 2, ..RunOptions::default() }).unwrap();
    let given = inputs(&model);
    let expected = model.interpret(&given, false).unwrap();
    assert_eq!(executable.run(&given).unwrap(), expected);
    // In place, also where the memory is not aligned to 8 bytes.
    for offset in [0, 4] {
        let len = given[0].bytes().len();
        let mut memory = orch_runtime::cpu::AlignedBuffer::copy_of(&vec![0; len + 8]);
        let cache = &mut memory.as_mut_slice()[offset..offset + len];
        cache.copy_from_slice(given[0].bytes());
        let [mut scores, mut before] = [0, 2].map(|output| vec![0; expected[output].bytes().len()]);
        let views: Vec<Option<TensorView<'_>>> =
            given.iter().enumerate().map(|(number, tensor)| (number > 0).then(|| tensor.into())).collect();
        let mut outputs = [
            TensorViewMut::new(expected[0].dtype(), expected[0].shape(), &mut scores).unwrap(),
            TensorViewMut::new(given[0].dtype(), given[0].shape(), cache).unwrap(),
            TensorViewMut::new(expected[2].dtype(), expected[2].shape(), &mut before).unwrap(),
        ];
        executable.run_in_place(&views, &mut outputs).unwrap();
        assert_eq!(scores, expected[0].bytes()[..]);
        assert_eq!(before, expected[2].bytes()[..]);
        assert_eq!(cache[..], expected[1].bytes()[..]);
    }
    // No output updates the others.
    let views: Vec<Option<TensorView<'_>>> =
        given.iter().enumerate().map(|(number, tensor)| (number > 1).then(|| tensor.into())).collect();
    let mut results = expected.iter().map(|tensor| tensor.bytes().to_vec()).collect::<Vec<_>>();
    let mut outputs: Vec<_> = (results.iter_mut().zip(&expected))
        .map(|(bytes, tensor)| TensorViewMut::new(tensor.dtype(), tensor.shape(), bytes).unwrap())
        .collect();
    let error = executable.run_in_place(&views, &mut outputs).unwrap_err().to_string();
    assert!(error.contains("input 1 has no value: no output updates it in place"), "{error}");
}

#[test]
fn updates_that_do_not_fit_the_steps_are_refused() {
    let (_, artifact) = compiled(CACHE, &[update(1, 0)]);
    artifact.check().unwrap();
    let refused = |edit: &dyn Fn(&mut Artifact)| {
        let mut edited = artifact.clone();
        edit(&mut edited);
        edited.check().unwrap_err()
    };
    let first = |edited: &mut Artifact| edited.manifest.updates[0].output = 0;
    assert!(refused(&first).contains("is not of its input's type"));
    assert!(
        refused(&|edited| edited.manifest.updates[0].input = 9).contains("updates what it does not have")
    );
    assert!(refused(&|edited| edited.manifest.updates.push(update(1, 0))).contains("is not the only one"));
    assert!(refused(&|edited| drop(edited.manifest.steps.remove(0))).contains("is not written once"));
    let late = |edited: &mut Artifact| edited.manifest.steps.rotate_left(1);
    assert!(refused(&late).contains("updated output `cache`"));
}
