//! What a kernel costs by its sketch and counts, and the counts that cost least.

use super::algebra::{GRID, LOOP, WHOLE};
use super::tile::{Atom, Dim, Origin, Sketch, SketchStep, Source, TileOp};
use crate::graph::{MuGraph, Node, TensorId};
use crate::op::{Op, elems};
use crate::tiling::{PART_MULTIPLE, part_size};
use orch_thread::cta::WARP_GROUP_ROWS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Elements of uneven parts: rows of one warp group, and of two; keys of an iteration.
const UNEVEN_PARTS: [usize; 2] = [64, 128];
/// Most counts that are tried for an index: those of a power of two, and of three times one, all.
const MOST_DIVISORS: usize = 24;
/// The K dimension of streamed operands is a multiple of this.
const STREAM_TERMS: usize = 128;
/// How many times as long bytes take that one kernel stores and the next one loads: all move at once, at its end and at the start.
const HANDED_ON: f64 = 2.0;
/// Bytes from one row of an operand to the next one from which on no hardware prefetcher goes on with the next row: a page.
const FAR_BYTES: usize = 4096;
/// Columns of scores of which [`LatencyHiding`] says how long they take.
const GROUP_COLUMNS: usize = 64;
/// Most columns of an iteration of which it was measured.
const MOST_COLUMNS: usize = 128;
/// Bytes of registers of an SM, and of a warp group what it takes for indices, maxima, sums and limits.
const SM_REGISTER_BYTES: usize = 256 << 10;
const GROUP_REGISTER_BYTES: usize = 13 << 10;
/// What it costs to convert an element that products take, in elementwise operations: it goes through shared memory, with barriers,
/// and products wait. Attention of f32 tensors of 16 heads of 64 and 128, 2048 keys, takes an H100 4 to 5 times as long as of f16.
const CONVERTED_OPS: usize = 54;
/// How many times as long products take by `mma` as by wgmma, which has whole warp groups of rows. H200, heads of 64: blocks of 65 of 325 rows take
/// 62 us, of 157 of 785 72 us, which cuDNN takes 31 and 47.
const MMA_SYNC: f64 = 1.6;
/// How many times as long products take of tiles whose columns are no whole instructions: threads load them, not TMA.
const LOADED_BY_THREADS: f64 = 2.0;
/// Most warp groups that hide each other's latency.
const MOST_HIDING: usize = 4;
/// Most warp groups of a block.
const MOST_GROUPS: usize = 2;
/// Microseconds in which the two CTAs of a cluster add up their split-K accumulators.
const EXCHANGE_US: f64 = 0.5;
/// Least iterations of each of them.
const LEAST_ITERATIONS: usize = 2;

/// A way to stream the right operand of a skinny GEMM, of which shared memory does not hold all that a block reads.
struct Streaming {
    /// Least and most rows (`m`).
    rows: [usize; 2],
    /// Rows and columns of the accumulator of an instruction.
    row_parts: usize,
    columns: usize,
    /// Least K dimension over all iterations.
    terms: usize,
    /// Most accumulator elements of all products of a block.
    accumulators: usize,
    /// CTAs of a cluster that share a block; all clusters run at once.
    cores: usize,
}

/// How much of the latency of a loop of products and exponentials other warp groups of the SM hide. A warp group of [`WARP_GROUP_ROWS`]
/// rows waits for its product, then for its exponentials. Times are of [`GROUP_COLUMNS`] columns, as multiples of the time with
/// enough warp groups on an SM.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyHiding {
    /// One warp group alone: each iteration.
    pub iteration: f64,
    /// One warp group alone: in addition, by columns.
    pub columns: f64,
    /// Any number of warp groups.
    pub busy: f64,
}

impl LatencyHiding {
    /// The time of an iteration of so many columns, where `groups` warp groups share an SM, as a multiple of that with enough of them.
    fn of(self, columns: usize, groups: usize) -> f64 {
        let groups = groups.min(MOST_HIDING) as f64;
        let alone = self.iteration * GROUP_COLUMNS as f64 / columns.min(MOST_COLUMNS) as f64 + self.columns;
        ((alone / groups).powi(3) + self.busy.powi(3)).cbrt()
    }
}

