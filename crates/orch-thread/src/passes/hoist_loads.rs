//! Loads of an epilogue are issued at the start of the kernel.
//!
//! What a kernel loads only behind a barrier (the scale of a normalisation, a residual) waits for memory after everything else has
//! ended, and compilers move no load across a barrier. Here few such loads go to the start, into registers: loads of constants
//! before the wait for preceding kernels, loads of inputs behind it.
//!
//! ```text
//!                                      for e = 0 to 2 unroll { c_early[e] = c[thread + 32 e] }
//!                                      grid_dependency_wait
//!                                      for e = 0 to 2 unroll { r_early[e] = r[thread + 32 e] }
//!   s[thread] = x[thread]              s[thread] = x[thread]
//!   barrier                       ->   barrier
//!   for i = 0 to 2 unroll {            for i = 0 to 2 unroll {
//!     y[..] = s[..] * c[thread + 32 i]   y[..] = s[..] * c_early[i]
//!             + r[thread + 32 i]                 + r_early[i]
//!   }                                  }
//! ```

use super::replace::replace_values;
use crate::cta::CtaStmt;
use crate::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Most bytes of registers per thread that hold hoisted values.
const MAX_BYTES: usize = 128;

/// Hoists loads of outermost unrolled loops behind the first barrier to the start, of read-only arguments that nothing accesses up to
/// that barrier, at offsets that depend on the task, the thread and the loop variable alone.
pub fn hoist_loads(program: &mut ThreadProgram) {
    let body = std::mem::take(&mut program.body);
    // The first statement behind the first barrier.
    let epilogue = body.iter().position(is_barrier).map_or(body.len(), |at| at + 1);
    let mut hoisted = HoistedLoads {
        accessed: accessed(program, &body[..epilogue]),
        bytes_left: MAX_BYTES,
        ..HoistedLoads::default()
    };
    let mut rewritten = Vec::with_capacity(body.len());
    for (at, stmt) in body.into_iter().enumerate() {
        if let Stmt::Let(var, value) = stmt {
            hoisted.bind(program, var, value);
        }
        rewritten.push(if at < epilogue { stmt } else { hoisted.hoist_from(program, stmt) });
    }
    program.body = hoisted.inserted(rewritten, epilogue);
}

/// True for a barrier behind which a thread reads what other threads have written.
fn is_barrier(stmt: &Stmt) -> bool {
    use CtaStmt::{Barrier, ClusterBarrier, ClusterWait, GridBarrier, ReuseShared};
    matches!(stmt, Stmt::Cta(Barrier | ClusterBarrier | ReuseShared | ClusterWait | GridBarrier { .. }))
}

/// Buffers that statements read or write.
fn accessed(program: &ThreadProgram, stmts: &[Stmt]) -> BTreeSet<BufferId> {
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
            if let CtaStmt::TmaLoad { map, .. } = stmt {
                buffers.extend(program.tensor_maps.get(map.index()).map(|map| map.buffer));
            }
        }
        pending.extend(stmt.bodies().flatten());
    }
    buffers
}

/// The loads that have been hoisted, and what decides about further ones.
#[derive(Default)]
struct HoistedLoads {
    /// Buffers that are accessed up to the first barrier.
    accessed: BTreeSet<BufferId>,
    /// Values of bound variables, over the task, the thread and loop variables.
    bound: Vec<(VarId, ExprId)>,
    /// Bytes of registers that are left.
    bytes_left: usize,
    /// Loops that load constants.
    constants: Vec<Stmt>,
    /// Loops that load inputs.
    inputs: Vec<Stmt>,
}

/// An unrolled loop from 0 to a constant.
#[derive(Clone, Copy)]
struct UnrolledLoop {
    var: VarId,
    iterations: usize,
}

impl HoistedLoads {
    fn bind(&mut self, program: &mut ThreadProgram, var: VarId, value: ExprId) {
        let value = Substitution::new(&self.bound).apply(&mut program.exprs, value);
        self.bound.push((var, value));
    }

