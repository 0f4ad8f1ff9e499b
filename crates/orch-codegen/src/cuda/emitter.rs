//! Values of expressions in C++: their texts, and which of them get names.
//!
//! An expression that is used more than once and does not depend on registers or memory is named in the block where it
//! is first needed; NVRTC moves it out of loops. One that does is named for the statement that needs it.

use super::types::{CppType, INT};
use crate::facts::{Changes, ExprFacts};
use crate::scopes::{Hoist, Lifetime, Scopes, TypedText};
use orch_compute::{Bounds, BufferId, ExprId, VarId};
use orch_ir::DType;
use orch_thread::{Location, ThreadProgram};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;

/// C++ text of a value, in parentheses if it is composite, and its type.
pub type CppValue = TypedText<CppType>;

/// A wgmma that may be in flight.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct InFlightWgmma {
    /// Its first accumulator.
    pub acc: Location,
    /// Accumulators per thread.
    pub count: usize,
    /// Scratch that was stored to since it started.
    pub stored: BTreeSet<BufferId>,
}

/// An unnamed expression's text has at most about this [length](Scopes::length), so that lines stay readable.
const LONG_TEXT: usize = 118;

/// State of the emission of one program.
pub struct Emitter<'a> {
    pub(super) program: &'a ThreadProgram,
    pub(super) facts: ExprFacts,
    pub(super) bounds: Bounds,
    /// C++ names of the buffers.
    pub(super) buffers: Vec<String>,
    /// Scratch of 16-bit elements that is packed in pairs, as mma fragments are.
    pub(super) fragments: FxHashSet<BufferId>,
    /// Names of the tensor maps, of the mbarriers, and of the thread's number.
    pub(super) tensor_maps: Vec<String>,
    pub(super) mbarriers: String,
    pub(super) thread: String,
    /// Name of the flag of the producer warp, which issues TMA loads: uniform in the warp, as the compiler can see.
    pub(super) is_producer_warp: String,
    /// Swizzled tiles, which wgmma reads from shared memory.
    pub(super) tiles: FxHashSet<BufferId>,
    /// Whether threads write such tiles: a proxy fence must make the writes visible to wgmma.
    pub(super) needs_proxy_fence: bool,
    /// Whether the kernel takes part in programmatic dependent launch.
    pub(super) uses_pdl: bool,
    /// The wgmma that may be in flight.
    pub(super) in_flight: Option<InFlightWgmma>,
    pub(super) scopes: Scopes<CppType>,
}

impl Emitter<'_> {
    /// The type in which a variable is held: `int` for indices whose range is known to fit.
    pub(super) fn register_type(&self, var: VarId) -> CppType {
        let info = self.program.exprs.var_info(var);
        let fits = |(low, high): (i64, i64)| i32::try_from(low).is_ok() && i32::try_from(high).is_ok();
        match info.range.is_some_and(fits) && info.ty.dtype == DType::I64 {
            true => CppType { element: INT, lanes: info.ty.lanes },
            false => CppType::of(info.ty.dtype, info.ty.lanes),
        }
    }

    /// Declares a variable with its first value.
    pub(super) fn declare(&mut self, qualifier: &str, var: VarId, value: CppValue) {
        let name = self.scopes.fresh(&self.program.exprs.var_info(var).name);
        self.line(&format!("{qualifier}{} {name} = {};", value.ty.text(), value.text));
        self.scopes.declare(var, CppValue { text: name, ty: value.ty });
    }

    /// A variable's name and type.
    pub(super) fn variable(&self, var: VarId) -> CppValue {
        self.scopes.variable(var)
    }

    /// A value as text of another type.
    pub(super) fn as_type(&self, value: &CppValue, ty: CppType) -> String {
        if value.ty == ty { value.text.clone() } else { format!("o_cast<{}>({})", ty.element, value.text) }
    }

    /// The value of an expression, in a form that can be used more than once.
    pub(super) fn eval(&mut self, root: ExprId) -> CppValue {
        if let Some(value) = self.known(root) {
            return value;
        }
        let exprs = &self.program.exprs;
        let needed = exprs.reachable_unless(&[root], |id| self.scopes.is_known(id));
        for id in needed {
            let outer = self.scopes.begin();
            let value = self.node(id);
            let is_shared = self.facts.uses(id) > 1 && !is_leaf(self.program, id);
            let is_long = self.scopes.length(&value.text) > LONG_TEXT;
            self.scopes.finish(id, value, outer);
            if is_shared || is_long {
                self.name(id);
            }
        }
        self.known(root).expect("evaluated above")
    }

    /// The value of an operand of the current expression, which has been evaluated.
    pub(super) fn known(&self, id: ExprId) -> Option<CppValue> {
        self.scopes.known(id)
    }

    /// Declares a constant for an expression.
    fn name(&mut self, id: ExprId) {
        let lifetime = match self.facts.is_volatile(id) {
            true => Lifetime::Statement,
            false => Lifetime::Until(Changes::default()),
        };
        self.scopes.name(id, Hoist::Never, lifetime, |value, name| {
            format!("const {} {name} = {};", value.ty.text(), value.text)
        });
    }

    pub(super) fn line(&mut self, text: &str) {
        self.scopes.line(text);
    }
}

fn is_leaf(program: &ThreadProgram, id: ExprId) -> bool {
    matches!(program.exprs.get(id), orch_compute::Expr::Const(_) | orch_compute::Expr::Var(_))
}
