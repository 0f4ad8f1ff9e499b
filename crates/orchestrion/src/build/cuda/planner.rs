//! Planning for GPUs: storage, cost model, designs.

use super::alone;
use super::device::Cuda;
use super::facts::facts;
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
use orch_mugraph::search::cost::{LatencyHiding, SearchDevice};
use orch_rewrite::{
    ChannelAlignment, ExpandLimits, LongReductions, PhaseLimits, RowAlignment, ShortProducts, SplitLimits,
};
use orch_template::Design;
use orch_template::gpu::{self, contraction};
use orch_thread::ThreadProgram;
use orch_thread::count::{cta_resources, exposed_waits};
use orch_thread::cta::MAX_CLUSTER;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// Share of the multiply-adds of scalar units that products of µGraphs reach. At the full rate they were modelled 11 us a layer
/// shorter than the templates' kernels for norms and products of `bert_base` in f32, and took 8 us longer on an H200.
const SCALAR_PRODUCTS: f64 = 0.4;

/// When operands are copied to longer rows, for f32 and for f16 and bf16. Scalar FMAs keep up with `cp.async` of 8 bytes, and a GEMM
/// of 800 cubed takes as long as the copies; MMA kernels need rows of a multiple of 16 bytes.
const FULL_ROWS: RowAlignment = RowAlignment { kept: 2, wanted: 4, least_flops: 1e9 };
const HALF_ROWS: RowAlignment = RowAlignment { kept: 8, wanted: 8, least_flops: 1e8 };

/// Pixels of images from which on convolutions to few maps are split by tap: of fewer, one more kernel is modelled to cost what is gained.
const SPLIT_PIXELS: usize = 1 << 15;

/// Channels of half precision that are read 16 bytes at a time.
const HALF_CHANNELS: ChannelAlignment = ChannelAlignment {
    multiple: 8,
    least_flops: 1e8,
    least_sparse_flops: 5e8,
    short: ShortProducts { rows: contraction::SHORT_ROWS, most: contraction::SHORT },
};

/// Of attention on an H100, heads of 64 and 128, 16 to 128 keys in an iteration: 64 keys by 64 rows take a warp group alone 1.8 times
/// as long as four that run on an SM take each, and two 1.15 times.
const WAITING: LatencyHiding = LatencyHiding { iteration: 0.68, columns: 0.76, busy: 0.83 };

/// L2 bandwidth of tiles that TMA and `cp.async` load, relative to that of loads to registers: 7.3 to 7.4 TB/s on an H100.
const L2_OF_TILES: f64 = 4.0 / 3.0;

/// What is sorted and scattered by comparisons, which are fused with what is around them. Reading an element takes a GPU as long as
/// comparing four pairs; more updates are for the scatter kernel. Long lines are sorted in parts.
const EXPANDED: ExpandLimits = ExpandLimits {
    sorted: 32,
    scattered: 1 << 22,
    pairs_of_element: 4,
    few_elements: 1 << 20,
    cumulated: usize::MAX,
    split: Some(SplitLimits { part: 2 << 10, kernel_comparisons: 8 << 20 }),
};

/// FLOPs of the phases of a transposed convolution as one convolution, at most, by scalar units and by tensor cores. Of kernels of 4 x 4 with
/// strides of 2, 5 of 9 products are by zeros: on an H100 462 MFLOP in f32 take 36 us, and 23 us by a kernel for each phase.
const JOINED_PHASES: f64 = 2e8;
const JOINED_HALF_PHASES: f64 = 1.6e10;

/// Reductions whose results are a row of few channels: an SM for each few of them would read short runs of each row. Of 8 images of 64 channels,
/// 112 pixels a side, a normalisation as one kernel takes an H100 80 us; of 56 pixels a side it takes 25, as long as its parts. And
/// reductions of rows that a cluster of CTAs does not read at once, so few that it leaves most SMs idle.
const SPLIT_REDUCTIONS: SplitReductions = SplitReductions {
    columns: LongReductions {
        results: 128,
        elems: 1 << 22,
        elems_of_result: 1,
        parts: 4,
        most_parts: 256,
        part_elems: 1,
    },
    rows: LongReductions {
        results: 8,
        elems: 1,
        elems_of_result: 1 << 17,
        parts: 64,
        most_parts: 512,
        part_elems: 1 << 10,
    },
};

