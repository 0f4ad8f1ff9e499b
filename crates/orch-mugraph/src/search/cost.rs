//! What a kernel costs by its sketch and counts, and the counts that cost least.

use super::algebra::{LOOP, WHOLE};
use super::tile::{Atom, Dim, Origin, Sketch, SketchStep, TileOp};
use crate::graph::{MuGraph, Node, TensorId};
use crate::op::{Op, elems};
use serde::{Deserialize, Serialize};

/// Most counts that are tried for an index: those of a power of two, and of three times one, all.
const MOST_DIVISORS: usize = 24;
/// Terms of which streamed factors have multiples.
const STREAM_TERMS: usize = 128;
/// How many times as long bytes take that one kernel stores for the next one to load: all of them at once, not all the while.
const HANDED_ON: f64 = 2.0;
/// Rows that a group of warps multiplies, and columns of which registers hold those of four groups.
const GROUP_ROWS: usize = 64;
const GROUP_COLUMNS: usize = 64;
/// Groups of warps that a block has at most.
const MOST_GROUPS: usize = 2;
/// Microseconds in which two cores that share a block add up each other's sums.
const EXCHANGE_US: f64 = 0.5;
/// Iterations that each of them runs at least.
const LEAST_ITERATIONS: usize = 2;

/// A way to stream given right factors past few rows: they are not held.
struct Streaming {
    /// Least and most rows.
    rows: [usize; 2],
    /// Rows and columns that are multiplied at once.
    row_parts: usize,
    columns: usize,
    /// Least terms of all iterations.
    terms: usize,
    /// Most sums of all products of a block.
    sums: usize,
    /// Processors that share a block, all at once.
    cores: usize,
}

/// How long groups of warps, of [`GROUP_ROWS`] rows each, wait for products and exponentials in turn, which others of the
/// processor hide. Times are of [`GROUP_COLUMNS`] columns, as multiples of what they take if enough groups share a processor.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyHiding {
    /// A group alone, each iteration.
    pub iteration: f64,
    /// A group alone, besides, by columns.
    pub columns: f64,
    /// As many groups as one likes.
    pub busy: f64,
}

/// Figures of a machine.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchDevice {
    /// Processors, each of which runs blocks.
    pub cores: usize,
    /// Bytes of tiles that a block may hold.
    pub tile_bytes: usize,
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
    /// How loops of products and exponentials wait; `None` if they do not.
    pub waiting: Option<LatencyHiding>,
    /// How much of the lesser of moving and computing is not hidden by the other, if there is one iteration.
    pub unoverlapped: f64,
    /// The time of one iteration that nothing can hide, in microseconds.
    pub iteration_us: f64,
    /// Bytes that move in the time that it takes to begin with a run of neighbouring elements.
    pub burst_bytes: usize,
    /// Neighbouring bytes that only move together.
    pub sector_bytes: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes of an element of what one kernel hands to another.
    pub partial_bytes: usize,
    /// Rows that matrix units multiply at least.
    pub mma_m: usize,
    /// Columns of which they multiply a multiple.
    pub mma_n: usize,
    /// Terms of a product in whose time its sums are read and written.
    pub mma_k: usize,
    /// What it costs to lay out an element of a product's right factor, in operations of a product.
    pub pack_flops: f64,
    /// Rows of a product up to which its right factor is read as it lies.
    pub unpacked_rows: usize,
    /// Rows up to which a given right factor is streamed past them: it is not held.
    pub skinny_rows: usize,
    /// Whether factors of few rows are streamed in boxes where cores share blocks.
    pub has_tma: bool,
    /// Bytes of sums of products that registers hold.
    pub accumulator_bytes: usize,
    /// What an elementwise operation costs, in operations of a product.
    pub scalar_flops: f64,
    /// The same of exponentials, roots, divisions and the like.
    pub special_flops: f64,
    /// The share of the cores that saturates the memory.
    pub saturating_share: f64,
    /// Processors that may share the iterations of a block, at most, a power of two.
    pub max_cluster: usize,
    /// Processors that are of use where more than two share each block.
    pub cores_in_clusters: usize,
    /// Bytes of sums that each of more than two of them exchanges with the others in a microsecond.
    pub exchange_bytes_per_us: f64,
}

