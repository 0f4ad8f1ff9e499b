//! Thread programs as text that reads back: `parse(print(p))` is `p` with other ids.
//!
//! ```text
//! program scale, 4 tasks task: i64 [0..=3]
//!   input x: f32[64]
//!   output y: f32[64]
//! {
//!   for i: i64 [0..=8, multiple 8] = 0 to 16 step 8 unroll {
//!     # eight elements at once
//!     %0 = ((task * 16) + i)
//!     let v: f32x8 = x[%0; 8]
//!     y[%0 if (ramp(i, 1; 8) < splat(16; 8))] = (v * splat(0.5; 8))
//!   }
//! }
//! ```
//!
//! - `let` binds once, `reg` declares a register, `name = ..` assigns it; `[low..=high, multiple n]` declares the range and a
//!   divisor of an integer. A variable that has the name of an earlier one reads `name.2`, odd names are in quotes.
//! - `%n = ..` names an expression that occurs more than once; it is not a statement and computes nothing.
//! - `x[offset; lanes if mask]` loads; a vector of offsets needs no lanes. `y[offset if mask] = value` stores.
//! - `tile a: bf16[16, 32]` after the buffers declares a matrix tile; [`amx`](crate::amx) shows the
//!   statements that work on them.
//! - `tensor_map ..` and `mbarriers ..` after the buffers declare tensor maps, from which TMA loads, and the full and empty
//!   mbarriers; [`tma`](crate::tma) has an example.
//! - `, evict_first` after a buffer marks an argument that L2 should evict before others.
//! - `groups of n first: i64` before the buffers declares groups of `n` consecutive tasks, and the variable that is 1 in a worker's
//!   first task of a group.
//! - `phases n` before the buffers declares that the work items are in `n` phases, each of as many consecutive ones.
//! - `cta ..` before the buffers declares the threads of a CTA, and the CTAs of a cluster; [`cta`](crate::cta) has an example.
//! - Constants read `5` (`i64`), `0.5` (`f32`), `5_i32`, `nan_f64`, `true`, or `f32#7fc00001` for the bits of other NaN.
//! - A cast reads as the type's name, `f16(x)`; functions of one or two operands read by their names but for
//!   `+ - * / // %` and comparisons, which are infix and always in parentheses.
mod error;
mod parse;
mod print;
mod token;
mod words;

