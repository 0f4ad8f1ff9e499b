//! Planning for CPUs: storage, cost model, designs.

use super::alone;
use super::device::Cpu;
use super::facts::{facts, flops};
use super::recurrence;
use crate::Precision;
use crate::build::mugraph_schedule::mugraph_schedule;
use crate::build::reductions::SplitReductions;
use crate::plan::backend::{EmittedFacts, Planner, TargetInfo};
use crate::plan::definition::KernelDefinition;
use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::{Layout, Storage, layouts};
use orch_ir::{DType, PrimGraph, TensorId};
use orch_mugraph::lower::{self, CannotLower, Request};
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::cost::SearchDevice;
use orch_rewrite::{ExpandLimits, LongReductions, PhaseLimits, ProductExtents};
use orch_template::{self, Design};
use orch_thread::ThreadProgram;
use orch_thread::count::count;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// What is sorted and scattered by comparisons and cumulated by masked sums, which are fused with what is around them. The kernels for
/// the rest sort 16 elements in as many steps as comparing all pairs takes vectors, and scatter while they copy.
const EXPANDED: ExpandLimits = ExpandLimits {
    sorted: 16,
    scattered: 1 << 22,
    pairs_of_element: 1,
    few_elements: 4 << 10,
    cumulated: 16,
    split: None,
};

/// Reductions whose results are too few vectors, or rows, for many threads, and which take one thread 10 us and more.
const SPLIT_REDUCTIONS: SplitReductions = SplitReductions {
    columns: LongReductions {
        results: 512,
        elems: 1 << 17,
        elems_of_result: 1,
        parts: 16,
        most_parts: 64,
        part_elems: 1 << 10,
    },
    rows: LongReductions {
        results: 8,
        elems: 1,
        elems_of_result: 1 << 17,
        parts: 16,
        most_parts: 64,
        part_elems: 1 << 10,
    },
};

/// Work items of a product, from which on many threads have enough of them.
const PRODUCT_ITEMS: usize = 16;

/// Multiplications of a product whose K dimension is divided, and of a part of it: with one row they read 2 MiB and 128 KiB of weights.
const SPLIT_PRODUCT: usize = 1 << 19;
const PRODUCT_PART: usize = 1 << 15;

/// In how many parts the K dimension of a product with few results is divided, at most: its work items are blocks of 8 x 32 elements.
fn product_parts(product: ProductExtents) -> usize {
    let ProductExtents { batch, m, n, k } = product;
    let [m, n] = [m.min(n), m.max(n)];
    let (items, work) = (batch * m.div_ceil(8) * n.div_ceil(32), batch * m * n * k);
    if items < PRODUCT_ITEMS && work >= SPLIT_PRODUCT {
        (2 * PRODUCT_ITEMS / items).min(work / PRODUCT_PART)
    } else {
        1
    }
}

/// Schedules of a kernel that are timed, at most: the model's order is good enough that later ones are slower.
const MOST_SCHEDULES: usize = 4;

/// Pixels of images from which on convolutions to few maps are split by tap: fewer are a few microseconds.
const SPLIT_PIXELS: usize = 1 << 10;

/// Channels and maps from which on convolutions may run on copies of planar images.
const STAGED_CHANNELS: usize = 16;

impl Planner for Cpu {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn prepared(&self, graph: PrimGraph) -> PrimGraph {
        let graph = orch_rewrite::expand_routines(&graph, EXPANDED);
        let graph = SPLIT_REDUCTIONS.split(&graph, &layouts::assign(&graph));
        let graph = orch_rewrite::split_products(&graph, product_parts);
        let graph =
            orch_rewrite::phase_convolutions(&graph, PhaseLimits { joined_flops: 0.0, has_computed: false });
        let graph = orch_rewrite::split_taps(&graph, SPLIT_PIXELS);
        let assigned = layouts::assign(&graph);
        let is_planar = |image: TensorId| {
            let (layout, shape) = (&assigned[image.index()], graph.shape(image));
            layout.is_row_major() && !layout.same_bytes(&Layout::channels_last(shape.rank()), shape)
        };
        let graph = orch_rewrite::stage_images(&graph, STAGED_CHANNELS, is_planar);
        let graph = orch_rewrite::stage_depthwise_weights(&graph);
        match self.info.precision {
            Precision::Bf16 => orch_rewrite::narrow_contractions(&graph, DType::BF16).0,
            Precision::F32 | Precision::Tf32 | Precision::F16 => graph,
        }
    }

    fn storage(&self, graph: &PrimGraph) -> Storage {
        Storage::as_stated(graph, layouts::assign(graph))
    }

    fn estimate(&self, definition: &KernelDefinition) -> Option<KernelEstimate> {
        let block = match definition {
            KernelDefinition::Block(block) => block,
            KernelDefinition::Recurrence(program) => {
                return Some(recurrence::estimate(program, &self.target, &self.figures));
            }
            KernelDefinition::Selection(program) => return Some(alone::selection(program, &self.figures)),
            KernelDefinition::Cumulative(program) => {
                return Some(alone::cumulative(program, &self.target, &self.figures));
            }
            KernelDefinition::Scatter(program) => return Some(alone::scatter(program, &self.figures)),
        };
        let facts = facts(block, &self.target);
        let roofline_us = facts.lower_bound_us(&self.figures);
        let alone_us = facts.alone_us(&self.figures);
        let work = KernelWork { flops: flops(&facts), roofline_us, alone_us };
        Some(KernelEstimate { time_us: facts.estimate(&self.figures).time_us, work })
    }

