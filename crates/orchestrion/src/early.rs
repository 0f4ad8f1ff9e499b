//! What kernels read before the kernels before them have ended.

use crate::implement::{ColumnBody, Implementation};
use orch_ir::TensorId;
use orch_tile::templates::kernel::Binding;
use orch_tile::thread_await::{await_late, mark_constant};
use std::collections::BTreeSet;

/// Lets kernels of teams start reading inputs and constants of the model before they wait for other kernels.
pub fn read_early(implementation: &mut Implementation) {
    let columns = &implementation.columns;
    let written: BTreeSet<TensorId> =
        columns.iter().flat_map(|column| column.outputs.iter().copied()).collect();
    for (number, design) in implementation.kernels.iter_mut().enumerate() {
        let kernel = &mut design.design.kernel;
        if kernel.program.team.is_none() {
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
    }
}
