//! One thread program as a kernel: its head, its buffers, and statements.
//!
//! An expression that is used more than once and does not depend on registers or memory is named in the block where it
//! is first needed; NVRTC moves it out of loops. One that does is named for the statement that needs it.

use super::cta::WgmmaFunction;
use super::expression::CppValue;
use super::in_flight::InFlightWgmma;
use super::types::{CppType, INT, element_name};
use crate::facts::ExprFacts;
use crate::names::Names;
use orch_compute::{Bounds, BufferId, ExprId, VarId};
use orch_ir::DType;
use orch_thread::cta::WARP;
use orch_thread::{CtaStmt, GpuTarget, LoopKind, Scope, Stmt, ThreadProgram};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;

/// An unnamed expression's text is at most about this long, so that lines stay readable.
const LONG_TEXT: usize = 120;

/// State of the emission of one program.
pub struct Emitter<'a> {
    pub(super) program: &'a ThreadProgram,
    pub(super) facts: ExprFacts,
    pub(super) bounds: Bounds,
    /// C++ names of the buffers.
    pub(super) buffers: Vec<String>,
    /// Scratch of 16-bit elements that is packed in pairs, as mma fragments are.
    pub(super) fragments: FxHashSet<BufferId>,
    /// Names of the tensor maps, of the mbarriers, and of the thread's number.
    pub(super) tensor_maps: Vec<String>,
    pub(super) mbarriers: String,
    thread: String,
    /// Name of the flag of the warp that issues TMA loads: uniform in the warp, as the compiler can see.
    pub(super) copies: String,
    /// Swizzled tiles, which wgmma reads from shared memory.
    pub(super) tiles: FxHashSet<BufferId>,
    /// Whether threads write such tiles: a proxy fence must make the writes visible to wgmma.
    pub(super) needs_proxy_fence: bool,
    /// Whether the kernel takes part in programmatic dependent launch.
    pub(super) uses_pdl: bool,
    /// The wgmma that may be in flight.
    pub(super) in_flight: Option<InFlightWgmma>,
    vars: FxHashMap<VarId, CppValue>,
    names: Names,
    blocks: Vec<Block>,
    /// Values of the current statement that have no name, or a name for it alone.
    texts: FxHashMap<ExprId, CppValue>,
}

/// An open block.
#[derive(Default)]
struct Block {
    lines: String,
    named: FxHashMap<ExprId, CppValue>,
}

/// The kernel of a program.
pub fn emit(program: &ThreadProgram, target: &GpuTarget) -> String {
    let cta = program.cta.as_ref().expect("a kernel's program has a cta");
    let mut names = Names::default();
    let task = names.fresh(&program.exprs.var_info(program.task).name);
    let thread = names.fresh(&program.exprs.var_info(cta.thread).name);
    let buffers = program.buffers.iter().map(|buffer| names.fresh(&buffer.name)).collect();
    let tensor_maps = program.tensor_maps.iter().map(|tensor_map| names.fresh(&tensor_map.name)).collect();
    let mbarriers = names.fresh("mbarriers");
    let copies = names.fresh("copies");
    let tiles = tiles_of(program);
    let mut emitter = Emitter {
        program,
        facts: ExprFacts::new(program),
        bounds: Bounds::new(),
        buffers,
        fragments: super::fragments::of(program),
        tensor_maps,
        mbarriers,
        thread: thread.clone(),
        copies,
        needs_proxy_fence: writes_some(program, &tiles),
        tiles,
        uses_pdl: target.has_pdl,
        in_flight: None,
        vars: FxHashMap::default(),
        names,
        blocks: vec![Block::default()],
        texts: FxHashMap::default(),
    };
    let index = |text: String| CppValue { text, ty: CppType { element: INT, lanes: 1 } };
    emitter.vars.insert(program.task, index(task.clone()));
    emitter.vars.insert(cta.thread, index(thread.clone()));
    emitter.declare_buffers();
    emitter.line(&format!("const int {task} = blockIdx.x;"));
    emitter.line(&format!("const int {thread} = threadIdx.x;"));
    emitter.init_mbarriers();
    if target.has_pdl {
        if !cta_stmts(&program.body).any(|stmt| *stmt == CtaStmt::LaunchDependents) {
            emitter.line("o_launch_dependents();");
        }
        if !program.has_grid_dependency_wait() {
            emitter.wait_for_inputs();
        }
    }
    emitter.list(&program.body);
    let body = emitter.blocks.pop().expect("the kernel's block").lines;
    let cluster =
        if cta.cluster > 1 { format!(" __cluster_dims__({}, 1, 1)", cta.cluster) } else { String::new() };
    // Without the second bound the compiler saves registers by loading late, only four or five values at a time.
    let resident = if cta.loads_ahead { ", 1" } else { "" };
    format!(
        "/* {tasks} tasks. {summary} */\nextern \"C\" __global__ void{cluster} __launch_bounds__({threads}{resident}) {name}({params}) {{\n\
         {body}}}\n",
        tasks = program.tasks,
        threads = cta.threads,
        summary = emitter.summary(),
        name = program.name,
        params = emitter.params(),
    )
}

