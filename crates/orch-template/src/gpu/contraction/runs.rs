//! How the elements of a contraction's operands lie in memory, as reads of flat coordinates `[row, k]`.

use super::schedule::Major;
use super::unit::MathUnit;
use crate::contraction::ContractionForm;
use crate::contraction::linear::{plain_read, read_offsets};
use crate::contraction::operand::FlatAxes;
use crate::gpu::access::SECTOR;
use crate::gpu::cta::{WIDEST_BYTES, stores_of};
use orch_compute::block::{ArgRole, BlockProgram};
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{ArgId, ExprId, Exprs, VarId};
use orch_compute::simplify::{Simplifier, simplify};

/// An operand over flat coordinates.
struct FlatOperand<'a> {
    block: &'a BlockProgram,
    source: Exprs,
    simplifier: Simplifier,
    /// The flat coordinates `row` and `k`.
    coordinates: [VarId; 2],
    /// The element.
    value: ExprId,
}

impl<'a> FlatOperand<'a> {
    fn both(block: &'a BlockProgram, form: &ContractionForm) -> [Self; 2] {
        let mut source = block.exprs.clone();
        let flat = FlatAxes::new(block, &mut source, form);
        [(form.a, flat.m), (form.b, flat.n)].map(|(operand, row)| {
            let mut source = source.clone();
            let flattened = Substitution::new(&flat.bindings).apply(&mut source, operand);
            let value = simplify(&mut source, flattened);
            Self { block, source, simplifier: Simplifier::new(), coordinates: [row, flat.k], value }
        })
    }

    /// The arguments that are read, each with the element's offset in it.
    fn reads(&mut self) -> Vec<(ArgId, ExprId)> {
        read_offsets(self.block, &mut self.source, self.value)
    }

    /// Elements in memory from one value of the coordinate to the next, if they are evenly apart.
    fn stride(&mut self, offset: ExprId, coordinate: VarId) -> Option<i64> {
        let offset = self.simplifier.simplify(&mut self.source, offset);
        self.simplifier.stride(&mut self.source, offset, coordinate)
    }

    /// The most elements, a power of two up to `limit`, that are consecutive in memory from a multiple of their number on, or the same,
    /// from each multiple of their number along a coordinate on.
    fn run(&mut self, offset: ExprId, coordinate: VarId, limit: usize) -> usize {
        let (_, last) = self.source.var_info(coordinate).range.expect("flat coordinates have a range");
        let halves = std::iter::successors(Some(limit), |lanes| Some(lanes / 2));
        let is_run = |&lanes: &usize| {
            let (start_var, start) =
                self.source.fresh_index("start", (last as usize + 1).next_multiple_of(lanes));
            self.source.set_multiple_of(start_var, lanes as i64);
            let (lane_var, lane) = self.source.fresh_index("lane", lanes);
            let place = self.source.add2(start, lane);
            let [offset, first] = [place, start].map(|place| {
                let at = Substitution::new(&[(coordinate, place)]).apply(&mut self.source, offset);
                self.simplifier.simplify(&mut self.source, at)
            });
            match self.stride(offset, lane_var) {
                Some(0) => true,
                Some(1) => self.simplifier.range(&mut self.source, first).is_multiple_of(lanes as i64),
                _ => false,
            }
        };
        halves.take_while(|&lanes| lanes > 1).find(is_run).unwrap_or(1)
    }
}

