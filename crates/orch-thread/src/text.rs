//! Thread programs as text that reads back: `parse(print(p))` is `p` with other ids.
//!
//! ```text
//! program scale, 4 tasks task: i64 [0..=3]
//!   input x: f32[64]
//!   output y: f32[64]
//! {
//!   for i: i64 [0..=8, multiple 8] = 0 to 16 step 8 unroll {
//!     # eight elements at once
//!     %0 = ((task * 16) + i)
//!     let v: f32x8 = x[%0; 8]
//!     y[%0 if (ramp(i, 1; 8) < splat(16; 8))] = (v * splat(0.5; 8))
//!   }
//! }
//! ```
//!
//! - `let` binds once, `reg` declares a register, `name = ..` assigns it; `[low..=high, multiple n]` is what is known of
//!   an integer. A variable that has the name of an earlier one reads `name.2`, odd names are in quotes.
//! - `%n = ..` names an expression that occurs more than once; it is not a statement and computes nothing.
//! - `x[offset; lanes if mask]` loads; a vector of offsets needs no lanes. `y[offset if mask] = value` stores.
//! - `tile a: bf16[16, 32]` after the buffers declares a matrix tile; [`thread_tile`](crate::amx) shows the
//!   statements that work on them.
//! - `tensor_map ..` and `mbarriers ..` after the buffers declare what TMA loads from, and what counts loads and readers;
//!   [`thread_view`](crate::tma) has an example.
//! - `, evict_first` after a buffer marks an argument that L2 should evict before others.
//! - `cta ..` before the buffers says which threads run a task; [`cta`](crate::cta) has an example.
//! - Constants read `5` (`i64`), `0.5` (`f32`), `5_i32`, `nan_f64`, `true`, or `f32#7fc00001` for the bits of other NaN.
//! - A cast reads as the type's name, `f16(x)`; functions of one or two operands read by their names but for
//!   `+ - * / // %` and comparisons, which are infix and always in parentheses.

mod error;
mod parse;
mod token;

use crate::amx::{AmxStmt, TileId};
use crate::cta::{Cta, CtaStmt};
use crate::program::{LoopKind, Scope, Stmt, ThreadProgram};
use crate::tma::Mbarriers;
use orch_compute::expr::{BufferId, Const, Expr, ExprId, Type, VarId};
use orch_ir::{BinaryFn, CompareFn, DType};
use rustc_hash::FxHashMap;
use std::fmt::{self, Write};

pub use crate::text::error::ThreadTextError;
pub use crate::text::parse::parse_thread;

impl fmt::Display for ThreadProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_thread(self))
    }
}

/// Infix functions of two operands.
pub(crate) const INFIX: [(&str, BinaryFn); 4] =
    [("+", BinaryFn::Add), ("-", BinaryFn::Sub), ("*", BinaryFn::Mul), ("/", BinaryFn::Div)];

/// Infix comparisons.
pub(crate) const COMPARISONS: [(&str, CompareFn); 6] = [
    ("==", CompareFn::Eq),
    ("!=", CompareFn::Ne),
    ("<", CompareFn::Lt),
    ("<=", CompareFn::Le),
    (">", CompareFn::Gt),
    (">=", CompareFn::Ge),
];

/// Words that are not names of variables or buffers unless in quotes, besides [`AMX_WORDS`] and [`CTA_WORDS`].
const KEYWORDS: [&str; 10] = ["let", "reg", "for", "if", "else", "prefetch", "true", "false", "to", "step"];

/// First words of the statements on matrix tiles.
pub(crate) const AMX_WORDS: [&str; 4] = ["amx_zero", "amx_load", "amx_dot", "amx_store"];

/// First words of the statements of CTAs.
pub(crate) const CTA_WORDS: [&str; 22] = [
    "barrier",
    "cluster_barrier",
    "cluster_arrive",
    "cluster_wait",
    "reuse_shared",
    "launch_dependents",
    "grid_dependency_wait",
    "wgmma_wait",
    "shuffle",
    "exceeds",
    "load_dsmem",
    "store_dsmem",
    "cp_async",
    "tma_load",
    "mbarrier_wait_full",
    "mbarrier_arrive_empty",
    "mbarrier_wait_empty",
    "cp_async_commit",
    "cp_async_wait",
    "ldmatrix",
    "mma",
    "wgmma",
];