    /// Kernels by themselves: what is split for the sake of parallelism only goes through memory for little.
    fn search_options(&self) -> SearchOptions {
        let figures = &self.figures;
        let threads = f64::from(figures.threads);
        let l2_bytes = usize::try_from(figures.l2_bytes).unwrap_or(usize::MAX);
        let machine = SearchDevice {
            cores: figures.threads as usize,
            // With more, loads wait for the L2: on a Zen with 32 KiB of L1, 128 rows by 128 keys of attention take 15 % longer than by 64, and
            // on a Xeon with 2 MiB of L2 blocks of half of it take up to 10 % longer.
            tile_bytes: (l2_bytes / 2).min(8 * self.target.l1_bytes),
            load_stages: 1,
            memory_bytes_per_us: GIGA_TO_MICRO * figures.memory_gbs_all,
            cache_bytes_per_us: GIGA_TO_MICRO * figures.l2_gbs_core * threads,
            cache_bytes: l2_bytes * figures.threads as usize,
            flops_per_us: GIGA_TO_MICRO * figures.fma_gflops_all,
            launch_us: figures.launch_parallel_us,
            unoverlapped: 0.0,
            iteration_us: 0.0,
            burst_bytes: 256,
            // Products of 8 rows read weights of 4096 columns at half the rate of packed ones, on a Zen 5.
            far_run_bytes: 256,
            reread_share: 0.0,
            sector_bytes: 64,
            element_bytes: size_of::<f32>(),
            partial_bytes: size_of::<f32>(),
            // With fewer rows the loads of the right operand from L2 take longer than the arithmetic.
            mma_m: 8,
            mma_n: self.target.lanes(size_of::<f32>()),
            mma_k: 8,
            pack_flops: 16.0,
            // Panels of 64 to 768 elements along K, transposed in registers: 0.05 to 0.08 ns an element, on a Zen 5.
            transpose_flops: 16.0,
            unpacked_rows: 16,
            waiting: None,
            skinny_rows: 0,
            has_tma: false,
            max_cluster: 1,
            cores_in_clusters: 0,
            exchange_bytes_per_us: f64::INFINITY,
            accumulator_bytes: 0,
            // Operations of a tile are done several in a pass, which the figure is not of.
            scalar_flops: 0.5 * figures.fma_gflops_core / figures.cheap_gops_core,
            special_flops: figures.fma_gflops_core / figures.transcendental_gops_core,
            saturating_share: (figures.memory_gbs_all / figures.memory_gbs_core / threads).min(1.0),
        };
        SearchOptions { machine, kernels: 1, ..SearchOptions::default() }
    }

    fn designs(&self, definition: &KernelDefinition, limit: usize) -> Vec<Design> {
        match definition {
            KernelDefinition::Block(block) => {
                orch_template::designs(block, &self.target, limit.min(MOST_SCHEDULES))
            }
            KernelDefinition::Recurrence(program) => {
                vec![orch_template::recurrence::design(program, &self.target)]
            }
            KernelDefinition::Selection(program) => {
                vec![orch_template::selection::design(program, &self.target)]
            }
            KernelDefinition::Cumulative(program) => {
                vec![orch_template::cumulative::design(program, &self.target)]
            }
            KernelDefinition::Scatter(program) => vec![orch_template::scatter::design(program, &self.target)],
        }
    }

    fn design_mugraph(&self, request: &Request<'_>, _limit: usize) -> Result<Vec<Design>, CannotLower> {
        let kernel = lower::cpu::lower(request, &self.target)?;
        Ok(vec![Design { kernel, schedule: mugraph_schedule(request) }])
    }

    fn emitted(&self, program: &ThreadProgram) -> EmittedFacts {
        /// A division, and an iteration of a loop, in simple instructions.
        const DIVISION: f64 = 8.0;
        const ITERATION: f64 = 0.5;
        /// Accesses run beside arithmetic, of which there is as much at least: attention of 256 and 1024 rows by 1024 and 4096 keys
        /// takes 0.96 to 1.02 of what this comes to, on a Zen 5.
        const ACCESS: f64 = 0.2;
        let counts = count(program);
        let lanes = self.target.lanes(size_of::<f32>()) as f64;
        let simple_us = 2.0 * lanes / (GIGA_TO_MICRO * self.figures.fma_gflops_core);
        let function_us = lanes / (GIGA_TO_MICRO * self.figures.transcendental_gops_core);
        let simple = counts.simple
            + ACCESS * counts.accesses
            + DIVISION * counts.divisions
            + ITERATION * counts.iterations;
        let all_us = simple * simple_us + counts.functions * function_us;
        let threads = self.figures.threads as usize;
        let rounds = (program.phases * program.phase_items().div_ceil(threads.max(1))) as f64;
        EmittedFacts { least_us: all_us * rounds / program.tasks.max(1) as f64, resident_ctas: 1 }
    }
}
