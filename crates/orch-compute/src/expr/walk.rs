//! Traversal of expressions: operands, reachable nodes, free variables, reconstruction.
//!
//! An operand always has a smaller id than the node that uses it (arenas only grow), so ascending id order is a
//! topological order. Every pass here is a loop over it: nothing recurses, however long a chain of operations is.

use crate::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::BinaryFn;
use rustc_hash::FxHashSet;

impl Expr {
    /// Calls `visit` with each operand in order, index tuples, guards and masks included.
    pub fn for_each_operand(&self, mut visit: impl FnMut(ExprId)) {
        match self {
            Expr::Const(_) | Expr::Var(_) | Expr::Stage(_) => {}
            Expr::Unary(_, a)
            | Expr::Cast(_, a)
            | Expr::IsNan(a)
            | Expr::IsInf(a)
            | Expr::Splat(a, _)
            | Expr::Ramp { base: a, .. }
            | Expr::Half(_, a)
            | Expr::ReduceLanes(_, a) => visit(*a),
            Expr::Binary(_, a, b)
            | Expr::Compare(_, a, b)
            | Expr::Interleave(_, a, b)
            | Expr::FloorDiv(a, b)
            | Expr::FloorRem(a, b) => {
                visit(*a);
                visit(*b);
            }
            Expr::Select(a, b, c) | Expr::Fma(a, b, c) | Expr::DotPairs(a, b, c) => {
                visit(*a);
                visit(*b);
                visit(*c);
            }
            Expr::Read { index, guard, .. } => index.iter().chain(guard).copied().for_each(visit),
            Expr::Load { offset, mask, .. } => std::iter::once(offset).chain(mask).copied().for_each(visit),
        }
    }

    /// The same node with each operand replaced by `map` of it.
    pub fn map_operands(&self, mut map: impl FnMut(ExprId) -> ExprId) -> Expr {
        match self {
            Expr::Const(_) | Expr::Var(_) | Expr::Stage(_) => self.clone(),
            Expr::Unary(f, a) => Expr::Unary(*f, map(*a)),
            Expr::Cast(dtype, a) => Expr::Cast(*dtype, map(*a)),
            Expr::IsNan(a) => Expr::IsNan(map(*a)),
            Expr::IsInf(a) => Expr::IsInf(map(*a)),
            Expr::Splat(a, lanes) => Expr::Splat(map(*a), *lanes),
            Expr::Ramp { base, stride, lanes } => {
                Expr::Ramp { base: map(*base), stride: *stride, lanes: *lanes }
            }
            Expr::ReduceLanes(op, a) => Expr::ReduceLanes(*op, map(*a)),
            Expr::Binary(f, a, b) => Expr::Binary(*f, map(*a), map(*b)),
            Expr::Compare(f, a, b) => Expr::Compare(*f, map(*a), map(*b)),
            Expr::FloorDiv(a, b) => Expr::FloorDiv(map(*a), map(*b)),
            Expr::FloorRem(a, b) => Expr::FloorRem(map(*a), map(*b)),
            Expr::Select(a, b, c) => Expr::Select(map(*a), map(*b), map(*c)),
            Expr::Fma(a, b, c) => Expr::Fma(map(*a), map(*b), map(*c)),
            Expr::DotPairs(a, b, c) => Expr::DotPairs(map(*a), map(*b), map(*c)),
            Expr::Interleave(group, a, b) => Expr::Interleave(*group, map(*a), map(*b)),
            Expr::Half(half, a) => Expr::Half(*half, map(*a)),
            Expr::Read { arg, index, guard } => Expr::Read {
                arg: *arg,
                index: index.iter().map(|&i| map(i)).collect(),
                guard: guard.map(&mut map),
            },
            Expr::Load { buffer, offset, lanes, mask } => {
                Expr::Load { buffer: *buffer, offset: map(*offset), lanes: *lanes, mask: mask.map(&mut map) }
            }
        }
    }
}

impl Exprs {
    /// Every expression that `roots` consist of, the roots included, operands before users.
    pub fn reachable(&self, roots: &[ExprId]) -> Vec<ExprId> {
        self.reachable_unless(roots, |_| false)
    }

    /// As [`Exprs::reachable`], not entering expressions for which `known` is true.
    pub fn reachable_unless(&self, roots: &[ExprId], known: impl Fn(ExprId) -> bool) -> Vec<ExprId> {
        let mut seen = FxHashSet::default();
        let mut order = Vec::new();
        let mut pending: Vec<ExprId> = roots.to_vec();
        while let Some(id) = pending.pop() {
            if !known(id) && seen.insert(id) {
                order.push(id);
                self.get(id).for_each_operand(|operand| pending.push(operand));
            }
        }
        order.sort_unstable();
        order
    }

