//! How a recurrence is shared out among CTAs and threads, and what a step takes by that.

use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::{DType, RnnCell};
use orch_thread::cta::{MAX_CLUSTER, MmaType, WARP};
use orch_thread::target::GpuTarget;
use std::fmt;

/// A schedule of the template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuRecurrenceSchedule {
    /// Sequences that the CTAs which share the hidden units work on.
    pub rows: usize,
    /// CTAs that share the hidden units.
    pub ctas: usize,
    /// How they hand hidden states to each other.
    pub exchange: Exchange,
    /// Hidden units of a CTA, a multiple of `lanes`.
    pub units: usize,
    /// How products are computed.
    pub engine: Engine,
    /// Hidden units of a thread in a product of [`Engine::SharedWeights`]; 1 otherwise.
    pub lanes: usize,
    /// Parts of the K dimension of a product, each accumulated by other threads; by another warp if weights are in registers.
    pub parts: usize,
    /// Of each part the extent of the K dimension whose weights are in shared memory.
    pub shared_k: usize,
}

/// How CTAs hand hidden states to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Through DSMEM, between barriers of a cluster: at most [`MAX_CLUSTER`] CTAs. One CTA alone needs no cluster.
    Cluster,
    /// Through global memory, between barriers of the grid: as many CTAs as there are SMs, on all GPUs that may run the code.
    Grid,
}

/// What multiplies, and where the weights are in all steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// Multiply-adds of f32, or f64. Weights are in shared memory as far as they fit, and read from L2 otherwise.
    SharedWeights,
    /// Multiply-adds of f32. The lanes of a warp share its part of the K dimension, 32 indices at a time, and have its weights in registers.
    RegisterWeights,
    /// `mma.sync`: a warp has the weights of its part of the K dimension in registers, as fragments.
    Mma(MmaType),
}

/// Most sequences of a cluster: each has accumulators in registers.
const MAX_ROWS: usize = 8;
/// The same of products by `mma.sync`, in tiles of [`MMA_SEQUENCES`].
const MAX_MMA_ROWS: usize = 32;
/// Sequences of a tile of `mma.sync`: N of `m16n8k16`.
pub(super) const MMA_SEQUENCES: usize = 8;
/// Columns of the weights in a tile of `mma.sync`: M of `m16n8k16`.
pub(super) const MMA_COLUMNS: usize = 16;
/// The extent of K that is loaded together for `mma.sync`: each of the four threads of a row 8 consecutive elements.
pub(super) const MMA_BLOCK_K: usize = 32;
/// Threads of a CTA beyond which registers become scarce.
const MAX_THREADS: usize = 512;
/// Accumulators that a thread has at most, in registers.
const MAX_ACCUMULATORS: usize = 96;
/// Registers of a thread beside its accumulators: weights in flight, offsets, inputs of cells. And beside weights that are in registers.
const OTHER_REGISTERS: usize = 72;
const OTHER_OF_LANES: usize = 48;
/// Most registers of a thread.
const MAX_REGISTERS: usize = 255;
/// Most sequences whose products take weights from registers by multiply-adds: each takes a reduction among lanes.
const MAX_LANE_ROWS: usize = 4;

