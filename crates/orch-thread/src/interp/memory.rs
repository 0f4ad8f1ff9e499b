//! Buffers of the thread-program interpreter: element storage with bounds, initialisation and race checks.

use crate::cta::{RedOp, WARP};
use crate::interp::error::{AccessProblem, ExecError};
use crate::program::{Buffer, Scope, ThreadProgram};
use orch_compute::expr::BufferId;
use orch_compute::expr::scalar::Number;
use orch_ir::{DType, Shape, Tensor, TensorSizeError};
use rustc_hash::FxHashMap;

/// The elements of one global buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct BufferData {
    /// Element type.
    pub dtype: DType,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

impl BufferData {
    /// A buffer of zeros.
    pub fn zeros(dtype: DType, elems: usize) -> Self {
        Self { dtype, bytes: vec![0; elems * dtype.size_bytes()] }
    }

    /// The elements of a tensor, in row-major order.
    pub fn from_tensor(tensor: &Tensor) -> Self {
        Self { dtype: tensor.dtype(), bytes: tensor.bytes().to_vec() }
    }

    /// The elements as a tensor.
    ///
    /// # Errors
    /// If `shape` has another number of elements.
    pub fn to_tensor(&self, shape: impl Into<Shape>) -> Result<Tensor, TensorSizeError> {
        Tensor::from_bytes(self.dtype, shape.into(), self.bytes.clone().into())
    }

    /// The number of elements.
    pub fn elems(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes()
    }

    fn get(&self, index: usize) -> Number {
        let size = self.dtype.size_bytes();
        let mut bits = [0u8; 8];
        bits[..size].copy_from_slice(&self.bytes[index * size..][..size]);
        Number::from_bits(self.dtype, u64::from_le_bytes(bits))
    }

    fn set(&mut self, index: usize, value: Number) {
        let size = self.dtype.size_bytes();
        let bits = value.to_bits(self.dtype).to_le_bytes();
        self.bytes[index * size..][..size].copy_from_slice(&bits[..size]);
    }
}

/// All buffers of a running program, with what each worker did to each element. A worker is a task, or a thread of a
/// CTA; workers of one cluster have places `0..` in it, and scratch buffers have a part for each.
pub(crate) struct Memory<'a> {
    program: &'a ThreadProgram,
    data: Vec<BufferData>,
    /// Per element of a written or scratch buffer: 0, or 1 + the worker that wrote it.
    writer: Vec<Vec<u32>>,
    /// Per element of an updated buffer of CTAs that meet at grid barriers: the times of the last write and the last read.
    exchanged: Vec<Vec<[u32; 2]>>,
    /// Per element of a written buffer: 0, or 1 + the worker that read it.
    reader: Vec<Vec<u32>>,
    /// Per element of a shared buffer: the last write and the last read.
    shared: Vec<Vec<[Touch; 2]>>,
    /// Elements of shared buffers that copies in flight will write, and the worker that started them.
    in_flight: FxHashMap<(BufferId, usize), u32>,
    /// The time: counts barriers, of warps too, and arrivals at empty mbarriers.
    now: u32,
    /// The time of the last barrier: accesses to shared memory since then may happen in any order.
    cta_time: u32,
    /// The time of the last barrier of each warp of the cluster: accesses by its threads since then may happen in any order.
    warp_times: Vec<u32>,
    /// The time of the last barrier of the whole cluster, or barrier group.
    cluster_time: u32,
    /// The time from which reads are unordered with TMA loads: earlier ones have ended.
    tma_time: u32,
    /// Whether the `reused_shared` buffers own the shared memory.
    is_reused: bool,
    threads: usize,
    /// Workers of the phases before, whose accesses are ordered before all of this one.
    earlier: u32,
    /// The number of the current worker among all workers of the program.
    worker: u32,
    /// The place of the current worker in its cluster: threads are numbered CTA by CTA.
    place: usize,
}

/// When a shared element was last read or written, and by which thread.
#[derive(Clone, Copy, Default)]
struct Touch {
    /// 0, or 1 + the place of the thread in the cluster, or [`SEVERAL`].
    thread: u32,
    time: u32,
    /// Whether it was a reduction, which has an order with other accesses only.
    is_red: bool,
    /// Whether it was a thread of another CTA than the buffer's.
    is_peer: bool,
}

