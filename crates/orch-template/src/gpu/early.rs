//! Reads that come late, done early.
//!
//! What a kernel reads only once its threads have exchanged sums (what a norm scales by, what it is added to) waits for
//! memory after everything else has ended, and no compiler moves it over a barrier. Here few such reads are done at the
//! start, into registers: those of constants before the kernels that write the inputs are awaited.

use super::ahead::with;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};
use orch_thread::cta::CtaStmt;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Bytes that a thread reads early, at most.
const MOST_BYTES: usize = 128;

/// Moves reads of unrolled loops after the first barrier to the start, of buffers that are not touched before it.
pub fn read_early(program: &mut ThreadProgram) {
    let body = std::mem::take(&mut program.body);
    let late = body.iter().position(is_exchange).map_or(body.len(), |at| at + 1);
    let mut reads =
        Reads { touched: touched(program, &body[..late]), left_bytes: MOST_BYTES, ..Reads::default() };
    let mut moved = Vec::with_capacity(body.len());
    for (at, stmt) in body.into_iter().enumerate() {
        if let Stmt::Let(var, value) = stmt {
            reads.bind(program, var, value);
        }
        moved.push(if at < late { stmt } else { reads.taken_from(program, stmt) });
    }
    program.body = reads.written(moved, late);
}

/// True for a barrier behind which there are sums of other threads.
fn is_exchange(stmt: &Stmt) -> bool {
    use CtaStmt::{Barrier, ClusterBarrier, ClusterWait, ReuseShared};
    matches!(stmt, Stmt::Cta(Barrier | ClusterBarrier | ReuseShared | ClusterWait))
}

/// Buffers that statements read or write.
fn touched(program: &ThreadProgram, stmts: &[Stmt]) -> BTreeSet<BufferId> {
    let mut buffers = BTreeSet::new();
    let mut pending: Vec<&Stmt> = stmts.iter().collect();
    while let Some(stmt) = pending.pop() {
        for id in program.exprs.reachable(&stmt.operands()) {
            if let Expr::Load { buffer, .. } = program.exprs.get(id) {
                buffers.insert(*buffer);
            }
        }
        if let Stmt::Cta(stmt) = stmt {
            buffers.extend(stmt.locations().iter().map(|location| location.buffer));
            if let CtaStmt::TmaLoad { map: view, .. } = stmt {
                buffers.extend(program.tensor_maps.get(view.index()).map(|view| view.buffer));
            }
        }
        pending.extend(stmt.bodies().flatten());
    }
    buffers
}

/// What is read early.
#[derive(Default)]
struct Reads {
    /// Buffers that are touched before the first barrier anyway.
    touched: BTreeSet<BufferId>,
    /// Values of variables, over the task, the thread and turns.
    bound: Vec<(VarId, ExprId)>,
    left_bytes: usize,
    /// The loops that read constants.
    constants: Vec<Stmt>,
    /// The loops that read inputs.
    inputs: Vec<Stmt>,
}

impl Reads {
    fn bind(&mut self, program: &mut ThreadProgram, var: VarId, value: ExprId) {
        let value = Substitution::new(&self.bound).apply(&mut program.exprs, value);
        self.bound.push((var, value));
    }

