//! CTAs: how a task of a thread program runs on a GPU, where the threads of a CTA run its body together, and the statements for that.
//!
//! A program with a [`Cta`] runs every task by `threads` threads in warps of [`WARP`]; each binds
//! [`Cta::thread`] to its number and has variables and scratch of its own, and all threads of the CTA share its
//! [`Scope::Shared`](crate::Scope) buffers. `cluster` consecutive CTAs run at the same time and may read and write each
//! other's shared buffers ([`CtaStmt::LoadDsmem`], [`CtaStmt::StoreDsmem`]). What one thread writes to a shared buffer another may read
//! after a barrier. `barrier_group` consecutive CTAs may read what others have written to updated buffers after a
//! [`CtaStmt::GridBarrier`]. On a CPU there is no CTA: one worker runs a task alone.
//!
//! ```text
//!   cta 128 threads thread: i64 [0..=127], clusters of 1
//! {
//!   cp_async a[thread], x[thread], 1
//!   cp_async_commit
//!   cp_async_wait 0
//!   barrier
//!   shuffle other: f32 = a[thread], 16
//! }
//! ```
//!
//! Matrix fragments are scratch: thread `t` of a warp holds, with `g = t / 4` and `c = t % 4`,
//!
//! - the accumulator `f32[4]` of a 16 x 8 tile: rows `g, g, g + 8, g + 8`, columns `2c, 2c + 1, 2c, 2c + 1`;
//! - `a` of 16-bit elements `[8]`: rows `g, g, g + 8, g + 8` and again, columns `2c, 2c + 1, 2c, 2c + 1`, then the same
//!   plus 8; `b` `[4]`: rows `2c, 2c + 1, 2c + 8, 2c + 9` of column `g`;
//! - `a` of f32 (multiplied as TF32) `[4]`: rows `g, g + 8, g, g + 8`, columns `c, c, c + 4, c + 4`; `b` `[2]`: rows
//!   `c, c + 4` of column `g`.
//!
//! These are the layouts of PTX's `mma.m16n8k16` and `mma.m16n8k8`.

use crate::tma::TensorMapId;
use orch_compute::expr::{BufferId, ExprId, VarId};
use orch_ir::DType;

pub use crate::swizzle::{SWIZZLE_ALIGNMENT, SWIZZLE_ROW, swizzled, swizzled_offset};

/// Threads of a warp.
pub const WARP: usize = 32;
/// Warps of a warp group, which issue `wgmma` together.
pub const WARP_GROUP: usize = 4;
/// Rows of a warp group's tile: M of [`CtaStmt::Wgmma`].
pub const WARP_GROUP_ROWS: usize = 64;
/// Largest N of [`CtaStmt::Wgmma`].
pub const MAX_WGMMA_N: usize = 256;
/// Largest K of [`CtaStmt::Wgmma`].
pub const MAX_WGMMA_K: usize = 1024;

/// Most threads of a CTA.
pub const MAX_THREADS: usize = 1024;
/// Most CTAs of a cluster (the portable cluster size).
pub const MAX_CLUSTER: usize = 8;

/// The threads of a CTA, which run a task together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cta {
    /// Their number, a multiple of [`WARP`].
    pub threads: usize,
    /// The number of the thread, `0..threads`.
    pub thread: VarId,
    /// Consecutive CTAs that form a cluster and run at the same time; the number of tasks is a multiple of it.
    pub cluster: usize,
    /// Consecutive CTAs that wait for each other at grid barriers: the number of tasks is a multiple of it. Above 1 the launch is a
    /// cooperative one, all CTAs of which run at the same time, and none of them is in a cluster.
    pub barrier_group: usize,
    /// Whether loads of unrolled iterations should be in flight together, at the cost of registers for all of them; a hint.
    pub loads_ahead: bool,
}

impl Cta {
    /// CTAs that wait for each other: those of a cluster, or of a barrier group.
    pub(crate) fn synchronised(&self) -> usize {
        self.cluster.max(self.barrier_group)
    }
}

