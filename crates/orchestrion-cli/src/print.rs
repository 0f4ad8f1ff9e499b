//! Printing that ends quietly when the reader has gone, as in `orchestrion explain model.onnx | head`.

use orchestrion::message;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes a line to standard output. Ends the process if that is not possible: with success if the reader has gone,
/// with an error otherwise (a full disk).
pub fn line(text: Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        error_line(format_args!("standard output: {error}"));
        std::process::exit(1);
    }
}

/// Writes an error to standard error, if anything can be written there.
pub fn error_line(text: Arguments<'_>) {
    // Where standard error is closed or full, the exit code still tells.
    let _ = writeln!(std::io::stderr(), "error: {}", message::block(&text.to_string()));
}

/// Writes what is no error, but no result either, to standard error, if anything can be written there.
pub fn note_line(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "note: {}", message::block(&text.to_string()));
}

/// As `println!`, but ends the process quietly when nobody reads on.
macro_rules! outln {
    ($($text:tt)*) => { $crate::print::line(format_args!($($text)*)) };
}

pub(crate) use outln;