/// A kind of access to an element of shared memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// A reduction: reads and writes, in any order with others.
    Red,
    /// The issue of a TMA load that will write it.
    TmaLoad,
}

/// More than one thread.
const SEVERAL: u32 = u32::MAX;

impl<'a> Memory<'a> {
    /// Takes the contents of global buffers; scratch starts undefined.
    pub(crate) fn new(program: &'a ThreadProgram, globals: &[BufferData]) -> Result<Self, ExecError> {
        let expected = program.buffers.iter().filter(|b| b.scope.is_global()).count();
        let (threads, cluster) = program.cta.as_ref().map_or((1, 1), |cta| (cta.threads, cta.synchronised()));
        let parts = |scope: Scope| match scope {
            Scope::Input | Scope::Constant | Scope::Output | Scope::Updated => 1,
            Scope::Shared | Scope::ReusedShared => cluster,
            Scope::Scratch => threads * cluster,
        };
        if expected != globals.len() {
            return Err(ExecError::BufferCount { expected, given: globals.len() });
        }
        let mut data = Vec::new();
        for (index, buffer) in program.buffers.iter().enumerate() {
            match globals.get(index) {
                Some(global) if buffer.scope.is_global() => {
                    check_global(buffer, global)?;
                    data.push(global.clone());
                }
                None if !buffer.scope.is_global() => {
                    data.push(BufferData::zeros(buffer.dtype, buffer.elems * parts(buffer.scope)));
                }
                _ => return Err(ExecError::BufferOrder { buffer: buffer.name.clone() }),
            }
        }
        let table = |tracked: &dyn Fn(Scope) -> bool| {
            let elems = |b: &Buffer| if tracked(b.scope) { b.elems * parts(b.scope) } else { 0 };
            program.buffers.iter().map(|b| vec![0; elems(b)]).collect()
        };
        let meets = program.cta.as_ref().is_some_and(|cta| cta.barrier_group > 1);
        let exchanged = (program.buffers.iter())
            .map(|b| vec![[0; 2]; if meets && b.scope == Scope::Updated { b.elems } else { 0 }])
            .collect();
        let writer = table(&|scope| scope.is_written() || scope == Scope::Scratch);
        let reader = table(&|scope| scope.is_written());
        let shared = (program.buffers.iter())
            .map(|b| vec![[Touch::default(); 2]; if b.scope.is_shared() { b.elems * cluster } else { 0 }])
            .collect();
        Ok(Self {
            program,
            data,
            writer,
            exchanged,
            reader,
            shared,
            in_flight: FxHashMap::default(),
            now: 1,
            cta_time: 1,
            warp_times: vec![1; (threads * cluster).div_ceil(WARP)],
            cluster_time: 1,
            tma_time: 1,
            is_reused: false,
            threads,
            earlier: 0,
            worker: 0,
            place: 0,
        })
    }

    /// Starts a phase with this task, where a task is one worker.
    pub(crate) fn start_phase(&mut self, task: usize) {
        self.earlier = task as u32;
    }

    /// Whether an access of a worker, given as 1 + its number, may happen at the same time as one of the current worker.
    fn is_concurrent(&self, other: u32) -> bool {
        other > self.earlier && other != self.worker + 1
    }

    /// Starts a cluster: scratch and shared memory are undefined again.
    pub(crate) fn start_cluster(&mut self) {
        (self.now, self.cta_time, self.cluster_time, self.tma_time) = (1, 1, 1, 1);
        self.warp_times.fill(1);
        self.is_reused = false;
        for (id, buffer) in self.program.buffers.iter().enumerate() {
            match buffer.scope {
                Scope::Scratch => self.writer[id].fill(0),
                Scope::Shared | Scope::ReusedShared => self.shared[id].fill([Touch::default(); 2]),
                Scope::Input | Scope::Constant | Scope::Output | Scope::Updated => {}
            }
        }
    }

    /// Makes the worker at a place of the cluster that starts with task `first` the one that accesses memory.
    pub(crate) fn switch_to(&mut self, first: usize, place: usize) {
        self.place = place;
        self.worker = (first * self.threads + place) as u32;
    }

    /// All threads of each CTA have reached a barrier, or all of the cluster.
    pub(crate) fn barrier(&mut self, whole_cluster: bool) {
        self.now += 1;
        (self.cta_time, self.tma_time) = (self.now, self.now);
        if whole_cluster {
            self.cluster_time = self.now;
        }
    }

