//! What the cost model counts, against the kernels that are emitted.

use super::*;
use crate::Options;
use crate::plan::candidates::candidates;
use crate::plan::definition::KernelDefinition;
use crate::testing::with_context;
use orch_files::Scratch;
use orch_thread::target::CPU_TARGETS;
use std::collections::BTreeSet;

/// Convolutions with a window and of one pixel, pooling, and a sum over pixels.
const NETWORK: &str = "graph \"network\" {
  input \"x\" t0: f32[2, 24, 30, 30]
  input \"w\" t1: f32[40, 24, 3, 3]
  input \"v\" t2: f32[64, 40, 1, 1]
  input \"b\" t3: f32[40]
  t4: f32[2, 40, 30, 30] = conv t0, t1 kernel=[3, 3] low=[1, 1] high=[1, 1]
  t5: f32[2, 40, 30, 30] = broadcast t3 dims=[1]
  t6: f32[2, 40, 30, 30] = add t4, t5
  t7: f32[2, 40, 30, 30] = tanh t6
  t8: f32[2, 64, 30, 30] = conv t7, t2 kernel=[1, 1]
  t9: f32[2, 64, 15, 15] = window.max t8 kernel=[2, 2] strides=[2, 2]
  t10: f32[2, 64] = reduce.sum t9 axes=[2, 3]
  output \"y\" t10
}
";

/// Products, a softmax over rows, a transposition, and rows that are normed.
const ATTENTION: &str = "graph \"attention\" {
  input \"q\" t0: f32[4, 130, 64]
  input \"k\" t1: f32[4, 130, 64]
  input \"v\" t2: f32[4, 130, 64]
  t3: f32[4, 130, 130] = contract t0, t1 labels=\"bmk,bnk->bmn\"
  t4: f32[4, 130] = reduce.max t3 axes=[2]
  t5: f32[4, 130, 130] = broadcast t4 dims=[0, 1]
  t6: f32[4, 130, 130] = sub t3, t5
  t7: f32[4, 130, 130] = exp t6
  t8: f32[4, 130] = reduce.sum t7 axes=[2]
  t9: f32[4, 130, 130] = broadcast t8 dims=[0, 1]
  t10: f32[4, 130, 130] = div t7, t9
  t11: f32[4, 130, 64] = contract t10, t2 labels=\"bmn,bnk->bmk\"
  t12: f32[130, 4, 64] = transpose t11 perm=[1, 0, 2]
  t13: f32[130, 4, 64] = mul t12, t12
  t14: f32[130] = reduce.sum t13 axes=[1, 2]
  output \"o\" t12
  output \"n\" t14
}
";

#[test]
fn modelled_work_items_are_those_of_kernels() {
    let cache = Scratch::new().unwrap();
    let mut numbers = BTreeSet::new();
    for name in ["x86-64-v3", "x86-64-v4", "x86-64-amx"] {
        let target = CPU_TARGETS.iter().find(|target| target.name == name).unwrap();
        let options = Options {
            cache_dir: cache.path().to_owned(),
            target: Some(name.to_owned()),
            calibrate: false,
            ..Options::default()
        };
        for text in [NETWORK, ATTENTION, crate::testing::LORA] {
            with_context(text, &options, |ctx, _| {
                for column in candidates(ctx, &options).unwrap().columns {
                    let (nodes, outputs) = (&column.candidate.nodes, &column.candidate.outputs);
                    let nodes = ctx.units.primitives(ctx.graph, nodes);
                    let Some((kernels, definition)) = ctx.kernels(&nodes, outputs, 1) else { continue };
                    let KernelDefinition::Block(block) = &definition else { continue };
                    let emitted = kernels[0].design.kernel.program.tasks as u64;
                    let modelled = facts(block, target).tasks;
                    assert_eq!(
                        modelled, emitted,
                        "{name}: {} {}",
                        kernels[0].name, kernels[0].design.schedule
                    );
                    numbers.insert(emitted);
                }
            });
        }
    }
    assert!(numbers.len() > 10, "{numbers:?}");
}
