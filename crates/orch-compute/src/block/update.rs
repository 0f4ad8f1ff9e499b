//! Outputs in the memory of the arguments that they are new values of: an element is read where it is stored, and what stays as it is
//! is neither read nor written.
//!
//! ```text
//! a3[h, r, c] = select(p == r, a1[h, c], a2[h, r, c])    for h, r, c        a3 is a new value of a2
//! becomes, where 0 <= p < rows and a3 has the memory of a2
//! a3[h, p, c] = a1[h, c]                                 for h, c
//! ```
//! Under another condition the store remains a selection from the element itself, which templates make a store under that condition.

use super::{ArgRole, BlockProgram, Stage};
use crate::expr::substitute::{replace, substitute};
use crate::expr::{ArgId, Expr, ExprId, VarId};
use crate::simplify::Simplifier;
use orch_ir::{CompareFn, DType};
use rustc_hash::FxHashMap;

impl BlockProgram {
    /// The program with `output` in the memory of `input`, which it is a new value of: it holds that value before, and nothing reads
    /// `input` itself. `None` if types or layouts differ, or an element may be read after it was stored: where a reduction reads
    /// `input`, or a store reads it elsewhere than `output` is stored.
    pub fn updated(&self, input: ArgId, output: ArgId) -> Option<Self> {
        let (old, new) = (self.arg(input), self.arg(output));
        let is_alike = (old.dtype, &old.shape, &old.layout) == (new.dtype, &new.shape, &new.layout);
        if !is_alike || (old.role, new.role) != (ArgRole::Input, ArgRole::Output) {
            return None;
        }
        let mut program = self.clone();
        let own = program.stages.iter().position(|stage| stage.stores(output))?;
        let Stage::Store { index, domain, .. } = program.stages[own].clone() else { return None };
        let before = program.exprs.read(input, index.clone(), None);
        let after = program.exprs.read(output, index, None);
        let map = FxHashMap::from_iter([(before, after)]);
        let mut last = own;
        for position in 0..program.stages.len() {
            let stage = program.stages[position].clone();
            let Stage::Store { arg, index, domain: points, body } = stage else {
                if !program.reads(&program.stages[position].roots(), input).is_empty() {
                    return None;
                }
                continue;
            };
            let reads = program.reads(&[&index[..], &[body]].concat(), input);
            if reads.is_empty() {
                continue;
            }
            if reads != [before] || !program.reads(&index, input).is_empty() || points != domain {
                return None;
            }
            let mut body = replace(&mut program.exprs, body, &map);
            if arg == output {
                body = program.with_selection_outside(body, after);
            }
            program.stages[position] = Stage::Store { arg, index, domain: points, body };
            last = last.max(position);
        }
        program.args[output.index()].role = ArgRole::Updated;
        program.move_store(own, last)?;
        program.narrow_store(last, output);
        Some(program)
    }

    /// Moves a store behind others that read what it overwrites; `None` if it reads itself what one of these overwrites.
    fn move_store(&mut self, from: usize, to: usize) -> Option<()> {
        let overtaken = self.stages[from + 1..=to].iter().filter_map(|stage| match stage {
            Stage::Store { arg, .. } => Some(*arg),
            Stage::Reduce { .. } => None,
        });
        let roots = self.stages[from].roots();
        if overtaken.into_iter().any(|arg| !self.reads(&roots, arg).is_empty()) {
            return None;
        }
        self.stages[from..=to].rotate_left(1);
        Some(())
    }

    /// Leaves out the points at which a store of an updated argument changes nothing, if all others have one index along an axis.
    fn narrow_store(&mut self, position: usize, output: ArgId) {
        let Stage::Store { arg, index, domain, body } = self.stages[position].clone() else { return };
        let Some((condition, value)) = self.kept_unless(&index, body, output) else { return };
        let Some((var, place)) = self.one_place(condition, &domain) else { return };
        let Some(at) = index.iter().position(|&component| *self.exprs.get(component) == Expr::Var(var))
        else {
            return;
        };
        let others = index.iter().enumerate().filter(|(dim, _)| *dim != at);
        if others.into_iter().any(|(_, &component)| self.exprs.depends_on(component, var)) {
            return;
        }
        let body = substitute(&mut self.exprs, value, &[(var, place)]);
        let mut index = index;
        index[at] = place;
        let domain: Vec<VarId> = domain.into_iter().filter(|&axis| axis != var).collect();
        self.stages[position] = Stage::Store { arg, index, domain, body };
        let used: Vec<VarId> = self.stages.iter().flat_map(Stage::axes).collect();
        self.axes.retain(|axis| used.contains(&axis.var));
    }

