//! Views: arguments of a kernel as arrays, boxes of which the copy engine brings to shared memory (PTX's tensor maps).
//!
//! A program declares its views, and slots: counters of boxes that arrive. One statement of the whole team starts
//! the copy of a box; when as many boxes as a slot waits for have arrived, its turn ends and the next one begins. What
//! has arrived may be read by the threads that have awaited the turn, without a barrier.
//!
//! ```text
//!   team 128 threads thread: i64 [0..=127], clusters of 1
//!   input x: f16[98304]
//!   shared s: f16[8192]
//!   view rows: x[0], extents 768 128, strides 768, 64 lines
//!   slots 2 of 1 boxes
//! {
//!   copy_box s[0], rows[64, 0], 0
//!   await_boxes 0, 0
//! }
//! ```
//!
//! A box is a [swizzled](crate::cta::swizzled) tile of a panel: [`TILE_LINE`] neighbouring elements of the first
//! extent, from the first coordinate on, of so many lines, which are neighbours in the second extent, at one place of all
//! others. Elements outside of the view are zero.

use crate::cta::TILE_LINE;
use crate::program::{Buffer, ThreadProgram};
use orch_compute::expr::BufferId;

/// A view of a thread program, a position in [`ThreadProgram::views`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ViewId(pub u32);

impl ViewId {
    /// The position in the program's table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A read-only argument as an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Readable name.
    pub name: String,
    /// The argument.
    pub buffer: BufferId,
    /// Where its first element is.
    pub offset: usize,
    /// Its extents, that of neighbouring elements first: 2 to [`MAX_VIEW_RANK`].
    pub extents: Vec<usize>,
    /// Elements from one place of each extent but the first to the next.
    pub strides: Vec<usize>,
    /// Lines of a box.
    pub lines: usize,
}

/// Counters of boxes that arrive, and of threads that make room for others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Slots {
    /// Their number.
    pub count: usize,
    /// Boxes that each waits for.
    pub boxes: usize,
    /// Gates, which wait for all threads of the task.
    pub gates: usize,
}

impl Slots {
    /// Bytes of shared memory that slots and gates take.
    pub fn bytes(self) -> usize {
        (self.count + self.gates) * SLOT_BYTES
    }
}

/// Most extents of a view.
pub const MAX_VIEW_RANK: usize = 5;
/// Most lines of a box.
pub const MAX_BOX_LINES: usize = 256;
/// Bytes that views start and have their strides at a multiple of.
pub const VIEW_ALIGNMENT: usize = 16;
/// Bytes of a slot, or a gate, in shared memory.
pub const SLOT_BYTES: usize = 8;
/// Most extent of a view, and most bytes of a stride, of which the hardware keeps 40 bits.
const MAX_EXTENT: usize = 1 << 32;
const MAX_STRIDE_BYTES: usize = 1 << 40;

impl View {
    /// Elements of a box.
    pub fn box_elems(&self) -> usize {
        self.lines * TILE_LINE
    }

    /// The place in the buffer of an element of the view; `None` outside of it.
    pub fn place(&self, at: &[i64]) -> Option<i64> {
        let mut place = self.offset as i64;
        let strides = std::iter::once(1).chain(self.strides.iter().copied());
        for ((&at, &extent), stride) in at.iter().zip(&self.extents).zip(strides) {
            if !(0..extent as i64).contains(&at) {
                return None;
            }
            place += at * stride as i64;
        }
        Some(place)
    }

    /// True if the hardware takes it.
    pub fn is_taken(&self, buffer: &Buffer) -> bool {
        self.problem(buffer).is_none()
    }

    /// What keeps it from being the hardware's.
    fn problem(&self, buffer: &Buffer) -> Option<String> {
        let size = buffer.dtype.size_bytes();
        if !buffer.scope.is_read_only() || TILE_LINE * size != 128 {
            return Some("views are of read-only arguments of 16-bit elements".to_owned());
        }
        let is_ranked = (2..=MAX_VIEW_RANK).contains(&self.extents.len());
        if !is_ranked || self.strides.len() + 1 != self.extents.len() {
            return Some(format!(
                "{} extents and {} strides: 2 to {MAX_VIEW_RANK}, and one less, are expected",
                self.extents.len(),
                self.strides.len()
            ));
        }
        let is_extent = |&extent: &usize| (1..=MAX_EXTENT).contains(&extent);
        if !self.extents.iter().all(is_extent) || !(1..=MAX_BOX_LINES).contains(&self.lines) {
            return Some(format!(
                "extents {:?} in boxes of {} lines: 1 to {MAX_BOX_LINES} are expected",
                self.extents, self.lines
            ));
        }
        let is_place = |&elems: &usize| (elems * size).is_multiple_of(VIEW_ALIGNMENT);
        let is_stride = |elems: &usize| is_place(elems) && elems * size < MAX_STRIDE_BYTES;
        if !is_place(&self.offset) || !self.strides.iter().all(is_stride) {
            return Some(format!(
                "it does not start, or has strides, at multiples of {VIEW_ALIGNMENT} bytes"
            ));
        }
        let last: Vec<i64> = self.extents.iter().map(|&extent| extent as i64 - 1).collect();
        let is_inside = self.place(&last).is_some_and(|last| (last as usize) < buffer.elems);
        (!is_inside).then(|| format!("it ends outside of the {} elements of {}", buffer.elems, buffer.name))
    }
}

/// What keeps the views and slots of a program from being hardware's.
pub(crate) fn check_views(program: &ThreadProgram) -> Vec<String> {
    let mut problems = Vec::new();
    for view in &program.views {
        let problem = match program.buffers.get(view.buffer.index()) {
            Some(buffer) => view.problem(buffer),
            None => Some(format!("there is no buffer {}", view.buffer)),
        };
        problems.extend(problem.map(|problem| format!("view {}: {problem}", view.name)));
    }
    if (program.slots.count == 0) != (program.slots.boxes == 0) {
        problems.push(format!("{} slots of {} boxes", program.slots.count, program.slots.boxes));
    }
    if program.slots.count > 0 && program.team.is_none() {
        problems.push("slots without a team".to_owned());
    }
    problems
}
