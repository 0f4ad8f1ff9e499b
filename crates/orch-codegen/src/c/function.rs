//! One thread program as C functions: their heads, statements and blocks. Statements keep their order.

use super::access::MemoryAccess;
use super::emitter::{CValue, FunctionEmitter};
use super::helper::CFile;
use super::parens::{parens, strip_parens};
use super::tile;
use super::types::{CType, scalar_name};
use crate::facts::{self, Changes, ExprFacts};
use crate::names::Names;
use crate::scopes::{BlockKind, Scopes};
use orch_compute::{Bounds, ExprId, VarId};
use orch_thread::{AmxStmt, LoopKind, Scope, Stmt, ThreadProgram};
use std::fmt::Write;

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
        scopes: Scopes::new(names),
    };
    let first = program.groups.map(|groups| {
        let name = emitter.scopes.fresh(&program.exprs.var_info(groups.first).name);
        let ty = CType::Num(program.exprs.var_info(groups.first).ty.dtype, 1);
        emitter.scopes.declare(groups.first, CValue { text: name.clone(), ty });
        FirstOfGroup { name, tasks: groups.tasks }
    });
    let body = emitter.loop_body(program.task, task.clone(), &program.body);
    let head = emitter.scopes.close();
    emitter.function(&task, first.as_ref(), &head, &body)
}

/// The C variable that is 1 in a worker's first task of a group of so many.
struct FirstOfGroup {
    name: String,
    tasks: usize,
}

impl FunctionEmitter<'_> {
    /// The worker function and the function of the ABI that unpacks its arguments.
    fn function(&self, task: &str, first: Option<&FirstOfGroup>, head: &str, body: &str) -> String {
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
        let (group, before) = match first {
            None => (String::new(), ""),
            Some(FirstOfGroup { name, tasks }) => {
                params.insert_str(0, ", int64_t task_before");
                let first = format!(
                    "        const int64_t {name} = task_before < 0 || task_before / {tasks} != {task} / {tasks};\n        \
                     task_before = {task};\n"
                );
                (first, ", task_before")
            }
        };
        format!(
            "/* {tasks} tasks. {summary} */\n\
             static __attribute__((noinline)) void {name}_tasks(int64_t task_begin, int64_t task_end{params}) {{\n\
             {head}    for (int64_t {task} = task_begin; {task} < task_end; {task}++) {{\n{group}{body}    }}\n}}\n\n\
             void {name}(void *const *buffers, int64_t task_begin, int64_t task_end, void *scratch, int64_t task_before) {{\n    \
             (void)buffers, (void)scratch, (void)task_before;\n\
             {configure}    {name}_tasks(task_begin, task_end{before}{args});\n{release}}}\n",
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
                    Scope::Updated => "updates",
                    Scope::Shared | Scope::ReusedShared | Scope::Scratch => "scratch",
                };
                format!("{scope} {name}: {} x {}", buffer.elems, buffer.dtype)
            })
            .collect();
        buffers.join("; ")
    }

    fn list(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            self.scopes.start_statement();
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
                self.scopes.forget(&Changes { registers: vec![*var], buffers: vec![] });
            }
            Stmt::Store { buffer, offset, value, mask } => {
                let address = facts::address(&self.program.exprs, *offset);
                for root in facts::roots(&self.program.exprs, stmt) {
                    self.eval_root(root);
                }
                let mask = facts::mask(&self.program.exprs, *mask);
                let value = self.value_of(*value);
                let text = self.store(&MemoryAccess { buffer: *buffer, address, mask }, value);
                self.line(&format!("{text};"));
                self.scopes.forget(&Changes { registers: vec![], buffers: vec![*buffer] });
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
                    self.scopes.forget(&Changes { registers: vec![], buffers: vec![*buffer] });
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
            true => self.constant(&bound),
            false => bound,
        };
        self.scopes.forget(&Changes::of(body));
        let info = self.program.exprs.var_info(var);
        let ty = scalar_name(info.ty.dtype);
        let name = self.scopes.fresh(&info.name);
        let lines = self.loop_body(var, name.clone(), body);
        match kind {
            LoopKind::Serial => {}
            LoopKind::UnrollBy(factor) => self.line(&format!("#pragma GCC unroll {factor}")),
            LoopKind::Unroll => panic!("the pass `unroll` has not run"),
        }
        let increment = if step == 1 { format!("{name}++") } else { format!("{name} += {step}") };
        let (start, bound) = (strip_parens(&start.text).to_owned(), bound.text);
        self.line(&format!("for ({ty} {name} = {start}; {name} < {bound}; {increment}) {{"));
        self.scopes.lines(&lines);
        self.line("}");
    }

    fn branch(&mut self, condition: ExprId, then: &[Stmt], otherwise: &[Stmt]) {
        let condition = self.eval(condition);
        let then_lines = self.branch_body(then);
        let otherwise_lines = self.branch_body(otherwise);
        self.line(&format!("if {} {{", parens(&condition.text)));
        self.scopes.lines(&then_lines);
        if !otherwise.is_empty() {
            self.line("} else {");
            self.scopes.lines(&otherwise_lines);
        }
        self.line("}");
        self.scopes.forget(&Changes::of(then));
        self.scopes.forget(&Changes::of(otherwise));
    }

    /// The lines of the body of a loop.
    fn loop_body(&mut self, var: VarId, name: String, stmts: &[Stmt]) -> String {
        let ty = CType::Num(self.program.exprs.var_info(var).ty.dtype, 1);
        self.scopes.open(BlockKind::Plain);
        self.scopes.declare(var, CValue { text: name, ty });
        self.list(stmts);
        self.scopes.close()
    }

    /// The lines of one side of a condition.
    fn branch_body(&mut self, stmts: &[Stmt]) -> String {
        self.scopes.open(BlockKind::Branch);
        self.list(stmts);
        self.scopes.close()
    }

    /// Declares a variable with its first value.
    fn declare(&mut self, qualifier: &str, var: VarId, value: CValue) {
        let name = self.scopes.fresh(&self.program.exprs.var_info(var).name);
        let ty = self.unit.type_name(value.ty);
        self.line(&format!("{qualifier}{ty} {name} = {};", strip_parens(&value.text)));
        self.scopes.declare(var, CValue { text: name, ty: value.ty });
    }
}
