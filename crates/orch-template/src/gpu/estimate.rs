//! A rough time of a kernel on a GPU, to rank schedules: instructions against issue slots, bytes against bandwidth as
//! far as enough of them are under way, and latencies that nothing hides.

use super::access::Effort;
use orch_thread::cta::WARP;
use orch_thread::target::GpuTarget;

/// Cycles from a load to its value.
const LATENCY: f64 = 700.0;

/// Cycles from a load to its value while memory is busy.
const LOADED_LATENCY: f64 = 1000.0;

/// Bytes a cycle that a multiprocessor gets from memory.
const BANDWIDTH: f64 = 15.0;

/// Warps of which a multiprocessor issues an instruction in each cycle.
const ISSUE: f64 = 4.0;

/// Cycles from an instruction of a thread to its next one, where no other warp's go between.
const ALONE: f64 = 4.0;

/// Cycles from the start of a multiprocessor's task to that of its next one: an H200 starts 32768 tasks in 39 us.
const START: f64 = 280.0;

/// Most resident tasks of a multiprocessor.
const MAX_RESIDENT: usize = 32;

/// How a kernel runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    /// Tasks.
    pub tasks: usize,
    /// Threads of a task.
    pub threads: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Shared memory of a task.
    pub shared_bytes: usize,
    /// What a thread does.
    pub effort: Effort,
    /// Of the bytes that a thread loads, those that it can wait for together.
    pub in_flight: f64,
    /// Times that a thread waits for memory with nothing else to do.
    pub rounds: f64,
    /// Iterations of loops that wait for loads, while other threads' loads arrive.
    pub iterations: f64,
    /// Cycles that a thread waits otherwise.
    pub waits: f64,
}

impl Launch {
    /// Resident tasks of a multiprocessor; none if one task does not fit.
    pub fn resident(&self, target: &GpuTarget) -> usize {
        let by_threads = target.sm_threads / self.threads;
        let by_registers = target.sm_registers / (self.threads * self.registers.next_multiple_of(8));
        let by_shared = target.sm_shared_bytes / (self.shared_bytes + 1024);
        if self.shared_bytes > target.shared_bytes {
            return 0;
        }
        by_threads.min(by_registers).min(by_shared).min(MAX_RESIDENT)
    }

    /// True if all tasks run at the same time even if they are in clusters, to which some multiprocessors are of no use.
    pub fn runs_at_once(&self, target: &GpuTarget) -> bool {
        const IN_CLUSTERS: f64 = 0.85;
        let places = self.resident(target) * target.sms;
        self.tasks as f64 <= IN_CLUSTERS * places as f64
    }

    /// Cycles; infinite if a task does not fit.
    pub fn cycles(&self, target: &GpuTarget) -> f64 {
        let resident = self.resident(target);
        if resident == 0 {
            return f64::INFINITY;
        }
        let most = self.tasks.div_ceil(target.sms);
        let together = resident.min(most);
        let waves = most.div_ceil(resident) as f64;
        let threads = (most * self.threads) as f64;
        let issue = threads / WARP as f64 * self.effort.instructions / ISSUE;
        let issue = issue.max(waves * self.effort.instructions * ALONE);
        // What is under way at once takes no longer than its last byte, which `rounds` counts once.
        let under_way = (together * self.threads) as f64 * self.in_flight.max(1.0);
        let in_turns = threads * self.effort.loaded / under_way * LATENCY - LATENCY * self.rounds;
        let memory = (threads * self.effort.bytes / BANDWIDTH).max(in_turns);
        // Loads that barely cover the latency leave gaps.
        let memory = memory.hypot(waves * self.iterations * LOADED_LATENCY);
        let starts = START * most as f64;
        let busiest = issue.max(memory).max(starts);
        // Of several resources the less busy ones get in the way a little.
        let others = issue + memory + starts - busiest;
        LATENCY * self.rounds + waves.sqrt() * self.waits + busiest + 0.1 * others
    }
}

/// Registers that a thread needs beside those that hold values.
pub(super) const BASE_REGISTERS: usize = 28;

/// Most registers of a thread.
pub(super) const MAX_REGISTERS: usize = 255;