    /// A statement without the reads that are done early.
    fn taken_from(&mut self, program: &mut ThreadProgram, stmt: Stmt) -> Stmt {
        let Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body } = stmt else { return stmt };
        let turns = program.exprs.as_int(end).filter(|_| program.exprs.as_int(start) == Some(0));
        let mut replaced = FxHashMap::default();
        for stmt in &body {
            let value = match stmt {
                Stmt::Let(_, value) | Stmt::Assign(_, value) => *value,
                Stmt::Store { value, mask: None, .. } => *value,
                _ => continue,
            };
            if let Some(turns) = turns {
                self.take(program, (var, turns as usize), value, &mut replaced);
            }
            if let Stmt::Let(var, value) = stmt {
                self.bind(program, *var, *value);
            }
        }
        let body = body.into_iter().map(|stmt| with(&mut program.exprs, stmt, &replaced)).collect();
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }

    /// Reads in a value early, of places that no memory decides, as long as there is room.
    fn take(
        &mut self,
        program: &mut ThreadProgram,
        (var, turns): (VarId, usize),
        value: ExprId,
        replaced: &mut FxHashMap<ExprId, ExprId>,
    ) {
        for id in program.exprs.reachable(&[value]) {
            let Expr::Load { buffer, offset, lanes, mask: None } = *program.exprs.get(id) else { continue };
            let Buffer { dtype, scope, ref name, .. } = *program.buffer(buffer);
            let name = format!("{name}_early");
            let bytes = turns * lanes * dtype.size_bytes().max(4 / lanes);
            let is_late = scope.is_read_only() && !self.touched.contains(&buffer);
            if !is_late || bytes > self.left_bytes || replaced.contains_key(&id) {
                continue;
            }
            let offset = Substitution::new(&self.bound).apply(&mut program.exprs, offset);
            let thread = program.cta.as_ref().map(|cta| cta.thread);
            let known = [Some(program.task), thread, Some(var)];
            let is_known = |id: ExprId| match program.exprs.get(id) {
                Expr::Load { .. } => false,
                Expr::Var(var) => known.contains(&Some(*var)),
                _ => program.exprs.lanes(id) == 1,
            };
            if !program.exprs.reachable(&[offset]).into_iter().all(is_known) {
                continue;
            }
            self.left_bytes -= bytes;
            let elems = turns * lanes;
            let held = program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Scratch });
            let exprs = &mut program.exprs;
            let (early, turn) = exprs.fresh_index("early", turns);
            let offset = Substitution::new(&[(var, turn)]).apply(exprs, offset);
            let value = exprs.load(buffer, offset, lanes, None);
            let to = exprs.mul_const(turn, lanes as i64);
            let late = exprs.var(var);
            let from = exprs.mul_const(late, lanes as i64);
            replaced.insert(id, exprs.load(held, from, lanes, None));
            let (start, end) = (exprs.index(0), exprs.index(turns as i64));
            let body = vec![Stmt::Store { buffer: held, offset: to, value, mask: None }];
            let read = Stmt::For { var: early, start, end, step: 1, kind: LoopKind::Unroll, body };
            if scope == Scope::Constant { &mut self.constants } else { &mut self.inputs }.push(read);
        }
    }

    /// The statements with the reads: of constants first of all, of inputs ahead of the first loop.
    fn written(self, mut body: Vec<Stmt>, late: usize) -> Vec<Stmt> {
        let awaited = body.iter().position(|stmt| matches!(stmt, Stmt::Cta(CtaStmt::GridDependencyWait)));
        let after = awaited.map_or(0, |at| at + 1);
        let is_loop = |stmt: &Stmt| matches!(stmt, Stmt::For { .. });
        let first_loop = after + body[after..late.max(after)].iter().position(is_loop).unwrap_or(0);
        body.splice(first_loop..first_loop, self.inputs);
        if awaited.is_none() && !self.constants.is_empty() {
            body.insert(0, Stmt::Cta(CtaStmt::GridDependencyWait));
        }
        let first = awaited.unwrap_or(0);
        body.splice(first..first, self.constants);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::read_early;
    use orch_ir::{DType, Tensor};
    use orch_thread::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};

    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[64]\n  input r: f32[64]\n  constant c: f32[32]\n  output y: f32[64]\n  shared s: f32[32]\n";

    /// The statements with reads done early.
    fn read_first(body: &str) -> String {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_early| {
            if is_early {
                read_early(&mut program);
            }
            assert_eq!(validate_thread(&program), Vec::<String>::new());
            let values: Vec<f64> = (0..64).map(f64::from).collect();
            let x = BufferData::from_tensor(&Tensor::from_f64(DType::F32, [64], &values));
            let c = BufferData::from_tensor(&Tensor::from_f64(DType::F32, [32], &values[..32]));
            let mut buffers = [x.clone(), x, c, BufferData::zeros(DType::F32, 64)];
            interpret(&program, &mut buffers, &ExecOptions::default())
                .unwrap_or_else(|error| panic!("{error}"));
            buffers[3].to_tensor([64]).expect("64 elements").to_f64()
        });
        assert_eq!(results[0], results[1]);
        let text = program.to_string();
        text.split_once("\n{\n").expect("a body").1.to_owned()
    }

    const EXCHANGE: &str = "let at: i64 = ((task * 32) + thread)\ns[thread] = x[at]\nbarrier\n";

    fn looped(body: &str) -> String {
        format!("{EXCHANGE}for i: i64 [0..=1] = 0 to 2 step 1 unroll {{\n{body}}}\n")
    }

    #[test]
    fn late_reads_are_done_at_the_start() {
        let body =
            looped("let v: f32 = (s[(31 - thread)] + r[(thread + i)])\ny[at] = (v * c[(thread ^ i)])\n")
                .replace("(thread ^ i)", "(thread - (thread * i))");
        let text = read_first(&body);
        let places =
            ["= c[", "await", "= r[", "barrier", "r_early[i]", "c_early[i]"].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {text}");
        assert!(!text.contains("x_early"), "{text}");
    }

    #[test]
    fn what_is_awaited_is_not_read_before() {
        let body = format!("grid_dependency_wait\n{}", looped("y[at] = ((s[thread] * c[thread]) + r[at])\n"));
        let text = read_first(&body);
        let places = ["= c[", "await", "= r["].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
        assert_eq!(text.matches("await").count(), 1);
    }

    #[test]
    fn what_memory_decides_or_is_near_or_much_stays() {
        for late in [
            // Known from the start.
            looped("y[at] = (s[thread] + x[at])\n"),
            // A place that is read.
            looped("let place: i64 = i64(s[thread])\ny[at] = r[min(place, 63)]\n"),
            // Read by some threads only.
            looped("if (thread < 20) {\ny[at] = r[at]\n}\n"),
            // Not unrolled, and more than there is room for.
            looped("y[at] = r[at]\n").replace(" unroll", ""),
            looped("y[at] = r[at]\n").replace("[0..=1] = 0 to 2", "[0..=39] = 0 to 40"),
            // Nothing comes late.
            "y[((task * 32) + thread)] = r[thread]\n".to_owned(),
        ] {
            let text = read_first(&late);
            assert!(!text.contains("early"), "{text}");
        }
    }
}