// Constants of the model, fitted to 320 kernels of 12 layers on an H200: 94 % are within a factor of 1.5.
/// Cycles of a step without its products: barriers and cells of a CTA, and what a barrier of a cluster and stores through DSMEM add.
const CTA_STEP: f64 = 840.0;
const CLUSTER_STEP: f64 = 500.0;
/// What a barrier of the grid and the way of states through L2 add.
const GRID_STEP: f64 = 1760.0;
/// Bytes of L2 that an SM reads in a cycle, and of shared memory.
const L2_BYTES: f64 = 48.0;
const SHARED_BYTES: f64 = 86.0;
/// Bytes of L2 that all SMs read in a cycle.
const ALL_L2_BYTES: f64 = 5500.0;
/// Multiply-adds of an SM in a cycle that products of few sequences reach, with weights in memory and in registers.
const MULTIPLY_ADDS: f64 = 58.0;
const REGISTER_MULTIPLY_ADDS: f64 = 31.0;
/// Fragments of hidden states that a thread has in flight for `mma.sync`, of 8 elements each.
pub(super) const FRAGMENTS_IN_FLIGHT: usize = 8;
/// Multiply-adds of an SM in a cycle by `mma.sync`.
const MMA_MULTIPLY_ADDS: f64 = 1000.0;
/// Cycles of a warp for a block of [`MMA_BLOCK_K`].
const MMA_BLOCK_CYCLES: f64 = 150.0;
/// Cycles of an index of the K dimension whose weights come from L2, and of one whose come from shared memory, with those of one or two
/// others in flight: once, and for each sequence.
const L2_K_CYCLES: f64 = 270.0;
const SHARED_K_CYCLES: f64 = 70.0;
const ROW_K_CYCLES: f64 = 18.0;
/// Cycles of an accumulator of a part that a cell adds up.
const PARTIAL_CYCLES: f64 = 6.2;
/// Share of the bytes that are used of those that are read for fragments of weights, once.
const FRAGMENT_SHARE: f64 = 0.25;

impl GpuRecurrenceSchedule {
    /// Threads of a CTA: whole warps.
    pub fn threads(&self) -> usize {
        match self.engine {
            Engine::SharedWeights => (self.parts * self.units / self.lanes).next_multiple_of(WARP),
            Engine::RegisterWeights | Engine::Mma(_) => self.parts * WARP,
        }
    }

    /// CTAs of a cluster.
    pub fn cluster(&self) -> usize {
        match self.exchange {
            Exchange::Cluster => self.ctas,
            Exchange::Grid => 1,
        }
    }

    /// The extent of the K dimension of a part.
    pub fn part_k(&self, recurrence: &RecurrenceProgram) -> usize {
        recurrence.extents.hidden.div_ceil(self.parts)
    }

    /// Parts that share the hidden units among their CTAs: of directions and tiles of sequences.
    pub fn groups(&self, recurrence: &RecurrenceProgram) -> usize {
        recurrence.extents.directions * recurrence.extents.batch.div_ceil(self.rows)
    }

    /// CTAs of the grid.
    pub fn grid(&self, recurrence: &RecurrenceProgram) -> usize {
        self.groups(recurrence) * self.ctas
    }

    /// Columns of the weights that a CTA multiplies.
    pub(super) fn columns(&self, recurrence: &RecurrenceProgram) -> usize {
        recurrence.spec.cell.gates() * self.units
    }

    /// Elements between the accumulators of neighbouring sequences in shared memory: of `mma.sync` full tiles, and what lets the 32
    /// threads of a warp store to different banks.
    pub(super) fn accumulators_of_row(&self, recurrence: &RecurrenceProgram) -> usize {
        let columns = self.columns(recurrence);
        match self.engine {
            Engine::SharedWeights | Engine::RegisterWeights => columns,
            Engine::Mma(_) => columns.next_multiple_of(MMA_COLUMNS) + 4,
        }
    }

    /// Whether products take hidden states from shared memory, of all units.
    pub(super) fn shares_states(&self) -> bool {
        self.engine == Engine::SharedWeights
    }

    /// Bytes of shared memory: weights, hidden states, accumulators of all parts and states of the own units.
    fn shared_bytes(&self, recurrence: &RecurrenceProgram) -> usize {
        let size = recurrence.compute_type().size_bytes();
        let hidden = recurrence.extents.hidden;
        let weights = self.shared_k * self.parts * self.columns(recurrence) * weight_bytes(recurrence);
        let copies = match (self.exchange, recurrence.spec.cell) {
            (Exchange::Grid, _) if !self.shares_states() => 0,
            (Exchange::Grid, _) => 1,
            (Exchange::Cluster, RnnCell::Gru { linear_before_reset: false }) => 3,
            (Exchange::Cluster, _) => 2,
        };
        let all = copies * self.rows * hidden;
        let accumulators = self.parts * self.rows * self.accumulators_of_row(recurrence);
        let own = 2 * self.rows * self.units;
        // Each buffer begins at a multiple of 128 bytes.
        weights + (all + accumulators + own) * size + 8 * 128
    }