/// True for a word that is not the name of a variable or buffer unless in quotes.
pub(crate) fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word) || AMX_WORDS.contains(&word) || CTA_WORDS.contains(&word)
}

/// The text of a program.
pub fn print_thread(program: &ThreadProgram) -> String {
    let mut printer = Printer {
        program,
        vars: FxHashMap::default(),
        buffers: Vec::new(),
        tiles: Vec::new(),
        tensor_maps: Vec::new(),
        uses: FxHashMap::default(),
        labels: FxHashMap::default(),
        text: String::new(),
    };
    let mut names = Names::default();
    printer.vars.insert(program.task, names.token(&program.exprs.var_info(program.task).name));
    if let Some(cta) = &program.cta {
        printer.vars.insert(cta.thread, names.token(&program.exprs.var_info(cta.thread).name));
    }
    printer.name_vars(&program.body, &mut names);
    let mut names = Names::default();
    printer.buffers = program.buffers.iter().map(|buffer| names.token(&buffer.name)).collect();
    let mut names = Names::default();
    printer.tiles = program.tiles.iter().map(|tile| names.token(&tile.name)).collect();
    let mut names = Names::default();
    printer.tensor_maps =
        program.tensor_maps.iter().map(|tensor_map| names.token(&tensor_map.name)).collect();
    printer.count(&program.body);
    printer.header();
    printer.list(&program.body, 1);
    printer.text.push_str("}\n");
    printer.text
}

/// The name of a type: `f32`, `f32x16`.
pub(crate) fn type_text(ty: Type) -> String {
    if ty.lanes == 1 { ty.dtype.to_string() } else { format!("{}x{}", ty.dtype, ty.lanes) }
}

/// Tokens for names that need not be unique.
#[derive(Default)]
struct Names {
    seen: FxHashMap<String, usize>,
}

impl Names {
    fn token(&mut self, name: &str) -> String {
        let count = self.seen.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let number = if *count == 1 { String::new() } else { format!(".{count}") };
        let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !is_keyword(name)
            && !name.starts_with("inf")
            && !name.starts_with("nan");
        match is_plain {
            true => name.to_owned() + &number,
            false => format!("\"{}\"{number}", escape(name)),
        }
    }
}

/// Text on one line, without quotes that end it.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\q")
}

/// Expressions that nest deeper are printed in parts, with labels.
pub(crate) const MAX_PRINTED_DEPTH: usize = 128;

struct Printer<'a> {
    program: &'a ThreadProgram,
    vars: FxHashMap<VarId, String>,
    buffers: Vec<String>,
    tiles: Vec<String>,
    tensor_maps: Vec<String>,
    /// Places that an expression occurs in.
    uses: FxHashMap<ExprId, usize>,
    /// Expressions that have been given a `%n`.
    labels: FxHashMap<ExprId, String>,
    text: String,
}