/// Figures of a device, as far as the search models it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchDevice {
    /// SMs of a GPU, cores of a CPU: each runs blocks.
    pub cores: usize,
    /// Bytes of tiles that a block may hold.
    pub tile_bytes: usize,
    /// Tiles of a load in a loop that a block holds: two where the next one is loaded while one is used.
    pub load_stages: usize,
    /// Memory bandwidth in bytes per microsecond.
    pub memory_bytes_per_us: f64,
    /// Bandwidth of the shared cache in bytes per microsecond.
    pub cache_bytes_per_us: f64,
    /// Bytes that the shared cache keeps: larger tensors come from memory each time they are read.
    pub cache_bytes: usize,
    /// Arithmetic in operations per microsecond.
    pub flops_per_us: f64,
    /// The time to start a kernel in microseconds.
    pub launch_us: f64,
    /// How latencies of products and exponentials are hidden; `None` if they are not modelled.
    pub waiting: Option<LatencyHiding>,
    /// The part of the shorter of moving and computing that does not overlap with the longer, if there is one iteration.
    pub unoverlapped: f64,
    /// The time of one iteration that nothing can hide, in microseconds.
    pub iteration_us: f64,
    /// The cost of starting a run of consecutive elements, in bytes that move in that time.
    pub burst_bytes: usize,
    /// Bytes of a sector: consecutive bytes that move together.
    pub sector_bytes: usize,
    /// Most consecutive bytes that a product reads at a time of a right operand in memory whose rows are far apart ([`FAR_BYTES`]).
    pub far_run_bytes: usize,
    /// The share of bytes which another block reads as well that come from memory again, as far as the cache keeps them.
    pub reread_share: f64,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes of an element of what one kernel hands to another.
    pub partial_bytes: usize,
    /// Rows (`m`) of the matrix instruction: fewer take as long.
    pub mma_m: usize,
    /// Columns (`n`) of the matrix instruction: products take multiples of it.
    pub mma_n: usize,
    /// The cost of reading and writing accumulators, as an addition to the K dimension.
    pub mma_k: usize,
    /// The cost of packing an element of the right operand, in operations of a product.
    pub pack_flops: f64,
    /// The same where it is transposed in memory: it is packed for any number of rows.
    pub transpose_flops: f64,
    /// Most rows of a product whose right operand is not packed.
    pub unpacked_rows: usize,
    /// Most rows of a skinny GEMM whose right operand goes from memory straight to registers.
    pub skinny_rows: usize,
    /// Whether TMA streams the right operands of skinny GEMMs where clusters share blocks.
    pub has_tma: bool,
    /// Bytes of accumulators that the registers of an SM hold; 0 if none stay there.
    pub accumulator_bytes: usize,
    /// What an elementwise operation costs, in operations of a product.
    pub scalar_flops: f64,
    /// The same of exponentials, roots, divisions and the like.
    pub special_flops: f64,
    /// The share of the cores that saturates the memory bandwidth.
    pub saturating_share: f64,
    /// Most CTAs of a cluster that share the iterations of a block, a power of two.
    pub max_cluster: usize,
    /// SMs that clusters of more than two CTAs can use.
    pub cores_in_clusters: usize,
    /// Bytes of accumulators that each CTA of such a cluster exchanges with the others in a microsecond.
    pub exchange_bytes_per_us: f64,
}

impl Default for SearchDevice {
    /// A current data-centre GPU with 16-bit elements.
    fn default() -> Self {
        SearchDevice {
            cores: 132,
            tile_bytes: 160 << 10,
            load_stages: 2,
            memory_bytes_per_us: 4.3e6,
            cache_bytes_per_us: 1.0e7,
            cache_bytes: 32 << 20,
            flops_per_us: 7.9e8,
            launch_us: 2.0,
            unoverlapped: 1.0,
            iteration_us: 0.25,
            burst_bytes: 8,
            sector_bytes: 64,
            far_run_bytes: usize::MAX,
            reread_share: 0.0,
            element_bytes: 2,
            partial_bytes: 4,
            mma_m: 16,
            mma_n: 1,
            mma_k: 0,
            pack_flops: 0.0,
            transpose_flops: 0.0,
            unpacked_rows: 0,
            skinny_rows: 0,
            has_tma: false,
            accumulator_bytes: 0,
            scalar_flops: 16.0,
            special_flops: 16.0,
            waiting: None,
            saturating_share: 1.0 / 3.0,
            max_cluster: 1,
            cores_in_clusters: 120,
            exchange_bytes_per_us: 1.0e4,
        }
    }
}

/// How often each index of a structure is partitioned.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct PartCounts {
    /// Blocks along each grid index.
    pub grid: Vec<usize>,
    /// Iterations.
    pub looped: usize,
}

/// The extents of all that a kernel touches.
pub struct KernelExtents<'a> {
    /// The kernel.
    pub sketch: &'a Sketch,
    /// Its counts.
    pub counts: &'a PartCounts,
    /// The kernels beside it.
    beside: Beside<'a>,
    /// By label.
    by_label: Vec<LabelExtents>,
}

/// The extents of an index and its parts.
#[derive(Clone, Copy)]
struct LabelExtents {
    /// All elements.
    whole: usize,
    /// Blocks along it.
    blocks: usize,
    /// Elements of a block.
    of_block: usize,
    /// Elements of an iteration.
    of_iteration: usize,
}

/// What the kernels beside one are.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Blocks of the kernel before, by label; empty if there is none.
    pub before: &'a [(u8, usize)],
    /// True if another one reads what it stores.
    pub is_read: bool,
}

