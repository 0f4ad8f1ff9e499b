//! The performance model of kernels that are not matrix products, to rank schedules: the largest of the times that an SM takes to
//! issue instructions, to load bytes (bandwidth, or latency if too few bytes are in flight) and to start CTAs, and the latencies
//! that nothing hides.

use super::access::Effort;
use orch_thread::cta::WARP;
use orch_thread::target::{CtaResources, GpuTarget};

/// Cycles from a load to its value.
const LATENCY: f64 = 700.0;

/// Cycles from a load to its value while memory is busy.
const LOADED_LATENCY: f64 = 1000.0;

/// Bytes per cycle of DRAM, to one SM.
const BANDWIDTH: f64 = 15.0;

/// Instructions that an SM issues per cycle, one for each of its schedulers.
const ISSUE: f64 = 4.0;

/// Cycles from an instruction of a warp to its next one, if its scheduler has no other warp.
const ALONE: f64 = 4.0;

/// Cycles from the start of a CTA of an SM to that of its next one: an H200 starts 32768 CTAs in 39 us.
const START: f64 = 280.0;

/// What a kernel does, as the model sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    /// CTAs of the grid.
    pub ctas: usize,
    /// Threads of a CTA.
    pub threads: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of shared memory of a CTA.
    pub shared_bytes: usize,
    /// What a thread does.
    pub effort: Effort,
    /// Bytes that a thread has in flight at most.
    pub in_flight: f64,
    /// Times that a thread waits a whole memory latency that no other warp hides.
    pub rounds: f64,
    /// Iterations of loops that wait for their loads, while other warps' loads arrive.
    pub iterations: f64,
    /// Cycles that a thread waits at barriers and shuffles.
    pub waits: f64,
}

impl Launch {
    /// Resident CTAs of an SM; none if a CTA does not fit.
    pub fn resident(&self, target: &GpuTarget) -> usize {
        let Launch { threads, registers, shared_bytes, .. } = *self;
        target.resident_ctas(CtaResources { threads, registers, shared_bytes })
    }

    /// True if all CTAs are resident at once even if they are in clusters, which cannot use every SM.
    pub fn runs_at_once(&self, target: &GpuTarget) -> bool {
        const IN_CLUSTERS: f64 = 0.85;
        let resident = self.resident(target) * target.sms;
        self.ctas as f64 <= IN_CLUSTERS * resident as f64
    }

    /// Modelled cycles; infinite if a CTA does not fit.
    pub fn cycles(&self, target: &GpuTarget) -> f64 {
        let resident = self.resident(target);
        if resident == 0 {
            return f64::INFINITY;
        }
        let per_sm = self.ctas.div_ceil(target.sms);
        let concurrent = resident.min(per_sm);
        let waves = per_sm.div_ceil(resident) as f64;
        let threads = (per_sm * self.threads) as f64;
        let issue = threads / WARP as f64 * self.effort.instructions / ISSUE;
        let issue = issue.max(waves * self.effort.instructions * ALONE);
        // Little's law: `loaded / in_flight` latencies one after the other, less those that `rounds` counts.
        let in_flight = (concurrent * self.threads) as f64 * self.in_flight.max(1.0);
        let by_latency = threads * self.effort.loaded / in_flight * LATENCY - LATENCY * self.rounds;
        let memory = (threads * self.effort.bytes / BANDWIDTH).max(by_latency);
        // Iterations whose loads barely cover the latency leave gaps.
        let memory = memory.hypot(waves * self.iterations * LOADED_LATENCY);
        let starts = START * per_sm as f64;
        let busiest = issue.max(memory).max(starts);
        // The less busy resources are not wholly hidden by the busiest one.
        let others = issue + memory + starts - busiest;
        LATENCY * self.rounds + waves.sqrt() * self.waits + busiest + 0.1 * others
    }
}

/// Registers that a thread needs beside those that hold values.
pub(super) const BASE_REGISTERS: usize = 28;

/// Most registers of a thread.
pub(super) const MAX_REGISTERS: usize = 255;
