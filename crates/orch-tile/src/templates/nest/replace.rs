//! Replacing subexpressions.

use super::flat::Nest;
use crate::expr::ExprId;
use rustc_hash::FxHashMap;

impl Nest {
    /// `root` with each subexpression in the map replaced by the expression beside it, outermost ones first.
    pub fn replace(&mut self, root: ExprId, map: &[(ExprId, ExprId)]) -> ExprId {
        let exprs = &mut self.program.exprs;
        let mut done: FxHashMap<ExprId, ExprId> = map.iter().copied().collect();
        for id in exprs.reachable_unless(&[root], |id| map.iter().any(|&(old, _)| old == id)) {
            let node = exprs.get(id).clone();
            let mut is_changed = false;
            let moved = node.map_operands(|operand| {
                let new = done[&operand];
                is_changed |= new != operand;
                new
            });
            let new = if is_changed { exprs.rebuild(moved) } else { id };
            done.insert(id, new);
        }
        let replaced = done[&root];
        self.simplify(replaced)
    }
}