impl<'a> KernelExtents<'a> {
    /// Of a kernel with counts, given the extents of labels.
    pub fn new(
        labels: &[usize],
        sketch: &'a Sketch,
        counts: &'a PartCounts,
        beside: Beside<'a>,
    ) -> KernelExtents<'a> {
        let structure = &sketch.structure;
        let of_label = |(label, &whole): (u8, &usize)| {
            if !structure.partitions(label) {
                let before = beside.before.iter().find(|(own, _)| *own == label);
                let parts = before.map_or(whole, |(_, count)| *count);
                return LabelExtents { whole, blocks: parts, of_block: parts, of_iteration: parts };
            }
            let axis = structure.grid.iter().position(|own| *own == label);
            let blocks = axis.map_or(1, |axis| counts.grid[axis]);
            let of_block = part_size(whole, blocks);
            let is_looped = structure.looped == Some(label);
            let of_iteration = if is_looped { part_size(of_block, counts.looped) } else { of_block };
            LabelExtents { whole, blocks, of_block, of_iteration }
        };
        let by_label = (0..).zip(labels).map(of_label).collect();
        KernelExtents { sketch, counts, beside, by_label }
    }

    /// Blocks of the grid.
    fn blocks(&self) -> f64 {
        self.counts.grid.iter().product::<usize>() as f64
    }

    /// How often all blocks together run a step.
    fn times(&self, at: usize) -> f64 {
        self.blocks() * if self.sketch.in_loop[at] { self.counts.looped as f64 } else { 1.0 }
    }

    /// Columns of the tile that a step makes.
    fn columns(&self, at: usize) -> usize {
        self.sketch.dims[at].last().map_or(1, |dim| self.dim(*dim))
    }

    /// The extent of an atom of a tile, or of a stored tensor.
    pub fn atom(&self, atom: Atom) -> usize {
        let of = &self.by_label[usize::from(atom.label)];
        match atom.parts {
            WHOLE => of.whole,
            GRID => of.blocks,
            parts if parts & LOOP == 0 => of.of_iteration,
            _ => of.of_block,
        }
    }

    /// The extent of a dimension.
    pub fn dim(&self, dim: Dim) -> usize {
        dim.atoms().map(|atom| self.atom(atom)).product()
    }

    /// Neighbouring elements of a tensor that belong to a tile of it.
    pub fn run(&self, tensor: &[Dim], tile: &[Dim]) -> usize {
        let mut run = 1;
        for (whole, part) in tensor.iter().zip(tile).rev() {
            let extent = self.dim(*part);
            run *= extent;
            if extent < self.dim(*whole) {
                break;
            }
        }
        run
    }

    /// The extent of a dimension of the tensor that tiles are parts of.
    fn whole(&self, dim: Dim) -> usize {
        dim.atoms().map(|atom| self.by_label[usize::from(atom.label)].whole).product()
    }

    /// The elements of some dimensions.
    pub fn elems(&self, dims: &[Dim]) -> usize {
        dims.iter().map(|dim| self.dim(*dim)).product()
    }
}

/// What of a sketch does not depend on its counts.
struct SketchFacts {
    /// By step: whether registers hold what it adds up, namely accumulators of products that nothing else reads before the loop ends.
    keeps_accumulator: Vec<bool>,
    /// By step: whether it is made of a product.
    has_product: Vec<bool>,
    /// Loads that may be streamed.
    streamed: Vec<StreamedLoad>,
    /// Accumulations that a cluster may share; `None` if there is another one.
    shared: Option<Vec<SharedAccumulator>>,
    /// The first product of a loop that has exponentials too, as scores; `None` if it has none.
    scores: Option<usize>,
    /// The other products of the loop.
    further: Vec<usize>,
}

/// A load that one product reads, as its right operand, whose left one has no product.
struct StreamedLoad {
    load: usize,
    product: usize,
    /// Whether the loop loads it, and only adds the product up. Otherwise there has to be one iteration.
    is_accumulated: bool,
}

/// A step that adds up products, or sums of elements, which nothing else reads.
struct SharedAccumulator {
    at: usize,
    is_product: bool,
}

impl SketchFacts {
    fn of(sketch: &Sketch, device: &SearchDevice) -> SketchFacts {
        let steps = || 0..sketch.steps.len();
        let is_product = |at: usize| matches!(&sketch.steps[at], SketchStep::Op(TileOp::Matmul, _));
        let is_special = |at: usize| matches!(&sketch.steps[at], SketchStep::Op(op, _) if op.is_special());
        let looped = || steps().filter(|&at| sketch.in_loop[at]);
        let has_product: Vec<bool> = steps().map(|at| sketch.has_product(at)).collect();
        let streamed = |load: usize| {
            let mut readers = sketch.readers(load);
            let (product, None) = (readers.next()?, readers.next()) else { return None };
            let SketchStep::Op(TileOp::Matmul, args) = &sketch.steps[product] else { return None };
            let is_load = matches!(sketch.steps[load], SketchStep::Load(_));
            let in_loop = sketch.in_loop[load];
            let suits = is_load
                && args[1] == load
                && !has_product[args[0]]
                && in_loop == sketch.in_loop[product]
                // A product beside a loop finds no registers free.
                && (!in_loop || sketch.is_accumulated(product));
            suits.then_some(StreamedLoad { load, product, is_accumulated: in_loop })
        };
        let shared = |at: usize| {
            let SketchStep::Accumulate(from) = &sketch.steps[at] else { return None };
            let suits = match &sketch.steps[*from] {
                SketchStep::Op(TileOp::Matmul | TileOp::Sum(_), _) => sketch.readers(*from).count() == 1,
                _ => false,
            };
            Some(suits.then_some(SharedAccumulator { at, is_product: is_product(*from) }))
        };
        let scores = looped().find(|&at| is_product(at)).filter(|_| looped().any(is_special));
        let is_further = |at: &usize| Some(*at) != scores && is_product(*at);
        SketchFacts {
            keeps_accumulator: steps()
                .map(|at| device.accumulator_bytes > 0 && sketch.is_sum_of_products(at))
                .collect(),
            streamed: steps().filter_map(streamed).collect(),
            shared: steps().filter_map(shared).collect(),
            scores,
            further: looped().filter(is_further).collect(),
            has_product,
        }
    }
}

