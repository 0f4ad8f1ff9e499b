//! OperandPrecision of matrix products in shared memory: which types and shapes products take, and how tiles come to them.

use super::elements::Write;
use super::lowering::Lowering;
use super::steps::Step;
use super::value::{Place, Point, View};
use crate::op::Op;
use orch_ir::DType;
use orch_thread::MmaType;
use orch_thread::OperandPrecision;

impl Lowering<'_> {
    /// What matrix instructions multiply.
    pub fn product_kind(&self) -> Option<MmaType> {
        match self.factors {
            OperandPrecision::F32 => None,
            OperandPrecision::Tf32 => Some(MmaType::Tf32),
            OperandPrecision::F16 => Some(MmaType::F16),
            OperandPrecision::Bf16 => Some(MmaType::Bf16),
        }
    }

    /// Type of factors that are brought to shared memory.
    pub fn factor_type(&self) -> DType {
        self.product_kind().map_or(DType::F32, MmaType::dtype)
    }

    pub fn is_half(&self) -> bool {
        self.factor_type() != DType::F32
    }

    /// A factor in shared memory as matrix instructions take it, `terms` the dimension that is summed.
    pub fn factor(&mut self, tile: usize, terms: usize) -> View {
        if let Some(view) = self.view_of_factor(tile, terms) {
            return view;
        }
        let shape = self.steps.tiles[tile].shape.clone();
        let (dtype, inner) = (self.factor_type(), shape.len() - 1);
        let padded = self.padded(&shape, &[terms], inner, dtype);
        let view = self.new_view("factor", dtype, &padded, inner);
        let zero = self.program.exprs.zero(dtype);
        if let Some(at) = self.home(tile) {
            if padded != shape {
                let clear = self.each_element(&padded, |this, coords| {
                    let offset = this.offset(&view, coords);
                    vec![Write { buffer: view.buffer, offset, value: zero, mask: None }]
                });
                self.first.extend(clear);
            }
            self.prepare(tile, Some(&at));
            let stmts = self.at_sites(&at, &shape, &view, |this, point| this.value(tile, point));
            self.run(stmts);
        } else {
            self.prepare(tile, None);
            let stmts = self.each_element(&padded, |this, coords| {
                let mut inside = None;
                let mut from = coords.to_vec();
                for dim in (0..shape.len()).filter(|&dim| shape[dim] < padded[dim]) {
                    let exists = this.below(coords[dim], shape[dim]);
                    inside = this.program.exprs.and_guard(inside, exists);
                    from[dim] = this.clamped(coords[dim], shape[dim]);
                }
                let value = this.value(tile, &Point { coords: from, site: None });
                let mut value = this.program.exprs.cast(dtype, value);
                if let Some(inside) = inside {
                    value = this.program.exprs.select(inside, value, zero);
                }
                let offset = this.offset(&view, coords);
                vec![Write { buffer: view.buffer, offset, value, mask: None }]
            });
            self.run(stmts);
        }
        self.operands[tile].push(view.clone());
        view
    }

    /// A tile that is in shared memory as matrix instructions take it already.
    fn view_of_factor(&self, tile: usize, terms: usize) -> Option<View> {
        let shared = self.places[tile].iter().filter_map(|place| match place {
            Place::Shared(view) => Some(view),
            Place::Registers(_) => None,
        });
        if let Some(view) = shared.chain(&self.operands[tile]).find(|view| self.suits(view, tile, terms)) {
            return Some(view.clone());
        }
        match &self.steps.tiles[tile].step {
            Step::Op { op: Op::Transpose(perm), args } if self.places[tile].is_empty() => {
                let view = self.view_of_factor(args[0], perm[terms])?;
                let strides = perm.iter().map(|&dim| view.strides[dim]).collect();
                let padded = perm.iter().map(|&dim| view.padded[dim]).collect();
                // Every dimension is among those of the permutation.
                let turned = |dim| perm.iter().position(|&from| from == dim).unwrap_or(dim);
                let lines = view.lines.map(|dims| dims.map(turned));
                let turned = View { strides, padded, lines, ..view };
                self.suits(&turned, tile, terms).then_some(turned)
            }
            _ => None,
        }
    }

    fn suits(&self, view: &View, tile: usize, terms: usize) -> bool {
        let shape = &self.steps.tiles[tile].shape;
        let dtype = self.program.buffer(view.buffer).dtype;
        let rank = shape.len();
        let whole = view.padded[terms].is_multiple_of(self.product_terms());
        if !self.is_half() {
            return whole;
        }
        let inner = if view.strides[rank - 1] == 1 { rank - 1 } else { rank - 2 };
        let aligned = (0..rank).all(|dim| dim == inner || view.strides[dim].is_multiple_of(8));
        dtype == self.factor_type()
            && whole
            && view.strides[inner] == 1
            && view.padded[inner].is_multiple_of(8)
            && aligned
    }

    /// Extents of a tile such that matrix instructions find whole fragments along terms and neighbours.
    pub fn padded(&self, shape: &[usize], terms: &[usize], inner: usize, dtype: DType) -> Vec<usize> {
        let mut padded = shape.to_vec();
        if terms.is_empty() {
            return padded;
        }
        for &dim in terms {
            padded[dim] = padded[dim].next_multiple_of(self.product_terms());
        }
        if dtype.size_bytes() == 2 && self.product_terms() > 1 {
            padded[inner] = padded[inner].next_multiple_of(8);
        }
        padded
    }

    /// Terms that a product adds at a time.
    pub fn product_terms(&self) -> usize {
        match self.factors {
            OperandPrecision::F16 | OperandPrecision::Bf16 => 16,
            OperandPrecision::Tf32 => 8,
            OperandPrecision::F32 => 1,
        }
    }
}
