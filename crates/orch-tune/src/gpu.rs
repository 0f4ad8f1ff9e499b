//! An analytic cost model of a GPU kernel inside a CUDA graph.
//!
//! A kernel takes the time to start it, the latency of its first loads and last stores, and the longer of moving its
//! data and computing. Weights come from device memory; what another kernel has just written is still in
//! L2, unless it is larger than L2 keeps. Matrix products are tiled as templates tile them: the cheapest of a
//! few tile sizes and split-K counts is taken, so that small and odd extents pay for partial waves and partial tiles.

use serde::{Deserialize, Serialize};

/// What a GPU can do, as the cost model sees it. Rates are those that good kernels reach, not those on paper.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuModel {
    /// Streaming multiprocessors (SMs).
    #[serde(rename = "multiprocessors")]
    pub sms: u32,
    /// Device memory, in 10^9 bytes per second.
    pub memory_gbs: f64,
    /// Size of L2.
    pub l2_bytes: u64,
    /// Bandwidth from L2 to all SMs, in 10^9 bytes per second.
    pub l2_gbs: f64,
    /// Bandwidth from anywhere to one SM, in 10^9 bytes per second.
    #[serde(rename = "multiprocessor_gbs")]
    pub sm_gbs: f64,
    /// Multiply-adds of f32, counted as two operations, in 10^9 per second.
    pub f32_gflops: f64,
    /// The same on tensor cores with TF32 operands.
    pub tf32_gflops: f64,
    /// The same on tensor cores with f16 or bf16 operands.
    pub half_gflops: f64,
    /// Exponentials and the like, in 10^9 per second.
    pub special_gops: f64,
    /// From the end of a kernel to the start of the next one of the graph.
    pub launch_us: f64,
    /// A kernel's first load and last store, with next to nothing between them.
    pub latency_us: f64,
}

/// The unit that multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ArithmeticUnit {
    /// Scalar units, f32.
    Scalar,
    /// Tensor cores, TF32 operands.
    Tf32,
    /// Tensor cores, f16 or bf16 operands.
    Half,
}

/// What a kernel does, as far as its block program tells.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GpuKernelCost {
    /// Bytes of constants that are read, each once.
    pub constant_bytes: u64,
    /// Bytes of other arguments that are read, each once.
    pub read_bytes: u64,
    /// Bytes of results.
    pub written_bytes: u64,
    /// Bytes of sectors that are transferred beside the elements that are read and written, where there is no product: a gradient
    /// by channels beside activations by pixels.
    pub unused_bytes: u64,
    /// The matrix product that the kernel is built around.
    pub product: Option<GemmCost>,
    /// The attention that it is instead.
    pub attention: Option<AttentionCost>,
    /// Multiply-adds outside of it, counted as two, and simple operations.
    pub cheap_ops: u64,
    /// Exponentials, logarithms, and the like.
    pub special_ops: u64,
    /// CTAs, where there is no product.
    pub ctas: u64,
    /// Loads that a thread does one after the other, where a CTA reduces several points at once: of a pool before a norm those of its
    /// window.
    pub serial_loads: u64,
}

/// A batch of matrix products.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GemmCost {
    /// Independent products (batch dimension).
    pub batch: u64,
    /// Rows (M dimension).
    pub m: u64,
    /// Columns (N dimension).
    pub n: u64,
    /// K dimension.
    pub k: u64,
    /// The unit that multiplies.
    pub unit: ArithmeticUnit,
    /// Bytes of an element of each operand, `[a, b]`.
    pub operand_bytes: [u64; 2],
    /// Bytes of the widest accesses by which each operand can be read: 16, or less where its rows are not aligned.
    pub access_bytes: [u64; 2],
    /// Operations that compute an element of each operand: none where it is read from memory unchanged.
    pub operand_ops: [f64; 2],
    /// Divisions and remainders in the index of an element of each operand, as those of an image that is reshaped from rows of another length.
    pub index_divisions: [u64; 2],
    /// Tensors that each operand is a concatenation of, 1 if it is none.
    pub operand_pieces: [u64; 2],
    /// Bytes of sectors that are stored beside the results, where those of neighbouring columns are apart.
    pub unused_stored_bytes: u64,
}

