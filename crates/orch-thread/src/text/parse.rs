//! Reads the text of thread programs ([`crate::text`]).
//!
//! Types of operands are checked here, because the arena takes them for granted; everything else is for
//! [`validate_thread`](crate::validate_thread).

use crate::amx::{AmxShape, AmxStmt, TileId};
use crate::cta::{Cta, CtaStmt, Location, MmaType};
use crate::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use crate::text::error::ThreadTextError;
use crate::text::token::{Lexer, Token};
use crate::text::{AMX_WORDS, COMPARISONS, CTA_WORDS, INFIX, MAX_PRINTED_DEPTH};
use crate::tma::{Mbarriers, TensorMap, TensorMapId};
use orch_compute::expr::{BufferId, Expr, ExprId, Type, VarId, VarInfo};
use orch_ir::{BinaryFn, DType, ReduceOp, UnaryFn};
use rustc_hash::FxHashMap;

type Parsed<T> = Result<T, ThreadTextError>;

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

struct Parser {
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

    fn header(&mut self) -> Parsed<()> {
        self.lexer.expect("program")?;
        let name = self.lexer.word()?;
        self.lexer.expect(",")?;
        let tasks = self.lexer.count()?;
        self.lexer.expect("tasks")?;
        // The constructor's own task variable is replaced by the declared one.
        self.program = ThreadProgram { exprs: orch_compute::Exprs::new(), ..ThreadProgram::new(name, tasks) };
        self.program.task = self.declaration()?;
        while !self.lexer.is("{") {
            let word = self.lexer.word()?;
            if word == "tile" {
                self.tile_declaration()?;
                continue;
            }
            if word == "cta" {
                self.cta_declaration()?;
                continue;
            }
            if word == "tensor_map" {
                self.tensor_map_declaration()?;
                continue;
            }
            if word == "mbarriers" {
                let full = self.lexer.count()?;
                self.lexer.expect("full")?;
                self.lexer.expect("of")?;
                let loads = self.lexer.count()?;
                self.lexer.expect("loads")?;
                let mut empty = 0;
                if self.lexer.accept(",") {
                    empty = self.lexer.count()?;
                    self.lexer.expect("empty")?;
                }
                self.program.mbarriers = Mbarriers { full, loads, empty };
                continue;
            }
            let scope = match word.as_str() {
                "input" => Scope::Input,
                "constant" => Scope::Constant,
                "output" => Scope::Output,
                "shared" => Scope::Shared,
                "reused_shared" => Scope::ReusedShared,
                "scratch" => Scope::Scratch,
                other => {
                    let expected = "input, constant, output, shared, reused_shared, scratch, tile, tensor_map, mbarriers, cta or {";
                    return self.error(format!("{expected} is expected, not {other}"));
                }
            };
            let (token, name) = self.lexer.name()?;
            self.lexer.expect(":")?;
            let dtype = self.dtype()?;
            self.lexer.expect("[")?;
            let elems = self.lexer.count()?;
            self.lexer.expect("]")?;
            let id = self.program.add_buffer(Buffer { name, dtype, elems, scope });
            if self.lexer.accept(",") {
                self.lexer.expect("evict_first")?;
                self.program.evict_first.insert(id);
            }
            if self.buffers.insert(token.clone(), id).is_some() {
                return self.error(format!("buffer {token} is declared twice"));
            }
        }
        Ok(())
    }

