//! Running the searches within kernels, on several threads, with a record of what is done.

use super::block::search_block;
use super::limits::{Allowance, Counts, Goal};
use super::tile::Sketch;
use super::{Context, SearchOptions, Task};
use crate::graph::MuGraph;
use crate::threads;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What of a search is done: sketches by task, in the order in which tasks were begun.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// A hash of the program and the limits.
    of: String,
    /// A hash of what is done, so that a damaged file is refused.
    seal: String,
    done: Vec<Done>,
    #[serde(skip)]
    known: BTreeMap<(bool, Task), usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Done {
    partial: bool,
    task: Task,
    sketches: Vec<Sketch>,
    counts: Counts,
}

/// Tasks between two looks at the allowance.
const BATCH: usize = 32;

impl Progress {
    /// Prepares to go on with a search.
    pub(super) fn begin(&mut self, program: &MuGraph, options: &SearchOptions) -> Result<(), String> {
        let described = format!(
            "{} {:?} {:?} {} {}",
            crate::print(program),
            options.limits,
            options.machine,
            options.slack,
            options.below_us
        );
        let of = blake3::hash(described.as_bytes()).to_hex().to_string();
        if self.done.is_empty() {
            self.of = of;
        } else if self.known.is_empty() && self.seal != self.hash() {
            return Err("the progress is damaged".into());
        } else if self.of != of {
            return Err("the progress is that of another program or other options".into());
        }
        let key = |(at, done): (usize, &Done)| ((done.partial, done.task.clone()), at);
        self.known = self.done.iter().enumerate().map(key).collect();
        Ok(())
    }

    /// Makes the record ready to be written.
    pub(super) fn seal(&mut self) {
        self.seal = self.hash();
    }

    fn hash(&self) -> String {
        blake3::hash(serde_json::to_string(&self.done).unwrap_or_default().as_bytes()).to_hex().to_string()
    }

    /// The sketches of all tasks, in the order of tasks, whatever the number of threads, for so many parts; `None` if the allowance is
    /// used up before. States are taken from it.
    pub(super) fn run(
        &mut self,
        context: &Context<'_>,
        (tasks, partial): (&[Task], bool),
        counts: &mut Counts,
        left: &mut Allowance<'_>,
    ) -> Option<Vec<Sketch>> {
        let missing: Vec<&Task> =
            tasks.iter().filter(|task| !self.known.contains_key(&(partial, (*task).clone()))).collect();
        for batch in missing.chunks(BATCH) {
            if left.states == 0 {
                return None;
            }
            for (task, done) in batch.iter().zip(run_batch(context, batch, partial, left.goes_on)) {
                let (sketches, counts) = done?;
                left.states = left.states.saturating_sub(counts.states.max(1));
                let task: Task = (*task).clone();
                self.known.insert((partial, task.clone()), self.done.len());
                self.done.push(Done { partial, task, sketches, counts });
            }
        }
        let mut all = Vec::new();
        for task in tasks {
            let done = &self.done[*self.known.get(&(partial, task.clone()))?];
            counts.add(&done.counts);
            all.extend(done.sketches.iter().cloned());
        }
        Some(all)
    }
}

/// What a search within a kernel came to; `None` if it was ended.
type Searched = Option<(Vec<Sketch>, Counts)>;

fn run_batch(
    context: &Context<'_>,
    batch: &[&Task],
    partial: bool,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Vec<Searched> {
    let one = |at: usize| {
        let (structure, sources) = batch[at];
        let goal = Goal { targets: &context.targets, partial, norms: &context.norms };
        search_block(&context.algebra, (structure, sources), (&goal, goes_on), &context.limits(sources))
    };
    threads::map(0..batch.len(), context.options.threads, one, Searched::is_none)
}
