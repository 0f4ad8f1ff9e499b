//! Loads of several turns of a loop before its first store.
//!
//! A load may not pass a store that could write what it reads, and a compiler of kernels cannot tell: results that are made
//! from inputs one after the other would each wait for memory. Here such a loop is cut into groups of turns, and what a
//! group reads of inputs is loaded first, into registers.

use orch_compute::expr::substitute::{Substitution, replace};
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_thread::cta::CtaStmt;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use rustc_hash::FxHashMap;

/// Most turns of a group.
const MOST_TURNS: usize = 8;
/// Bytes of a thread's loads before the stores, at most.
const MOST_BYTES: usize = 128;

/// Moves loads of inputs in loops that end in stores to outputs before the stores of several turns.
pub fn load_ahead(program: &mut ThreadProgram) {
    let body = std::mem::take(&mut program.body);
    program.body = list(program, body);
}

fn list(program: &mut ThreadProgram, stmts: Vec<Stmt>) -> Vec<Stmt> {
    stmts.into_iter().flat_map(|stmt| one(program, stmt)).collect()
}

fn one(program: &mut ThreadProgram, stmt: Stmt) -> Vec<Stmt> {
    match stmt {
        Stmt::For { var, start, end, step, kind, body } => {
            if let Some(turns) = turns_of(&program.exprs, (start, end, step), kind)
                && let Some(group) = Group::of(program, &body, turns)
            {
                return group.written(program, var, turns, body);
            }
            let body = list(program, body);
            vec![Stmt::For { var, start, end, step, kind, body }]
        }
        Stmt::If { condition, then, otherwise } => {
            let (then, otherwise) = (list(program, then), list(program, otherwise));
            vec![Stmt::If { condition, then, otherwise }]
        }
        other => vec![other],
    }
}

/// How often a loop that is unrolled is taken.
fn turns_of(exprs: &Exprs, (start, end, step): (ExprId, ExprId, i64), kind: LoopKind) -> Option<usize> {
    let is_counted = exprs.as_int(start) == Some(0) && step == 1 && kind != LoopKind::Serial;
    exprs.as_int(end).filter(|_| is_counted).and_then(|end| usize::try_from(end).ok())
}

/// What is loaded ahead of the stores of some turns.
struct Group {
    /// How many; they divide those of the loop.
    turns: usize,
    /// What is loaded, and where.
    loads: Vec<(ExprId, Place)>,
}

/// A load over the loop's variable and what is known before the loop.
struct Place {
    buffer: BufferId,
    offset: ExprId,
    lanes: usize,
    mask: Option<ExprId>,
}

impl Group {
    /// The group of a loop's body; `None` if there is nothing to gain.
    fn of(program: &mut ThreadProgram, body: &[Stmt], turns: usize) -> Option<Self> {
        let mut found = Found::default();
        if !found.look(program, body, None) || !found.stores || found.is_ambiguous {
            return None;
        }
        let bytes = |(_, place): &(ExprId, Place)| {
            place.lanes * program.buffer(place.buffer).dtype.size_bytes().max(4 / place.lanes)
        };
        let bytes: usize = found.loads.iter().map(bytes).sum();
        let most = MOST_BYTES.checked_div(bytes)?.min(MOST_TURNS);
        let turns = (2..=most.min(turns)).rev().find(|group| turns.is_multiple_of(*group))?;
        Some(Self { turns, loads: found.loads })
    }

    /// The loop in groups.
    fn written(self, program: &mut ThreadProgram, var: VarId, turns: usize, body: Vec<Stmt>) -> Vec<Stmt> {
        let (groups, name) = (turns / self.turns, program.exprs.var_info(var).name.clone());
        let (group_var, group) = program.exprs.fresh_index(format!("{name}_group"), groups);
        let (first_var, first) = program.exprs.fresh_index(format!("{name}_loaded"), self.turns);
        let (then_var, then) = program.exprs.fresh_index(format!("{name}_in_group"), self.turns);
        let start = program.exprs.mul_const(group, self.turns as i64);
        let start = if groups == 1 { program.exprs.index(0) } else { start };
        let mut of_turn = Substitution::new(&[(var, program.exprs.add2(start, first))]);
        let (mut loads, mut replaced) = (Vec::new(), FxHashMap::default());
        for (id, Place { buffer, offset, lanes, mask }) in self.loads {
            let dtype = program.buffer(buffer).dtype;
            let name = format!("{}_ahead", program.buffer(buffer).name);
            let elems = self.turns * lanes;
            let held = program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Scratch });
            let exprs = &mut program.exprs;
            let offset = of_turn.apply(exprs, offset);
            let mask = mask.map(|mask| of_turn.apply(exprs, mask));
            let value = exprs.load(buffer, offset, lanes, mask);
            let [to, from] = [first, then].map(|turn| exprs.mul_const(turn, lanes as i64));
            loads.push(Stmt::Store { buffer: held, offset: to, value, mask: None });
            replaced.insert(id, exprs.load(held, from, lanes, None));
        }
        let exprs = &mut program.exprs;
        let mut stores = vec![Stmt::Let(var, exprs.add2(start, then))];
        stores.extend(body.into_iter().map(|stmt| with(exprs, stmt, &replaced)));
        let (zero, end) = (exprs.index(0), exprs.index(self.turns as i64));
        let unrolled = |var, body| Stmt::For { var, start: zero, end, step: 1, kind: LoopKind::Unroll, body };
        let both = vec![unrolled(first_var, loads), unrolled(then_var, stores)];
        if groups == 1 {
            return both;
        }
        let end = exprs.index(groups as i64);
        vec![Stmt::For { var: group_var, start: zero, end, step: 1, kind: LoopKind::Serial, body: both }]
    }
}

