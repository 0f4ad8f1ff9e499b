//! An analytic cost model of a CPU kernel.
//!
//! A *lower bound* assumes that everything goes as well as the machine allows: perfect sharing, perfect overlap, data
//! as near as it can be. It serves to discard kernels that cannot win. An *estimate* adds what usually goes wrong:
//! uneven shares, imperfect overlap, distance of the data. It serves to rank. Both never decrease when the kernel
//! does more, and the bound never exceeds the estimate.
//!
//! A kernel runs between others: constants and its own instructions have left the caches since its last run, and
//! what another kernel has just written is in L2 at best.
//!
//! Counts of arithmetic are for f32; f64 counts twice, and so on by width.

use crate::MachineModel;
use serde::{Deserialize, Serialize};

/// What a kernel does, as far as its program tells.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Bytes of inputs that other kernels write, each counted once.
    pub bytes_read: u64,
    /// Bytes of constants, each counted once.
    pub constant_bytes: u64,
    /// Bytes of outputs, each counted once.
    pub bytes_written: u64,
    /// Bytes read again, by other tasks or later iterations.
    pub bytes_reread: u64,
    /// Bytes that pass between two uses of the same byte: they decide which cache serves `bytes_reread`.
    pub reuse_set_bytes: u64,
    /// Multiply-adds, counted as two operations each.
    pub fma_flops: u64,
    /// Multiply-adds of pairs of bf16, counted as two.
    pub pair_flops: u64,
    /// Multiply-adds on matrix tiles, counted as two.
    pub tile_flops: u64,
    /// Simple elementwise operations.
    pub cheap_ops: u64,
    /// Exponentials, logarithms, and the like.
    pub transcendental_ops: u64,
    /// Loads and stores of single elements of which a cache line holds several.
    pub single_accesses: u64,
    /// Loads and stores of single elements that take a cache line each.
    pub scattered_accesses: u64,
    /// Elements that are packed before they are multiplied, in simple operations. Threads that have tasks of one block pack it each.
    pub packing_ops: u64,
    /// Elements that are packed one at a time.
    pub packing_accesses: u64,
    /// Blocks into which what is packed is cut.
    pub packed_blocks: u64,
    /// Independent tasks of equal size.
    pub tasks: u64,
    /// Steps of the executable.
    pub launches: u32,
    /// Share of the peak that the inner loop reaches when its data are at hand, above 0 and at most 1: the schedule
    /// knows.
    pub efficiency: f64,
    /// Speed of multiply-adds as a share of what it is with operands at hand, above 0 and at most 1.
    pub fma_speed: f64,
}

impl Default for KernelFacts {
    /// A kernel of one task that does nothing.
    fn default() -> Self {
        Self {
            bytes_read: 0,
            constant_bytes: 0,
            bytes_written: 0,
            bytes_reread: 0,
            reuse_set_bytes: 0,
            fma_flops: 0,
            pair_flops: 0,
            tile_flops: 0,
            cheap_ops: 0,
            transcendental_ops: 0,
            single_accesses: 0,
            scattered_accesses: 0,
            packing_ops: 0,
            packing_accesses: 0,
            packed_blocks: 1,
            tasks: 1,
            launches: 1,
            efficiency: 1.0,
            fma_speed: 1.0,
        }
    }
}

/// What a kernel's time mostly is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Bottleneck {
    /// Starting it.
    Launch,
    /// Arithmetic.
    Compute,
    /// Moving data.
    Memory,
}

/// The expected time of a kernel.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// Microseconds.
    pub time_us: f64,
    /// True if sharing its tasks among all threads pays.
    pub parallel: bool,
    /// What most of the time goes to.
    pub bottleneck: Bottleneck,
}

/// 10^9 per second, in microseconds per piece.
const GIGA_TO_US: f64 = 1e-3;
const LINE_BYTES: f64 = 64.0;
/// What a kernel fetches from memory to begin with, in bytes of a stream that take as long: its instructions and the first lines of
/// its operands, which nothing prefetches. On a Zen 4 that reads 29 GB/s, the smallest kernels of models take 0.4 us longer than by
/// themselves.
const START_BYTES: f64 = 12288.0;
/// How often a written byte passes between L2 and what is beyond or before it: its line is read before, and written back.
const WRITE_PASSES: f64 = 2.0;
/// Share of the shorter of compute and memory time that is not hidden behind the longer one.
const OVERLAP_LOSS: f64 = 0.25;
/// Simple and transcendental operations may take this part of their usual time: they merge into multiply-adds, or
/// have shorter polynomials.
const BEST_CASE: f64 = 0.5;

