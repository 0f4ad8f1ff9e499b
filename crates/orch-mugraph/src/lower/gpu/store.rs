//! What a block leaves in global memory.

use super::elements::Write;
use super::layout::Fragments;
use super::lowering::Lowering;
use super::value::Point;
use crate::graph::TensorId;
use orch_tile::{ExprId, Stmt};

impl Lowering<'_> {
    /// Stores a tile as the block's part of a tensor.
    pub fn store(&mut self, tile: usize, grid: &[Option<usize>], tensor: TensorId) {
        let at = self.home(tile);
        self.prepare(tile, at.as_ref());
        let stmts = match at {
            Some(at) => self.store_sites(tile, (grid, tensor), &at),
            None => self.store_elements(tile, (grid, tensor)),
        };
        self.run_once(stmts);
    }

    /// The place in a tensor of an element of a tile, and the condition that it exists.
    fn destination(
        &mut self,
        tile: usize,
        (grid, tensor): (&[Option<usize>], TensorId),
        coords: &[ExprId],
    ) -> (ExprId, Option<ExprId>) {
        let tile = &self.steps.tiles[tile];
        let mut position = coords.to_vec();
        for (&dim, &block) in grid.iter().zip(&self.block) {
            if let Some(dim) = dim {
                let start = self.program.exprs.mul_const(block, tile.shape[dim] as i64);
                position[dim] = self.program.exprs.add2(start, position[dim]);
            }
        }
        let shape = self.request.graph.shape(tensor);
        let mut guard = None;
        for dim in (0..shape.len()).filter(|&dim| tile.ragged[dim]) {
            let inside = self.below(position[dim], shape[dim]);
            guard = self.program.exprs.and_guard(guard, inside);
        }
        (self.tensor_offset(tensor, &position), guard)
    }

    fn store_elements(&mut self, tile: usize, to: (&[Option<usize>], TensorId)) -> Vec<Stmt> {
        let Some(buffer) = self.arguments[to.1.index()] else { return Vec::new() };
        let dtype = self.program.buffer(buffer).dtype;
        let shape = self.steps.tiles[tile].shape.clone();
        self.each_element(&shape, |this, coords| {
            let value = this.value(tile, &Point { coords: coords.to_vec(), site: None });
            let value = this.program.exprs.cast(dtype, value);
            let (offset, mask) = this.destination(tile, to, coords);
            vec![Write { buffer, offset, value, mask }]
        })
    }

    /// Stores registers, two neighbours at a time where they are neighbours in the tensor.
    fn store_sites(&mut self, tile: usize, to: (&[Option<usize>], TensorId), at: &Fragments) -> Vec<Stmt> {
        let Some(buffer) = self.arguments[to.1.index()] else { return Vec::new() };
        let dtype = self.program.buffer(buffer).dtype;
        let shape = self.steps.tiles[tile].shape.clone();
        let last = shape.len() - 1;
        let strides = &self.request.stored[to.1.index()].strides;
        let is_ragged = self.steps.tiles[tile].ragged[last];
        let pairs = at.has_pairs() && strides[last] == 1 && shape[last].is_multiple_of(2) && !is_ragged;
        self.each_site_stored(at, pairs, |this, site| {
            let inside = this.site_exists(site, true);
            let point = this.point(site, &shape);
            let value = this.value(tile, &point);
            let value = this.program.exprs.cast(dtype, value);
            let (offset, exists) = this.destination(tile, to, &point.coords);
            let mask = this.program.exprs.and_guard(inside, exists);
            Write { buffer, offset, value, mask }
        })
    }
}
