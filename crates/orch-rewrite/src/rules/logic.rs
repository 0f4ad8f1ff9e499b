//! Booleans, selections and conversions.

use crate::facts::splat;
use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, CompareFn, DType, PrimOp, ScalarFn, TensorId, UnaryFn};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "neutral-boolean",
        equation: "x and TRUE = x, x or FALSE = x, x xor FALSE = x; x and FALSE = FALSE, x or TRUE = TRUE",
        guards: "booleans",
        numerics: Numerics::Exact,
        source: "Boolean algebra",
        apply: neutral_boolean,
    },
    Rule {
        name: "idempotent",
        equation: "x and x = x, x or x = x, max(x, x) = x, min(x, x) = x",
        guards: "",
        numerics: Numerics::Exact,
        source: "idempotence",
        apply: idempotent,
    },
    Rule {
        name: "not-of-not",
        equation: "not not x = x",
        guards: "",
        numerics: Numerics::Exact,
        source: "involution",
        apply: not_of_not,
    },
    Rule {
        name: "select-decided",
        equation: "select(TRUE, x, y) = x, select(FALSE, x, y) = y, select(c, x, x) = x",
        guards: "",
        numerics: Numerics::Exact,
        source: "definition",
        apply: select_decided,
    },
    Rule {
        name: "select-of-not",
        equation: "select(not c, x, y) = select(c, y, x)",
        guards: "",
        numerics: Numerics::Exact,
        source: "definition",
        apply: select_of_not,
    },
    Rule {
        name: "comparison-of-select",
        equation: "compare(select(c, A, B), D) = c or not c",
        guards: "A, B and D are the same everywhere, and compare differently",
        numerics: Numerics::Exact,
        source: "definition",
        apply: comparison_of_select,
    },
    Rule {
        name: "boolean-of-select",
        equation: "cast_bool(select(c, A, B)) = c or not c",
        guards: "A and B are the same everywhere and not NaN, and one of them is 0",
        numerics: Numerics::Exact,
        source: "definition",
        apply: boolean_of_select,
    },
    Rule {
        name: "arithmetic-of-select",
        equation: "f(select(c, A, B), D) = select(c, f(A, D), f(B, D))",
        guards: "A, B and D are the same everywhere; f is arithmetic with a value for all operands; cast(c) counts as select(c, 1, 0)",
        numerics: Numerics::Exact,
        source: "definition",
        apply: arithmetic_of_select,
    },
    Rule {
        name: "select-of-select",
        equation: "select(c, select(c, x, y), z) = select(c, x, z), select(c, x, select(c, y, z)) = select(c, x, z)",
        guards: "",
        numerics: Numerics::Exact,
        source: "definition",
        apply: select_of_select,
    },
    Rule {
        name: "cast-identity",
        equation: "cast(x) = x",
        guards: "to the type of x",
        numerics: Numerics::Exact,
        source: "definition",
        apply: cast_identity,
    },
    Rule {
        name: "cast-of-cast",
        equation: "cast_c(cast_b(x)) = cast_c(x)",
        guards: "type b holds every value of the type of x",
        numerics: Numerics::Exact,
        source: "the first conversion loses nothing",
        apply: cast_of_cast,
    },
];

fn neutral_boolean(site: &mut Site<'_>) -> Option<TensorId> {
    for f in [BinaryFn::And, BinaryFn::Or, BinaryFn::Xor] {
        let Some((x, c)) = site.with_constant(site.result(), f) else { continue };
        if site.dtype(x) != DType::Bool {
            return None;
        }
        let value = splat(site, c)? != 0.0;
        return match (f, value) {
            (BinaryFn::And, true) | (BinaryFn::Or | BinaryFn::Xor, false) => Some(x),
            (BinaryFn::And, false) | (BinaryFn::Or, true) => Some(c),
            _ => None,
        };
    }
    None
}

fn idempotent(site: &mut Site<'_>) -> Option<TensorId> {
    [BinaryFn::And, BinaryFn::Or, BinaryFn::Max, BinaryFn::Min]
        .into_iter()
        .filter_map(|f| site.root_map(f))
        .find_map(|[x, y]| (x == y).then_some(x))
}

