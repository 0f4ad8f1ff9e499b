//! OperandPrecision of matrix products in shared memory: which types and shapes products take, and how tiles come to them.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::steps::TileStep;
use super::value::{SharedTile, TileHome, TilePoint};
use crate::op::Op;
use orch_ir::DType;
use orch_thread::MmaType;
use orch_thread::OperandPrecision;

impl BlockEmitter<'_> {
    /// What matrix instructions multiply.
    pub fn mma_type(&self) -> Option<MmaType> {
        match self.plan.precision {
            OperandPrecision::F32 => None,
            OperandPrecision::Tf32 => Some(MmaType::Tf32),
            OperandPrecision::F16 => Some(MmaType::F16),
            OperandPrecision::Bf16 => Some(MmaType::Bf16),
        }
    }

    /// Type of factors that are brought to shared memory.
    pub fn operand_dtype(&self) -> DType {
        self.mma_type().map_or(DType::F32, MmaType::dtype)
    }

    pub fn has_16bit_operands(&self) -> bool {
        self.operand_dtype() != DType::F32
    }

    /// A factor in shared memory as matrix instructions take it, `terms` the dimension that is summed.
    pub fn shared_operand(&mut self, tile: usize, terms: usize) -> SharedTile {
        if let Some(view) = self.existing_operand(tile, terms) {
            return view;
        }
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let (dtype, inner) = (self.operand_dtype(), shape.len() - 1);
        let padded = self.padded_extents(&shape, &[terms], inner, dtype);
        let view = self.alloc_shared("factor", dtype, &padded, inner);
        let zero = self.program.exprs.zero(dtype);
        if let Some(at) = self.register_layout(tile) {
            if padded != shape {
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
        self.tiles.operand_copies[tile].push(view.clone());
        view
    }

    /// A tile that is in shared memory as matrix instructions take it already.
    fn existing_operand(&self, tile: usize, terms: usize) -> Option<SharedTile> {
        let shared = self.tiles.homes[tile].iter().filter_map(|place| match place {
            TileHome::Shared(view) => Some(view),
            TileHome::Registers(_) => None,
        });
        if let Some(view) =
            shared.chain(&self.tiles.operand_copies[tile]).find(|view| self.is_mma_operand(view, tile, terms))
        {
            return Some(view.clone());
        }
        match &self.plan.steps.tiles[tile].step {
            TileStep::Op { op: Op::Transpose(perm), args } if self.tiles.homes[tile].is_empty() => {
                let view = self.existing_operand(args[0], perm[terms])?;
                let strides = perm.iter().map(|&dim| view.strides[dim]).collect();
                let padded = perm.iter().map(|&dim| view.padded[dim]).collect();
                // Every dimension is among those of the permutation.
                let turned = |dim| perm.iter().position(|&from| from == dim).unwrap_or(dim);
                let swizzle = view.swizzle.map(|dims| dims.map(turned));
                let turned = SharedTile { strides, padded, swizzle, ..view };
                self.is_mma_operand(&turned, tile, terms).then_some(turned)
            }
            _ => None,
        }
    }

    fn is_mma_operand(&self, view: &SharedTile, tile: usize, terms: usize) -> bool {
        let shape = &self.plan.steps.tiles[tile].shape;
        let dtype = self.program.buffer(view.buffer).dtype;
        let rank = shape.len();
        let whole = view.padded[terms].is_multiple_of(self.mma_k());
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

    /// Extents of a tile such that matrix instructions find whole fragments along terms and neighbours.
    pub fn padded_extents(&self, shape: &[usize], terms: &[usize], inner: usize, dtype: DType) -> Vec<usize> {
        let mut padded = shape.to_vec();
        if terms.is_empty() {
            return padded;
        }
        for &dim in terms {
            padded[dim] = padded[dim].next_multiple_of(self.mma_k());
        }
        if dtype.size_bytes() == 2 && self.mma_k() > 1 {
            padded[inner] = padded[inner].next_multiple_of(8);
        }
        padded
    }

    /// Terms that a product adds at a time.
    pub fn mma_k(&self) -> usize {
        match self.plan.precision {
            OperandPrecision::F16 | OperandPrecision::Bf16 => 16,
            OperandPrecision::Tf32 => 8,
            OperandPrecision::F32 => 1,
        }
    }
}