/// What all blocks of a kernel move and compute, and what one of them holds.
#[derive(Default)]
struct Totals {
    /// Bytes of tiles that a block holds: in shared memory, or in the cache of a core.
    held_bytes: usize,
    /// Bytes of accumulators of products that a block holds in registers.
    accumulator_bytes: usize,
    /// Bytes of tiles that a block loads and holds, those of the next iteration included.
    loaded_bytes: usize,
    /// Bytes that pass the shared cache.
    cache_bytes: f64,
    /// Bytes that pass the memory.
    memory_bytes: f64,
    /// Operations, in those of a product.
    flops: f64,
}

impl Totals {
    /// Adds a load of a tile; a tile that is streamed to registers is not held.
    fn add_load(
        &mut self,
        device: &SearchDevice,
        extents: &KernelExtents<'_>,
        at: usize,
        source: usize,
        is_streamed: bool,
    ) {
        let sketch = extents.sketch;
        let source = &sketch.sources[source];
        if source.is_computed {
            return;
        }
        let is_given = matches!(source.origin, Origin::Program(_));
        let element_bytes = match is_given {
            true if source.is_wide => 2 * device.element_bytes,
            true => device.element_bytes,
            false => device.partial_bytes,
        };
        let bytes = extents.elems(&sketch.dims[at]) * element_bytes;
        if !(is_given && is_streamed) {
            let stages = if sketch.in_loop[at] { device.load_stages } else { 1 };
            self.loaded_bytes += stages * bytes;
            self.held_bytes += stages * bytes;
        }
        let moved = |run: usize| {
            let run_moved = run.next_multiple_of(device.sector_bytes) + device.burst_bytes;
            extents.times(at) * bytes as f64 * run_moved as f64 / run.max(1) as f64
        };
        let run = extents.run(&source.dims, &sketch.dims[at]) * element_bytes;
        let whole = extents.elems(&source.dims) * element_bytes;
        self.cache_bytes += if is_given { moved(run) } else { HANDED_ON * moved(run) };
        self.memory_bytes += match whole <= device.cache_bytes {
            true if is_given => {
                let again = (moved(run) - whole as f64).clamp(0.0, whole as f64);
                whole as f64 + device.reread_share * again
            }
            // The kernel before has just stored it.
            true => 0.0,
            false => {
                let row = source.dims.last().map_or(1, |dim| extents.dim(*dim)) * element_bytes;
                let is_far = row >= FAR_BYTES && sketch.is_right_operand(at);
                moved(if is_far { run.min(device.far_run_bytes) } else { run })
            }
        };
    }

    /// Adds a product `[m, k] x [k, n]` of tiles.
    fn add_matmul(
        &mut self,
        device: &SearchDevice,
        extents: &KernelExtents<'_>,
        facts: &SketchFacts,
        at: usize,
        args: &[usize],
    ) {
        let sketch = extents.sketch;
        let dims = &sketch.dims[at];
        let elems = extents.elems(dims);
        // On a GPU what the iteration multiplies, as scores, is in registers as well.
        match device.accumulator_bytes > 0 {
            true => self.accumulator_bytes += elems * device.partial_bytes,
            false => self.held_bytes += elems * device.partial_bytes,
        }
        let k = sketch.dims[args[0]].last().map_or(1, |dim| extents.dim(*dim));
        let m = dims.iter().rev().nth(1).map_or(1, |dim| extents.dim(*dim));
        let waste = device.rows_waste(extents, dims) * device.columns_waste(extents, dims);
        let terms = (k + device.mma_k) as f64;
        let is_packed = m > device.unpacked_rows || sketch.is_transposed(args[1]);
        let right = extents.elems(&sketch.dims[args[1]]) as f64;
        for arg in args.iter().filter(|arg| sketch.loads_wide(**arg)) {
            let elems = extents.elems(&sketch.dims[*arg]);
            self.held_bytes += elems * device.element_bytes;
            let ops = extents.times(*arg) * (CONVERTED_OPS * elems) as f64;
            self.flops += device.scalar_flops * ops;
        }
        let packed = if is_packed { right * device.pack_flops_of(extents, args[1]) } else { 0.0 };
        // A product of an accumulator runs once, after the loop.
        let is_late = facts.keeps_accumulator[at] && facts.has_product[args[0]];
        let times = if is_late { extents.blocks() } else { extents.times(at) };
        self.flops += times * (2.0 * elems as f64 * terms * waste + packed);
    }