/// The wgmma functions that a program calls, each once.
pub fn wgmma_functions(program: &ThreadProgram) -> Vec<WgmmaFunction> {
    let mut found: Vec<WgmmaFunction> =
        cta_stmts(&program.body).filter_map(|stmt| WgmmaFunction::of(program, stmt)).collect();
    found.sort_unstable_by_key(WgmmaFunction::name);
    found.dedup();
    found
}

/// The buffers of shared memory that wgmma reads.
fn tiles_of(program: &ThreadProgram) -> FxHashSet<BufferId> {
    let factors = cta_stmts(&program.body).filter_map(|stmt| match stmt {
        CtaStmt::Wgmma { a, b, .. } => Some([a.buffer, b.buffer]),
        _ => None,
    });
    factors.flatten().filter(|&buffer| program.buffer(buffer).scope.is_shared()).collect()
}

/// True if threads write one of these buffers.
fn writes_some(program: &ThreadProgram, buffers: &FxHashSet<BufferId>) -> bool {
    stmts(&program.body).any(|stmt| match stmt {
        Stmt::Store { buffer, .. } => buffers.contains(buffer),
        Stmt::Cta(CtaStmt::CpAsync { to, .. }) => buffers.contains(&to.buffer),
        _ => false,
    })
}

/// The statements of a list, inner ones included.
fn stmts(list: &[Stmt]) -> Box<dyn Iterator<Item = &Stmt> + '_> {
    Box::new(list.iter().flat_map(|stmt| std::iter::once(stmt).chain(stmt.bodies().flat_map(stmts))))
}

/// The statements of the CTA, inner ones included.
fn cta_stmts(list: &[Stmt]) -> impl Iterator<Item = &CtaStmt> {
    stmts(list).filter_map(|stmt| if let Stmt::Cta(stmt) = stmt { Some(stmt) } else { None })
}