/// Attention with the scores of all keys of a CTA's rows in registers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionCost {
    /// CTAs.
    pub ctas: u64,
    /// Bytes that a CTA loads to shared memory.
    pub cta_bytes: u64,
    /// Scores of a thread.
    pub scores: u64,
    /// Simple operations, and exponentials, per score.
    pub ops: [f64; 2],
    /// Multiply-adds of a CTA on tensor cores, counted as two.
    pub cta_flops: u64,
}

/// The expected time of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuEstimate {
    /// Microseconds in a graph, the launch included.
    pub time_us: f64,
    /// Microseconds that arithmetic and traffic take at least.
    pub bound_us: f64,
}

/// 10^9 per second, in microseconds per piece.
const GIGA_TO_US: f64 = 1e-3;
/// Share of the shorter of compute and memory time that is not hidden behind the longer one.
const OVERLAP_LOSS: f64 = 0.2;
/// Share of L2 that holds what the previous kernel wrote.
const L2_KEPT: f64 = 0.6;
/// Tiles `(m, n)` of a CTA.
const TILES: [(u64, u64); 9] =
    [(256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 32)];
/// Split-K: CTAs that share the K dimension of an output tile.
const SPLIT_K: [u64; 5] = [1, 2, 4, 8, 16];
/// Smallest K dimension of one split.
const LEAST_SPLIT_K: u64 = 64;
/// Share of the peak that the largest tile reaches, and how it falls with the tile's area.
const TILE_EFFICIENCY: f64 = 0.85;
const AREA_EXPONENT: f64 = 0.3;
/// Microseconds of a load, of which a thread has 8 in flight: 256 sums of 3136 in a CTA, each by one thread, take an H100 676 where
/// each load waits for the one before.
const SERIAL_LOAD_US: f64 = 0.03;
/// Share of the peak that is left where an operand is computed on its way to shared memory, and the time that each step of
/// [`STEP_K`] takes besides, on scalar units and on tensor cores: its loads are synchronous, instead of several pipeline stages
/// ahead. Loads narrower than cp.async takes (4 bytes) are synchronous as well, and more numerous. Measured on an H100: products
/// of an activation and a gate for each channel, of 64 to 1024 rows with K from 512 to 2048, take 1.6 to 1.8 us a step, those of
/// `silu(x) y` with K of 192 and 768 0.9 to 1.1.
const COMPUTED_OPERAND: f64 = 0.7;
const COMPUTED_SCALAR_US: f64 = 0.6;
const COMPUTED_US: f64 = 1.3;
/// The same for each further tensor that an operand is a concatenation of: their loads wait for one another. Measured on an H100:
/// products of 49 rows with K from 600 to 1000 take 0.8 us a step and tensor for 4 to 16 tensors, of which many spill registers.
const PIECE_US: f64 = 0.8;
const STEP_K: f64 = 64.0;
const NARROWEST_COPY: u64 = 4;
const SINGLES_US: f64 = 1.4;
/// Operations of a division of an index, with what waits for it, where elements are read one by one. A 3 x 3 convolution of 7 x 7 x 256, to 512,
/// of an image that is a transposed tensor of 8 x 49 x 32 takes an H100 95 us, with five divisions for each element.
const DIVISION_OPS: f64 = 40.0;
/// Share of the peak that is left where an operand is read by accesses of so many bytes: measured on GEMMs around
/// 2048 x 2048 x 2048 on an H200.
const NARROW_SCALAR: [(u64, f64); 2] = [(4, 0.85), (8, 0.97)];
const NARROW_TF32: [(u64, f64); 2] = [(4, 0.51), (8, 0.78)];
const NARROW_HALF: [(u64, f64); 3] = [(2, 0.22), (4, 0.48), (8, 0.64)];
/// Simple operations that take as long as an exponential in a thread, and those that each score takes anyway.
const SPECIAL_CHEAP: f64 = 12.0;
const SCORE_OPS: f64 = 6.0;
/// Share of the tensor cores' peak that mma on register fragments reaches.
const ATTENTION_EFFICIENCY: f64 = 0.25;
/// Share of the memory's rate at which the unused parts of sectors pass that are stored: L2 takes such stores one by one. Measured on an
/// H100: gradients of weights `[512, 512, 3, 3]` in f16, two bytes stored at a time 18 apart, take 47 us longer than their product and
/// as much in whole sectors would, those of 256 channels 17.
const PARTIAL_STORES: f64 = 0.35;
/// The split-K reduction, beside its traffic.
const MERGE_US: f64 = 0.8;

