//! Thread programs: explicit loops, buffers and vector registers, one step above C or CUDA C++.
//!
//! A program is a grid of independent tasks: work items on a CPU, CTAs on a GPU. Every task runs the body with
//! [`ThreadProgram::task`] bound to its number, by one worker or by the threads of a [`Cta`]; tasks may run in any order and at
//! the same time, so they write disjoint elements and read nothing that another task writes. Scratch buffers belong to one worker at a time and are undefined when a task
//! starts, unless the program has [`TaskGroups`]. The work items of a CPU may be in [`phases`](ThreadProgram::phases): then this holds for those of
//! one phase, and each phase reads what those before it have written.

use crate::amx::{AmxShape, AmxStmt, TileId};
use crate::cta::{Cta, CtaStmt};
use crate::tma::{Mbarriers, TensorMap, TensorMapId};
use orch_compute::expr::Type;
use orch_compute::expr::{BufferId, ExprId, Exprs, VarId};
use std::collections::BTreeSet;

pub use crate::buffer::{Buffer, Scope};

/// A schedulable kernel.
#[derive(Clone, Debug)]
pub struct ThreadProgram {
    /// The C function's name.
    pub name: String,
    /// The arena of all expressions.
    pub exprs: Exprs,
    /// Buffers; a [`BufferId`] is a position here. Global ones come first, in the order of the ABI.
    pub buffers: Vec<Buffer>,
    /// Matrix tiles; a [`TileId`] is a position here.
    pub tiles: Vec<AmxShape>,
    /// Tensor maps of arguments; a [`TensorMapId`] is a position here.
    pub tensor_maps: Vec<TensorMap>,
    /// The full and empty mbarriers.
    pub mbarriers: Mbarriers,
    /// The number of tasks: CTAs of the grid on a GPU.
    pub tasks: usize,
    /// The task number, `0..tasks`.
    pub task: VarId,
    /// Phases that run one after the other, each of as many consecutive work items; 1 on GPUs.
    pub phases: usize,
    /// What tasks of one worker may leave to each other in scratch.
    pub groups: Option<TaskGroups>,
    /// The CTA that runs a task; `None` is one worker.
    pub cta: Option<Cta>,
    /// Read-only arguments that L2 should evict before others (PTX: `L2::evict_first`), because each element is read once; a hint.
    pub evict_first: BTreeSet<BufferId>,
    /// What each task does.
    pub body: Vec<Stmt>,
}

/// Groups of consecutive tasks, each as large but for the last. A worker that runs several tasks of one group one after the other
/// keeps its scratch between them, so that what the first of them computed serves all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskGroups {
    /// Tasks of a group.
    pub tasks: usize,
    /// 1 in the first task of a group that a worker runs, in which scratch is undefined at the start; 0 in those that follow.
    pub first: VarId,
}

/// One statement.
#[derive(Clone, PartialEq, Debug)]
pub enum Stmt {
    /// A comment for readers of the generated code.
    Comment(String),
    /// Binds a variable that is never assigned again.
    Let(VarId, ExprId),
    /// Declares a register that is assigned later, with its first value.
    Register(VarId, ExprId),
    /// Assigns a register.
    Assign(VarId, ExprId),
    /// Stores a scalar or vector to consecutive elements from `offset` on; lanes whose `mask` is false are not
    /// accessed. A vector offset scatters.
    Store {
        /// Which buffer.
        buffer: BufferId,
        /// Element offset.
        offset: ExprId,
        /// What to store.
        value: ExprId,
        /// Which lanes; `None` is all.
        mask: Option<ExprId>,
    },
    /// `for (var = start; var < end; var += step)`; the variable's declared range must hold.
    For {
        /// Loop variable.
        var: VarId,
        /// First value.
        start: ExprId,
        /// Values stay below this.
        end: ExprId,
        /// Increment, positive.
        step: i64,
        /// How to run the loop.
        kind: LoopKind,
        /// What to repeat.
        body: Vec<Stmt>,
    },
    /// Runs one of two branches; the condition is a scalar boolean.
    If {
        /// Condition.
        condition: ExprId,
        /// Taken when true.
        then: Vec<Stmt>,
        /// Taken when false.
        otherwise: Vec<Stmt>,
    },
    /// Hints the hardware to bring a cache line of the buffer into L2. Beyond the buffer there may be no page, and looking for one takes longer
    /// than a read: in a virtual machine, thousands of cycles.
    Prefetch {
        /// Which buffer.
        buffer: BufferId,
        /// Element offset.
        offset: ExprId,
    },
    /// Works on matrix tiles.
    Amx(AmxStmt),
    /// Is run by the threads of a CTA together.
    Cta(CtaStmt),
}

