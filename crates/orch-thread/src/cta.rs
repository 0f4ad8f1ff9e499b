//! CTAs of threads: what a task of a thread program does on a GPU, where many threads run its body together.
//!
//! A program with a [`Cta`] runs every task by `threads` threads in warps of [`WARP`]; each binds
//! [`Cta::thread`] to its number and has variables and scratch of its own, and all of a task share its
//! [`Scope::Shared`](crate::Scope) buffers. `cluster` consecutive tasks run at the same time and may read and write each
//! other's shared buffers ([`CtaStmt::LoadDsmem`], [`CtaStmt::StoreDsmem`]). What one thread writes to a shared buffer another may read after a
//! barrier. On a CPU there is no CTA: one worker runs a task alone.
//!
//! ```text
//!   cta 128 threads thread: i64 [0..=127], clusters of 1
//! {
//!   cp_async a[thread], x[thread], 1
//!   cp_async_commit
//!   wait 0
//!   barrier
//!   shuffle other: f32 = a[thread], 16
//! }
//! ```
//!
//! Matrix fragments are scratch: thread `t` of a warp holds, with `g = t / 4` and `c = t % 4`,
//!
//! - sums `f32[4]` of a 16 x 8 tile: rows `g, g, g + 8, g + 8`, columns `2c, 2c + 1, 2c, 2c + 1`;
//! - `a` of 16-bit elements `[8]`: rows `g, g, g + 8, g + 8` and again, columns `2c, 2c + 1, 2c, 2c + 1`, then the same
//!   plus 8; `b` `[4]`: rows `2c, 2c + 1, 2c + 8, 2c + 9` of column `g`;
//! - `a` of f32 (multiplied as TF32) `[4]`: rows `g, g + 8, g, g + 8`, columns `c, c, c + 4, c + 4`; `b` `[2]`: rows
//!   `c, c + 4` of column `g`.
//!
//! These are the layouts of PTX's `mma.m16n8k16` and `mma.m16n8k8`.

use crate::tma::TensorMapId;
use orch_compute::expr::{BufferId, ExprId, Exprs, VarId};
use orch_compute::simplify::simplify;
use orch_ir::{BinaryFn, DType};

/// Threads of a warp.
pub const WARP: usize = 32;
/// Warps that multiply tiles together.
pub const WARP_GROUP: usize = 4;
/// Elements of a line of a swizzled tile, 128 bytes.
pub const SWIZZLE_ROW: usize = 64;
/// Elements, of 8 lines, that a swizzled tile starts at a multiple of.
pub const SWIZZLE_ALIGNMENT: usize = 8 * SWIZZLE_ROW;
/// Most columns of a product of tiles.
pub const MAX_WGMMA_N: usize = 256;
/// Most terms of a product of tiles.
pub const MAX_WGMMA_K: usize = 1024;

/// Where element `at` of a line of a swizzled tile of so many lines is. The tile is in panels of [`SWIZZLE_ROW`] elements of
/// each line, one panel after the other; of the eight parts of a line of a panel, part `p` of line `r` lies at place
/// `p xor (r mod 8)`, so that the same parts of eight lines are in different banks.
pub fn swizzled(lines: usize, line: usize, at: usize) -> usize {
    let (panel, at) = (at / SWIZZLE_ROW, at % SWIZZLE_ROW);
    (panel * lines + line) * SWIZZLE_ROW + ((at / 8) ^ (line % 8)) * 8 + at % 8
}

/// [`swizzled`] of expressions.
pub fn swizzled_offset(exprs: &mut Exprs, lines: usize, line: ExprId, at: ExprId) -> ExprId {
    let [part_elems, line_elems] = [8, SWIZZLE_ROW].map(|elems| exprs.index(elems as i64));
    let (panel, at) = (exprs.floor_div(at, line_elems), exprs.floor_rem(at, line_elems));
    let (part, within) = (exprs.floor_div(at, part_elems), exprs.floor_rem(at, part_elems));
    let phase = exprs.floor_rem(line, part_elems);
    let part = exprs.binary(BinaryFn::Xor, part, phase);
    let place = exprs.linear_index(&[panel, line, part, within], &[lines * SWIZZLE_ROW, SWIZZLE_ROW, 8, 1]);
    simplify(exprs, place)
}

/// Most threads of a CTA.
pub const MAX_THREADS: usize = 1024;
/// Most tasks of a cluster that every device with clusters takes.
pub const MAX_CLUSTER: usize = 8;

