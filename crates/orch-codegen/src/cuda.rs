//! CUDA C++ text for GPU targets.
//!
//! One kernel per thread program:
//!
//! ```c
//! extern "C" __global__ void NAME(const T0 *b0, ..., TN *bn);
//! ```
//!
//! with the global buffers in order, none of which overlap unless both are only read. The grid is one-dimensional: a
//! CTA per task, of [`Cta::threads`](orch_thread::Cta) threads, in clusters of [`Cta::cluster`](orch_thread::Cta), with
//! [`shared_bytes`](ThreadProgram::shared_bytes) of dynamic shared memory.
//!
//! Where the target has programmatic dependent launch, a kernel lets the next one start at once, and itself waits for the end of
//! those before it (`griddepcontrol`).
//!
//! Kernels on 16-bit floats take exponentials, quotients and roots by the hardware's approximations, whose errors (about
//! 2^-22) are far below what rounding to 16 bits makes of them; but not if a rounding or a conversion to integers may
//! blow such an error up. All other kernels compute them to the last place or two.
//!
//! The text is C++17 for NVRTC without any header: the functions that kernels call are in a prelude; mma, wgmma, cp.async
//! and TMA are inline PTX. Programs are taken to be valid and to have a CTA; others may panic.

mod approximate;
mod cta;
mod emitter;
mod expression;
mod fragments;
mod function;
mod in_flight;
mod memory;
mod types;
mod wgmma;

use orch_thread::{GpuTarget, ThreadProgram};

/// What every file starts with.
const PRELUDE: &str = include_str!("cuda/prelude.cuh");

/// What files of kernels whose CTAs wait for each other have next.
const GRID_PRELUDE: &str = include_str!("cuda/grid.cuh");

/// CUDA C++ text that defines one kernel.
///
/// # Panics
/// If the program is not valid or has no CTA.
pub fn emit(program: &ThreadProgram, target: &GpuTarget) -> String {
    let tiles: String = wgmma::functions(program).iter().map(wgmma::WgmmaFunction::text).collect();
    let approximate = if approximate::may_approximate(program) { "#define ORC_APPROXIMATE\n" } else { "" };
    let kernel = function::emit(program, target);
    let waits = program.cta.as_ref().is_some_and(|cta| cta.barrier_group > 1);
    let grid = if waits { GRID_PRELUDE } else { "" };
    format!("/* Generated for {}. */\n{approximate}{PRELUDE}{grid}{tiles}\n{kernel}", target.name)
}

/// The options that NVRTC needs for the text of [`emit`], but for the architecture.
pub fn flags() -> &'static [&'static str] {
    &[
        "--std=c++17",
        "--fmad=true",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--extra-device-vectorization",
    ]
}

#[cfg(test)]
mod tests {
    use super::{emit, flags};
    use orch_thread::parse_thread;
    use orch_thread::target::{SM_80, SM_90};

    /// f32 is IEEE 754's (decision 48): `--use_fast_math` and `--ftz=true` would flush subnormal numbers.
    #[test]
    fn flags_keep_subnormal_numbers() {
        assert!(flags().contains(&"--ftz=false"));
        assert!(!flags().iter().any(|flag| flag.contains("fast") || flag.ends_with("=approx")));
    }

    /// A kernel that begins while its inputs are written reads them after the wait, and not as constants.
    #[test]
    fn inputs_of_dependent_launches_are_read_after_the_grid_wait() {
        let program = parse_thread(
            "program k, 1 tasks task: i64 [0..=0]\n  input x: f32[32]\n  output y: f32[32]\n  \
             cta 32 threads thread: i64 [0..=31], clusters of 1\n{\ny[thread] = x[thread]\n}\n",
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let early = emit(&program, &SM_90);
        let kernel = &early[early.find("extern \"C\"").expect("a kernel")..];
        let place = |text: &str| kernel.find(text).unwrap_or_else(|| panic!("no `{text}` in {kernel}"));
        let order =
            ["o_grid_dependency_wait();", "x = o_after_grid_wait(x);", "y[thread] = x[thread];"].map(place);
        assert!(order.is_sorted(), "{kernel}");
        assert!(!early.contains("__ldg") && !early.contains("global.nc"));
        assert!(!emit(&program, &SM_80).contains("= o_after_grid_wait("));
    }
}