/// A location in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The buffer.
    pub buffer: BufferId,
    /// Element offset.
    pub offset: ExprId,
}

/// Operand type of matrix instructions; they accumulate in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MmaType {
    /// f16; K of an instruction is 16.
    F16,
    /// bf16; K is 16.
    Bf16,
    /// tf32: f32 of which 10 bits of the fraction count; K is 8.
    Tf32,
}

impl MmaType {
    /// K of one instruction.
    pub fn instruction_k(self) -> usize {
        match self {
            MmaType::F16 | MmaType::Bf16 => 16,
            MmaType::Tf32 => 8,
        }
    }

    /// Type of the operands in memory.
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

/// How [`CtaStmt::Red`] combines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RedOp {
    /// Sum.
    Add,
    /// Least.
    Min,
    /// Largest.
    Max,
}

impl RedOp {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Add, Self::Min, Self::Max];

    /// The name in text: PTX's.
    pub fn name(self) -> &'static str {
        match self {
            RedOp::Add => "add",
            RedOp::Min => "min",
            RedOp::Max => "max",
        }
    }

    /// The combination of two numbers.
    pub fn combine(self, a: i32, b: i32) -> i32 {
        match self {
            RedOp::Add => a.wrapping_add(b),
            RedOp::Min => a.min(b),
            RedOp::Max => a.max(b),
        }
    }
}