    /// Adds an operator on each element, or (`None`) the accumulation of a tile over the loop.
    fn add_elementwise(
        &mut self,
        device: &SearchDevice,
        extents: &KernelExtents<'_>,
        facts: &SketchFacts,
        at: usize,
        op: Option<&TileOp>,
    ) {
        let sketch = extents.sketch;
        let elems = extents.elems(&sketch.dims[at]);
        if facts.keeps_accumulator[at] {
            self.flops += extents.blocks() * device.scalar_flops * elems as f64;
            return;
        }
        self.held_bytes += elems * device.element_bytes / 2;
        let Some(op) = op else {
            self.flops += extents.times(at) * device.scalar_flops * elems as f64;
            return;
        };
        let each = if op.is_special() { device.special_flops } else { device.scalar_flops };
        self.flops += extents.times(at) * each * (op.count() * elems) as f64;
    }

    /// Adds a result; one that the next kernel reads stays in the cache if it fits.
    fn add_store(&mut self, device: &SearchDevice, extents: &KernelExtents<'_>, dims: &[Dim]) {
        let is_read = extents.beside.is_read;
        let element_bytes = if is_read { device.partial_bytes } else { device.element_bytes };
        let bytes = extents.elems(dims) * element_bytes;
        self.memory_bytes += if is_read && bytes <= device.cache_bytes { 0.0 } else { bytes as f64 };
        self.cache_bytes += if is_read { HANDED_ON * bytes as f64 } else { bytes as f64 };
    }
}

impl SearchDevice {
    /// The modelled time of a kernel in microseconds; `None` if its tiles do not fit.
    ///
    /// Loads, operators and stores are added up to bytes and operations of all blocks ([`Totals`]). The time is that of moving
    /// or computing, whichever is longer, and of the part of the shorter one that does not overlap ([`Self::time_us`]).
    fn kernel_us(&self, extents: &KernelExtents<'_>, facts: &SketchFacts) -> Option<f64> {
        let sketch = extents.sketch;
        let blocks: usize = extents.counts.grid.iter().product();
        let (streams, sharing) = self.streams(extents, facts, blocks);
        let mut totals = Totals::default();
        for (at, step) in sketch.steps.iter().enumerate() {
            match step {
                SketchStep::Load(source) => {
                    totals.add_load(self, extents, at, *source, streams.contains(&at))
                }
                SketchStep::Op(TileOp::Matmul, args) => totals.add_matmul(self, extents, facts, at, args),
                SketchStep::Op(op, _) => totals.add_elementwise(self, extents, facts, at, Some(op)),
                SketchStep::Accumulate(_) => totals.add_elementwise(self, extents, facts, at, None),
            }
        }
        for (_, dims, _) in &sketch.stores {
            totals.add_store(self, extents, dims);
        }
        let held_bytes = totals.held_bytes + totals.accumulator_bytes.saturating_sub(self.accumulator_bytes);
        if held_bytes > self.tile_bytes {
            return None;
        }
        // Larger clusters than the streamed operands need are tried only where a block is not shared already.
        let accumulators =
            if sharing == 1 && self.max_cluster > 1 { self.shared_accumulators(extents, facts) } else { 0 };
        let time = |sharing: usize| {
            // Two CTAs exchange their accumulators once; of more, the first has the result after all have combined a part.
            let times = if streams.is_empty() { (sharing - 1).min(2) as f64 / 2.0 } else { 0.0 };
            let exchanged = times * accumulators as f64 / self.exchange_bytes_per_us;
            let exchange_us = EXCHANGE_US * f64::from(sharing.ilog2()) + exchanged;
            self.time_us(extents, facts, &totals, sharing, exchange_us)
        };
        let most = if accumulators > 0 { self.max_cluster } else { 1 };
        let looped = extents.counts.looped;
        let may_share = |&sharing: &usize| {
            blocks * sharing <= if sharing > 2 { self.cores_in_clusters } else { self.cores }
                && looped.is_multiple_of(sharing)
                && looped >= LEAST_ITERATIONS * sharing
        };
        let shared = (1..=most.ilog2()).map(|log| 1 << log).filter(may_share).map(time);
        let alone = time(sharing);
        Some(shared.fold(alone, f64::min))
    }

    /// The time of a kernel in microseconds, if each block is run by a cluster of `sharing` CTAs that split its loop and take
    /// `exchange_us` to add up their accumulators.
    fn time_us(
        &self,
        extents: &KernelExtents<'_>,
        facts: &SketchFacts,
        totals: &Totals,
        sharing: usize,
        exchange_us: f64,
    ) -> f64 {
        let counts = extents.counts;
        let blocks: usize = counts.grid.iter().product();
        let ctas = blocks * sharing;
        let waves = ctas.div_ceil(self.cores);
        let busy = ctas as f64 / (waves * self.cores) as f64;
        // A share of the cores saturates the memory; each has its own path to the cache.
        let pull = (ctas as f64 / self.cores as f64 / self.saturating_share).min(1.0);
        let moved = (totals.memory_bytes / self.memory_bytes_per_us / pull)
            .max(totals.cache_bytes / self.cache_bytes_per_us / busy);
        let waiting = self.waiting(extents, facts, ctas, totals.loaded_bytes);
        let computed = totals.flops / self.flops_per_us / busy * waiting.unwrap_or(1.0);
        // Of warp groups that wait for each other the figures have what an iteration takes.
        let iteration_us = if waiting.is_some() { 0.0 } else { self.iteration_us };
        // Nothing hides the loads of the first iteration.
        let rounds = (waves * counts.looped).div_ceil(sharing) as f64;
        let time = moved.max(computed) + self.unoverlapped * moved.min(computed) / rounds;
        self.launch_us + time + exchange_us + rounds * iteration_us
    }