    /// A statement behind the first barrier, in which registers take the place of loads that are hoisted.
    fn hoist_from(&mut self, program: &mut ThreadProgram, stmt: Stmt) -> Stmt {
        let Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body } = stmt else { return stmt };
        let iterations = program.exprs.as_int(end).filter(|_| program.exprs.as_int(start) == Some(0));
        let mut replaced = FxHashMap::default();
        for stmt in &body {
            let value = match stmt {
                Stmt::Let(_, value) | Stmt::Assign(_, value) => *value,
                Stmt::Store { value, mask: None, .. } => *value,
                _ => continue,
            };
            if let Some(iterations) = iterations {
                let of = UnrolledLoop { var, iterations: iterations as usize };
                self.hoist(program, of, value, &mut replaced);
            }
            if let Stmt::Let(var, value) = stmt {
                self.bind(program, *var, *value);
            }
        }
        let body = body.into_iter().map(|stmt| replace_values(&mut program.exprs, stmt, &replaced)).collect();
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }

    /// Hoists loads in a value, as long as there are registers; `replaced` gets what takes their place.
    fn hoist(
        &mut self,
        program: &mut ThreadProgram,
        of: UnrolledLoop,
        value: ExprId,
        replaced: &mut FxHashMap<ExprId, ExprId>,
    ) {
        let UnrolledLoop { var, iterations } = of;
        for id in program.exprs.reachable(&[value]) {
            let Expr::Load { buffer, offset, lanes, mask: None } = *program.exprs.get(id) else { continue };
            let Buffer { dtype, scope, ref name, .. } = *program.buffer(buffer);
            let name = format!("{name}_early");
            // A scalar takes a register of 4 bytes, whatever its type.
            let bytes = iterations * lanes * dtype.size_bytes().max(4 / lanes);
            let is_late = scope.is_read_only() && !self.accessed.contains(&buffer);
            if !is_late || bytes > self.bytes_left || replaced.contains_key(&id) {
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
            self.bytes_left -= bytes;
            // [iteration, lane]
            let elems = iterations * lanes;
            let held = program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Scratch });
            let exprs = &mut program.exprs;
            let (early, iteration) = exprs.fresh_index("early", iterations);
            let offset = Substitution::new(&[(var, iteration)]).apply(exprs, offset);
            let value = exprs.load(buffer, offset, lanes, None);
            let to = exprs.mul_const(iteration, lanes as i64);
            let late = exprs.var(var);
            let from = exprs.mul_const(late, lanes as i64);
            replaced.insert(id, exprs.load(held, from, lanes, None));
            let (start, end) = (exprs.index(0), exprs.index(iterations as i64));
            let body = vec![Stmt::Store { buffer: held, offset: to, value, mask: None }];
            let load = Stmt::For { var: early, start, end, step: 1, kind: LoopKind::Unroll, body };
            if scope == Scope::Constant { &mut self.constants } else { &mut self.inputs }.push(load);
        }
    }

    /// The body with the hoisted loads: those of constants before the wait for preceding kernels, those of inputs behind it, ahead of
    /// the first loop.
    fn inserted(self, mut body: Vec<Stmt>, epilogue: usize) -> Vec<Stmt> {
        let wait = body.iter().position(|stmt| matches!(stmt, Stmt::Cta(CtaStmt::GridDependencyWait)));
        let after = wait.map_or(0, |at| at + 1);
        let is_loop = |stmt: &Stmt| matches!(stmt, Stmt::For { .. });
        let first_loop = after + body[after..epilogue.max(after)].iter().position(is_loop).unwrap_or(0);
        body.splice(first_loop..first_loop, self.inputs);
        if wait.is_none() && !self.constants.is_empty() {
            body.insert(0, Stmt::Cta(CtaStmt::GridDependencyWait));
        }
        let first = wait.unwrap_or(0);
        body.splice(first..first, self.constants);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::hoist_loads;
    use crate::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[64]\n  input r: f32[64]\n  constant c: f32[32]\n  output y: f32[64]\n  shared s: f32[32]\n";

    /// The statements with loads hoisted; they compute the same.
    fn hoisted(body: &str) -> String {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_hoisted| {
            if is_hoisted {
                hoist_loads(&mut program);
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
        let text = hoisted(&body);
        let places = ["= c[", "grid_dependency_wait", "= r[", "barrier", "r_early[i]", "c_early[i]"]
            .map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {text}");
        assert!(!text.contains("x_early"), "{text}");
    }

    #[test]
    fn what_is_awaited_is_not_read_before() {
        let body = format!("grid_dependency_wait\n{}", looped("y[at] = ((s[thread] * c[thread]) + r[at])\n"));
        let text = hoisted(&body);
        let places = ["= c[", "grid_dependency_wait", "= r["].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
        assert_eq!(text.matches("grid_dependency_wait").count(), 1);
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
            let text = hoisted(&late);
            assert!(!text.contains("early"), "{text}");
        }
    }
}
