//! Replacing variables in an expression, and copying expressions from one arena to another.
//!
//! Both rebuild what they touch through the smart constructors, so constants that appear fold, and both share
//! work between calls: an expression is rewritten once.

use crate::expr::{ArgId, Expr, ExprId, Exprs, StageId, VarId};
use rustc_hash::FxHashMap;

/// `root` with every variable of `bindings` replaced by its expression, all at once.
pub fn substitute(exprs: &mut Exprs, root: ExprId, bindings: &[(VarId, ExprId)]) -> ExprId {
    Substitution::new(bindings).apply(exprs, root)
}

/// A simultaneous replacement of variables, for many expressions of one arena.
#[derive(Clone, Debug)]
pub struct Substitution {
    bindings: FxHashMap<VarId, ExprId>,
    done: FxHashMap<ExprId, ExprId>,
}

impl Substitution {
    /// The substitution that replaces each variable by the expression beside it.
    pub fn new(bindings: &[(VarId, ExprId)]) -> Self {
        Self { bindings: bindings.iter().copied().collect(), done: FxHashMap::default() }
    }

    /// `root` after the substitution. Replacements may be wider than the variables (vectors for scalars) only
    /// under elementwise functions; `vectorize` of `orch-thread` widens loads.
    pub fn apply(&mut self, exprs: &mut Exprs, root: ExprId) -> ExprId {
        for id in exprs.reachable_unless(&[root], |id| self.done.contains_key(&id)) {
            let node = exprs.get(id).clone();
            let new = match &node {
                Expr::Var(var) => self.bindings.get(var).copied().unwrap_or(id),
                _ => {
                    let mut changed = false;
                    let moved = node.map_operands(|operand| {
                        let new = self.done[&operand];
                        changed |= new != operand;
                        new
                    });
                    if changed { exprs.rebuild(moved) } else { id }
                }
            };
            self.done.insert(id, new);
        }
        self.done[&root]
    }
}

/// `root` with each subexpression in the map replaced by the expression beside it, outermost ones first.
pub fn replace(exprs: &mut Exprs, root: ExprId, map: &FxHashMap<ExprId, ExprId>) -> ExprId {
    let mut done = map.clone();
    for id in exprs.reachable_unless(&[root], |id| map.contains_key(&id)) {
        let mut is_changed = false;
        let moved = exprs.get(id).clone().map_operands(|operand| {
            let new = done[&operand];
            is_changed |= new != operand;
            new
        });
        let new = if is_changed { exprs.rebuild(moved) } else { id };
        done.insert(id, new);
    }
    done[&root]
}

/// An access that an [`Importer`] meets at block level; its operands are expressions of the new arena.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// [`Expr::Read`].
    Read {
        /// Which argument.
        arg: ArgId,
        /// One index per dimension.
        index: &'a [ExprId],
        /// Where it is read.
        guard: Option<ExprId>,
    },
    /// [`Expr::Stage`].
    Stage(StageId),
}

/// Copies expressions from one arena into another: variables as bound, reads and stage results as a callback
/// says. Loads keep their buffer ids.
#[derive(Clone, Default, Debug)]
pub struct Importer {
    vars: FxHashMap<VarId, ExprId>,
    done: FxHashMap<ExprId, ExprId>,
}

impl Importer {
    /// An importer that knows no variable.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on, `var` of the old arena is `value` of the new one. Forgets what was copied before if the
    /// variable meant something else.
    pub fn bind(&mut self, var: VarId, value: ExprId) {
        if self.vars.insert(var, value) != Some(value) {
            self.done.clear();
        }
    }

    /// The expression of `to` that `root` of `from` becomes. What was copied by an earlier call is not copied,
    /// nor the callback asked, again.
    ///
    /// # Panics
    /// If `root` mentions a variable that is not bound.
    pub fn import(
        &mut self,
        from: &Exprs,
        to: &mut Exprs,
        root: ExprId,
        mut access: impl FnMut(&mut Exprs, Access<'_>) -> ExprId,
    ) -> ExprId {
        for id in from.reachable_unless(&[root], |id| self.done.contains_key(&id)) {
            let new = match from.get(id).map_operands(|operand| self.done[&operand]) {
                Expr::Var(var) => match self.vars.get(&var) {
                    Some(&value) => value,
                    None => panic!("variable {} ({var}) is not bound", from.var_info(var).name),
                },
                Expr::Read { arg, index, guard } => access(to, Access::Read { arg, index: &index, guard }),
                Expr::Stage(stage) => access(to, Access::Stage(stage)),
                node => to.rebuild(node),
            };
            self.done.insert(id, new);
        }
        self.done[&root]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::DType;

    #[test]
    fn variables_are_replaced_at_once() {
        let mut exprs = Exprs::new();
        let (i, x) = exprs.fresh_index("i", 4);
        let (j, y) = exprs.fresh_index("j", 4);
        let sum = exprs.mul_const(y, 10);
        let sum = exprs.add2(x, sum);
        let swapped = substitute(&mut exprs, sum, &[(i, y), (j, x)]);
        let expected = exprs.mul_const(x, 10);
        let expected = exprs.add2(y, expected);
        assert_eq!(swapped, expected);
    }

    #[test]
    fn substituting_constants_folds() {
        let mut exprs = Exprs::new();
        let (i, x) = exprs.fresh_index("i", 4);
        let arg = exprs.declare_arg(DType::F32);
        let guard = exprs.in_range(x, 1, 3);
        let read = exprs.read(arg, vec![x], Some(guard));
        let (two, three) = (exprs.index(2), exprs.index(3));
        let inside = substitute(&mut exprs, read, &[(i, two)]);
        assert_eq!(*exprs.get(inside), Expr::Read { arg, index: vec![two], guard: None });
        let outside = substitute(&mut exprs, read, &[(i, three)]);
        assert_eq!(outside, exprs.constant(DType::F32, 0.0));
    }

    #[test]
    fn long_chains_do_not_overflow_the_stack() {
        let mut exprs = Exprs::new();
        let register = exprs.declare_register("r", crate::Type::scalar(DType::F32));
        let start = exprs.var(register);
        let mut sum = start;
        for _ in 0..100_000 {
            sum = exprs.add2(sum, start);
        }
        let half = exprs.constant(DType::F32, 0.5);
        let replaced = substitute(&mut exprs, sum, &[(register, half)]);
        assert!(exprs.as_const(replaced).is_some_and(|c| c.is_float(50_000.5)));
    }

    #[test]
    fn imports_ask_for_reads_once() {
        let mut block = Exprs::new();
        let (i, x) = block.fresh_index("i", 4);
        let arg = block.declare_arg(DType::F32);
        let next = block.add_const(x, 1);
        let read = block.read(arg, vec![next], None);
        let square = block.mul(read, read);

        let mut thread = Exprs::new();
        let buffer = thread.declare_buffer(DType::F32);
        let seven = thread.index(7);
        let mut importer = Importer::new();
        importer.bind(i, seven);
        let mut asked = 0;
        let mut load = |exprs: &mut Exprs, access: Access<'_>| {
            asked += 1;
            match access {
                Access::Read { index, .. } => exprs.load(buffer, index[0], 1, None),
                Access::Stage(stage) => panic!("no {stage} here"),
            }
        };
        let first = importer.import(&block, &mut thread, square, &mut load);
        let second = importer.import(&block, &mut thread, square, &mut load);
        assert_eq!((first, asked), (second, 1));
        let eight = thread.index(8);
        let loaded = thread.load(buffer, eight, 1, None);
        assert_eq!(first, thread.mul(loaded, loaded));
    }
}
