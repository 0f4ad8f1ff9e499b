//! What becomes of the sums of a product: summands of several warps are added; and sums that are too many for registers
//! are made in shared memory.

use super::layout::{Columns, Fragments, Registers};
use super::lowering::Lowering;
use super::value::{Place, Point};
use orch_compute::Type;
use orch_ir::DType;
use orch_thread::{LoopKind, Scope, Stmt};

/// Terms that are written out.
const UNROLLED_TERMS: u32 = 4;

impl Lowering<'_> {
    /// Where the sums of a product are when all warps' summands are added.
    pub fn joined_sums(&mut self, registers: Registers, shape: &[usize]) -> Place {
        match registers.at.columns {
            Columns::Streamed(_) => self.join_streamed(&registers, shape),
            Columns::One | Columns::Spread(_) | Columns::Summands(_) => {
                Place::Registers(self.joined_summands(registers, shape))
            }
        }
    }

    /// Registers in which warps have summands of all columns, as sums of which each warp has some columns.
    pub fn joined_summands(&mut self, registers: Registers, shape: &[usize]) -> Registers {
        if !registers.at.has_summands() {
            return registers;
        }
        let Fragments { rows, columns } = registers.at.clone();
        let (n, beside) = (registers.at.n(), rows.column_warps);
        let at = Fragments { rows, columns: Columns::Spread(n) };
        let exchanged = [&[beside], shape].concat();
        let parts = self.new_view("summands", DType::F32, &exchanged, exchanged.len() - 1);
        let place = Place::Registers(registers.clone());
        debug_assert_eq!(columns, Columns::Summands(n));
        let stmts = self.each_site(&registers.at, |this, site| {
            let inside = this.site_exists(&site, false);
            let point = this.point(&site, shape);
            let value = this.read_place(&place, &point);
            let [_, warp] = this.warp_place(&registers.at);
            let offset = this.offset(&parts, &[&[warp], point.coords.as_slice()].concat());
            vec![Stmt::Store { buffer: parts.buffer, offset, value, mask: inside }]
        });
        self.run(stmts);
        let buffer = self.add_buffer("sum", DType::F32, at.registers(), Scope::Scratch);
        let stmts = self.each_site(&at, |this, site| {
            let point = this.point(&site, shape);
            let mut total = this.float(0.0);
            for warp in 0..beside {
                let warp = this.index(warp);
                let offset = this.offset(&parts, &[&[warp], point.coords.as_slice()].concat());
                let part = this.program.exprs.load(parts.buffer, offset, 1, None);
                total = if warp == this.index(0) { part } else { this.program.exprs.add2(total, part) };
            }
            let offset = this.register(&site, &at);
            vec![Stmt::Store { buffer, offset, value: total, mask: None }]
        });
        self.run(stmts);
        Registers { at, buffer }
    }

    /// A product whose sums are too many for registers: each thread makes elements, term by term.
    pub fn multiply_in_shared(&mut self, tile: usize) {
        let (shape, args) = (self.steps.tiles[tile].shape.clone(), self.steps.tiles[tile].step.args());
        let dtype = self.factor_type();
        args.iter().for_each(|&arg| self.prepare(arg, None));
        let rank = shape.len();
        let view = self.new_view("product", DType::F32, &shape, rank - 1);
        let terms = self.steps.tiles[args[0]].shape[rank - 1];
        let elems = crate::op::elems(&shape);
        let threads = self.threads();
        let stmts = self.repeated("round", elems.div_ceil(threads), LoopKind::Serial, |this, round| {
            let at = this.program.exprs.linear_index(&[round, this.thread], &[threads, 1]);
            let exists = this.below(at, elems);
            let at = this.clamped(at, elems);
            let mut body = Vec::new();
            let parts = this.program.exprs.unflatten(at, &shape);
            let mut coords = Vec::new();
            for (&part, &extent) in parts.iter().zip(&shape) {
                coords.push(this.bind(&mut body, "at", part, (extent, 1)));
            }
            let zero = this.float(0.0);
            let sum = this.program.exprs.declare_register("sum", Type::scalar(DType::F32));
            body.push(Stmt::Register(sum, zero));
            let so_far = this.program.exprs.var(sum);
            body.extend(this.repeated("term", terms, LoopKind::UnrollBy(UNROLLED_TERMS), |this, term| {
                let mut element = |arg: usize, dim: usize| {
                    let mut coords = coords.clone();
                    coords[dim] = term;
                    let value = this.operand(arg, &Point { coords, site: None });
                    let narrow = this.program.exprs.cast(dtype, value);
                    this.program.exprs.cast(DType::F32, narrow)
                };
                let (a, b) = (element(args[0], rank - 1), element(args[1], rank - 2));
                let value = this.program.exprs.fma(a, b, so_far);
                vec![Stmt::Assign(sum, value)]
            }));
            let offset = this.offset(&view, &coords);
            body.push(Stmt::Store { buffer: view.buffer, offset, value: so_far, mask: exists });
            body
        });
        self.run(stmts);
        self.places[tile].push(Place::Shared(view));
    }
}
