//! Boxes in the interpreter: what is copied by the copy engine, and the slots that count it.

use crate::expr::ExprId;
use crate::thread::ThreadProgram;
use crate::thread_interp::{ExecError, Machine};
use crate::thread_scalar::Number;
use crate::thread_team::{Spot, TILE_ALIGNMENT, TILE_LINE, swizzled};
use crate::thread_team_interp::{Copy, divergence};
use crate::thread_view::ViewId;

/// A counter of boxes that arrive.
pub(crate) struct Slot {
    /// The turn that has begun.
    turn: i64,
    /// Boxes that the turn waits for and that have not been started.
    missing: usize,
    /// Boxes of the turn.
    copies: Vec<Copy>,
}

impl Slot {
    /// The slots of a task of a program.
    pub(crate) fn all(program: &ThreadProgram) -> Vec<Slot> {
        let slot = |_| Slot { turn: 0, missing: program.slots.boxes, copies: Vec::new() };
        (0..program.slots.count).map(slot).collect()
    }

    /// Counts a box.
    pub(crate) fn add(&mut self, copy: Copy, boxes: usize) -> Result<(), ExecError> {
        if self.copies.len() == boxes {
            return Err(divergence("a slot is given a box of its next turn before this one was awaited"));
        }
        self.missing -= 1;
        self.copies.push(copy);
        Ok(())
    }

    /// Ends a turn, whose boxes arrive.
    pub(crate) fn end_turn(&mut self, turn: i64) -> Result<Vec<Copy>, ExecError> {
        if turn != self.turn {
            return Err(divergence(&format!("turn {turn} of a slot is awaited in its turn {}", self.turn)));
        }
        if self.missing > 0 {
            return Err(divergence("a slot is awaited to which not all boxes are under way"));
        }
        let copies = std::mem::take(&mut self.copies);
        (self.turn, self.missing) = (turn + 1, copies.len());
        Ok(copies)
    }
}

/// The slot of this number.
pub(crate) fn slot_at(slots: &mut [Slot], number: i64) -> Result<&mut Slot, ExecError> {
    let count = slots.len();
    let slot = usize::try_from(number).ok().and_then(|number| slots.get_mut(number));
    slot.ok_or_else(|| divergence(&format!("there is no slot {number}, there are {count}")))
}

impl Machine<'_> {
    /// Starts copying a box.
    pub(crate) fn start_box(&mut self, to: Spot, view: ViewId, at: &[ExprId]) -> Result<Copy, ExecError> {
        let offset = self.eval_index(to.offset)?;
        if offset % TILE_ALIGNMENT as i64 != 0 {
            return Err(divergence("a box does not start at a multiple of 1024 bytes"));
        }
        let first: Result<Vec<i64>, ExecError> = at.iter().map(|&at| self.eval_index(at)).collect();
        let (first, view) = (first?, &self.program.views[view.index()]);
        let mut values = vec![Number::Float(0.0); view.box_elems()];
        for line in 0..view.lines {
            for within in 0..TILE_LINE {
                let mut place = first.clone();
                place[0] += within as i64;
                place[1] += line as i64;
                if let Some(from) = view.place(&place) {
                    self.report.loads += 1;
                    values[swizzled(view.lines, line, within)] = self.memory.load(view.buffer, from)?;
                }
            }
        }
        for at in offset..offset + values.len() as i64 {
            self.memory.start_copy(to.buffer, at)?;
        }
        Ok(Copy { buffer: to.buffer, offset, values })
    }

    /// Writes boxes that have arrived.
    pub(crate) fn finish_boxes(&mut self, copies: Vec<Copy>) -> Result<(), ExecError> {
        for Copy { buffer, offset, values } in copies {
            for (at, value) in (offset..).zip(values) {
                self.memory.finish_box(buffer, at, value)?;
            }
        }
        Ok(())
    }
}