/// The threads that run a task together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cta {
    /// Their number, a multiple of [`WARP`].
    pub threads: usize,
    /// The number of the thread, `0..threads`.
    pub thread: VarId,
    /// Consecutive tasks that run at the same time; the number of tasks is a multiple of it.
    pub cluster: usize,
    /// Whether loads of unrolled iterations shall be under way together, at the cost of registers for all of them; a hint.
    pub loads_ahead: bool,
}

/// A place in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Which buffer.
    pub buffer: BufferId,
    /// Element offset.
    pub offset: ExprId,
}

/// What matrix instructions multiply; they add in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MmaType {
    /// f16, 16 terms at a time.
    F16,
    /// bf16, 16 terms at a time.
    Bf16,
    /// f32 of which 10 bits of the fraction count, 8 terms at a time.
    Tf32,
}

impl MmaType {
    /// Terms that one instruction adds.
    pub fn terms(self) -> usize {
        match self {
            MmaType::F16 | MmaType::Bf16 => 16,
            MmaType::Tf32 => 8,
        }
    }

    /// Type of the factors in memory.
    pub fn dtype(self) -> DType {
        match self {
            MmaType::F16 => DType::F16,
            MmaType::Bf16 => DType::BF16,
            MmaType::Tf32 => DType::F32,
        }
    }

    /// The name in text: the type's.
    pub fn name(self) -> &'static str {
        match self {
            MmaType::F16 => "f16",
            MmaType::Bf16 => "bf16",
            MmaType::Tf32 => "tf32",
        }
    }
}

