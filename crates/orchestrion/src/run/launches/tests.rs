//! Tests of the choice and of its memory, with times that a function gives.

use super::*;
use crate::manifest::{Manifest, SlotMemory};
use crate::testing::{manifest, slot};
use orch_files::Scratch;
use orch_runtime::cuda::{Capability, DeviceInfo, Version};
use std::path::{Path, PathBuf};

const MODES: [Execution; 3] = Execution::ALL;
const DIRECT: Execution = Execution::Direct;
const LINE: Execution = Execution::StraightGraph;
const BRANCHED: Execution = Execution::BranchedGraph;

/// Times by a mode's place and the number of the run.
type Times<'a> = &'a mut dyn FnMut(usize, usize) -> f64;

/// Makes a run on a device that takes so long and is kept ahead of by the host; each mode's first makes its graph, and is not timed.
struct Runs<'a> {
    launches: &'a Launches,
    made: usize,
    known: Vec<Execution>,
}

impl<'a> Runs<'a> {
    fn new(launches: &'a Launches) -> Self {
        Self { launches, made: 0, known: Vec::new() }
    }

    /// The modes of the next runs.
    fn make(&mut self, runs: usize, us: Times<'_>) -> Vec<Execution> {
        (0..runs).map(|_| self.one(us)).collect()
    }

    fn one(&mut self, us: Times<'_>) -> Execution {
        let NextRun { mode, number } = self.launches.next();
        let is_first = !self.known.contains(&mode);
        match number {
            Some(_) if is_first => self.known.push(mode),
            Some(number) => {
                let at = MODES.iter().position(|known| *known == mode).unwrap();
                let device_us = us(at, self.made);
                self.launches.record(&TimedRun {
                    number,
                    execution: mode,
                    host_us: 1.0,
                    device_us,
                    was_idle: false,
                });
            }
            None => self.known = vec![mode],
        }
        self.made += 1;
        mode
    }
}

/// What is chosen if a run takes so long.
fn choice(mut us: impl FnMut(usize, usize) -> f64) -> LaunchChoice {
    let launches = Launches::new(None, None);
    Runs::new(&launches).make(1000, &mut us);
    launches.choice().expect("a thousand runs are enough")
}

/// What is chosen if runs in the modes keep the host and the device so long, in a stream that is idle when they begin, or busy.
fn choice_of(was_idle: bool, host_us: [f64; 3], device_us: [f64; 3]) -> LaunchChoice {
    let launches = Launches::new(None, None);
    while launches.choice().is_none() {
        let NextRun { mode, number } = launches.next();
        let at = MODES.iter().position(|known| *known == mode).unwrap();
        let (host_us, device_us) = (host_us[at], device_us[at]);
        launches.record(&TimedRun { number: number.unwrap(), execution: mode, host_us, device_us, was_idle });
    }
    launches.choice().unwrap()
}

fn run_us(choice: LaunchChoice) -> [f64; 3] {
    choice.costs.unwrap().medians.map(|cost| cost.run_us)
}

#[test]
fn the_cheapest_mode_is_chosen_and_of_equal_ones_the_simplest() {
    assert_eq!(choice(|mode, _| [50.0, 40.0, 30.0][mode]).mode, BRANCHED);
    assert_eq!(choice(|mode, _| [50.0, 30.0, 40.0][mode]).mode, LINE);
    assert_eq!(choice(|mode, _| [30.0, 50.0, 40.0][mode]).mode, DIRECT);
    let equal = choice(|mode, _| [30.5, 30.2, 30.0][mode]);
    assert_eq!((equal.mode, run_us(equal)), (DIRECT, [30.5, 30.2, 30.0]));
    assert_eq!(equal.costs.unwrap().rounds, ROUNDS);
    assert_eq!(choice(|mode, _| [31.0, 30.2, 30.0][mode]).mode, LINE);
}

