//! Buffers of the thread-program interpreter: element storage with bounds, initialisation and race checks.

use crate::expr::BufferId;
use crate::thread::{Buffer, Scope, ThreadProgram};
use crate::thread_interp::ExecError;
use crate::thread_scalar::Number;
use orch_ir::{DType, Shape, Tensor, TensorSizeError};

/// The elements of one global buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct BufferData {
    /// Element type.
    pub dtype: DType,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

impl BufferData {
    /// A buffer of zeros.
    pub fn zeros(dtype: DType, elems: usize) -> Self {
        Self { dtype, bytes: vec![0; elems * dtype.size_bytes()] }
    }

    /// The elements of a tensor, in row-major order.
    pub fn from_tensor(tensor: &Tensor) -> Self {
        Self { dtype: tensor.dtype(), bytes: tensor.bytes().to_vec() }
    }

    /// The elements as a tensor.
    ///
    /// # Errors
    /// If `shape` has another number of elements.
    pub fn to_tensor(&self, shape: impl Into<Shape>) -> Result<Tensor, TensorSizeError> {
        Tensor::from_bytes(self.dtype, shape.into(), self.bytes.clone().into())
    }

    /// The number of elements.
    pub fn elems(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes()
    }

    fn get(&self, index: usize) -> Number {
        let size = self.dtype.size_bytes();
        let mut bits = [0u8; 8];
        bits[..size].copy_from_slice(&self.bytes[index * size..][..size]);
        Number::from_bits(self.dtype, u64::from_le_bytes(bits))
    }

    fn set(&mut self, index: usize, value: Number) {
        let size = self.dtype.size_bytes();
        let bits = value.to_bits(self.dtype).to_le_bytes();
        self.bytes[index * size..][..size].copy_from_slice(&bits[..size]);
    }
}

/// All buffers of a running program, with what each task did to each element.
pub(crate) struct Memory<'a> {
    program: &'a ThreadProgram,
    data: Vec<BufferData>,
    /// Per element of an output or scratch buffer: 0, or 1 + the task that wrote it.
    writer: Vec<Vec<u32>>,
    /// Per element of an output buffer: 0, or 1 + the task that read it.
    reader: Vec<Vec<u32>>,
    task: u32,
}

impl<'a> Memory<'a> {
    /// Takes the contents of global buffers; scratch starts undefined.
    pub(crate) fn new(program: &'a ThreadProgram, globals: &[BufferData]) -> Result<Self, ExecError> {
        let expected = program.buffers.iter().filter(|b| b.scope != Scope::Scratch).count();
        if expected != globals.len() {
            return Err(ExecError::BufferCount { expected, given: globals.len() });
        }
        let mut data = Vec::new();
        for (index, buffer) in program.buffers.iter().enumerate() {
            match globals.get(index) {
                Some(global) if buffer.scope != Scope::Scratch => {
                    check_global(buffer, global)?;
                    data.push(global.clone());
                }
                None if buffer.scope == Scope::Scratch => {
                    data.push(BufferData::zeros(buffer.dtype, buffer.elems));
                }
                _ => return Err(ExecError::BufferOrder { buffer: buffer.name.clone() }),
            }
        }
        let table = |tracked: &dyn Fn(Scope) -> bool| {
            (program.buffers.iter()).map(|b| vec![0; if tracked(b.scope) { b.elems } else { 0 }]).collect()
        };
        let writer = table(&|scope| scope != Scope::Input);
        let reader = table(&|scope| scope == Scope::Output);
        Ok(Self { program, data, writer, reader, task: 0 })
    }

    /// Starts a task: scratch is undefined again.
    pub(crate) fn start_task(&mut self, task: u32) {
        self.task = task;
        for (buffer, writer) in self.program.buffers.iter().zip(&mut self.writer) {
            if buffer.scope == Scope::Scratch {
                writer.fill(0);
            }
        }
    }

    /// The global buffers after the run.
    pub(crate) fn into_globals(mut self) -> Vec<BufferData> {
        self.data.truncate(self.program.buffers.iter().filter(|b| b.scope != Scope::Scratch).count());
        self.data
    }

    /// For each global buffer, how many elements of an output no task has written.
    pub(crate) fn unwritten(&self) -> Vec<usize> {
        (self.program.buffers.iter().zip(&self.writer))
            .filter(|(buffer, _)| buffer.scope != Scope::Scratch)
            .map(|(_, writer)| writer.iter().filter(|&&w| w == 0).count())
            .collect()
    }

    /// Reads one element.
    pub(crate) fn load(&mut self, id: BufferId, offset: i64) -> Result<Number, ExecError> {
        let index = self.position(id, offset)?;
        let me = self.task + 1;
        let buffer = self.program.buffer(id);
        if buffer.scope != Scope::Input {
            match self.writer[id.index()][index] {
                0 => return Err(self.error_at(id, index, AccessProblem::Uninitialised)),
                writer if writer != me => return Err(self.race(id, index, writer - 1)),
                _ => {}
            }
        }
        if buffer.scope == Scope::Output {
            self.reader[id.index()][index] = me;
        }
        Ok(self.data[id.index()].get(index))
    }

    /// Writes one element.
    pub(crate) fn store(&mut self, id: BufferId, offset: i64, value: Number) -> Result<(), ExecError> {
        let index = self.position(id, offset)?;
        let me = self.task + 1;
        match self.program.buffer(id).scope {
            Scope::Input => return Err(self.error_at(id, index, AccessProblem::StoreToInput)),
            Scope::Output => {
                for other in [self.writer[id.index()][index], self.reader[id.index()][index]] {
                    if other != 0 && other != me {
                        return Err(self.race(id, index, other - 1));
                    }
                }
            }
            Scope::Scratch => {}
        }
        self.writer[id.index()][index] = me;
        self.data[id.index()].set(index, value);
        Ok(())
    }

    fn position(&self, id: BufferId, offset: i64) -> Result<usize, ExecError> {
        let buffer = self.program.buffer(id);
        usize::try_from(offset).ok().filter(|&index| index < buffer.elems).ok_or_else(|| {
            ExecError::OutOfBounds {
                buffer: buffer.name.clone(),
                elems: buffer.elems,
                offset,
                task: self.task as usize,
            }
        })
    }

    fn race(&self, id: BufferId, index: usize, other: u32) -> ExecError {
        self.error_at(id, index, AccessProblem::Race { other: other as usize })
    }

    fn error_at(&self, id: BufferId, index: usize, problem: AccessProblem) -> ExecError {
        let buffer = self.program.buffer(id).name.clone();
        ExecError::Access { buffer, index, task: self.task as usize, problem }
    }
}

fn check_global(buffer: &Buffer, global: &BufferData) -> Result<(), ExecError> {
    if global.dtype == buffer.dtype && global.bytes.len() == buffer.elems * buffer.dtype.size_bytes() {
        return Ok(());
    }
    Err(ExecError::BufferType {
        buffer: buffer.name.clone(),
        expected: (buffer.dtype, buffer.elems),
        given: (global.dtype, global.elems()),
    })
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
    /// Another task also accessed the element, and one of the accesses is a write.
    #[error("also accessed by task {other}, with at least one write: tasks may run at the same time")]
    Race {
        /// The other task.
        other: usize,
    },
}