/// Bytes of a line of a CPU's caches.
pub const CACHE_LINE: usize = 64;

/// How many panels of columns ahead a skinny GEMM prefetches: the distance at which a panel arrives in time.
pub const PREFETCH_PANELS: usize = 2;

impl Stmt {
    /// Prefetches of all cache lines that `elems` elements of a buffer from `offset` on may lie in; of its last ones where these lie behind it.
    pub fn prefetches(
        program: &mut ThreadProgram,
        buffer: BufferId,
        offset: ExprId,
        elems: usize,
    ) -> Vec<Self> {
        let Buffer { dtype, elems: all, .. } = *program.buffer(buffer);
        let (step, elems) = (CACHE_LINE / dtype.size_bytes(), elems.min(all));
        let exprs = &mut program.exprs;
        let last = exprs.index((all - elems) as i64);
        let offset = exprs.min(offset, last);
        // Arguments may begin within a line, so that the last element lies in one more.
        let elements = (0..elems).step_by(step).chain([elems - 1]);
        let prefetch = |element| Stmt::Prefetch { buffer, offset: exprs.add_const(offset, element as i64) };
        elements.map(prefetch).collect()
    }

    /// The expressions of this statement, not of those nested in it.
    pub fn operands(&self) -> Vec<ExprId> {
        match self {
            Stmt::Comment(_) => Vec::new(),
            Stmt::Let(_, value) | Stmt::Register(_, value) | Stmt::Assign(_, value) => vec![*value],
            Stmt::Store { offset, value, mask, .. } => [*offset, *value].into_iter().chain(*mask).collect(),
            Stmt::For { start, end, .. } => vec![*start, *end],
            Stmt::If { condition, .. } => vec![*condition],
            Stmt::Prefetch { offset, .. } => vec![*offset],
            Stmt::Amx(stmt) => stmt.offset().into_iter().collect(),
            Stmt::Cta(stmt) => stmt.operands(),
        }
    }

    /// The statement lists nested in this statement.
    pub fn bodies(&self) -> impl Iterator<Item = &[Stmt]> {
        let (first, second): (&[Stmt], &[Stmt]) = match self {
            Stmt::For { body, .. } => (body, &[]),
            Stmt::If { then, otherwise, .. } => (then, otherwise),
            _ => (&[], &[]),
        };
        [first, second].into_iter()
    }
}

/// How a loop runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopKind {
    /// One iteration after the other.
    Serial,
    /// Fully unrolled; start and end are constants.
    Unroll,
    /// Serial, with a hint to the C compiler to unroll by this factor.
    UnrollBy(u32),
}

/// Builds statement lists with less noise.
impl ThreadProgram {
    /// A program without statements.
    pub fn new(name: impl Into<String>, tasks: usize) -> Self {
        let mut exprs = Exprs::new();
        let task = exprs.declare_index("task", tasks);
        Self {
            name: name.into(),
            exprs,
            buffers: Vec::new(),
            tiles: Vec::new(),
            tensor_maps: Vec::new(),
            mbarriers: Mbarriers::default(),
            tasks,
            task,
            phases: 1,
            groups: None,
            cta: None,
            evict_first: BTreeSet::new(),
            body: Vec::new(),
        }
    }

