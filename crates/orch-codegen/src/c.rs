//! C text for CPU targets.
//!
//! One C function per thread program:
//!
//! ```c
//! void NAME(void *const *buffers, int64_t task_begin, int64_t task_end, void *scratch, int64_t task_before);
//! ```
//!
//! runs the tasks `task_begin..task_end`. `buffers` points to the global buffers in order; no two of them overlap
//! unless both are only read. `scratch` points to [`scratch_bytes`](ThreadProgram::scratch_bytes) bytes, aligned to
//! 64, that no other thread uses meanwhile.
//!
//! The text is GNU C11 with vector extensions (GCC 12 or Clang 15 and later) and, where they have no operator for
//! it, the target's intrinsics. It depends on its arguments alone. Compile it with [`flags`] and link it with `-lm`.
//! Floating-point contraction is off in it: a multiplication and an addition are fused exactly where the program
//! says so.
//!
//! Programs are taken to be valid; an invalid one may panic.

mod access;
mod emitter;
mod expression;
mod flags;
mod function;
mod helper;
mod literal;
mod narrow;
mod parens;
mod tile;
mod types;

use helper::CFile;
use orch_thread::{CpuTarget, ThreadProgram};
use types::{Family, Isa};

/// C text that defines one function per program, each of which has been through all
/// [passes](orch_thread::passes::run_all): no loop is left to unroll.
///
/// # Panics
/// If a program is not valid, or has a loop of kind [`Unroll`](orch_thread::LoopKind::Unroll).
pub fn emit(programs: &[&ThreadProgram], target: &CpuTarget) -> String {
    let isa = isa(target);
    let mut unit = CFile::new(isa);
    let functions: Vec<String> = programs
        .iter()
        .map(|program| function::emit(&narrow::narrow((*program).clone()), &mut unit))
        .collect();
    let prelude = unit.prelude();
    format!("{}{prelude}\n{}", header(target, isa), functions.join("\n"))
}

/// The compiler options that the text of [`emit`] needs for this target.
pub fn flags(target: &CpuTarget) -> &'static [&'static str] {
    match isa(target).family {
        _ if target.has_amx_bf16 => {
            &["-std=gnu11", "-O2", "-march=sapphirerapids", "-mprefer-vector-width=512"]
        }
        Family::Avx512 if target.has_bf16_dot => {
            &["-std=gnu11", "-O2", "-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"]
        }
        Family::Avx512 => &["-std=gnu11", "-O2", "-march=x86-64-v4", "-mprefer-vector-width=512"],
        Family::Avx2 => &["-std=gnu11", "-O2", "-march=x86-64-v3"],
        Family::Neon => &["-std=gnu11", "-O2", "-march=armv8-a"],
    }
}

fn isa(target: &CpuTarget) -> Isa {
    let family = match target.name.starts_with("aarch64") {
        true => Family::Neon,
        false if target.has_masks => Family::Avx512,
        false => Family::Avx2,
    };
    Isa { family, register_bytes: target.vector_bytes, has_bf16: target.has_bf16_dot }
}

/// What every file starts with.
fn header(target: &CpuTarget, isa: Isa) -> String {
    let intrinsics = if isa.is_x86() { "immintrin.h" } else { "arm_neon.h" };
    format!(
        "/* Generated for {}. */\n\
         #ifdef __clang__\n\
         #pragma STDC FP_CONTRACT OFF\n\
         #else\n\
         #pragma GCC optimize(\"fp-contract=off\", \"no-math-errno\", \"no-trapping-math\")\n\
         #endif\n\
         #include <math.h>\n\
         #include <stdbool.h>\n\
         #include <stdint.h>\n\
         #include <{intrinsics}>\n\n\
         #define ORC static inline __attribute__((always_inline))\n\n\
         /* The bits of a floating-point number, and the number of these bits. */\n\
         ORC int32_t orc_bits(float a) {{ int32_t r; __builtin_memcpy(&r, &a, 4); return r; }}\n\
         ORC float orc_float(int32_t a) {{ float r; __builtin_memcpy(&r, &a, 4); return r; }}\n\
         ORC int64_t orc_dbits(double a) {{ int64_t r; __builtin_memcpy(&r, &a, 8); return r; }}\n\
         ORC double orc_double(int64_t a) {{ double r; __builtin_memcpy(&r, &a, 8); return r; }}\n\n",
        target.name
    )
}
