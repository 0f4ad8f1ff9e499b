//! Extents of tiles: at most `full`, and as long as their block and iteration leave.

use super::CpuBlockEmitter;
use crate::lower::CannotLower;
use crate::tiling::part_size;
use orch_compute::ExprId;
use orch_thread::Stmt;

/// How long a tile is along one dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The length in the first block and iteration, which is the largest.
    pub full: usize,
    /// The length in any.
    pub len: Len,
}

/// A length as a function of block and iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Len {
    /// The same everywhere.
    Fixed(usize),
    /// What a partition with a remainder leaves.
    Part(Part),
    /// A multiple.
    Times(Box<Len>, usize),
    /// A sum.
    Sum(Vec<Len>),
}

/// A dimension of a tensor, partitioned by the grid and then by the loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The extent of the tensor.
    pub extent: usize,
    /// The dimension of the grid that partitions it, and the blocks along that.
    pub grid: Option<(usize, usize)>,
    /// The number of iterations that partition the block's part.
    pub iterations: Option<usize>,
}

impl Extent {
    /// An extent without remainders.
    pub fn fixed(full: usize) -> Extent {
        Extent { full, len: Len::Fixed(full) }
    }

    /// True for a single element, whatever the block.
    pub fn is_one(&self) -> bool {
        self.len == Len::Fixed(1)
    }

    /// Each element several times.
    pub fn times(&self, times: usize) -> Extent {
        let len = match &self.len {
            Len::Fixed(len) => Len::Fixed(len * times),
            len => Len::Times(Box::new(len.clone()), times),
        };
        Extent { full: self.full * times, len }
    }

    /// One after the other.
    pub fn sum(extents: &[Extent]) -> Extent {
        let full = extents.iter().map(|extent| extent.full).sum();
        let fixed = extents.iter().all(|extent| matches!(extent.len, Len::Fixed(_)));
        let lens = || extents.iter().map(|extent| extent.len.clone()).collect();
        Extent { full, len: if fixed { Len::Fixed(full) } else { Len::Sum(lens()) } }
    }

    /// The common extent of two operands, one of which may be repeated.
    pub fn joint(&self, other: &Extent) -> Result<Extent, CannotLower> {
        match (self.is_one(), other.is_one()) {
            (_, true) => Ok(self.clone()),
            (true, false) => Ok(other.clone()),
            (false, false) if self == other => Ok(self.clone()),
            (false, false) => {
                Err(CannotLower("operands whose extents differ in some blocks or iterations".into()))
            }
        }
    }
}

impl Part {
    /// Sizes of a full part: of a block, and of one of its iterations.
    fn sizes(&self) -> (usize, usize) {
        let block = part_size(self.extent, self.grid.map_or(1, |(_, blocks)| blocks));
        (block, part_size(block, self.iterations.unwrap_or(1)))
    }

    /// The extent of tiles.
    pub fn tile(&self) -> Extent {
        let (block, full) = self.sizes();
        let is_even = block * self.grid.map_or(1, |(_, blocks)| blocks) == self.extent
            && full * self.iterations.unwrap_or(1) == block;
        Extent { full, len: if is_even { Len::Fixed(full) } else { Len::Part(self.clone()) } }
    }
}

impl CpuBlockEmitter<'_> {
    /// Where a part starts, and its length.
    pub fn span(&mut self, part: &Part) -> (ExprId, ExprId) {
        match self.spans.iter().find(|(known, ..)| known == part) {
            Some(&(_, start, len)) => (start, len),
            None => self.span_of(part),
        }
    }

    /// Names the starts and lengths of parts with remainders: those that depend on the iteration, or the others.
    pub fn bind_spans(&mut self, in_loop: bool, body: &mut Vec<Stmt>) {
        let parts: Vec<Part> =
            self.plan.parts().filter(|part| part.iterations.is_some() == in_loop).collect();
        for part in parts {
            let is_known = self.spans.iter().any(|(known, ..)| *known == part);
            if is_known || matches!(part.tile().len, Len::Fixed(_)) {
                continue;
            }
            let (start, len) = self.span_of(&part);
            let start = self.bind("start", start, part.extent + 1, body);
            let len = self.bind("len", len, part.sizes().1 + 1, body);
            self.spans.push((part, start, len));
        }
    }

    fn span_of(&mut self, part: &Part) -> (ExprId, ExprId) {
        let (block, size) = part.sizes();
        let extent = self.program.exprs.index(part.extent as i64);
        let mut span = (self.program.exprs.index(0), extent);
        if let Some((axis, blocks)) = part.grid {
            span = self.nth_part(span, self.grid[axis], block, block * blocks == part.extent);
        }
        if let Some(iterations) = part.iterations {
            let is_even = matches!(part.tile().len, Len::Fixed(_));
            let is_even =
                is_even || (size * iterations == block && self.program.exprs.as_int(span.1).is_some());
            span = self.nth_part(span, self.iteration, size, is_even);
        }
        span
    }

    /// The part with a number of what starts somewhere and has a length.
    fn nth_part(
        &mut self,
        (start, len): (ExprId, ExprId),
        number: ExprId,
        size: usize,
        is_even: bool,
    ) -> (ExprId, ExprId) {
        let exprs = &mut self.program.exprs;
        let (skipped, full) = (exprs.mul_const(number, size as i64), exprs.index(size as i64));
        if is_even {
            return (exprs.add2(start, skipped), full);
        }
        let skipped = exprs.min(skipped, len);
        let rest = exprs.sub(len, skipped);
        (exprs.add2(start, skipped), exprs.min(rest, full))
    }

    /// The value of a length.
    pub fn len(&mut self, len: &Len) -> ExprId {
        let value = match len {
            Len::Fixed(len) => self.program.exprs.index(*len as i64),
            Len::Part(part) => self.span(part).1,
            Len::Times(len, times) => {
                let len = self.len(len);
                self.program.exprs.mul_const(len, *times as i64)
            }
            Len::Sum(lens) => {
                let mut sum = self.program.exprs.index(0);
                for len in lens {
                    let len = self.len(len);
                    sum = self.program.exprs.add2(sum, len);
                }
                sum
            }
        };
        self.simplify(value)
    }

    /// The sum of a length over the blocks before this one along a dimension of the grid.
    pub fn before(&mut self, len: &Len, axis: usize) -> Result<ExprId, CannotLower> {
        Ok(match len {
            Len::Fixed(len) => self.program.exprs.mul_const(self.grid[axis], *len as i64),
            Len::Part(part) if part.iterations.is_none() && part.grid.is_some_and(|(by, _)| by == axis) => {
                self.span(part).0
            }
            Len::Part(_) => {
                return Err(CannotLower("a result whose extent changes with another block".into()));
            }
            Len::Times(len, times) => {
                let before = self.before(len, axis)?;
                self.program.exprs.mul_const(before, *times as i64)
            }
            Len::Sum(lens) => {
                let mut sum = self.program.exprs.index(0);
                for len in lens {
                    let before = self.before(len, axis)?;
                    sum = self.program.exprs.add2(sum, before);
                }
                sum
            }
        })
    }
}