    /// Whether products of 16-bit operands may be those of warp groups.
    fn has_wgmma(&self) -> bool {
        self.has_tma && self.element_bytes == 2
    }

    /// How many times as long a product takes for its rows: fewer than an instruction has, or blocks of more rows than a warp group has
    /// that are cut so that wgmma does not take them.
    fn rows_waste(&self, extents: &KernelExtents<'_>, dims: &[Dim]) -> f64 {
        let Some(dim) = dims.iter().rev().nth(1) else { return self.mma_m as f64 };
        let (rows, whole) = (extents.dim(*dim).max(1), extents.whole(*dim));
        let cuts_warp_groups = whole > WARP_GROUP_ROWS && !rows.is_multiple_of(WARP_GROUP_ROWS);
        if self.has_wgmma() && cuts_warp_groups {
            return MMA_SYNC * rows.next_multiple_of(self.mma_m) as f64 / rows as f64;
        }
        rows.max(self.mma_m) as f64 / rows as f64
    }

    /// The same for its columns, whole instructions of which are computed; tiles that are cut to others are not loaded by TMA.
    fn columns_waste(&self, extents: &KernelExtents<'_>, dims: &[Dim]) -> f64 {
        let Some(dim) = dims.last() else { return 1.0 };
        let (columns, whole) = (extents.dim(*dim).max(1), extents.whole(*dim));
        let padded = columns.next_multiple_of(self.mma_n) as f64 / columns as f64;
        let by_threads = self.has_wgmma() && columns < whole && !columns.is_multiple_of(PART_MULTIPLE);
        if by_threads { LOADED_BY_THREADS * padded } else { padded }
    }

    /// What it costs to pack an element of a right operand, in operations of a product: nothing else runs while it comes from memory.
    fn pack_flops_of(&self, extents: &KernelExtents<'_>, at: usize) -> f64 {
        let sketch = extents.sketch;
        let pack_flops = if sketch.is_transposed(at) { self.transpose_flops } else { self.pack_flops };
        let SketchStep::Load(source) = &sketch.steps[at] else { return pack_flops };
        let source = &sketch.sources[*source];
        let is_given = matches!(source.origin, Origin::Program(_)) && !source.is_computed;
        let bytes = extents.elems(&source.dims) * self.element_bytes;
        if is_given && bytes > self.cache_bytes && pack_flops > 0.0 {
            pack_flops.max(self.element_bytes as f64 * self.flops_per_us / self.memory_bytes_per_us)
        } else {
            pack_flops
        }
    }

    /// The bytes of accumulators of a block that a cluster may share (split-K): only accumulators leave its loop, those of
    /// products have whole warp groups of rows, and no other kernel adds up what it stores. Otherwise 0.
    fn shared_accumulators(&self, extents: &KernelExtents<'_>, facts: &SketchFacts) -> usize {
        let KernelExtents { sketch, beside, .. } = extents;
        let Some(shared) = facts.shared.as_ref().filter(|_| beside.before.is_empty() && !beside.is_read)
        else {
            return 0;
        };
        let mut bytes = 0;
        for accumulator in shared {
            let dims = &sketch.dims[accumulator.at];
            let rows = dims.iter().rev().nth(1).map_or(1, |dim| extents.dim(*dim));
            if accumulator.is_product && !rows.is_multiple_of(WARP_GROUP_ROWS) {
                return 0;
            }
            bytes += extents.elems(dims) * self.partial_bytes;
        }
        bytes
    }

    /// How many times as long a loop of products and exponentials takes because few warp groups share an SM; `loaded` is the bytes
    /// of loaded tiles of a block. `None` for other loops.
    fn waiting(
        &self,
        extents: &KernelExtents<'_>,
        facts: &SketchFacts,
        ctas: usize,
        loaded: usize,
    ) -> Option<f64> {
        let (sketch, waiting, scores) = (extents.sketch, self.waiting?, facts.scores?);
        let rows = sketch.dims[scores].iter().rev().nth(1).map_or(1, |dim| extents.dim(*dim));
        let own = (rows / WARP_GROUP_ROWS).min(MOST_GROUPS);
        if own == 0 {
            return None;
        }
        let by_registers = SM_REGISTER_BYTES / (own * self.group_registers(extents, facts, scores));
        let by_shared = self.tile_bytes / loaded.max(1);
        let resident = ctas.div_ceil(self.cores).min(by_shared).min(by_registers).max(1);
        Some(waiting.of(extents.columns(scores), own * resident))
    }