/// A statement of a CTA. All threads of a warp run it together, and all threads of the task the barriers.
#[derive(Clone, PartialEq, Debug)]
pub enum CtaStmt {
    /// Waits for all threads of the task.
    Barrier,
    /// Waits for all threads of the cluster.
    ClusterBarrier,
    /// Tells the cluster that this task runs, without waiting. Once, before any barrier of the cluster.
    ClusterArrive,
    /// Waits until all tasks of the cluster have joined: from here on they can be given something. Orders nothing else.
    ClusterWait,
    /// Waits for all threads of the task and gives its shared memory to the recycled buffers. Once in a program.
    ReuseShared,
    /// Lets the next kernel be launched, which waits by itself until this one has ended: from here on little is left to
    /// do. A hint; without one that is from the start.
    LaunchDependents,
    /// Waits for the kernels before this one: from here on inputs and outputs may be touched, before it constants only. Once,
    /// among the outermost statements; without one that is so from the start.
    GridDependencyWait,
    /// Declares a register and sets it to the value that lane `lane ^ with` of the warp gives.
    Shuffle {
        /// What is declared.
        var: VarId,
        /// What each lane gives.
        value: ExprId,
        /// Which bits of the lane's number differ.
        with: usize,
    },
    /// Declares a boolean register: whether, for any lane of the warp, one of so many sums of products is above the limit of its
    /// row, or a limit is negative (has a sign). Undecided where only NaNs are.
    Exceeds {
        /// What is declared.
        var: VarId,
        /// A constant place of scratch: sums of 16 x 8, one after the other.
        accs: Location,
        /// How many, a multiple of 4.
        count: usize,
        /// A constant place of scratch: the limits of the thread's two rows.
        limits: Location,
    },
    /// Declares a register and sets it to elements of the shared buffer of another task of the cluster.
    LoadDsmem {
        /// What is declared; its type says how many elements are read.
        var: VarId,
        /// The task's position in the cluster.
        rank: ExprId,
        /// Where.
        from: Location,
    },
    /// Writes elements to the shared buffer of a task of the cluster, which may be this one; known there after a barrier of
    /// the cluster. Sooner there than if that task read them from here, which takes the way twice.
    StoreDsmem {
        /// Where.
        to: Location,
        /// The task's position in the cluster.
        rank: ExprId,
        /// What.
        value: ExprId,
    },
    /// Starts copying consecutive elements (4, 8 or 16 bytes) to a shared buffer; zeros if the mask is false, and beyond the
    /// first ones that are real.
    CpAsync {
        /// A place of a shared buffer.
        to: Location,
        /// A place of an input.
        from: Location,
        /// How many elements.
        elems: usize,
        /// How many of them are read, where the mask is true; `None` is all.
        real: Option<ExprId>,
        /// A boolean; `None` is true.
        mask: Option<ExprId>,
    },
    /// Starts copying a box of a view to a swizzled tile: once for the whole CTA, all of which comes here.
    TmaLoad {
        /// A place of a shared buffer.
        to: Location,
        /// Of what.
        map: TensorMapId,
        /// The first place of the box in each extent.
        at: Vec<ExprId>,
        /// The slot that counts it.
        mbarrier: ExprId,
    },
    /// Waits until all boxes of a turn of a slot have arrived; turns count from 0.
    MbarrierWaitFull {
        /// Which slot.
        mbarrier: ExprId,
        /// Which turn.
        phase: ExprId,
    },
    /// Tells a gate that the thread has come here, without waiting. A gate is passed again, in its next turn, once boxes have
    /// been awaited that were started after it had been awaited.
    MbarrierArriveEmpty {
        /// Which gate.
        mbarrier: ExprId,
        /// Which turn of it, from 0.
        phase: ExprId,
    },
    /// Lets boxes that are started from here on wait for all threads of the task to have passed a gate: they may overwrite what
    /// was read before it. Threads do not wait, and what they have written is not ordered, as it is by a barrier.
    MbarrierWaitEmpty {
        /// Which gate.
        mbarrier: ExprId,
        /// Which turn of it, the last one in which it was passed.
        phase: ExprId,
    },
    /// Ends a group of copies.
    CpAsyncCommit,
    /// Waits until at most this many of the thread's groups are not done.
    CpAsyncWait(usize),
    /// Reads `matrices` 8 x 8 matrices of 16-bit elements from a shared buffer: lane `8 i + r` gives the place of row
    /// `r` of matrix `i`; thread `t` gets elements `2 (t % 4)` and the next one of row `t / 4` of each matrix (of
    /// column `t / 4`, if transposed).
    Ldmatrix {
        /// A constant place of scratch, two elements a matrix.
        to: Location,
        /// A place of a shared buffer.
        from: Location,
        /// 1, 2 or 4.
        matrices: usize,
        /// Whether rows become columns.
        transposed: bool,
    },
    /// Adds a product, `sum[64, columns] += a[64, terms] * b[terms, columns]`, by the four warps of a warp group, of 16
    /// rows of the sum each. OperandPrecision have 16-bit elements.
    ///
    /// In shared memory `a` is a [swizzled] tile whose lines are its rows; `b` is one whose lines are its columns, or, if
    /// it is `transposed`, its terms. In scratch, `a` is fragments of 16 rows and 16 terms, one after the other.
    Wgmma {
        /// What is multiplied.
        ty: MmaType,
        /// A constant place of scratch: `columns / 8` sums of 16 x 8.
        acc: Location,
        /// A place of a shared buffer, the same for all threads of the warp group, or a constant place of scratch.
        a: Location,
        /// A place of a shared buffer, the same for all threads of the warp group.
        b: Location,
        /// A multiple of 8, of 64 if they are in lines; at most [`MAX_WGMMA_N`].
        n: usize,
        /// A multiple of 16, of 64 if they are in lines; at most [`MAX_WGMMA_K`].
        k: usize,
        /// Whether the lines of `b` are its terms.
        transposed: bool,
        /// Whether the product may be under way when the statement ends, which waits only for those before it. Sums are
        /// known, and factors may be overwritten, once it has been waited for.
        is_async: bool,
    },
    /// Waits until no product of tiles of the warp group is under way.
    WgmmaWait,
    /// Adds a product of fragments: `sum[16, 8] += a[16, k] * b[k, 8]`.
    Mma {
        /// What is multiplied.
        ty: MmaType,
        /// A constant place of scratch.
        acc: Location,
        /// A constant place of scratch.
        a: Location,
        /// A constant place of scratch.
        b: Location,
    },
}

impl CtaStmt {
    /// The places that are read or written in memory and scratch.
    pub fn locations(&self) -> Vec<Location> {
        match self {
            CtaStmt::Barrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::ClusterArrive
            | CtaStmt::ClusterWait
            | CtaStmt::ReuseShared
            | CtaStmt::LaunchDependents
            | CtaStmt::GridDependencyWait
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => Vec::new(),
            CtaStmt::Shuffle { .. }
            | CtaStmt::MbarrierWaitFull { .. }
            | CtaStmt::MbarrierArriveEmpty { .. }
            | CtaStmt::MbarrierWaitEmpty { .. } => Vec::new(),
            CtaStmt::Exceeds { accs: sums, limits, .. } => vec![*sums, *limits],
            CtaStmt::LoadDsmem { from, .. } => vec![*from],
            CtaStmt::TmaLoad { to, .. } | CtaStmt::StoreDsmem { to, .. } => vec![*to],
            CtaStmt::CpAsync { to, from, .. } | CtaStmt::Ldmatrix { to, from, .. } => vec![*to, *from],
            CtaStmt::Mma { acc: sum, a, b, .. } | CtaStmt::Wgmma { acc: sum, a, b, .. } => {
                vec![*sum, *a, *b]
            }
        }
    }

