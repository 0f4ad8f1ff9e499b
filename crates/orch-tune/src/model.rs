//! What a machine can do, as the cost model sees it.

use crate::database::{Database, DatabaseError, Key};
use orch_runtime::Machine;
use orch_runtime::cpu::Calibration;
use serde::{Deserialize, Serialize};

/// Ceilings of one machine. "core" is one thread alone, "all" is all threads together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MachineModel {
    /// Threads that kernels run on.
    pub threads: u32,
    /// f32 multiply-adds, counted as two operations, in 10^9 per second.
    pub fma_gflops_core: f64,
    /// The same on all threads: less than the sum where cores share units or slow down.
    pub fma_gflops_all: f64,
    /// Multiply-adds on matrix tiles; `None` if there are none.
    pub tile_gflops_core: Option<f64>,
    /// Simple elementwise operations on f32, in 10^9 elements per second.
    pub cheap_gops_core: f64,
    /// Transcendental functions on f32, in 10^9 elements per second.
    pub transcendental_gops_core: f64,
    /// Operations on one element at a time, in 10^9 per second.
    pub scalar_gops_core: f64,
    /// Size of one core's L1 data cache.
    pub l1_bytes: u64,
    /// Size of one core's L2 cache.
    pub l2_bytes: u64,
    /// Size of the last-level cache, which cores share; that of L2 if there is no further one.
    pub l3_bytes: u64,
    /// Reading from L1, in 10^9 bytes per second.
    pub l1_gbs_core: f64,
    /// Reading from L2.
    pub l2_gbs_core: f64,
    /// Reading from L3.
    pub l3_gbs_core: f64,
    /// Reading from beyond.
    pub memory_gbs_core: f64,
    /// The same on all threads.
    pub memory_gbs_all: f64,
    /// Writing beyond L2, on all threads.
    pub memory_write_gbs_all: f64,
    /// A step on one thread, without its work.
    pub launch_inline_us: f64,
    /// A step on all threads, without its work.
    pub launch_parallel_us: f64,
}

impl MachineModel {
    /// A guess for a machine that was not calibrated: what any processor with these instruction sets does.
    pub fn conservative(machine: &Machine, threads: u32) -> Self {
        const CLOCK_GHZ: f64 = 2.0;
        const MEMORY_GBS: f64 = 8.0;
        /// A product of two 16 x 32 tiles every 32 cycles: half of what the hardware does.
        const TILE_FLOPS_PER_CYCLE: f64 = 512.0;
        let threads = threads.max(1);
        let lanes = (machine.vector_bytes() / size_of::<f32>()) as f64;
        let vector_gops = CLOCK_GHZ * lanes;
        Self {
            threads,
            fma_gflops_core: 2.0 * vector_gops,
            fma_gflops_all: 2.0 * vector_gops * f64::from(threads),
            tile_gflops_core: machine
                .has(orch_runtime::Feature::AmxBf16)
                .then_some(CLOCK_GHZ * TILE_FLOPS_PER_CYCLE),
            cheap_gops_core: vector_gops,
            transcendental_gops_core: vector_gops / 12.0,
            scalar_gops_core: CLOCK_GHZ,
            l1_bytes: machine.caches.l1d_bytes as u64,
            l2_bytes: machine.caches.l2_bytes as u64,
            l3_bytes: machine.caches.l3_bytes.max(machine.caches.l2_bytes) as u64,
            l1_gbs_core: 4.0 * vector_gops,
            l2_gbs_core: 1.5 * vector_gops,
            l3_gbs_core: (0.5 * vector_gops).max(MEMORY_GBS),
            memory_gbs_core: MEMORY_GBS,
            memory_gbs_all: MEMORY_GBS * f64::from(threads.min(4)),
            memory_write_gbs_all: MEMORY_GBS * f64::from(threads.min(4)) / 2.0,
            launch_inline_us: 0.1,
            launch_parallel_us: 3.0,
        }
    }

