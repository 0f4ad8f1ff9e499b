//! Functions of the prelude around wgmma, one for each shape that a program uses.

use crate::facts::cta_stmts;
use orch_thread::cta::WARP_GROUP_ROWS;
use orch_thread::{CtaStmt, MmaType, Scope, ThreadProgram};

/// A function of the prelude around a sequence of `wgmma.mma_async`, whose shapes and registers are spelled out in its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WgmmaFunction {
    ty: MmaType,
    n: usize,
    k: usize,
    /// Whether operand `a` is in registers.
    pub a_in_registers: bool,
    /// Whether operand `a` is M-major in shared memory.
    a_transposed: bool,
    /// Whether operand `b` is N-major in shared memory.
    b_transposed: bool,
    /// Whether it is left in flight.
    pub is_async: bool,
}

impl WgmmaFunction {
    /// The function that a statement calls, if it is a wgmma.
    pub fn of(program: &ThreadProgram, stmt: &CtaStmt) -> Option<WgmmaFunction> {
        let CtaStmt::Wgmma { ty, a, n, k, a_transposed, b_transposed, is_async, .. } = *stmt else {
            return None;
        };
        let a_in_registers = program.buffer(a.buffer).scope == Scope::Scratch;
        Some(WgmmaFunction { ty, n, k, a_in_registers, a_transposed, b_transposed, is_async })
    }

    /// The name of its function.
    pub fn name(&self) -> String {
        let Self { ty, n, k, .. } = self;
        let fragments = if self.a_in_registers { "_fragments" } else { "" };
        let transposed_a = if self.a_transposed { "_transposed_a" } else { "" };
        let transposed_b = if self.b_transposed { "_transposed_b" } else { "" };
        let is_async = if self.is_async { "_async" } else { "" };
        format!("o_wgmma_{}_{n}_{k}{fragments}{transposed_a}{transposed_b}{is_async}", ty.name())
    }

    /// Accumulators per thread: `c[m, n]` over the threads of a warp group.
    pub fn accumulators(&self) -> usize {
        self.n / 2
    }

    /// Its text: one `wgmma.mma_async` for each 16 of the K dimension, all in flight together, in one group.
    pub fn text(&self) -> String {
        let Self { ty, n, k, a_in_registers, a_transposed, b_transposed, is_async } = *self;
        let (accumulators, k_steps, ty) = (self.accumulators(), k / ty.instruction_k(), ty.name());
        let registers = |first: usize, count: usize| {
            let list: Vec<String> = (first..first + count).map(|register| format!("%{register}")).collect();
            format!("{{{}}}", list.join(", "))
        };
        // Operands of the assembly: the accumulators, then `a` of each K step, then the descriptor of `b` of each.
        let (a_operands, a_param) =
            if a_in_registers { (4, "const unsigned *a") } else { (1, "const void *a") };
        let first_b = accumulators + a_operands * k_steps;
        let mut lines = vec!["wgmma.fence.sync.aligned;".to_owned()];
        for step in 0..k_steps {
            // `tnspA` is there only if `a` is in shared memory.
            let [tnsp_a, tnsp_b] = [a_transposed, b_transposed].map(u8::from);
            let (a, tnsp) = match a_in_registers {
                true => (registers(accumulators + 4 * step, 4), tnsp_b.to_string()),
                false => (format!("%{}", accumulators + step), format!("{tnsp_a}, {tnsp_b}")),
            };
            lines.push(format!(
                "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ty}.{ty} {}, {a}, %{}, 1, 1, 1, {tnsp};",
                registers(0, accumulators),
                first_b + step,
            ));
        }
        lines.push("wgmma.commit_group.sync.aligned;".to_owned());
        lines.push(format!("wgmma.wait_group.sync.aligned {};", u8::from(is_async)));
        let outputs: Vec<String> = (0..accumulators).map(|at| format!("\"+f\"(c[{at}])")).collect();
        let descriptors = |first: &str, lines: usize, is_transposed: bool| -> Vec<String> {
            let offsets = (0..k_steps).map(|step| k_step_offset(step, lines, is_transposed));
            offsets.map(|offset| format!("\"l\"({first} + {offset})")).collect()
        };
        let mut inputs: Vec<String> = match a_in_registers {
            true => (0..4 * k_steps).map(|at| format!("\"r\"(a[{at}])")).collect(),
            false => descriptors("at", WARP_GROUP_ROWS, a_transposed),
        };
        inputs.extend(descriptors("bt", n, b_transposed));
        let [a_leading_offset, b_leading_offset] =
            [a_transposed, b_transposed].map(|is_transposed| leading_offset(k, is_transposed));
        let a_descriptor = match a_in_registers {
            true => String::new(),
            false => format!("at = o_wgmma_descriptor(a, {a_leading_offset}), "),
        };
        format!(
            "ORC void {}(float *c, {a_param}, const void *b) {{\n    \
             const unsigned long long {a_descriptor}bt = o_wgmma_descriptor(b, {b_leading_offset});\n    \
             asm volatile(\"{}\"\n        : {}\n        : {}\n        : \"memory\");\n}}\n",
            self.name(),
            lines.join("\\n\"\n        \""),
            outputs.join(", "),
            inputs.join(", "),
        )
    }
}

/// Offset, in units of 16 bytes, of K step `step` (16 elements) in a swizzled tile of `lines` lines `[line, k]`, or `[k, line]` if it is
/// transposed.
///
/// ```text
/// [line, k]   a step is 32 bytes of each row of 128; after four steps comes the next panel of `lines` rows
/// [k, line]   a step is 16 rows of 128 bytes, 2 KiB
/// ```
fn k_step_offset(step: usize, lines: usize, is_transposed: bool) -> usize {
    if is_transposed { 128 * step } else { 2 * (step % 4) + step / 4 * lines * 8 }
}

/// The leading dimension's offset in a descriptor, in units of 16 bytes: from one panel of 64 lines of a transposed tile `[k, line]`
/// to the next, `k` rows of 128 bytes; of `[line, k]` it has no meaning.
fn leading_offset(k: usize, is_transposed: bool) -> usize {
    if is_transposed { 8 * k } else { 1 }
}

/// The wgmma functions that a program calls, each once.
pub fn functions(program: &ThreadProgram) -> Vec<WgmmaFunction> {
    let mut found: Vec<WgmmaFunction> =
        cta_stmts(&program.body).filter_map(|stmt| WgmmaFunction::of(program, stmt)).collect();
    found.sort_unstable_by_key(WgmmaFunction::name);
    found.dedup();
    found
}
