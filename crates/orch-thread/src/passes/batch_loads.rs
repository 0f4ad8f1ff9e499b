//! Loads of several iterations are issued before the first store.
//!
//! A load may not pass a store that could write what it reads, and the CUDA compiler cannot tell: outputs that are made from inputs
//! one after the other would each wait for memory. Loops of this form are cut into groups of iterations; the loads of a group come
//! first, into registers:
//!
//! ```text
//!                                     for g = 0 to 2 {
//!                                       for l = 0 to 6 unroll { x_ahead[l] = x[32 (6 g + l) + thread] }
//!   for i = 0 to 12 unroll {            for u = 0 to 6 unroll {
//!                                  ->     let i = 6 g + u
//!     y[32 i + thread] =                  y[32 i + thread] = f(x_ahead[u])
//!       f(x[32 i + thread])             }
//!   }                                 }
//! ```

use super::replace::replace_values;
use crate::cta::CtaStmt;
use crate::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use rustc_hash::FxHashMap;

/// Most iterations of a group.
const MAX_ITERATIONS: usize = 8;
/// Most bytes of registers per thread that hold what a group loads.
const MAX_BYTES: usize = 128;

/// Issues the loads of inputs of several iterations before their stores, in loops that do nothing but store values to outputs, under
/// conditions or not.
pub fn batch_loads(program: &mut ThreadProgram) {
    let body = std::mem::take(&mut program.body);
    program.body = rewrite_list(program, body);
}

fn rewrite_list(program: &mut ThreadProgram, stmts: Vec<Stmt>) -> Vec<Stmt> {
    stmts.into_iter().flat_map(|stmt| rewrite(program, stmt)).collect()
}

fn rewrite(program: &mut ThreadProgram, stmt: Stmt) -> Vec<Stmt> {
    match stmt {
        Stmt::For { var, start, end, step, kind, body } => {
            let iterations = if step == 1 { iterations(&program.exprs, start, end, kind) } else { None };
            if let Some(iterations) = iterations
                && let Some(group) = LoadGroup::of(program, &body, iterations)
            {
                return group.rewritten(program, var, iterations, body);
            }
            let body = rewrite_list(program, body);
            vec![Stmt::For { var, start, end, step, kind, body }]
        }
        Stmt::If { condition, then, otherwise } => {
            let (then, otherwise) = (rewrite_list(program, then), rewrite_list(program, otherwise));
            vec![Stmt::If { condition, then, otherwise }]
        }
        other => vec![other],
    }
}

/// Iterations of a loop of step 1 that is unrolled, wholly or by a factor, from 0 to a constant.
fn iterations(exprs: &Exprs, start: ExprId, end: ExprId, kind: LoopKind) -> Option<usize> {
    let is_counted = exprs.as_int(start) == Some(0) && kind != LoopKind::Serial;
    exprs.as_int(end).filter(|_| is_counted).and_then(|end| usize::try_from(end).ok())
}

/// What is loaded ahead of the stores of a group of iterations.
struct LoadGroup {
    /// Iterations of the group; a divisor of those of the loop.
    iterations: usize,
    /// The loads of one iteration.
    loads: Vec<(ExprId, LoadSource)>,
}

/// What a load reads, over the loop variable and variables that are declared before the loop.
struct LoadSource {
    buffer: BufferId,
    offset: ExprId,
    lanes: usize,
    mask: Option<ExprId>,
}

impl LoadGroup {
    /// The group of a loop with this body; `None` if there is nothing to gain.
    fn of(program: &mut ThreadProgram, body: &[Stmt], iterations: usize) -> Option<Self> {
        let mut found = LoopBody::default();
        if !found.scan(program, body, None) || !found.stores || found.is_ambiguous {
            return None;
        }
        let bytes = |(_, source): &(ExprId, LoadSource)| {
            // A scalar takes a register of 4 bytes, whatever its type.
            source.lanes * program.buffer(source.buffer).dtype.size_bytes().max(4 / source.lanes)
        };
        let bytes: usize = found.loads.iter().map(bytes).sum();
        let most = MAX_BYTES.checked_div(bytes)?.min(MAX_ITERATIONS);
        let iterations = (2..=most.min(iterations)).rev().find(|group| iterations.is_multiple_of(*group))?;
        Some(Self { iterations, loads: found.loads })
    }

