//! How calls end: a status, a text per thread, and no panic beyond the border.

use orchestrion::Error;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. The numbers are exit codes of the `orchestrion` command.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum orc_status {
    /// It succeeded.
    ORC_OK = 0,
    /// Something given is wrong: a model, a file, or a tensor that is not as the model needs it.
    ORC_INVALID = 1,
    /// The call is wrong: NULL, an unknown option, tensors that overlap.
    ORC_USAGE = 2,
    /// The model needs what is not supported; the text names every such place.
    ORC_UNSUPPORTED = 3,
    /// The machine lacks something: a compiler, a driver, a GPU, memory.
    ORC_MACHINE = 4,
    /// A bug in Orchestrion.
    ORC_INTERNAL = 70,
    /// `orc_options_cancel` stopped it.
    ORC_INTERRUPTED = 130,
}

/// A status other than success, and why.
#[derive(Debug)]
pub struct Failure {
    status: orc_status,
    text: String,
}

impl Failure {
    /// The call is wrong.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { status: orc_status::ORC_USAGE, text: text.into() }
    }

    /// What is given does not fit.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { status: orc_status::ORC_INVALID, text: text.into() }
    }

    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let literal = payload.downcast_ref::<&str>().copied();
        let text = literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Error::Internal(format!("a panic: {}", text.unwrap_or("without a text"))).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Model(_) | Error::Input(_) | Error::File { .. } => orc_status::ORC_INVALID,
            Error::Unsupported(_) => orc_status::ORC_UNSUPPORTED,
            Error::Environment(_) => orc_status::ORC_MACHINE,
            Error::Internal(_) => orc_status::ORC_INTERNAL,
            Error::Interrupted => orc_status::ORC_INTERRUPTED,
        };
        Self { status, text: error.to_string() }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why the last call on this thread that failed did so; "" if none has. It lives until the next call on this thread that fails, or
/// the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn orc_last_error() -> *const c_char {
    LAST_ERROR.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Does the work of a call.
pub fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> orc_status {
    // What a panic leaves half done is either dropped or guarded by a lock that remembers it.
    let result = catch_unwind(AssertUnwindSafe(work));
    let Err(failure) = result.unwrap_or_else(|payload| Err(Failure::of_panic(&*payload))) else {
        return orc_status::ORC_OK;
    };
    let text = CString::new(failure.text.replace('\0', "\\0")).unwrap_or_default();
    // A thread that ends has no place for it any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    failure.status
}

/// Drops what an address owns, if it owns something.
///
/// # Safety
/// The address must be NULL or from [`give`], and is not used again.
pub unsafe fn destroy<T>(address: *mut T) {
    if address.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let owned = unsafe { Box::from_raw(address) };
    guarded(|| {
        drop(owned);
        Ok(())
    });
}

/// Makes what `make` returns the caller's, at the address in `out`, which is NULL if that fails.
///
/// # Safety
/// `out` must be NULL or writable.
pub unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> orc_status {
    guarded(|| {
        if out.is_null() {
            return Err(Failure::usage("there is no place for the result: `out` is NULL"));
        }
        // SAFETY: it is not NULL, so it is writable.
        unsafe { out.write(std::ptr::null_mut()) };
        let made = Box::into_raw(Box::new(make()?));
        // SAFETY: as above.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// What lies at an address.
///
/// # Safety
/// The address must be NULL, or of a value that lives, and is written by nobody else, for `'a`.
pub unsafe fn at<'a, T>(address: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { address.as_ref() }.ok_or_else(|| Failure::usage(format!("{what} is NULL")))
}

/// The text at an address.
///
/// # Safety
/// The address must be NULL, or of bytes that end with a zero and stay as they are for `'a`.
pub unsafe fn text_at<'a>(address: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if address.is_null() {
        return Err(Failure::usage(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(address) })
}

/// The elements from an address on.
///
/// # Safety
/// The address must be NULL, or of so many elements that live, and are written by nobody else, for `'a`.
pub unsafe fn list_at<'a, T>(address: *const T, len: usize, what: impl Display) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if address.is_null() {
        return Err(Failure::usage(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(address, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the library's own text.
        unsafe { CStr::from_ptr(orc_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panics_end_here() {
        let status = guarded(|| panic!("on purpose {}", 1));
        assert_eq!(status, orc_status::ORC_INTERNAL);
        assert!(last_error().contains("a panic: on purpose 1"), "{}", last_error());
        assert_eq!(guarded(|| Err(Failure::usage("a\0b"))), orc_status::ORC_USAGE);
        assert_eq!(last_error(), "a\\0b");
        std::thread::spawn(|| assert_eq!(last_error(), "")).join().unwrap();
    }

    #[test]
    fn statuses_are_exit_codes() {
        let text = String::new;
        let errors = [
            Error::Model(text()),
            Error::Unsupported(text()),
            Error::Input(text()),
            Error::File { path: "a".into(), source: std::io::ErrorKind::NotFound.into() },
            Error::Environment(text()),
            Error::Internal(text()),
            Error::Interrupted,
        ];
        for error in errors {
            let code = i32::from(error.exit_code());
            assert_eq!(Failure::from(error).status as i32, code);
        }
    }
}
