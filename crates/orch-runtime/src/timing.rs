//! Comparing run times on a machine that also does other things.
//!
//! Candidates are timed in *rounds*: each round times every candidate once, starting at another one each time, so
//! that clock changes and neighbours' noise hit all alike, and ratios can be taken within rounds. Noise only ever adds
//! time, so a candidate whose best time is clearly above another's best time is dropped early.

use crate::{Machine, cpu::AlignedBuffer};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasureOptions {
    /// Time for the whole measurement. It is kept up to one call of each candidate.
    pub budget: Duration,
    /// Calls of each candidate before the first round.
    pub warmup_calls: usize,
    /// Rounds after which the budget may end the measurement, and a single remaining candidate does.
    pub min_rounds: usize,
    /// Rounds at most.
    pub max_rounds: usize,
    /// A candidate is dropped when its best time is this many times the best of all. At least 1; infinite keeps all.
    pub drop_ratio: f64,
    /// Shorter calls are repeated until a sample takes this long. Has no effect with `evict_bytes`.
    pub min_sample: Duration,
    /// Memory to write before each sample, so that the candidate finds cold caches; 0 keeps them warm.
    /// [`eviction_bytes`] gives a useful size.
    pub evict_bytes: usize,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_millis(200),
            warmup_calls: 1,
            min_rounds: 5,
            max_rounds: 50,
            drop_ratio: 1.25,
            min_sample: Duration::from_micros(20),
            evict_bytes: 0,
        }
    }
}

/// Why a measurement ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasureStop {
    /// All rounds were run.
    Rounds,
    /// The time was over.
    Budget,
    /// One candidate was left.
    Decided,
}

/// The times of one candidate.
#[derive(Clone, PartialEq, Debug)]
pub struct Samples {
    /// Microseconds per call, one per round; shorter than others' if the candidate was dropped.
    pub rounds_us: Vec<f64>,
    /// True if the candidate was clearly slower than another one.
    pub dropped: bool,
}

/// The outcome of [`measure`].
#[derive(Clone, PartialEq, Debug)]
pub struct MeasureReport {
    /// One per candidate, in order.
    pub candidates: Vec<Samples>,
    /// Why it ended.
    pub stop: MeasureStop,
    /// Time that it took.
    pub elapsed: Duration,
}

/// Rounds before [`MeasureOptions::drop_ratio`] holds.
const DROP_ROUNDS: usize = 3;

/// How much farther off a candidate must be to be dropped before that.
const EARLY_DROP_FACTOR: f64 = 2.0;