    /// A stored value as a selection from the element itself, where that is widened for the selection and rounded back:
    /// `f16(select(c, a, f32(own)))` is `select(c, f16(a), own)`.
    fn with_selection_outside(&mut self, body: ExprId, own: ExprId) -> ExprId {
        let Expr::Cast(stored, selection) = *self.exprs.get(body) else { return body };
        let Expr::Select(condition, value, kept) = *self.exprs.get(selection) else { return body };
        let is_widened = matches!(stored, DType::F16 | DType::BF16)
            && *self.exprs.get(kept) == Expr::Cast(DType::F32, own)
            && self.exprs.dtype(own) == stored;
        if !is_widened {
            return body;
        }
        let value = self.exprs.cast(stored, value);
        self.exprs.select(condition, value, own)
    }

    /// The condition under which a store changes the element, and what it stores then; `None` if it always may, or reads it for that.
    fn kept_unless(&mut self, index: &[ExprId], body: ExprId, output: ArgId) -> Option<(ExprId, ExprId)> {
        let own = self.exprs.read(output, index.to_vec(), None);
        let Expr::Select(condition, value, kept) = *self.exprs.get(body) else { return None };
        (kept == own && self.reads(&[condition, value], output).is_empty()).then_some((condition, value))
    }

    /// The axis of `domain` and its only value for which the condition holds, a place that is the same for all points and within the
    /// axis.
    fn one_place(&mut self, condition: ExprId, domain: &[VarId]) -> Option<(VarId, ExprId)> {
        let Expr::Compare(CompareFn::Eq, lhs, rhs) = *self.exprs.get(condition) else { return None };
        let axis = |id: ExprId| match *self.exprs.get(id) {
            Expr::Var(var) => Some(var),
            // Extents of tensors are far below what the integers of positions hold.
            Expr::Cast(DType::I32 | DType::I64, var) => match *self.exprs.get(var) {
                Expr::Var(var) => Some(var),
                _ => None,
            },
            _ => None,
        };
        let (var, place) = match (axis(lhs), axis(rhs)) {
            (Some(var), None) => (var, rhs),
            (None, Some(var)) => (var, lhs),
            _ => return None,
        };
        let extent = self.extent(var) as i64;
        let parts = self.exprs.reachable(&[place]);
        let is_fixed = parts.iter().all(|&id| match self.exprs.get(id) {
            Expr::Var(_) | Expr::Stage(_) => false,
            Expr::Read { arg, .. } => !self.arg(*arg).role.is_stored(),
            _ => true,
        });
        if !domain.contains(&var) || !is_fixed || i32::try_from(extent).is_err() {
            return None;
        }
        let place = self.exprs.cast(DType::I64, place);
        let range = Simplifier::new().range(&mut self.exprs, place);
        range.is_within(0, extent - 1).then_some((var, place))
    }

    /// The reads of an argument among what these expressions need.
    fn reads(&self, roots: &[ExprId], argument: ArgId) -> Vec<ExprId> {
        let is_read = |id: &ExprId| matches!(self.exprs.get(*id), Expr::Read { arg, .. } if *arg == argument);
        self.exprs.reachable(roots).into_iter().filter(is_read).collect()
    }
}

impl Stage {
    fn stores(&self, argument: ArgId) -> bool {
        matches!(self, Stage::Store { arg, .. } if *arg == argument)
    }

    /// The expressions that it evaluates.
    fn roots(&self) -> Vec<ExprId> {
        match self {
            Stage::Reduce { body, .. } => vec![*body],
            Stage::Store { index, body, .. } => [&index[..], &[*body]].concat(),
        }
    }

    /// The axes that it loops over.
    fn axes(&self) -> Vec<VarId> {
        match self {
            Stage::Reduce { domain, reduced, .. } => [&domain[..], reduced].concat(),
            Stage::Store { domain, .. } => domain.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