fn not_of_not(site: &mut Site<'_>) -> Option<TensorId> {
    let [negated] = site.root_map(UnaryFn::Not)?;
    let [x] = site.mapped(negated, UnaryFn::Not)?;
    Some(x)
}

fn select_decided(site: &mut Site<'_>) -> Option<TensorId> {
    let [condition, if_true, if_false] = site.root_map(ScalarFn::Select)?;
    if if_true == if_false {
        return Some(if_true);
    }
    let value = splat(site, condition)?;
    Some(if value != 0.0 { if_true } else { if_false })
}

fn select_of_not(site: &mut Site<'_>) -> Option<TensorId> {
    let [condition, if_true, if_false] = site.root_map(ScalarFn::Select)?;
    let [inner] = site.mapped(condition, UnaryFn::Not)?;
    site.map(ScalarFn::Select, &[inner, if_false, if_true])
}

fn comparison_of_select(site: &mut Site<'_>) -> Option<TensorId> {
    let made = site.maker(site.result())?;
    let PrimOp::Map(ScalarFn::Compare(f)) = *made.op else { return None };
    let (lhs, rhs) = (made.inputs[0], made.inputs[1]);
    let [condition, if_true, if_false] = site.mapped(lhs, ScalarFn::Select)?;
    let (rhs, if_true, if_false) = (splat(site, rhs)?, splat(site, if_true)?, splat(site, if_false)?);
    let compare = |value: f64| match f {
        CompareFn::Eq => value == rhs,
        CompareFn::Ne => value != rhs,
        CompareFn::Lt => value < rhs,
        CompareFn::Le => value <= rhs,
        CompareFn::Gt => value > rhs,
        CompareFn::Ge => value >= rhs,
    };
    // Larger integers are not exact in f64.
    let is_exact = |value: f64| site.dtype(lhs).is_float() || value.abs() < 2f64.powi(53);
    if ![rhs, if_true, if_false].into_iter().all(is_exact) {
        return None;
    }
    chosen(site, condition, [compare(if_true), compare(if_false)])
}

fn boolean_of_select(site: &mut Site<'_>) -> Option<TensorId> {
    let (selected, DType::Bool) = cast_of(site, site.result())? else { return None };
    let [condition, if_true, if_false] = site.mapped(selected, ScalarFn::Select)?;
    let values = [splat(site, if_true)?, splat(site, if_false)?];
    if values.iter().any(|value| value.is_nan()) {
        return None;
    }
    chosen(site, condition, values.map(|value| value != 0.0))
}

/// `select(condition, a, b)` of two booleans that differ.
fn chosen(site: &mut Site<'_>, condition: TensorId, [if_true, if_false]: [bool; 2]) -> Option<TensorId> {
    match (if_true, if_false) {
        (true, false) => Some(condition),
        (false, true) => site.map(UnaryFn::Not, &[condition]),
        _ => None,
    }
}

fn arithmetic_of_select(site: &mut Site<'_>) -> Option<TensorId> {
    let made = site.root();
    let PrimOp::Map(f) = *made.op else { return None };
    let is_float = site.dtype(site.result()).is_float();
    let has_values = match f {
        ScalarFn::Binary(BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul | BinaryFn::Max | BinaryFn::Min)
        | ScalarFn::Unary(UnaryFn::Neg) => true,
        ScalarFn::Binary(BinaryFn::Div) | ScalarFn::Cast(_) => is_float,
        _ => false,
    };
    if !has_values {
        return None;
    }
    let mut selected = (0..made.inputs.len()).filter(|&at| splat(site, made.inputs[at]).is_none());
    let (Some(selected), None) = (selected.next(), selected.next()) else { return None };
    let (condition, choices) = choice(site, made.inputs[selected])?;
    let mut results = [condition; 2];
    for (result, choice) in results.iter_mut().zip(choices) {
        let mut operands = made.inputs.to_vec();
        operands[selected] = choice;
        *result = site.map(f, &operands)?;
    }
    site.map(ScalarFn::Select, &[condition, results[0], results[1]])
}