    /// The expressions that are evaluated.
    pub fn operands(&self) -> Vec<ExprId> {
        let mut operands: Vec<ExprId> = self.locations().iter().map(|location| location.offset).collect();
        match self {
            CtaStmt::Shuffle { value, .. } => operands.push(*value),
            CtaStmt::LoadDsmem { rank, .. } => operands.push(*rank),
            CtaStmt::StoreDsmem { rank, value, .. } => operands.extend([rank, value]),
            CtaStmt::CpAsync { real, mask, .. } => operands.extend(real.iter().chain(mask)),
            CtaStmt::TmaLoad { at, mbarrier, .. } => operands.extend(at.iter().chain([mbarrier])),
            CtaStmt::MbarrierWaitFull { mbarrier, phase } => operands.extend([mbarrier, phase]),
            CtaStmt::MbarrierArriveEmpty { mbarrier, phase }
            | CtaStmt::MbarrierWaitEmpty { mbarrier, phase } => operands.extend([mbarrier, phase]),
            _ => {}
        }
        operands
    }

    /// The same statement with each expression replaced by `map` of it.
    pub fn map_operands(&self, mut map: impl FnMut(ExprId) -> ExprId) -> Self {
        let mut mapped = self.clone();
        match &mut mapped {
            CtaStmt::Barrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::ClusterArrive
            | CtaStmt::ClusterWait
            | CtaStmt::ReuseShared
            | CtaStmt::LaunchDependents
            | CtaStmt::GridDependencyWait
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => {}
            CtaStmt::Shuffle { value, .. } => *value = map(*value),
            CtaStmt::Exceeds { accs: sums, limits, .. } => {
                sums.offset = map(sums.offset);
                limits.offset = map(limits.offset);
            }
            CtaStmt::LoadDsmem { rank, from, .. } => {
                *rank = map(*rank);
                from.offset = map(from.offset);
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                to.offset = map(to.offset);
                *rank = map(*rank);
                *value = map(*value);
            }
            CtaStmt::CpAsync { to, from, real, mask, .. } => {
                to.offset = map(to.offset);
                from.offset = map(from.offset);
                *real = real.map(&mut map);
                *mask = mask.map(&mut map);
            }
            CtaStmt::TmaLoad { to, at, mbarrier, .. } => {
                to.offset = map(to.offset);
                at.iter_mut().chain([mbarrier]).for_each(|id| *id = map(*id));
            }
            CtaStmt::MbarrierWaitFull { mbarrier: at, phase }
            | CtaStmt::MbarrierArriveEmpty { mbarrier: at, phase }
            | CtaStmt::MbarrierWaitEmpty { mbarrier: at, phase } => {
                *at = map(*at);
                *phase = map(*phase);
            }
            CtaStmt::Ldmatrix { to, from, .. } => {
                to.offset = map(to.offset);
                from.offset = map(from.offset);
            }
            CtaStmt::Mma { acc: sum, a, b, .. } | CtaStmt::Wgmma { acc: sum, a, b, .. } => {
                for location in [sum, a, b] {
                    location.offset = map(location.offset);
                }
            }
        }
        mapped
    }

    /// The variable that is declared.
    pub fn declares(&self) -> Option<VarId> {
        match self {
            CtaStmt::Shuffle { var, .. } | CtaStmt::Exceeds { var, .. } | CtaStmt::LoadDsmem { var, .. } => {
                Some(*var)
            }
            _ => None,
        }
    }

    /// The buffer that is written by the time the statement has run.
    pub fn written(&self) -> Option<BufferId> {
        match self {
            CtaStmt::CpAsync { to, .. }
            | CtaStmt::TmaLoad { to, .. }
            | CtaStmt::StoreDsmem { to, .. }
            | CtaStmt::Ldmatrix { to, .. } => Some(to.buffer),
            CtaStmt::Mma { acc: sum, .. } | CtaStmt::Wgmma { acc: sum, .. } => Some(sum.buffer),
            _ => None,
        }
    }
}