    /// The expressions that are reached from `root` through those operands that `follow` pushes, `root` included, each
    /// once, operands before users: for questions that look through some functions and not through others.
    pub fn reachable_along(
        &self,
        root: ExprId,
        mut follow: impl FnMut(&Expr, &mut Vec<ExprId>),
    ) -> Vec<ExprId> {
        let (mut seen, mut pending) = (FxHashSet::default(), vec![root]);
        while let Some(id) = pending.pop() {
            if seen.insert(id) {
                follow(self.get(id), &mut pending);
            }
        }
        let mut order: Vec<ExprId> = seen.into_iter().collect();
        order.sort_unstable();
        order
    }

    /// The conditions whose conjunction `condition` is, each once, from left to right.
    pub fn conjuncts(&self, condition: ExprId) -> Vec<ExprId> {
        let (mut seen, mut pending) = (FxHashSet::default(), vec![condition]);
        let mut conjuncts = Vec::new();
        while let Some(id) = pending.pop() {
            match *self.get(id) {
                _ if !seen.insert(id) => {}
                Expr::Binary(BinaryFn::And, a, b) => pending.extend([b, a]),
                _ => conjuncts.push(id),
            }
        }
        conjuncts
    }

    /// The variables that an expression mentions, in ascending order.
    pub fn free_vars(&self, root: ExprId) -> Vec<VarId> {
        let mut vars: Vec<VarId> = (self.reachable(&[root]).into_iter())
            .filter_map(|id| match self.get(id) {
                Expr::Var(var) => Some(*var),
                _ => None,
            })
            .collect();
        vars.sort_unstable();
        vars
    }

    /// True if the expression mentions the variable.
    pub fn depends_on(&self, root: ExprId, var: VarId) -> bool {
        self.reachable(&[root]).into_iter().any(|id| *self.get(id) == Expr::Var(var))
    }

    /// Adds a node through the smart constructors, as a pass does that has replaced its operands.
    pub fn rebuild(&mut self, node: Expr) -> ExprId {
        match node {
            Expr::Const(_) | Expr::Var(_) | Expr::Stage(_) => self.add(node),
            Expr::Unary(f, a) => self.unary(f, a),
            Expr::Binary(f, a, b) => self.binary(f, a, b),
            Expr::Compare(f, a, b) => self.compare(f, a, b),
            Expr::Select(condition, a, b) => self.select(condition, a, b),
            Expr::Cast(dtype, a) => self.cast(dtype, a),
            Expr::IsNan(a) => self.is_nan(a),
            Expr::IsInf(a) => self.is_inf(a),
            Expr::Fma(a, b, c) => self.fma(a, b, c),
            Expr::DotPairs(a, b, c) => self.dot_pairs(a, b, c),
            Expr::Interleave(group, a, b) => self.interleave_groups(group, a, b),
            Expr::Half(half, a) => self.half(half, a),
            Expr::FloorDiv(a, b) => self.floor_div(a, b),
            Expr::FloorRem(a, b) => self.floor_rem(a, b),
            Expr::Read { arg, index, guard } => self.read(arg, index, guard),
            Expr::Load { buffer, offset, lanes, mask } => self.load(buffer, offset, lanes, mask),
            Expr::Splat(a, lanes) => self.splat(a, lanes),
            Expr::Ramp { base, stride, lanes } => self.ramp(base, stride, lanes),
            Expr::ReduceLanes(op, a) => self.reduce_lanes(op, a),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Type;
    use orch_ir::DType;

    /// Nodes between which there are 2^n ways are visited once each.
    #[test]
    fn shared_operands_are_visited_once() {
        let mut exprs = Exprs::new();
        let flags: Vec<ExprId> = ["p", "q", "r"]
            .map(|name| exprs.declare_register(name, Type::scalar(DType::Bool)))
            .map(|register| exprs.var(register))
            .to_vec();
        let [p, q, r] = flags[..] else { unreachable!("three flags") };
        let mut ways = (p, q);
        for _ in 0..100 {
            let (a, b) = ways;
            let forth = exprs.add(Expr::Binary(BinaryFn::And, a, b));
            ways = (forth, exprs.add(Expr::Binary(BinaryFn::And, b, forth)));
        }
        let root = exprs.add(Expr::Binary(BinaryFn::And, r, ways.1));
        assert_eq!(exprs.conjuncts(root), [r, q, p]);

        let mut visits = 0;
        let met = exprs.reachable_along(root, |node, operands| {
            visits += 1;
            node.for_each_operand(|operand| operands.push(operand));
        });
        assert_eq!((visits, met.len()), (204, 204));
        assert_eq!(met, exprs.reachable(&[root]));
        assert_eq!(exprs.reachable_along(root, |_, _| {}), [root]);
    }
}
