//! Arguments that are streamed through once are marked to be evicted first (PTX: `ld.global.L2::evict_first`, `createpolicy`).
//!
//! While a model runs, L2 holds the tensors between its kernels. Large weights that are read once would evict them, and cache lines
//! that are dirty would have to be written back first, which delays the loads. On an H200 a GEMM of 8 rows by two weights of
//! 4096 x 4096 takes 24.0 us instead of 29.4 if the weights are marked, right after other data has filled L2; attention over
//! 16 MiB of keys and as many values gains 4 %.

use crate::count::trips;
use crate::cta::CtaStmt;
use crate::program::{Buffer, Stmt, ThreadProgram};
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_ir::CompareFn;
use std::collections::BTreeSet;

/// Bytes from which on an argument is not kept in L2, which is a few times as large.
const MIN_BYTES: usize = 16 << 20;

/// Elements are read once if all tasks together read fewer than this many times the argument's elements: loops copy a few tiles
/// beyond the last one, which are masked out.
const TWICE: f64 = 2.0;

/// Marks in [`ThreadProgram::evict_first`] the arguments that are [read once](read_once).
pub fn evict_first(program: &mut ThreadProgram) {
    program.evict_first = read_once(program);
}

/// The arguments of at least [`MIN_BYTES`] of which all tasks together read no element twice, by the number of reads; none in a
/// program without a CTA.
pub fn read_once(program: &ThreadProgram) -> BTreeSet<BufferId> {
    let is_large = |buffer: &Buffer| buffer.scope.is_read_only() && buffer.bytes() >= MIN_BYTES;
    let Some(cta) = program.cta.as_ref().filter(|_| program.buffers.iter().any(is_large)) else {
        return BTreeSet::new();
    };
    let mut reads = Reads { program, threads: cta.threads as f64, elems: vec![0.0; program.buffers.len()] };
    reads.body(&program.body, Repeats { all: program.tasks as f64, looped: None });
    let is_once = |id: &BufferId| {
        let (buffer, read) = (program.buffer(*id), reads.elems[id.index()]);
        is_large(buffer) && read > 0.0 && read < TWICE * buffer.elems as f64
    };
    (0..program.buffers.len()).map(BufferId::new).filter(is_once).collect()
}

/// Elements that are read of each buffer.
struct Reads<'a> {
    program: &'a ThreadProgram,
    threads: f64,
    elems: Vec<f64>,
}

/// How often statements run, in all tasks together.
#[derive(Clone, Copy)]
struct Repeats {
    all: f64,
    /// The variable of the innermost loop, and how often that loop runs.
    looped: Option<(VarId, f64)>,
}

impl Repeats {
    /// In a branch: once in a loop, if its variable has a certain value there.
    fn where_holds(self, exprs: &Exprs, condition: ExprId) -> Repeats {
        match (exprs.get(condition), self.looped) {
            (Expr::Compare(CompareFn::Eq, a, _), Some((var, times))) if *exprs.get(*a) == Expr::Var(var) => {
                Repeats { all: times, looped: None }
            }
            _ => self,
        }
    }
}

impl Reads<'_> {
    /// Adds the elements that a list of statements reads.
    fn body(&mut self, body: &[Stmt], repeats: Repeats) {
        let times = repeats.all;
        for stmt in body {
            self.loads(&stmt.operands(), times * self.threads);
            match stmt {
                Stmt::Cta(CtaStmt::CpAsync { from, elems, .. }) => {
                    self.elems[from.buffer.index()] += times * self.threads * *elems as f64;
                }
                Stmt::Cta(CtaStmt::TmaLoad { map: tensor_map, .. }) => {
                    let tensor_map = &self.program.tensor_maps[tensor_map.index()];
                    self.elems[tensor_map.buffer.index()] += times * tensor_map.tile_elems() as f64;
                }
                _ => {}
            }
            let exprs = &self.program.exprs;
            let repeats = match stmt {
                Stmt::For { var, start, end, step, .. } => Repeats {
                    all: times * trips(exprs, *var, *start, *end, *step),
                    looped: Some((*var, times)),
                },
                Stmt::If { condition, .. } => repeats.where_holds(exprs, *condition),
                _ => repeats,
            };
            stmt.bodies().for_each(|body| self.body(body, repeats));
        }
    }

    fn loads(&mut self, roots: &[ExprId], times: f64) {
        let exprs = &self.program.exprs;
        for id in exprs.reachable(roots) {
            if let Expr::Load { buffer, lanes, .. } = exprs.get(id) {
                self.elems[buffer.index()] += times * *lanes as f64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read_once;
    use crate::{ThreadProgram, parse_thread};
    use orch_compute::BufferId;

    /// 64 tasks of 128 threads that run `body` so many times; of `x` there are so many elements.
    fn program(elems: usize, iterations: usize, body: &str) -> ThreadProgram {
        let text = format!(
            "program k, 64 tasks task: i64 [0..=63]\n  cta 128 threads thread: i64 [0..=127], clusters of 1\n  \
             input x: f16[{elems}]\n  output y: f32[8192]\n  shared a: f16[1024]\n{{\n\
             for i: i64 [0..={last}] = 0 to {iterations} step 1 {{\n{body}\n}}\nlaunch_dependents\n\
             y[((task * 128) + thread)] = 0\n}}\n",
            last = iterations - 1
        );
        parse_thread(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    const COPY: &str = "cp_async a[(thread * 8)], x[((i * 1024) + ((task * 131072) + (thread * 8)))], 8";

    #[test]
    fn what_each_task_reads_a_part_of_is_read_once() {
        let of = |elems, iterations, body| read_once(&program(elems, iterations, body));
        assert!(of(1 << 23, 128, COPY).contains(&BufferId::new(0)));
        // One stage beyond the last, masked out.
        assert!(of(1 << 23, 130, COPY).contains(&BufferId::new(0)));
        let load = "let v: f16x8 = x[((i * 1024) + ((task * 131072) + (thread * 8))); 8]";
        assert_eq!(of(1 << 23, 128, load).len(), 1);
    }

    #[test]
    fn what_one_iteration_reads_is_read_once() {
        let copy = "if (i == 3) {\ncp_async a[(thread * 8)], x[((task * 131072) + (thread * 8))], 8\n}";
        assert!(read_once(&program(1 << 23, 512, copy)).contains(&BufferId::new(0)));
        assert!(read_once(&program(1 << 23, 512, &copy.replace("==", "<"))).is_empty());
    }

    #[test]
    fn what_is_small_or_read_again_is_not() {
        let of = |elems, iterations, body| read_once(&program(elems, iterations, body));
        assert!(of(1 << 22, 64, COPY).is_empty());
        assert!(of(1 << 23, 256, COPY).is_empty());
    }
}
