//! Split-K over the warps of a CTA: partial sums of column warps are added through shared memory. And
//! products with too many accumulators for registers, which are computed in shared memory.

use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FragmentLayout, RegisterTile};
use super::value::{TileHome, TilePoint};
use orch_compute::Type;
use orch_ir::DType;
use orch_thread::{LoopKind, Scope, Stmt};

/// K steps of a product in shared memory that are unrolled.
const UNROLLED_TERMS: u32 = 4;

impl BlockEmitter<'_> {
    /// The home of a product's result, after partial sums have been added.
    pub fn reduce_split_k(&mut self, registers: RegisterTile, shape: &[usize]) -> TileHome {
        match registers.at.columns {
            ColumnLayout::SplitKInterleaved(_) => self.reduce_direct_split_k(&registers, shape),
            ColumnLayout::PerRow | ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) => {
                TileHome::Registers(self.reduce_split_k_registers(registers, shape))
            }
        }
    }

    /// Adds the partial sums of column warps: `[column_warp, lead.., m, n]` in shared memory; the result is
    /// partitioned among the warps. Registers without split-K are given as they are.
    pub fn reduce_split_k_registers(&mut self, registers: RegisterTile, shape: &[usize]) -> RegisterTile {
        if !registers.at.is_split_k() {
            return registers;
        }
        let FragmentLayout { rows, columns } = registers.at.clone();
        let (n, column_warps) = (registers.at.n(), rows.column_warps);
        let at = FragmentLayout { rows, columns: ColumnLayout::Partitioned(n) };
        let exchanged = [&[column_warps], shape].concat();
        let parts = self.alloc_shared("summands", DType::F32, &exchanged, exchanged.len() - 1);
        let place = TileHome::Registers(registers.clone());
        debug_assert_eq!(columns, ColumnLayout::SplitK(n));
        let stmts = self.for_each_slot(&registers.at, |this, slot| {
            let inside = this.slot_exists(&slot, false);
            let point = this.point_of_slot(&slot, shape);
            let value = this.read_home(&place, &point);
            let [_, warp] = this.warp_coords(&registers.at);
            let offset = this.shared_offset(&parts, &[&[warp], point.coords.as_slice()].concat());
            vec![Stmt::Store { buffer: parts.buffer, offset, value, mask: inside }]
        });
        self.emit(stmts);
        let buffer = self.add_buffer("sum", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let stmts = self.for_each_slot(&at, |this, slot| {
            let point = this.point_of_slot(&slot, shape);
            let mut total = this.float(0.0);
            for warp in 0..column_warps {
                let warp = this.index(warp);
                let offset = this.shared_offset(&parts, &[&[warp], point.coords.as_slice()].concat());
                let part = this.program.exprs.load(parts.buffer, offset, 1, None);
                total = if warp == this.index(0) { part } else { this.program.exprs.add2(total, part) };
            }
            let offset = this.register_offset(&slot, &at);
            vec![Stmt::Store { buffer, offset, value: total, mask: None }]
        });
        self.emit(stmts);
        RegisterTile { at, buffer }
    }

    /// A product with too many accumulators for registers: each thread computes elements one by one, operands
    /// rounded as mma would. The slowest way; the search avoids such tiles.
    pub fn matmul_in_shared(&mut self, tile: usize) {
        let (shape, args) =
            (self.plan.steps.tiles[tile].shape.clone(), self.plan.steps.tiles[tile].step.args());
        let dtype = self.operand_dtype();
        args.iter().for_each(|&arg| self.prepare(arg, None));
        let rank = shape.len();
        let view = self.alloc_shared("product", DType::F32, &shape, rank - 1);
        let terms = self.plan.steps.tiles[args[0]].shape[rank - 1];
        let elems = crate::op::elems(&shape);
        let threads = self.threads();
        let stmts = self.loop_of("round", elems.div_ceil(threads), LoopKind::Serial, |this, round| {
            let at = this.program.exprs.linear_index(&[round, this.ids.thread], &[threads, 1]);
            let exists = this.is_below(at, elems);
            let at = this.clamped_below(at, elems);
            let mut body = Vec::new();
            let parts = this.program.exprs.unflatten(at, &shape);
            let mut coords = Vec::new();
            for (&part, &extent) in parts.iter().zip(&shape) {
                coords.push(this.bind_index(&mut body, "at", part, (extent, 1)));
            }
            let zero = this.float(0.0);
            let sum = this.program.exprs.declare_register("sum", Type::scalar(DType::F32));
            body.push(Stmt::Register(sum, zero));
            let so_far = this.program.exprs.var(sum);
            body.extend(this.loop_of("term", terms, LoopKind::UnrollBy(UNROLLED_TERMS), |this, term| {
                let mut element = |arg: usize, dim: usize| {
                    let mut coords = coords.clone();
                    coords[dim] = term;
                    let value = this.broadcast_operand(arg, &TilePoint { coords, slot: None });
                    let narrow = this.program.exprs.cast(dtype, value);
                    this.program.exprs.cast(DType::F32, narrow)
                };
                let (a, b) = (element(args[0], rank - 1), element(args[1], rank - 2));
                let value = this.program.exprs.fma(a, b, so_far);
                vec![Stmt::Assign(sum, value)]
            }));
            let offset = this.shared_offset(&view, &coords);
            body.push(Stmt::Store { buffer: view.buffer, offset, value: so_far, mask: exists });
            body
        });
        self.emit(stmts);
        self.tiles.homes[tile].push(TileHome::Shared(view));
    }
}