    /// Registers of a thread.
    fn registers(&self, recurrence: &RecurrenceProgram) -> usize {
        let columns = self.columns(recurrence);
        let part_k = self.part_k(recurrence);
        match self.engine {
            Engine::SharedWeights => self.rows * recurrence.spec.cell.gates() * self.lanes + OTHER_REGISTERS,
            Engine::RegisterWeights => columns * (part_k.div_ceil(WARP) + 1) + OTHER_OF_LANES,
            Engine::Mma(_) => {
                let tiles = columns.div_ceil(MMA_COLUMNS);
                // Of 16 x 16 weights a thread has 4 registers, of 16 x 8 accumulators as well, of 32 x 8 states in flight 4.
                let accumulators = tiles * self.rows / MMA_SEQUENCES;
                4 * (tiles * part_k.div_ceil(16) + accumulators + FRAGMENTS_IN_FLIGHT) + OTHER_REGISTERS
            }
        }
    }

    /// Modelled cycles of the kernel.
    pub fn cycles(&self, recurrence: &RecurrenceProgram, target: &GpuTarget) -> f64 {
        let gates = recurrence.spec.cell.gates() as f64;
        let part_k = self.part_k(recurrence);
        let weights = (part_k * self.parts) as f64 * gates * self.units as f64;
        let bytes = weights * weight_bytes(recurrence) as f64;
        let at_once = self.at_once(target).max(1);
        let resident = self.grid(recurrence).min(at_once) as f64;
        let read_l2 = |bytes: f64| (bytes / L2_BYTES).max(bytes * resident / ALL_L2_BYTES);
        let multiply_adds = weights * self.rows as f64;
        let (product, once) = match self.engine {
            Engine::SharedWeights => {
                let shared = self.shared_k as f64 / part_k.max(1) as f64;
                let read = read_l2(bytes * (1.0 - shared)) + bytes * shared / SHARED_BYTES;
                let shared_cycles = SHARED_K_CYCLES + ROW_K_CYCLES * self.rows as f64;
                let latency =
                    (part_k - self.shared_k) as f64 * L2_K_CYCLES + self.shared_k as f64 * shared_cycles;
                (read.max(multiply_adds / MULTIPLY_ADDS).max(latency), bytes * shared / L2_BYTES)
            }
            Engine::RegisterWeights => (multiply_adds / REGISTER_MULTIPLY_ADDS, bytes / L2_BYTES),
            Engine::Mma(_) => {
                let padded = self.columns(recurrence).next_multiple_of(MMA_COLUMNS) as f64;
                let padding = padded / self.columns(recurrence) as f64;
                let blocks = part_k.div_ceil(MMA_BLOCK_K) as f64;
                let product = multiply_adds * padding / MMA_MULTIPLY_ADDS + blocks * MMA_BLOCK_CYCLES;
                (product, bytes / (L2_BYTES * FRAGMENT_SHARE))
            }
        };
        let cells = (self.rows * self.units).div_ceil(self.threads()) as f64;
        let reduce = cells * gates * self.parts as f64 * PARTIAL_CYCLES;
        let synchronise = CTA_STEP
            + match self.exchange {
                Exchange::Cluster if self.ctas == 1 => 0.0,
                Exchange::Cluster => CLUSTER_STEP,
                Exchange::Grid => {
                    let states = (self.rows * recurrence.extents.hidden) as f64;
                    GRID_STEP + read_l2(states * weight_bytes(recurrence) as f64)
                }
            };
        let passes =
            if recurrence.spec.cell == (RnnCell::Gru { linear_before_reset: false }) { 2.0 } else { 1.0 };
        let step = passes * synchronise + reduce + product;
        let waves = self.grid(recurrence).div_ceil(at_once) as f64;
        waves * (recurrence.extents.time as f64 * step + once)
    }

