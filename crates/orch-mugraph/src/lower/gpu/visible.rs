//! Loops over the visible tiles of a mask that is a band: causal attention and attention within a window do not load, multiply
//! or exponentiate tiles of keys that no row of the block sees.
//!
//! ```text
//! block's rows r .. r + m, tiles of n columns, band -below <= column - row <= above:
//!   first = floor((r - below) / n)       end = floor((r + m - 1 + above) / n) + 1       at least one of 0 .. iterations
//! CTA k of a cluster of c:   share = ceil((end - first) / c) iterations from min(first, iterations - c * share) + k * share on
//! ```
//!
//! All CTAs of a cluster run as many iterations, some of them beyond the visible ones, whose tiles are masked as any other.
//!
//! Other iterations are left out only if they would change nothing ([`changes_nothing`]): where the mask hides a whole tile,
//! scores are minus infinity, so that maxima stay as they are and weights are zero. (Products of weights of zero with an infinity
//! or NaN of V are not left out by rows that a tile shows in part.)
//!
//! Of the others those that the mask shows whole compare no indices ([`BlockEmitter::mask_in_place`]).
//!
//! Blocks with more to do start first ([`VisibleIterations::order`]), so that those that end last are short.

use super::emitter::BlockEmitter;
use super::hidden::{Hidden, hidden_value};
use super::layout::{ColumnLayout, RegisterTile};
use super::sms::{Blocks, Sms, exposed_iterations, time_in_order};
use super::steps::{TileStep, TileSteps};
use super::value::TileHome;
use crate::band::Band;
use crate::graph::{Accumulation, MuGraph, TensorId};
use crate::lower::{Request, Stored};
use crate::op::{BinaryFn, Op, elems};
use crate::tiling::{Stage, indices};
use orch_compute::{ExprId, Exprs, Type, VarInfo};
use orch_thread::Stmt;
use std::ops::Range;

/// Bytes of all tensors that the loop reads up to which blocks are ordered by their work over all heads at once: L2 holds them.
const ORDERED_BYTES: usize = 24 << 20;

/// The tiles of a dimension of the mask: of extent `extent`, from the first one of the block's part on.
#[derive(Clone, Copy, Debug)]
struct MaskSide {
    extent: usize,
    /// The dimension of the grid that partitions it, and the elements of a part.
    axis: Option<(usize, usize)>,
}

/// Which iterations of the loop show a block an element of its mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleIterations {
    /// The load of the mask.
    mask: usize,
    /// The band, `column` along the loop and `row` along the other dimension of the mask.
    band: Band,
    rows: MaskSide,
    columns: MaskSide,
    /// Iterations of the loop.
    range: usize,
}

/// The order in which blocks start, along a dimension of the grid: all blocks at its first index before those at the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockOrder {
    /// The dimension.
    axis: usize,
    /// Whether its indices are counted from the last one.
    from_last: bool,
    /// Sections of the first dimension of the grid, one of which is done before the next one begins; 1 if the order is along that
    /// dimension itself. Every other one is in the opposite order, so that blocks at the ends of two that meet take as long; the last
    /// one is not.
    sections: usize,
}

/// Iterations that all blocks of a kernel run, on a GPU, which leaves out those that a mask hides.
pub fn iterations(request: &Request<'_>) -> usize {
    run_iterations(request).map_or(0, |all| all.blocks.iter().sum())
}

/// SMs as they run the loops of µGraphs, to learn how much time masks save.
pub struct LoopDevice<'a> {
    /// SMs.
    pub sms: usize,
    /// Operations of products that an SM does in a microsecond.
    pub sm_flops_per_us: f64,
    /// The time in which an SM runs an iteration of each of so many CTAs, of so many rows and columns of scores; `None` if latencies are not
    /// modelled, and only the numbers of iterations count.
    pub iteration_time: Option<&'a dyn Fn([usize; 2], usize) -> f64>,
}

/// A kernel of a µGraph as it is lowered.
#[derive(Clone, Copy, Debug)]
pub struct EmittedKernel {
    /// The kernel.
    pub kernel: TensorId,
    /// Its CTAs: fewer than blocks, if these are persistent.
    pub ctas: usize,
    /// CTAs that an SM holds at once.
    pub resident_ctas: usize,
}

