//! Operands of matrix products in shared memory: which types and layouts `ldmatrix`, `mma` and `wgmma` take,
//! and copies of tiles in such a layout.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::staging::line_strides;
use super::steps::TileStep;
use super::value::{SharedTile, TileHome, TilePoint};
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::BufferId;
use orch_ir::DType;
use orch_thread::MmaType;
use orch_thread::OperandPrecision;

impl BlockEmitter<'_> {
    /// The type of `mma`/`wgmma` instructions; `None` for FMA in f32.
    pub fn mma_type(&self) -> Option<MmaType> {
        match self.plan.precision {
            OperandPrecision::F32 => None,
            OperandPrecision::Tf32 => Some(MmaType::Tf32),
            OperandPrecision::F16 => Some(MmaType::F16),
            OperandPrecision::Bf16 => Some(MmaType::Bf16),
        }
    }

    /// The type of operands that are copied to shared memory.
    pub fn operand_dtype(&self) -> DType {
        self.mma_type().map_or(DType::F32, MmaType::dtype)
    }

    /// Whether operands are f16 or bf16.
    pub fn has_16bit_operands(&self) -> bool {
        self.operand_dtype() != DType::F32
    }

    /// An operand in shared memory as products take it, `k_dim` its K dimension: the tile itself if its
    /// layout suits, else a copy, converted and padded with zeros along K.
    pub fn shared_operand(&mut self, tile: usize, k_dim: usize) -> SharedTile {
        if let Some(view) = self.existing_operand(tile, k_dim) {
            return view;
        }
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let (dtype, inner) = (self.operand_dtype(), shape.len() - 1);
        let padded = self.padded_extents(&shape, &[k_dim], inner, dtype);
        let replaced = self.replaceable_load(tile, dtype, (&padded, inner));
        let view = match &replaced {
            Some((_, view)) => view.clone(),
            None => self.alloc_shared("factor", dtype, &padded, inner),
        };
        let zero = self.program.exprs.zero(dtype);
        if let Some(at) = self.register_layout(tile) {
            if padded != shape {
                // Registers do not cover the padding, which is cleared once, before all else.
                let clear = self.for_each_element(&padded, |this, coords| {
                    let offset = this.shared_offset(&view, coords);
                    vec![ElementStore { buffer: view.buffer, offset, value: zero, mask: None }]
                });
                self.code.prologue.extend(clear);
            }
            self.prepare(tile, Some(&at));
            let stmts =
                self.store_slots_to_shared(&at, &shape, &view, |this, point| this.value_at(tile, point));
            self.emit(stmts);
        } else {
            self.prepare(tile, None);
            let stmts = self.for_each_element(&padded, |this, coords| {
                let mut inside = None;
                let mut from = coords.to_vec();
                for dim in (0..shape.len()).filter(|&dim| shape[dim] < padded[dim]) {
                    let exists = this.is_below(coords[dim], shape[dim]);
                    inside = this.program.exprs.and_guard(inside, exists);
                    from[dim] = this.clamped_below(coords[dim], shape[dim]);
                }
                let value = this.value_at(tile, &TilePoint { coords: from, slot: None });
                let mut value = this.program.exprs.cast(dtype, value);
                if let Some(inside) = inside {
                    value = this.program.exprs.select(inside, value, zero);
                }
                let offset = this.shared_offset(&view, coords);
                vec![ElementStore { buffer: view.buffer, offset, value, mask: None }]
            });
            self.emit(stmts);
        }
        if let Some((load, _)) = replaced {
            self.tiles.homes[load].clear();
        }
        self.tiles.operand_copies[tile].push(view.clone());
        view
    }

    /// A load that only `tile` reads, element by element and once, and that lies in shared memory as the tile's operand copy is
    /// to: the copy may take its place, each thread overwriting the elements that it reads.
    fn replaceable_load(
        &self,
        tile: usize,
        dtype: DType,
        (padded, inner): (&[usize], usize),
    ) -> Option<(usize, SharedTile)> {
        let (load, view) = self.only_load_of(tile)?;
        let is_alike = view.swizzle.is_none()
            && view.padded == padded
            && view.strides[inner] == 1
            && self.program.buffer(view.buffer).dtype == dtype
            && self.program.exprs.as_int(view.base) == Some(0);
        is_alike.then_some((load, view))
    }

    /// The load in shared memory of which a tile before the loop is an elementwise operation, if nothing else reads it, and the tile has
    /// one reader.
    fn only_load_of(&self, tile: usize) -> Option<(usize, SharedTile)> {
        let known = &self.plan.steps.tiles[tile];
        let TileStep::Op { op, args } = &known.step else { return None };
        let &[load] = args.as_slice() else { return None };
        let is_only_reader = self.plan.steps.only_reader(load) == Some(tile);
        let is_once = known.stage == Stage::Invariant && known.readers == 1;
        let is_load = matches!(self.plan.steps.tiles[load].step, TileStep::Load { .. });
        if !op.is_elementwise() || !is_only_reader || !is_once || !is_load {
            return None;
        }
        let view = self.tiles.homes[load].iter().find_map(|home| match home {
            TileHome::Shared(view) => Some(view.clone()),
            TileHome::Registers(_) => None,
        })?;
        Some((load, view))
    }

    /// The load of which the scores of attention keep fragments in registers (Q), where `tile`, their A, is computed from it: that needs
    /// neither a copy in shared memory nor a barrier.
    pub fn load_of_held_fragments(&self, tile: usize) -> Option<(usize, SharedTile)> {
        let scores = self.overlap.as_ref()?.scores;
        let steps = self.plan.steps;
        let (load, view) = self.only_load_of(tile)?;
        let shape = &steps.tiles[tile].shape;
        let is_operand = steps.only_reader(tile) == Some(scores)
            && steps.tiles[scores].step.args()[0] == tile
            && view.padded == *shape
            && steps.tiles[load].shape == *shape
            && self.is_mma_operand(&view, load, shape.len() - 1);
        (is_operand && self.may_hold_a(scores)).then_some((load, view))
    }

    /// A buffer in shared memory for a tile after the loop, and its strides: one whose content nothing reads any more, if there is
    /// one, else a new one. All threads have to be past the loop.
    pub fn shared_after_loop(&mut self, name: &str, dtype: DType, shape: &[usize]) -> SharedTile {
        let last = shape.len() - 1;
        if self.block_loop.is_some() {
            // What lies in other buffers is loaded for the next block meanwhile.
            return self.alloc_shared(name, dtype, shape, last);
        }
        let (strides, elems) = line_strides(shape, last, dtype);
        let is_spare = |buffer: BufferId| {
            let known = self.program.buffer(buffer);
            known.dtype == dtype && known.elems >= elems
        };
        let found = (0..self.plan.steps.tiles.len())
            .filter(|&tile| self.plan.steps.tiles[tile].stage == Stage::Invariant)
            .filter(|&tile| self.plan.steps.loop_range > 1 && !self.is_read_after_loop(tile))
            .flat_map(|tile| self.views_in_shared(tile))
            .map(|view| view.buffer)
            .find(|&buffer| is_spare(buffer));
        let Some(buffer) = found else { return self.alloc_shared(name, dtype, shape, last) };
        self.emit_barrier();
        let base = self.index(0);
        SharedTile { buffer, base, strides, padded: shape.to_vec(), swizzle: None }
    }

    /// Whether a tile, or one that is recomputed from it, is read by products or stores after the loop.
    fn is_read_after_loop(&self, tile: usize) -> bool {
        let steps = self.plan.steps;
        steps.stores.iter().any(|(stored, _)| *stored == tile)
            || steps.readers(tile).any(|reader| {
                let is_elementwise =
                    matches!(&steps.tiles[reader].step, TileStep::Op { op, .. } if op.is_elementwise());
                steps.tiles[reader].stage == Stage::After || is_elementwise && self.is_read_after_loop(reader)
            })
    }

    /// Where a tile is in shared memory, and its copies there.
    fn views_in_shared(&self, tile: usize) -> impl Iterator<Item = &SharedTile> {
        let homes = self.tiles.homes[tile].iter().filter_map(|place| match place {
            TileHome::Shared(view) => Some(view),
            TileHome::Registers(_) => None,
        });
        homes.chain(&self.tiles.operand_copies[tile])
    }

    /// A tile, copy or transposed view that is in shared memory as products take operands.
    fn existing_operand(&self, tile: usize, k_dim: usize) -> Option<SharedTile> {
        if let Some(view) = self.views_in_shared(tile).find(|view| self.is_mma_operand(view, tile, k_dim)) {
            return Some(view.clone());
        }
        match &self.plan.steps.tiles[tile].step {
            TileStep::Op { op: Op::Transpose(perm), args } if self.tiles.homes[tile].is_empty() => {
                let view = self.existing_operand(args[0], perm[k_dim])?;
                let strides = perm.iter().map(|&dim| view.strides[dim]).collect();
                let padded = perm.iter().map(|&dim| view.padded[dim]).collect();
                // Every dimension is among those of the permutation.
                let turned = |dim| perm.iter().position(|&from| from == dim).unwrap_or(dim);
                let swizzle = view.swizzle.map(|dims| dims.map(turned));
                let turned = SharedTile { strides, padded, swizzle, ..view };
                self.is_mma_operand(&turned, tile, k_dim).then_some(turned)
            }
            _ => None,
        }
    }

    /// Whether products can read a tile from shared memory: K padded to whole instructions; for 16-bit types
    /// one of the last two dimensions contiguous and rows aligned to 16 bytes, as ldmatrix requires.
    fn is_mma_operand(&self, view: &SharedTile, tile: usize, k_dim: usize) -> bool {
        let shape = &self.plan.steps.tiles[tile].shape;
        let dtype = self.program.buffer(view.buffer).dtype;
        let rank = shape.len();
        let whole = view.padded[k_dim].is_multiple_of(self.mma_k());
        if !self.has_16bit_operands() {
            return whole;
        }
        let inner = if view.strides[rank - 1] == 1 { rank - 1 } else { rank - 2 };
        let aligned = (0..rank).all(|dim| dim == inner || view.strides[dim].is_multiple_of(8));
        dtype == self.operand_dtype()
            && whole
            && view.strides[inner] == 1
            && view.padded[inner].is_multiple_of(8)
            && aligned
    }

    /// Extents padded along the K dimensions to whole instructions, and (16-bit types) along the contiguous
    /// dimension to 16 bytes.
    pub fn padded_extents(&self, shape: &[usize], k_dim: &[usize], inner: usize, dtype: DType) -> Vec<usize> {
        let mut padded = shape.to_vec();
        if k_dim.is_empty() {
            return padded;
        }
        for &dim in k_dim {
            padded[dim] = padded[dim].next_multiple_of(self.mma_k());
        }
        if dtype.size_bytes() == 2 && self.mma_k() > 1 {
            padded[inner] = padded[inner].next_multiple_of(8);
        }
        padded
    }

    /// K of one instruction.
    pub fn mma_k(&self) -> usize {
        match self.plan.precision {
            OperandPrecision::F16 | OperandPrecision::Bf16 => 16,
            OperandPrecision::Tf32 => 8,
            OperandPrecision::F32 => 1,
        }
    }
}