impl GpuModel {
    /// Share of the memory's rate on paper that kernels reach.
    pub const REACHED: f64 = 0.85;

    /// Usual figures of a GPU with this architecture.
    pub fn usual(arch: &str, sms: usize, l2_bytes: usize) -> Self {
        let is_hopper = arch.starts_with("sm_90");
        let (memory, f32, tf32, half, clock_ghz) =
            if is_hopper { (3350.0, 60e3, 400e3, 790e3, 1.7) } else { (1555.0, 19e3, 140e3, 290e3, 1.4) };
        let all = sms.max(1) as f64;
        Self {
            sms: u32::try_from(sms.max(1)).unwrap_or(u32::MAX),
            memory_gbs: Self::REACHED * memory,
            l2_bytes: l2_bytes as u64,
            l2_gbs: 24.0 * clock_ghz * all,
            sm_gbs: 48.0 * clock_ghz,
            f32_gflops: f32,
            tf32_gflops: tf32,
            half_gflops: half,
            special_gops: 16.0 * clock_ghz * all,
            launch_us: 1.2,
            latency_us: 1.3,
        }
    }

    fn gflops(&self, unit: ArithmeticUnit) -> f64 {
        match unit {
            ArithmeticUnit::Scalar => self.f32_gflops,
            ArithmeticUnit::Tf32 => self.tf32_gflops,
            ArithmeticUnit::Half => self.half_gflops,
        }
    }

    /// Microseconds to move data to and from the SMs that this many CTAs occupy.
    fn memory_us(&self, facts: &GpuKernelCost, ctas: u64) -> f64 {
        let kept = L2_KEPT * self.l2_bytes as f64;
        let far = |bytes: u64| (bytes as f64 - kept).max(0.0);
        let all = (facts.constant_bytes + facts.read_bytes + facts.written_bytes) as f64;
        let far = facts.constant_bytes as f64 + far(facts.read_bytes) + far(facts.written_bytes);
        let busy = ctas.clamp(1, u64::from(self.sms)) as f64;
        let rates = [far / self.memory_gbs, all / self.l2_gbs, all / (busy * self.sm_gbs)];
        rates.into_iter().fold(0.0, f64::max) * GIGA_TO_US
    }

    /// Microseconds of elementwise arithmetic in this many CTAs.
    fn arithmetic_us(&self, cheap: f64, special: f64, ctas: u64) -> f64 {
        let all = f64::from(self.sms);
        let busy = ctas.clamp(1, u64::from(self.sms)) as f64 / all;
        (2.0 * cheap / self.f32_gflops + special / self.special_gops) / busy * GIGA_TO_US
    }
}

impl GpuKernelCost {
    /// The expected time.
    pub fn estimate(&self, model: &GpuModel) -> GpuEstimate {
        let (work_us, bound_us) = match &self.product {
            _ if self.attention.is_some() => (self.attention_us(model), self.bound_us(None, model)),
            Some(product) => (self.gemm_us(product, model), self.bound_us(Some(product), model)),
            None => {
                let memory = model.memory_us(self, self.ctas) + self.unused_us(model);
                let compute = model.arithmetic_us(self.cheap_ops as f64, self.special_ops as f64, self.ctas);
                let serial = self.serial_loads as f64 * SERIAL_LOAD_US;
                (overlapped(memory, compute).max(serial), self.bound_us(None, model))
            }
        };
        GpuEstimate { time_us: model.launch_us + model.latency_us + work_us, bound_us }
    }

    /// Floating-point operations in all, a multiply-add as two.
    pub fn flops(&self) -> f64 {
        let attention =
            self.attention.as_ref().map_or(0.0, |facts| facts.ctas as f64 * facts.cta_flops as f64);
        let product = self.product.map_or(0.0, |product| product.flops());
        (self.cheap_ops + self.special_ops) as f64 + attention + product
    }