    /// The model that a calibration measured, as far as it is plausible: other work on the machine makes figures
    /// worse, and rarely two of them alike. Each is therefore kept within what processors of this kind do and in
    /// its order to the others.
    pub fn calibrated(machine: &Machine, figures: &Calibration) -> Self {
        let lanes = (machine.vector_bytes() / size_of::<f32>()) as f64;
        let usual = Self::conservative(machine, u32::try_from(figures.threads).unwrap_or(u32::MAX));
        let threads = f64::from(usual.threads);
        let fma_gflops_core = within(figures.fma_gflops_core, usual.fma_gflops_core, 0.5, 4.0);
        // One simple operation takes the place of one multiply-add.
        let cheap_gops_core = fma_gflops_core / 2.0;
        let l1_gbs_core = within(figures.l1_read_gbs_core, usual.l1_gbs_core, 0.5, 4.0);
        let l2_gbs_core = within(figures.l2_read_gbs_core, l1_gbs_core, 0.1, 1.0);
        let memory_gbs_core = within(figures.memory_read_gbs_core, l2_gbs_core, 0.02, 1.0);
        let l3_gbs_core = figures.l3_read_gbs_core.max(memory_gbs_core).min(l2_gbs_core);
        let memory_gbs_all = within(figures.memory_read_gbs_all, memory_gbs_core, 1.0, threads);
        let launch_inline_us = within(figures.launch_inline_us, usual.launch_inline_us, 0.1, 10.0);
        Self {
            fma_gflops_core,
            fma_gflops_all: within(figures.fma_gflops_all, fma_gflops_core, threads.sqrt(), threads),
            tile_gflops_core: figures.amx_gflops_core.map(|tiles| within(tiles, fma_gflops_core, 1.0, 64.0)),
            cheap_gops_core,
            transcendental_gops_core: within(figures.exp_gelems_core, cheap_gops_core, 0.02, 0.5),
            // As many instructions, each for one element.
            scalar_gops_core: cheap_gops_core / lanes,
            l1_gbs_core,
            l2_gbs_core,
            l3_gbs_core,
            memory_gbs_core,
            memory_gbs_all,
            memory_write_gbs_all: within(figures.memory_write_gbs_all, memory_gbs_all, 0.25, 1.0),
            launch_inline_us,
            launch_parallel_us: within(figures.launch_parallel_us, usual.launch_parallel_us, 0.2, 10.0)
                .max(launch_inline_us),
            ..usual
        }
    }

    /// The figures of runs on so many threads of this machine: what threads lose beside others grows evenly with their number, and the
    /// memory serves no more of them than it was seen to.
    pub fn on_threads(self, threads: u32) -> Self {
        let (threads, seen) = (threads.max(1), f64::from(self.threads));
        let count = f64::from(threads);
        let loss = 1.0 - (self.fma_gflops_all / (self.fma_gflops_core * seen)).min(1.0);
        let share = if seen > 1.0 { ((count - 1.0) / (seen - 1.0)).min(1.0) } else { 0.0 };
        let memory_gbs_all = self.memory_gbs_all.min(self.memory_gbs_core * count).max(self.memory_gbs_core);
        Self {
            threads,
            fma_gflops_all: self.fma_gflops_core * count * (1.0 - loss * share),
            memory_gbs_all,
            memory_write_gbs_all: self.memory_write_gbs_all * memory_gbs_all / self.memory_gbs_all,
            ..self
        }
    }

    /// The model stored for this machine and number of threads, if it makes sense.
    pub fn load(database: &Database, machine: &Machine, threads: u32) -> Option<Self> {
        let model: Self = database.get(&key(machine, threads))?;
        (model.is_plausible() && model.threads == threads).then_some(model)
    }

    /// Stores the model for this machine.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn save(&self, database: &Database, machine: &Machine) -> Result<(), DatabaseError> {
        database.put(&key(machine, self.threads), self)
    }

    /// True if every figure is a positive number.
    pub fn is_plausible(&self) -> bool {
        let figures = [
            self.fma_gflops_core,
            self.fma_gflops_all,
            self.tile_gflops_core.unwrap_or(1.0),
            self.cheap_gops_core,
            self.transcendental_gops_core,
            self.scalar_gops_core,
            self.l1_bytes as f64,
            self.l2_bytes as f64,
            self.l3_bytes as f64,
            self.l1_gbs_core,
            self.l2_gbs_core,
            self.l3_gbs_core,
            self.memory_gbs_core,
            self.memory_gbs_all,
            self.memory_write_gbs_all,
            self.launch_inline_us,
            self.launch_parallel_us,
        ];
        self.threads > 0 && figures.iter().all(|figure| figure.is_finite() && *figure > 0.0)
    }
}

/// A figure, kept between two multiples of another one. What is no number becomes the lower end.
fn within(figure: f64, of: f64, least: f64, most: f64) -> f64 {
    figure.max(least * of).min(most.max(least) * of)
}