/// What is seen in a loop's body.
#[derive(Default)]
struct Found {
    /// Values of variables that the body binds.
    bound: Vec<(VarId, ExprId)>,
    loads: Vec<(ExprId, Place)>,
    /// Whether an output is stored to.
    stores: bool,
    /// Whether a load is made under several conditions.
    is_ambiguous: bool,
}

impl Found {
    /// False if the body does what turns of a group must not do out of order.
    fn look(&mut self, program: &mut ThreadProgram, body: &[Stmt], guard: Option<ExprId>) -> bool {
        body.iter().all(|stmt| match stmt {
            Stmt::Comment(_) | Stmt::Cta(CtaStmt::LoadDsmem { .. }) => true,
            Stmt::Let(var, value) => {
                self.take(program, *value, guard);
                let value = Substitution::new(&self.bound).apply(&mut program.exprs, *value);
                self.bound.push((*var, value));
                true
            }
            Stmt::Store { buffer, value, .. } => {
                let is_output = program.buffer(*buffer).scope == Scope::Output;
                self.stores |= is_output;
                if is_output {
                    self.take(program, *value, guard);
                }
                is_output
            }
            Stmt::If { condition, then, otherwise } if otherwise.is_empty() => {
                let guard = program.exprs.and_guard(guard, Some(*condition));
                self.look(program, then, guard)
            }
            _ => false,
        })
    }

    /// Loads of inputs in a value, of places that no memory decides.
    fn take(&mut self, program: &mut ThreadProgram, value: ExprId, guard: Option<ExprId>) {
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
                self.loads.push((id, Place { buffer, offset, lanes, mask }));
            }
        }
    }
}

/// A statement with some expressions replaced.
pub(super) fn with(exprs: &mut Exprs, stmt: Stmt, replaced: &FxHashMap<ExprId, ExprId>) -> Stmt {
    let mut new = |id| replace(exprs, id, replaced);
    match stmt {
        Stmt::Let(var, value) => Stmt::Let(var, new(value)),
        Stmt::Store { buffer, offset, value, mask } => {
            Stmt::Store { buffer, offset, value: new(value), mask }
        }
        Stmt::If { condition, then, otherwise } => {
            let then = then.into_iter().map(|stmt| with(exprs, stmt, replaced)).collect();
            Stmt::If { condition, then, otherwise }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::load_ahead;
    use orch_ir::{DType, Tensor};
    use orch_thread::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};

    const HEADER: &str = "program k, 1 tasks task: i64 [0..=0]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[200]\n  output y: f32[200]\n";

    /// The text with loads ahead, and `y` of `x = 0, 1, 2, ..` before and after.
    fn loaded_ahead(body: &str) -> (String, [Vec<f64>; 2]) {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_ahead| {
            if is_ahead {
                load_ahead(&mut program);
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
    fn loads_come_before_the_stores_of_several_turns() {
        // 200 elements are 6.25 for each of 32 threads.
        let body = "for i: i64 [0..=11] = 0 to 12 step 1 unroll 4 {\nlet at: i64 = ((i * 32) + thread)\n\
                    if (at < 200) {\nlet v: f32 = x[at]\ny[at] = (v + v)\n}\n}\n";
        let (text, [before, after]) = loaded_ahead(body);
        assert_eq!(before, after);
        assert_eq!(after[199], 398.0);
        let (load, store) = (text.find("x_ahead["), text.find("y["));
        assert!(load.is_some() && load < store, "{text}");
        // 12 turns in 2 groups of 6.
        assert!(text.contains("i_group: i64 [0..=1] = 0 to 2"), "{text}");
    }

    #[test]
    fn what_cannot_be_moved_stays() {
        for body in [
            // One turn after the other.
            "for i: i64 [0..=3] = 0 to 4 step 1 {\ny[((i * 32) + thread)] = x[((i * 32) + thread)]\n}\n",
            // The same load under two conditions.
            "for i: i64 [0..=3] = 0 to 4 step 1 unroll {\nlet at: i64 = ((i * 32) + thread)\n%0 = x[at]\n\
             if (thread < 9) {\ny[at] = %0\n}\nif (thread < 7) {\ny[(thread + 160)] = (%0 + 1.0)\n}\n}\n",
            // Nothing is stored to an output.
            "reg sum: f32 = 0.0\nfor i: i64 [0..=3] = 0 to 4 step 1 unroll {\nsum = (sum + x[i])\n}\n",
        ] {
            let (text, [before, after]) = loaded_ahead(body);
            assert_eq!(before, after, "{body}");
            assert!(!text.contains("ahead"), "{text}");
        }
    }
}