/// The time of a µGraph's loops on a GPU, which take `loops_us` if masks hide nothing, as a share of that.
pub fn visible_share(
    graph: &MuGraph,
    stored: &[Stored],
    kernels: &[EmittedKernel],
    device: &LoopDevice<'_>,
    loops_us: f64,
) -> f64 {
    let runs = kernels.iter().filter_map(|emitted| {
        Some((emitted, run_iterations(&Request { graph, kernel: emitted.kernel, stored, name: "" })?))
    });
    let runs: Vec<(&EmittedKernel, RunIterations)> = runs.collect();
    let whole: f64 = runs.iter().map(|(emitted, run)| run.on(device, emitted, 0.0).whole).sum();
    let products_us: f64 = runs.iter().map(|(emitted, run)| run.products_us(device, emitted)).sum();
    // The start of a block takes a fixed time: fewer iterations of a loop that also converts operands.
    let products_share = (products_us / loops_us).min(1.0);
    let visible: f64 =
        runs.iter().map(|(emitted, run)| run.on(device, emitted, products_share).visible).sum();
    if whole == 0.0 { 1.0 } else { visible / whole }
}

/// The iterations of a kernel.
struct RunIterations {
    /// Of its loop.
    range: usize,
    /// Those that each block runs, in the order in which blocks start.
    blocks: Vec<usize>,
    /// Rows and columns of the mask in an iteration, if it hides some.
    tile: Option<[usize; 2]>,
    /// Operations of the products of an iteration.
    flops: usize,
}

/// The times of a kernel's loops, in iterations of a block at the full rate of an SM.
struct LoopTimes {
    /// If the mask hides nothing.
    whole: f64,
    visible: f64,
}

impl RunIterations {
    /// The times of the loops, given which share of an iteration is that of its products.
    fn on(&self, device: &LoopDevice<'_>, emitted: &EmittedKernel, products_share: f64) -> LoopTimes {
        let (Some(tile), Some(iteration_time)) = (self.tile, device.iteration_time) else {
            return LoopTimes {
                whole: (self.range * self.blocks.len().div_ceil(device.sms)) as f64,
                visible: time_in_order(self.blocks.iter().copied(), device.sms) as f64,
            };
        };
        let iteration_time = |ctas: usize| iteration_time(tile, ctas);
        let sms = Sms { count: device.sms, resident: emitted.resident_ctas, iteration_time: &iteration_time };
        let are_persistent = emitted.ctas < self.blocks.len();
        let exposed = products_share * exposed_iterations(tile, are_persistent);
        let blocks = Blocks { iterations: &self.blocks, exposed };
        let whole = sms.time_of_equal(self.blocks.len(), self.range);
        LoopTimes { whole, visible: sms.time_in_order(&blocks) }
    }

    /// Microseconds of the products, if the mask hides nothing.
    fn products_us(&self, device: &LoopDevice<'_>, emitted: &EmittedKernel) -> f64 {
        self.on(device, emitted, 0.0).whole * self.flops as f64 / device.sm_flops_per_us
    }
}

fn run_iterations(request: &Request<'_>) -> Option<RunIterations> {
    let block = request.block().ok()?;
    let steps = TileSteps::of(block, request.graph.shapes()).ok()?;
    let range = block.loop_range;
    let products = steps.tiles.iter().filter(|tile| tile.readers > 0 && tile.stage == Stage::Loop);
    let flops = products.map(|tile| match &tile.step {
        TileStep::Op { op: Op::Matmul, args } => {
            2 * elems(&tile.shape) * steps.tiles[args[0]].shape.last().copied().unwrap_or(1)
        }
        _ => 0,
    });
    let flops = flops.sum();
    let Some(visible) = VisibleIterations::of(request, &steps, &block.grid) else {
        return Some(RunIterations { range, blocks: vec![range; block.blocks()], tile: None, flops });
    };
    let blocks = visible.lengths(visible.order(request, &steps), &block.grid).collect();
    Some(RunIterations { range, blocks, tile: Some(visible.tile()), flops })
}

/// The iterations that a CTA runs: `first .. first + count` of the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct CtaIterations {
    pub first: ExprId,
    /// At least 1.
    pub count: ExprId,
}

