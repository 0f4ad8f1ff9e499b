//! Which block programs are attention: two contractions, the second one's operand computed from the first one's results, with
//! maxima and sums over the second one's reduced axes between them.

use crate::CannotLower;
use orch_compute::block::{BlockProgram, ReduceKind, Stage};
use orch_compute::expr::{Expr, ExprId, StageId, VarId};
use orch_ir::{DType, ReduceOp};

/// A block program seen as attention.
#[derive(Clone, Debug)]
pub struct AttentionForm {
    /// The stage of the scores, `q * k^T`.
    pub scores: StageId,
    /// Queries: the first product's operand that does not vary over keys, `[batch, row, head_dim]`.
    pub q: ExprId,
    /// Keys: the one that does, `[batch, key, head_dim]`.
    pub k: ExprId,
    /// Axes that the first product reduces.
    pub head_dim: Vec<VarId>,
    /// Maxima and sums over keys, in order.
    pub statistics: Vec<Statistic>,
    /// The stage of the second product.
    pub output: StageId,
    /// Its operand that is computed from scores, `[batch, row, key]`.
    pub p: ExprId,
    /// Values: its other operand, `[batch, key, column]`.
    pub v: ExprId,
    /// Axes of the results that `k` or `v` vary over.
    pub batch: Vec<VarId>,
    /// Axes of `q` and the results that `k` and `v` do not vary over.
    pub rows: Vec<VarId>,
    /// Axes that the second product reduces.
    pub keys: Vec<VarId>,
    /// Axes of `v` and the results alone.
    pub columns: Vec<VarId>,
}

/// A value of each row that is reduced over keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Statistic {
    /// Its name.
    pub stage: StageId,
    /// `Max` or `Sum`.
    pub op: ReduceOp,
    /// What is reduced over keys: f32, or bool of which the maximum is taken.
    pub body: ExprId,
    /// Whether that is bool.
    pub is_bool: bool,
}

impl AttentionForm {
    /// Recognises attention.
    ///
    /// # Errors
    /// If the program has another structure.
    pub fn of(block: &BlockProgram) -> Result<Self, CannotLower> {
        let no = CannotLower::NotThisTemplate;
        let reductions: Vec<&Stage> =
            block.stages.iter().filter(|stage| matches!(stage, Stage::Reduce { .. })).collect();
        let [first, between @ .., last] = &reductions[..] else {
            return Err(no("two products are expected"));
        };
        let DotStage { stage: scores, domain: score_domain, reduced: head_dim, lhs: a, rhs: b } =
            dot(first).ok_or(no("the first stage is no product"))?;
        let DotStage { stage: output, domain, reduced: keys, lhs, rhs } =
            dot(last).ok_or(no("the last stage is no product"))?;
        let depends = |id: ExprId, stage: StageId| {
            block.exprs.reachable(&[id]).into_iter().any(|id| *block.exprs.get(id) == Expr::Stage(stage))
        };
        let (p, v) = match (depends(lhs, scores), depends(rhs, scores)) {
            (true, false) => (lhs, rhs),
            (false, true) => (rhs, lhs),
            _ => return Err(no("one operand of the last product is expected to depend on the first one's")),
        };
        let has = |id: ExprId, var: &VarId| block.exprs.free_vars(id).contains(var);
        let is_over_keys = |id: ExprId| keys.iter().any(|key| has(id, key));
        let (q, k) = match (is_over_keys(a), is_over_keys(b)) {
            (false, true) => (a, b),
            (true, false) => (b, a),
            _ => return Err(no("one operand of the first product is expected to vary over keys")),
        };
        let statistics: Option<Vec<Statistic>> =
            between.iter().map(|stage| statistic(block, stage, keys)).collect();
        let statistics =
            statistics.ok_or(no("maxima and sums over keys are expected between the products"))?;
        if !keys.iter().all(|key| score_domain.contains(key)) {
            return Err(no("the last product is expected to sum over the scores"));
        }
        let of_scores = |var: &VarId| score_domain.contains(var);
        let columns: Vec<VarId> = domain.iter().copied().filter(|var| !of_scores(var)).collect();
        let is_batch = |var: &VarId| has(k, var) || has(v, var);
        let outer = || domain.iter().copied().filter(of_scores);
        let form = Self {
            scores,
            q,
            k,
            head_dim: head_dim.to_vec(),
            statistics,
            output,
            p,
            v,
            batch: outer().filter(is_batch).collect(),
            rows: outer().filter(|var| !is_batch(var)).collect(),
            keys: keys.to_vec(),
            columns,
        };
        let covered = form.batch.len() + form.rows.len() + keys.len();
        let is_whole = covered == score_domain.len() && !form.columns.iter().any(|var| has(p, var));
        if is_whole { Ok(form) } else { Err(no("axes that are neither batch, rows, keys nor columns")) }
    }

    /// The number of points of some axes.
    pub fn points(block: &BlockProgram, axes: &[VarId]) -> usize {
        axes.iter().map(|&axis| block.extent(axis)).product()
    }
}

/// A stage that is a contraction.
struct DotStage<'a> {
    stage: StageId,
    domain: &'a [VarId],
    reduced: &'a [VarId],
    lhs: ExprId,
    rhs: ExprId,
}

fn dot(stage: &Stage) -> Option<DotStage<'_>> {
    match stage {
        Stage::Reduce { stage, domain, reduced, kind: ReduceKind::Dot { lhs, rhs }, .. } => {
            Some(DotStage { stage: *stage, domain, reduced, lhs: *lhs, rhs: *rhs })
        }
        _ => None,
    }
}

fn statistic(block: &BlockProgram, stage: &Stage, keys: &[VarId]) -> Option<Statistic> {
    match stage {
        Stage::Reduce {
            stage,
            op: op @ (ReduceOp::Max | ReduceOp::Sum),
            reduced,
            body,
            kind: ReduceKind::Plain,
            ..
        } if reduced == keys => {
            let is_bool = match (block.exprs.dtype(*body), op) {
                (DType::F32, _) => false,
                (DType::Bool, ReduceOp::Max) => true,
                _ => return None,
            };
            Some(Statistic { stage: *stage, op: *op, body: *body, is_bool })
        }
        _ => None,
    }
}
