//! Prints thread programs ([`crate::text`]).

mod cta;
mod expr;

use crate::amx::{AmxStmt, TileId};
use crate::cta::Cta;
use crate::program::{LoopKind, Scope, Stmt, TaskGroups, ThreadProgram};
use crate::text::words::{is_keyword, type_text};
use crate::tma::Mbarriers;
use orch_compute::expr::{BufferId, ExprId, VarId};
use rustc_hash::FxHashMap;
use std::fmt::{self, Write};

impl fmt::Display for ThreadProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_thread(self))
    }
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
    if let Some(groups) = program.groups {
        printer.vars.insert(groups.first, names.token(&program.exprs.var_info(groups.first).name));
    }
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
pub(crate) struct Printer<'a> {
    program: &'a ThreadProgram,
    vars: FxHashMap<VarId, String>,
    buffers: Vec<String>,
    tiles: Vec<String>,
    tensor_maps: Vec<String>,
    /// How often an expression occurs.
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
        if program.phases != 1 {
            text += &format!("  phases {}\n", program.phases);
        }
        if let Some(TaskGroups { tasks, first }) = program.groups {
            text += &format!("  groups of {tasks} {}\n", self.declaration(first));
        }
        if let Some(Cta { threads, thread, cluster, barrier_group, loads_ahead }) = &program.cta {
            let thread = self.declaration(*thread);
            let ahead = if *loads_ahead { ", loads ahead" } else { "" };
            let groups = match barrier_group {
                1 => String::new(),
                ctas => format!(", barrier groups of {ctas}"),
            };
            text += &format!("  cta {threads} threads {thread}, clusters of {cluster}{groups}{ahead}\n");
        }
        for (number, (buffer, name)) in program.buffers.iter().zip(&self.buffers).enumerate() {
            let scope = match buffer.scope {
                Scope::Input => "input",
                Scope::Constant => "constant",
                Scope::Output => "output",
                Scope::Updated => "updated",
                Scope::Shared => "shared",
                Scope::ReusedShared => "reused_shared",
                Scope::Scratch => "scratch",
            };
            let is_evict_first = program.evict_first.contains(&BufferId::new(number));
            let hint = if is_evict_first { ", evict_first" } else { "" };
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

    /// `name: type [low..=high, multiple n]`.
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
        // The validator reports a variable that nothing declares.
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
            AmxStmt::Dot { acc, a, b } => {
                format!("amx_dot {}, {}, {}", self.tile(*acc), self.tile(*a), self.tile(*b))
            }
            AmxStmt::Store { tile, stride, .. } => {
                format!("amx_store {}, {buffer}[{offset}], stride {stride}", self.tile(*tile))
            }
        }
    }
    fn tile(&self, tile: TileId) -> String {
        self.tiles.get(tile.index()).cloned().unwrap_or_else(|| format!("\"{}\"", tile.0))
    }
}
