//! Loops in which all threads of a CTA share the elements of a tile, each several consecutive ones at a time
//! (vectorised).

use super::emitter::BlockEmitter;
use orch_compute::{BufferId, ExprId};
use orch_thread::{Stmt, Vectorizer, Widening};

/// Most elements of a vector: 16 bytes of 16-bit elements, 32 bytes (two stores) of f32.
const MAX_VECTOR: usize = 8;

/// A store of one element.
pub(super) struct ElementStore {
    pub buffer: BufferId,
    pub offset: ExprId,
    pub value: ExprId,
    pub mask: Option<ExprId>,
}

impl BlockEmitter<'_> {
    /// Stores for every element of a shape, given its coordinates: vectors `[round, thread]` of consecutive
    /// elements of the last dimension. `element` is called once, with symbolic coordinates.
    pub fn for_each_element(
        &mut self,
        shape: &[usize],
        element: impl FnOnce(&mut Self, &[ExprId]) -> Vec<ElementStore>,
    ) -> Vec<Stmt> {
        self.for_each_element_by((self.ids.thread, self.threads()), shape, element)
    }

    /// The same by so many threads, of which this one has a number.
    pub fn for_each_element_by(
        &mut self,
        (thread, threads): (ExprId, usize),
        shape: &[usize],
        element: impl FnOnce(&mut Self, &[ExprId]) -> Vec<ElementStore>,
    ) -> Vec<Stmt> {
        let elems = crate::op::elems(shape);
        let (outer, last) = match shape.split_last() {
            Some((last, outer)) => (outer, *last),
            None => (shape, 1),
        };
        let lanes = lanes(last, elems, threads);
        let across = last / lanes;
        let chunks = elems / lanes;
        let rounds = chunks.div_ceil(threads);
        self.loop_of("round", rounds, BlockEmitter::round_loop_kind(rounds), |this, round| {
            let exprs = &mut this.program.exprs;
            // [round, thread]
            let chunk = exprs.linear_index(&[round, thread], &[threads, 1]);
            let mut body = Vec::new();
            let is_whole = chunks.is_multiple_of(threads);
            let exists = this.is_below(chunk, chunks).filter(|_| !is_whole);
            let parts = this.program.exprs.unflatten(chunk, &[outer, &[across]].concat());
            let mut coords = Vec::new();
            for (&part, &extent) in parts.iter().zip(outer) {
                coords.push(this.bind_index(&mut body, "at", part, (extent, 1)));
            }
            let first = this.program.exprs.mul_const(parts[outer.len()], lanes as i64);
            let first = this.bind_index(&mut body, "first", first, (last, lanes));
            body.extend(this.element_stores(&coords, (first, last, lanes), shape.is_empty(), element));
            match exists {
                Some(condition) => vec![Stmt::If { condition, then: body, otherwise: Vec::new() }],
                None => body,
            }
        })
    }

    /// The stores of one vector of elements, from `first` of the last dimension on: the scalar stores at a
    /// symbolic index, widened to `lanes`.
    fn element_stores(
        &mut self,
        outer: &[ExprId],
        (first, last, lanes): (ExprId, usize, usize),
        is_scalar: bool,
        element: impl FnOnce(&mut Self, &[ExprId]) -> Vec<ElementStore>,
    ) -> Vec<Stmt> {
        let mut coords = outer.to_vec();
        if lanes == 1 {
            coords.extend((!is_scalar).then_some(first));
            let writes = element(self, &coords);
            return writes.into_iter().map(|write| self.scalar_store(write)).collect();
        }
        let (var, each) = self.program.exprs.fresh_index("each", last);
        coords.push(each);
        let writes = element(self, &coords);
        let over = Widening::new(var, first, lanes);
        let BlockEmitter { program, simplifier, .. } = self;
        let mut vectorizer = Vectorizer::new(&mut program.exprs, &over);
        let mut widen = |id| {
            let wide = vectorizer.widen(&mut program.exprs, simplifier, id);
            program.exprs.splat(wide, lanes)
        };
        let mut stmts = Vec::new();
        for ElementStore { buffer, offset, value, mask } in writes {
            let (offset, value, mask) = (widen(offset), widen(value), mask.map(&mut widen));
            stmts.push(Stmt::Store { buffer, offset, value, mask });
        }
        stmts
    }

    /// A store with simplified expressions.
    fn scalar_store(&mut self, ElementStore { buffer, offset, value, mask }: ElementStore) -> Stmt {
        let mut simple = |id| self.simplifier.simplify(&mut self.program.exprs, id);
        Stmt::Store { buffer, offset: simple(offset), value: simple(value), mask: mask.map(simple) }
    }
}

/// Vector width: the widest of 8, 4, 2 that divides the last dimension and leaves a vector for every thread.
fn lanes(last: usize, elems: usize, threads: usize) -> usize {
    let suits = |&lanes: &usize| last.is_multiple_of(lanes) && elems / lanes >= threads;
    [MAX_VECTOR, 4, 2].into_iter().find(suits).unwrap_or(1)
}
