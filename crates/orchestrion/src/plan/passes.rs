//! Stage "passes": every kernel of a plan, and every kernel that is timed, goes through the
//! [passes over thread programs](orch_thread::passes).

use crate::plan::implementation::{ColumnBody, Implementation};
use crate::plan::kernel::KernelDesign;
use crate::{Error, Options, parallel};
use orch_compute::BufferId;
use orch_ir::TensorId;
use orch_thread::kernel::Binding;
use orch_thread::passes::{PassContext, find, names, run_all};
use orch_thread::{ThreadProgram, print_thread};
use std::collections::BTreeSet;

/// Runs the passes on each kernel of a plan, and returns their texts after [`Options::dump_after`]: names and thread programs, none
/// for a kernel that the pass is not for.
///
/// # Errors
/// If there is no such pass, or the work is cancelled.
pub fn run_on_plan(
    implementation: &mut Implementation,
    options: &Options,
) -> Result<Vec<(String, String)>, Error> {
    let dump_after = options.dump_after.as_ref().map(|dump| dump.pass.as_str());
    if let Some(unknown) = dump_after.filter(|name| find(name).is_none()) {
        let known = names().join(", ");
        return Err(Error::Input(format!("there is no pass `{unknown}` to dump after; there are {known}")));
    }
    let constants = constants(implementation);
    let kernels: Vec<(&KernelDesign, PassContext)> = implementation
        .kernels
        .iter()
        .zip(constants)
        .map(|(kernel, constants)| (kernel, PassContext { constants }))
        .collect();
    let programs = parallel::map(&kernels, options, |(kernel, ctx)| after_passes(kernel, ctx, dump_after))?;
    let mut dumps = Vec::new();
    for (kernel, (program, dump)) in implementation.kernels.iter_mut().zip(programs) {
        kernel.design.kernel.program = program;
        dumps.extend(dump.map(|text| (kernel.name.clone(), text)));
    }
    Ok(dumps)
}

/// Kernels that are timed alone, after the passes: no plan says which of their arguments are constant.
///
/// # Errors
/// If the work is cancelled.
pub fn run_on_timed(
    chains: &[Vec<KernelDesign>],
    options: &Options,
) -> Result<Vec<Vec<KernelDesign>>, Error> {
    parallel::map(chains, options, |chain| {
        let changed = |kernel: &KernelDesign| {
            let mut kernel = kernel.clone();
            kernel.design.kernel.program = after_passes(&kernel, &PassContext::default(), None).0;
            kernel
        };
        chain.iter().map(changed).collect()
    })
}

/// A kernel's program after all passes, and its text after the pass of this name.
fn after_passes(
    kernel: &KernelDesign,
    ctx: &PassContext,
    dump_after: Option<&str>,
) -> (ThreadProgram, Option<String>) {
    let mut program = kernel.design.kernel.program.clone();
    let mut dump = None;
    run_all(&mut program, ctx, &mut |pass, program| {
        if Some(pass.name) == dump_after {
            dump = Some(print_thread(program));
        }
    });
    (program, dump)
}

/// For each kernel the arguments that no kernel of the plan writes: constants of the model, and inputs that are not updated in place. One kernel may run for several
/// columns: it has them constant if that holds for all of these.
fn constants(implementation: &Implementation) -> Vec<BTreeSet<BufferId>> {
    let columns = &implementation.columns;
    let mut written: BTreeSet<TensorId> =
        columns.iter().flat_map(|column| column.outputs.iter().copied()).collect();
    written.extend(implementation.updates.iter().map(|update| update.input));
    let of_kernel = |(number, design): (usize, &KernelDesign)| {
        let args = || {
            columns.iter().filter_map(move |column| match &column.body {
                ColumnBody::Kernel { kernel, args } if *kernel == number => Some(args),
                _ => None,
            })
        };
        let bindings = design.design.kernel.bindings.iter().enumerate();
        let is_constant = |binding: &Binding| match binding {
            Binding::Arg(arg) => args().all(|args| !written.contains(&args[arg.index()])),
            Binding::Packed(_) => true,
            Binding::Own { .. } => false,
        };
        let constant = bindings.filter(|(_, binding)| is_constant(binding));
        constant.map(|(number, _)| BufferId::new(number)).collect()
    };
    implementation.kernels.iter().enumerate().map(of_kernel).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::half_on_gpu;
    use crate::{DumpAfter, Model, Options};
    use orch_thread::print_thread;
    use std::sync::{Arc, Mutex};

    /// Two products in a row, all of whose factors are inputs of the model.
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
    fn a_second_product_copies_its_own_factor_while_the_first_one_runs() {
        let folder = orch_files::Scratch::new().unwrap();
        let options = half_on_gpu(&folder);
        let graph = crate::testing::graph(PAIR);
        let planned = Model::from_graph(graph).plan(&options).unwrap_or_else(|error| panic!("{error}"));
        let kernels = &planned.implementation.kernels;
        assert_eq!(kernels.len(), 2);
        let text = print_thread(&kernels[1].design.kernel.program);
        let arguments = |scope: &str| text.lines().filter(|line| line.trim().starts_with(scope)).count();
        assert_eq!((arguments("constant "), arguments("input ")), (1, 1), "{text}");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let awaited = lines
            .iter()
            .position(|line| *line == "grid_dependency_wait")
            .expect("a wait for the first product");
        let is_copy = |line: &&&str| line.starts_with("cp_async ") || line.starts_with("tma_load ");
        let copies = |lines: &[&str]| lines.iter().filter(is_copy).count();
        assert!(copies(&lines[..awaited]) > 0 && copies(&lines[awaited..]) > 0, "{text}");
    }

    #[test]
    fn texts_after_a_pass_are_given_for_each_kernel() {
        let folder = orch_files::Scratch::new().unwrap();
        let plan = |pass: &str| {
            let texts = Arc::new(Mutex::new(Vec::new()));
            let received = texts.clone();
            let receive = move |name: &str, text: &str| {
                received.lock().unwrap().push((name.to_owned(), text.to_owned()));
            };
            let dump_after = Some(DumpAfter { pass: pass.to_owned(), receive: Arc::new(receive) });
            let options = Options { dump_after, ..half_on_gpu(&folder) };
            let planned = Model::from_graph(crate::testing::graph(PAIR)).plan(&options);
            (planned, texts.lock().unwrap().clone())
        };
        let (planned, before) = plan("batch_loads");
        let names: Vec<String> =
            planned.unwrap().implementation.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        assert_eq!(before.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names);
        let (_, after) = plan("defer_grid_wait");
        assert!(!before[0].1.contains("constant ") && after[0].1.contains("constant "));
        assert!(plan("unroll").1.is_empty());
        let error = plan("no_such_pass").0.err().expect("an error").to_string();
        assert!(error.contains("hoist_loads, batch_loads, "), "{error}");
    }
}
