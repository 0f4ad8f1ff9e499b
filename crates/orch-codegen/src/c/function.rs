//! One thread program as C functions: statements, blocks, and the naming of shared subexpressions.
//!
//! An expression that is used more than once becomes a local constant the first time it is needed. Pure arithmetic
//! goes to the outermost block where its variables are known, but never out of a branch; what depends on registers
//! or memory stays before the statement that needs it, and is forgotten when a register it reads is assigned or a
//! buffer it loads from is stored to. Statements keep their order.

use super::access::MemoryAccess;
use super::expression::{CValue, parens};
use super::helper::{CFile, strip_parens};
use super::tile;
use super::types::{CType, scalar_name};
use crate::facts::{self, Changes, ExprFacts, TASK_DEPTH};
use crate::names::Names;
use orch_compute::{Bounds, Expr, ExprId, VarId};
use orch_ir::{BinaryFn, DType};
use orch_thread::{AmxStmt, LoopKind, Scope, Stmt, ThreadProgram};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt::Write;

/// An unnamed expression's text is at most about this long, so that lines stay readable.
const LONG_TEXT: usize = 90;

/// State of the emission of one program.
pub struct FunctionEmitter<'a> {
    pub(super) program: &'a ThreadProgram,
    pub(super) unit: &'a mut CFile,
    pub(super) facts: ExprFacts,
    pub(super) bounds: Bounds,
    /// C names of the buffers.
    pub(super) buffers: Vec<String>,
    /// What the variables in scope are called.
    vars: FxHashMap<VarId, CValue>,
    names: Names,
    blocks: Vec<Block>,
    /// Texts of the current statement's unnamed expressions.
    texts: FxHashMap<ExprId, CValue>,
}

/// An open block of the function.
#[derive(Default)]
struct Block {
    lines: String,
    locals: FxHashMap<ExprId, Local>,
    /// True if the block may not run although the block around it does: nothing moves out of it.
    is_branch: bool,
}

/// A named subexpression.
struct Local {
    value: CValue,
    reads: Changes,
}

/// The C functions of a program whose loops are unrolled.
pub fn emit(program: &ThreadProgram, unit: &mut CFile) -> String {
    let mut names = Names::default();
    let task = names.fresh(&program.exprs.var_info(program.task).name);
    let buffers = program.buffers.iter().map(|buffer| names.fresh(&buffer.name)).collect();
    let mut emitter = FunctionEmitter {
        program,
        unit,
        facts: ExprFacts::new(program),
        bounds: Bounds::new(),
        buffers,
        vars: FxHashMap::default(),
        names,
        blocks: vec![Block::default(), Block::default()],
        texts: FxHashMap::default(),
    };
    debug_assert_eq!(emitter.blocks.len(), TASK_DEPTH + 1);
    let ty = CType::Num(program.exprs.var_info(program.task).ty.dtype, 1);
    emitter.vars.insert(program.task, CValue { text: task.clone(), ty });
    emitter.list(&program.body);
    let body = emitter.blocks.pop().expect("the task's block").lines;
    let head = emitter.blocks.pop().expect("the function's block").lines;
    emitter.function(&task, &head, &body)
}

