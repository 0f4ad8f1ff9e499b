//! Reads the text of thread programs ([`crate::text`]).
//!
//! The parser checks types of operands, which the arena does not; [`validate_thread`](crate::validate_thread) checks everything
//! else.

mod cta;
mod declare;
mod expr;

use crate::amx::{AmxStmt, TileId};
use crate::program::{LoopKind, Stmt, ThreadProgram};
use crate::text::error::ThreadTextError;
use crate::text::token::Lexer;
use crate::text::words::{AMX_WORDS, CTA_WORDS, MAX_PRINTED_DEPTH};
use crate::tma::TensorMapId;
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use rustc_hash::FxHashMap;

pub(crate) type Parsed<T> = Result<T, ThreadTextError>;

/// The program that a text describes.
///
/// # Errors
/// At the first place that does not read as a program.
pub fn parse_thread(text: &str) -> Parsed<ThreadProgram> {
    let mut parser = Parser {
        lexer: Lexer::new(text)?,
        program: ThreadProgram::new("", 0),
        vars: FxHashMap::default(),
        buffers: FxHashMap::default(),
        tiles: FxHashMap::default(),
        tensor_maps: FxHashMap::default(),
        labels: FxHashMap::default(),
        block_depth: 0,
        expr_depth: 0,
    };
    parser.header()?;
    parser.program.body = parser.block()?;
    parser.lexer.expect_end()?;
    Ok(parser.program)
}

pub(crate) struct Parser {
    lexer: Lexer,
    program: ThreadProgram,
    vars: FxHashMap<String, VarId>,
    buffers: FxHashMap<String, BufferId>,
    tiles: FxHashMap<String, TileId>,
    tensor_maps: FxHashMap<String, TensorMapId>,
    labels: FxHashMap<String, ExprId>,
    block_depth: usize,
    expr_depth: usize,
}

/// Blocks in blocks, and expressions in expressions, may nest this deep, so that no text exhausts the stack.
const MAX_DEPTH: usize = 2 * MAX_PRINTED_DEPTH;

