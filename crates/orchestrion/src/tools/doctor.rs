//! What the machine has: for `orchestrion doctor`.

mod cuda;

pub use cuda::{CudaDevice, CudaLibrary, CudaReport};

use crate::Options;
use crate::tune::calibrate::speeds;
use orch_runtime::Machine;
use orch_runtime::cpu::{Compiler, CompilerOptions};
use serde::Serialize;

/// Findings, and what keeps models from compiling.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Examination {
    /// Topic and finding, in order.
    pub findings: Vec<(&'static str, String)>,
    /// What there is of CUDA; the findings tell it too.
    pub cuda: CudaReport,
    /// Why no model can be compiled here.
    pub problem: Option<String>,
}

/// Looks at the machine; measures its speed if asked or not yet known.
pub fn examine(options: &Options, measure_anew: bool) -> Examination {
    let machine = Machine::detect();
    let mut report = Examination { cuda: cuda::examine(&options.cuda), ..Examination::default() };
    let mut add = |topic, finding: String| report.findings.push((topic, finding));
    add("orchestrion", env!("CARGO_PKG_VERSION").to_owned());
    add("machine", machine.fingerprint());
    add("cache", options.cache_dir.display().to_string());
    report.cuda.findings().into_iter().for_each(|(topic, finding)| add(topic, finding));
    let settings = CompilerOptions { program: options.c_compiler.clone(), ..CompilerOptions::default() };
    let compiler = match Compiler::find(&settings) {
        Ok(compiler) => compiler,
        Err(error) => {
            add("C compiler", "none that works".to_owned());
            report.problem = Some(error.to_string());
            return report;
        }
    };
    add("C compiler", format!("{} ({})", compiler.program().display(), compiler.version()));
    add("flags", compiler.flags().join(" "));
    match speeds(options, &machine, compiler, measure_anew) {
        Ok(model) => add(
            "speed",
            format!(
                "{:.0} GFLOP/s f32 per core, {:.1} GB/s from memory, {:.1} GB/s from L2",
                model.fma_gflops_core, model.memory_gbs_core, model.l2_gbs_core
            ),
        ),
        Err(reason) => add("speed", format!("not measured: {reason}")),
    }
    report
}