impl FunctionEmitter<'_> {
    /// The worker function and the function of the ABI that unpacks its arguments.
    fn function(&self, task: &str, head: &str, body: &str) -> String {
        let name = &self.program.name;
        let (mut params, mut args) = (String::new(), String::new());
        let mut scratch_offset = 0;
        for (index, (buffer, c_name)) in self.program.buffers.iter().zip(&self.buffers).enumerate() {
            let ty = scalar_name(buffer.dtype);
            let constant = if buffer.scope.is_read_only() { "const " } else { "" };
            write!(params, ", {constant}{ty} *restrict {c_name}").expect("writes to a string");
            if buffer.scope == Scope::Scratch {
                write!(args, ",\n        ({ty} *)((char *)scratch + {scratch_offset})")
                    .expect("writes to a string");
                scratch_offset += buffer.bytes().next_multiple_of(64);
            } else {
                write!(args, ",\n        ({constant}{ty} *)buffers[{index}]").expect("writes to a string");
            }
        }
        format!(
            "/* {tasks} tasks. {summary} */\n\
             static __attribute__((noinline)) void {name}_tasks(int64_t task_begin, int64_t task_end{params}) {{\n\
             {head}    for (int64_t {task} = task_begin; {task} < task_end; {task}++) {{\n{body}    }}\n}}\n\n\
             void {name}(void *const *buffers, int64_t task_begin, int64_t task_end, void *scratch) {{\n    \
             (void)buffers, (void)scratch;\n\
             {configure}    {name}_tasks(task_begin, task_end{args});\n{release}}}\n",
            tasks = self.program.tasks,
            configure = tile::configure(self.program),
            release = tile::release(self.program),
            summary = self.summary(),
        )
    }

    /// The buffers in words.
    fn summary(&self) -> String {
        let buffers: Vec<String> = (self.program.buffers.iter().zip(&self.buffers))
            .map(|(buffer, name)| {
                let scope = match buffer.scope {
                    Scope::Input | Scope::Constant => "reads",
                    Scope::Output => "writes",
                    Scope::Shared | Scope::ReusedShared | Scope::Scratch => "scratch",
                };
                format!("{scope} {name}: {} x {}", buffer.elems, buffer.dtype)
            })
            .collect();
        buffers.join("; ")
    }

    fn list(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            self.texts.clear();
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Comment(text) => {
                for line in text.lines() {
                    self.line(&format!("/* {} */", line.replace("*/", "* /")));
                }
            }
            Stmt::Let(var, root) => {
                let value = self.eval_unnamed(*root);
                self.declare("const ", *var, value);
                self.remember(*root, *var);
            }
            Stmt::Register(var, value) => {
                let value = self.eval_root(*value);
                self.declare("", *var, value);
            }
            Stmt::Assign(var, value) => {
                let value = self.eval_root(*value);
                let target = self.variable(*var);
                let value = self.flags_as(value, target.ty);
                self.line(&format!("{} = {};", target.text, strip_parens(&value.text)));
                self.forget(&Changes { registers: vec![*var], buffers: vec![] });
            }
            Stmt::Store { buffer, offset, value, mask } => {
                let address = facts::address(&self.program.exprs, *offset);
                for root in facts::roots(&self.program.exprs, stmt) {
                    self.eval_root(root);
                }
                let mask = mask.map(|mask| self.value_of(mask));
                let value = self.value_of(*value);
                let text = self.store(&MemoryAccess { buffer: *buffer, address, mask }, value);
                for line in text.lines() {
                    self.line(&format!("{line};"));
                }
                self.forget(&Changes { registers: vec![], buffers: vec![*buffer] });
            }
            Stmt::For { var, start, end, step, kind, body } => {
                self.for_loop(*var, (*start, *end, *step), *kind, body)
            }
            Stmt::If { condition, then, otherwise } => self.branch(*condition, then, otherwise),
            Stmt::Prefetch { buffer, offset } => {
                let offset = self.eval(*offset);
                let name = &self.buffers[buffer.index()];
                self.line(&format!("__builtin_prefetch({name} + {}, 0, 2);", offset.text));
            }
            Stmt::Cta(_) => unreachable!("programs of CTAs are for GPUs"),
            Stmt::Amx(stmt) => {
                let offset = stmt.offset().map(|offset| self.eval(offset).text);
                for line in tile::lines(self.program, &self.buffers, stmt, offset.as_deref()) {
                    self.line(&line);
                }
                if let AmxStmt::Store { buffer, .. } = stmt {
                    self.forget(&Changes { registers: vec![], buffers: vec![*buffer] });
                }
            }
        }
    }

    fn for_loop(
        &mut self,
        var: VarId,
        (start, end, step): (ExprId, ExprId, i64),
        kind: LoopKind,
        body: &[Stmt],
    ) {
        let start = self.eval(start);
        let bound = self.eval(end);
        // The bound is evaluated once.
        let bound = match self.facts.is_volatile(end) {
            true => self.name_at(self.blocks.len() - 1, bound),
            false => bound,
        };
        self.forget(&Changes::of(body));
        let info = self.program.exprs.var_info(var);
        let ty = scalar_name(info.ty.dtype);
        let name = self.names.fresh(&info.name.clone());
        self.vars.insert(var, CValue { text: name.clone(), ty: CType::Num(info.ty.dtype, 1) });
        let lines = self.block(body, IsBranch::No);
        match kind {
            LoopKind::Serial => {}
            LoopKind::UnrollBy(factor) => self.line(&format!("#pragma GCC unroll {factor}")),
            LoopKind::Unroll => panic!("the pass `unroll` has not run"),
        }
        let increment = if step == 1 { format!("{name}++") } else { format!("{name} += {step}") };
        let (start, bound) = (strip_parens(&start.text).to_owned(), bound.text);
        self.line(&format!("for ({ty} {name} = {start}; {name} < {bound}; {increment}) {{"));
        self.raw(&lines);
        self.line("}");
    }

    fn branch(&mut self, condition: ExprId, then: &[Stmt], otherwise: &[Stmt]) {
        let condition = self.eval(condition);
        let then_lines = self.block(then, IsBranch::Yes);
        let otherwise_lines = self.block(otherwise, IsBranch::Yes);
        self.line(&format!("if {} {{", parens(&condition.text)));
        self.raw(&then_lines);
        if !otherwise.is_empty() {
            self.line("} else {");
            self.raw(&otherwise_lines);
        }
        self.line("}");
        self.forget(&Changes::of(then));
        self.forget(&Changes::of(otherwise));
    }

    /// The lines of a nested block.
    fn block(&mut self, stmts: &[Stmt], is_branch: IsBranch) -> String {
        self.blocks.push(Block { is_branch: is_branch == IsBranch::Yes, ..Block::default() });
        self.list(stmts);
        self.texts.clear();
        self.blocks.pop().expect("pushed above").lines
    }

    /// Declares a variable with its first value.
    fn declare(&mut self, qualifier: &str, var: VarId, value: CValue) {
        let name = self.names.fresh(&self.program.exprs.var_info(var).name);
        let ty = self.unit.type_name(value.ty);
        self.line(&format!("{qualifier}{ty} {name} = {};", strip_parens(&value.text)));
        self.vars.insert(var, CValue { text: name, ty: value.ty });
    }

    /// A variable's name and type.
    pub(super) fn variable(&mut self, var: VarId) -> CValue {
        self.vars.get(&var).cloned().expect("variables are declared before use; the validator reports it")
    }

    /// The text of an expression that has been evaluated for the current statement.
    pub(super) fn value_of(&mut self, id: ExprId) -> CValue {
        match self.texts.get(&id) {
            Some(value) => value.clone(),
            None => self.eval(id),
        }
    }

    /// The text of an expression that is a part of a line: named if it is used elsewhere too, or long.
    fn eval(&mut self, root: ExprId) -> CValue {
        let value = self.eval_root(root);
        let is_long = value.text.len() > LONG_TEXT && self.local(root).is_none();
        if is_long { self.named(root, value) } else { value }
    }

    /// The text of an expression that is a line of its own: named only if it is used elsewhere too.
    fn eval_root(&mut self, root: ExprId) -> CValue {
        let value = self.eval_unnamed(root);
        let is_named = self.local(root).is_some() || !self.is_shared(root);
        if is_named { value } else { self.named(root, value) }
    }

    /// The text of an expression; shared parts of it are named first.
    fn eval_unnamed(&mut self, root: ExprId) -> CValue {
        let mut pending = vec![root];
        let mut needed = BTreeSet::new();
        while let Some(id) = pending.pop() {
            if self.texts.contains_key(&id) || needed.contains(&id) {
                continue;
            }
            if let Some(value) = self.local(id) {
                self.texts.insert(id, value);
                continue;
            }
            needed.insert(id);
            pending.extend(facts::operands(&self.program.exprs, id));
        }
        for id in needed {
            let mut value = self.node(id);
            if id != root && (self.is_shared(id) || value.text.len() > LONG_TEXT) {
                value = self.named(id, value);
            }
            self.texts.insert(id, value);
        }
        self.texts[&root].clone()
    }

    /// The name of an expression that has one.
    fn local(&self, id: ExprId) -> Option<CValue> {
        self.blocks.iter().rev().find_map(|block| block.locals.get(&id)).map(|local| local.value.clone())
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
    fn remember(&mut self, id: ExprId, var: VarId) {
        if self.local(id).is_some() || matches!(self.program.exprs.get(id), Expr::Const(_)) {
            return;
        }
        let value = self.variable(var);
        let reads = self.dependencies(id);
        self.blocks.last_mut().expect("a block is open").locals.insert(id, Local { value, reads });
    }

    /// What makes the value of an expression stale.
    fn dependencies(&self, id: ExprId) -> Changes {
        match self.facts.is_volatile(id) {
            true => Changes::that_affect(self.program, id),
            false => Changes::default(),
        }
    }

    /// Names an expression in the block where it belongs.
    fn named(&mut self, id: ExprId, value: CValue) -> CValue {
        let innermost = self.blocks.len() - 1;
        let branch = self.blocks.iter().rposition(|block| block.is_branch).unwrap_or(0);
        let depth = match self.facts.is_volatile(id) {
            true => innermost,
            false => self.facts.home(id).max(branch),
        };
        let reads = self.dependencies(id);
        let value = self.name_at(depth, value);
        self.blocks[depth].locals.insert(id, Local { value: value.clone(), reads });
        self.texts.insert(id, value.clone());
        value
    }

    /// Declares a constant in an open block.
    fn name_at(&mut self, depth: usize, value: CValue) -> CValue {
        let name = self.names.numbered("t");
        let ty = self.unit.type_name(value.ty);
        self.line_at(depth, &format!("const {ty} {name} = {};", strip_parens(&value.text)));
        CValue { text: name, ty: value.ty }
    }

    /// Forgets named values that the changes make stale.
    fn forget(&mut self, changes: &Changes) {
        for block in &mut self.blocks {
            block.locals.retain(|_, local| !local.reads.intersects(changes));
        }
        self.texts.clear();
    }

    fn line(&mut self, text: &str) {
        self.line_at(self.blocks.len() - 1, text);
    }

    fn line_at(&mut self, depth: usize, text: &str) {
        let indent = 4 * (depth + 1);
        writeln!(self.blocks[depth].lines, "{:indent$}{text}", "").expect("writes to a string");
    }

    fn raw(&mut self, lines: &str) {
        self.blocks.last_mut().expect("a block is open").lines.push_str(lines);
    }
}

/// Whether a block is one side of a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsBranch {
    Yes,
    No,
}