impl Default for SearchDevice {
    /// A current data-centre GPU with 16-bit elements.
    fn default() -> Self {
        SearchDevice {
            cores: 132,
            tile_bytes: 160 << 10,
            memory_bytes_per_us: 4.3e6,
            cache_bytes_per_us: 1.0e7,
            cache_bytes: 32 << 20,
            flops_per_us: 7.9e8,
            launch_us: 2.0,
            unoverlapped: 1.0,
            iteration_us: 0.25,
            burst_bytes: 8,
            sector_bytes: 64,
            element_bytes: 2,
            partial_bytes: 4,
            mma_m: 16,
            mma_n: 1,
            mma_k: 0,
            pack_flops: 0.0,
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

/// KernelExtents of all that a kernel touches.
#[derive(Clone, Copy)]
pub struct KernelExtents<'a> {
    /// Of the labels.
    pub labels: &'a [usize],
    /// The kernel.
    pub sketch: &'a Sketch,
    /// Its counts.
    pub counts: &'a PartCounts,
    /// The kernels beside it.
    pub beside: Beside<'a>,
}

/// What the kernels beside one are.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Blocks of the kernel before, by label; empty if there is none.
    pub before: &'a [(u8, usize)],
    /// True if another one reads what it stores.
    pub is_read: bool,
}

impl KernelExtents<'_> {
    fn grid_count(&self, label: u8) -> usize {
        let at = self.sketch.structure.grid.iter().position(|own| *own == label);
        at.map_or(1, |at| self.counts.grid[at])
    }

