//! Reads expressions.

use crate::text::parse::{Parsed, Parser};
use crate::text::token::Token;
use crate::text::words::INFIX;
use orch_compute::expr::{Expr, ExprId, LaneGroup, LaneHalf, Type};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

impl Parser {
    pub(crate) fn expr(&mut self) -> Parsed<ExprId> {
        self.nested(|parser| &mut parser.expr_depth, Self::operand)
    }

    fn operand(&mut self) -> Parsed<ExprId> {
        if let Some(label) = self.lexer.label() {
            return match self.labels.get(&label) {
                Some(&id) => Ok(id),
                None => self.error(format!("{label} is not defined")),
            };
        }
        if self.lexer.accept("(") {
            return self.infix();
        }
        if let Some(constant) = self.lexer.constant()? {
            return self.add(Expr::Const(constant));
        }
        let (token, _) = self.lexer.name()?;
        if self.lexer.accept("(") {
            let node = self.call(&token)?;
            self.lexer.expect(")")?;
            return self.add(node);
        }
        if self.lexer.accept("[") {
            return self.load(&token);
        }
        match self.vars.get(&token) {
            Some(&var) => self.add(Expr::Var(var)),
            None => self.error(format!("there is no variable {token}")),
        }
    }

    /// `a operator b)`.
    fn infix(&mut self) -> Parsed<ExprId> {
        let a = self.expr()?;
        let Some(Token::Symbol(operator)) = self.lexer.next() else {
            return self.error("an operator is expected");
        };
        let b = self.expr()?;
        self.lexer.expect(")")?;
        let node = match operator {
            "//" => Expr::FloorDiv(a, b),
            "%" => Expr::FloorRem(a, b),
            _ => {
                let function = INFIX.iter().find(|(text, _)| *text == operator);
                let comparison = CompareFn::ALL.iter().find(|f| f.symbol() == operator);
                match (function, comparison) {
                    (Some((_, f)), _) => Expr::Binary(*f, a, b),
                    (_, Some(f)) => Expr::Compare(*f, a, b),
                    _ => return self.error(format!("there is no operator {operator}")),
                }
            }
        };
        self.add(node)
    }

    /// `offset; lanes if mask]` of a load.
    fn load(&mut self, buffer: &str) -> Parsed<ExprId> {
        let buffer = self.buffer_named(buffer)?;
        let offset = self.expr()?;
        let lanes =
            if self.lexer.accept(";") { self.lexer.count()? } else { self.program.exprs.lanes(offset) };
        let mask = if self.lexer.accept("if") { Some(self.expr()?) } else { None };
        self.lexer.expect("]")?;
        self.add(Expr::Load { buffer, offset, lanes, mask })
    }

    /// The arguments of a call of `function`, without the parenthesis that ends it.
    fn call(&mut self, function: &str) -> Parsed<Expr> {
        let first = self.expr()?;
        match function {
            "splat" => {
                self.lexer.expect(";")?;
                return Ok(Expr::Splat(first, self.lexer.count()?));
            }
            "ramp" => {
                self.lexer.expect(",")?;
                let stride = self.lexer.integer()?;
                self.lexer.expect(";")?;
                return Ok(Expr::Ramp { base: first, stride, lanes: self.lexer.count()? });
            }
            _ => {}
        }
        let mut args = vec![first];
        while self.lexer.accept(",") {
            args.push(self.expr()?);
        }
        match self.function(function, &args) {
            Some(node) => Ok(node),
            None => self.error(format!("there is no function {function} of {} operands", args.len())),
        }
    }

    fn function(&self, name: &str, args: &[ExprId]) -> Option<Expr> {
        match *args {
            [a] => match name {
                "is_nan" => Some(Expr::IsNan(a)),
                "is_inf" => Some(Expr::IsInf(a)),
                "low" | "high" => LaneHalf::from_name(name).map(|half| Expr::Half(half, a)),
                _ => (DType::from_name(name).map(|dtype| Expr::Cast(dtype, a)))
                    .or_else(|| UnaryFn::from_name(name).map(|f| Expr::Unary(f, a)))
                    .or_else(|| {
                        let op = reduction(name.strip_suffix("_lanes")?)?;
                        Some(Expr::ReduceLanes(op, a))
                    }),
            },
            [a, b] => (LaneGroup::of_interleave_name(name).map(|group| Expr::Interleave(group, a, b)))
                .or_else(|| BinaryFn::from_name(name).map(|f| Expr::Binary(f, a, b))),
            [a, b, c] => match name {
                "select" => Some(Expr::Select(a, b, c)),
                "fma" => Some(Expr::Fma(a, b, c)),
                "dot_pairs" => Some(Expr::DotPairs(a, b, c)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Adds a node whose operands have suitable types.
    fn add(&mut self, node: Expr) -> Parsed<ExprId> {
        let exprs = &self.program.exprs;
        let fits = match &node {
            Expr::Binary(_, a, b) | Expr::Compare(_, a, b) | Expr::FloorDiv(a, b) | Expr::FloorRem(a, b) => {
                exprs.ty(*a) == exprs.ty(*b)
            }
            Expr::Select(c, a, b) => exprs.ty(*a) == exprs.ty(*b) && exprs.lanes(*c) == exprs.lanes(*a),
            Expr::Fma(a, b, c) => exprs.ty(*a) == exprs.ty(*b) && exprs.ty(*a) == exprs.ty(*c),
            Expr::DotPairs(a, b, c) => {
                let (pairs, accs) = (exprs.ty(*b), exprs.ty(*c));
                (exprs.ty(*a) == pairs || exprs.ty(*a) == Type::vector(DType::BF16, 2))
                    && pairs == Type::vector(DType::BF16, 2 * accs.lanes)
                    && accs.dtype == DType::F32
            }
            Expr::Interleave(group, a, b) => {
                exprs.ty(*a) == exprs.ty(*b) && exprs.lanes(*a).is_multiple_of(group.lanes())
            }
            Expr::Half(_, a) => exprs.lanes(*a).is_multiple_of(2),
            Expr::Splat(a, _) => exprs.lanes(*a) == 1,
            _ => true,
        };
        match fits {
            true => Ok(self.program.exprs.add(node)),
            false => self.error("operands differ in type"),
        }
    }
}

/// The reduction with this name.
fn reduction(name: &str) -> Option<ReduceOp> {
    let arg = |last| [ReduceOp::ArgMax { last }, ReduceOp::ArgMin { last }];
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min]
        .into_iter()
        .chain(arg(false))
        .chain(arg(true))
        .find(|op| op.name() == name)
}