impl KernelFacts {
    /// Microseconds that no schedule of this kernel undercuts.
    pub fn lower_bound_us(&self, machine: &MachineModel) -> f64 {
        let threads = f64::from(machine.threads);
        let fma_gflops_all = machine.fma_gflops_all.max(machine.fma_gflops_core);
        let tile_gflops_all = machine.tile_gflops_core.unwrap_or(machine.fma_gflops_core) * threads;
        let compute = self.vector_flops() / fma_gflops_all
            + self.tile_flops as f64 / tile_gflops_all
            + BEST_CASE * self.cheap_ops as f64 / (machine.cheap_gops_core * threads)
            + BEST_CASE * self.transcendental_ops as f64 / (machine.transcendental_gops_core * threads);
        let bytes = self.distinct_bytes();
        let caches = threads * machine.l2_bytes as f64 + machine.l3_bytes as f64;
        let beyond_caches = (bytes - caches).max(0.0);
        let memory_gbs =
            machine.memory_gbs_all.max(machine.memory_gbs_core).max(machine.memory_write_gbs_all);
        let memory = (bytes / (machine.l1_gbs_core * threads)).max(beyond_caches / memory_gbs);
        self.launch_us(machine.launch_inline_us) + compute.max(memory) * GIGA_TO_US
    }

    /// The expected time on one thread, without its launch.
    pub fn alone_us(&self, machine: &MachineModel) -> f64 {
        self.estimate_on(machine, 1).time_us - self.launch_us(machine.launch_inline_us)
    }

    /// The expected time, on one thread or on all, whichever is less.
    pub fn estimate(&self, machine: &MachineModel) -> Estimate {
        let alone = self.estimate_on(machine, 1);
        let shared = self.estimate_on(machine, machine.threads);
        if shared.time_us < alone.time_us { shared } else { alone }
    }

    fn estimate_on(&self, machine: &MachineModel, threads: u32) -> Estimate {
        let tasks = self.tasks.max(1);
        let threads = u64::from(threads).clamp(1, tasks);
        let parallel = threads > 1;
        // The thread with the most tasks ends last.
        let share = tasks.div_ceil(threads) as f64 / tasks as f64;
        let compute_us = share * self.compute_us_core(machine, threads) / scaling(machine, threads);
        let streamed_us = self.streamed_us(machine, threads as f64);
        let memory_us = self.memory_us(machine, threads as f64, share, streamed_us);
        let start_us = f64::from(self.launches) * START_BYTES / machine.memory_gbs_core * GIGA_TO_US;
        let launch_us = start_us
            + self.launch_us(if parallel { machine.launch_parallel_us } else { machine.launch_inline_us });
        let hidden_us = compute_us.min(memory_us);
        let lost_us = OVERLAP_LOSS * hidden_us + (1.0 - OVERLAP_LOSS) * streamed_us.min(hidden_us);
        let work_us = compute_us.max(memory_us) + lost_us;
        let bottleneck = if launch_us >= work_us {
            Bottleneck::Launch
        } else if compute_us >= memory_us {
            Bottleneck::Compute
        } else {
            Bottleneck::Memory
        };
        Estimate { time_us: launch_us + work_us, parallel, bottleneck }
    }

    /// Multiply-adds of vectors, of which pairs of bf16 take half as long.
    fn vector_flops(&self) -> f64 {
        self.fma_flops as f64 + self.pair_flops as f64 / 2.0
    }

    /// Arithmetic time on one core of what so many threads do together.
    fn compute_us_core(&self, machine: &MachineModel, threads: u64) -> f64 {
        let tile_gflops_core = machine.tile_gflops_core.unwrap_or(machine.fma_gflops_core);
        let vector = self.vector_flops() / (machine.fma_gflops_core * self.fma_speed.clamp(1e-3, 1.0))
            + self.tile_flops as f64 / tile_gflops_core
            + self.cheap_ops as f64 / machine.cheap_gops_core
            + self.transcendental_ops as f64 / machine.transcendental_gops_core
            + self.packed_times(threads) * self.packing_ops as f64 / machine.cheap_gops_core;
        let accesses = (self.single_accesses + self.scattered_accesses) as f64
            + self.packed_times(threads) * self.packing_accesses as f64;
        let scalar = accesses / machine.scalar_gops_core;
        (vector / self.efficiency.clamp(1e-3, 1.0) + scalar) * GIGA_TO_US
    }