impl VisibleIterations {
    /// Of a block whose loop reads a mask that is a band, if it may leave iterations out, and there are some to leave out.
    pub fn of(request: &Request<'_>, steps: &TileSteps, grid: &[usize]) -> Option<VisibleIterations> {
        if steps.loop_range == 1 || !steps.direct_loads.is_empty() {
            return None;
        }
        let masks = (0..steps.tiles.len()).filter(|&tile| steps.tiles[tile].readers > 0);
        let mut all = masks.filter(|&tile| changes_nothing(steps, tile));
        let visible = all.find_map(|tile| Self::of_mask(request, steps, tile))?;
        let shows_all = |block: Vec<usize>| visible.iterations(&block) == (0..steps.loop_range);
        (!indices(grid).all(shows_all)).then_some(visible)
    }

    /// Of a load, if it loads a band, along the loop.
    fn of_mask(request: &Request<'_>, steps: &TileSteps, tile: usize) -> Option<VisibleIterations> {
        let shape = &steps.tiles[tile].shape;
        let TileStep::Load { tensor, grid, along_loop: Some(dim) } = &steps.tiles[tile].step else {
            return None;
        };
        let band = request.band(*tensor)?.limited();
        let (row, column) = (shape.len().checked_sub(2)?, shape.len() - 1);
        let side = |dim: usize, tiles: usize| MaskSide {
            extent: shape[dim],
            axis: grid.iter().position(|part| *part == Some(dim)).map(|axis| (axis, shape[dim] * tiles)),
        };
        let (band, other) = match *dim {
            dim if dim == column => (band, row),
            dim if dim == row => (band.transposed(), column),
            _ => return None,
        };
        let range = steps.loop_range;
        Some(VisibleIterations { mask: tile, band, rows: side(other, 1), columns: side(*dim, range), range })
    }

    /// The iterations that show a block something; at least one.
    pub fn iterations(&self, block: &[usize]) -> Range<usize> {
        let start = |side: MaskSide| side.axis.map_or(0, |(axis, part)| (block[axis] * part) as i64);
        let (distance, tile) = (start(self.rows) - start(self.columns), self.columns.extent as i64);
        let within = |iteration: i64, least: i64| iteration.clamp(least, self.range as i64);
        let Band { above, below } = self.band;
        let first =
            below.map_or(0, |below| (distance - below).div_euclid(tile).clamp(0, self.range as i64 - 1));
        let last_row = self.rows.extent as i64 - 1;
        let end = above.map_or(self.range as i64, |above| {
            within((distance + last_row + above).div_euclid(tile) + 1, first + 1)
        });
        first as usize..end as usize
    }

    /// Rows and columns of the mask in an iteration.
    pub fn tile(&self) -> [usize; 2] {
        [self.rows.extent, self.columns.extent]
    }

    /// The iterations of each block, in their order.
    pub fn lengths(self, order: Option<BlockOrder>, grid: &[usize]) -> impl Iterator<Item = usize> {
        let blocks = indices(&BlockOrder::extents(order, grid)).collect::<Vec<_>>().into_iter();
        let grid = grid.to_vec();
        blocks.map(move |index| match order {
            Some(order) => self.iterations(&order.block(index, &grid)).len(),
            None => self.iterations(&index).len(),
        })
    }

    /// The order of blocks that start on the SM that is the first to be free: longest first, if L2 holds what the loop reads.
    pub fn order(&self, request: &Request<'_>, steps: &TileSteps) -> Option<BlockOrder> {
        self.longest_first().filter(|_| loop_bytes(request, steps) <= ORDERED_BYTES)
    }

    /// The order in which blocks with the most iterations start first, if they are the first or the last ones of a dimension.
    fn longest_first(&self) -> Option<BlockOrder> {
        let (axis, _) = self.rows.axis?;
        let from_last = match self.band {
            Band { above: Some(_), below: None } => true,
            Band { above: None, below: Some(_) } => false,
            _ => return None,
        };
        Some(BlockOrder { axis, from_last, sections: 1 })
    }