/// Times the candidates against each other.
pub fn measure(candidates: &mut [Box<dyn FnMut() + '_>], options: &MeasureOptions) -> MeasureReport {
    let start = Instant::now();
    let mut evictor = (options.evict_bytes > 0).then(|| AlignedBuffer::zeroed(options.evict_bytes));
    let repeats: Vec<usize> = candidates.iter_mut().map(|run| warm_up(run, options)).collect();
    let mut samples = vec![Samples { rounds_us: Vec::new(), dropped: false }; candidates.len()];
    let mut stop = MeasureStop::Rounds;
    for round in 0..options.max_rounds.max(1) {
        if round >= options.min_rounds {
            if candidates.len() > 1 && samples.iter().filter(|s| !s.dropped).count() == 1 {
                stop = MeasureStop::Decided;
                break;
            }
            if start.elapsed() >= options.budget {
                stop = MeasureStop::Budget;
                break;
            }
        }
        for offset in 0..candidates.len() {
            let idx = (round + offset) % candidates.len();
            if !samples[idx].dropped {
                evictor.iter_mut().for_each(evict);
                samples[idx].rounds_us.push(time_us(&mut candidates[idx], repeats[idx]));
            }
        }
        drop_losers(&mut samples, round + 1, options.drop_ratio.max(1.0));
    }
    MeasureReport { candidates: samples, stop, elapsed: start.elapsed() }
}

/// Memory to write so that the caches hold nothing else: twice the second level at least, the last level within
/// reason (writing takes time, and the last level of a large server is shared anyway).
pub fn eviction_bytes(machine: &Machine) -> usize {
    const MAX_BYTES: usize = 48 << 20;
    machine.caches.l3_bytes.max(2 * machine.caches.l2_bytes).min(MAX_BYTES)
}

impl MeasureReport {
    /// The candidate with the lowest median among those not dropped; `None` if there are no candidates.
    pub fn best(&self) -> Option<usize> {
        (0..self.candidates.len())
            .filter(|&idx| !self.candidates[idx].dropped)
            .min_by(|&a, &b| self.candidates[a].median_us().total_cmp(&self.candidates[b].median_us()))
    }
}

impl Samples {
    /// The best time.
    pub fn min_us(&self) -> f64 {
        self.rounds_us.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The median time.
    pub fn median_us(&self) -> f64 {
        median(self.rounds_us.clone())
    }

    /// The median of this candidate's time over the other's, round by round: what remains when both suffer the same
    /// noise. NaN if the two share no round.
    pub fn paired_ratio(&self, other: &Samples) -> f64 {
        median(self.rounds_us.iter().zip(&other.rounds_us).map(|(mine, theirs)| mine / theirs).collect())
    }
}

/// The middle value; the lower one of two, NaN of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Calls a candidate a few times, and gives the calls that make up a sample.
fn warm_up(run: &mut Box<dyn FnMut() + '_>, options: &MeasureOptions) -> usize {
    const MAX_REPEATS: f64 = 1e6;
    let mut best_us = f64::INFINITY;
    for _ in 0..options.warmup_calls {
        best_us = best_us.min(time_us(run, 1));
    }
    if options.evict_bytes > 0 || options.warmup_calls == 0 {
        return 1;
    }
    let min_us = options.min_sample.as_secs_f64() * 1e6;
    (min_us / best_us.max(1e-3)).ceil().clamp(1.0, MAX_REPEATS) as usize
}

fn time_us(run: &mut Box<dyn FnMut() + '_>, repeats: usize) -> f64 {
    let start = Instant::now();
    (0..repeats).for_each(|_| run());
    start.elapsed().as_secs_f64() * 1e6 / repeats as f64
}

fn drop_losers(samples: &mut [Samples], rounds: usize, ratio: f64) {
    let best_us = samples.iter().map(Samples::min_us).fold(f64::INFINITY, f64::min);
    let factor = if rounds < DROP_ROUNDS { EARLY_DROP_FACTOR } else { 1.0 };
    for candidate in samples {
        candidate.dropped |= candidate.min_us() > best_us * ratio * factor;
    }
}

fn evict(memory: &mut AlignedBuffer) {
    const LINE_BYTES: usize = 64;
    memory.as_mut_slice().iter_mut().step_by(LINE_BYTES).for_each(|byte| *byte = byte.wrapping_add(1));
    black_box(memory.as_slice());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    fn busy(duration: Duration) {
        let start = Instant::now();
        while start.elapsed() < duration {
            std::hint::spin_loop();
        }
    }

    fn microseconds<'a>(times: &[u64]) -> Vec<Box<dyn FnMut() + 'a>> {
        (times.iter().map(|&us| Duration::from_micros(us)))
            .map(|time| Box::new(move || busy(time)) as Box<dyn FnMut()>)
            .collect()
    }

    #[test]
    fn the_faster_one_wins_and_the_slow_one_is_dropped() {
        let report = measure(&mut microseconds(&[300, 100, 2000]), &MeasureOptions::default());
        assert_eq!(report.best(), Some(1));
        let [first, second, third] = &report.candidates[..] else { panic!() };
        assert!(third.dropped && third.rounds_us.len() <= DROP_ROUNDS);
        assert!(second.min_us() >= 100.0 && second.median_us() >= second.min_us());
        assert!(first.paired_ratio(second) > 1.5);
        assert_eq!(report.stop, MeasureStop::Decided);
    }

    #[test]
    fn rounds_interleave_and_rotate() {
        let order = RefCell::new(String::new());
        let mut candidates: Vec<Box<dyn FnMut() + '_>> = vec![
            Box::new(|| order.borrow_mut().push('a')),
            Box::new(|| order.borrow_mut().push('b')),
            Box::new(|| order.borrow_mut().push('c')),
        ];
        let options = MeasureOptions {
            warmup_calls: 0,
            max_rounds: 3,
            drop_ratio: f64::INFINITY,
            ..MeasureOptions::default()
        };
        let report = measure(&mut candidates, &options);
        drop(candidates);
        assert_eq!(order.into_inner(), "abcbcacab");
        assert_eq!(report.stop, MeasureStop::Rounds);
    }

    #[test]
    fn short_calls_are_repeated_and_cold_ones_are_not() {
        let calls = Cell::new(0);
        let count = |evict_bytes| {
            calls.set(0);
            let mut candidates: Vec<Box<dyn FnMut() + '_>> = vec![Box::new(|| calls.set(calls.get() + 1))];
            measure(&mut candidates, &MeasureOptions { max_rounds: 5, evict_bytes, ..Default::default() });
            drop(candidates);
            calls.get()
        };
        assert!(count(0) > 50);
        assert_eq!(count(1000), 1 + 5);
    }

    #[test]
    fn the_budget_ends_it() {
        let options = MeasureOptions {
            budget: Duration::ZERO,
            min_rounds: 2,
            drop_ratio: f64::INFINITY,
            ..Default::default()
        };
        let report = measure(&mut microseconds(&[50, 50]), &options);
        assert!(report.candidates.iter().all(|samples| samples.rounds_us.len() == 2));
        assert_eq!(measure(&mut [], &options).best(), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 1.0);
        assert!(median(vec![]).is_nan());
    }
}
