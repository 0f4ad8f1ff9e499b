//! Plans whose results take the place of operands, against the interpreter of primitives.

use crate::compare::compare;
use crate::{Model, Options, Planned};
use orch_ir::generate::random_inputs;
use orch_ir::{PrimGraph, TensorId};

/// Sums with what is not read again, with what the product before them reads, with what is read again, and one that is an output.
const SUMS: &str = "graph \"sums\" {
  input \"x\" t0: f32[64, 96]
  input \"w\" t1: f32[96, 96]
  t2: f32[64, 96] = contract t0, t1 labels=\"mk,kn->mn\"
  t3: f32[64, 96] = contract t2, t1 labels=\"mk,kn->mn\"
  t4: f32[64, 96] = contract t3, t1 labels=\"mk,kn->mn\"
  t5: f32[64, 96] = add t4, t2
  t6: f32[64, 96] = contract t5, t1 labels=\"mk,kn->mn\"
  t7: f32[64, 96] = add t6, t5
  t8: f32[64, 96] = contract t7, t1 labels=\"mk,kn->mn\"
  t9: f32[64, 96] = contract t8, t1 labels=\"mk,kn->mn\"
  t10: f32[64, 96] = add t9, t7
  t11: f32[64, 96] = contract t10, t1 labels=\"mk,kn->mn\"
  t12: f32[64, 96] = add t11, t7
  output \"y\" t12
}
";

fn plan(graph: &PrimGraph, target: &str) -> Planned {
    let folder = orch_files::Scratch::new().unwrap();
    let options = Options {
        cache_dir: folder.path().to_owned(),
        target: Some(target.to_owned()),
        calibrate: false,
        superoptimize: false,
        ..Options::default()
    };
    Model::from_graph(graph.clone()).plan(&options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_sum_takes_the_place_of_what_is_read_last() {
    let graph = crate::testing::graph(SUMS);
    for target in ["x86-64-v4", "x86-64-v3"] {
        let planned = plan(&graph, target);
        let pairs = &planned.implementation.in_place;
        assert_eq!(pairs.len(), 1, "{target}: {pairs:?}");
        let steps = &planned.assembly.steps;
        let is_written = |tensor: TensorId| {
            let place = steps
                .iter()
                .position(|step| step.computes.iter().any(|text| text.starts_with(&format!("{tensor}:"))));
            let step = &steps[place.expect("a step computes it")];
            step.slots.iter().find(|slot| slot.written).map(|slot| slot.memory)
        };
        assert_eq!(is_written(pairs[0].input), is_written(pairs[0].output), "{target}");
        let inputs = random_inputs(&graph, 5);
        let outputs = planned.emulate(&inputs).unwrap_or_else(|error| panic!("{error}"));
        let expected = Model::from_graph(graph.clone()).interpret(&inputs, false).unwrap();
        let difference = compare(&outputs[0], &expected[0]);
        assert!(difference.scaled < 1e-4 && difference.mismatched == 0, "{target}: {difference:?}");
    }
    assert!(plan(&graph, "cuda:sm_90").implementation.in_place.is_empty());
}