    /// How often so many threads pack an element: each packs the blocks that it has work items of.
    fn packed_times(&self, threads: u64) -> f64 {
        let (tasks, blocks) = (self.tasks.max(1), self.packed_blocks.max(1));
        let of_block = tasks.div_ceil(blocks);
        let start = |thread: u64| (u128::from(thread) * u128::from(tasks) / u128::from(threads)) as u64;
        let blocks_of = |thread: u64| match (start(thread), start(thread + 1)) {
            (first, past) if first == past => 0,
            (first, past) => (past - 1) / of_block + 1 - first / of_block,
        };
        (0..threads).map(blocks_of).sum::<u64>() as f64 / blocks as f64
    }

    /// Time to move data: what the busiest core takes, or what the memory takes for all.
    fn memory_us(&self, machine: &MachineModel, threads: f64, share: f64, streamed_us: f64) -> f64 {
        let passed = self.bytes_read as f64 + WRITE_PASSES * self.bytes_written as f64;
        let near = Distance::of((self.bytes_read + self.bytes_written) as f64 / threads, machine, threads);
        let near = Distance { beyond_l1: 1.0, ..near };
        let reuse_distance = Distance::of(self.reuse_set_bytes as f64, machine, threads);
        let scattered_bytes = (self.scattered_accesses + self.packing_accesses) as f64 * LINE_BYTES;
        let constant_bytes = self.constant_bytes as f64;
        let core = (passed + scattered_bytes) * near.seconds_per_gb(machine)
            + constant_bytes * Distance::MEMORY.seconds_per_gb(machine)
            + self.bytes_reread as f64 * reuse_distance.seconds_per_gb(machine);
        let constants = constant_bytes / memory_gbs(machine, threads) * GIGA_TO_US;
        (share * core * GIGA_TO_US).max(streamed_us + constants)
    }

    /// Time to move between memory and so many cores what other kernels hand over or take and L3 does not keep. Nothing hides it: operands
    /// are packed before they are multiplied, and the lines of results are fetched before they are written. On two cores of a Zen 5, 32
    /// products of 256 x 1024 x 64 take 3.1 to 3.5 ms where scores are in memory: 2.4 by arithmetic, 0.7 to 0.8 by 33 MB read or written.
    fn streamed_us(&self, machine: &MachineModel, threads: f64) -> f64 {
        let near = Distance::of((self.bytes_read + self.bytes_written) as f64 / threads, machine, threads);
        let share = memory_gbs(machine, threads) / memory_gbs(machine, f64::INFINITY);
        let read = self.bytes_read as f64 / memory_gbs(machine, threads);
        let written = self.bytes_written as f64 / (share * machine.memory_write_gbs_all);
        near.beyond_l3 * (read + written) * GIGA_TO_US
    }

    fn distinct_bytes(&self) -> f64 {
        (self.bytes_read + self.constant_bytes + self.bytes_written) as f64
    }

    fn launch_us(&self, each_us: f64) -> f64 {
        f64::from(self.launches) * each_us
    }
}

/// How much faster a core is alone than beside others: at least 1 in its inverse.
fn scaling(machine: &MachineModel, threads: u64) -> f64 {
    if threads == 1 {
        return 1.0;
    }
    (machine.fma_gflops_all / (machine.fma_gflops_core * f64::from(machine.threads))).clamp(1e-3, 1.0)
}

/// What so many cores read from memory, in 10^9 bytes per second.
fn memory_gbs(machine: &MachineModel, threads: f64) -> f64 {
    (threads * machine.memory_gbs_core).min(machine.memory_gbs_all.max(machine.memory_gbs_core))
}

/// How far away data are: the parts of accesses that miss each cache.
struct Distance {
    beyond_l1: f64,
    beyond_l2: f64,
    beyond_l3: f64,
}

impl Distance {
    /// In no cache.
    const MEMORY: Distance = Distance { beyond_l1: 1.0, beyond_l2: 1.0, beyond_l3: 1.0 };

    /// For a set of this size per core, where so many share L3. A set twice the size of a cache does not profit from it any more.
    fn of(set_bytes: f64, machine: &MachineModel, threads: f64) -> Self {
        let beyond = |cache_bytes: f64| (set_bytes / cache_bytes - 1.0).clamp(0.0, 1.0);
        let l2_bytes = machine.l2_bytes.max(machine.l1_bytes) as f64;
        Self {
            beyond_l1: beyond(machine.l1_bytes as f64),
            beyond_l2: beyond(l2_bytes),
            beyond_l3: beyond(l2_bytes.max(machine.l3_bytes as f64 / threads)),
        }
    }

