//! Consecutive launches that do not depend on each other, as one loop.
//!
//! Threads wait for each other once where they would wait after each launch, and a launch with too few tasks for all threads is filled up
//! with those of another one. The tasks are cut into pieces beforehand, for a number of threads; each piece is of one launch.
//!
//! Joined launches keep these rules, which [`check`] verifies:
//! 1. they are two or more launches of the program, of one phase each, behind those that were joined before;
//! 2. none of them writes a byte that another one reads or writes, also where an output has the memory of the input that it updates;
//! 3. the pieces have each task of each launch once.

use super::launch::{Action, Launch, Program};
use super::pool::LoopCall;
use crate::dependencies::conflict;
use crate::program::BufferRef;
use std::ops::Range;

/// Consecutive launches whose tasks are dealt to threads as one list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedLaunches {
    /// The steps.
    pub steps: Range<usize>,
    /// Their tasks, in the order in which they are dealt: should take about the same time each.
    pub pieces: Vec<Piece>,
}

/// Tasks of a launch that one thread does one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The step.
    pub step: usize,
    /// Its tasks.
    pub tasks: Range<i64>,
}

impl JoinedLaunches {
    /// The calls of kernels that a call of the loop over pieces consists of: each with its step.
    pub(super) fn calls(&self, call: &LoopCall) -> impl Iterator<Item = (usize, LoopCall)> {
        let piece = |number: i64| self.pieces.get(usize::try_from(number).ok()?);
        let (thread, first) = (call.thread, call.task_before);
        let befores = std::iter::once(first).chain(call.tasks.clone());
        call.tasks.clone().zip(befores).filter_map(move |(number, before)| {
            let Piece { step, tasks } = piece(number)?;
            let before = piece(before).filter(|before| before.step == *step);
            let task_before = before.map_or(-1, |before| before.tasks.end - 1);
            Some((*step, LoopCall { thread, tasks: tasks.clone(), task_before }))
        })
    }
}

/// What is wrong with launches that are to be joined, as clauses.
pub(super) fn check(program: &Program, joined: &[JoinedLaunches]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut free = 0;
    for JoinedLaunches { steps, pieces } in joined {
        let mut report = |what: &str| violations.push(format!("joined steps {steps:?} {what}"));
        let launches: Option<Vec<&Launch>> =
            program.steps.get(steps.clone()).and_then(|steps| steps.iter().map(launch).collect());
        let Some(launches) = launches.filter(|launches| launches.len() > 1 && steps.start >= free) else {
            report("are not two or more launches of their own");
            continue;
        };
        free = steps.end;
        let buffers: Vec<Vec<BufferRef>> = launches.iter().map(|launch| known(program, launch)).collect();
        let depend = |(at, own): (usize, &Vec<BufferRef>)| buffers[..at].iter().any(|it| conflict(it, own));
        if buffers.iter().enumerate().any(depend) {
            report("depend on each other");
        }
        if launches.iter().any(|launch| launch.phases != 1) {
            report("have several phases");
        }
        if !is_whole(steps, &launches, pieces) {
            report("do not have each task once");
        }
    }
    violations
}

fn launch(step: &super::CpuStep) -> Option<&Launch> {
    match &step.action {
        Action::Launch(launch) => Some(launch),
        Action::Host(_) | Action::Copy { .. } => None,
    }
}

/// The ranges of a launch, those of updated outputs as of their inputs.
fn known(program: &Program, launch: &Launch) -> Vec<BufferRef> {
    launch.buffers.iter().map(|range| range.identity(&program.updates)).collect()
}

/// True if the pieces have each task of each launch once.
fn is_whole(steps: &Range<usize>, launches: &[&Launch], pieces: &[Piece]) -> bool {
    let mut sorted: Vec<&Piece> = pieces.iter().collect();
    sorted.sort_by_key(|piece| (piece.step, piece.tasks.start));
    let mut done = vec![0; launches.len()];
    let mut follows = |piece: &&Piece| {
        let Some(done) = piece.step.checked_sub(steps.start).and_then(|at| done.get_mut(at)) else {
            return false;
        };
        let is_next = *done == piece.tasks.start && piece.tasks.start < piece.tasks.end;
        *done = piece.tasks.end;
        is_next
    };
    sorted.iter().all(&mut follows)
        && launches.iter().zip(&done).all(|(launch, &done)| launch.kernel.tasks() == done)
}

#[cfg(test)]
mod tests;