fn key(machine: &Machine, threads: u32) -> Key {
    Key {
        program: "machine model 4".into(),
        target: "cpu".into(),
        machine: format!("{machine}; {threads} threads"),
        compiler: String::new(),
        flags: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::TestDatabase;

    #[test]
    fn fewer_threads_lose_less_and_leave_memory() {
        let machine = Machine::detect();
        let all = MachineModel {
            fma_gflops_core: 100.0,
            fma_gflops_all: 1200.0,
            memory_gbs_core: 10.0,
            memory_gbs_all: 60.0,
            memory_write_gbs_all: 30.0,
            ..MachineModel::conservative(&machine, 16)
        };
        assert_eq!(all.clone().on_threads(16), all);
        let one = all.clone().on_threads(1);
        let figures = [one.fma_gflops_all, one.memory_gbs_all, one.memory_write_gbs_all];
        assert_eq!((one.threads, figures), (1, [100.0, 10.0, 5.0]));
        let four = all.clone().on_threads(4);
        assert!((four.fma_gflops_all - 380.0).abs() < 1e-9 && four.memory_gbs_all == 40.0, "{four:?}");
        let more = all.on_threads(32);
        assert!((more.fma_gflops_all - 2400.0).abs() < 1e-9 && more.memory_gbs_all == 60.0, "{more:?}");
    }

    #[test]
    fn models_are_stored_per_machine_and_threads() {
        let test = TestDatabase::new();
        let machine = Machine::detect();
        let model = MachineModel::conservative(&machine, 2);
        assert_eq!(MachineModel::load(&test.database, &machine, 2), None);
        model.save(&test.database, &machine).unwrap();
        assert_eq!(MachineModel::load(&test.database, &machine, 2), Some(model));
        assert_eq!(MachineModel::load(&test.database, &machine, 3), None);
        let other = Machine { model: "other".into(), ..machine };
        assert_eq!(MachineModel::load(&test.database, &other, 2), None);
    }

    #[test]
    fn nonsense_is_not_loaded() {
        let test = TestDatabase::new();
        let machine = Machine::detect();
        let model = MachineModel { memory_gbs_all: 0.0, ..MachineModel::conservative(&machine, 1) };
        model.save(&test.database, &machine).unwrap();
        assert_eq!(MachineModel::load(&test.database, &machine, 1), None);
    }

    fn figures() -> Calibration {
        Calibration {
            threads: 4,
            fma_gflops_core: 100.0,
            fma_gflops_all: 350.0,
            amx_gflops_core: None,
            exp_gelems_core: 3.0,
            l1_read_gbs_core: 200.0,
            l2_read_gbs_core: 100.0,
            l3_read_gbs_core: 30.0,
            memory_read_gbs_core: 12.0,
            memory_read_gbs_all: 40.0,
            memory_write_gbs_all: 20.0,
            launch_inline_us: 0.02,
            launch_parallel_us: 1.0,
        }
    }

    #[test]
    fn calibrations_become_models() {
        let machine = Machine::detect();
        let model = MachineModel::calibrated(&machine, &figures());
        assert!(model.is_plausible());
        assert_eq!(model.threads, 4);
        assert_eq!(model.cheap_gops_core, model.fma_gflops_core / 2.0);
    }

    #[test]
    fn disturbed_figures_are_kept_in_order() {
        let machine = Machine::detect();
        let usual = MachineModel::conservative(&machine, 4);
        let disturbed = [
            Calibration { fma_gflops_core: 1e-3, ..figures() },
            Calibration { fma_gflops_core: 1e9, fma_gflops_all: 1.0, ..figures() },
            Calibration { l1_read_gbs_core: 1.0, memory_read_gbs_core: 1e5, ..figures() },
            Calibration { l3_read_gbs_core: f64::NAN, ..figures() },
            Calibration { l3_read_gbs_core: 1e6, ..figures() },
            Calibration { l2_read_gbs_core: 0.0, memory_read_gbs_all: f64::NAN, ..figures() },
            Calibration { launch_inline_us: 1e6, launch_parallel_us: -3.0, ..figures() },
            Calibration { exp_gelems_core: 1e6, memory_write_gbs_all: 0.0, ..figures() },
        ];
        for figures in disturbed {
            let model = MachineModel::calibrated(&machine, &figures);
            assert!(model.is_plausible(), "{model:?}");
            assert!((0.5..=4.0).contains(&(model.fma_gflops_core / usual.fma_gflops_core)), "{model:?}");
            assert!(model.fma_gflops_all >= model.fma_gflops_core, "{model:?}");
            assert!(model.transcendental_gops_core < model.cheap_gops_core, "{model:?}");
            let nearer_is_faster =
                model.l1_gbs_core >= model.l2_gbs_core && model.l2_gbs_core >= model.l3_gbs_core;
            assert!(model.l3_gbs_core >= model.memory_gbs_core, "{model:?}");
            assert!(nearer_is_faster && model.memory_gbs_all >= model.memory_gbs_core, "{model:?}");
            assert!(model.launch_parallel_us >= model.launch_inline_us, "{model:?}");
        }
    }
}
