//! What the machine has: for `orchestrion doctor`.

use crate::{Options, speeds};
use orch_runtime::Machine;
use orch_runtime::cpu::{Compiler, CompilerOptions};
use orch_runtime::cuda::{Driver, Nvrtc};

/// Findings, and what keeps models from compiling.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// Topic and finding, in order.
    pub findings: Vec<(&'static str, String)>,
    /// Why no model can be compiled here.
    pub problem: Option<String>,
}

/// The first GPU, or why there is none.
fn gpu(options: &Options) -> String {
    let found = Driver::load(&options.cuda).and_then(|driver| driver.device(0));
    found.map_or_else(
        |error| error.to_string(),
        |device| {
            let info = device.info();
            let memory_gib = info.memory_bytes as f64 / f64::from(1 << 30);
            format!(
                "{}, compute capability {}, {} multiprocessors, {memory_gib:.0} GiB, driver for CUDA {}",
                info.name, info.capability, info.multiprocessors, info.driver
            )
        },
    )
}

/// Looks at the machine; measures its speed if asked or not yet known.
pub fn examine(options: &Options, measure_anew: bool) -> Examination {
    let machine = Machine::detect();
    let mut report = Examination::default();
    let mut add = |topic, finding: String| report.findings.push((topic, finding));
    add("orchestrion", env!("CARGO_PKG_VERSION").to_owned());
    add("machine", machine.fingerprint());
    add("cache", options.cache_dir.display().to_string());
    add("GPU", gpu(options));
    add(
        "NVRTC",
        Nvrtc::load(&options.cuda)
            .map_or_else(|error| error.to_string(), |nvrtc| nvrtc.version().to_string()),
    );
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
    match speeds::speeds(options, &machine, compiler, measure_anew) {
        Ok(model) => add(
            "speed",
            format!(
                "{:.0} GFLOP/s f32 per core, {:.1} GB/s from memory, {:.1} GB/s from the second-level cache",
                model.fma_gflops_core, model.memory_gbs_core, model.l2_gbs_core
            ),
        ),
        Err(reason) => add("speed", format!("not measured: {reason}")),
    }
    report
}