    /// Time to move 10^9 bytes from there to one core.
    fn seconds_per_gb(&self, machine: &MachineModel) -> f64 {
        let l1 = 1.0 / machine.l1_gbs_core;
        let l2 = (1.0 / machine.l2_gbs_core).max(l1);
        let l3 = (1.0 / machine.l3_gbs_core).max(l2);
        let memory = (1.0 / machine.memory_gbs_core).max(l3);
        l1 + self.beyond_l1 * (l2 - l1) + self.beyond_l2 * (l3 - l2) + self.beyond_l3 * (memory - l3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(threads: u32) -> MachineModel {
        MachineModel {
            threads,
            fma_gflops_core: 100.0,
            fma_gflops_all: 90.0 * f64::from(threads),
            tile_gflops_core: Some(1000.0),
            cheap_gops_core: 50.0,
            transcendental_gops_core: 5.0,
            scalar_gops_core: 3.0,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 8 << 20,
            l1_gbs_core: 200.0,
            l2_gbs_core: 80.0,
            l3_gbs_core: 30.0,
            memory_gbs_core: 10.0,
            memory_gbs_all: 10.0 * f64::from(threads.min(3)),
            memory_write_gbs_all: 5.0 * f64::from(threads.min(3)),
            launch_inline_us: 0.05,
            launch_parallel_us: 1.0,
        }
    }

    #[test]
    fn a_large_copy_is_bound_by_memory() {
        let copy = KernelFacts {
            bytes_read: 100 << 20,
            bytes_written: 100 << 20,
            tasks: 1000,
            ..Default::default()
        };
        let estimate = copy.estimate(&machine(4));
        assert_eq!((estimate.bottleneck, estimate.parallel), (Bottleneck::Memory, true));
        // 100 MiB read at 30 GB/s and written at 15 GB/s.
        assert!((10_000.0..11_000.0).contains(&estimate.time_us), "{estimate:?}");
    }

    #[test]
    fn a_matrix_product_is_bound_by_compute() {
        let flops = 2 * 512 * 512 * 512;
        let product = KernelFacts {
            bytes_read: 2 << 20,
            bytes_written: 1 << 20,
            fma_flops: flops,
            tasks: 64,
            efficiency: 0.8,
            ..Default::default()
        };
        let estimate = product.estimate(&machine(4));
        assert_eq!((estimate.bottleneck, estimate.parallel), (Bottleneck::Compute, true));
        let ideal_us = flops as f64 / 360e3;
        assert!((ideal_us / 0.8..ideal_us / 0.5).contains(&estimate.time_us), "{estimate:?} {ideal_us}");
    }

    #[test]
    fn nothing_hides_what_comes_from_memory() {
        let work_us = |bytes_read, bytes_written| {
            let facts = KernelFacts {
                bytes_read,
                bytes_written,
                fma_flops: 1 << 33,
                tasks: 64,
                ..Default::default()
            };
            facts.estimate(&machine(4)).time_us
        };
        // 64 MiB are far more than L3, 1 MiB stays in L2.
        let near_us = work_us(1 << 20, 1 << 20);
        let read_us = f64::from(64 << 20) / 30e3;
        let written_us = f64::from(64 << 20) / 15e3;
        assert!((0.95..1.1).contains(&((work_us(64 << 20, 1 << 20) - near_us) / read_us)));
        assert!((0.95..1.1).contains(&((work_us(1 << 20, 64 << 20) - near_us) / written_us)));
    }

    #[test]
    fn a_small_kernel_is_bound_by_its_launch() {
        let small = KernelFacts { bytes_read: 256, cheap_ops: 64, tasks: 8, ..Default::default() };
        let estimate = small.estimate(&machine(4));
        assert_eq!((estimate.bottleneck, estimate.parallel), (Bottleneck::Launch, false));
    }

    #[test]
    fn constants_come_from_memory() {
        let small = 64 << 10;
        let of = |facts: KernelFacts| facts.estimate(&machine(1)).time_us;
        let weights = of(KernelFacts { constant_bytes: small, ..Default::default() });
        let activations = of(KernelFacts { bytes_read: small, ..Default::default() });
        let nothing = of(KernelFacts::default());
        // 64 KiB at 10 GB/s, and at 80 GB/s.
        assert!((6.4..6.7).contains(&(weights - nothing)), "{weights} {nothing}");
        assert!((0.8..0.9).contains(&(activations - nothing)), "{activations} {nothing}");
        // Instructions and first lines.
        assert!((1.0..2.0).contains(&nothing), "{nothing}");
    }

    #[test]
    fn uneven_shares_cost() {
        let time_us = |tasks| {
            let facts = KernelFacts { fma_flops: 1 << 30, tasks, ..Default::default() };
            facts.estimate(&machine(4)).time_us
        };
        assert!(time_us(5) > 1.5 * time_us(4));
        assert!(time_us(400) < 1.01 * time_us(4));
        assert!(time_us(1) > 3.0 * time_us(4));
    }

    fn facts() -> impl Strategy<Value = KernelFacts> {
        let count = || prop_oneof![Just(0u64), 1u64..1000, 1000u64..10_000_000, 10_000_000u64..1 << 36];
        let bytes = (count(), count(), count(), count());
        let ops = (count(), count(), count(), count(), count());
        (bytes, ops, 0u64..5000, 0u32..5, 0.01f64..1.0).prop_map(
            |(bytes, ops, tasks, launches, efficiency)| KernelFacts {
                bytes_read: bytes.0,
                constant_bytes: bytes.0 / 3,
                bytes_written: bytes.1,
                bytes_reread: bytes.2,
                reuse_set_bytes: bytes.3,
                fma_flops: ops.0,
                pair_flops: ops.4,
                tile_flops: ops.1,
                cheap_ops: ops.2,
                transcendental_ops: ops.3,
                single_accesses: ops.3 / 2,
                scattered_accesses: ops.4,
                packing_ops: ops.0 / 2,
                packing_accesses: ops.4 / 2,
                packed_blocks: tasks / 3,
                tasks,
                launches,
                efficiency,
                fma_speed: 1.01 - efficiency,
            },
        )
    }

    /// The same kernel doing more, in one respect.
    fn more(facts: &KernelFacts, what: usize, by: u64) -> KernelFacts {
        let mut more = facts.clone();
        match what {
            0 => more.bytes_read += by,
            1 => more.bytes_written += by,
            2 => more.bytes_reread += by,
            3 => more.reuse_set_bytes += by,
            4 => more.fma_flops += by,
            5 => more.tile_flops += by,
            6 => more.cheap_ops += by,
            7 => more.transcendental_ops += by,
            8 => more.scattered_accesses += by,
            10 => more.packing_ops += by,
            11 => more.packing_accesses += by,
            9 => more.launches += 1,
            12 => more.constant_bytes += by,
            13 => more.single_accesses += by,
            14 => more.fma_speed /= 1.0 + by as f64,
            15 => more.pair_flops += by,
            _ => more.efficiency /= 1.0 + by as f64,
        }
        more
    }

    proptest! {
        #[test]
        fn more_work_never_takes_less(facts in facts(), what in 0usize..17, by in 1u64..1 << 32, threads in 1u32..65) {
            let (machine, more) = (machine(threads), more(&facts, what, by));
            // Rounding may cost the last digits.
            let slack = 1.0 - 1e-12;
            prop_assert!(more.estimate(&machine).time_us >= facts.estimate(&machine).time_us * slack);
            prop_assert!(more.lower_bound_us(&machine) >= facts.lower_bound_us(&machine) * slack);
        }

        #[test]
        fn the_bound_is_below_the_estimate(facts in facts(), threads in 1u32..65) {
            let machine = machine(threads);
            let (bound, estimate) = (facts.lower_bound_us(&machine), facts.estimate(&machine).time_us);
            prop_assert!(bound <= estimate * (1.0 + 1e-12), "{bound} {estimate}");
            prop_assert!(bound.is_finite() && bound >= 0.0);
        }

        #[test]
        fn a_faster_machine_never_takes_longer(facts in facts(), which in 0usize..7, threads in 1u32..65) {
            let slow = machine(threads);
            let mut fast = slow.clone();
            match which {
                0 => fast.memory_gbs_core *= 2.0,
                // Of what a core reads, it writes the share that all cores do.
                1 => {
                    fast.memory_gbs_all *= 2.0;
                    fast.memory_write_gbs_all *= 2.0;
                }
                2 => fast.l1_gbs_core *= 2.0,
                3 => fast.l2_bytes *= 2,
                4 => fast.launch_parallel_us /= 2.0,
                5 => fast.l3_bytes *= 2,
                _ => fast.transcendental_gops_core *= 2.0,
            }
            let slack = 1.0 + 1e-12;
            prop_assert!(facts.estimate(&fast).time_us <= facts.estimate(&slow).time_us * slack);
            prop_assert!(facts.lower_bound_us(&fast) <= facts.lower_bound_us(&slow) * slack);
        }
    }
}