impl Emitter<'_> {
    /// Waits for the kernels before this one; no read of an input moves before this line.
    pub(super) fn wait_for_inputs(&mut self) {
        self.line("o_grid_dependency_wait();");
        let inputs = self.program.buffers.iter().zip(&self.buffers);
        let inputs = inputs.filter(|(buffer, _)| buffer.scope == Scope::Input).map(|(_, name)| name.clone());
        for name in inputs.collect::<Vec<String>>() {
            self.line(&format!("{name} = o_after_grid_wait({name});"));
        }
    }

    fn params(&self) -> String {
        let params: Vec<String> = (self.program.buffers.iter().zip(&self.buffers))
            .filter(|(buffer, _)| buffer.scope.is_global())
            .map(|(buffer, name)| {
                let constant = if buffer.scope.is_read_only() { "const " } else { "" };
                format!("{constant}{} *__restrict__ {name}", element_name(buffer.dtype))
            })
            .chain(
                self.tensor_maps
                    .iter()
                    .map(|tensor_map| format!("const __grid_constant__ tensor_map {tensor_map}")),
            )
            .collect();
        params.join(", ")
    }

    /// The buffers in words.
    fn summary(&self) -> String {
        let buffers: Vec<String> = (self.program.buffers.iter().zip(&self.buffers))
            .map(|(buffer, name)| {
                let scope = match buffer.scope {
                    Scope::Input | Scope::Constant => "reads",
                    Scope::Output => "writes",
                    Scope::Shared | Scope::ReusedShared => "shares",
                    Scope::Scratch => "keeps",
                };
                format!("{scope} {name}: {} x {}", buffer.elems, buffer.dtype)
            })
            .collect();
        buffers.join("; ")
    }

    fn declare_buffers(&mut self) {
        if self.program.shared_bytes() > 0 {
            self.line("extern __shared__ __align__(1024) unsigned char shared_memory[];");
        }
        let (places, _) = self.program.shared_places();
        for (number, buffer) in self.program.buffers.iter().enumerate() {
            let (name, element) = (self.buffers[number].clone(), element_name(buffer.dtype));
            match buffer.scope {
                Scope::Input | Scope::Constant | Scope::Output => {}
                Scope::Shared | Scope::ReusedShared => {
                    let at = places[number].expect("shared buffers have places");
                    self.line(&format!("{element} *const {name} = ({element} *)(shared_memory + {at});"));
                }
                Scope::Scratch if self.fragments.contains(&BufferId::new(number)) => {
                    self.line(&format!("unsigned {name}[{}];", buffer.elems.div_ceil(2)));
                }
                Scope::Scratch => self.line(&format!("{element} {name}[{}];", buffer.elems.max(1))),
            }
        }
    }

    /// Initialises the mbarriers and prefetches the tensor maps, before anything else.
    fn init_mbarriers(&mut self) {
        let mbarriers = self.program.mbarriers;
        if mbarriers.full + mbarriers.empty == 0 {
            return;
        }
        let (_, at) = self.program.shared_places();
        let (name, thread) = (self.mbarriers.clone(), self.thread.clone());
        self.line(&format!(
            "unsigned long long *const {name} = (unsigned long long *)(shared_memory + {at});"
        ));
        self.line(&format!("if ({thread} == 0) {{"));
        for tensor_map in self.tensor_maps.clone() {
            self.line(&format!("    o_prefetch_tensor_map(&{tensor_map});"));
        }
        let (count, warps) = (mbarriers.full, self.program.cta.as_ref().map_or(1, |cta| cta.threads / WARP));
        if mbarriers.empty > 0 {
            self.line(&format!("    o_init_mbarriers<{}, {warps}>({name} + {count});", mbarriers.empty));
        }
        self.line(&format!("    o_init_mbarriers<{count}, {}>({name});", mbarriers.loads));
        self.line("}");
        self.line("__syncthreads();");
        let copies = self.copies.clone();
        self.line(&format!("const bool {copies} = __shfl_sync(0xffffffffu, {thread} / 32, 0) == 0;"));
    }

    fn list(&mut self, stmts: &[Stmt]) {
        for (at, stmt) in stmts.iter().enumerate() {
            self.texts.clear();
            if *stmt == Stmt::Cta(CtaStmt::WgmmaWait) {
                self.pin_stored(&stmts[at + 1..]);
            }
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
            Stmt::Let(var, value) => {
                let value = self.eval(*value);
                self.declare("const ", *var, value);
            }
            Stmt::Register(var, value) => {
                let ty = self.register_type(*var);
                let value = self.eval(*value);
                let value = CppValue { text: self.as_type(&value, ty), ty };
                self.declare("", *var, value);
            }
            Stmt::Assign(var, value) => {
                let target = self.variable(*var);
                let value = self.eval(*value);
                let text = self.as_type(&value, target.ty);
                self.line(&format!("{} = {text};", target.text));
            }
            Stmt::Store { buffer, offset, value, mask } => {
                self.note_store(*buffer);
                self.store(*buffer, *offset, *value, *mask);
            }
            Stmt::For { var, start, end, step, kind, body } => {
                self.for_loop(*var, (*start, *end, *step), *kind, body);
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.eval(*condition);
                self.line(&format!("if ({}) {{", condition.text));
                let before = self.in_flight.clone();
                self.block(then);
                let after = std::mem::replace(&mut self.in_flight, before);
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.block(otherwise);
                }
                self.in_flight = after.or(self.in_flight.take());
                self.line("}");
            }
            // The hardware hides latency by other warps.
            Stmt::Prefetch { .. } => {}
            Stmt::Amx(_) => panic!("GPUs have no matrix tiles of this kind"),
            Stmt::Cta(stmt) => self.cta_stmt(stmt),
        }
    }

    fn for_loop(
        &mut self,
        var: VarId,
        (start, end, step): (ExprId, ExprId, i64),
        kind: LoopKind,
        body: &[Stmt],
    ) {
        let (start, end) = (self.eval(start), self.eval(end));
        let name = self.names.fresh(&self.program.exprs.var_info(var).name);
        let ty = self.register_type(var);
        match kind {
            LoopKind::Serial => self.line("#pragma unroll 1"),
            LoopKind::Unroll => self.line("#pragma unroll"),
            LoopKind::UnrollBy(factor) => self.line(&format!("#pragma unroll {factor}")),
        }
        self.line(&format!(
            "for ({} {name} = {}; {name} < {}; {name} += {step}) {{",
            ty.text(),
            start.text,
            end.text
        ));
        self.vars.insert(var, CppValue { text: name, ty });
        self.block(body);
        self.line("}");
    }

    fn block(&mut self, stmts: &[Stmt]) {
        self.blocks.push(Block::default());
        self.list(stmts);
        self.texts.clear();
        let lines = self.blocks.pop().expect("pushed above").lines;
        self.blocks.last_mut().expect("the kernel's block").lines.push_str(&lines);
    }

    /// The type in which a variable is held: `int` for indices whose range is known to fit.
    pub(super) fn register_type(&self, var: VarId) -> CppType {
        let info = self.program.exprs.var_info(var);
        let fits = |(low, high): (i64, i64)| i32::try_from(low).is_ok() && i32::try_from(high).is_ok();
        match info.range.is_some_and(fits) && info.ty.dtype == DType::I64 {
            true => CppType { element: INT, lanes: info.ty.lanes },
            false => CppType::of(info.ty.dtype, info.ty.lanes),
        }
    }

    /// Declares a variable with its first value.
    pub(super) fn declare(&mut self, qualifier: &str, var: VarId, value: CppValue) {
        let name = self.names.fresh(&self.program.exprs.var_info(var).name);
        self.line(&format!("{qualifier}{} {name} = {};", value.ty.text(), value.text));
        self.vars.insert(var, CppValue { text: name, ty: value.ty });
    }

    /// A variable's name and type.
    pub(super) fn variable(&self, var: VarId) -> CppValue {
        self.vars.get(&var).cloned().expect("variables are declared before use; the validator reports it")
    }

    /// A value as text of another type.
    pub(super) fn as_type(&self, value: &CppValue, ty: CppType) -> String {
        if value.ty == ty { value.text.clone() } else { format!("o_cast<{}>({})", ty.element, value.text) }
    }

    /// The value of an expression, in a form that can be used more than once.
    pub(super) fn eval(&mut self, root: ExprId) -> CppValue {
        if let Some(value) = self.known(root) {
            return value;
        }
        let exprs = &self.program.exprs;
        let needed = exprs.reachable_unless(&[root], |id| self.known(id).is_some());
        for id in needed {
            let mut value = self.node(id);
            let is_shared = self.facts.uses(id) > 1 && !is_leaf(self.program, id);
            if is_shared || value.text.len() > LONG_TEXT {
                value = self.name(value);
                if !self.facts.is_volatile(id) {
                    self.blocks.last_mut().expect("a block is open").named.insert(id, value.clone());
                }
            }
            self.texts.insert(id, value);
        }
        self.texts[&root].clone()
    }

    /// The value of an operand of the current expression, which has been evaluated.
    pub(super) fn known(&self, id: ExprId) -> Option<CppValue> {
        let named = || self.blocks.iter().rev().find_map(|block| block.named.get(&id));
        self.texts.get(&id).or_else(named).cloned()
    }

    /// Declares a constant.
    fn name(&mut self, value: CppValue) -> CppValue {
        let name = self.names.numbered("t");
        self.line(&format!("const {} {name} = {};", value.ty.text(), value.text));
        CppValue { text: name, ty: value.ty }
    }

    pub(super) fn line(&mut self, text: &str) {
        let indent = 4 * self.blocks.len();
        let block = self.blocks.last_mut().expect("a block is open");
        writeln!(block.lines, "{:indent$}{text}", "").expect("writes to a string");
    }
}

fn is_leaf(program: &ThreadProgram, id: ExprId) -> bool {
    matches!(program.exprs.get(id), orch_compute::Expr::Const(_) | orch_compute::Expr::Var(_))
}