impl Parser {
    fn error<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        self.lexer.error(problem)
    }
    fn tile(&mut self) -> Parsed<TileId> {
        let (token, _) = self.lexer.name()?;
        match self.tiles.get(&token) {
            Some(&tile) => Ok(tile),
            None => self.error(format!("there is no tile {token}")),
        }
    }

    fn tensor_map(&mut self) -> Parsed<TensorMapId> {
        let (token, _) = self.lexer.name()?;
        match self.tensor_maps.get(&token) {
            Some(&tensor_map) => Ok(tensor_map),
            None => self.error(format!("there is no tensor_map {token}")),
        }
    }

    fn dtype(&mut self) -> Parsed<DType> {
        let word = self.lexer.word()?;
        match DType::from_name(&word) {
            Some(dtype) => Ok(dtype),
            None => self.error(format!("there is no type {word}")),
        }
    }

    /// `f32` or `f32x16`.
    fn ty(&mut self) -> Parsed<Type> {
        let word = self.lexer.word()?;
        let (dtype, lanes) = word.split_once('x').unwrap_or((&word, "1"));
        match (DType::from_name(dtype), lanes.parse()) {
            (Some(dtype), Ok(lanes)) => Ok(Type { dtype, lanes }),
            _ => self.error(format!("there is no type {word}")),
        }
    }
    fn buffer(&mut self) -> Parsed<BufferId> {
        let (token, _) = self.lexer.name()?;
        self.buffer_named(&token)
    }

    fn buffer_named(&self, token: &str) -> Parsed<BufferId> {
        match self.buffers.get(token) {
            Some(&buffer) => Ok(buffer),
            None => self.error(format!("there is no buffer {token}")),
        }
    }
    /// Reads a block or expression that may contain others; `depth` counts those around it.
    fn nested<T>(
        &mut self,
        depth: fn(&mut Self) -> &mut usize,
        read: fn(&mut Self) -> Parsed<T>,
    ) -> Parsed<T> {
        if *depth(self) == MAX_DEPTH {
            return self.error(format!("nested more than {MAX_DEPTH} deep"));
        }
        *depth(self) += 1;
        let part = read(self);
        *depth(self) -= 1;
        part
    }

    /// `{ statements }`.
    fn block(&mut self) -> Parsed<Vec<Stmt>> {
        self.nested(|parser| &mut parser.block_depth, Self::stmts)
    }

    fn stmts(&mut self) -> Parsed<Vec<Stmt>> {
        self.lexer.expect("{")?;
        let mut stmts = Vec::new();
        while !self.lexer.accept("}") {
            if let Some(stmt) = self.stmt()? {
                stmts.push(stmt);
            }
        }
        Ok(stmts)
    }

    /// A statement, or a label for an expression.
    fn stmt(&mut self) -> Parsed<Option<Stmt>> {
        if let Some(text) = self.lexer.comment() {
            return Ok(Some(Stmt::Comment(text)));
        }
        if let Some(label) = self.lexer.label() {
            self.lexer.expect("=")?;
            let value = self.expr()?;
            self.labels.insert(label, value);
            return Ok(None);
        }
        let stmt = if self.lexer.accept("let") {
            let (var, value) = self.binding()?;
            Stmt::Let(var, value)
        } else if self.lexer.accept("reg") {
            let (var, value) = self.binding()?;
            Stmt::Register(var, value)
        } else if self.lexer.accept("for") {
            self.for_loop()?
        } else if self.lexer.accept("if") {
            let condition = self.expr()?;
            let then = self.block()?;
            let otherwise = if self.lexer.accept("else") { self.block()? } else { Vec::new() };
            Stmt::If { condition, then, otherwise }
        } else if self.lexer.accept("prefetch") {
            let buffer = self.buffer()?;
            self.lexer.expect("[")?;
            let offset = self.expr()?;
            self.lexer.expect("]")?;
            Stmt::Prefetch { buffer, offset }
        } else if let Some(word) = AMX_WORDS.into_iter().find(|word| self.lexer.accept(word)) {
            Stmt::Amx(self.tile_stmt(word)?)
        } else if let Some(word) = CTA_WORDS.into_iter().find(|word| self.lexer.accept(word)) {
            Stmt::Cta(self.cta_stmt(word)?)
        } else {
            self.assignment()?
        };
        Ok(Some(stmt))
    }

    fn binding(&mut self) -> Parsed<(VarId, ExprId)> {
        // The variable is declared before its value is read. The validator rejects a value in which its own variable occurs.
        let var = self.declaration()?;
        self.lexer.expect("=")?;
        Ok((var, self.expr()?))
    }

    fn for_loop(&mut self) -> Parsed<Stmt> {
        let (var, start) = self.binding()?;
        self.lexer.expect("to")?;
        let end = self.expr()?;
        self.lexer.expect("step")?;
        let step = self.lexer.integer()?;
        let kind = match self.lexer.accept("unroll") {
            false => LoopKind::Serial,
            true if self.lexer.is("{") => LoopKind::Unroll,
            true => match u32::try_from(self.lexer.count()?) {
                Ok(factor) => LoopKind::UnrollBy(factor),
                Err(_) => return self.error("the unroll factor is too large"),
            },
        };
        Ok(Stmt::For { var, start, end, step, kind, body: self.block()? })
    }

    /// `register = value` or `buffer[offset if mask] = value`.
    fn assignment(&mut self) -> Parsed<Stmt> {
        let (token, _) = self.lexer.name()?;
        if self.lexer.accept("=") {
            let value = self.expr()?;
            return match self.vars.get(&token) {
                Some(&var) => Ok(Stmt::Assign(var, value)),
                None => self.error(format!("there is no variable {token}")),
            };
        }
        let buffer = self.buffer_named(&token)?;
        self.lexer.expect("[")?;
        let offset = self.expr()?;
        let mask = if self.lexer.accept("if") { Some(self.expr()?) } else { None };
        self.lexer.expect("]")?;
        self.lexer.expect("=")?;
        let value = self.expr()?;
        Ok(Stmt::Store { buffer, offset, value, mask })
    }
    /// The operands of `amx_zero`, `amx_load`, `amx_dot` or `amx_store`.
    fn tile_stmt(&mut self, word: &str) -> Parsed<AmxStmt> {
        let tile = self.tile()?;
        if word == "amx_zero" {
            return Ok(AmxStmt::Zero(tile));
        }
        self.lexer.expect(",")?;
        if word == "amx_dot" {
            let a = self.tile()?;
            self.lexer.expect(",")?;
            return Ok(AmxStmt::Dot { acc: tile, a, b: self.tile()? });
        }
        let buffer = self.buffer()?;
        self.lexer.expect("[")?;
        let offset = self.expr()?;
        self.lexer.expect("]")?;
        self.lexer.expect(",")?;
        self.lexer.expect("stride")?;
        let stride = self.lexer.integer()?;
        Ok(match word {
            "amx_load" => AmxStmt::Load { tile, buffer, offset, stride },
            _ => AmxStmt::Store { tile, buffer, offset, stride },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn fails(body: &str, expected: &str) {
        let text = format!("program k, 1 tasks task: i64\n  input x: f32[4]\n{{\n{body}\n}}\n");
        assert_eq!(parse_thread(&text).unwrap_err().to_string(), expected);
    }

    #[test]
    fn errors_name_the_line() {
        fails("let v: f32 = (x[0] + 1)", "line 4: operands differ in type");
        fails("let v: f33 = 1", "line 4: there is no type f33");
        fails("y[0] = 1.0", "line 4: there is no buffer y");
        fails("let v: f32 = sinus(1.0)", "line 4: there is no function sinus of 1 operands");
        fails("let v: f32 = %7", "line 4: %7 is not defined");
        fails("let v: f32 = 1.0\nlet v: i64 = 1", "line 5: v is declared again as something else");
        fails("if true {", "line 5: the text ends early");
        fails("let v: u8 = 300_u8", "line 4: 300_u8 is not a constant");
        fails("let v: f32 = ?", "line 4: unexpected character ?");
        let deep = format!("let v: f32 = {}", "(".repeat(100_000));
        fails(&deep, "line 4: nested more than 256 deep");
        fails("} }", "line 4: the end of the text is expected, not }");
    }
}
