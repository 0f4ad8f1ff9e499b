//! Values of expressions in C: their texts, and which of them get names.
//!
//! An expression that is used more than once becomes a local constant the first time it is needed. Pure arithmetic
//! goes to the outermost block where the names in its text are visible, but never out of a branch; what depends on
//! registers or memory stays before the statement that needs it, and is forgotten when a register it reads is assigned
//! or a buffer it loads from is stored to.

use super::helper::CFile;
use super::parens::strip_parens;
use super::types::CType;
use crate::facts::{self, Changes, ExprFacts};
use crate::scopes::{Hoist, Lifetime, Scopes, TypedText};
use orch_compute::{Bounds, Expr, ExprId, VarId};
use orch_ir::{BinaryFn, DType};
use orch_thread::ThreadProgram;
use std::collections::BTreeSet;

/// C text of a value, in parentheses if it is composite, and its type.
pub type CValue = TypedText<CType>;

/// An unnamed expression's text has at most about this [length](Scopes::length), so that lines stay readable.
const LONG_TEXT: usize = 92;

/// State of the emission of one program.
pub struct FunctionEmitter<'a> {
    pub(super) program: &'a ThreadProgram,
    pub(super) unit: &'a mut CFile,
    pub(super) facts: ExprFacts,
    pub(super) bounds: Bounds,
    /// C names of the buffers.
    pub(super) buffers: Vec<String>,
    pub(super) scopes: Scopes<CType>,
}

impl FunctionEmitter<'_> {
    /// A variable's name and type.
    pub(super) fn variable(&mut self, var: VarId) -> CValue {
        self.scopes.variable(var)
    }

    /// The text of an expression that has been evaluated for the current statement.
    pub(super) fn value_of(&mut self, id: ExprId) -> CValue {
        match self.scopes.known(id) {
            Some(value) => value,
            None => self.eval(id),
        }
    }

    /// The text of an expression that is a part of a line: named if it is used elsewhere too, or long.
    pub(super) fn eval(&mut self, root: ExprId) -> CValue {
        let value = self.eval_root(root);
        let is_long = self.is_long(&value) && !self.scopes.is_named(root);
        if is_long { self.named(root) } else { value }
    }

    /// The text of an expression that is a line of its own: named only if it is used elsewhere too.
    pub(super) fn eval_root(&mut self, root: ExprId) -> CValue {
        let value = self.eval_unnamed(root);
        let is_done = self.scopes.is_named(root) || !self.is_shared(root);
        if is_done { value } else { self.named(root) }
    }

    /// The text of an expression; shared parts of it are named first.
    pub(super) fn eval_unnamed(&mut self, root: ExprId) -> CValue {
        let mut pending = vec![root];
        let mut needed = BTreeSet::new();
        while let Some(id) = pending.pop() {
            if self.scopes.is_known(id) || !needed.insert(id) {
                continue;
            }
            pending.extend(facts::operands(&self.program.exprs, id));
        }
        for id in needed {
            let outer = self.scopes.begin();
            let value = self.node(id);
            let is_long = self.is_long(&value);
            self.scopes.finish(id, value, outer);
            if id != root && (self.is_shared(id) || is_long) {
                self.named(id);
            }
        }
        self.scopes.known(root).expect("evaluated above")
    }

    /// True if a text is worth a name for its length.
    fn is_long(&self, value: &CValue) -> bool {
        self.scopes.length(&value.text) > LONG_TEXT
    }

    /// True if an expression is used more than once and is worth a name.
    fn is_shared(&self, id: ExprId) -> bool {
        let exprs = &self.program.exprs;
        let is_leaf = |id: ExprId| matches!(exprs.get(id), Expr::Const(_) | Expr::Var(_));
        let is_small = match exprs.get(id) {
            Expr::Const(_) | Expr::Var(_) => return false,
            Expr::Splat(a, _) => is_leaf(*a),
            Expr::Cast(_, a) => is_leaf(*a) && exprs.lanes(*a) == 1,
            Expr::Ramp { base, .. } => exprs.as_const(*base).is_some(),
            // Index arithmetic of one operation is an addressing mode or nearly free.
            Expr::Binary(BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul, a, b) => {
                exprs.dtype(id) == DType::I64 && exprs.lanes(id) == 1 && is_leaf(*a) && is_leaf(*b)
            }
            _ => false,
        };
        !is_small && self.facts.uses(id) > 1
    }

    /// Lets a variable that is bound to an expression stand for it from here on.
    pub(super) fn remember(&mut self, id: ExprId, var: VarId) {
        if !matches!(self.program.exprs.get(id), Expr::Const(_)) {
            self.scopes.remember(id, var, self.dependencies(id));
        }
    }

    /// What makes the value of an expression stale.
    fn dependencies(&self, id: ExprId) -> Changes {
        match self.facts.is_volatile(id) {
            true => Changes::that_affect(self.program, id),
            false => Changes::default(),
        }
    }

    /// Names an expression in the block where it belongs.
    fn named(&mut self, id: ExprId) -> CValue {
        let hoist = if self.facts.is_volatile(id) { Hoist::Never } else { Hoist::Outermost };
        let lifetime = Lifetime::Until(self.dependencies(id));
        let unit = &mut *self.unit;
        self.scopes.name(id, hoist, lifetime, |value, name| constant(unit, value, name))
    }

    /// Names a value before the current statement.
    pub(super) fn constant(&mut self, value: &CValue) -> CValue {
        let unit = &mut *self.unit;
        self.scopes.constant(value, |value, name| constant(unit, value, name))
    }

    pub(super) fn line(&mut self, text: &str) {
        self.scopes.line(text);
    }
}

/// The line that declares a constant.
fn constant(unit: &mut CFile, value: &CValue, name: &str) -> String {
    format!("const {} {name} = {};", unit.type_name(value.ty), strip_parens(&value.text))
}