    /// The same within each of as few sections of the first dimension of the grid as L2 holds one of.
    pub fn order_in_sections(
        &self,
        request: &Request<'_>,
        steps: &TileSteps,
        grid: &[usize],
    ) -> Option<BlockOrder> {
        let order = self.longest_first()?;
        let bytes = loop_bytes(request, steps);
        let most = if order.axis == 0 { 1 } else { grid[0] };
        let fits = |&sections: &usize| most.is_multiple_of(sections) && bytes <= ORDERED_BYTES * sections;
        (1..=most).find(fits).map(|sections| BlockOrder { sections, ..order })
    }
}

/// Bytes of the tensors that the loop reads.
fn loop_bytes(request: &Request<'_>, steps: &TileSteps) -> usize {
    let read = steps.tiles.iter().filter(|tile| tile.readers > 0 && tile.stage == Stage::Loop);
    let bytes = read.map(|tile| match tile.step {
        TileStep::Load { tensor, .. } if request.is_in_memory(tensor) => {
            let stored = &request.stored[tensor.index()];
            stored.elems * stored.dtype.size_bytes()
        }
        _ => 0,
    });
    bytes.sum()
}

impl BlockOrder {
    /// The extents of what the number of a block in the order is unflattened to: of the grid, without an order.
    ///
    /// ```text
    /// grid [g0, .., ga, ..], order along a:   [sections, ga, g0 / sections, .., ..]
    /// ```
    pub fn extents(order: Option<BlockOrder>, grid: &[usize]) -> Vec<usize> {
        let Some(BlockOrder { axis, sections, .. }) = order else { return grid.to_vec() };
        let mut extents = grid.to_vec();
        if axis > 0 {
            extents[0] /= sections;
        }
        extents[..=axis].rotate_right(1);
        extents.insert(0, sections);
        extents
    }

    /// The block at an index in [`extents`](Self::extents).
    fn block(self, mut index: Vec<usize>, grid: &[usize]) -> Vec<usize> {
        let BlockOrder { axis, from_last, sections } = self;
        let section = index.remove(0);
        index[..=axis].rotate_left(1);
        if axis > 0 {
            index[0] += section * (grid[0] / sections);
        }
        let is_reversed = section % 2 == sections % 2;
        if from_last != is_reversed {
            index[axis] = grid[axis] - 1 - index[axis];
        }
        index
    }

    /// [`block`](Self::block), as expressions.
    pub fn grid_index(self, exprs: &mut Exprs, mut index: Vec<ExprId>, grid: &[usize]) -> Vec<ExprId> {
        let BlockOrder { axis, from_last, sections } = self;
        let section = index.remove(0);
        index[..=axis].rotate_left(1);
        if axis > 0 {
            index[0] = exprs.linear_index(&[section, index[0]], &[grid[0] / sections, 1]);
        }
        let last = exprs.index(grid[axis] as i64 - 1);
        let (forth, back) = (index[axis], exprs.sub(last, index[axis]));
        let (forward, reversed) = if from_last { (back, forth) } else { (forth, back) };
        let (two, parity) = (exprs.index(2), exprs.index(sections as i64 % 2));
        let of_section = exprs.floor_rem(section, two);
        let is_reversed = exprs.eq(of_section, parity);
        index[axis] = if sections == 1 { forward } else { exprs.select(is_reversed, reversed, forward) };
        index
    }
}

