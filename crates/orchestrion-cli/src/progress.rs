//! Progress bars on the terminal; nothing where standard error is not one.

use indicatif::{ProgressBar, ProgressStyle};
use orchestrion::{Progress, Silent};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

/// Progress bars, or silence.
pub fn bars(quiet: bool) -> Arc<dyn Progress> {
    if quiet || !std::io::stderr().is_terminal() { Arc::new(Silent) } else { Arc::new(Bars::default()) }
}

#[derive(Default)]
struct Bars {
    open: Mutex<Vec<ProgressBar>>,
}

impl Progress for Bars {
    fn begin(&self, stage: &str, total: usize) {
        let bar = if total > 0 { ProgressBar::new(total as u64) } else { ProgressBar::new_spinner() };
        let template = if total > 0 {
            "{prefix:16} {wide_bar} {pos}/{len} {eta}"
        } else {
            "{prefix:16} {spinner} {msg}"
        };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_prefix(stage.to_owned());
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(bar);
    }

    fn advance(&self, done: usize) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).last() {
            bar.set_position(done as u64);
        }
    }

    fn note(&self, text: &str) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).last() {
            bar.set_message(text.to_owned());
        }
    }

    fn end(&self) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            bar.finish_and_clear();
        }
    }
}