/// Condition and operands of a selection of two tensors that are each the same everywhere. The conversion of a boolean to a number
/// selects 1 and 0.
fn choice(site: &mut Site<'_>, id: TensorId) -> Option<(TensorId, [TensorId; 2])> {
    if let Some([condition, if_true, if_false]) = site.mapped(id, ScalarFn::Select) {
        splat(site, if_true)?;
        splat(site, if_false)?;
        return Some((condition, [if_true, if_false]));
    }
    let (condition, to) = cast_of(site, id)?;
    if site.dtype(condition) != DType::Bool {
        return None;
    }
    let shape = site.shape(id).clone();
    Some((condition, [site.full(to, 1.0, &shape)?, site.full(to, 0.0, &shape)?]))
}

fn select_of_select(site: &mut Site<'_>) -> Option<TensorId> {
    let [condition, if_true, if_false] = site.root_map(ScalarFn::Select)?;
    let inner =
        |id| site.mapped(id, ScalarFn::Select).filter(|operands: &[TensorId; 3]| operands[0] == condition);
    match (inner(if_true), inner(if_false)) {
        (None, None) => None,
        (then, otherwise) => {
            let if_true = then.map_or(if_true, |[_, x, _]| x);
            let if_false = otherwise.map_or(if_false, |[.., z]| z);
            site.map(ScalarFn::Select, &[condition, if_true, if_false])
        }
    }
}

/// Operand and result type of the conversion that computes a tensor.
fn cast_of(site: &Site<'_>, id: TensorId) -> Option<(TensorId, DType)> {
    let made = site.maker(id)?;
    let PrimOp::Map(ScalarFn::Cast(to)) = *made.op else { return None };
    Some((made.inputs[0], to))
}

fn cast_identity(site: &mut Site<'_>) -> Option<TensorId> {
    let (x, to) = cast_of(site, site.result())?;
    (site.dtype(x) == to).then_some(x)
}

fn cast_of_cast(site: &mut Site<'_>) -> Option<TensorId> {
    let (middle, to) = cast_of(site, site.result())?;
    let (x, through) = cast_of(site, middle)?;
    if holds_all(through, site.dtype(x)) { site.map(ScalarFn::Cast(to), &[x]) } else { None }
}