#[test]
fn the_slower_of_host_and_device_counts() {
    let choice = choice_of(false, [200.0, 5.0, 5.0], [30.0; 3]);
    assert_eq!((choice.mode, run_us(choice)), (LINE, [200.0, 30.0, 30.0]));
    let medians = choice.costs.unwrap().medians;
    assert_eq!(medians.map(|cost| (cost.host_us, cost.device_us)), [(200.0, 30.0), (5.0, 30.0), (5.0, 30.0)]);
    assert_eq!(
        choice.to_string(),
        "launches: line (a run costs its caller, direct 200.0 us (host 200.0), line 30.0 us (host 5.0), branched 30.0 us (host 5.0): \
         medians of 25 rounds)"
    );
}

/// Runs that begin in an idle stream keep their caller by the host's part alone, or, where it waits for them, until they end. 20 launches take
/// as long as a graph of them, and the host longer.
#[test]
fn in_an_idle_stream_the_host_counts_twice() {
    let choice = choice_of(true, [48.7, 23.5, 22.7], [87.3, 90.9, 89.6]);
    assert_eq!((choice.mode, run_us(choice)), (LINE, [68.0, 57.2, 56.15]));
    assert_eq!(choice_of(false, [48.7, 23.5, 22.7], [87.2, 90.9, 89.6]).mode, DIRECT);
    assert_eq!(choice_of(true, [500.2, 100.3, 170.3], [509.9, 400.8, 355.2]).mode, LINE);
    assert_eq!(choice_of(true, [112.0, 42.7, 61.5], [131.7, 119.1, 89.8]).mode, BRANCHED);
    assert_eq!(choice_of(true, [2.8, 2.7, 2.8], [4.75, 4.75, 4.9]).mode, DIRECT);
}

/// A click model: launches reach the device sooner than a graph does and keep the host longer. By the mean of both the modes cost the same, but
/// calls in a row took 110 and 80 us, single ones 150 and 154.
#[test]
fn of_modes_that_cost_the_same_one_that_keeps_the_host_for_long_is_not_taken() {
    assert_eq!(choice_of(true, [21.5, 5.5, 5.1], [118.7, 132.1, 132.7]).mode, LINE);
    assert_eq!(choice_of(true, [21.5, 5.5, 5.1], [115.7, 132.1, 132.7]).mode, LINE);
    assert_eq!(choice_of(true, [21.5, 5.5, 5.1], [110.0, 132.1, 132.7]).mode, DIRECT);
}

#[test]
fn each_mode_is_tried_in_changing_order_and_first_runs_do_not_count() {
    let launches = Launches::new(None, None);
    let mut runs = Runs::new(&launches);
    let modes = runs.make(9, &mut |_, run| if run < 3 { 1e9 } else { 30.0 });
    for round in modes.chunks(3) {
        assert!(MODES.iter().all(|mode| round.contains(mode)), "{round:?}");
    }
    assert!(modes[0] != modes[3] && modes[3] != modes[6]);
    runs.make(69, &mut |_, _| 30.0);
    assert_eq!(run_us(launches.choice().expect("78 runs are enough")), [30.0; 3]);
}

#[test]
fn a_mode_of_the_caller_is_used_and_nothing_is_timed() {
    let launches = Launches::new(Some(LINE), None);
    assert_eq!(launches.next(), NextRun { mode: LINE, number: None });
}

#[test]
fn without_times_graphs_with_branches_are_taken() {
    let launches = Launches::new(None, None);
    assert_eq!(launches.decide(), LaunchChoice { mode: BRANCHED, costs: None, is_remembered: false });
    assert_eq!(launches.next().mode, BRANCHED);
}