impl BlockEmitter<'_> {
    /// Binds the iterations that the CTA runs: its share of all, or of the visible ones.
    pub fn bind_iterations(&mut self) -> CtaIterations {
        let per_cta = self.iterations_per_cta();
        let Some(visible) = self.visible else {
            let first = self.program.exprs.mul_const(self.ids.cta_rank, per_cta as i64);
            return CtaIterations { first, count: self.index(per_cta) };
        };
        let [first, end] = self.visible_range(&visible);
        let ctas = self.plan.schedule.cluster;
        let exprs = &mut self.program.exprs;
        let (count, divisor) = (exprs.sub(end, first), exprs.index(ctas as i64));
        let rounded = exprs.add_const(count, ctas as i64 - 1);
        let share = exprs.floor_div(rounded, divisor);
        let share = self.simplifier.simplify(&mut self.program.exprs, share);
        let name = "iterations".to_owned();
        let range = Some((1, per_cta as i64));
        let exprs = &mut self.program.exprs;
        let var = exprs.declare(VarInfo { name, ty: Type::INDEX, range, multiple_of: 1 });
        let count = exprs.var(var);
        let (shared, all) = (exprs.mul_const(count, -(ctas as i64)), exprs.index(visible.range as i64));
        let latest = exprs.add2(all, shared);
        let start = exprs.min(first, latest);
        let skipped = exprs.mul(self.ids.cta_rank, count);
        let first = exprs.add2(start, skipped);
        let mut body = vec![Stmt::Let(var, share)];
        let first = self.bind_index(&mut body, "first_iteration", first, (visible.range, 1));
        self.code.body.extend(body);
        CtaIterations { first, count }
    }

    /// The block's first row less its first column.
    fn block_distance(&mut self, visible: &VisibleIterations) -> ExprId {
        let mut start = |side: MaskSide| match side.axis {
            Some((axis, part)) => self.program.exprs.mul_const(self.ids.block[axis], part as i64),
            None => self.program.exprs.index(0),
        };
        let (row, column) = (start(visible.rows), start(visible.columns));
        self.program.exprs.sub(row, column)
    }

    /// [`VisibleIterations::iterations`] of the block, as expressions.
    fn visible_range(&mut self, visible: &VisibleIterations) -> [ExprId; 2] {
        let distance = self.block_distance(visible);
        let exprs = &mut self.program.exprs;
        let (zero, range) = (exprs.index(0), exprs.index(visible.range as i64));
        let (last, tile) =
            (exprs.index(visible.range as i64 - 1), exprs.index(visible.columns.extent as i64));
        let first = visible.band.below.map_or(zero, |below| {
            let column = exprs.add_const(distance, -below);
            let iteration = exprs.floor_div(column, tile);
            let iteration = exprs.max(iteration, zero);
            exprs.min(iteration, last)
        });
        let end = visible.band.above.map_or(range, |above| {
            let column = exprs.add_const(distance, visible.rows.extent as i64 - 1 + above);
            let iteration = exprs.floor_div(column, tile);
            let (end, least) = (exprs.add_const(iteration, 1), exprs.add_const(first, 1));
            let end = exprs.max(end, least);
            exprs.min(end, range)
        });
        [first, end]
    }

    /// Masks a product in its own registers, in iterations of which the mask hides something: the last one, of the mask of what is
    /// past the end; false if the registers are not free for that, or the mask is another one.
    pub fn mask_in_place(&mut self, tile: usize, [product, mask]: [usize; 2]) -> bool {
        let steps = self.plan.steps;
        let visible = self.visible.filter(|visible| visible.mask == mask);
        let is_of_end = matches!(steps.tiles[mask].step, TileStep::Inside { .. });
        if visible.is_none() && !is_of_end {
            return false;
        }
        let is_free = matches!(
            steps.tiles[product].step,
            TileStep::Op { op: Op::Matmul | Op::Binary(BinaryFn::Mask), .. }
        ) && steps.only_reader(product) == Some(tile)
            && steps.tiles[product].shape == steps.tiles[tile].shape;
        let [TileHome::Registers(registers)] = &self.tiles.homes[product][..] else { return false };
        if !is_free || !matches!(registers.at.columns, ColumnLayout::Partitioned(_)) {
            return false;
        }
        let RegisterTile { at, buffer } = registers.clone();
        let shape = steps.tiles[tile].shape.clone();
        let then = self.for_each_slot(&at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let value = this.value_at(tile, &point);
            let offset = this.register_offset(&slot, &at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        let condition = match visible {
            Some(visible) => self.hides_any(&visible),
            None => {
                let iteration = self.block_iteration(self.iteration);
                let last = self.index(steps.loop_range - 1);
                self.program.exprs.eq(iteration, last)
            }
        };
        self.emit(vec![Stmt::If { condition, then, otherwise: Vec::new() }]);
        self.tiles.homes[tile].push(TileHome::Registers(RegisterTile { at, buffer }));
        true
    }

    /// Whether the mask hides an element of this iteration's tile.
    fn hides_any(&mut self, visible: &VisibleIterations) -> ExprId {
        let distance = self.block_distance(visible);
        let iteration = self.block_iteration(self.iteration);
        let exprs = &mut self.program.exprs;
        let skipped = exprs.mul_const(iteration, visible.columns.extent as i64);
        // The first column less the first row.
        let nearest = exprs.sub(skipped, distance);
        let hidden_above = visible.band.above.map(|above| {
            let limit = exprs.index(above - (visible.columns.extent as i64 - 1));
            exprs.lt(limit, nearest)
        });
        let hidden_below = visible.band.below.map(|below| {
            let limit = exprs.index(visible.rows.extent as i64 - 1 - below);
            exprs.lt(nearest, limit)
        });
        let hidden = match (hidden_above, hidden_below) {
            (Some(above), Some(below)) => exprs.or(above, below),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => exprs.bool(false),
        };
        self.simplifier.simplify(&mut self.program.exprs, hidden)
    }

    /// Statements that are run if an iteration is one of the CTA's.
    pub fn if_iteration(&mut self, iteration: ExprId, stmts: Vec<Stmt>) -> Vec<Stmt> {
        let condition = self.program.exprs.lt(iteration, self.iterations.count);
        let condition = self.simplifier.simplify(&mut self.program.exprs, condition);
        match self.program.exprs.as_bool(condition) {
            Some(true) => stmts,
            _ if stmts.is_empty() => stmts,
            _ => vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }],
        }
    }
}

