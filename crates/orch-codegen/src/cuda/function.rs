//! One thread program as a kernel: its head, its buffers, and statements.

use super::emitter::{CppValue, Emitter};
use super::types::{CppType, INT, element_name};
use crate::facts::{ExprFacts, cta_stmts, stmts};
use crate::names::Names;
use crate::scopes::{BlockKind, Scopes};
use orch_compute::{Bounds, BufferId, ExprId, VarId};
use orch_thread::cta::WARP;
use orch_thread::{CtaStmt, GpuTarget, LoopKind, Scope, Stmt, ThreadProgram};
use rustc_hash::FxHashSet;

/// The kernel of a program.
pub fn emit(program: &ThreadProgram, target: &GpuTarget) -> String {
    let cta = program.cta.as_ref().expect("a kernel's program has a cta");
    let mut names = Names::default();
    let task = names.fresh(&program.exprs.var_info(program.task).name);
    let thread = names.fresh(&program.exprs.var_info(cta.thread).name);
    let buffers = program.buffers.iter().map(|buffer| names.fresh(&buffer.name)).collect();
    let tensor_maps = program.tensor_maps.iter().map(|tensor_map| names.fresh(&tensor_map.name)).collect();
    let mbarriers = names.fresh("mbarriers");
    let is_producer_warp = names.fresh("copies");
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
        is_producer_warp,
        needs_proxy_fence: writes_some(program, &tiles),
        tiles,
        uses_pdl: target.has_pdl,
        in_flight: None,
        scopes: Scopes::new(names),
    };
    let index = |text: String| CppValue { text, ty: CppType { element: INT, lanes: 1 } };
    emitter.scopes.declare(program.task, index(task.clone()));
    emitter.scopes.declare(cta.thread, index(thread.clone()));
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
    let body = emitter.scopes.close();
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

/// The buffers of shared memory that wgmma reads.
fn tiles_of(program: &ThreadProgram) -> FxHashSet<BufferId> {
    let operands = cta_stmts(&program.body).filter_map(|stmt| match stmt {
        CtaStmt::Wgmma { a, b, .. } => Some([a.buffer, b.buffer]),
        _ => None,
    });
    operands.flatten().filter(|&buffer| program.buffer(buffer).scope.is_shared()).collect()
}

/// Arguments that other CTAs write while the kernel runs.
fn exchanged(program: &ThreadProgram) -> FxHashSet<BufferId> {
    let of = |stmt: &CtaStmt| match stmt {
        CtaStmt::LoadRelaxed { from: at, .. } | CtaStmt::GridBarrier { arrived: at } => Some(at.buffer),
        _ => None,
    };
    cta_stmts(&program.body).filter_map(of).collect()
}

/// True if threads write one of these buffers.
fn writes_some(program: &ThreadProgram, buffers: &FxHashSet<BufferId>) -> bool {
    stmts(&program.body).any(|stmt| match stmt {
        Stmt::Store { buffer, .. } => buffers.contains(buffer),
        Stmt::Cta(CtaStmt::CpAsync { to, .. }) => buffers.contains(&to.buffer),
        _ => false,
    })
}

impl Emitter<'_> {
    /// Waits for the kernels before this one; no read of an input moves before this line.
    pub(super) fn wait_for_inputs(&mut self) {
        self.line("o_grid_dependency_wait();");
        let inputs = self.program.buffers.iter().zip(&self.buffers);
        let inputs = inputs
            .filter(|(buffer, _)| matches!(buffer.scope, Scope::Input | Scope::Updated))
            .map(|(_, name)| name.clone());
        for name in inputs.collect::<Vec<String>>() {
            self.line(&format!("{name} = o_after_grid_wait({name});"));
        }
    }

    fn params(&self) -> String {
        let exchanged = exchanged(self.program);
        let params: Vec<String> = (self.program.buffers.iter().zip(&self.buffers).enumerate())
            .filter(|(_, (buffer, _))| buffer.scope.is_global())
            .map(|(number, (buffer, name))| {
                let constant = if buffer.scope.is_read_only() { "const " } else { "" };
                let restrict = if exchanged.contains(&BufferId::new(number)) { "" } else { "__restrict__ " };
                format!("{constant}{} *{restrict}{name}", element_name(buffer.dtype))
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
                    Scope::Updated => "updates",
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
                Scope::Input | Scope::Constant | Scope::Output | Scope::Updated => {}
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
        let is_producer_warp = self.is_producer_warp.clone();
        self.line(&format!(
            "const bool {is_producer_warp} = __shfl_sync(0xffffffffu, {thread} / 32, 0) == 0;"
        ));
    }

    fn list(&mut self, stmts: &[Stmt]) {
        for (at, stmt) in stmts.iter().enumerate() {
            self.scopes.start_statement();
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
                self.scopes.open(BlockKind::Branch);
                self.block(then);
                let after = std::mem::replace(&mut self.in_flight, before);
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.scopes.open(BlockKind::Branch);
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
        let name = self.scopes.fresh(&self.program.exprs.var_info(var).name);
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
        self.scopes.open(BlockKind::Plain);
        self.scopes.declare(var, CppValue { text: name, ty });
        self.block(body);
        self.line("}");
    }

    /// The statements of a block that has been opened, and its end.
    fn block(&mut self, stmts: &[Stmt]) {
        self.list(stmts);
        let lines = self.scopes.close();
        self.scopes.lines(&lines);
    }
}