    /// CTAs that run at the same time, one on an SM.
    fn at_once(&self, target: &GpuTarget) -> usize {
        match self.exchange {
            Exchange::Cluster => target.ctas_in_clusters(self.ctas),
            Exchange::Grid => target.sms,
        }
    }

    /// Whether threads, registers and shared memory suffice, and all CTAs that wait for each other run at the same time.
    fn fits(&self, recurrence: &RecurrenceProgram, target: &GpuTarget) -> bool {
        let registers = self.registers(recurrence);
        let most = match self.engine {
            Engine::SharedWeights => MAX_ACCUMULATORS + OTHER_REGISTERS,
            Engine::RegisterWeights | Engine::Mma(_) => MAX_REGISTERS,
        };
        self.threads() <= MAX_THREADS
            && registers <= most
            && self.threads() * registers <= target.sm_registers
            && self.shared_bytes(recurrence) <= target.shared_bytes
            && (self.exchange == Exchange::Cluster || self.grid(recurrence) <= target.least_sms)
    }
}

/// Bytes of a weight as it is stored.
fn weight_bytes(recurrence: &RecurrenceProgram) -> usize {
    recurrence.arg(RecurrenceProgram::R).dtype.size_bytes()
}

/// The schedules that fit the target, the fastest by the model first; none if states do not fit in shared memory.
pub fn schedules(recurrence: &RecurrenceProgram, target: &GpuTarget) -> Vec<GpuRecurrenceSchedule> {
    let extents = recurrence.extents;
    if extents.batch == 0 || extents.hidden == 0 || extents.directions == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let clusters = [1, 2, 4, MAX_CLUSTER].into_iter().filter(|&cluster| cluster == 1 || target.has_clusters);
    let lanes = [4, 2, 1].into_iter().find(|&lanes| extents.hidden.is_multiple_of(lanes)).unwrap_or(1);
    for ctas in clusters.filter(|&cluster| cluster * lanes <= extents.hidden) {
        let units = extents.hidden.div_ceil(ctas).next_multiple_of(lanes);
        let share = UnitShare { exchange: Exchange::Cluster, ctas, units, lanes };
        found.extend(with_shared_weights(share, recurrence, target));
    }
    if exchanges_in_grid(recurrence) {
        for units in (0..8).map(|power| 1 << power).filter(|&units| 2 * units <= extents.hidden) {
            let (ctas, lanes) = (extents.hidden.div_ceil(units), lanes.min(units));
            let share = UnitShare { exchange: Exchange::Grid, ctas, units, lanes };
            found.extend(with_shared_weights(share, recurrence, target));
            found.extend(with_weights_in_registers(units, recurrence, target));
        }
    }
    found.sort_by(|a, b| a.cycles(recurrence, target).total_cmp(&b.cycles(recurrence, target)));
    found
}

/// Whether CTAs may exchange hidden states in the grid: there is more than one step, and products have the hidden state as their
/// operand.
fn exchanges_in_grid(recurrence: &RecurrenceProgram) -> bool {
    recurrence.extents.time > 1 && recurrence.spec.cell != (RnnCell::Gru { linear_before_reset: false })
}

/// How hidden units are shared out: the fields of a schedule.
struct UnitShare {
    exchange: Exchange,
    ctas: usize,
    units: usize,
    lanes: usize,
}