impl Cuda {
    /// How tensors are stored for products of `half`: those that the model states as f32 in `half` as well, if that was asked for.
    fn stored(&self, graph: &PrimGraph, layouts: Vec<Layout>, half: DType) -> Storage {
        let storage = if self.narrows { Storage::narrowed } else { Storage::with_half_operands };
        storage(graph, layouts, half)
    }
}

impl Planner for Cuda {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn prepared(&self, graph: PrimGraph) -> PrimGraph {
        let graph = orch_rewrite::expand_routines(&graph, EXPANDED);
        // In f32 results stay finite where infinite weights meet no element of the operand.
        let (joined_flops, has_computed) = match self.info.precision {
            Precision::F32 => (JOINED_PHASES, false),
            Precision::Tf32 => (JOINED_HALF_PHASES, false),
            Precision::F16 | Precision::Bf16 => (JOINED_HALF_PHASES, true),
        };
        let graph = orch_rewrite::phase_convolutions(&graph, PhaseLimits { joined_flops, has_computed });
        let graph = orch_rewrite::split_taps(&graph, SPLIT_PIXELS);
        let graph = orch_rewrite::merge_products(&graph);
        let (graph, alignment) = match self.info.precision {
            Precision::F32 | Precision::Tf32 => (graph, FULL_ROWS),
            Precision::F16 | Precision::Bf16 => (orch_rewrite::stage_inputs(&graph), HALF_ROWS),
        };
        let graph = orch_rewrite::patch_products(&graph);
        let graph = match self.info.precision {
            Precision::F32 | Precision::Tf32 => graph,
            Precision::F16 | Precision::Bf16 => orch_rewrite::align_channels(&graph, HALF_CHANNELS),
        };
        let layouts = layouts::assign_gpu(&graph);
        let innermost = |tensor: TensorId| layouts[tensor.index()].order().last().copied();
        let graph = orch_rewrite::align_rows(&graph, alignment, innermost);
        let layouts = layouts::assign_gpu(&graph);
        SPLIT_REDUCTIONS.split(&graph, &layouts)
    }

    fn storage(&self, graph: &PrimGraph) -> Storage {
        let layouts = layouts::assign_gpu(graph);
        match self.info.precision {
            Precision::F32 | Precision::Tf32 => Storage::as_stated(graph, layouts),
            Precision::F16 => self.stored(graph, layouts, DType::F16),
            Precision::Bf16 => self.stored(graph, layouts, DType::BF16),
        }
    }

    fn estimate(&self, definition: &KernelDefinition) -> Option<KernelEstimate> {
        let block = match definition {
            KernelDefinition::Block(block) => block,
            KernelDefinition::Recurrence(program) => {
                let schedule = *gpu::recurrence::schedules(program, &self.target).first()?;
                let cycles = schedule.cycles(program, &self.target);
                return Some(recurrence::estimate(program, cycles, &self.figures));
            }
            KernelDefinition::Selection(program) => {
                let cycles = gpu::selection::cycles(program, &self.target)?;
                return Some(alone::selection(program, cycles, &self.figures));
            }
            KernelDefinition::Scatter(program) => {
                let schedule = gpu::scatter::GpuScatterSchedule::of(program, &self.target)?;
                let cycles = schedule.cycles(program, &self.target);
                return Some(alone::scatter(program, cycles, &self.figures));
            }
            KernelDefinition::Cumulative(_) => return None,
        };
        if !gpu::serves(block, &self.target, self.operands()) {
            return None;
        }
        let facts = facts(block, self.operands());
        let modelled = facts.estimate(&self.figures);
        let (roofline_us, alone_us) = (modelled.bound_us, modelled.time_us);
        let work = KernelWork { flops: facts.flops(), roofline_us, alone_us };
        Some(KernelEstimate { time_us: modelled.time_us, work })
    }

