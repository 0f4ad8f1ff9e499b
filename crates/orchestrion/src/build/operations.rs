//! Operations and reads of a block program, counted alike for every target.

use orch_compute::{BlockProgram, Expr, ExprId, Stage};
use orch_ir::{BinaryFn, UnaryFn};

/// Operations on values of one evaluation of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Operations {
    /// Simple ones.
    pub cheap: u64,
    /// Exponentials, logarithms, and the like.
    pub special: u64,
}

/// Operations of one element's random bits: ten rounds of two products, two sums and four exclusive ors.
const PHILOX_OPERATIONS: u64 = 80;

/// Counts the operations of an expression.
pub fn operations(block: &BlockProgram, root: ExprId) -> Operations {
    let mut counted = Operations::default();
    for id in block.exprs.reachable(&[root]) {
        let is_value = block.exprs.dtype(id).is_float();
        match block.exprs.get(id) {
            Expr::Unary(UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sqrt | UnaryFn::Recip | UnaryFn::Floor, _) => {
                counted.cheap += 1;
            }
            Expr::Unary(..) | Expr::Binary(BinaryFn::Pow, ..) if is_value => counted.special += 1,
            Expr::Binary(BinaryFn::Philox, ..) => counted.cheap += PHILOX_OPERATIONS,
            Expr::Binary(..) | Expr::Fma(..) | Expr::Select(..) | Expr::Cast(..) if is_value => {
                counted.cheap += 1;
            }
            _ => {}
        }
    }
    counted
}

/// How many elements of each argument are read at most: of each read as many as the axes have points over which its index varies.
pub fn reads(block: &BlockProgram) -> Vec<usize> {
    let points =
        |axes: &[orch_compute::VarId]| axes.iter().map(|&axis| block.extent(axis)).product::<usize>();
    let mut reads = vec![0usize; block.args.len()];
    for stage in &block.stages {
        let roots = match stage {
            Stage::Reduce { kind: orch_compute::ReduceKind::Dot { lhs, rhs }, .. } => vec![*lhs, *rhs],
            Stage::Reduce { body, .. } | Stage::Store { body, .. } => vec![*body],
        };
        for id in block.exprs.reachable(&roots) {
            if let Expr::Read { arg, .. } = block.exprs.get(id) {
                let read = points(&block.exprs.free_vars(id));
                reads[arg.index()] = reads[arg.index()].saturating_add(read);
            }
        }
    }
    reads
}