/// A statement of a CTA, after the PTX instruction that it becomes. All threads of a warp run it together, and all threads of the
/// CTA the barriers.
#[derive(Clone, PartialEq, Debug)]
pub enum CtaStmt {
    /// `bar.sync`: waits for all threads of the CTA.
    Barrier,
    /// `bar.warp.sync`: waits for all threads of the warp; orders their accesses to shared memory with each other.
    WarpBarrier,
    /// `barrier.cluster.arrive` and `.wait`: waits for all threads of the cluster.
    ClusterBarrier,
    /// `barrier.cluster.arrive.relaxed`: signals the cluster that this CTA has started, without waiting. Once, before any barrier of the
    /// cluster.
    ClusterArrive,
    /// `barrier.cluster.wait`: waits until all CTAs of the cluster have arrived, so that their shared memory may be written. Orders
    /// no other memory access.
    ClusterWait,
    /// `atom.add.release.gpu` and, in a loop, `ld.acquire.gpu`, between two `bar.sync`: waits for all threads of the CTAs of the
    /// [barrier group](Cta::barrier_group), and orders their accesses to global memory.
    GridBarrier {
        /// The counter of CTAs that have arrived, one of an [updated](crate::Scope::Updated) buffer of i32 that nothing else accesses:
        /// 0 when the kernel starts. Its sign changes whenever all have arrived, and its other bits are 0 then.
        arrived: Location,
    },
    /// `ld.relaxed.gpu`: declares a register and loads it from an [updated](crate::Scope::Updated) buffer, whose elements other CTAs of
    /// the barrier group may have written before the last grid barrier. Each element has been written.
    LoadRelaxed {
        /// The declared variable; its type says how many elements are loaded.
        var: VarId,
        /// The location.
        from: Location,
    },
    /// `bar.sync`, behind which the [`ReusedShared`](crate::Scope::ReusedShared) buffers own the shared memory of the CTA. Once in a
    /// program.
    ReuseShared,
    /// `griddepcontrol.launch_dependents`: the next kernel of the stream may be launched, which itself waits until this one has ended.
    /// A hint; without it, from the start.
    LaunchDependents,
    /// `griddepcontrol.wait`: waits for the kernels before this one. Inputs and outputs may be accessed from here on, before it
    /// constants only. Once, in no loop or branch; without one, from the start.
    GridDependencyWait,
    /// Computes a number of f32 before the statements that follow, each warp for all its lanes (a `vote.sync` that a branch waits for).
    /// It changes no result: what overlaps with wgmma in flight would otherwise be moved behind `wgmma.wait_group` by ptxas, as both
    /// are independent.
    ComputeFirst(ExprId),
    /// `shfl.sync.bfly`: declares a register and sets it to the value of lane `lane ^ with` of the warp.
    Shuffle {
        /// The declared variable.
        var: VarId,
        /// The value that each lane contributes.
        value: ExprId,
        /// Bits in which the lanes' numbers differ.
        with: usize,
    },
    /// `vote.sync.any`: declares a boolean register: whether in any lane of the warp one of `count` accumulator elements is above
    /// the limit of its row, or a limit is negative (its sign bit is set). Either value where only NaNs are.
    Exceeds {
        /// The declared variable.
        var: VarId,
        /// A constant location of scratch: 16 x 8 accumulators, one after the other.
        accs: Location,
        /// Accumulator elements of the thread, a multiple of 4.
        count: usize,
        /// A constant location of scratch: the limits of the thread's two rows, `g` and `g + 8`.
        limits: Location,
    },
    /// `ld.shared::cluster`: declares a register and loads it from the shared buffer of a CTA of the cluster.
    LoadDsmem {
        /// The declared variable; its type says how many elements are loaded.
        var: VarId,
        /// The CTA's rank in the cluster.
        rank: ExprId,
        /// The location in that CTA's shared memory.
        from: Location,
    },
    /// `st.shared::cluster`: stores elements to the shared buffer of a CTA of the cluster, which may be this one; visible there
    /// after a barrier of the cluster. A store takes one way through the network, [`CtaStmt::LoadDsmem`] takes two.
    StoreDsmem {
        /// The location in that CTA's shared memory.
        to: Location,
        /// The CTA's rank in the cluster.
        rank: ExprId,
        /// The value.
        value: ExprId,
    },
    /// `red.shared.{add,min,max}.s32`: combines a number with an element of a shared buffer, indivisibly: several threads may do so to one
    /// element between two barriers, which are what orders it and other accesses. Whatever the order of threads, the element is the same.
    Red {
        /// Sum, which wraps around, least or largest.
        op: RedOp,
        /// A location of a shared buffer of i32.
        to: Location,
        /// The number, of i32.
        value: ExprId,
        /// A boolean; `None` is true.
        mask: Option<ExprId>,
    },
    /// `cp.async.{ca,cg}.shared.global`: starts copying `elems` consecutive elements (4, 8 or 16 bytes) to a shared buffer. Elements
    /// from `real` on are zero, and all are if the mask is false (the operand `src-size`).
    CpAsync {
        /// A location of a shared buffer.
        to: Location,
        /// A location of a read-only argument.
        from: Location,
        /// Elements that are written.
        elems: usize,
        /// Elements that are read, where the mask is true; `None` is all.
        real: Option<ExprId>,
        /// A boolean; `None` is true.
        mask: Option<ExprId>,
    },
    /// `cp.async.bulk.tensor.shared::cluster.global.mbarrier::complete_tx::bytes`: starts copying a tile of a tensor map to a
    /// swizzled tile in shared memory. One thread issues it for the CTA, all threads of which reach the statement.
    TmaLoad {
        /// A location of a shared buffer.
        to: Location,
        /// The tensor map.
        map: TensorMapId,
        /// Coordinates of the tile's first element, that of the contiguous dimension first.
        at: Vec<ExprId>,
        /// The full mbarrier that counts the load.
        mbarrier: ExprId,
    },
    /// `mbarrier.try_wait.parity`, in a loop: waits until all loads of a phase of a full mbarrier have arrived.
    MbarrierWaitFull {
        /// The number of the full mbarrier.
        mbarrier: ExprId,
        /// The phase, counted from 0.
        phase: ExprId,
    },
    /// `mbarrier.arrive`: the thread arrives at an empty mbarrier, without waiting. It arrives for the next phase only after it has
    /// waited for loads that were issued after the wait for this phase.
    MbarrierArriveEmpty {
        /// The number of the empty mbarrier.
        mbarrier: ExprId,
        /// The phase, counted from 0.
        phase: ExprId,
    },
    /// `mbarrier.try_wait.parity` by the thread that issues TMA loads: loads that are issued from here on wait until all threads of
    /// the CTA have arrived at an empty mbarrier, and may overwrite what these have read before. Other threads do not wait, and,
    /// unlike a barrier, it does not order what they have written.
    MbarrierWaitEmpty {
        /// The number of the empty mbarrier.
        mbarrier: ExprId,
        /// The phase, counted from 0: the last one for which threads have arrived.
        phase: ExprId,
    },
    /// `cp.async.commit_group`: ends a group of [`CtaStmt::CpAsync`].
    CpAsyncCommit,
    /// `cp.async.wait_group n`: waits until at most `n` of the thread's groups are in flight.
    CpAsyncWait(usize),
    /// `ldmatrix.sync.m8n8.x{1,2,4}[.trans].b16`: loads `matrices` 8 x 8 matrices of 16-bit elements from a shared buffer. Lane
    /// `8 i + r` passes the location of row `r` of matrix `i`; thread `t` receives elements `2 (t % 4)` and `2 (t % 4) + 1` of row
    /// `t / 4` of each matrix (of column `t / 4`, if transposed).
    Ldmatrix {
        /// A constant location of scratch, two elements a matrix.
        to: Location,
        /// A location of a shared buffer.
        from: Location,
        /// 1, 2 or 4.
        matrices: usize,
        /// Whether rows become columns (`.trans`).
        transposed: bool,
    },
    /// `wgmma.mma_async.sync.aligned.m64nNk16`, repeated along K: `acc[64, n] += a[64, k] * b[k, n]` by the four warps of a warp
    /// group, each of which holds 16 rows of the accumulator. Operands have 16-bit elements.
    ///
    /// In shared memory `a` is a [swizzled] tile `[64, k]`, or `[k, 64]` if it is transposed, and `b` is one of `[n, k]`, or `[k, n]` if
    /// it is. In scratch, `a` is fragments `[16, 16]` along K, one after the other.
    Wgmma {
        /// Element type of the operands.
        ty: MmaType,
        /// A constant location of scratch: `n / 8` accumulators of 16 x 8.
        acc: Location,
        /// A location of a shared buffer, the same for all threads of the warp group, or a constant location of scratch.
        a: Location,
        /// A location of a shared buffer, the same for all threads of the warp group.
        b: Location,
        /// N: a multiple of 8, of 64 if it is the contiguous dimension of `b`; at most [`MAX_WGMMA_N`].
        n: usize,
        /// K: a multiple of 16, of 64 if it is the contiguous dimension of a tile; at most [`MAX_WGMMA_K`].
        k: usize,
        /// Whether `a` is `[k, 64]`, which needs shared memory.
        a_transposed: bool,
        /// Whether `b` is `[k, n]`.
        b_transposed: bool,
        /// Whether the `wgmma` may be in flight when the statement ends, which then waits only for earlier ones. Accumulators are
        /// defined, and operands may be overwritten, after [`CtaStmt::WgmmaWait`].
        is_async: bool,
    },
    /// `wgmma.wait_group 0`: waits until no `wgmma` of the warp group is in flight.
    WgmmaWait,
    /// `mma.sync.aligned.m16n8k16` (`.m16n8k8` for TF32): `acc[16, 8] += a[16, k] * b[k, 8]`, all three fragments in scratch.
    Mma {
        /// Element type of the operands.
        ty: MmaType,
        /// A constant location of scratch.
        acc: Location,
        /// A constant location of scratch.
        a: Location,
        /// A constant location of scratch.
        b: Location,
    },
}

