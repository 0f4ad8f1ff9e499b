//! Buffers of thread programs: arguments, shared memory of a CTA, scratch of a thread.

use orch_compute::ArgRole;
use orch_ir::DType;

/// Memory that a program addresses by element offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Readable name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub elems: usize,
    /// Where it lives.
    pub scope: Scope,
}

/// Where a buffer lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// A kernel argument that is read.
    Input,
    /// A kernel argument that is read and never changes: no kernel of the model writes it.
    Constant,
    /// A kernel argument that is written (and read back only by the same task).
    Output,
    /// A kernel argument that holds a value, of which some elements are written; an element is accessed by one task only.
    Updated,
    /// Shared memory of a CTA, at least 128-byte aligned, undefined when the CTA starts.
    Shared,
    /// The same shared memory, reused: these buffers may be accessed after [`ReuseShared`](crate::CtaStmt::ReuseShared), the
    /// [`Shared`](Self::Shared) ones before it.
    ReusedShared,
    /// Scratch of one worker, or of one thread of a CTA; 64-byte aligned.
    Scratch,
}

impl Buffer {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.elems * self.dtype.size_bytes()
    }
}

/// The scope of an argument of a block program.
impl From<ArgRole> for Scope {
    fn from(role: ArgRole) -> Self {
        match role {
            ArgRole::Input => Scope::Input,
            ArgRole::Constant => Scope::Constant,
            ArgRole::Output => Scope::Output,
            ArgRole::Updated => Scope::Updated,
        }
    }
}

impl Scope {
    /// True for arguments of the kernel.
    pub fn is_global(self) -> bool {
        self.is_read_only() || self.is_written()
    }

    /// True for arguments of the kernel that are only read.
    pub fn is_read_only(self) -> bool {
        matches!(self, Scope::Input | Scope::Constant)
    }

    /// True for arguments of the kernel that are written.
    pub fn is_written(self) -> bool {
        matches!(self, Scope::Output | Scope::Updated)
    }

    /// True for shared memory of a CTA.
    pub fn is_shared(self) -> bool {
        matches!(self, Scope::Shared | Scope::ReusedShared)
    }
}