/// True if type `wide` holds every value of type `narrow`, so that a conversion there changes no later one.
fn holds_all(wide: DType, narrow: DType) -> bool {
    // Bits of an integer type without its sign, or of the integers that a floating type holds exactly.
    let exact_bits = |dtype: DType| match dtype {
        DType::Bool => 1,
        DType::BF16 => 8,
        DType::F16 => 11,
        DType::F32 => 24,
        DType::F64 => 53,
        _ => 8 * dtype.size_bytes() - usize::from(dtype.is_signed_int()),
    };
    if wide == DType::Bool {
        return narrow == DType::Bool;
    }
    if narrow.is_float() {
        return wide == narrow
            || matches!(
                (narrow, wide),
                (DType::F16 | DType::BF16, DType::F32) | (DType::F16 | DType::BF16 | DType::F32, DType::F64)
            );
    }
    let sign_kept = !narrow.is_signed_int() || wide.is_signed_int() || wide.is_float();
    sign_kept && exact_bits(wide) >= exact_bits(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, Sketch, apply, check, same_in_floats};
    use orch_ir::PrimGraph;

    /// `select(c, 1, 0)` and its 0, of a shape.
    fn one_or_zero(g: &mut Sketch, c: TensorId, shape: [usize; 2]) -> (TensorId, TensorId) {
        let [one, zero] = [1.0, 0.0].map(|value| {
            let scalar = g.constant_of(DType::F32, [], |_| value);
            g.broadcast(scalar, shape, &[])
        });
        (g.map(ScalarFn::Select, &[c, one, zero]), zero)
    }

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "neutral-boolean",
                    nodes: (4, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input_of(DType::Bool, [a, b]);
                        let x = g.with(BinaryFn::And, x, 1.0);
                        g.with(BinaryFn::Or, x, 0.0)
                    },
                },
                Case {
                    rule: "neutral-boolean",
                    nodes: (2, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input_of(DType::Bool, [a, b]);
                        g.with(BinaryFn::And, x, 0.0)
                    },
                },
                Case {
                    rule: "idempotent",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.map(BinaryFn::Max, &[x, x])
                    },
                },
                Case {
                    rule: "not-of-not",
                    nodes: (2, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input_of(DType::Bool, [a, b]);
                        let y = g.map(UnaryFn::Not, &[x]);
                        g.map(UnaryFn::Not, &[y])
                    },
                },
                Case {
                    rule: "select-decided",
                    nodes: (3, 0),
                    build: |g, [a, b, _]| {
                        let (x, y) = (g.input([a, b]), g.input([a, b]));
                        let c = g.constant_of(DType::Bool, [], |_| 1.0);
                        let c = g.broadcast(c, [a, b], &[]);
                        let first = g.map(ScalarFn::Select, &[c, x, y]);
                        g.map(ScalarFn::Select, &[c, first, first])
                    },
                },
                Case {
                    rule: "select-of-not",
                    nodes: (2, 1),
                    build: |g, [a, b, _]| {
                        let (x, y) = (g.input([a, b]), g.input([a, b]));
                        let c = g.input_of(DType::Bool, [a, b]);
                        let c = g.map(UnaryFn::Not, &[c]);
                        g.map(ScalarFn::Select, &[c, x, y])
                    },
                },
                Case {
                    rule: "comparison-of-select",
                    nodes: (4, 1),
                    build: |g, [a, b, _]| {
                        let c = g.input_of(DType::Bool, [a, b]);
                        let (y, zero) = one_or_zero(g, c, [a, b]);
                        g.map(ScalarFn::Compare(CompareFn::Eq), &[y, zero])
                    },
                },
                Case {
                    rule: "boolean-of-select",
                    nodes: (4, 0),
                    build: |g, [a, b, _]| {
                        let c = g.input_of(DType::Bool, [a, b]);
                        let (y, _) = one_or_zero(g, c, [a, b]);
                        g.map(ScalarFn::Cast(DType::Bool), &[y])
                    },
                },
                Case {
                    rule: "arithmetic-of-select",
                    nodes: (5, 3),
                    build: |g, [a, b, _]| {
                        let c = g.input_of(DType::Bool, [a, b]);
                        let (y, _) = one_or_zero(g, c, [a, b]);
                        g.with(BinaryFn::Mul, y, -1e9)
                    },
                },
                Case {
                    rule: "arithmetic-of-select",
                    nodes: (5, 3),
                    build: |g, [a, b, _]| {
                        let c = g.input_of(DType::Bool, [a, b]);
                        let y = g.map(ScalarFn::Cast(DType::F32), &[c]);
                        let y = g.with(BinaryFn::Sub, y, 1.0);
                        g.with(BinaryFn::Mul, y, 0.5)
                    },
                },
                Case {
                    rule: "select-of-select",
                    nodes: (3, 1),
                    build: |g, [a, b, _]| {
                        let (x, y, z) = (g.input([a, b]), g.input([a, b]), g.input([a, b]));
                        let c = g.input_of(DType::Bool, [a, b]);
                        let first = g.map(ScalarFn::Select, &[c, y, x]);
                        let second = g.map(ScalarFn::Select, &[c, z, y]);
                        g.map(ScalarFn::Select, &[c, first, second])
                    },
                },
                Case {
                    rule: "cast-identity",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.map(ScalarFn::Cast(DType::F32), &[x])
                    },
                },
                Case {
                    rule: "cast-of-cast",
                    nodes: (2, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.map(ScalarFn::Cast(DType::F64), &[x]);
                        g.map(ScalarFn::Cast(DType::F16), &[y])
                    },
                },
            ],
        );
    }

    #[test]
    fn conversions_through_every_type_keep_their_values() {
        let rule = RULES.iter().find(|rule| rule.name == "cast-of-cast").expect("in the list");
        for from in DType::ALL {
            for through in DType::ALL {
                for to in DType::ALL {
                    let mut g = Sketch { graph: PrimGraph::new("g") };
                    let x = g.input_of(from, [64]);
                    let y = g.map(ScalarFn::Cast(through), &[x]);
                    let z = g.map(ScalarFn::Cast(to), &[y]);
                    g.graph.add_output("z", z);
                    let (after, _) = apply(&g.graph, rule);
                    same_in_floats(&g.graph, &after, Numerics::Exact, &format!("{from} {through} {to}"));
                }
            }
        }
    }
}
