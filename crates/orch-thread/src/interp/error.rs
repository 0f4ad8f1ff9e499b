//! Why the interpreter stops a run.

use orch_ir::DType;

/// Why a run stopped.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ExecError {
    /// Wrong number of global buffers.
    #[error("the program has {expected} global buffers, {given} were given")]
    BufferCount {
        /// Global buffers of the program.
        expected: usize,
        /// Buffers given.
        given: usize,
    },
    /// A scratch buffer stands before a global one.
    #[error("buffer {buffer} is out of order: global buffers come before scratch")]
    BufferOrder {
        /// The buffer's name.
        buffer: String,
    },
    /// A global buffer of another type or size than declared.
    #[error("buffer {buffer} holds {} x {}, but {} x {} were given", expected.1, expected.0, given.1, given.0)]
    BufferType {
        /// The buffer's name.
        buffer: String,
        /// Declared type and number of elements.
        expected: (DType, usize),
        /// Given type and number of elements.
        given: (DType, usize),
    },
    /// An access beyond the end or before the start of a buffer.
    #[error("task {task}: {buffer}[{offset}] is out of bounds, the buffer has {elems} elements")]
    OutOfBounds {
        /// The buffer's name.
        buffer: String,
        /// Its number of elements.
        elems: usize,
        /// The element accessed.
        offset: i64,
        /// The task.
        task: usize,
    },
    /// An access that is in bounds but forbidden.
    #[error("task {task}: {buffer}[{index}] is {problem}")]
    Access {
        /// The buffer's name.
        buffer: String,
        /// The element.
        index: usize,
        /// The task.
        task: usize,
        /// What is wrong.
        problem: AccessProblem,
    },
    /// A variable's value contradicts what is declared of it.
    #[error("task {task}: {name} = {value}, but it is declared {declared}")]
    VarRange {
        /// The variable's name.
        name: String,
        /// Its value.
        value: i64,
        /// The declaration.
        declared: String,
        /// The task.
        task: usize,
    },
    /// A variable is read before it has a value.
    #[error("{name} is read before it has a value")]
    Unbound {
        /// The variable's name.
        name: String,
    },
    /// A floor division by zero or less.
    #[error("floor division of {dividend} by {divisor}: the divisor must be positive")]
    FloorDivisor {
        /// The dividend.
        dividend: i128,
        /// The divisor.
        divisor: i128,
    },
    /// An expression that thread programs do not have, or on a type for which it is not defined.
    #[error("{node} is not defined here")]
    Undefined {
        /// The node.
        node: String,
    },
    /// Threads of a CTA do not reach a common statement together, or break a rule of such statements.
    #[error("{problem}")]
    Divergence {
        /// The statement and the rule.
        problem: String,
    },
    /// The program is still running.
    #[error("stopped after {limit} statements")]
    Limit {
        /// [`ExecOptions::max_statements`](super::ExecOptions::max_statements).
        limit: u64,
    },
}

impl ExecError {
    /// An [`ExecError::Divergence`].
    pub(crate) fn divergence(problem: &str) -> Self {
        ExecError::Divergence { problem: problem.to_owned() }
    }
}

/// What is wrong with an access that is in bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessProblem {
    /// A read of an element that the task has not written, of an output or of scratch.
    #[error("read before it is written")]
    Uninitialised,
    /// A write to a buffer that is only read.
    #[error("written, but the buffer is an input")]
    StoreToInput,
    /// Another task, or thread of the CTA, also accessed the element, and one of the accesses is a write.
    #[error("also accessed by task {other}, with at least one write: tasks may run at the same time")]
    Race {
        /// The other task or thread.
        other: usize,
    },
    /// An access to shared memory that another buffer owns at that time (before or after `reuse_shared`).
    #[error("in shared memory that another buffer owns at that time")]
    Reused,
    /// The counter of a grid barrier that is neither 0 nor what an earlier barrier has left.
    #[error("no counter of a grid barrier: neither 0 nor what an earlier barrier has left")]
    NotCleared,
    /// An access to shared memory of a CTA that is not in the cluster.
    #[error("at a rank that the cluster does not have")]
    NoSuchRank,
}