pub use crate::text::error::ThreadTextError;
pub use crate::text::parse::parse_thread;
pub use crate::text::print::print_thread;
pub(crate) use crate::text::words::type_text;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random_program;
    use crate::text::words::MAX_PRINTED_DEPTH;

    #[test]
    fn random_programs_are_read_back() {
        for seed in 0..150 {
            let (program, _) = random_program("k", seed);
            let text = program.to_string();
            let parsed = parse_thread(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
            assert_eq!(parsed.to_string(), text, "seed {seed}");
            assert_eq!(parsed.buffers, program.buffers);
            assert_eq!(crate::validate_thread(&parsed), Vec::<String>::new());
        }
    }

    #[test]
    fn deep_expressions_are_printed_in_parts() {
        let mut body = "  let v: f32 = 1.0\n  %0 = (v + v)\n".to_owned();
        (0..1000).for_each(|at| body += &format!("  %{} = exp(%{at})\n", at + 1));
        let text = format!("program k, 1 tasks task: i64\n{{\n{body}  let w: f32 = %1000\n}}\n");
        let printed = parse_thread(&text).unwrap().to_string();
        assert_eq!(printed.lines().count(), 5 + 1001 / MAX_PRINTED_DEPTH);
        assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
    }

    #[test]
    fn the_example_is_canonical() {
        let example = include_str!("text.rs")
            .lines()
            .skip_while(|line| *line != "//! ```text")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.strip_prefix("//! ").expect("a doc line").to_owned() + "\n")
            .collect::<String>();
        let program = parse_thread(&example).unwrap();
        assert_eq!(program.to_string(), example);
        assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
    }

    /// Tasks of a group find what its first task left in scratch, and a group that two workers share is begun by both.
    #[test]
    fn groups_share_scratch() {
        use crate::interp::{BufferData, ExecOptions, interpret};
        let program = |first: &str| {
            format!(
                "program k, 8 tasks task: i64 [0..=7]\n  groups of 4 first: i64 [0..=1]\n  output y: i64[8]\n  scratch s: i64[1]\n{{\n  \
                 if (first >= 1) {{\n    s[0] = {first}\n  }}\n  y[task] = s[0]\n}}\n"
            )
        };
        let run = |text: &str| {
            let program = parse_thread(text).unwrap();
            assert_eq!(program.to_string(), text);
            assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
            let mut buffers = [BufferData::zeros(orch_ir::DType::I64, 8)];
            interpret(&program, &mut buffers, &ExecOptions::default()).unwrap();
            buffers[0].bytes.chunks(8).map(|bytes| bytes[0]).collect::<Vec<_>>()
        };
        assert_eq!(run(&program("(task // 4)")), [0, 0, 0, 0, 1, 1, 1, 1]);
        // What is left depends on who begins: no such kernel computes the same for any number of threads.
        assert_eq!(run(&program("task")), [0, 0, 2, 2, 4, 4, 6, 6]);
    }

    /// A task reads what the other one of the phase before has written; in one phase that is a race.
    #[test]
    fn phases_are_ordered() {
        use crate::interp::{BufferData, ExecOptions, interpret};
        let program = |phases: &str| {
            format!(
                "program k, 6 tasks task: i64 [0..=5]\n{phases}  updated y: i64[2]\n{{\n  \
                 y[(task % 2)] = (y[((task + 1) % 2)] + 1)\n}}\n"
            )
        };
        let run = |text: &str| {
            let program = parse_thread(text).unwrap();
            assert_eq!(program.to_string(), text);
            assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
            let mut buffers = [BufferData::zeros(orch_ir::DType::I64, 2)];
            interpret(&program, &mut buffers, &ExecOptions::default()).map(|_| buffers[0].bytes[0])
        };
        let race = run(&program("")).unwrap_err().to_string();
        assert!(race.contains("also accessed by task 0"), "{race}");
        assert!(run(&program("  phases 3\n")).is_err());
        assert_eq!(run(&program("  phases 6\n")), Ok(5));
    }

    #[test]
    fn names_and_constants_survive() {
        let text = "program k, 1 tasks \"let\": i64 [0..=0]\n  scratch \"a b\\q\\\\\": f32[4]\n{\n  # two\\nlines\n  let x: f32 = nan\n  \
                    let x.2: f64 = -inf_f64\n  let \"inf\": f32 = f32#7fc00001\n  let y: i64 = -9223372036854775808\n  \
                    let z: f16x4 = splat(0.5_f16; 4)\n  \"a b\\q\\\\\"[0] = -0.0\n}\n";
        let program = parse_thread(text).unwrap();
        assert_eq!(program.to_string(), text);
        assert_eq!(program.buffers[0].name, "a b\"\\");
    }

    #[test]
    fn statements_of_ctas_are_read_back() {
        let text = "program k, 2 tasks task: i64 [0..=1]\n  cta 128 threads thread: i64 [0..=127], clusters of 2\n  \
                    input x: f16[8192]\n  shared s: f16[8192]\n  shared g: f32[128]\n  reused_shared r: f16[64]\n  scratch acc: f32[4]\n  \
                    scratch factors: f16[12]\n{\n  \
                    grid_dependency_wait\n  %0 = (thread * 8)\n  cp_async s[%0], x[%0], 8\n  \
                    cp_async s[%0], x[0], 8, if (thread < 32)\n  cp_async_commit\n  cp_async_wait 1\n  barrier\n  warp_barrier\n  \
                    ldmatrix factors[0], s[%0], 4\n  \
                    ldmatrix factors[8], s[%0], 2, transposed\n  \
                    mma f16, acc[0], factors[0], factors[8]\n  \
                    wgmma f16, acc[0], s[0], s[4096], 8, 64\n  \
                    wgmma f16, acc[0], factors[0], s[4096], 64, 16, transposed_b\n  launch_dependents\n  \
                    wgmma f16, acc[0], s[0], s[4096], 8, 64, transposed_a, async\n  \
                    wgmma f16, acc[0], factors[0], s[4096], 64, 16, transposed_b, async\n  compute_first acc[0]\n  wgmma_wait\n  cluster_barrier\n  \
                    load_dsmem other: f16 = s[thread], (1 - task)\n  shuffle v: f16 = other, 16\n  reuse_shared\n  \
                    r[0] = v\n  cluster_arrive\n  cluster_wait\n  store_dsmem g[thread], task = 1.0\n}\n";
        let program = parse_thread(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(program.to_string(), text);
        assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
    }
}
