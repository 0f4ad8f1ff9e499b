//! Checks what block programs promise:
//!
//! 1. stages, arguments and axes that are named exist, with the types the arena has for them;
//! 2. no axis is both in a stage's domain and bound by it, and none occurs twice;
//! 3. a body mentions only axes of its stage and earlier stages whose domain is among them;
//! 4. reads have one index per dimension; indices are `i64`, guards `bool`, bodies of the stored type;
//! 5. arg-reductions reduce one axis; a dot product's body is the product of its factors;
//! 6. each output has one store, whose index maps its domain one to one onto the output: derived from the index
//!    map's mixed-radix form, or by enumeration where there are few elements;
//! 7. an updated argument has one store, too, which may have one place within an extent for all points; elements are read at its index
//!    and over its domain alone, by itself and by stores before it.

use crate::block::{ArgRole, BlockProgram, ReduceKind, Stage};
use crate::expr::{ArgId, Expr, ExprId, Type, VarId};
use crate::simplify::Simplifier;
use orch_ir::{BinaryFn, DType, ReduceOp};
use std::collections::BTreeSet;

/// Outputs up to this many elements are checked by enumeration if the index map cannot be inverted.
const MAX_ENUMERATED_ELEMS: usize = 1 << 16;

/// All violations, as text; empty for a valid program.
pub fn validate_block(program: &BlockProgram) -> Vec<String> {
    let mut checker = Checker { program, position: 0, domains: Vec::new(), problems: Vec::new() };
    let mut stored = BTreeSet::new();
    for (position, stage) in program.stages.iter().enumerate() {
        let what = format!("stage {position}");
        checker.position = position;
        match stage {
            Stage::Reduce { stage, op, domain, reduced, body, kind } => {
                checker.expect(stage.index() == checker.domains.len(), || format!("{what} is out of order"));
                checker.reduction(&what, *op, reduced, *body, kind);
                checker.axes(&what, &[domain.as_slice(), reduced].concat());
                checker.body(&what, *body, &[domain.as_slice(), reduced].concat());
                checker.domains.push(domain.clone());
            }
            Stage::Store { arg, index, domain, body } => {
                checker.expect(stored.insert(*arg), || format!("{what} stores {arg} again"));
                checker.axes(&what, domain);
                checker.body(&what, *body, domain);
                for &component in index {
                    checker.body(&what, component, domain);
                }
                checker.store(&what, arg.index(), index, domain, *body);
            }
        }
    }
    for (number, arg) in program.args.iter().enumerate() {
        let is_stored = stored.iter().any(|id| id.index() == number);
        checker.expect(is_stored == arg.role.is_stored(), || format!("a{number} is not stored once"));
        let layout = arg.layout.order().len();
        checker.expect(layout == arg.shape.rank(), || format!("a{number} has a layout of rank {layout}"));
    }
    checker.problems
}

struct Checker<'a> {
    program: &'a BlockProgram,
    /// The stage that is checked.
    position: usize,
    /// Domains of the reducing stages so far.
    domains: Vec<Vec<VarId>>,
    problems: Vec<String>,
}