    /// Microseconds that the unused parts of sectors take. Measured on an H100: sums over 16 images of 64 x 32 x 32 take 7 us more where one
    /// operand of two has another layout, and 32 us more with a result of another layout as well.
    fn unused_us(&self, model: &GpuModel) -> f64 {
        self.unused_bytes as f64 / model.memory_gbs * GIGA_TO_US
    }

    fn bound_us(&self, product: Option<&GemmCost>, model: &GpuModel) -> f64 {
        let compute = product.map_or(0.0, |product| product.flops() / model.gflops(product.unit));
        let bytes = (self.constant_bytes + self.read_bytes + self.written_bytes) as f64;
        // What is read may lie in L2, and what is written may stay there.
        let cached = 2.0 * model.l2_bytes as f64;
        let memory = ((bytes - cached).max(0.0) / model.memory_gbs).max(bytes / model.l2_gbs);
        compute.max(memory) * GIGA_TO_US
    }

    /// Waves of CTAs: each loads its operands, then computes.
    fn attention_us(&self, model: &GpuModel) -> f64 {
        let Some(facts) = &self.attention else { return 0.0 };
        let all = f64::from(model.sms);
        let waves = facts.ctas.div_ceil(u64::from(model.sms)) as f64;
        let load = facts.cta_bytes as f64 / model.sm_gbs;
        // A warp's instruction is one of 32 lanes; its four schedulers work side by side on other warps.
        let lane_gops = model.f32_gflops / all / 2.0 / 128.0;
        let [cheap, special] = facts.ops;
        let scores = facts.scores as f64 * (cheap + SPECIAL_CHEAP * special + SCORE_OPS) / lane_gops;
        let multiply = facts.cta_flops as f64 / (ATTENTION_EFFICIENCY * model.half_gflops / all);
        // CTAs that share an SM overlap loads and arithmetic.
        (waves.min(2.0) * load + waves * multiply + (1.0 + (waves - 1.0) * 0.5) * scores) * GIGA_TO_US
            + self.bound_us(None, model)
    }

    /// The least time of a product over tiles and split-K counts, prologue and epilogue included.
    fn gemm_us(&self, product: &GemmCost, model: &GpuModel) -> f64 {
        let splits = SPLIT_K.into_iter().filter(|&split| split == 1 || product.k >= split * LEAST_SPLIT_K);
        let times = splits.flat_map(|split| TILES.map(|tile| self.tiled_us(product, tile, split, model)));
        times.fold(f64::INFINITY, f64::min)
    }

    fn tiled_us(&self, product: &GemmCost, tile: (u64, u64), split: u64, model: &GpuModel) -> f64 {
        let (rows, columns) = (product.m.div_ceil(tile.0), product.n.div_ceil(tile.1));
        let ctas = product.batch * rows * columns * split;
        let waves = ctas.div_ceil(u64::from(model.sms)) as f64;
        let k = product.k.div_ceil(split) as f64;
        let all = f64::from(model.sms);

        let (largest, area) = ((TILES[0].0 * TILES[0].1) as f64, (tile.0 * tile.1) as f64);
        let mut efficiency = TILE_EFFICIENCY * (area / largest).powf(AREA_EXPONENT);
        let is_computed = product.operand_ops.iter().any(|&ops| ops > 0.0);
        if is_computed {
            efficiency *= COMPUTED_OPERAND;
        }
        efficiency *= product.narrowness();
        let multiply = 2.0 * area * k / (model.gflops(product.unit) / all * efficiency);
        let [lhs, rhs] = product.operand_bytes.map(|bytes| bytes as f64);
        let load = (tile.0 as f64 * lhs + tile.1 as f64 * rhs) * k
            / model.sm_gbs.min(model.l2_gbs / all.min(ctas as f64));
        let [lhs, rhs] = product.fill_ops();
        let fill = 2.0 * (tile.0 as f64 * lhs + tile.1 as f64 * rhs) * k / (model.f32_gflops / all);
        let inside_us = waves * (multiply.max(load) + fill) * GIGA_TO_US;

        let after_us = model.arithmetic_us(self.cheap_ops as f64, self.special_ops as f64, ctas);
        let merged = (product.batch * product.m * product.n * 8 * split) as f64;
        let merge_us = if split > 1 { MERGE_US + merged / model.l2_gbs * GIGA_TO_US } else { 0.0 };
        let step_us = match is_computed {
            _ if product.narrowest_access() < NARROWEST_COPY => SINGLES_US,
            true if product.unit == ArithmeticUnit::Scalar => COMPUTED_SCALAR_US,
            true => COMPUTED_US,
            false => 0.0,
        };
        let further = product.operand_pieces.iter().map(|pieces| pieces.saturating_sub(1)).sum::<u64>();
        let waited_us = waves * (step_us + further as f64 * PIECE_US) * (k / STEP_K).ceil();
        let partial_us =
            product.unused_stored_bytes as f64 / (PARTIAL_STORES * model.memory_gbs) * GIGA_TO_US;
        overlapped(model.memory_us(self, ctas), inside_us) + waited_us + after_us + merge_us + partial_us
    }
}

