//! What the command says about models, inputs, artifacts and machines that it cannot use.
//!
//! Every case is one call of the built command. The transcripts beside this file (`models.txt` and others) hold for each
//! the command line, the exit code and all that it prints; `ORCH_BLESS=1` in the environment rewrites them. Beyond that
//! no call may panic, be killed by a signal, or end as an internal error (but those of [`devices`] that are about just
//! that), and none that fails may leave a file behind. [`tuning`] and [`libraries`] are about right input: they need
//! the devices of [`devices`]; [`files`] looks at what is written, [`trust`] at whose code is run and at calls that are stopped, [`edits`]
//! at files that were changed at random.

mod artifacts;
mod devices;
mod edits;
mod files;
mod inputs;
mod interrupt;
mod libraries;
mod machine;
mod models;
mod support;
mod trust;
mod tuning;