impl CtaStmt {
    /// The locations that are read or written in memory and scratch.
    pub fn locations(&self) -> Vec<Location> {
        match self {
            CtaStmt::Barrier
            | CtaStmt::WarpBarrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::ClusterArrive
            | CtaStmt::ClusterWait
            | CtaStmt::ReuseShared
            | CtaStmt::LaunchDependents
            | CtaStmt::GridDependencyWait
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => Vec::new(),
            CtaStmt::ComputeFirst(_)
            | CtaStmt::Shuffle { .. }
            | CtaStmt::MbarrierWaitFull { .. }
            | CtaStmt::MbarrierArriveEmpty { .. }
            | CtaStmt::MbarrierWaitEmpty { .. } => Vec::new(),
            CtaStmt::Exceeds { accs, limits, .. } => vec![*accs, *limits],
            CtaStmt::LoadDsmem { from, .. } | CtaStmt::LoadRelaxed { from, .. } => vec![*from],
            CtaStmt::GridBarrier { arrived } => vec![*arrived],
            CtaStmt::TmaLoad { to, .. } | CtaStmt::StoreDsmem { to, .. } | CtaStmt::Red { to, .. } => {
                vec![*to]
            }
            CtaStmt::CpAsync { to, from, .. } | CtaStmt::Ldmatrix { to, from, .. } => vec![*to, *from],
            CtaStmt::Mma { acc, a, b, .. } | CtaStmt::Wgmma { acc, a, b, .. } => {
                vec![*acc, *a, *b]
            }
        }
    }