    /// All threads of a barrier group have arrived at a barrier with this counter.
    pub(crate) fn grid_barrier(&mut self, id: BufferId, counter: i64) -> Result<(), ExecError> {
        let index = self.position(id, counter)?;
        let arrived = self.data[id.index()].get(index).as_i64().and_then(|value| i32::try_from(value).ok());
        match arrived {
            Some(arrived @ (0 | i32::MIN)) => {
                self.data[id.index()].set(index, Number::Int((arrived ^ i32::MIN).into()));
                self.barrier(true);
                Ok(())
            }
            _ => Err(self.error_at(id, index, AccessProblem::NotCleared)),
        }
    }

    /// Reads an element of an updated buffer that any CTA of the barrier group may have written.
    pub(crate) fn load_relaxed(&mut self, id: BufferId, offset: i64) -> Result<Number, ExecError> {
        let index = self.position(id, offset)?;
        let me = self.worker + 1;
        match self.writer[id.index()][index] {
            0 => return Err(self.error_at(id, index, AccessProblem::Uninitialised)),
            writer if writer != me && self.exchanged[id.index()][index][0] >= self.cluster_time => {
                return Err(self.race(id, index, writer - 1));
            }
            _ => {}
        }
        self.reader[id.index()][index] = me;
        self.exchanged[id.index()][index][1] = self.now;
        Ok(self.data[id.index()].get(index))
    }

    /// The threads of the warp with the thread at a place of the cluster have reached a barrier.
    pub(crate) fn warp_barrier(&mut self, place: usize) {
        self.now += 1;
        self.warp_times[place / WARP] = self.now;
    }

    /// All threads of a CTA arrive at an empty mbarrier; returns the time.
    pub(crate) fn arrive_empty(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// TMA loads from here on are ordered after what was read before the arrival at an empty mbarrier at this time.
    pub(crate) fn wait_empty(&mut self, time: u32) {
        self.tma_time = self.tma_time.max(time);
    }

    /// The `reused_shared` buffers own the shared memory from here on.
    pub(crate) fn reuse_shared(&mut self) {
        self.is_reused = true;
    }

    /// True if a copy has been started that is not done.
    pub(crate) fn has_copies(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Marks an element that a copy will write.
    pub(crate) fn start_copy(&mut self, id: BufferId, offset: i64) -> Result<(), ExecError> {
        self.start(id, offset, Access::Write)
    }

    /// Marks an element that a TMA load will write.
    pub(crate) fn start_tma(&mut self, id: BufferId, offset: i64) -> Result<(), ExecError> {
        self.start(id, offset, Access::TmaLoad)
    }

    fn start(&mut self, id: BufferId, offset: i64, access: Access) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        self.shared_access(id, index, access)?;
        self.in_flight.insert((id, index), self.worker);
        Ok(())
    }

    /// Writes an element whose copy is done.
    pub(crate) fn finish_copy(&mut self, id: BufferId, offset: i64, value: Number) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        self.in_flight.remove(&(id, index));
        self.store(id, offset, value)
    }

