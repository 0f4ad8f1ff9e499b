//! Reads before `griddepcontrol.wait`: under programmatic dependent launch a kernel may read what no kernel of the plan writes
//! before the kernels before it have ended.

use super::implementation::{ColumnBody, Implementation};
use orch_ir::TensorId;
use orch_thread::kernel::Binding;
use orch_thread::passes::await_late::{await_late, mark_constant};
use orch_thread::passes::read_once::release_early;
use std::collections::BTreeSet;

/// Moves the waits of GPU kernels behind their first reads of inputs and constants of the model, and the launches of dependent
/// kernels to where a kernel has little left to stream.
pub fn read_early(implementation: &mut Implementation) {
    let columns = &implementation.columns;
    let written: BTreeSet<TensorId> =
        columns.iter().flat_map(|column| column.outputs.iter().copied()).collect();
    for (number, design) in implementation.kernels.iter_mut().enumerate() {
        let kernel = &mut design.design.kernel;
        if kernel.program.cta.is_none() {
            continue;
        }
        // One kernel may run for several columns: what it reads early none of them has from another kernel.
        let args = || {
            columns.iter().filter_map(move |column| match &column.body {
                ColumnBody::Kernel { kernel, args } if *kernel == number => Some(args),
                _ => None,
            })
        };
        let bindings = &kernel.bindings;
        mark_constant(&mut kernel.program, |buffer| match bindings.get(buffer) {
            Some(Binding::Arg(arg)) => args().any(|args| written.contains(&args[arg.index()])),
            Some(Binding::Packed(_)) | None => false,
        });
        await_late(&mut kernel.program);
        release_early(&mut kernel.program);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Model, Options, Precision};
    use orch_thread::print_thread;

    /// Two products in a row, all of whose operands are inputs of the model.
    const PAIR: &str = "graph \"pair\" {
  input \"x\" t0: f16[64, 512]
  input \"w\" t1: f16[512, 512]
  input \"v\" t2: f16[512, 512]
  t3: f32[64, 512] = cast.f32 t0
  t4: f32[512, 512] = cast.f32 t1
  t5: f32[512, 512] = cast.f32 t2
  t6: f32[64, 512] = contract t3, t4 labels=\"mk,kn->mn\"
  t7: f32[64, 512] = contract t6, t5 labels=\"mk,kn->mn\"
  t8: f16[64, 512] = cast.f16 t7
  output \"o\" t8
}
";

    #[test]
    fn a_second_product_copies_its_own_operand_while_the_first_one_runs() {
        let folder = std::env::temp_dir().join(format!("orchestrion-early-{}", std::process::id()));
        let options = Options {
            cache_dir: folder.clone(),
            target: Some("cuda:sm_90".to_owned()),
            precision: Precision::F16,
            superoptimize: false,
            ..Options::default()
        };
        let graph = crate::testing::graph(PAIR);
        let planned = Model::from_graph(graph).plan(&options).unwrap_or_else(|error| panic!("{error}"));
        let kernels = &planned.implementation.kernels;
        assert_eq!(kernels.len(), 2);
        let text = print_thread(&kernels[1].design.kernel.program);
        let arguments = |scope: &str| text.lines().filter(|line| line.trim().starts_with(scope)).count();
        assert_eq!((arguments("constant "), arguments("input ")), (1, 1), "{text}");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let awaited = lines.iter().position(|line| *line == "await").expect("a wait for the first product");
        let copies = |lines: &[&str]| lines.iter().filter(|line| line.starts_with("copy")).count();
        assert!(copies(&lines[..awaited]) > 0 && copies(&lines[awaited..]) > 0, "{text}");
        let _ = std::fs::remove_dir_all(&folder);
    }
}
