//! Why vendor libraries of the options are not called.

use crate::Options;
use crate::plan::backend::{Meter, TargetInfo};

/// Why libraries of [`Options::libraries`] have no effect; none if they have.
pub fn notes(info: &TargetInfo, meter: &dyn Meter, options: &Options) -> Vec<String> {
    if options.libraries.is_empty() {
        return Vec::new();
    }
    if !info.is_tuned(options) {
        return vec![
            "libraries are called where measuring finds them faster, and nothing was measured: tune for this machine's GPU \
             (--tune --target cuda), or plan by the times of another one (--records)"
                .to_owned(),
        ];
    }
    // Records name the calls of another machine: no library is needed here.
    if options.records.is_some() {
        return Vec::new();
    }
    let mut reasons: Vec<String> =
        options.libraries.iter().filter_map(|&library| meter.library(library).err()).collect();
    reasons.dedup();
    reasons
}