    /// Writes an element of a TMA load that has arrived: the threads of the CTA, all of which have waited for it, may read it.
    pub(crate) fn finish_tma(&mut self, id: BufferId, offset: i64, value: Number) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        self.in_flight.remove(&(id, index));
        self.data[id.index()].set(index, value);
        let before = Touch { thread: SEVERAL, time: self.cta_time - 1, ..Touch::default() };
        self.shared[id.index()][index] = [before, Touch::default()];
        Ok(())
    }

    /// Sets whether a scratch element of the current worker is defined; it is not while a `wgmma` that writes it is in flight.
    pub(crate) fn set_defined(
        &mut self,
        id: BufferId,
        offset: i64,
        is_defined: bool,
    ) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        self.writer[id.index()][index] = if is_defined { self.worker + 1 } else { 0 };
        Ok(())
    }

    /// Reads an element of the shared buffer of the CTA at another rank of the cluster.
    pub(crate) fn load_from(&mut self, rank: i64, id: BufferId, offset: i64) -> Result<Number, ExecError> {
        let index = self.position_at(rank, id, offset)?;
        self.load_at(id, index)
    }

    /// Writes an element of the shared buffer of the CTA at a rank of the cluster.
    pub(crate) fn store_to(
        &mut self,
        rank: i64,
        id: BufferId,
        offset: i64,
        value: Number,
    ) -> Result<(), ExecError> {
        let index = self.position_at(rank, id, offset)?;
        self.shared_access(id, index, Access::Write)?;
        self.data[id.index()].set(index, value);
        Ok(())
    }

    /// Combines a number with an element of a shared buffer of i32.
    pub(crate) fn red(
        &mut self,
        op: RedOp,
        id: BufferId,
        offset: i64,
        value: Number,
    ) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        self.shared_access(id, index, Access::Red)?;
        let number = |value: Number| value.as_i64().and_then(|value| i32::try_from(value).ok()).unwrap_or(0);
        let combined = op.combine(number(self.data[id.index()].get(index)), number(value));
        self.data[id.index()].set(index, Number::Int(combined.into()));
        Ok(())
    }

    /// The position of an element in the data of its shared buffer, in the part of the CTA at a rank.
    fn position_at(&self, rank: i64, id: BufferId, offset: i64) -> Result<usize, ExecError> {
        let elems = self.program.buffer(id).elems;
        let cluster = self.data[id.index()].elems() / elems.max(1);
        let within = self.position(id, offset)? % elems.max(1);
        match usize::try_from(rank).ok().filter(|&rank| rank < cluster) {
            Some(rank) => Ok(rank * elems + within),
            None => Err(self.error_at(id, within, AccessProblem::NoSuchRank)),
        }
    }

    /// Checks and records an access to shared memory.
    fn shared_access(&mut self, id: BufferId, index: usize, access: Access) -> Result<(), ExecError> {
        let (me, is_write) = (self.place as u32 + 1, access != Access::Read);
        let owns_memory = (self.program.buffer(id).scope == Scope::ReusedShared) == self.is_reused;
        if !owns_memory {
            return Err(self.error_at(id, index, AccessProblem::Reused));
        }
        let is_peer = self.place / self.threads != index / self.program.buffer(id).elems;
        if let Some(&worker) = self.in_flight.get(&(id, index)) {
            return Err(self.race(id, index, worker));
        }
        let [write, read] = self.shared[id.index()][index];
        if write.thread == 0 && matches!(access, Access::Read | Access::Red) {
            return Err(self.error_at(id, index, AccessProblem::Uninitialised));
        }
        let read_since = if access == Access::TmaLoad { self.tma_time } else { self.cta_time };
        let reads = is_write.then_some((read, read_since));
        for (touch, since) in [(write, self.cta_time)].into_iter().chain(reads) {
            // Accesses by other threads that no barrier separates from this one.
            let is_of_warp = touch.thread.wrapping_sub(1) as usize / WARP == self.place / WARP;
            let since = match is_peer || touch.is_peer {
                true => self.cluster_time,
                // TMA loads are issued by a thread, and run by themselves.
                false if is_of_warp && access != Access::TmaLoad => {
                    since.max(self.warp_times[self.place / WARP])
                }
                false => since,
            };
            let is_ordered = touch.time < since || access == Access::Red && touch.is_red;
            if touch.thread != 0 && touch.thread != me && !is_ordered {
                return Err(self.race(id, index, touch.thread.wrapping_sub(1)));
            }
        }
        let touch = &mut self.shared[id.index()][index][usize::from(!is_write)];
        let has_others = touch.thread != 0 && touch.thread != me && touch.time >= self.cta_time;
        *touch = Touch {
            thread: if has_others { SEVERAL } else { me },
            time: self.now,
            is_red: access == Access::Red,
            is_peer: is_peer || has_others && touch.is_peer,
        };
        Ok(())
    }

    /// The global buffers after the run.
    pub(crate) fn into_globals(mut self) -> Vec<BufferData> {
        self.data.truncate(self.program.buffers.iter().filter(|b| b.scope.is_global()).count());
        self.data
    }

    /// For each global buffer, how many elements of an output no task has written.
    pub(crate) fn unwritten(&self) -> Vec<usize> {
        (self.program.buffers.iter().zip(&self.writer))
            .filter(|(buffer, _)| buffer.scope.is_global())
            .map(|(buffer, writer)| match buffer.scope {
                Scope::Updated => 0,
                _ => writer.iter().filter(|&&w| w == 0).count(),
            })
            .collect()
    }

    /// Reads one element.
    pub(crate) fn load(&mut self, id: BufferId, offset: i64) -> Result<Number, ExecError> {
        let index = self.position(id, offset)?;
        self.load_at(id, index)
    }

    /// Reads one element of an operand of an MMA: NaN if it was not written, as in rows of A whose accumulators are not used.
    pub(crate) fn load_operand(&mut self, id: BufferId, offset: i64) -> Result<Number, ExecError> {
        match self.load(id, offset) {
            Err(ExecError::Access { problem: AccessProblem::Uninitialised, .. }) => {
                Ok(Number::Float(f64::NAN))
            }
            loaded => loaded,
        }
    }

    fn load_at(&mut self, id: BufferId, index: usize) -> Result<Number, ExecError> {
        let me = self.worker + 1;
        let buffer = self.program.buffer(id);
        if buffer.scope.is_shared() {
            self.shared_access(id, index, Access::Read)?;
        } else if !buffer.scope.is_read_only() {
            match self.writer[id.index()][index] {
                0 if buffer.scope == Scope::Updated => {}
                0 => return Err(self.error_at(id, index, AccessProblem::Uninitialised)),
                // Scratch that is not undefined is of a task of this one's group.
                writer if self.is_concurrent(writer) && buffer.scope != Scope::Scratch => {
                    return Err(self.race(id, index, writer - 1));
                }
                _ => {}
            }
        }
        if buffer.scope.is_written() {
            self.reader[id.index()][index] = me;
        }
        Ok(self.data[id.index()].get(index))
    }

    /// Writes one element.
    pub(crate) fn store(&mut self, id: BufferId, offset: i64, value: Number) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        let me = self.worker + 1;
        match self.program.buffer(id).scope {
            Scope::Input | Scope::Constant => {
                return Err(self.error_at(id, index, AccessProblem::StoreToInput));
            }
            Scope::Output | Scope::Updated => {
                // Accesses before the last grid barrier are ordered.
                let times = self.exchanged[id.index()].get(index).copied().unwrap_or([u32::MAX; 2]);
                let others = [self.writer[id.index()][index], self.reader[id.index()][index]];
                for (other, time) in others.into_iter().zip(times) {
                    if self.is_concurrent(other) && time >= self.cluster_time {
                        return Err(self.race(id, index, other - 1));
                    }
                }
            }
            Scope::Shared | Scope::ReusedShared => {
                self.shared_access(id, index, Access::Write)?;
                self.data[id.index()].set(index, value);
                return Ok(());
            }
            Scope::Scratch => {}
        }
        self.writer[id.index()][index] = me;
        if let Some(times) = self.exchanged[id.index()].get_mut(index) {
            times[0] = self.now;
        }
        self.data[id.index()].set(index, value);
        Ok(())
    }

    /// The position of an element in the data of its buffer, in the part of the current worker.
    pub(super) fn position(&self, id: BufferId, offset: i64) -> Result<usize, ExecError> {
        let buffer = self.program.buffer(id);
        let part = match buffer.scope {
            Scope::Input | Scope::Constant | Scope::Output | Scope::Updated => 0,
            Scope::Shared | Scope::ReusedShared => self.place / self.threads,
            Scope::Scratch => self.place,
        };
        let index = usize::try_from(offset).ok().filter(|&index| index < buffer.elems);
        index.map(|index| part * buffer.elems + index).ok_or_else(|| ExecError::OutOfBounds {
            buffer: buffer.name.clone(),
            elems: buffer.elems,
            offset,
            task: self.worker as usize,
        })
    }

    fn race(&self, id: BufferId, index: usize, other: u32) -> ExecError {
        self.error_at(id, index, AccessProblem::Race { other: other as usize })
    }

    fn error_at(&self, id: BufferId, index: usize, problem: AccessProblem) -> ExecError {
        let buffer = self.program.buffer(id).name.clone();
        ExecError::Access { buffer, index, task: self.worker as usize, problem }
    }
}

fn check_global(buffer: &Buffer, global: &BufferData) -> Result<(), ExecError> {
    if global.dtype == buffer.dtype && global.bytes.len() == buffer.bytes() {
        return Ok(());
    }
    Err(ExecError::BufferType {
        buffer: buffer.name.clone(),
        expected: (buffer.dtype, buffer.elems),
        given: (global.dtype, global.elems()),
    })
}