/// The dimension along which most reads of each operand are consecutive in memory; K for constants, which are packed so.
pub(super) fn natural_major(block: &BlockProgram, form: &ContractionForm, unit: MathUnit) -> [Major; 2] {
    FlatOperand::both(block, form).map(|mut operand| {
        let typed = operand.source.cast(unit.operand_type(), operand.value);
        operand.value = simplify(&mut operand.source, typed);
        let plain = plain_read(block, &mut operand.source, operand.value);
        if plain.is_some_and(|(arg, _)| block.arg(arg).role == ArgRole::Constant) {
            return Major::K;
        }
        let reads = operand.reads();
        // Long runs first: images of gradients of weights have runs of channels along their rows, but no one stride.
        let [along_rows, along_k] = operand.coordinates.map(|coordinate| {
            let runs = reads.iter().map(|&(arg, offset)| {
                operand.run(offset, coordinate, WIDEST_BYTES / block.arg(arg).dtype.size_bytes())
            });
            let shortest = runs.min();
            let is_even = |&&(_, offset): &&(ArgId, ExprId)| operand.stride(offset, coordinate) == Some(1);
            (shortest, reads.iter().filter(is_even).count())
        });
        if along_rows > along_k { Major::Mn } else { Major::K }
    })
}

/// Bytes of the widest accesses, up to 16, by which each operand can be read along its rows or along K as it lies in memory:
/// every read of it has so many consecutive elements, and the starts of its rows are aligned so. Constants are packed with any
/// alignment.
pub fn access_bytes(block: &BlockProgram, form: &ContractionForm) -> [u64; 2] {
    FlatOperand::both(block, form).map(|mut operand| {
        let reads = operand.reads();
        let variable = reads.into_iter().filter(|&(arg, _)| block.arg(arg).role != ArgRole::Constant);
        let variable: Vec<_> = variable.collect();
        let along = |operand: &mut FlatOperand<'_>, coordinate| {
            let bytes = variable.iter().map(|&(arg, offset)| {
                let size = block.arg(arg).dtype.size_bytes();
                size * operand.run(offset, coordinate, aligned_bytes(block, arg) / size)
            });
            bytes.min().unwrap_or(WIDEST_BYTES)
        };
        let [row, k] = operand.coordinates;
        let widest = along(&mut operand, k);
        (if widest < WIDEST_BYTES { widest.max(along(&mut operand, row)) } else { widest }) as u64
    })
}

/// Bytes of sectors that stores transfer beside the results, where those of neighbouring columns do not lie side by side: a gradient of
/// weights `[o, c, r, s]` whose rows are `r s c` and whose columns are `o`.
pub fn unused_stored_bytes(block: &BlockProgram, form: &ContractionForm) -> u64 {
    let mut exprs = block.exprs.clone();
    let mut simplifier = Simplifier::new();
    let mut unused = 0;
    for (arg, offset, _) in stores_of(block, &mut exprs, &[]) {
        let (size, elems) = (block.arg(arg).dtype.size_bytes(), block.arg(arg).shape.elems());
        // Elements side by side, and how far from the next ones these are.
        let (mut run, mut apart) = (1, None);
        for &axis in form.n.iter().rev().filter(|&&axis| block.extent(axis) > 1) {
            match simplifier.stride(&mut exprs, offset, axis).map(i64::unsigned_abs) {
                Some(stride) if stride == run => run *= block.extent(axis) as u64,
                stride => {
                    apart = Some(stride.unwrap_or(u64::MAX));
                    break;
                }
            }
        }
        let [run, apart] = [run, apart.unwrap_or(run)].map(|count| count.saturating_mul(size as u64));
        let transferred = apart.min(SECTOR as u64).max(run);
        unused += elems as u64 * size as u64 * (transferred - run) / run;
    }
    unused
}

/// Bytes, up to 16, by which the starts of an argument's rows are aligned.
fn aligned_bytes(block: &BlockProgram, arg: ArgId) -> usize {
    let arg = block.arg(arg);
    let strides = arg.layout.strides(&arg.shape);
    let starts = strides.iter().zip(&arg.shape[..]).filter(|&(&stride, &extent)| stride > 1 && extent > 1);
    let narrowest = starts.map(|(&stride, _)| arg.dtype.size_bytes() << stride.trailing_zeros().min(4)).min();
    narrowest.unwrap_or(WIDEST_BYTES).min(WIDEST_BYTES)
}