impl Checker<'_> {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    fn axes(&mut self, what: &str, axes: &[VarId]) {
        let distinct: BTreeSet<VarId> = axes.iter().copied().collect();
        self.expect(distinct.len() == axes.len(), || format!("{what} names an axis twice"));
        for axis in distinct {
            let is_axis = self.program.axes.iter().any(|known| known.var == axis);
            self.expect(is_axis, || format!("{what}: {axis} is not an axis"));
        }
    }

    fn reduction(&mut self, what: &str, op: ReduceOp, reduced: &[VarId], body: ExprId, kind: &ReduceKind) {
        self.expect(!op.is_arg() || reduced.len() == 1, || format!("{what}: {} of several axes", op.name()));
        if let ReduceKind::Dot { lhs, rhs } = *kind {
            let exprs = &self.program.exprs;
            let is_product = matches!(*exprs.get(body), Expr::Binary(BinaryFn::Mul, a, b)
                if (a, b) == (lhs, rhs) || (b, a) == (lhs, rhs));
            self.expect(is_product && op == ReduceOp::Sum, || format!("{what} is not a dot product"));
        }
    }

    fn body(&mut self, what: &str, body: ExprId, scope: &[VarId]) {
        let program = self.program;
        let exprs = &program.exprs;
        for id in exprs.reachable(&[body]) {
            match exprs.get(id) {
                Expr::Var(var) => {
                    self.expect(scope.contains(var), || format!("{what}: axis {var} is not in scope"));
                }
                Expr::Stage(stage) => {
                    let in_scope = (self.domains.get(stage.index()))
                        .is_some_and(|domain| domain.iter().all(|axis| scope.contains(axis)));
                    self.expect(in_scope, || format!("{what}: {stage} is not in scope"));
                }
                Expr::Read { arg, index, guard } => {
                    let known = program.args.get(arg.index());
                    let fits = known.is_some_and(|known| {
                        let is_readable = match known.role {
                            ArgRole::Input | ArgRole::Constant => true,
                            ArgRole::Output => false,
                            ArgRole::Updated => self.is_before_store(*arg, index, scope),
                        };
                        is_readable && known.shape.rank() == index.len() && known.dtype == exprs.dtype(id)
                    });
                    let typed = index.iter().all(|&component| exprs.ty(component) == Type::INDEX)
                        && guard.is_none_or(|guard| exprs.ty(guard) == Type::scalar(DType::Bool));
                    self.expect(fits && typed, || format!("{what}: a read of {arg} does not fit it"));
                }
                node @ (Expr::Load { .. }
                | Expr::Splat(..)
                | Expr::Ramp { .. }
                | Expr::ReduceLanes(..)
                | Expr::DotPairs(..)
                | Expr::Interleave(..)
                | Expr::Half(..)) => {
                    self.problems.push(format!("{what}: {node:?} in a block program"));
                }
                _ => {}
            }
        }
    }

    fn store(&mut self, what: &str, arg: usize, index: &[ExprId], domain: &[VarId], body: ExprId) {
        let Some(output) = self.program.args.get(arg) else { return };
        let fits = output.role.is_stored()
            && output.dtype == self.program.exprs.dtype(body)
            && output.shape.rank() == index.len();
        self.expect(fits, || format!("{what}: the store does not fit a{arg}"));
        let (index, shape) = match output.role {
            ArgRole::Updated if fits => self.without_places(index, domain, &output.shape),
            _ => (index.to_vec(), output.shape.to_vec()),
        };
        let is_bijection = fits && self.is_bijection(&index, domain, &shape);
        self.expect(is_bijection, || format!("{what}: not every element of a{arg} is stored exactly once"));
    }

    /// The components of an index, and their extents, that are not one place within the extent for all points.
    fn without_places(
        &self,
        index: &[ExprId],
        domain: &[VarId],
        shape: &[usize],
    ) -> (Vec<ExprId>, Vec<usize>) {
        let mut exprs = self.program.exprs.clone();
        let mut simplifier = Simplifier::new();
        let mut is_place = |component: ExprId, extent: usize| {
            let vars = exprs.free_vars(component);
            !domain.iter().any(|axis| vars.contains(axis))
                && simplifier.range(&mut exprs, component).is_within(0, extent as i64 - 1)
        };
        let components = index.iter().copied().zip(shape.iter().copied());
        components.filter(|&(component, extent)| !is_place(component, extent)).unzip()
    }

    /// True if a read is of an element that no store has changed: of the argument's store, in its domain.
    fn is_before_store(&self, arg: ArgId, index: &[ExprId], scope: &[VarId]) -> bool {
        let is_store = |stage: &Stage| matches!(stage, Stage::Store { arg: other, index: place, domain, .. } if *other == arg && place == index && domain == scope);
        self.program.stages.get(self.position..).is_some_and(|rest| rest.iter().any(is_store))
    }

    fn is_bijection(&self, index: &[ExprId], domain: &[VarId], shape: &[usize]) -> bool {
        let points: usize = domain.iter().map(|&axis| self.program.extent(axis)).product();
        let elems: usize = shape.iter().product();
        if points != elems {
            return false;
        }
        let mut exprs = self.program.exprs.clone();
        let at: Vec<ExprId> = shape.iter().map(|&extent| exprs.fresh_index("at", extent).1).collect();
        if elems == 0 || crate::invert::invert_index(&mut exprs, index, shape, domain, &at).is_some() {
            return true;
        }
        elems <= MAX_ENUMERATED_ELEMS && self.enumerates(index, domain, shape)
    }

    /// True if the index runs through distinct points of the shape.
    fn enumerates(&self, index: &[ExprId], domain: &[VarId], shape: &[usize]) -> bool {
        let extents: Vec<usize> = domain.iter().map(|&axis| self.program.extent(axis)).collect();
        let mut seen = vec![false; shape.iter().product()];
        let count = seen.len();
        for mut point in 0..count {
            let mut values = vec![(VarId(0), 0); domain.len()];
            for position in (0..domain.len()).rev() {
                values[position] = (domain[position], (point % extents[position]) as i64);
                point /= extents[position];
            }
            let mut at = 0;
            for (&component, &extent) in index.iter().zip(shape) {
                match self.program.exprs.evaluate(component, &values) {
                    Some(value) if (0..extent as i64).contains(&value) => at = at * extent + value as usize,
                    _ => return false,
                }
            }
            if std::mem::replace(&mut seen[at], true) {
                return false;
            }
        }
        true
    }
}