/// Numbers from 0 to 1 (SplitMix64).
fn uniform(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Times of a machine that others use as well: for stretches of runs all is up to 3 times as slow, and a tenth of the runs waits for long.
/// A quiet run of a mode takes so long.
fn noisy(seed: u64, quiet_us: [f64; 3]) -> impl FnMut(usize, usize) -> f64 {
    let mut random = uniform(seed);
    let mut slow = 1.0;
    move |mode, run| {
        if run % 20 == 0 {
            slow = if random() < 0.3 { 1.0 + 2.0 * random() } else { 1.0 };
        }
        let hiccup = if random() < 0.1 { 1.0 + 39.0 * random() } else { 1.0 };
        quiet_us[mode] * slow * hiccup * (0.99 + 0.02 * random())
    }
}

/// 100 us for this mode, and so much more for the others.
fn best_by(best: usize, share: f64) -> [f64; 3] {
    std::array::from_fn(|mode| if mode == best { 100.0 } else { 100.0 * (1.0 + share) })
}

#[test]
fn noise_seldom_hides_five_percent() {
    let (mut wrong, mut wrong_at_once) = (0, 0);
    for seed in 0..100 {
        let best = seed as usize % MODES.len();
        wrong += usize::from(choice(noisy(seed, best_by(best, 0.05))).mode != MODES[best]);
        let mut once = noisy(seed, best_by(best, 0.05));
        let costs = [0, 1, 2].map(|mode| once(mode, 18 + mode));
        wrong_at_once += usize::from(costs.iter().any(|cost| *cost < costs[best]));
    }
    assert!(wrong <= 2, "{wrong} of 100 choices are wrong");
    assert!(wrong_at_once >= 10, "one run in each mode decides as well: {wrong_at_once} are wrong");
}

fn gpu() -> DeviceInfo {
    DeviceInfo {
        ordinal: 0,
        name: "NVIDIA H100".to_owned(),
        capability: Capability { major: 9, minor: 0 },
        sm_count: 132,
        shared_bytes_per_block: 232_448,
        shared_bytes_per_sm: 233_472,
        registers_per_sm: 65_536,
        threads_per_sm: 2048,
        l2_bytes: 50 << 20,
        clock_mhz: 1980,
        memory_clock_mhz: 2619,
        memory_bus_bits: 5120,
        memory_bytes: 80 << 30,
        driver: Version { major: 13, minor: 0 },
    }
}

/// A cache folder, and what processes find there.
struct CacheFolder(Scratch);

impl CacheFolder {
    fn new() -> Self {
        Self(Scratch::new().unwrap())
    }

    fn memory(&self) -> LaunchMemory {
        LaunchMemory::open(self.0.path(), &plan(), &gpu(), &[]).unwrap()
    }

    /// A process, which audits a remembered choice at once if that is said.
    fn process(&self, is_drawn: bool) -> Launches {
        Launches::beginning(None, Some(self.memory()), is_drawn)
    }

    /// A process that makes so many runs.
    fn runs(&self, runs: usize, is_drawn: bool, us: Times<'_>) -> Launches {
        let launches = self.process(is_drawn);
        Runs::new(&launches).make(runs, us);
        launches
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.0.path().join("tuning"))
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A plan of two steps, the second of which reads what is at this place in working memory.
fn plan_reading(offset: usize) -> Manifest {
    let (input, arena, output) = (SlotMemory::Input(0), SlotMemory::Arena, SlotMemory::Output(0));
    manifest(&[
        &[slot(input, 8, false), slot(arena(0), 8, true)],
        &[slot(arena(offset), 8, false), slot(output, 8, true)],
    ])
}

fn plan() -> Manifest {
    plan_reading(0)
}

const LINE_IS_BEST: [f64; 3] = [50.0, 30.0, 40.0];

#[test]
fn a_choice_is_remembered_by_later_processes() {
    let cache = CacheFolder::new();
    let first = cache.runs(77, false, &mut |mode, _| LINE_IS_BEST[mode]);
    assert!(first.choice().is_none() && cache.files().is_empty());
    let first = cache.runs(78, false, &mut |mode, _| LINE_IS_BEST[mode]).choice().unwrap();
    assert_eq!((first.mode, first.is_remembered, cache.files().len()), (LINE, false, 1));

    let second = cache.process(false);
    assert_eq!(second.choice(), Some(LaunchChoice { is_remembered: true, ..first }));
    assert!(!second.is_trial());
    let runs = Runs::new(&second).make(4000, &mut |_, _| unreachable!("nothing is timed"));
    assert!(runs.iter().all(|mode| *mode == LINE));
    assert_eq!(
        second.decide().to_string(),
        "launches: line (a run costs its caller, direct 50.0 us (host 1.0), line 30.0 us (host 1.0), branched 40.0 us (host 1.0): \
         medians of 25 rounds, remembered from an earlier process)"
    );
    // What the caller says counts more, and is not remembered.
    let forced = Launches::beginning(Some(DIRECT), Some(cache.memory()), true);
    assert!(Runs::new(&forced).make(10_000, &mut |_, _| 1.0).iter().all(|mode| *mode == DIRECT));
    assert_eq!(cache.process(false).choice().unwrap().mode, LINE);
}

#[test]
fn another_plan_gpu_driver_or_library_is_decided_anew() {
    let cache = CacheFolder::new();
    cache.runs(78, false, &mut |mode, _| LINE_IS_BEST[mode]);
    let read = |plan: &Manifest, gpu: &DeviceInfo, libraries: &[String]| {
        LaunchMemory::open(cache.0.path(), plan, gpu, libraries).unwrap().read()
    };
    assert_eq!(read(&plan(), &gpu(), &[]).unwrap().mode, LINE);
    assert!(
        read(&plan(), &DeviceInfo { ordinal: 1, clock_mhz: 1500, ..gpu() }, &[]).is_some(),
        "one of its kind"
    );
    for other in [
        DeviceInfo { driver: Version { major: 13, minor: 1 }, ..gpu() },
        DeviceInfo { name: "NVIDIA H200".to_owned(), ..gpu() },
        DeviceInfo { sm_count: 114, ..gpu() },
        DeviceInfo { capability: Capability { major: 9, minor: 1 }, ..gpu() },
    ] {
        assert_eq!(read(&plan(), &other, &[]), None, "{other:?}");
        let memory = LaunchMemory::open(cache.0.path(), &plan(), &other, &[]);
        assert!(Launches::beginning(None, memory, false).is_trial());
    }
    assert_eq!(read(&plan_reading(8), &gpu(), &[]), None);
    assert_eq!(read(&plan(), &gpu(), &["cuBLASLt 13.1".to_owned()]), None);
    // A model of other names and weights has the same plan.
    let mut renamed = plan();
    renamed.model.name = "other".to_owned();
    assert!(read(&renamed, &gpu(), &[]).is_some());
}

#[test]
fn damaged_and_foreign_records_are_decided_anew_and_replaced() {
    let cache = CacheFolder::new();
    let us: Times<'_> = &mut |mode, _| LINE_IS_BEST[mode];
    cache.runs(78, false, us);
    let [file] = &cache.files()[..] else { panic!("{:?}", cache.files()) };
    let whole = std::fs::read(file).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"{}", &[whole.as_slice(), b" "].concat()] {
        std::fs::write(file, damaged).unwrap();
        let launches = cache.process(false);
        assert!(launches.choice().is_none() && launches.is_trial());
        Runs::new(&launches).make(78, us);
        assert_eq!(cache.process(false).choice().unwrap().mode, LINE, "it is replaced");
    }
    // A folder that cannot be used.
    assert!(LaunchMemory::open(file, &plan(), &gpu(), &[]).is_none());
}

#[test]
fn a_choice_that_has_become_wrong_is_replaced_after_two_audits() {
    let cache = CacheFolder::new();
    cache.runs(78, false, &mut |mode, _| LINE_IS_BEST[mode]);
    let now: Times<'_> = &mut |mode, _| [50.0, 45.0, 40.0][mode];
    // In one process that runs for long.
    let launches = cache.process(false);
    let mut runs = Runs::new(&launches);
    assert!(runs.make(FIRST_PERIOD as usize, now).iter().all(|mode| *mode == LINE));
    let audit: Vec<Execution> = runs.make(100, now);
    let others = audit.iter().filter(|mode| **mode != LINE).count();
    assert_eq!(others, 2 * (AUDIT_ROUNDS + 1), "the first audit: {audit:?}");
    assert!(cache.memory().read().unwrap().was_beaten && launches.choice().unwrap().mode == LINE);
    runs.make(SECOND_AUDIT_AFTER as usize, now);
    let choice = launches.choice().unwrap();
    assert_eq!((choice.mode, choice.is_remembered), (BRANCHED, false));
    assert_eq!((run_us(choice), choice.costs.unwrap().rounds), ([50.0, 45.0, 40.0], AUDIT_ROUNDS));
    let remembered = cache.memory().read().unwrap();
    assert_eq!((remembered.mode, remembered.was_beaten), (BRANCHED, false));

    // In processes of few runs: one that is drawn, and the next one.
    let now: Times<'_> = &mut |mode, _| [20.0, 45.0, 40.0][mode];
    assert_eq!(cache.runs(60, true, now).choice().unwrap().mode, BRANCHED);
    assert_eq!(cache.runs(60, false, now).choice().unwrap().mode, DIRECT);
    assert_eq!(cache.runs(1, false, now).choice().unwrap().mode, DIRECT);
}

#[test]
fn an_audit_that_the_choice_survives_is_rarer_next_time_and_forgets_an_earlier_one() {
    let cache = CacheFolder::new();
    cache.runs(78, false, &mut |mode, _| LINE_IS_BEST[mode]);
    cache.runs(60, true, &mut |mode, _| [50.0, 30.0, 25.0][mode]);
    assert!(cache.memory().read().unwrap().was_beaten);
    let launches = cache.process(false);
    let mut runs = Runs::new(&launches);
    let us: Times<'_> = &mut |mode, _| LINE_IS_BEST[mode];
    runs.make(60, us);
    assert!(!cache.memory().read().unwrap().was_beaten);
    // Then after 8192 runs, 16384 and so on: a trial of three modes each.
    let modes = runs.make(1 << 18, us);
    let others = modes.iter().filter(|mode| **mode != LINE).count();
    assert_eq!(others, 6 * 2 * (AUDIT_ROUNDS + 1), "audits after 2^13, 2^14, 2^15 and each 2^16 runs");
    assert_eq!(launches.choice().unwrap().mode, LINE);
}

#[test]
fn an_audit_can_be_ended_and_costs_of_earlier_trials_do_not_count() {
    let cache = CacheFolder::new();
    let launches = cache.process(false);
    let mut late = Vec::new();
    for _ in 0..6 {
        let NextRun { mode, number } = launches.next();
        let (number, device_us) = (number.unwrap(), 1e6);
        late.push(TimedRun { number, execution: mode, host_us: 1.0, device_us, was_idle: false });
    }
    Runs::new(&launches).make(78, &mut |mode, _| LINE_IS_BEST[mode]);
    assert_eq!(launches.choice().unwrap().mode, LINE);
    let second = cache.process(true);
    second.next();
    assert!(second.is_trial());
    late.iter().for_each(|run| launches.record(run));
    assert_eq!((second.decide().mode, second.is_trial()), (LINE, false));
}

/// Processes that audit a choice again and again on a noisy machine, and how many of them change it.
fn changed_by_noise(quiet_us: [f64; 3], in_use: Execution) -> usize {
    let mut changed = 0;
    for seed in 0..100 {
        let cache = CacheFolder::new();
        let costs = choice(|mode, _| quiet_us[mode]).costs.unwrap();
        cache.memory().write(&Remembered { mode: in_use, costs, was_beaten: false });
        let launches = cache.process(true);
        let mut noise = noisy(seed, quiet_us);
        // Ten audits, and those that follow on one in which the choice was beaten.
        let mut runs = Runs::new(&launches);
        for _ in 0..10 {
            runs.make(60, &mut noise);
            let mut state = launches.state();
            if let ChoicePhase::Chosen(_, audit @ Audit::In(_)) = &mut state.phase {
                *audit = Audit::In(0);
            }
        }
        changed += usize::from(launches.choice().unwrap().mode != in_use);
    }
    changed
}

#[test]
fn noise_does_not_change_a_choice_and_does_not_keep_a_wrong_one() {
    // Ten audits each: of equal modes, and where the choice is the best by little.
    assert_eq!(changed_by_noise([100.0; 3], LINE), 0);
    assert_eq!(changed_by_noise(best_by(2, 0.03), BRANCHED), 0);
    // One that takes a third longer than another is changed.
    let wrong = changed_by_noise([133.0, 100.0, 120.0], DIRECT);
    assert!(wrong >= 95, "{wrong} of 100 are changed");
}