/// Whether an iteration in which all elements of the tile `mask` are zero changes no accumulator and no running maximum.
fn changes_nothing(steps: &TileSteps, mask: usize) -> bool {
    if steps.tiles[mask].stage != Stage::Loop {
        return false;
    }
    let mut values: Vec<Hidden> = Vec::with_capacity(steps.tiles.len());
    for (at, tile) in steps.tiles.iter().enumerate() {
        let value = match &tile.step {
            TileStep::Load { .. } if at == mask => Hidden::Zero,
            TileStep::Load { .. } | TileStep::Inside { .. } => Hidden::Finite,
            TileStep::Op { op, args } => {
                let args: Vec<Hidden> = args.iter().map(|&arg| values[arg]).collect();
                hidden_value(op, &args)
            }
            TileStep::Accumulate { how, tile: from } => {
                let is_kept = match how {
                    Accumulation::Sum | Accumulation::RescaledSum { .. } => values[*from] == Hidden::Zero,
                    Accumulation::Max => values[*from] == Hidden::Lowest,
                };
                if tile.readers > 0 && !is_kept {
                    return false;
                }
                Hidden::Unknown
            }
            TileStep::RunningMax { tile: from } => {
                if tile.readers > 0 && values[*from] != Hidden::Lowest {
                    return false;
                }
                Hidden::Unknown
            }
        };
        values.push(value);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::BlockOrder;
    use crate::tiling::indices;
    use orch_compute::{Exprs, simplify};
    use std::collections::BTreeSet;

    /// Every block has a place in the order, which its expressions give too.
    #[test]
    fn orders_have_each_block_once() {
        let grid = [6, 2, 4];
        let blocks: BTreeSet<Vec<usize>> = indices(&grid).collect();
        for (axis, from_last, sections) in [
            (0, true, 1),
            (0, false, 1),
            (1, true, 3),
            (2, true, 1),
            (2, true, 2),
            (2, false, 3),
            (2, true, 6),
        ] {
            let order = BlockOrder { axis, from_last, sections };
            let mut found = Vec::new();
            for index in indices(&BlockOrder::extents(Some(order), &grid)) {
                let mut exprs = Exprs::new();
                let given = index.iter().map(|&at| exprs.index(at as i64)).collect();
                let computed = order.grid_index(&mut exprs, given, &grid);
                let block = order.block(index, &grid);
                for (id, &at) in computed.into_iter().zip(&block) {
                    let id = simplify(&mut exprs, id);
                    assert_eq!(exprs.as_int(id), Some(at as i64), "{order:?}");
                }
                found.push(block);
            }
            assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), blocks, "{order:?}");
            // Where sections meet, the blocks of both are at the same index.
            let along: Vec<usize> = found.iter().map(|block| block[axis]).collect();
            assert!(along.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1), "{order:?} {along:?}");
            assert_eq!(along.last(), Some(&if from_last { 0 } else { grid[axis] - 1 }));
        }
    }
}
