//! Printing that ends quietly when the reader has gone, as in `orchestrion explain model.onnx | head`.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line to standard output.
pub fn line(text: Arguments<'_>) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// As `println!`, but ends the process quietly when nobody reads on.
macro_rules! outln {
    ($($text:tt)*) => { $crate::print::line(format_args!($($text)*)) };
}

pub(crate) use outln;