impl Printer<'_> {
    fn name_vars(&mut self, stmts: &[Stmt], names: &mut Names) {
        for stmt in stmts {
            let declared = match stmt {
                Stmt::Let(var, _) | Stmt::Register(var, _) | Stmt::For { var, .. } => Some(*var),
                Stmt::Cta(stmt) => stmt.declares(),
                _ => None,
            };
            if let Some(var) = declared {
                let name = &self.program.exprs.var_info(var).name;
                self.vars.entry(var).or_insert_with(|| names.token(name));
            }
            for body in stmt.bodies() {
                self.name_vars(body, names);
            }
        }
    }

    fn count(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            let mut pending = stmt.operands();
            while let Some(id) = pending.pop() {
                let uses = self.uses.entry(id).or_insert(0);
                *uses += 1;
                if *uses == 1 {
                    self.program.exprs.get(id).for_each_operand(|operand| pending.push(operand));
                }
            }
            for body in stmt.bodies() {
                self.count(body);
            }
        }
    }

    fn header(&mut self) {
        let program = self.program;
        let task = self.declaration(program.task);
        let mut text = format!("program {}, {} tasks {task}\n", program.name, program.tasks);
        if let Some(Cta { threads, thread, cluster, loads_ahead }) = &program.cta {
            let thread = self.declaration(*thread);
            let ahead = if *loads_ahead { ", loads ahead" } else { "" };
            text += &format!("  cta {threads} threads {thread}, clusters of {cluster}{ahead}\n");
        }
        for (number, (buffer, name)) in program.buffers.iter().zip(&self.buffers).enumerate() {
            let scope = match buffer.scope {
                Scope::Input => "input",
                Scope::Constant => "constant",
                Scope::Output => "output",
                Scope::Shared => "shared",
                Scope::ReusedShared => "reused_shared",
                Scope::Scratch => "scratch",
            };
            let is_streamed = program.evict_first.contains(&BufferId::new(number));
            let hint = if is_streamed { ", evict_first" } else { "" };
            text += &format!("  {scope} {name}: {}[{}]{hint}\n", buffer.dtype, buffer.elems);
        }
        for (tile, name) in program.tiles.iter().zip(&self.tiles) {
            text += &format!("  tile {name}: {}[{}, {}]\n", tile.dtype, tile.rows, tile.columns);
        }
        for (tensor_map, name) in program.tensor_maps.iter().zip(&self.tensor_maps) {
            let list = |counts: &[usize]| counts.iter().map(|count| format!(" {count}")).collect::<String>();
            let (buffer, offset, rows) = (self.buffer(tensor_map.buffer), tensor_map.offset, tensor_map.rows);
            let (extents, strides) = (list(&tensor_map.extents), list(&tensor_map.strides));
            text += &format!(
                "  tensor_map {name}: {buffer}[{offset}], extents{extents}, strides{strides}, {rows} rows\n"
            );
        }
        if program.mbarriers != Mbarriers::default() {
            let Mbarriers { full, loads, empty } = program.mbarriers;
            let empty = if empty > 0 { format!(", {empty} empty") } else { String::new() };
            text += &format!("  mbarriers {full} full of {loads} loads{empty}\n");
        }
        self.text = text + "{\n";
    }

    /// A variable with its type and what is known of it.
    fn declaration(&self, var: VarId) -> String {
        let info = self.program.exprs.var_info(var);
        let mut known: Vec<String> = info.range.iter().map(|(low, high)| format!("{low}..={high}")).collect();
        if info.multiple_of != 1 {
            known.push(format!("multiple {}", info.multiple_of));
        }
        let known = if known.is_empty() { String::new() } else { format!(" [{}]", known.join(", ")) };
        format!("{}: {}{known}", self.var(var), type_text(info.ty))
    }

    fn var(&self, var: VarId) -> String {
        // A variable that nothing declares is the validator's to report.
        self.vars.get(&var).cloned().unwrap_or_else(|| format!("\"{var}\""))
    }

    fn buffer(&self, buffer: BufferId) -> String {
        self.buffers.get(buffer.index()).cloned().unwrap_or_else(|| format!("\"{buffer}\""))
    }

    fn line(&mut self, depth: usize, text: &str) {
        writeln!(self.text, "{:1$}{text}", "", 2 * depth).expect("writes to a string");
    }

    fn list(&mut self, stmts: &[Stmt], depth: usize) {
        for stmt in stmts {
            self.stmt(stmt, depth);
        }
    }

    fn stmt(&mut self, stmt: &Stmt, depth: usize) {
        match stmt {
            Stmt::Comment(text) => self.line(depth, format!("# {}", escape(text)).trim_end()),
            Stmt::Let(var, value) => {
                let value = self.expr(*value, depth);
                let declaration = self.declaration(*var);
                self.line(depth, &format!("let {declaration} = {value}"));
            }
            Stmt::Register(var, value) => {
                let value = self.expr(*value, depth);
                let declaration = self.declaration(*var);
                self.line(depth, &format!("reg {declaration} = {value}"));
            }
            Stmt::Assign(var, value) => {
                let value = self.expr(*value, depth);
                let name = self.var(*var);
                self.line(depth, &format!("{name} = {value}"));
            }
            Stmt::Store { buffer, offset, value, mask } => {
                let (offset, value) = (self.expr(*offset, depth), self.expr(*value, depth));
                let mask = mask.map_or(String::new(), |mask| format!(" if {}", self.expr(mask, depth)));
                let name = self.buffer(*buffer);
                self.line(depth, &format!("{name}[{offset}{mask}] = {value}"));
            }
            Stmt::For { var, start, end, step, kind, body } => {
                let (start, end) = (self.expr(*start, depth), self.expr(*end, depth));
                let kind = match kind {
                    LoopKind::Serial => String::new(),
                    LoopKind::Unroll => " unroll".to_owned(),
                    LoopKind::UnrollBy(factor) => format!(" unroll {factor}"),
                };
                let declaration = self.declaration(*var);
                self.line(depth, &format!("for {declaration} = {start} to {end} step {step}{kind} {{"));
                self.list(body, depth + 1);
                self.line(depth, "}");
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.expr(*condition, depth);
                self.line(depth, &format!("if {condition} {{"));
                self.list(then, depth + 1);
                if !otherwise.is_empty() {
                    self.line(depth, "} else {");
                    self.list(otherwise, depth + 1);
                }
                self.line(depth, "}");
            }
            Stmt::Prefetch { buffer, offset } => {
                let offset = self.expr(*offset, depth);
                let name = self.buffer(*buffer);
                self.line(depth, &format!("prefetch {name}[{offset}]"));
            }
            Stmt::Amx(stmt) => {
                let text = self.tile_stmt(stmt, depth);
                self.line(depth, &text);
            }
            Stmt::Cta(stmt) => {
                let text = self.cta_stmt(stmt, depth);
                self.line(depth, &text);
            }
        }
    }

    fn tile_stmt(&mut self, stmt: &AmxStmt, depth: usize) -> String {
        let offset = stmt.offset().map_or(String::new(), |offset| self.expr(offset, depth));
        let buffer = stmt.buffer().map_or(String::new(), |buffer| self.buffer(buffer));
        match stmt {
            AmxStmt::Zero(tile) => format!("amx_zero {}", self.tile(*tile)),
            AmxStmt::Load { tile, stride, .. } => {
                format!("amx_load {}, {buffer}[{offset}], stride {stride}", self.tile(*tile))
            }
            AmxStmt::Dot { sum, a, b } => {
                format!("amx_dot {}, {}, {}", self.tile(*sum), self.tile(*a), self.tile(*b))
            }
            AmxStmt::Store { tile, stride, .. } => {
                format!("amx_store {}, {buffer}[{offset}], stride {stride}", self.tile(*tile))
            }
        }
    }

    fn cta_stmt(&mut self, stmt: &CtaStmt, depth: usize) -> String {
        let locations: Vec<String> = (stmt.locations().into_iter())
            .map(|location| {
                let offset = self.expr(location.offset, depth);
                format!("{}[{offset}]", self.buffer(location.buffer))
            })
            .collect();
        match (stmt, &locations[..]) {
            (CtaStmt::Barrier, _) => "barrier".to_owned(),
            (CtaStmt::ClusterBarrier, _) => "cluster_barrier".to_owned(),
            (CtaStmt::ClusterArrive, _) => "cluster_arrive".to_owned(),
            (CtaStmt::ClusterWait, _) => "cluster_wait".to_owned(),
            (CtaStmt::ReuseShared, _) => "reuse_shared".to_owned(),
            (CtaStmt::LaunchDependents, _) => "launch_dependents".to_owned(),
            (CtaStmt::GridDependencyWait, _) => "grid_dependency_wait".to_owned(),
            (CtaStmt::WgmmaWait, _) => "wgmma_wait".to_owned(),
            (CtaStmt::CpAsyncCommit, _) => "cp_async_commit".to_owned(),
            (CtaStmt::CpAsyncWait(groups), _) => format!("cp_async_wait {groups}"),
            (CtaStmt::Shuffle { var, value, with }, _) => {
                let value = self.expr(*value, depth);
                format!("shuffle {} = {value}, {with}", self.declaration(*var))
            }
            (CtaStmt::Exceeds { var, count, .. }, [sums, limits]) => {
                format!("exceeds {} = {sums}, {count}, {limits}", self.declaration(*var))
            }
            (CtaStmt::LoadDsmem { var, rank, .. }, [from]) => {
                let rank = self.expr(*rank, depth);
                format!("load_dsmem {} = {from}, {rank}", self.declaration(*var))
            }
            (CtaStmt::StoreDsmem { rank, value, .. }, [to]) => {
                format!("store_dsmem {to}, {} = {}", self.expr(*rank, depth), self.expr(*value, depth))
            }
            (CtaStmt::CpAsync { elems, real, mask, .. }, [to, from]) => {
                let real = real.map_or(String::new(), |real| format!(" real {}", self.expr(real, depth)));
                let mask = mask.map_or(String::new(), |mask| format!(", if {}", self.expr(mask, depth)));
                format!("cp_async {to}, {from}, {elems}{real}{mask}")
            }
            (CtaStmt::TmaLoad { map: tensor_map, at, mbarrier, .. }, [to]) => {
                let at: Vec<String> = at.iter().map(|&at| self.expr(at, depth)).collect();
                let tensor_map = self
                    .tensor_maps
                    .get(tensor_map.index())
                    .cloned()
                    .unwrap_or_else(|| format!("\"{}\"", tensor_map.0));
                format!("tma_load {to}, {tensor_map}[{}], {}", at.join(", "), self.expr(*mbarrier, depth))
            }
            (
                CtaStmt::MbarrierWaitFull { mbarrier: number, phase }
                | CtaStmt::MbarrierArriveEmpty { mbarrier: number, phase }
                | CtaStmt::MbarrierWaitEmpty { mbarrier: number, phase },
                _,
            ) => {
                let word = match stmt {
                    CtaStmt::MbarrierWaitFull { .. } => "mbarrier_wait_full",
                    CtaStmt::MbarrierArriveEmpty { .. } => "mbarrier_arrive_empty",
                    _ => "mbarrier_wait_empty",
                };
                format!("{word} {}, {}", self.expr(*number, depth), self.expr(*phase, depth))
            }
            (CtaStmt::Ldmatrix { matrices, transposed, .. }, [to, from]) => {
                let transposed = if *transposed { ", transposed" } else { "" };
                format!("ldmatrix {to}, {from}, {matrices}{transposed}")
            }
            (CtaStmt::Wgmma { ty: product, n: columns, k: terms, transposed, is_async, .. }, [sum, a, b]) => {
                let transposed = if *transposed { ", transposed" } else { "" };
                let is_async = if *is_async { ", async" } else { "" };
                let name = product.name();
                format!("wgmma {name}, {sum}, {a}, {b}, {columns}, {terms}{transposed}{is_async}")
            }
            (CtaStmt::Mma { ty: product, .. }, [sum, a, b]) => {
                format!("mma {}, {sum}, {a}, {b}", product.name())
            }
            _ => unreachable!("each statement has its number of places"),
        }
    }

    fn tile(&self, tile: TileId) -> String {
        self.tiles.get(tile.index()).cloned().unwrap_or_else(|| format!("\"{}\"", tile.0))
    }

    /// The text of an expression; labels for shared or deep parts of it are printed first.
    fn expr(&mut self, root: ExprId, depth: usize) -> String {
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
            Expr::Compare(f, a, b) => {
                let (operator, _) =
                    COMPARISONS.iter().find(|(_, g)| g == f).expect("every comparison is infix");
                infix(operator, a, b)
            }
            Expr::Select(c, a, b) => format!("select({}, {}, {})", text(c), text(a), text(b)),
            Expr::Cast(dtype, a) => format!("{dtype}({})", text(a)),
            Expr::IsNan(a) => format!("is_nan({})", text(a)),
            Expr::IsInf(a) => format!("is_inf({})", text(a)),
            Expr::Fma(a, b, c) => format!("fma({}, {}, {})", text(a), text(b), text(c)),
            Expr::DotPairs(a, b, c) => format!("dot_pairs({}, {}, {})", text(a), text(b), text(c)),
            Expr::Interleave(a, b) => format!("interleave({}, {})", text(a), text(b)),
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
pub(crate) fn const_text(c: Const) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random_program;

    #[test]
    fn random_programs_are_read_back() {
        for seed in 0..150 {
            let (program, _) = random_program("k", seed);
            let text = program.to_string();
            let parsed = parse_thread(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
            assert_eq!(parsed.to_string(), text, "seed {seed}");
            assert_eq!(parsed.buffers, program.buffers);
            assert_eq!(crate::validate_thread(&parsed), Vec::<String>::new());
        }
    }

    #[test]
    fn deep_expressions_are_printed_in_parts() {
        let mut body = "  let v: f32 = 1.0\n  %0 = (v + v)\n".to_owned();
        (0..1000).for_each(|at| body += &format!("  %{} = exp(%{at})\n", at + 1));
        let text = format!("program k, 1 tasks task: i64\n{{\n{body}  let w: f32 = %1000\n}}\n");
        let printed = parse_thread(&text).unwrap().to_string();
        assert_eq!(printed.lines().count(), 5 + 1001 / MAX_PRINTED_DEPTH);
        assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
    }

    #[test]
    fn the_example_is_canonical() {
        let example = include_str!("text.rs")
            .lines()
            .skip_while(|line| *line != "//! ```text")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.strip_prefix("//! ").expect("a doc line").to_owned() + "\n")
            .collect::<String>();
        let program = parse_thread(&example).unwrap();
        assert_eq!(program.to_string(), example);
        assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
    }

    #[test]
    fn names_and_constants_survive() {
        let text = "program k, 1 tasks \"let\": i64 [0..=0]\n  scratch \"a b\\q\\\\\": f32[4]\n{\n  # two\\nlines\n  let x: f32 = nan\n  \
                    let x.2: f64 = -inf_f64\n  let \"inf\": f32 = f32#7fc00001\n  let y: i64 = -9223372036854775808\n  \
                    let z: f16x4 = splat(0.5_f16; 4)\n  \"a b\\q\\\\\"[0] = -0.0\n}\n";
        let program = parse_thread(text).unwrap();
        assert_eq!(program.to_string(), text);
        assert_eq!(program.buffers[0].name, "a b\"\\");
    }

    #[test]
    fn statements_of_teams_are_read_back() {
        let text = "program k, 2 tasks task: i64 [0..=1]\n  cta 128 threads thread: i64 [0..=127], clusters of 2\n  \
                    input x: f16[8192]\n  shared s: f16[8192]\n  shared g: f32[128]\n  reused_shared r: f16[64]\n  scratch sums: f32[4]\n  \
                    scratch factors: f16[12]\n{\n  \
                    grid_dependency_wait\n  %0 = (thread * 8)\n  cp_async s[%0], x[%0], 8\n  \
                    cp_async s[%0], x[0], 8, if (thread < 32)\n  cp_async_commit\n  cp_async_wait 1\n  barrier\n  \
                    ldmatrix factors[0], s[%0], 4\n  \
                    ldmatrix factors[8], s[%0], 2, transposed\n  \
                    mma f16, sums[0], factors[0], factors[8]\n  \
                    wgmma f16, sums[0], s[0], s[4096], 8, 64\n  \
                    wgmma f16, sums[0], factors[0], s[4096], 64, 16, transposed\n  launch_dependents\n  \
                    wgmma f16, sums[0], s[0], s[4096], 8, 64, async\n  \
                    wgmma f16, sums[0], factors[0], s[4096], 64, 16, transposed, async\n  wgmma_wait\n  cluster_barrier\n  \
                    load_dsmem other: f16 = s[thread], (1 - task)\n  shuffle v: f16 = other, 16\n  reuse_shared\n  \
                    r[0] = v\n  cluster_arrive\n  cluster_wait\n  store_dsmem g[thread], task = 1.0\n}\n";
        let program = parse_thread(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(program.to_string(), text);
        assert_eq!(crate::validate_thread(&program), Vec::<String>::new());
    }
}