/// The schedules of multiply-adds with as many weights in shared memory as fit.
fn with_shared_weights(
    UnitShare { exchange, ctas, units, lanes }: UnitShare,
    recurrence: &RecurrenceProgram,
    target: &GpuTarget,
) -> Vec<GpuRecurrenceSchedule> {
    let extents = recurrence.extents;
    let mut found = Vec::new();
    for rows in [1, 2, 4, MAX_ROWS].into_iter().filter(|&rows| rows < 2 * extents.batch) {
        for parts in (0..8).map(|power| 1 << power).filter(|&parts| parts <= extents.hidden) {
            let engine = Engine::SharedWeights;
            let schedule =
                GpuRecurrenceSchedule { rows, ctas, exchange, units, engine, lanes, parts, shared_k: 0 };
            if schedule.fits(recurrence, target) {
                found.push(with_most_shared(schedule, recurrence, target));
            }
        }
    }
    found
}

/// The schedule with as many weights in shared memory as fit.
fn with_most_shared(
    schedule: GpuRecurrenceSchedule,
    recurrence: &RecurrenceProgram,
    target: &GpuTarget,
) -> GpuRecurrenceSchedule {
    let free = target.shared_bytes - schedule.shared_bytes(recurrence);
    let k_bytes = schedule.parts * schedule.columns(recurrence) * weight_bytes(recurrence);
    // Weights that are read once only gain nothing.
    let is_reread = recurrence.extents.time > 1;
    let most = if is_reread { free / k_bytes.max(1) } else { 0 };
    GpuRecurrenceSchedule { shared_k: most.min(schedule.part_k(recurrence)), ..schedule }
}

/// The schedules with weights in registers, of CTAs of `units` hidden units: those of all warps are whole blocks along K.
fn with_weights_in_registers(
    units: usize,
    recurrence: &RecurrenceProgram,
    target: &GpuTarget,
) -> Vec<GpuRecurrenceSchedule> {
    let extents = recurrence.extents;
    if !extents.hidden.is_multiple_of(MMA_BLOCK_K) || !extents.hidden.is_multiple_of(units) {
        return Vec::new();
    }
    let (engine, rows): (Engine, Vec<usize>) = match recurrence.arg(RecurrenceProgram::R).dtype {
        DType::F16 => (Engine::Mma(MmaType::F16), mma_rows(extents.batch)),
        DType::BF16 => (Engine::Mma(MmaType::Bf16), mma_rows(extents.batch)),
        DType::F32 => (
            Engine::RegisterWeights,
            [1, 2, MAX_LANE_ROWS].into_iter().filter(|&rows| rows < 2 * extents.batch).collect(),
        ),
        _ => return Vec::new(),
    };
    let (ctas, exchange) = (extents.hidden / units, Exchange::Grid);
    let blocks = extents.hidden / MMA_BLOCK_K;
    let of_rows = |rows: usize| {
        (1..=MAX_THREADS / WARP).filter(move |&parts| blocks.is_multiple_of(parts)).map(move |parts| {
            GpuRecurrenceSchedule { rows, ctas, exchange, units, engine, lanes: 1, parts, shared_k: 0 }
        })
    };
    let fits = |schedule: &GpuRecurrenceSchedule| schedule.fits(recurrence, target);
    rows.into_iter().flat_map(of_rows).filter(fits).collect()
}

/// Sequences of CTAs that multiply by `mma.sync`: full tiles.
fn mma_rows(batch: usize) -> Vec<usize> {
    let rows = (1..=MAX_MMA_ROWS / MMA_SEQUENCES).map(|tiles| tiles * MMA_SEQUENCES);
    rows.filter(|&rows| rows < batch + MMA_SEQUENCES).collect()
}

impl fmt::Display for GpuRecurrenceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, ctas, exchange, units, engine, lanes, parts, shared_k } = self;
        let together = match exchange {
            Exchange::Cluster => "cluster",
            Exchange::Grid => "grid",
        };
        write!(f, "{rows} sequences, {together} of {ctas} CTAs of {units} units, {parts} parts, ")?;
        match engine {
            Engine::SharedWeights => write!(f, "{lanes} units a thread, {shared_k} of each part shared"),
            Engine::RegisterWeights => write!(f, "weights in registers"),
            Engine::Mma(ty) => write!(f, "mma of {}", ty.name()),
        }
    }
}