    /// The extent of an atom of a tile, or of a stored tensor.
    pub fn atom(&self, atom: Atom) -> usize {
        let structure = &self.sketch.structure;
        let full = self.labels[usize::from(atom.label)];
        if atom.parts == WHOLE {
            return full;
        }
        if !structure.partitions(atom.label) {
            let before = self.beside.before;
            return before.iter().find(|(label, _)| *label == atom.label).map_or(full, |(_, count)| *count);
        }
        let blocks = self.grid_count(atom.label);
        if atom.parts == super::algebra::GRID {
            return blocks;
        }
        let part = full.div_ceil(blocks);
        if structure.looped == Some(atom.label) && atom.parts & LOOP == 0 {
            part.div_ceil(self.counts.looped)
        } else {
            part
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

    /// The elements of some dimensions.
    pub fn elems(&self, dims: &[Dim]) -> usize {
        dims.iter().map(|dim| self.dim(*dim)).product()
    }
}

impl SearchDevice {
    /// The modelled time of a kernel in microseconds, if its tiles fit.
    pub fn kernel_us(&self, extents: &KernelExtents<'_>) -> Option<f64> {
        let (sketch, counts) = (extents.sketch, extents.counts);
        let blocks: usize = counts.grid.iter().product();
        let (mut held, mut cache, mut memory, mut flops) = (0, 0.0, 0.0, 0.0);
        let (mut registers, mut loaded) = (0, 0);
        let (streams, sharing) = self.streams(extents, blocks);
        for (at, step) in sketch.steps.iter().enumerate() {
            let elems = extents.elems(&sketch.dims[at]);
            let bytes = elems * self.element_bytes;
            // Sums of products that are added up in registers: nothing else is done with them before the loop ends.
            let sums_stay = self.accumulator_bytes > 0 && sketch.is_sum_of_products(at);
            let times = blocks as f64 * if sketch.in_loop[at] { counts.looped as f64 } else { 1.0 };
            match step {
                SketchStep::Load(source) => {
                    let source = &sketch.sources[*source];
                    let is_given = matches!(source.origin, Origin::Program(_));
                    let element_bytes = if is_given { self.element_bytes } else { self.partial_bytes };
                    let bytes = elems * element_bytes;
                    // Tiles of the next iteration are loaded meanwhile.
                    if !(is_given && streams.contains(&at)) {
                        loaded += if sketch.in_loop[at] { 2 * bytes } else { bytes };
                        held += if sketch.in_loop[at] { 2 * bytes } else { bytes };
                    }
                    let run = extents.run(&source.dims, &sketch.dims[at]) * element_bytes;
                    let run_moved = run.next_multiple_of(self.sector_bytes) + self.burst_bytes;
                    let moved = times * bytes as f64 * run_moved as f64 / run.max(1) as f64;
                    let whole = extents.elems(&source.dims) * element_bytes;
                    cache += if is_given { moved } else { HANDED_ON * moved };
                    memory += match whole <= self.cache_bytes {
                        true if is_given => whole as f64,
                        // It was stored just before.
                        true => 0.0,
                        false => moved,
                    };
                }
                SketchStep::Op(TileOp::Matmul, args) => {
                    match sums_stay {
                        true => registers += elems * self.partial_bytes,
                        false => held += 2 * bytes,
                    }
                    let inner = sketch.dims[args[0]].last().map_or(1, |dim| extents.dim(*dim));
                    let rows = sketch.dims[at].iter().rev().nth(1).map_or(1, |dim| extents.dim(*dim));
                    let columns = sketch.dims[at].last().map_or(1, |dim| extents.dim(*dim));
                    let padded = |extent: usize, whole: usize| whole as f64 / extent.max(1) as f64;
                    let waste = padded(rows, rows.max(self.mma_m))
                        * padded(columns, columns.next_multiple_of(self.mma_n));
                    let terms = (inner + self.mma_k) as f64;
                    let is_packed = rows > self.unpacked_rows;
                    let right = extents.elems(&sketch.dims[args[1]]) as f64;
                    let packed = if is_packed { right * self.pack_flops } else { 0.0 };
                    let is_late = sums_stay && sketch.has_product(args[0]);
                    let times = if is_late { blocks as f64 } else { times };
                    flops += times * (2.0 * elems as f64 * terms * waste + packed);
                }
                SketchStep::Op(..) | SketchStep::Accumulate(_) if sums_stay => {
                    flops += blocks as f64 * self.scalar_flops * elems as f64;
                }
                SketchStep::Op(op, _) => {
                    held += bytes / 2;
                    let each = if op.is_special() { self.special_flops } else { self.scalar_flops };
                    flops += times * each * (op.count() * elems) as f64;
                }
                SketchStep::Accumulate(_) => {
                    held += bytes / 2;
                    flops += times * self.scalar_flops * elems as f64;
                }
            }
        }
        for (_, dims, _) in &sketch.stores {
            let is_read = extents.beside.is_read;
            let element_bytes = if is_read { self.partial_bytes } else { self.element_bytes };
            let bytes = extents.elems(dims) * element_bytes;
            memory += if is_read && bytes <= self.cache_bytes { 0.0 } else { bytes as f64 };
            cache += if is_read { HANDED_ON * bytes as f64 } else { bytes as f64 };
        }
        held += registers.saturating_sub(self.accumulator_bytes);
        if held > self.tile_bytes {
            return None;
        }
        // Only where cores may share more than what is streamed.
        let sums = if sharing == 1 && self.max_cluster > 1 { self.shared_sums(extents) } else { 0 };
        let time = |sharing: usize| {
            let tasks = blocks * sharing;
            let waves = tasks.div_ceil(self.cores);
            let busy = tasks as f64 / (waves * self.cores) as f64;
            // A share of the cores saturates the memory; each has its own way to the cache.
            let pull = (tasks as f64 / self.cores as f64 / self.saturating_share).min(1.0);
            let moved =
                (memory / self.memory_bytes_per_us / pull).max(cache / self.cache_bytes_per_us / busy);
            let computed = flops / self.flops_per_us / busy * self.waiting(extents, tasks, loaded);
            // The first tiles are waited for.
            let rounds = (waves * counts.looped).div_ceil(sharing) as f64;
            let time = moved.max(computed) + self.unoverlapped * moved.min(computed) / rounds;
            // Of two each has the sums of the other once, of more the first has them after all have combined a part.
            let times = if streams.is_empty() { (sharing - 1).min(2) as f64 / 2.0 } else { 0.0 };
            let exchanged = times * sums as f64 / self.exchange_bytes_per_us;
            let exchange_us = EXCHANGE_US * f64::from(sharing.ilog2()) + exchanged;
            self.launch_us + time + exchange_us + rounds * self.iteration_us
        };
        let most = if sums > 0 { self.max_cluster } else { 1 };
        let may_share = |&sharing: &usize| {
            blocks * sharing <= if sharing > 2 { self.cores_in_clusters } else { self.cores }
                && counts.looped.is_multiple_of(sharing)
                && counts.looped >= LEAST_ITERATIONS * sharing
        };
        let shared = (1..=most.ilog2()).map(|log| 1 << log).filter(may_share).map(time);
        let alone = time(sharing);
        Some(shared.fold(alone, f64::min))
    }

    /// The bytes of sums of a block that cores may share: only sums leave its loop, those of products are of whole tiles,
    /// and no other kernel adds up what it stores. Otherwise 0.
    fn shared_sums(&self, extents: &KernelExtents<'_>) -> usize {
        let KernelExtents { sketch, beside, .. } = extents;
        let mut bytes = 0;
        for (at, step) in sketch.steps.iter().enumerate() {
            let SketchStep::Accumulate(from) = step else { continue };
            let dims = &sketch.dims[at];
            let rows = dims.iter().rev().nth(1).map_or(1, |dim| extents.dim(*dim));
            let suits = match &sketch.steps[*from] {
                SketchStep::Op(TileOp::Matmul, _) => rows.is_multiple_of(GROUP_ROWS),
                SketchStep::Op(TileOp::Sum(_), _) => true,
                _ => false,
            };
            if !suits || sketch.readers(*from).count() > 1 {
                return 0;
            }
            bytes += extents.elems(dims) * self.partial_bytes;
        }
        if beside.before.is_empty() && !beside.is_read { bytes } else { 0 }
    }

    /// How many times as long a loop takes because few groups of warps share a processor; blocks have so many bytes of loads.
    fn waiting(&self, extents: &KernelExtents<'_>, tasks: usize, loaded: usize) -> f64 {
        let sketch = extents.sketch;
        let looped = || (0..sketch.steps.len()).filter(|&at| sketch.in_loop[at]);
        let is_special = |at: usize| matches!(&sketch.steps[at], SketchStep::Op(op, _) if op.is_special());
        let product = |at: usize| match (&sketch.steps[at], sketch.dims[at].as_slice()) {
            (SketchStep::Op(TileOp::Matmul, _), [.., rows, columns]) => {
                Some([*columns, *rows].map(|dim| extents.dim(dim)))
            }
            _ => None,
        };
        let product = looped().find_map(product).filter(|_| looped().any(is_special));
        let (Some(waiting), Some([columns, rows])) = (self.waiting, product) else { return 1.0 };
        let own = (rows / GROUP_ROWS).min(MOST_GROUPS);
        let resident = tasks.div_ceil(self.cores).min(self.tile_bytes / loaded.max(1)).max(1);
        let most = if columns > GROUP_COLUMNS { 3 } else { 4 };
        let groups = (own * resident).min(most) as f64;
        if own == 0 {
            return 1.0;
        }
        let alone = waiting.iteration * GROUP_COLUMNS as f64 / columns as f64 + waiting.columns;
        ((alone / groups).powi(3) + waiting.busy.powi(3)).cbrt()
    }

    /// The loads that are streamed, right factors of products of few rows whose sums stay in registers; and how many
    /// cores share a block.
    fn streams(&self, extents: &KernelExtents<'_>, blocks: usize) -> (Vec<usize>, usize) {
        let threads = Streaming {
            rows: [1, self.skinny_rows],
            row_parts: self.mma_m,
            columns: 32,
            terms: 1,
            sums: 4096,
            cores: 1,
        };
        let boxes = Streaming {
            rows: [usize::from(self.has_tma), MOST_GROUPS * GROUP_ROWS],
            row_parts: 64,
            columns: 64,
            terms: 1024,
            sums: 16_384,
            cores: 2,
        };
        // Of two kernels, the first one's blocks share what is summed already.
        let Beside { before, is_read } = extents.beside;
        let is_alone = before.is_empty() && !is_read;
        let fits = |way: &Streaming| {
            let is_at_once = way.cores == 1 || blocks * way.cores <= self.cores;
            way.rows[0] > 0 && is_at_once && (way.cores == 1 || is_alone)
        };
        let found = |way: Streaming| {
            let sums = |load: usize| Some((load, self.streamed_sums(extents, load, &way)?));
            let found: Vec<(usize, usize)> = (0..extents.sketch.steps.len()).filter_map(sums).collect();
            let fit = found.iter().map(|(_, sums)| sums).sum::<usize>() <= way.sums;
            (fit && !found.is_empty()).then(|| (found.into_iter().map(|(load, _)| load).collect(), way.cores))
        };
        [boxes, threads].into_iter().filter(fits).find_map(found).unwrap_or((Vec::new(), 1))
    }

    /// The sums of the product that a load is streamed past, if it may be.
    fn streamed_sums(&self, extents: &KernelExtents<'_>, load: usize, way: &Streaming) -> Option<usize> {
        let sketch = extents.sketch;
        let mut readers = sketch.readers(load);
        let (Some(reader), None, SketchStep::Load(_)) = (readers.next(), readers.next(), &sketch.steps[load])
        else {
            return None;
        };
        let SketchStep::Op(TileOp::Matmul, args) = &sketch.steps[reader] else { return None };
        let extent = |dims: &[Dim], from_last: usize| {
            dims.iter().rev().nth(from_last).map_or(1, |dim| extents.dim(*dim))
        };
        let (factor, result) = (&sketch.dims[load], &sketch.dims[reader]);
        let (rows, columns) = (extent(result, 1), extent(result, 0));
        let suits = args[1] == load
            && !sketch.has_product(args[0])
            && (way.rows[0]..=way.rows[1]).contains(&rows)
            && extents.elems(result) == rows * columns
            && sketch.in_loop[load] == sketch.in_loop[reader]
            && (!sketch.in_loop[load] || sketch.is_accumulated(reader))
            && columns.is_multiple_of(way.columns)
            && extent(factor, 1).is_multiple_of(STREAM_TERMS)
            && extent(factor, 1) * extents.counts.looped >= way.terms;
        suits.then(|| rows.next_multiple_of(way.row_parts) * columns)
    }

    /// A lower bound for any counts: starting it, and moving what it loads from memory.
    pub fn floor_us(&self, sketch: &Sketch, labels: &[usize]) -> f64 {
        let whole = |dims: &[Dim]| -> f64 {
            let atom = |atom: Atom| if atom.parts == WHOLE { labels[usize::from(atom.label)] } else { 1 };
            dims.iter().flat_map(|dim| dim.atoms()).map(|a| atom(a) as f64).product()
        };
        let loads = sketch.sources.iter().filter(|source| matches!(source.origin, Origin::Program(_)));
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
        let structure = &sketch.structure;
        let options: Vec<Vec<usize>> = structure
            .grid
            .iter()
            .chain(&structure.looped)
            .map(|label| divisors(labels[usize::from(*label)]))
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
            let extents = KernelExtents { labels, sketch, counts: &counts, beside };
            if let Some(cost) = self.kernel_us(&extents) {
                best.push((cost, counts));
            }
        }
        best.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        best
    }
}

/// Divisors above 1 (or 1 alone), thinned to at most [`MOST_DIVISORS`].
fn divisors(extent: usize) -> Vec<usize> {
    let all: Vec<usize> = (2..=extent.min(4096)).filter(|count| extent.is_multiple_of(*count)).collect();
    let thin = all.len().div_ceil(MOST_DIVISORS).max(1);
    let mut kept: Vec<usize> = all.iter().copied().step_by(thin).collect();
    if kept.is_empty() {
        kept.push(1);
    }
    kept
}