impl GemmCost {
    fn narrowest_access(&self) -> u64 {
        self.access_bytes[0].min(self.access_bytes[1])
    }

    /// Operations that bring an element of each operand to shared memory.
    fn fill_ops(&self) -> [f64; 2] {
        [0, 1].map(|operand| {
            let is_single = self.access_bytes[operand] < NARROWEST_COPY;
            let divisions = if is_single { self.index_divisions[operand] as f64 } else { 0.0 };
            self.operand_ops[operand] + DIVISION_OPS * divisions
        })
    }

    /// Share of the peak that the narrowest accesses leave.
    fn narrowness(&self) -> f64 {
        let shares: &[(u64, f64)] = match self.unit {
            ArithmeticUnit::Scalar => &NARROW_SCALAR,
            ArithmeticUnit::Tf32 => &NARROW_TF32,
            ArithmeticUnit::Half => &NARROW_HALF,
        };
        let share = shares.iter().find(|(bytes, _)| self.narrowest_access() <= *bytes);
        share.map_or(1.0, |&(_, share)| share)
    }

    /// Floating-point operations, a multiply-add as two.
    pub fn flops(&self) -> f64 {
        2.0 * self.batch as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

fn overlapped(memory_us: f64, compute_us: f64) -> f64 {
    memory_us.max(compute_us) + OVERLAP_LOSS * memory_us.min(compute_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> GpuModel {
        GpuModel::usual("sm_90", 132, 50 << 20)
    }

    fn square(n: u64, unit: ArithmeticUnit) -> GpuKernelCost {
        let bytes = if unit == ArithmeticUnit::Half { 2 } else { 4 };
        GpuKernelCost {
            constant_bytes: n * n * bytes,
            read_bytes: n * n * bytes,
            written_bytes: n * n * bytes,
            product: Some(GemmCost {
                batch: 1,
                m: n,
                n,
                k: n,
                unit,
                operand_bytes: [bytes; 2],
                access_bytes: [16; 2],
                operand_ops: [0.0; 2],
                index_divisions: [0; 2],
                operand_pieces: [1; 2],
                unused_stored_bytes: 0,
            }),
            ..GpuKernelCost::default()
        }
    }

    #[test]
    fn a_large_product_is_bound_by_matrix_units() {
        let facts = square(8192, ArithmeticUnit::Half);
        let (estimate, ideal_us) = (facts.estimate(&model()), facts.flops() / 790e6);
        assert!((1.1 * ideal_us..2.0 * ideal_us).contains(&estimate.time_us), "{estimate:?} {ideal_us}");
        assert!(square(8192, ArithmeticUnit::Scalar).estimate(&model()).time_us > 8.0 * estimate.time_us);
    }

    #[test]
    fn a_product_with_one_row_is_bound_by_its_weights() {
        let mut facts = square(4096, ArithmeticUnit::Half);
        facts.product.as_mut().unwrap().m = 1;
        let weights_us = facts.constant_bytes as f64 / model().memory_gbs * GIGA_TO_US;
        let estimate = facts.estimate(&model());
        assert!((weights_us..weights_us + 12.0).contains(&estimate.time_us), "{estimate:?} {weights_us}");
    }

    #[test]
    fn a_small_kernel_takes_its_launch_and_latency() {
        let facts =
            GpuKernelCost { read_bytes: 4096, written_bytes: 4096, ctas: 4, ..GpuKernelCost::default() };
        let time_us = facts.estimate(&model()).time_us;
        assert!((2.0..3.0).contains(&time_us), "{time_us}");
    }

    #[test]
    fn indices_that_are_divided_take_longer_where_elements_are_read_one_by_one() {
        let time_us = |access: u64, index_divisions: u64| {
            let mut facts = square(1024, ArithmeticUnit::Half);
            let product = facts.product.as_mut().expect("a product");
            (product.access_bytes[0], product.index_divisions[0]) = (access, index_divisions);
            facts.estimate(&model()).time_us
        };
        assert_eq!(time_us(16, 0), time_us(16, 5));
        assert!(time_us(2, 5) > 2.0 * time_us(2, 0), "{} {}", time_us(2, 5), time_us(2, 0));
    }

    #[test]
    fn few_ctas_reach_a_part_of_the_memory() {
        let time_us = |ctas| {
            let facts = GpuKernelCost { read_bytes: 1 << 24, ctas, ..GpuKernelCost::default() };
            facts.estimate(&model()).time_us
        };
        assert!(time_us(1) > 20.0 * time_us(132));
    }

    #[test]
    fn loads_one_after_the_other_take_their_latencies() {
        let time_us = |serial_loads| {
            let facts =
                GpuKernelCost { read_bytes: 1 << 20, ctas: 1, serial_loads, ..GpuKernelCost::default() };
            facts.estimate(&model()).time_us
        };
        assert_eq!(time_us(9), time_us(0), "memory takes longer");
        assert!((80.0..120.0).contains(&time_us(3136)), "{}", time_us(3136));
    }

    fn facts() -> impl Strategy<Value = GpuKernelCost> {
        let count = || prop_oneof![1u64..100, 100u64..100_000, 100_000u64..1 << 28];
        let extents = (1u64..64, 1u64..3000, 1u64..3000, 1u64..3000);
        (count(), count(), count(), count(), 1u64..500, extents, 0..3).prop_map(
            |(constant_bytes, read_bytes, written_bytes, ops, ctas, (batch, m, n, k), kind)| GpuKernelCost {
                constant_bytes,
                read_bytes,
                written_bytes,
                unused_bytes: 0,
                attention: (kind == 1).then_some(AttentionCost {
                    ctas: batch,
                    cta_bytes: (m + n) * 128,
                    scores: n / 8,
                    ops: [4.0, 1.0],
                    cta_flops: 4 * 64 * n,
                }),
                product: (kind == 2).then_some(GemmCost {
                    batch,
                    m,
                    n,
                    k,
                    unit: ArithmeticUnit::Half,
                    operand_bytes: [2; 2],
                    access_bytes: [16; 2],
                    operand_ops: [0.0; 2],
                    index_divisions: [0; 2],
                    operand_pieces: [1; 2],
                    unused_stored_bytes: 0,
                }),
                cheap_ops: ops,
                special_ops: ops / 2,
                ctas,
                serial_loads: 0,
            },
        )
    }

    proptest! {
        #[test]
        fn more_work_never_takes_less(facts in facts(), what in 0usize..9, by in 1u64..100_000) {
            let mut more = facts.clone();
            match (what, &mut more.product) {
                (0, _) => more.constant_bytes += by,
                (1, _) => more.read_bytes += by,
                (2, _) => more.written_bytes += by,
                (3, _) => more.cheap_ops += by,
                (4, _) => more.special_ops += by,
                (5, Some(product)) => product.operand_ops[0] += by as f64,
                (6, Some(product)) => product.k += by,
                (7, Some(product)) => product.operand_pieces[1] += by,
                (8, Some(product)) => product.unused_stored_bytes += by,
                _ => {}
            }
            let (before, after) = (facts.estimate(&model()), more.estimate(&model()));
            // Rounding may cost the last digits; more splits become possible with more terms.
            prop_assert!(after.time_us >= before.time_us * (1.0 - 1e-9) || what == 6);
            prop_assert!(after.bound_us >= before.bound_us * (1.0 - 1e-9));
        }

        #[test]
        fn the_bound_is_below_the_estimate(facts in facts()) {
            let estimate = facts.estimate(&model());
            prop_assert!(estimate.bound_us <= estimate.time_us * (1.0 + 1e-9), "{estimate:?}");
            prop_assert!(estimate.time_us.is_finite() && estimate.bound_us >= 0.0);
        }
    }
}