    /// The loop over groups of `iterations` iterations in all.
    fn rewritten(
        self,
        program: &mut ThreadProgram,
        var: VarId,
        iterations: usize,
        body: Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (groups, name) = (iterations / self.iterations, program.exprs.var_info(var).name.clone());
        let (group_var, group) = program.exprs.fresh_index(format!("{name}_group"), groups);
        let (first_var, first) = program.exprs.fresh_index(format!("{name}_loaded"), self.iterations);
        let (then_var, then) = program.exprs.fresh_index(format!("{name}_in_group"), self.iterations);
        let start = program.exprs.mul_const(group, self.iterations as i64);
        let start = if groups == 1 { program.exprs.index(0) } else { start };
        let mut of_iteration = Substitution::new(&[(var, program.exprs.add2(start, first))]);
        let (mut loads, mut replaced) = (Vec::new(), FxHashMap::default());
        for (id, LoadSource { buffer, offset, lanes, mask }) in self.loads {
            let dtype = program.buffer(buffer).dtype;
            let name = format!("{}_ahead", program.buffer(buffer).name);
            let elems = self.iterations * lanes;
            let held = program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Scratch });
            let exprs = &mut program.exprs;
            let offset = of_iteration.apply(exprs, offset);
            let mask = mask.map(|mask| of_iteration.apply(exprs, mask));
            let value = exprs.load(buffer, offset, lanes, mask);
            let [to, from] = [first, then].map(|iteration| exprs.mul_const(iteration, lanes as i64));
            loads.push(Stmt::Store { buffer: held, offset: to, value, mask: None });
            replaced.insert(id, exprs.load(held, from, lanes, None));
        }
        let exprs = &mut program.exprs;
        let mut stores = vec![Stmt::Let(var, exprs.add2(start, then))];
        stores.extend(body.into_iter().map(|stmt| replace_values(exprs, stmt, &replaced)));
        let (zero, end) = (exprs.index(0), exprs.index(self.iterations as i64));
        let unrolled = |var, body| Stmt::For { var, start: zero, end, step: 1, kind: LoopKind::Unroll, body };
        let both = vec![unrolled(first_var, loads), unrolled(then_var, stores)];
        if groups == 1 {
            return both;
        }
        let end = exprs.index(groups as i64);
        vec![Stmt::For { var: group_var, start: zero, end, step: 1, kind: LoopKind::Serial, body: both }]
    }
}

/// What is found in a loop's body.
#[derive(Default)]
struct LoopBody {
    /// Values of variables that the body binds.
    bound: Vec<(VarId, ExprId)>,
    /// Loads of inputs.
    loads: Vec<(ExprId, LoadSource)>,
    /// Whether an output is stored to.
    stores: bool,
    /// Whether a load is made under several conditions.
    is_ambiguous: bool,
}

impl LoopBody {
    /// False if the body has effects whose order among iterations matters. `guard` is the condition under which it runs.
    fn scan(&mut self, program: &mut ThreadProgram, body: &[Stmt], guard: Option<ExprId>) -> bool {
        body.iter().all(|stmt| match stmt {
            Stmt::Comment(_) | Stmt::Cta(CtaStmt::LoadDsmem { .. }) => true,
            Stmt::Let(var, value) => {
                self.note_loads(program, *value, guard);
                let value = Substitution::new(&self.bound).apply(&mut program.exprs, *value);
                self.bound.push((*var, value));
                true
            }
            Stmt::Store { buffer, value, .. } => {
                let is_output = program.buffer(*buffer).scope == Scope::Output;
                self.stores |= is_output;
                if is_output {
                    self.note_loads(program, *value, guard);
                }
                is_output
            }
            Stmt::If { condition, then, otherwise } if otherwise.is_empty() => {
                let guard = program.exprs.and_guard(guard, Some(*condition));
                self.scan(program, then, guard)
            }
            _ => false,
        })
    }

