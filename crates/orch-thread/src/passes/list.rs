//! The list of passes, and the function that runs it.

use super::{batch_loads, defer_grid_wait, evict_first, hoist_loads, launch_dependents_early, unroll};
use crate::program::ThreadProgram;
use orch_compute::expr::BufferId;
use std::collections::BTreeSet;

/// A pass over thread programs.
pub struct Pass {
    /// The name on the command line and of the test file: `hoist_loads`.
    pub name: &'static str,
    /// The programs that it is for; others stay as they are.
    pub kind: ProgramKind,
    /// Precondition, and why the pass stands at its place in the list.
    pub needs: &'static str,
    /// Postcondition.
    pub gives: &'static str,
    /// Changes a valid program of that kind, and leaves a valid one that computes the same.
    pub run: fn(&mut ThreadProgram, &PassContext),
}

/// What runs a task of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// A CTA of threads.
    Gpu,
    /// One worker.
    Cpu,
}

impl ProgramKind {
    /// The kind of a program.
    pub fn of(program: &ThreadProgram) -> Self {
        if program.cta.is_some() { ProgramKind::Gpu } else { ProgramKind::Cpu }
    }
}

/// What passes know beyond the program itself: facts of the plan that the kernel is part of.
#[derive(Clone, Default, Debug)]
pub struct PassContext {
    /// Arguments that no kernel of the plan writes: weights, and inputs of the model. Empty where there is no plan, as for a
    /// kernel that is timed alone.
    pub constants: BTreeSet<BufferId>,
}

/// Every pass, in the order in which they run.
pub const PASSES: [Pass; 6] = [
    Pass {
        name: "hoist_loads",
        kind: ProgramKind::Gpu,
        needs: "the template's scopes: only arguments that it knows to be constant may be loaded before the wait for other kernels",
        gives: "unrolled loops behind the first barrier take up to 128 bytes per thread of read-only arguments from registers that \
                are loaded at the start of the program",
        run: |program, _| hoist_loads::hoist_loads(program),
    },
    Pass {
        name: "batch_loads",
        kind: ProgramKind::Gpu,
        needs: "hoisted loads are gone from their loops; inputs are not yet marked constant, because loads of constants may pass \
                stores without help",
        gives: "loops that only load inputs and store outputs load for up to 8 iterations before they store",
        run: |program, _| batch_loads::batch_loads(program),
    },
    Pass {
        name: "defer_grid_wait",
        kind: ProgramKind::Gpu,
        needs: "loads have their final places; the context names the arguments that no kernel writes",
        gives: "these are constants; the first grid_dependency_wait stands behind the leading statements that touch constants only",
        run: |program, ctx| {
            defer_grid_wait::mark_constant(program, &ctx.constants);
            defer_grid_wait::defer_grid_wait(program);
        },
    },
    Pass {
        name: "evict_first",
        kind: ProgramKind::Gpu,
        needs: "loads have their final places and masks, because it counts them",
        gives: "read-only arguments of at least 16 MiB that all tasks together read once are marked evict_first",
        run: |program, _| evict_first::evict_first(program),
    },
    Pass {
        name: "launch_dependents_early",
        kind: ProgramKind::Gpu,
        needs: "arguments that are read once are marked evict_first",
        gives: "programs that read at least 64 MiB of them have no launch_dependents: the next kernel is launched at the start",
        run: |program, _| launch_dependents_early::launch_dependents_early(program),
    },
    Pass {
        name: "unroll",
        kind: ProgramKind::Cpu,
        needs: "bounds of unrolled loops are constants",
        gives: "no loop is of kind unroll, no branch has a constant condition, each variable is declared once",
        run: |program, _| unroll::unroll(program),
    },
];

/// Runs every pass for programs of this kind, in order; `observe` sees the program after each of them.
pub fn run_all(
    program: &mut ThreadProgram,
    ctx: &PassContext,
    observe: &mut dyn FnMut(&Pass, &ThreadProgram),
) {
    let kind = ProgramKind::of(program);
    for pass in PASSES.iter().filter(|pass| pass.kind == kind) {
        (pass.run)(program, ctx);
        observe(pass, program);
    }
}

/// The pass of this name.
pub fn find(name: &str) -> Option<&'static Pass> {
    const LIST: &[Pass] = &PASSES;
    LIST.iter().find(|pass| pass.name == name)
}

/// The names of all passes, in order.
pub fn names() -> [&'static str; PASSES.len()] {
    PASSES.map(|pass| pass.name)
}
