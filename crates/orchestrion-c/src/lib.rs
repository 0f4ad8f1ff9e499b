//! The C interface. `include/orchestrion.h` is generated from these files, and their comments are what C programmers read there;
//! `docs/c.md` is the introduction.
//!
//! It has handles for what the Rust API has as values, and turns addresses into references at its border: nothing else is unsafe.
//! A call that goes wrong gives a status, the text of which is kept per thread; panics end at the border too.

// Names are those of the header.
#![allow(non_camel_case_types)]
// Who calls is not Rust: what comes in is addresses.
#![allow(unsafe_code)]
// The header states once what its callers promise.
#![allow(clippy::missing_safety_doc)]

mod device;
mod executable;
mod options;
mod run;
mod status;
mod tensor;

use std::ffi::c_char;

/// The version of this interface that the header describes. It grows if a program has to be compiled again.
pub const ORC_ABI_VERSION: u32 = 1;

/// The version of the library, for example "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn orc_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// ORC_ABI_VERSION of the library that is loaded: a program whose header has another one must not use it.
#[unsafe(no_mangle)]
pub extern "C" fn orc_abi_version() -> u32 {
    ORC_ABI_VERSION
}
