//! Names and times of the stages of one compilation, and what tuning may take of it.

use crate::tune::budget::Budget;
use crate::{Error, Options};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Runs stages and times each; the times of stages that run again are added up.
pub struct StageClock<'a> {
    options: &'a Options,
    /// Seconds by stage, in the order of their first runs.
    pub seconds: Vec<(String, f64)>,
    /// What tuning may take.
    pub budget: Rc<Budget>,
}

impl<'a> StageClock<'a> {
    /// A clock of a compilation.
    pub fn new(options: &'a Options) -> Self {
        Self { options, seconds: Vec::new(), budget: Rc::new(Budget::new(options)) }
    }

    /// Runs a stage.
    ///
    /// # Errors
    /// Those of the stage, and if the work is cancelled.
    pub fn run<T>(&mut self, name: &str, stage: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.options.cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let start = Instant::now();
        self.options.progress.begin(name, 0);
        let result = stage();
        self.options.progress.end();
        let seconds = start.elapsed().as_secs_f64();
        match self.seconds.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += seconds,
            None => self.seconds.push((name.to_owned(), seconds)),
        }
        result
    }
}