    /// `name: type[rows, columns]`.
    fn tile_declaration(&mut self) -> Parsed<()> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let dtype = self.dtype()?;
        self.lexer.expect("[")?;
        let rows = self.lexer.count()?;
        self.lexer.expect(",")?;
        let columns = self.lexer.count()?;
        self.lexer.expect("]")?;
        let id = self.program.add_tile(AmxShape { name, dtype, rows, columns });
        match self.tiles.insert(token.clone(), id) {
            None => Ok(()),
            Some(_) => self.error(format!("tile {token} is declared twice")),
        }
    }

    /// `name: buffer[offset], extents 768 128, strides 768, 64 rows`.
    fn tensor_map_declaration(&mut self) -> Parsed<()> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let buffer = self.buffer()?;
        self.lexer.expect("[")?;
        let offset = self.lexer.count()?;
        for word in ["]", ",", "extents"] {
            self.lexer.expect(word)?;
        }
        let extents = self.counts()?;
        self.lexer.expect("strides")?;
        let strides = self.counts()?;
        let rows = self.lexer.count()?;
        self.lexer.expect("rows")?;
        let id = self.program.add_tensor_map(TensorMap { name, buffer, offset, extents, strides, rows });
        match self.tensor_maps.insert(token.clone(), id) {
            None => Ok(()),
            Some(_) => self.error(format!("tensor_map {token} is declared twice")),
        }
    }

    /// Counts, up to a comma.
    fn counts(&mut self) -> Parsed<Vec<usize>> {
        let mut counts = Vec::new();
        while !self.lexer.accept(",") {
            counts.push(self.lexer.count()?);
        }
        Ok(counts)
    }

    /// `128 threads thread: i64 [0..=127], clusters of 1`, and perhaps `, loads ahead`.
    fn cta_declaration(&mut self) -> Parsed<()> {
        let threads = self.lexer.count()?;
        self.lexer.expect("threads")?;
        let thread = self.declaration()?;
        for word in [",", "clusters", "of"] {
            self.lexer.expect(word)?;
        }
        let cluster = self.lexer.count()?;
        let loads_ahead = self.lexer.accept(",");
        if loads_ahead {
            self.lexer.expect("loads")?;
            self.lexer.expect("ahead")?;
        }
        self.program.cta = Some(Cta { threads, thread, cluster, loads_ahead });
        Ok(())
    }

    /// An mbarrier and its phase.
    fn in_phase(&mut self) -> Parsed<(ExprId, ExprId)> {
        let number = self.expr()?;
        self.lexer.expect(",")?;
        Ok((number, self.expr()?))
    }

    /// What follows the word of a statement of a CTA.
    fn cta_stmt(&mut self, word: &str) -> Parsed<CtaStmt> {
        Ok(match word {
            "barrier" => CtaStmt::Barrier,
            "cluster_barrier" => CtaStmt::ClusterBarrier,
            "cluster_arrive" => CtaStmt::ClusterArrive,
            "cluster_wait" => CtaStmt::ClusterWait,
            "reuse_shared" => CtaStmt::ReuseShared,
            "launch_dependents" => CtaStmt::LaunchDependents,
            "grid_dependency_wait" => CtaStmt::GridDependencyWait,
            "wgmma_wait" => CtaStmt::WgmmaWait,
            "cp_async_commit" => CtaStmt::CpAsyncCommit,
            "cp_async_wait" => CtaStmt::CpAsyncWait(self.lexer.count()?),
            "shuffle" => {
                let (var, value) = self.binding()?;
                self.lexer.expect(",")?;
                CtaStmt::Shuffle { var, value, with: self.lexer.count()? }
            }
            "exceeds" => {
                let var = self.declaration()?;
                self.lexer.expect("=")?;
                let sums = self.location()?;
                self.lexer.expect(",")?;
                let count = self.lexer.count()?;
                self.lexer.expect(",")?;
                CtaStmt::Exceeds { var, accs: sums, count, limits: self.location()? }
            }
            "load_dsmem" => {
                let var = self.declaration()?;
                self.lexer.expect("=")?;
                let from = self.location()?;
                self.lexer.expect(",")?;
                CtaStmt::LoadDsmem { var, from, rank: self.expr()? }
            }
            "store_dsmem" => {
                let to = self.location()?;
                self.lexer.expect(",")?;
                let rank = self.expr()?;
                self.lexer.expect("=")?;
                CtaStmt::StoreDsmem { to, rank, value: self.expr()? }
            }
            "cp_async" => {
                let (to, from) = self.locations()?;
                self.lexer.expect(",")?;
                let elems = self.lexer.count()?;
                let (mut real, mut mask) = (None, None);
                if self.lexer.accept("real") {
                    real = Some(self.expr()?);
                }
                if self.lexer.accept(",") {
                    self.lexer.expect("if")?;
                    mask = Some(self.expr()?);
                }
                CtaStmt::CpAsync { to, from, elems, real, mask }
            }
            "tma_load" => {
                let to = self.location()?;
                self.lexer.expect(",")?;
                let tensor_map = self.tensor_map()?;
                self.lexer.expect("[")?;
                let mut at = vec![self.expr()?];
                while self.lexer.accept(",") {
                    at.push(self.expr()?);
                }
                self.lexer.expect("]")?;
                self.lexer.expect(",")?;
                CtaStmt::TmaLoad { to, map: tensor_map, at, mbarrier: self.expr()? }
            }
            "mbarrier_wait_full" => {
                let (mbarrier, phase) = self.in_phase()?;
                CtaStmt::MbarrierWaitFull { mbarrier, phase }
            }
            "mbarrier_arrive_empty" => {
                let (mbarrier, phase) = self.in_phase()?;
                CtaStmt::MbarrierArriveEmpty { mbarrier, phase }
            }
            "mbarrier_wait_empty" => {
                let (mbarrier, phase) = self.in_phase()?;
                CtaStmt::MbarrierWaitEmpty { mbarrier, phase }
            }
            "ldmatrix" => {
                let (to, from) = self.locations()?;
                self.lexer.expect(",")?;
                let matrices = self.lexer.count()?;
                CtaStmt::Ldmatrix { to, from, matrices, transposed: self.transposed()? }
            }
            _ => {
                let name = self.lexer.word()?;
                let products = [MmaType::F16, MmaType::Bf16, MmaType::Tf32];
                let Some(product) = products.into_iter().find(|product| product.name() == name) else {
                    return self.error(format!("there is no product of {name}"));
                };
                self.lexer.expect(",")?;
                let sum = self.location()?;
                self.lexer.expect(",")?;
                let (a, b) = self.locations()?;
                if word == "mma" {
                    return Ok(CtaStmt::Mma { ty: product, acc: sum, a, b });
                }
                self.lexer.expect(",")?;
                let columns = self.lexer.count()?;
                self.lexer.expect(",")?;
                let terms = self.lexer.count()?;
                let mut words = [("transposed", false), ("async", false)];
                while self.lexer.accept(",") {
                    let word = self.lexer.word()?;
                    match words.iter_mut().find(|(name, is_there)| *name == word && !is_there) {
                        Some((_, is_there)) => *is_there = true,
                        None => return self.error(format!("transposed or async is expected, not {word}")),
                    }
                }
                let [(_, transposed), (_, is_async)] = words;
                CtaStmt::Wgmma { ty: product, acc: sum, a, b, n: columns, k: terms, transposed, is_async }
            }
        })
    }

    /// `, transposed`, or nothing.
    fn transposed(&mut self) -> Parsed<bool> {
        let is_there = self.lexer.accept(",");
        if is_there {
            self.lexer.expect("transposed")?;
        }
        Ok(is_there)
    }

    /// `buffer[offset]`.
    fn location(&mut self) -> Parsed<Location> {
        let buffer = self.buffer()?;
        self.lexer.expect("[")?;
        let offset = self.expr()?;
        self.lexer.expect("]")?;
        Ok(Location { buffer, offset })
    }

    fn locations(&mut self) -> Parsed<(Location, Location)> {
        let first = self.location()?;
        self.lexer.expect(",")?;
        Ok((first, self.location()?))
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
            return Ok(AmxStmt::Dot { sum: tile, a, b: self.tile()? });
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

    /// `name: type [low..=high, multiple n]`: declares the variable, or finds it if it was declared so before.
    fn declaration(&mut self) -> Parsed<VarId> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let ty = self.ty()?;
        let mut info = VarInfo { name, ty, range: None, multiple_of: 1 };
        if self.lexer.accept("[") {
            if !self.lexer.is("multiple") {
                let low = self.lexer.integer()?;
                self.lexer.expect("..=")?;
                info.range = Some((low, self.lexer.integer()?));
                self.lexer.accept(",");
            }
            if self.lexer.accept("multiple") {
                info.multiple_of = self.lexer.integer()?;
            }
            self.lexer.expect("]")?;
        }
        match self.vars.get(&token) {
            Some(&var) if *self.program.exprs.var_info(var) == info => Ok(var),
            Some(_) => self.error(format!("{token} is declared again as something else")),
            None => {
                let var = self.program.exprs.declare(info);
                self.vars.insert(token, var);
                Ok(var)
            }
        }
    }

    /// Reads a part that may contain parts of its kind; `depth` is how many it is in.
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
        // The value is read first in meaning, but a variable may not occur in its own value anyway.
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

    fn expr(&mut self) -> Parsed<ExprId> {
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
                let comparison = COMPARISONS.iter().find(|(text, _)| *text == operator);
                match (function, comparison) {
                    (Some((_, f)), _) => Expr::Binary(*f, a, b),
                    (_, Some((_, f))) => Expr::Compare(*f, a, b),
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
                _ => (DType::from_name(name).map(|dtype| Expr::Cast(dtype, a)))
                    .or_else(|| UnaryFn::from_name(name).map(|f| Expr::Unary(f, a)))
                    .or_else(|| {
                        let op = reduction(name.strip_suffix("_lanes")?)?;
                        Some(Expr::ReduceLanes(op, a))
                    }),
            },
            [a, b] if name == "interleave" => Some(Expr::Interleave(a, b)),
            [a, b] => BinaryFn::from_name(name).map(|f| Expr::Binary(f, a, b)),
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
                let (pairs, sums) = (exprs.ty(*b), exprs.ty(*c));
                (exprs.ty(*a) == pairs || exprs.ty(*a) == Type::vector(DType::BF16, 2))
                    && pairs == Type::vector(DType::BF16, 2 * sums.lanes)
                    && sums.dtype == DType::F32
            }
            Expr::Interleave(a, b) => exprs.ty(*a) == exprs.ty(*b),
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
        fails("let v: f32 = ?", "line 4: a character that means nothing here: ?");
        let deep = format!("let v: f32 = {}", "(".repeat(100_000));
        fails(&deep, "line 4: nested more than 256 deep");
        fails("} }", "line 4: the end of the text is expected, not }");
    }
}