    /// The time in which an SM runs an iteration of each of `ctas` CTAs, whose loop computes products and exponentials of so many rows
    /// and columns of scores: as a multiple of that of one iteration where enough warp groups share the SM.
    pub fn iteration_time(&self, [rows, columns]: [usize; 2], ctas: usize) -> f64 {
        let own = (rows / WARP_GROUP_ROWS).min(MOST_GROUPS);
        let hiding = self.waiting.filter(|_| own > 0).map_or(1.0, |waiting| waiting.of(columns, own * ctas));
        hiding * ctas as f64
    }

    /// Bytes of registers of a warp group in a loop of products and exponentials: scores, the same as 16-bit operands of the next
    /// product, its accumulators, and the first operand of the product of the scores. Of kernels for heads of 64 and 128, and 16 to
    /// 128 keys, these are the registers that NVRTC takes.
    fn group_registers(&self, extents: &KernelExtents<'_>, facts: &SketchFacts, scores: usize) -> usize {
        let SketchStep::Op(_, args) = &extents.sketch.steps[scores] else { return GROUP_REGISTER_BYTES };
        let further: usize = facts.further.iter().map(|&at| extents.columns(at)).sum();
        let (sum, operand) = (self.partial_bytes, self.element_bytes);
        let row =
            extents.columns(scores) * (sum + operand) + further * sum + extents.columns(args[0]) * operand;
        WARP_GROUP_ROWS * row + GROUP_REGISTER_BYTES
    }

    /// The loads that are streamed: right operands of skinny GEMMs whose accumulators stay in registers; and how many CTAs
    /// share a block.
    fn streams(
        &self,
        extents: &KernelExtents<'_>,
        facts: &SketchFacts,
        blocks: usize,
    ) -> (Vec<usize>, usize) {
        if facts.streamed.is_empty() {
            return (Vec::new(), 1);
        }
        let by_threads = Streaming {
            rows: [1, self.skinny_rows],
            row_parts: self.mma_m,
            columns: 32,
            terms: 1,
            accumulators: 4096,
            cores: 1,
        };
        let by_tma = Streaming {
            rows: [usize::from(self.has_tma), MOST_GROUPS * WARP_GROUP_ROWS],
            row_parts: 64,
            columns: 64,
            terms: 1024,
            accumulators: 16_384,
            cores: 2,
        };
        // The blocks of the first of two kernels split the reduction already.
        let Beside { before, is_read } = extents.beside;
        let is_alone = before.is_empty() && !is_read;
        let fits = |way: &Streaming| {
            let is_at_once = way.cores == 1 || blocks * way.cores <= self.cores;
            way.rows[0] > 0 && is_at_once && (way.cores == 1 || is_alone)
        };
        let found = |way: Streaming| {
            let accumulators =
                |own: &StreamedLoad| Some((own.load, self.streamed_accumulators(extents, own, &way)?));
            let found: Vec<(usize, usize)> = facts.streamed.iter().filter_map(accumulators).collect();
            let fit = found.iter().map(|(_, elems)| elems).sum::<usize>() <= way.accumulators;
            (fit && !found.is_empty()).then(|| (found.into_iter().map(|(load, _)| load).collect(), way.cores))
        };
        [by_tma, by_threads].into_iter().filter(fits).find_map(found).unwrap_or((Vec::new(), 1))
    }

    /// The accumulator elements of the product that reads a load, if the load may be streamed.
    fn streamed_accumulators(
        &self,
        extents: &KernelExtents<'_>,
        load: &StreamedLoad,
        way: &Streaming,
    ) -> Option<usize> {
        let extent = |dims: &[Dim], from_last: usize| {
            dims.iter().rev().nth(from_last).map_or(1, |dim| extents.dim(*dim))
        };
        let dims = &extents.sketch.dims;
        let (operand, result) = (&dims[load.load], &dims[load.product]);
        let (rows, columns) = (extent(result, 1), extent(result, 0));
        let suits = (way.rows[0]..=way.rows[1]).contains(&rows)
            && extents.elems(result) == rows * columns
            && (load.is_accumulated || extents.counts.looped == 1)
            && columns.is_multiple_of(way.columns)
            && extent(operand, 1).is_multiple_of(STREAM_TERMS)
            && extent(operand, 1) * extents.counts.looped >= way.terms;
        suits.then(|| rows.next_multiple_of(way.row_parts) * columns)
    }

    /// A lower bound for any counts: starting it, and moving what it loads from memory.
    pub fn floor_us(&self, sketch: &Sketch, labels: &[usize]) -> f64 {
        let whole = |dims: &[Dim]| -> f64 {
            let atom = |atom: Atom| if atom.parts == WHOLE { labels[usize::from(atom.label)] } else { 1 };
            dims.iter().flat_map(|dim| dim.atoms()).map(|a| atom(a) as f64).product()
        };
        let is_loaded = |source: &&Source| matches!(source.origin, Origin::Program(_)) && !source.is_computed;
        let loads = sketch.sources.iter().filter(is_loaded);
        let loaded: f64 = loads.map(|source| whole(&source.dims)).sum();
        let stored: f64 = sketch.stores.iter().map(|(_, dims, _)| whole(dims)).sum();
        let from_memory = loaded / self.memory_bytes_per_us;
        let through_cache = (loaded + stored) / self.cache_bytes_per_us;
        self.launch_us + from_memory.max(through_cache) * self.element_bytes as f64
    }