    /// True if a statement waits for the kernels before this one; otherwise the program waits at its start.
    pub fn has_grid_dependency_wait(&self) -> bool {
        self.body.iter().any(|stmt| matches!(stmt, Stmt::Cta(CtaStmt::GridDependencyWait)))
    }

    /// Adds a buffer.
    pub fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        let id = self.exprs.declare_buffer(buffer.dtype);
        debug_assert_eq!(id.index(), self.buffers.len());
        self.buffers.push(buffer);
        id
    }

    /// Adds a matrix tile.
    pub fn add_tile(&mut self, tile: AmxShape) -> TileId {
        self.tiles.push(tile);
        TileId(u32::try_from(self.tiles.len() - 1).expect("a handful of tiles"))
    }

    /// Adds a tensor map.
    pub fn add_tensor_map(&mut self, tensor_map: TensorMap) -> TensorMapId {
        self.tensor_maps.push(tensor_map);
        TensorMapId(u32::try_from(self.tensor_maps.len() - 1).expect("a handful of tensor maps"))
    }

    /// The buffer with this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// Sets the number of tasks and declares the task number anew, before anything mentions it.
    pub fn set_tasks(&mut self, tasks: usize) -> VarId {
        self.tasks = tasks;
        self.task = self.exprs.declare_index("task", tasks);
        self.task
    }

    /// The work items of a phase.
    pub fn phase_items(&self) -> usize {
        self.tasks / self.phases.max(1)
    }

    /// Makes so many consecutive tasks a group; returns the variable that is 1 in the first one that a worker runs.
    pub fn set_groups(&mut self, tasks: usize) -> VarId {
        let first = self.exprs.declare_index("first_of_group", 2);
        self.groups = Some(TaskGroups { tasks, first });
        first
    }

    /// Makes each task a CTA of `threads` threads; returns the variable that is the thread's number.
    pub fn set_cta(&mut self, threads: usize, cluster: usize) -> VarId {
        let thread = self.exprs.declare_index("thread", threads);
        self.cta = Some(Cta { threads, thread, cluster, barrier_group: 1, loads_ahead: false });
        thread
    }

    /// Bytes of shared memory of a CTA, mbarriers included.
    pub fn shared_bytes(&self) -> usize {
        self.shared_places().1 + self.mbarriers.bytes()
    }

    /// The byte offset of each shared buffer in the shared memory of a CTA, and the bytes of all, after which come the mbarriers.
    /// Buffers are aligned to 128 bytes; those of whole KiB, which may be swizzled tiles, come first, so that they are aligned to 1 KiB.
    pub fn shared_places(&self) -> (Vec<Option<usize>>, usize) {
        let is_whole = |buffer: &Buffer| buffer.bytes().is_multiple_of(1 << 10);
        let mut places = vec![None; self.buffers.len()];
        let mut all = 0;
        for scope in [Scope::Shared, Scope::ReusedShared] {
            let mut end = 0;
            for first in [true, false] {
                for (place, buffer) in places.iter_mut().zip(&self.buffers) {
                    if buffer.scope == scope && is_whole(buffer) == first {
                        *place = Some(end);
                        end += buffer.bytes().next_multiple_of(128);
                    }
                }
            }
            all = all.max(end);
        }
        (places, all)
    }

    /// Bytes of scratch that one worker needs, each buffer aligned to 64 bytes.
    pub fn scratch_bytes(&self) -> usize {
        (self.buffers.iter().filter(|b| b.scope == Scope::Scratch))
            .map(|b| b.bytes().next_multiple_of(64))
            .sum()
    }

    /// The type of a variable.
    pub fn var_type(&self, var: VarId) -> Type {
        self.exprs.var_info(var).ty
    }
}
