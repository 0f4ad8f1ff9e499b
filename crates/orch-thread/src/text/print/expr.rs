//! Prints expressions and constants.

use crate::text::print::Printer;
use crate::text::words::{INFIX, MAX_PRINTED_DEPTH};
use orch_compute::expr::{Const, Expr, ExprId};
use orch_ir::DType;
use rustc_hash::FxHashMap;

impl Printer<'_> {
    /// The text of an expression; labels for shared or deep parts of it are printed first.
    pub(crate) fn expr(&mut self, root: ExprId, depth: usize) -> String {
        let mut texts: FxHashMap<ExprId, String> = FxHashMap::default();
        let mut depths: FxHashMap<ExprId, usize> = FxHashMap::default();
        for id in self.program.exprs.reachable_unless(&[root], |id| self.labels.contains_key(&id)) {
            let text = self.node(id, &texts);
            let node = self.program.exprs.get(id);
            let mut below = 0;
            node.for_each_operand(|operand| below = below.max(depths.get(&operand).copied().unwrap_or(0)));
            let is_leaf = matches!(node, Expr::Const(_) | Expr::Var(_));
            let is_shared = self.uses.get(&id).is_some_and(|&uses| uses >= 2);
            if is_leaf || (!is_shared && below < MAX_PRINTED_DEPTH) {
                texts.insert(id, text);
                depths.insert(id, below + 1);
            } else {
                let label = format!("%{}", self.labels.len());
                self.line(depth, &format!("{label} = {text}"));
                self.labels.insert(id, label);
            }
        }
        self.labels.get(&root).or_else(|| texts.get(&root)).cloned().expect("the root reaches itself")
    }

    fn node(&self, id: ExprId, texts: &FxHashMap<ExprId, String>) -> String {
        let exprs = &self.program.exprs;
        let text = |id: &ExprId| {
            self.labels.get(id).or_else(|| texts.get(id)).expect("operands come before users").as_str()
        };
        let infix = |operator: &str, a: &ExprId, b: &ExprId| format!("({} {operator} {})", text(a), text(b));
        match exprs.get(id) {
            Expr::Const(c) => const_text(*c),
            Expr::Var(var) => self.var(*var),
            Expr::Unary(f, a) => format!("{}({})", f.name(), text(a)),
            Expr::Binary(f, a, b) => match INFIX.iter().find(|(_, infix)| infix == f) {
                Some((operator, _)) => infix(operator, a, b),
                None => format!("{}({}, {})", f.name(), text(a), text(b)),
            },
            Expr::Compare(f, a, b) => infix(f.symbol(), a, b),
            Expr::Select(c, a, b) => format!("select({}, {}, {})", text(c), text(a), text(b)),
            Expr::Cast(dtype, a) => format!("{dtype}({})", text(a)),
            Expr::IsNan(a) => format!("is_nan({})", text(a)),
            Expr::IsInf(a) => format!("is_inf({})", text(a)),
            Expr::Fma(a, b, c) => format!("fma({}, {}, {})", text(a), text(b), text(c)),
            Expr::DotPairs(a, b, c) => format!("dot_pairs({}, {}, {})", text(a), text(b), text(c)),
            Expr::Interleave(group, a, b) => format!("{}({}, {})", group.interleave_name(), text(a), text(b)),
            Expr::Half(half, a) => format!("{}({})", half.name(), text(a)),
            Expr::FloorDiv(a, b) => infix("//", a, b),
            Expr::FloorRem(a, b) => infix("%", a, b),
            Expr::Load { buffer, offset, lanes, mask } => {
                let is_wide = *lanes > 1 && exprs.lanes(*offset) == 1;
                let lanes = if is_wide { format!("; {lanes}") } else { String::new() };
                let mask = mask.map_or(String::new(), |mask| format!(" if {}", text(&mask)));
                format!("{}[{}{lanes}{mask}]", self.buffer(*buffer), text(offset))
            }
            Expr::Splat(a, lanes) => format!("splat({}; {lanes})", text(a)),
            Expr::Ramp { base, stride, lanes } => format!("ramp({}, {stride}; {lanes})", text(base)),
            Expr::ReduceLanes(op, a) => format!("{}_lanes({})", op.name(), text(a)),
            block_level @ (Expr::Read { .. } | Expr::Stage(_)) => format!("<{block_level:?}>"),
        }
    }
}
/// A constant: `5`, `0.5`, `5_i32`.
fn const_text(c: Const) -> String {
    let canonical_nan = Const::float(c.dtype, f64::NAN).bits;
    match (c.dtype, c.as_int(), c.as_float()) {
        (DType::Bool, Some(value), _) => (value != 0).to_string(),
        (DType::I64, Some(value), _) => value.to_string(),
        (dtype, Some(value), _) => format!("{value}_{dtype}"),
        (dtype, _, Some(value)) if value.is_nan() && c.bits != canonical_nan => {
            format!("{dtype}#{:x}", c.bits)
        }
        (dtype, _, value) => {
            let value = value.unwrap_or(f64::NAN);
            let text = if value.is_nan() {
                "nan".to_owned()
            } else if dtype == DType::F32 {
                format!("{:?}", value as f32)
            } else {
                format!("{value:?}")
            };
            if dtype == DType::F32 { text } else { format!("{text}_{dtype}") }
        }
    }
}