    fn search_options(&self) -> SearchOptions {
        let figures = &self.figures;
        let (gflops, element_bytes, mma_m) = match self.info.precision {
            Precision::F32 => (SCALAR_PRODUCTS * figures.f32_gflops, 4, 1),
            Precision::Tf32 => (figures.tf32_gflops, 4, 16),
            Precision::F16 | Precision::Bf16 => (figures.half_gflops, 2, 16),
        };
        let machine = SearchDevice {
            cores: figures.sms as usize,
            tile_bytes: self.target.shared_bytes * 7 / 10,
            memory_bytes_per_us: GIGA_TO_MICRO * figures.memory_gbs,
            cache_bytes_per_us: L2_OF_TILES * GIGA_TO_MICRO * figures.l2_gbs,
            // Decoding with two CTAs for each head of keys and values, 8 x 8 heads of 2048 x 64, takes an H100 24.1 us, with one 19.6.
            reread_share: 0.1,
            cache_bytes: usize::try_from(figures.l2_bytes).unwrap_or(usize::MAX) * 3 / 4,
            flops_per_us: GIGA_TO_MICRO * gflops,
            launch_us: figures.launch_us + figures.latency_us,
            element_bytes,
            mma_m,
            skinny_rows: if element_bytes == 2 { 64 } else { 0 },
            has_tma: self.target.has_wgmma && element_bytes == 2,
            accumulator_bytes: 96 << 10,
            scalar_flops: 2.0 * gflops / figures.f32_gflops,
            special_flops: gflops / figures.special_gops,
            max_cluster: if self.target.has_clusters && element_bytes == 2 { MAX_CLUSTER } else { 1 },
            cores_in_clusters: self.target.ctas_in_clusters(MAX_CLUSTER),
            waiting: (self.target.has_wgmma && element_bytes == 2).then_some(WAITING),
            ..SearchDevice::default()
        };
        SearchOptions { machine, ..SearchOptions::default() }
    }

    fn designs(&self, definition: &KernelDefinition, limit: usize) -> Vec<Design> {
        match definition {
            KernelDefinition::Block(block) => gpu::designs(block, &self.target, self.operands(), limit),
            KernelDefinition::Recurrence(program) => gpu::recurrence::designs(program, &self.target, limit),
            KernelDefinition::Selection(program) => {
                gpu::selection::design(program, &self.target).into_iter().collect()
            }
            KernelDefinition::Scatter(program) => {
                gpu::scatter::design(program, &self.target).into_iter().collect()
            }
            KernelDefinition::Cumulative(_) => Vec::new(),
        }
    }

    fn design_mugraph(&self, request: &Request<'_>, limit: usize) -> Result<Vec<Design>, CannotLower> {
        let (target, operands) = (&self.target, self.operands());
        let (mut designs, mut failure) = (Vec::new(), None);
        for schedule in lower::gpu::schedules(request, target, operands)? {
            if designs.len() >= limit {
                break;
            }
            match lower::gpu::lower_as(request, target, operands, schedule) {
                Ok(kernel) => {
                    let schedule = format!("{} {schedule}", mugraph_schedule(request));
                    designs.push(Design { kernel, schedule });
                }
                Err(reason) => failure = failure.or(Some(reason)),
            }
        }
        match failure {
            Some(reason) if designs.is_empty() => Err(reason),
            _ if designs.is_empty() => Err(CannotLower("no schedule suits it".to_owned())),
            _ => Ok(designs),
        }
    }

    fn emitted(&self, program: &ThreadProgram) -> EmittedFacts {
        /// Microseconds of an iteration that waits for loads of its own: a product of 64 rows by 32 columns with a computed operand,
        /// whose loop of 88 iterations has no stages, takes 1.3 on an H100.
        const EXPOSED_US: f64 = 1.2;
        /// Most CTAs of an SM that hide each other's waits.
        const RESIDENT_CTAS: usize = 4;
        let resident_ctas = self.target.resident_ctas(cta_resources(program)).max(1);
        let waves = program.tasks.div_ceil(self.target.sms * resident_ctas.min(RESIDENT_CTAS)) as f64;
        let started_us = self.figures.launch_us + self.figures.latency_us;
        let least_us = match exposed_waits(program) {
            waits if waits > 0.0 => started_us + waves * waits * EXPOSED_US,
            _ => 0.0,
        };
        EmittedFacts { least_us, resident_ctas }
    }
}
