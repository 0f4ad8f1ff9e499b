//! Things that a vendor's library has made for its caller, each destroyed when it is not used any more.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Something that a library has made, and the function that destroys it.
pub(in crate::cuda) struct Object {
    raw: *mut c_void,
    destroy: Destroy,
}

/// A library's function that destroys what it has made. No status of it can be acted upon.
pub(in crate::cuda) type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

// SAFETY: descriptions of work are plain data, which calls only read.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// What `create` makes.
    ///
    /// # Errors
    /// What `create` returns.
    ///
    /// # Safety
    /// If `create` returns no error it has made something that `destroy` destroys and that any thread may use; the library
    /// stays loaded.
    pub(in crate::cuda) unsafe fn new<E>(
        destroy: Destroy,
        create: impl FnOnce(*mut *mut c_void) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut raw = null_mut();
        create(&raw mut raw)?;
        Ok(Self { raw, destroy })
    }

    /// As the library knows it.
    pub(in crate::cuda) fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: it was made for this function, by the promise of `new`, and is not used after this.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}
