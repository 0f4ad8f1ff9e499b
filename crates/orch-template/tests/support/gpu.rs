//! Checks of the pointwise, transpose and row templates for GPUs.

use super::{G, Random, run_kernel};
use orch_compute::{BlockProgram, block::validate::validate_block};
use orch_ir::Tensor;
use orch_template::gpu::{pointwise, row, transpose};
use orch_thread::kernel::Kernel;
use orch_thread::target::{GpuTarget, SM_80, SM_90};
use orch_thread::validate_thread;
use std::collections::BTreeSet;

/// Most schedules of a template.
const MAX_SCHEDULES: usize = 200;

/// A template: it gives the kernels of some of its schedules, with a description of each.
type Template = fn(&BlockProgram, &GpuTarget, &Sample) -> Vec<(String, Kernel)>;

/// About how many schedules of a template are tried: drawn at random, beside the preferred one.
#[derive(Clone, Copy)]
pub struct Sample(pub usize);

impl Sample {
    fn of<S>(self, schedules: Vec<S>) -> Vec<S> {
        let count = schedules.len();
        assert!(count <= MAX_SCHEDULES, "{count} schedules");
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ count as u64);
        let mut is_taken = |at: usize| at == 0 || random.below(count) < self.0;
        schedules
            .into_iter()
            .enumerate()
            .filter(|(at, _)| is_taken(*at))
            .map(|(_, schedule)| schedule)
            .collect()
    }
}

const TEMPLATES: [(&str, Template); 3] = [
    ("pointwise", |block, target, sample| {
        let kernel = |schedule| {
            (format!("{schedule:?}"), pointwise::lower(block, &schedule).expect("its own schedule"))
        };
        sample.of(pointwise::schedules(block, target)).into_iter().map(kernel).collect()
    }),
    ("transpose", |block, target, sample| {
        let kernel = |schedule| {
            (format!("{schedule:?}"), transpose::lower(block, &schedule).expect("its own schedule"))
        };
        sample.of(transpose::schedules(block, target)).into_iter().map(kernel).collect()
    }),
    ("row", |block, target, sample| {
        let kernel =
            |schedule| (format!("{schedule:?}"), row::lower(block, &schedule).expect("its own schedule"));
        sample.of(row::schedules(block, target)).into_iter().map(kernel).collect()
    }),
];

impl G {
    /// Lowers for GPUs in several layouts, runs, and compares with the reference interpreter.
    pub fn check_gpu(&self, sample: Sample) {
        let seen = std::cell::RefCell::new(Vec::new());
        self.in_layouts(&|layouts| {
            let block = self.build_with(layouts).expect("a kernel");
            let text = block.to_string();
            if !seen.borrow().contains(&text) {
                self.check_gpu_kernels(&block, sample);
                seen.borrow_mut().push(text);
            }
        });
    }

    fn check_gpu_kernels(&self, block: &BlockProgram, sample: Sample) {
        assert_eq!(validate_block(block), Vec::<String>::new(), "{block}");
        let inputs = self.inputs(11);
        let values = self.arguments(block, &inputs);
        let expected = self.expected(&inputs);
        // Targets differ in whether they have clusters; a schedule that both have gives the same kernel.
        let mut seen = BTreeSet::new();
        for (target, sample) in [(&SM_90, sample), (&SM_80, Sample(0))] {
            let kernels: Vec<(&str, String, Kernel)> = (TEMPLATES.iter())
                .flat_map(|(name, template)| {
                    template(block, target, &sample)
                        .into_iter()
                        .map(|(schedule, kernel)| (*name, schedule, kernel))
                })
                .collect();
            assert!(!kernels.is_empty(), "no schedule for\n{block}");
            for (name, schedule, kernel) in kernels {
                let what = format!("{name} {schedule}");
                if seen.insert(what.clone()) {
                    self.check_gpu_kernel(block, &kernel, &values, &expected, &what);
                }
            }
        }
    }

    fn check_gpu_kernel(
        &self,
        block: &BlockProgram,
        kernel: &Kernel,
        values: &[Option<Tensor>],
        expected: &[Tensor],
        schedule: &str,
    ) {
        let problems = validate_thread(&kernel.program);
        assert!(problems.is_empty(), "{schedule}\n{problems:#?}\n{}", kernel.program);
        let result =
            std::panic::catch_unwind(|| self.compare(block, expected, &run_kernel(block, kernel, values)));
        if let Err(problem) = result {
            eprintln!("{schedule}\n{}", kernel.program);
            std::panic::resume_unwind(problem);
        }
    }
}
