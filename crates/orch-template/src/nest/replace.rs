//! Replacing subexpressions.

use super::flat::Nest;
use orch_compute::expr::ExprId;
use orch_compute::expr::substitute::replace;

impl Nest {
    /// `root` with each subexpression in the map replaced by the expression beside it, outermost ones first.
    pub fn replace(&mut self, root: ExprId, map: &[(ExprId, ExprId)]) -> ExprId {
        let replaced = replace(&mut self.program.exprs, root, &map.iter().copied().collect());
        self.simplify(replaced)
    }
}
