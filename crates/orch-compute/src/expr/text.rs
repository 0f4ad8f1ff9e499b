//! Expressions as text for people: infix arithmetic, and `where` clauses for what is used more than once.

use crate::expr::{Const, Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, DType};
use rustc_hash::FxHashMap;

/// The longest text, in bytes, that stands in several places: reads are clearer there, but texts of texts would double.
const MAX_REPEATED: usize = 120;

/// How tightly a text binds: an operand that binds less than its place asks for is put in parentheses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Compare,
    Sum,
    Product,
    Atom,
}

/// The text of one expression.
pub struct ExprText {
    /// The expression itself.
    pub text: String,
    /// `name = text` of each subexpression that `text` or another one names, operands first.
    pub definitions: Vec<(String, String)>,
}

impl std::fmt::Display for ExprText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)?;
        for (name, text) in self.definitions.iter().rev() {
            write!(f, "\n      where {name} = {text}")?;
        }
        Ok(())
    }
}

/// The name of a variable: its own, with the id where another variable has the same.
pub fn var_name(exprs: &Exprs, var: VarId) -> String {
    let name = &exprs.var_info(var).name;
    let is_unique = exprs.vars().iter().filter(|other| other.name == *name).count() == 1;
    if is_unique { name.clone() } else { format!("{name}.{}", var.0) }
}

/// The text of an expression.
pub fn expr_text(exprs: &Exprs, root: ExprId) -> ExprText {
    let order = exprs.reachable(&[root]);
    let mut uses: FxHashMap<ExprId, usize> = FxHashMap::default();
    for &id in &order {
        exprs.get(id).for_each_operand(|operand| *uses.entry(operand).or_insert(0) += 1);
    }
    let mut texts: FxHashMap<ExprId, (String, Binding)> = FxHashMap::default();
    let mut definitions = Vec::new();
    for id in order {
        let (text, binding) = node_text(exprs, id, &texts);
        let is_shared = uses.get(&id).is_some_and(|&n| n > 1) && binding != Binding::Atom;
        let is_call = matches!(exprs.get(id), Expr::Unary(..) | Expr::Select(..) | Expr::Load { .. });
        let is_long_call = is_call && uses.get(&id).is_some_and(|&n| n > 1);
        let is_very_long = uses.get(&id).is_some_and(|&n| n > 1) && text.len() > MAX_REPEATED;
        if (is_shared || is_long_call) && text.len() > 4 || is_very_long {
            let name = format!("v{}", definitions.len());
            definitions.push((name.clone(), text));
            texts.insert(id, (name, Binding::Atom));
        } else {
            texts.insert(id, (text, binding));
        }
    }
    let (text, _) = texts.remove(&root).expect("the root is reachable from itself");
    ExprText { text, definitions }
}

type Texts = FxHashMap<ExprId, (String, Binding)>;

fn node_text(exprs: &Exprs, id: ExprId, texts: &Texts) -> (String, Binding) {
    let atom = |text: String| (text, Binding::Atom);
    let plain = |operand: &ExprId| texts[operand].0.clone();
    let list = |operands: &[ExprId]| operands.iter().map(plain).collect::<Vec<_>>().join(", ");
    let guarded = |condition: &Option<ExprId>| match condition {
        Some(condition) => format!(" if {}", plain(condition)),
        None => String::new(),
    };
    let infix = |operator: &str, binding: Binding, a: &ExprId, b: &ExprId| {
        let side = |operand: &ExprId, least: Binding, is_right: bool| {
            let (text, own) = &texts[operand];
            if *own < least || (*own == least && is_right) { format!("({text})") } else { text.clone() }
        };
        (format!("{} {operator} {}", side(a, binding, false), side(b, binding, true)), binding)
    };
    match exprs.get(id) {
        Expr::Const(c) => atom(const_text(*c)),
        Expr::Var(var) => atom(var_name(exprs, *var)),
        Expr::Unary(f, a) => atom(format!("{}({})", f.name(), plain(a))),
        Expr::Binary(BinaryFn::Add, a, b) => infix("+", Binding::Sum, a, b),
        Expr::Binary(BinaryFn::Sub, a, b) => infix("-", Binding::Sum, a, b),
        Expr::Binary(BinaryFn::Mul, a, b) => infix("*", Binding::Product, a, b),
        Expr::Binary(BinaryFn::Div, a, b) if exprs.dtype(*a).is_float() => infix("/", Binding::Product, a, b),
        Expr::Binary(f, a, b) => atom(format!("{}({}, {})", f.name(), plain(a), plain(b))),
        Expr::Compare(f, a, b) => infix(f.symbol(), Binding::Compare, a, b),
        Expr::Select(c, a, b) => atom(format!("select({}, {}, {})", plain(c), plain(a), plain(b))),
        Expr::Cast(dtype, a) => atom(format!("{dtype}({})", plain(a))),
        Expr::IsNan(a) => atom(format!("is_nan({})", plain(a))),
        Expr::IsInf(a) => atom(format!("is_inf({})", plain(a))),
        Expr::Fma(a, b, c) => atom(format!("fma({}, {}, {})", plain(a), plain(b), plain(c))),
        Expr::DotPairs(a, b, c) => atom(format!("dot_pairs({}, {}, {})", plain(a), plain(b), plain(c))),
        Expr::Interleave(group, a, b) => {
            atom(format!("{}({}, {})", group.interleave_name(), plain(a), plain(b)))
        }
        Expr::Half(half, a) => atom(format!("{}({})", half.name(), plain(a))),
        Expr::FloorDiv(a, b) => infix("//", Binding::Product, a, b),
        Expr::FloorRem(a, b) => infix("%", Binding::Product, a, b),
        Expr::Read { arg, index, guard } => atom(format!("{arg}[{}{}]", list(index), guarded(guard))),
        Expr::Stage(stage) => atom(stage.to_string()),
        Expr::Load { buffer, offset, lanes, mask } => {
            let width =
                if *lanes > 1 && exprs.lanes(*offset) == 1 { format!("; {lanes}") } else { String::new() };
            atom(format!("{buffer}[{}{width}{}]", plain(offset), guarded(mask)))
        }
        Expr::Splat(a, lanes) => atom(format!("splat({}; {lanes})", plain(a))),
        Expr::Ramp { base, stride, lanes } => atom(format!("ramp({}, {stride}; {lanes})", plain(base))),
        Expr::ReduceLanes(op, a) => atom(format!("{}_lanes({})", op.name(), plain(a))),
    }
}

fn const_text(c: Const) -> String {
    match (c.dtype, c.as_int(), c.as_float()) {
        (DType::Bool, Some(value), _) => (value != 0).to_string(),
        (DType::I64, Some(value), _) => value.to_string(),
        (dtype, Some(value), _) => format!("{value}{dtype}"),
        (DType::F32, _, Some(value)) => format!("{:?}", value as f32),
        (dtype, _, value) => format!("{:?}{dtype}", value.unwrap_or(f64::NAN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Type;

    #[test]
    fn shared_operands_are_written_once() {
        let mut exprs = Exprs::new();
        let register = exprs.declare_register("x", Type::scalar(DType::F32));
        let mut power = exprs.var(register);
        for _ in 0..100 {
            power = exprs.binary(BinaryFn::Pow, power, power);
        }
        let text = expr_text(&exprs, power).to_string();
        assert!(text.len() < 5000, "{text}");
    }
}
