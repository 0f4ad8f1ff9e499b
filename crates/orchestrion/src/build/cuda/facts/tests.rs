//! What the cost model counts, against the kernels that are emitted.

use super::*;
use crate::Options;
use crate::plan::candidates::candidates;
use crate::plan::definition::KernelDefinition;
use crate::testing::with_context;
use orch_files::Scratch;

/// Tokens are normed, added up by weights, and scaled by the sum: the two reductions have no axis in common.
const GLOBAL_QUERY: &str = "graph \"global query\" {
  input \"x\" t0: f32[1, 3136, 48]
  input \"w\" t1: f32[1, 3136]
  t2: f32[1, 3136, 48] = mul t0, t0
  t3: f32[1, 3136] = reduce.sum t2 axes=[2]
  t4: f32[1, 3136] = sqrt t3
  t5: f32[1, 3136, 48] = broadcast t4 dims=[0, 1]
  t6: f32[1, 3136, 48] = div t0, t5
  t7: f32[1, 3136, 48] = broadcast t1 dims=[0, 1]
  t8: f32[1, 3136, 48] = mul t7, t6
  t9: f32[1, 48] = reduce.sum t8 axes=[1]
  t10: f32[1, 3136, 48] = broadcast t9 dims=[0, 2]
  t11: f32[1, 3136, 48] = mul t10, t6
  output \"y\" t11
}
";

#[test]
fn reductions_without_a_common_axis_are_modelled_in_the_cta_that_does_them() {
    let cache = Scratch::new().unwrap();
    let options = Options {
        cache_dir: cache.path().to_owned(),
        target: Some("cuda:sm_90".to_owned()),
        calibrate: false,
        ..Options::default()
    };
    let mut most_serial_loads = 0;
    with_context(GLOBAL_QUERY, &options, |ctx, _| {
        for column in candidates(ctx, &options).unwrap().columns {
            let (nodes, outputs) = (&column.candidate.nodes, &column.candidate.outputs);
            let nodes = ctx.units.primitives(ctx.graph, nodes);
            let Some((kernels, KernelDefinition::Block(block))) = ctx.kernels(&nodes, outputs, 1) else {
                continue;
            };
            let modelled = facts(&block, OperandPrecision::F32);
            if kernels[0].design.kernel.program.tasks == 1 {
                let (name, schedule) = (&kernels[0].name, &kernels[0].design.schedule);
                assert!(modelled.ctas <= ROW_TASKS as u64, "{name}: {schedule}: {} CTAs", modelled.ctas);
            }
            most_serial_loads = most_serial_loads.max(modelled.serial_loads);
        }
    });
    // 48 threads add up 3136 tokens each, and each of 1024 threads norms four of them.
    assert_eq!(most_serial_loads, 3136 + 4 * 48);
}