    /// Notes the loads of inputs in a value, at offsets and under masks that depend on no other load.
    fn note_loads(&mut self, program: &mut ThreadProgram, value: ExprId, guard: Option<ExprId>) {
        for id in program.exprs.reachable(&[value]) {
            let Expr::Load { buffer, offset, lanes, mask } = *program.exprs.get(id) else { continue };
            if program.buffer(buffer).scope != Scope::Input || program.exprs.lanes(offset) > 1 {
                continue;
            }
            let exprs = &mut program.exprs;
            let guard = guard.map(|guard| exprs.splat(guard, lanes));
            let mask = exprs.and_guard(guard, mask);
            let mut closed = Substitution::new(&self.bound);
            let offset = closed.apply(exprs, offset);
            let mask = mask.map(|mask| closed.apply(exprs, mask));
            let roots: Vec<ExprId> = [offset].into_iter().chain(mask).collect();
            if let Some((_, taken)) = self.loads.iter().find(|(taken, _)| *taken == id) {
                self.is_ambiguous |= taken.mask != mask;
                continue;
            }
            let is_known = |id: ExprId| match exprs.get(id) {
                Expr::Load { .. } => false,
                Expr::Var(var) => exprs.var_info(*var).range.is_some(),
                _ => true,
            };
            if exprs.reachable(&roots).into_iter().all(is_known) {
                self.loads.push((id, LoadSource { buffer, offset, lanes, mask }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::batch_loads;
    use crate::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    const HEADER: &str = "program k, 1 tasks task: i64 [0..=0]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[200]\n  output y: f32[200]\n";

    /// The text with loads in batches, and `y` of `x = 0, 1, 2, ..` before and after.
    fn batched(body: &str) -> (String, [Vec<f64>; 2]) {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_batched| {
            if is_batched {
                batch_loads(&mut program);
            }
            assert_eq!(validate_thread(&program), Vec::<String>::new());
            let x: Vec<f64> = (0..200).map(f64::from).collect();
            let x = BufferData::from_tensor(&Tensor::from_f64(DType::F32, [200], &x));
            let mut buffers = [x, BufferData::zeros(DType::F32, 200)];
            interpret(&program, &mut buffers, &ExecOptions::default())
                .unwrap_or_else(|error| panic!("{error}"));
            buffers[1].to_tensor([200]).expect("200 elements").to_f64()
        });
        (program.to_string(), results)
    }

    #[test]
    fn loads_come_before_the_stores_of_several_iterations() {
        // 200 elements are 6.25 for each of 32 threads.
        let body = "for i: i64 [0..=11] = 0 to 12 step 1 unroll 4 {\nlet at: i64 = ((i * 32) + thread)\n\
                    if (at < 200) {\nlet v: f32 = x[at]\ny[at] = (v + v)\n}\n}\n";
        let (text, [before, after]) = batched(body);
        assert_eq!(before, after);
        assert_eq!(after[199], 398.0);
        let (load, store) = (text.find("x_ahead["), text.find("y["));
        assert!(load.is_some() && load < store, "{text}");
        // 12 iterations in 2 groups of 6.
        assert!(text.contains("i_group: i64 [0..=1] = 0 to 2"), "{text}");
    }

    #[test]
    fn what_cannot_be_moved_stays() {
        for body in [
            // Serial.
            "for i: i64 [0..=3] = 0 to 4 step 1 {\ny[((i * 32) + thread)] = x[((i * 32) + thread)]\n}\n",
            // The same load under two conditions.
            "for i: i64 [0..=3] = 0 to 4 step 1 unroll {\nlet at: i64 = ((i * 32) + thread)\n%0 = x[at]\n\
             if (thread < 9) {\ny[at] = %0\n}\nif (thread < 7) {\ny[(thread + 160)] = (%0 + 1.0)\n}\n}\n",
            // Nothing is stored to an output.
            "reg sum: f32 = 0.0\nfor i: i64 [0..=3] = 0 to 4 step 1 unroll {\nsum = (sum + x[i])\n}\n",
        ] {
            let (text, [before, after]) = batched(body);
            assert_eq!(before, after, "{body}");
            assert!(!text.contains("ahead"), "{text}");
        }
    }
}
