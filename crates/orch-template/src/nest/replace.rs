//! Replacing subexpressions.

use super::flat::Nest;
use orch_compute::expr::ExprId;
use orch_compute::expr::substitute::replace;

impl Nest {
    /// `root` with each subexpression that is the first of a pair in `map` replaced by the second one, outermost first,
    /// and simplified.
    pub fn replace(&mut self, root: ExprId, map: &[(ExprId, ExprId)]) -> ExprId {
        let replaced = replace(&mut self.program.exprs, root, &map.iter().copied().collect());
        self.simplify(replaced)
    }
}