    /// The expressions that are evaluated.
    pub fn operands(&self) -> Vec<ExprId> {
        let mut operands: Vec<ExprId> = self.locations().iter().map(|location| location.offset).collect();
        match self {
            CtaStmt::ComputeFirst(value) | CtaStmt::Shuffle { value, .. } => operands.push(*value),
            CtaStmt::LoadDsmem { rank, .. } => operands.push(*rank),
            CtaStmt::StoreDsmem { rank, value, .. } => operands.extend([rank, value]),
            CtaStmt::Red { value, mask, .. } => operands.extend([value].into_iter().chain(mask)),
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
            | CtaStmt::WarpBarrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::ClusterArrive
            | CtaStmt::ClusterWait
            | CtaStmt::ReuseShared
            | CtaStmt::LaunchDependents
            | CtaStmt::GridDependencyWait
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => {}
            CtaStmt::ComputeFirst(value) | CtaStmt::Shuffle { value, .. } => *value = map(*value),
            CtaStmt::Exceeds { accs, limits, .. } => {
                accs.offset = map(accs.offset);
                limits.offset = map(limits.offset);
            }
            CtaStmt::LoadDsmem { rank, from, .. } => {
                *rank = map(*rank);
                from.offset = map(from.offset);
            }
            CtaStmt::GridBarrier { arrived: at } | CtaStmt::LoadRelaxed { from: at, .. } => {
                at.offset = map(at.offset);
            }
            CtaStmt::StoreDsmem { to, rank, value } => {
                to.offset = map(to.offset);
                *rank = map(*rank);
                *value = map(*value);
            }
            CtaStmt::Red { to, value, mask, .. } => {
                to.offset = map(to.offset);
                *value = map(*value);
                *mask = mask.map(&mut map);
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
            CtaStmt::Mma { acc, a, b, .. } | CtaStmt::Wgmma { acc, a, b, .. } => {
                for location in [acc, a, b] {
                    location.offset = map(location.offset);
                }
            }
        }
        mapped
    }

    /// The variable that is declared.
    pub fn declares(&self) -> Option<VarId> {
        match self {
            CtaStmt::Shuffle { var, .. }
            | CtaStmt::Exceeds { var, .. }
            | CtaStmt::LoadDsmem { var, .. }
            | CtaStmt::LoadRelaxed { var, .. } => Some(*var),
            _ => None,
        }
    }

    /// The buffer that is written by the time the statement has run.
    pub fn written(&self) -> Option<BufferId> {
        match self {
            CtaStmt::CpAsync { to, .. }
            | CtaStmt::TmaLoad { to, .. }
            | CtaStmt::StoreDsmem { to, .. }
            | CtaStmt::Red { to, .. }
            | CtaStmt::Ldmatrix { to, .. } => Some(to.buffer),
            CtaStmt::Mma { acc, .. } | CtaStmt::Wgmma { acc, .. } => Some(acc.buffer),
            CtaStmt::GridBarrier { arrived } => Some(arrived.buffer),
            _ => None,
        }
    }
}