    /// A lower bound of any µGraph for a program of predefined operators: moving inputs and outputs, multiplying.
    pub fn program_floor_us(&self, program: &MuGraph) -> f64 {
        let given = program.inputs().map(|(tensor, ..)| tensor);
        let ends = given.chain(program.outputs().iter().map(|(_, tensor)| *tensor));
        let moved: usize = ends.map(|tensor| elems(program.shape(tensor))).sum();
        let flops = |(tensor, node): (TensorId, &Node)| match node {
            Node::Op { op: Op::Matmul, args } => {
                let terms = program.shape(args[0]).last().copied().unwrap_or(1);
                2.0 * terms as f64 * elems(program.shape(tensor)) as f64
            }
            _ => 0.0,
        };
        let flops: f64 = program.nodes().map(flops).sum();
        let memory_us = (moved * self.element_bytes) as f64 / self.memory_bytes_per_us;
        self.launch_us + memory_us.max(flops / self.flops_per_us)
    }

    /// The counts for which a kernel costs least, and the cost.
    pub fn best_counts(
        &self,
        sketch: &Sketch,
        labels: &[usize],
        beside: Beside<'_>,
    ) -> Vec<(f64, PartCounts)> {
        let (structure, facts) = (&sketch.structure, SketchFacts::of(sketch, self));
        let options: Vec<Vec<usize>> = structure
            .grid
            .iter()
            .map(|label| (label, false))
            .chain(structure.looped.iter().map(|label| (label, true)))
            .map(|(label, is_looped)| part_counts(labels[usize::from(*label)], is_looped))
            .collect();
        let mut best: Vec<(f64, PartCounts)> = Vec::new();
        for choice in crate::tiling::indices(&options.iter().map(Vec::len).collect::<Vec<_>>()) {
            let mut counts: Vec<usize> =
                choice.iter().zip(&options).map(|(at, options)| options[*at]).collect();
            let looped = if structure.looped.is_some() { counts.pop().unwrap_or(1) } else { 1 };
            if counts.iter().product::<usize>() > 65_536 {
                continue;
            }
            let counts = PartCounts { grid: counts, looped };
            let extents = KernelExtents::new(labels, sketch, &counts, beside);
            if let Some(cost) = self.kernel_us(&extents, &facts) {
                best.push((cost, counts));
            }
        }
        best.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        best
    }
}

/// Numbers of blocks or iterations that are tried: divisors above 1 (or 1 alone), thinned to at most [`MOST_DIVISORS`]; where none
/// leaves parts of whole instructions, [`uneven_counts`] too.
fn part_counts(extent: usize, is_looped: bool) -> Vec<usize> {
    let all: Vec<usize> = (2..=extent.min(4096)).filter(|count| extent.is_multiple_of(*count)).collect();
    let thin = all.len().div_ceil(MOST_DIVISORS).max(1);
    let mut kept: Vec<usize> = all.iter().copied().step_by(thin).collect();
    if extent > UNEVEN_PARTS[1] && !all.iter().any(|count| is_whole(extent / count)) {
        kept.extend(uneven_counts(extent, is_looped));
    }
    if kept.is_empty() {
        kept.push(1);
    }
    kept
}

/// Whether a part has whole instructions, and no fewer or more elements than [`UNEVEN_PARTS`].
fn is_whole(part: usize) -> bool {
    let [least, most] = UNEVEN_PARTS;
    part.is_multiple_of(PART_MULTIPLE) && (least..=most).contains(&part)
}

/// Numbers of parts of which the last one is smaller: with [`UNEVEN_PARTS`] elements in the others; for loops also the number with
/// which all iterations together compute the fewest elements (257 keys: 3 parts of 96).
fn uneven_counts(extent: usize, is_looped: bool) -> BTreeSet<usize> {
    let [least, most] = UNEVEN_PARTS;
    let counts =
        || (extent.div_ceil(most)..=extent.div_ceil(least)).map(|count| (count, part_size(extent, count)));
    let smallest = counts().filter(|(_, part)| is_whole(*part)).min_by_key(|(count, part)| count * part);
    let of_blocks = counts().filter(|(_, part)| UNEVEN_PARTS.contains(part));
    of_blocks.chain(smallest.filter(|_| is_looped)).map(|(count, _)| count).collect()
}

#[cfg(test)]
mod tests {
    use super::part_counts;

    /// 257 keys are three parts of 96 (two of them whole) or five of 64, rows five blocks of 64; 576 have nine parts of 64.
    #[test]
    fn lengths_without_whole_parts_are_cut_unevenly() {
        assert_eq!(part_counts(257, true), [257, 3, 5]);
        assert_eq!(part_counts(257, false), [257, 5]);
        assert_eq!(part_counts(577, false), [577, 5, 10]);
        assert!(part_counts(576, true).iter().all(|count| 576 % count == 0));
        assert_eq!(part_counts(101, true), [101]);
        assert_eq!(part_counts(1, true), [1]);
    }
}
