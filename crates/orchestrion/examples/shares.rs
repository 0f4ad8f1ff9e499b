//! How many times as fast as one thread the work items of plans allow many to be, and how often elements are brought to scratch.
//!
//! `cargo run --release -p orchestrion --example shares -- [--worst N] MODEL.onnx..` plans each model for 16 threads of an x86-64 with
//! AVX-512, by usual figures, and prints for some numbers of threads: the speed-up that work items allow, waits between steps aside; the
//! largest share of a thread in steps of 100 us or more, in even shares; the elements that are packed over those that there are. After
//! them, how many long steps have a share of more than 1.15 among 2, 4, 8 or 16 threads, and among any number up to 16, the worst of the
//! first, and the steps that lose most on 16.

use orchestrion::{Error, Model, Options, StepShares};
use std::path::Path;

const THREADS: [usize; 5] = [1, 4, 8, 16, 32];

/// Steps of this modelled time on one thread, in microseconds, should be shared evenly.
const LONG_US: f64 = 100.0;

/// The largest share of a thread there, at most, in even shares.
const EVEN: f64 = 1.15;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut worst = 3;
    if arguments.peek().is_some_and(|first| first == "--worst") {
        arguments.next();
        worst = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(worst);
    }
    let options = Options {
        target: Some("x86-64-v4".to_owned()),
        threads: 16,
        calibrate: false,
        superoptimize: false,
        ..Options::default()
    };
    for path in arguments {
        let planned = Model::load(Path::new(&path), &options)?.plan(&options)?;
        print(&path, &planned.shares(), worst);
    }
    Ok(())
}

fn print(path: &str, steps: &[StepShares], worst: usize) {
    let alone_us: f64 = steps.iter().map(|step| step.alone_us).sum();
    let gflop = steps.iter().map(|step| step.flops).sum::<f64>() / 1e9;
    println!("{path}: {gflop:.2} GFLOP, {} kernels, {:.2} ms on one thread", steps.len(), alone_us / 1e3);
    for threads in THREADS {
        let shared_us: f64 = steps.iter().map(|step| step.alone_us / step.shares.speed_up(threads)).sum();
        let long = steps.iter().filter(|step| step.alone_us >= LONG_US);
        let largest = long.map(|step| step.shares.largest(threads)).fold(1.0, f64::max);
        println!(
            "  {threads:2} threads: {:5.2} times as fast, largest share {largest:.2}, packed {:.2} times",
            alone_us / shared_us,
            packed_times(steps, threads)
        );
    }
    let long = || steps.iter().filter(|step| step.alone_us >= LONG_US);
    let most = |step: &StepShares, threads: &[usize]| {
        threads.iter().map(|threads| step.shares.largest(*threads)).fold(1.0, f64::max)
    };
    let largest = |step: &StepShares| most(step, &[2, 4, 8, 16]);
    let mut uneven: Vec<&StepShares> = long().filter(|step| largest(step) > EVEN).collect();
    let any: Vec<usize> = (2..=16).collect();
    println!(
        "  of {} long steps {} are uneven among 2, 4, 8 or 16 threads, {} among any number up to 16",
        long().count(),
        uneven.len(),
        long().filter(|step| most(step, &any) > EVEN).count()
    );
    uneven.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    for step in uneven.into_iter().take(worst) {
        let StepShares { name, schedule, alone_us, work_items, .. } = step;
        let largest = largest(step);
        println!("    {largest:5.2}: {name}, {alone_us:.0} us, {work_items} work items, {schedule}");
    }
    let lost_us = |step: &StepShares| step.alone_us / step.shares.speed_up(16) - step.alone_us / 16.0;
    let mut sorted: Vec<&StepShares> = steps.iter().collect();
    sorted.sort_by(|a, b| lost_us(b).total_cmp(&lost_us(a)));
    for step in sorted.into_iter().take(worst) {
        let StepShares { name, schedule, alone_us, work_items, shares, .. } = step;
        let packed = shares.packed(16) as f64 / shares.distinct().max(1) as f64;
        println!(
            "    {:6.1} us lost: {name}, {alone_us:.0} us, {work_items} work items, largest share {:.2}, packed {packed:.2} times, {schedule}",
            lost_us(step),
            shares.largest(16),
        );
    }
}

/// Elements that all steps pack over those that there are.
fn packed_times(steps: &[StepShares], threads: usize) -> f64 {
    let packed: usize = steps.iter().map(|step| step.shares.packed(threads)).sum();
    let distinct: usize = steps.iter().map(|step| step.shares.distinct()).sum();
    packed as f64 / distinct.max(1) as f64
}
