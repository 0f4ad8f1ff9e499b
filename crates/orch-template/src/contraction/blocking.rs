//! Register and cache blocking of contractions, chosen by a small model of the core.

use super::form::GemmShape;
use super::lines::LineSize;
use super::math_unit::{AMX_COLUMNS, AMX_K, AMX_SIDE, CpuMathUnit};
use super::pack_cost::RowOrder;
use super::schedule::CpuContractionSchedule;
use super::staging::Staging;
use super::window::WindowSize;
use crate::balance::{EVEN_FOR, TASK_COST, UNEVEN_TASKS, sharing_cost};
use orch_thread::amx::MAX_TILE_ROWS;
use orch_thread::program::CACHE_LINE;
use orch_thread::shares::{groups, parts};
use orch_thread::target::CpuTarget;

impl CpuMathUnit {
    /// Schedules in order of modelled cost, best first; at most `limit`.
    pub fn schedules(
        self,
        extents: GemmShape,
        staging: Staging,
        lanes: usize,
        target: &CpuTarget,
        limit: usize,
    ) -> Vec<CpuContractionSchedule> {
        match self {
            CpuMathUnit::Fma => CpuContractionSchedule::candidates(extents, staging, lanes, target, limit),
            CpuMathUnit::Bf16Dot => {
                let pairs = GemmShape { k: extents.k.div_ceil(2), ..extents };
                CpuContractionSchedule::candidates(pairs, staging, lanes, target, limit)
            }
            CpuMathUnit::Amx => vec![amx_schedule(extents, staging, lanes, target)],
        }
    }
}

/// The only schedule: four accumulator tiles share two tiles of each operand, which fills the eight that there are.
fn amx_schedule(
    extents: GemmShape,
    staging: Staging,
    lanes: usize,
    target: &CpuTarget,
) -> CpuContractionSchedule {
    let rows = (AMX_SIDE * MAX_TILE_ROWS).min(extents.m.max(1));
    let vectors = AMX_SIDE.min(extents.n.div_ceil(AMX_COLUMNS).max(1));
    let pairs = GemmShape { k: extents.k.next_multiple_of(AMX_K) / 2, ..extents };
    let tile = TileShape { rows, vectors, lines: None };
    CpuContractionSchedule::whole_k(pairs, staging, tile, lanes, target)
}

/// A register tile.
#[derive(Clone, Copy)]
struct TileShape {
    /// Its rows.
    rows: usize,
    /// Vectors of a row.
    vectors: usize,
    /// The lines that it lies within, if rows are read where they lie.
    lines: Option<LineSize>,
}

impl TileShape {
    /// Row tiles of so many rows.
    fn strips(&self, m: usize) -> usize {
        let of_lines = |lines: LineSize| m / lines.rows * lines.rows.div_ceil(self.rows);
        self.lines.map_or_else(|| m.div_ceil(self.rows), of_lines).max(1)
    }

    /// Row tiles of a block whose part of a window stays in the L2 beside panels, as it is packed or where it lies; more where packing
    /// what blocks have in common again and again would take longer than reading from beyond the L2.
    fn strips_of_window(&self, window: WindowSize, extents: GemmShape, target: &CpuTarget) -> usize {
        // What is read where it lies may as well come from beyond the L2.
        let is_packed = self.lines.is_none();
        let share = if is_packed { WINDOW_SHARE } else { CACHE_SHARE };
        let most_elems = (target.l2_bytes as f64 * share) as usize / size_of::<f32>();
        let all = (window.lines * window.line_rows).div_ceil(self.rows);
        let fits = |strips: &usize| window.elems_of(strips * self.rows) <= most_elems;
        let most = (1..=all).take_while(fits).last().unwrap_or(1);
        if !is_packed {
            return most.max(MIN_BLOCKED_ROWS.div_ceil(self.rows));
        }
        let packing = |strips: usize| {
            let rows = strips * self.rows;
            PACKED_VECTOR_SLOTS * window.elems_of(rows) as f64 / (rows * extents.n * extents.k) as f64
        };
        let most_packing = FEW_PACKING.max(MOST_OVERLAP * packing(all));
        (most..all).find(|&strips| packing(strips) <= most_packing).unwrap_or(all.max(1))
    }

    /// Terms that follow each other at an equal distance, if not all do.
    fn run(&self, staging: Staging) -> Option<usize> {
        self.lines.map(|lines| lines.run).or(staging.window.map(|window| window.run))
    }
}

/// Register tiles that keep the multiply-add units busy on targets with 32 vector registers; each leaves room
/// for the loaded vectors of the second operand. Tiles of one to three rows serve skinny products (small M).
const TILES_32: [(usize, usize); 22] = [
    (6, 4),
    (8, 3),
    (9, 3),
    (14, 2),
    (12, 2),
    (13, 2),
    (4, 6),
    (5, 5),
    (5, 4),
    (4, 4),
    (3, 8),
    (2, 12),
    (2, 8),
    (1, 16),
    (1, 8),
    (24, 1),
    (16, 1),
    (10, 2),
    (8, 2),
    (6, 3),
    (8, 1),
    (4, 2),
];

/// Register tiles for targets with 16 vector registers.
const TILES_16: [(usize, usize); 12] =
    [(6, 2), (4, 3), (5, 2), (4, 2), (3, 4), (3, 3), (2, 5), (2, 4), (1, 8), (1, 4), (12, 1), (8, 1)];

/// Steps of K that such row tiles read of a panel before they go on to the next one: what lies in one page is read together.
const STREAMED_TERMS: usize = 64;

/// Columns of a work item that reads so, at least.
const STREAMED_COLUMNS: usize = 256;

/// Multiply-adds that a unit could do while an element of a row comes from the L2, every time it is read.
const COLLISION_SLOTS: f64 = 2.3;

/// Multiply-adds that a unit could do while an address of a row that is not a constant distance away is fetched.
const CROSSING_SLOTS: f64 = 0.2;

/// Multiply-adds that a unit could do while one vector of a panel comes from the L2.
const PANEL_VECTOR_SLOTS: f64 = 5.5;

/// Bytes of the second operand's panel and the first operand's block that should stay in the L2.
const CACHE_SHARE: f64 = 0.5;

/// Share of the L2 that the part of a window for a block of rows may take.
const WINDOW_SHARE: f64 = 0.25;

/// Share of the L2 that a block of rows and a panel may take before K is blocked.
const BLOCKING_SHARE: f64 = 0.75;

/// Terms of a block, about: its part of a panel leaves the L2 to the rows.
const BLOCK_TERMS: usize = 512;

/// Most rows of a block for which K is blocked.
const MOST_BLOCK_ROWS: usize = 256;

/// Rows of a work item that walks K in blocks, at least, so that a part of a panel serves several row tiles.
const MIN_BLOCKED_ROWS: usize = 24;

/// Fewer work items than this leave some of many threads idle.
const FEW_TASKS: usize = 48;

/// Rows for which a panel is packed, at least, if there are so many: packing takes a sixth of their multiply-adds.
const ROWS_OF_A_PACKED_PANEL: usize = 96;

/// Slots of a multiply-add unit in which a vector that is packed is loaded from beyond the L1, and stored.
const PACKED_VECTOR_SLOTS: f64 = 16.0;

/// Multiply-adds that a unit could do while one vector of a panel comes from the L3.
const FAR_VECTOR_SLOTS: f64 = 12.0;

/// Multiply-adds that a unit could do while a line of a row comes from the L3, once for all panels of a work item. With 1, 2, 4 and 8 panels of 32
/// columns a product of 128 rows by 4096 x 4096 runs at 132, 146, 152 and 157 GFLOP/s, on an Emerald Rapids.
const FAR_LINE_SLOTS: f64 = 7.0;

/// The same of packed rows whose neighbours in a line are rows, or pixels, so that the next term lies in another line: a convolution of 512 to 512
/// channels by 3 x 3 windows of 32 x 32 planar pixels takes 1.8 times as long as of pixels with channels last, on a Zen.
const SCATTERED_LINE_SLOTS: f64 = 24.0;

/// Numbers of panels of a work item that are tried where rows come from the L3.
const PANELS_OF_FAR_ROWS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Elements that one thread packs, at most, over those that there are, where blocks of rows overlap and a cache wants no smaller ones.
const MOST_OVERLAP: f64 = 1.3;

/// The share of a block's multiply-adds that its packing may take whatever blocks have in common.
const FEW_PACKING: f64 = 0.2;

/// Numbers of blocks of rows that are packed which are tried, beside the least: those that even out among usual numbers of threads.
const PACKED_BLOCKS: [usize; 9] = [4, 8, 16, 24, 32, 48, 64, 96, 128];

/// Most rows of a work item in scratch where rows are the inner coordinate: neighbours along K stay within a page or two.
const MOST_INNER_ROWS: usize = 384;

impl CpuContractionSchedule {
    /// Schedules in order of modelled cost, best first; at most `limit`.
    pub fn candidates(
        extents: GemmShape,
        staging: Staging,
        lanes: usize,
        target: &CpuTarget,
        limit: usize,
    ) -> Vec<Self> {
        let all: &[(usize, usize)] = if target.vector_registers >= 32 { &TILES_32 } else { &TILES_16 };
        let most_vectors = extents.n.div_ceil(lanes).max(1);
        let fitted =
            |&(rows, vectors): &(usize, usize)| (rows.min(extents.m.max(1)), vectors.min(most_vectors));
        let mut tiles: Vec<(usize, usize)> = all.iter().map(fitted).collect();
        // Panels that do not divide the columns would be copied.
        let is_in_place = |&(rows, vectors): &(usize, usize)| {
            let width = vectors * lanes;
            let waits = staging.waits_for_panels((rows, width), extents, target);
            !waits || extents.n.is_multiple_of(width)
        };
        if tiles.iter().any(is_in_place) {
            tiles.retain(is_in_place);
        }
        let tiles = tiles.into_iter().map(|(rows, vectors)| TileShape { rows, vectors, lines: None });
        let of_lines = staging.lines.into_iter().flat_map(|lines| {
            all.iter().map(move |&(rows, vectors)| {
                // As even as the tiles of a line can be.
                let rows = lines.rows.div_ceil(lines.rows.div_ceil(rows));
                TileShape { rows, vectors: vectors.min(most_vectors), lines: Some(lines) }
            })
        });
        let ranked = tiles.chain(of_lines).map(|tile| {
            let schedule = Self::blocked(extents, staging, tile, lanes, target);
            let slots = schedule.modelled_slots(extents, staging, lanes, target);
            let packing = schedule.packing_slots(extents, staging, lanes);
            (packing + slots * (1.0 + BALANCE_WEIGHT * schedule.imbalance(extents, lanes)), schedule)
        });
        let mut ranked: Vec<(f64, Self)> = ranked.collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut schedules: Vec<Self> = Vec::new();
        for (_, schedule) in ranked {
            if schedules.len() < limit && !schedules.contains(&schedule) {
                schedules.push(schedule);
            }
        }
        schedules
    }

    /// Fills in the work item blocking for a register tile.
    ///
    /// A work item's rows stay in the L2 while its panels pass by. Rows that are copied meet all panels, or each of
    /// several work items copies them, which pays only for skinny products; panels that are copied must meet all rows.
    fn blocked(
        extents: GemmShape,
        staging: Staging,
        tile: TileShape,
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        Self::blocked_k(extents, staging, tile, lanes, target)
            .unwrap_or_else(|| Self::whole_k(extents, staging, tile, lanes, target))
    }

    /// The work item blocking where each register tile walks all of K before the next one.
    fn whole_k(
        extents: GemmShape,
        staging: Staging,
        tile: TileShape,
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        let GemmShape { batch, m, n, k } = extents;
        let TileShape { rows, vectors, lines } = tile;
        let panels = n.div_ceil(vectors * lanes).max(1);
        let row_bytes = (k * target.vector_bytes / lanes).max(1);
        let cache_rows = ((target.l2_bytes as f64 * CACHE_SHARE) as usize / row_bytes).max(rows);
        let cache_rows = match staging.rows {
            Some(RowOrder::RowsInner) => cache_rows.min(MOST_INNER_ROWS),
            _ => cache_rows,
        };
        let strips = tile.strips(m);
        let is_packed = staging.packs_rows(lines.is_some());
        // Each block packs the panels that it meets.
        let least_strips = if staging.panels { ROWS_OF_A_PACKED_PANEL.div_ceil(rows) } else { 1 };
        let blocks = match (staging.window, staging.panels) {
            (Some(window), _) => {
                strips.div_ceil(tile.strips_of_window(window, extents, target).max(least_strips))
            }
            (None, true) if !is_packed => 1,
            (None, _) => strips.div_ceil((cache_rows / rows).max(least_strips)),
        };
        let tile_work = tile_work((rows, vectors * lanes), k, staging);
        let block_strips = strips.div_ceil(blocks.max(1));
        let packed = PackedRows { extents, staging, tile, lanes, target, tile_work };
        let (block_strips, cut) = match is_packed && !staging.panels {
            true => packed.cut(blocks, 1),
            false => {
                let others = batch * strips.div_ceil(block_strips);
                let tiles = TileGrid { others, strips: block_strips, panels };
                (block_strips, tiles.cut(tile_work, if staging.panels { block_strips } else { 1 }))
            }
        };
        let tiles = TileGrid { others: batch * strips.div_ceil(block_strips), strips: block_strips, panels };
        let all_panels = tiles.cut_strips(tile_work).filter(|all| {
            let width = vectors * lanes;
            // Others are copied panel by panel.
            let lie = !staging.panels && (staging.term_bytes.is_none() || n.is_multiple_of(width));
            let panel_bytes = k * n.next_multiple_of(width) * target.vector_bytes / lanes;
            let stay = panel_bytes as f64 <= target.l2_bytes as f64 * PANELS_SHARE;
            lie && stay && panels > 1 && tiles.cost(all) <= tiles.cost(&cut) + ROWS_OUTER_GAIN
        });
        let (cut, rows_outer) = all_panels.map_or((cut, false), |all| (all, true));
        Self {
            rows,
            vectors,
            block_rows: block_strips.next_multiple_of(cut.strips) * rows,
            block_panels: cut.panels,
            task_rows: cut.strips * rows,
            block_k: k,
            rows_outer,
            line_rows: lines.map(|lines| lines.rows),
        }
    }

    /// The work item blocking for K so long that a panel and a block of rows do not stay in the L2:
    /// the accumulators of a block are kept in scratch, and K is walked a few hundred elements at a time.
    fn blocked_k(
        extents: GemmShape,
        staging: Staging,
        tile: TileShape,
        lanes: usize,
        target: &CpuTarget,
    ) -> Option<Self> {
        let GemmShape { batch, m, n, k } = extents;
        let TileShape { rows, vectors, lines } = tile;
        let line_rows = lines.map(|lines| lines.rows);
        let (width, elem_bytes) = (vectors * lanes, target.vector_bytes / lanes);
        if staging.waits_for_panels((rows, width), extents, target) && k > STREAMED_TERMS {
            let panels = n.div_ceil(width).max(1);
            let strips = tile.strips(m);
            let tiles = TileGrid { others: batch, strips, panels };
            let cut = tiles.cut(tile_work((rows, width), k, staging), strips);
            let block_panels = cut.panels.max(STREAMED_COLUMNS.div_ceil(width)).min(panels);
            let block_rows = strips * rows;
            let block_k = STREAMED_TERMS;
            return Some(Self {
                rows,
                vectors,
                block_rows,
                block_panels,
                task_rows: block_rows,
                block_k,
                rows_outer: false,
                line_rows,
            });
        }
        let strips = tile.strips(m);
        let most = staging.window.map_or(strips, |window| tile.strips_of_window(window, extents, target));
        let block_strips = strips.div_ceil(strips.div_ceil(most).max(m.div_ceil(MOST_BLOCK_ROWS)).max(1));
        let row_elems = staging.row_elems(block_strips * rows, k);
        let working_set = (row_elems + width * k) * elem_bytes;
        if staging.panels || m < 2 * rows || (working_set as f64) < target.l2_bytes as f64 * BLOCKING_SHARE {
            return None;
        }
        let block_k = match tile.run(staging) {
            // Blocks of whole runs, or of even parts of them.
            Some(run) if run <= BLOCK_TERMS => BLOCK_TERMS / run * run,
            Some(run) => {
                run / (2..).find(|&parts| run.is_multiple_of(parts) && run / parts <= BLOCK_TERMS)?
            }
            None => k.div_ceil(k.div_ceil(BLOCK_TERMS)).next_multiple_of(lanes),
        };
        if block_k >= k {
            return None;
        }
        let panels = n.div_ceil(width).max(1);
        let tile_work = tile_work((rows, width), k, staging);
        let least_strips = MIN_BLOCKED_ROWS.div_ceil(rows);
        let (block_strips, cut) = match staging.packs_rows(lines.is_some()) {
            true => {
                let packed = PackedRows { extents, staging, tile, lanes, target, tile_work };
                packed.cut(strips.div_ceil(block_strips), least_strips)
            }
            false => {
                let others = batch * strips.div_ceil(block_strips);
                let tiles = TileGrid { others, strips: block_strips, panels };
                // Threads that wait cost more than parts of panels that are read again.
                let are_few = others * block_strips.div_ceil(least_strips) * panels < FEW_TASKS;
                let least_strips = if are_few { 1 } else { least_strips.min(block_strips) };
                let far = FarRows::of(row_elems, elem_bytes, target).filter(|_| lines.is_none());
                let cut = far.and_then(|far| tiles.cut_of_far_rows(far, vectors, tile_work, least_strips));
                (block_strips, cut.unwrap_or_else(|| tiles.cut(tile_work, least_strips)))
            }
        };
        let room = (target.l2_bytes / 4 / (cut.strips * rows * width * elem_bytes)).max(1);
        Some(Self {
            rows,
            vectors,
            block_rows: block_strips.next_multiple_of(cut.strips) * rows,
            block_panels: cut.panels.min(room),
            task_rows: cut.strips * rows,
            block_k,
            rows_outer: false,
            line_rows,
        })
    }

    /// Slots of a multiply-add unit that the packing of rows takes, in part a mean over numbers of threads: threads pack a block each that
    /// they have work items of.
    fn packing_slots(&self, extents: GemmShape, staging: Staging, lanes: usize) -> f64 {
        let grid = self.grid(extents, lanes);
        let elems = match (self.line_rows, staging.window, staging.rows) {
            (None, Some(window), _) => {
                grid.row_blocks as f64 * window.usual_elems_of(self.block_rows.min(extents.m))
            }
            (None, None, Some(_)) => (extents.m * extents.k) as f64,
            (Some(_), ..) | (None, None, None) => return 0.0,
        };
        let blocks = extents.batch * grid.row_blocks;
        let more = |&threads: &usize| {
            let most = most_blocks(blocks, grid.tasks_of_block(), threads);
            most as f64 * threads as f64 / blocks as f64 - 1.0
        };
        let more = EVEN_FOR.iter().map(more).sum::<f64>() / EVEN_FOR.len() as f64;
        extents.batch as f64 * elems / lanes as f64 * PACKED_VECTOR_SLOTS * (1.0 + BALANCE_WEIGHT * more)
    }

    /// How much longer than an even share the largest share of work items is, a mean over numbers of threads; 0 for products that
    /// are too small for many threads.
    fn imbalance(&self, extents: GemmShape, lanes: usize) -> f64 {
        let rows = extents.m.max(ROWS_OF_A_PANEL);
        let multiply_adds = extents.batch * rows * extents.n * extents.k;
        let size = (multiply_adds as f64 / (16 * MIN_TASK_MULTIPLY_ADDS) as f64).min(1.0);
        let shares = self.largest_shares(extents, lanes, &EVEN_FOR);
        let imbalance = shares.iter().sum::<f64>() / shares.len() as f64 - 1.0;
        size * imbalance.min(MOST_IMBALANCE)
    }

    /// For numbers of threads how many times as much as an even share the largest of the ranges is into which work items are cut.
    pub(super) fn largest_shares(&self, extents: GemmShape, lanes: usize, threads: &[usize]) -> Vec<f64> {
        let grid = self.grid(extents, lanes);
        let width = self.block_panels * self.vectors * lanes;
        let (m, n) = (extents.m, extents.n);
        // Elements of the result of the work items before one: [batch][row block][panel block][part of rows].
        let before = |task: usize| {
            let (part, rest) = (task % grid.row_parts, task / grid.row_parts);
            let (panel, block) = (rest % grid.panel_blocks, rest / grid.panel_blocks);
            let (row_block, batch) = (block % grid.row_blocks, block / grid.row_blocks);
            let strip = row_block * (self.block_rows / self.rows);
            let row_of = |strips: usize| self.first_row(m, strip + strips);
            let (row, column) = (row_of(0), (panel * width).min(n));
            let rows = row_of(self.block_rows / self.rows) - row;
            let columns = width.min(n - column);
            let before = (row_of(part * (self.task_rows / self.rows)) - row).min(rows);
            batch * m * n + row * n + rows * column + before * columns
        };
        let tasks = grid.tasks();
        let all = before(tasks).max(1);
        let largest = |&threads: &usize| {
            let range = parts(tasks, threads).map(|items| before(items.end) - before(items.start)).max();
            (range.unwrap_or(0) * threads) as f64 / all as f64
        };
        threads.iter().map(largest).collect()
    }

    /// The speed of the product as a share of that of the same register tiles on operands at hand, in rows and panels that need no copies.
    pub(super) fn relative_speed(
        &self,
        extents: GemmShape,
        staging: Staging,
        lanes: usize,
        target: &CpuTarget,
    ) -> f64 {
        let at_hand = self.tile_slots(extents, Staging::default(), lanes, target);
        at_hand / self.modelled_slots(extents, staging, lanes, target).max(at_hand)
    }

    /// Slots of a multiply-add unit that one product takes, those of waiting for rows from the L3 included.
    fn modelled_slots(&self, extents: GemmShape, staging: Staging, lanes: usize, target: &CpuTarget) -> f64 {
        self.tile_slots(extents, staging, lanes, target)
            + self.far_line_slots(extents, staging, lanes, target)
    }

    /// Slots that its register tiles take: each step of `k` issues `rows * vectors` multiply-adds
    /// and `rows + vectors` loads, streams `vectors` of a panel, and a chain of multiply-adds has to wait for itself.
    fn tile_slots(&self, extents: GemmShape, staging: Staging, lanes: usize, target: &CpuTarget) -> f64 {
        /// Multiply-adds that are in flight at a time.
        const LATENCY: f64 = 8.0;
        const STORE_AND_SETUP: f64 = 6.0;
        const TILE_SETUP: f64 = 48.0;
        /// What a load costs beside the multiply-adds that hide it.
        const ISSUE_SHARE: f64 = 0.1;
        /// A load where loads are what a step waits for: what comes from the L2 takes places of them in the L1, and nothing hides a miss.
        const LOAD_SLOTS: f64 = 1.5;
        /// Addresses of rows that registers hold.
        const HELD_ADDRESSES: f64 = 10.0;
        /// A run's addresses and guards, and the end of its loop, which is not foreseen.
        const RUN_SETUP: f64 = 40.0;
        let terms = self.block_k.min(extents.k);
        let panel_bytes = terms * self.vectors * target.vector_bytes;
        let is_streamed = panel_bytes > target.l1_bytes / 2
            || staging.panel_lines_collide(terms, target)
            || staging.waits_for_panels((self.rows, self.vectors * lanes), extents, target);
        // A panel that was packed and leaves the L2 until the next row tile reads it again.
        let is_far = staging.panels && panel_bytes > target.l2_bytes / 4 * 3;
        let stream = match is_streamed {
            _ if is_far => FAR_VECTOR_SLOTS,
            true => PANEL_VECTOR_SLOTS,
            false => 1.0,
        };
        let of_lines = staging.lines.filter(|_| self.line_rows.is_some());
        // Rows that go from line to line have an address each.
        let is_crossing = match staging.window {
            _ if of_lines.is_some() => false,
            Some(window) => !window.row_run.is_multiple_of(self.rows),
            None => staging.lines.is_some() && staging.rows.is_none(),
        };
        // Rows of one pixel each lie in places of the image, whether they are read line by line or not.
        let is_in_lines = of_lines.is_some() || is_crossing && staging.window.is_none();
        let terms = extents.k as f64;
        let run = of_lines.map(|lines| lines.run).or(staging.window.map(|window| window.run));
        let runs = run.map_or(0.0, |run| terms / run as f64);
        let inside = of_lines.map_or(1.0, |lines| lines.pairs_inside as f64 / lines.pairs as f64);
        let tile = |rows: usize, vectors: usize| {
            let collides = match is_in_lines {
                true => staging.lines_collide(rows, target),
                false => staging.rows_collide(rows, target),
            };
            let (rows, vectors) = (rows as f64, vectors as f64);
            // Addresses that no register holds are loaded as well.
            let addresses = if is_crossing { (rows - HELD_ADDRESSES).max(0.0) } else { 0.0 };
            let loads = LOAD_SLOTS * (rows + vectors + addresses);
            let step = (rows * vectors).max(loads).max(stream * vectors).max(LATENCY);
            let issue = step + ISSUE_SHARE * (rows + vectors);
            let issue = issue + if collides { COLLISION_SLOTS * rows } else { 0.0 };
            let issue = issue + if is_crossing { CROSSING_SLOTS * rows } else { 0.0 };
            inside * terms * issue + RUN_SETUP * runs + STORE_AND_SETUP * rows * vectors + TILE_SETUP
        };
        let split = self.row_split(extents.m);
        let all_vectors = extents.n.div_ceil(lanes);
        let (full_panels, rest_vectors) = (all_vectors / self.vectors, all_vectors % self.vectors);
        let mut slots = 0.0;
        for (rows, strips) in [(self.rows, split.full), (split.rest_rows, split.rests)] {
            for (vectors, panels) in
                [(self.vectors, full_panels), (rest_vectors, usize::from(rest_vectors > 0))]
            {
                if strips * panels > 0 {
                    slots += (strips * panels) as f64 * tile(rows, vectors);
                }
            }
        }
        // Remainders are code of their own, and leave registers idle beside what is counted.
        let variants = (1 + usize::from(split.rests > 0 && split.full > 0))
            * (1 + usize::from(rest_vectors > 0 && full_panels > 0));
        slots * extents.batch as f64 * (1.0 + 0.02 * (variants - 1) as f64)
    }

    /// Slots of a multiply-add unit in which rows come from the L3, once for each work item: those that are read in place, and packed ones whose
    /// next term lies in another line.
    fn far_line_slots(&self, extents: GemmShape, staging: Staging, lanes: usize, target: &CpuTarget) -> f64 {
        let GemmShape { batch, m, n, k } = extents;
        let is_packed = staging.packs_rows(self.line_rows.is_some());
        let slots_of_line = match (is_packed, staging.rows) {
            // Terms follow each other, and the hardware reads them ahead.
            (true, Some(RowOrder::KInner)) => return 0.0,
            (true, _) => SCATTERED_LINE_SLOTS,
            // The figures of schedules that read image lines in place were fitted with these misses in them.
            (false, _) if self.line_rows.is_some() => return 0.0,
            (false, _) => FAR_LINE_SLOTS,
        };
        let row_elems = staging.row_elems(self.block_rows.min(m), k);
        let far = FarRows::of(row_elems, target.vector_bytes / lanes, target);
        let multiply_adds = (batch * m * n.div_ceil(lanes) * k) as f64;
        let share = |far: FarRows| far.share(slots_of_line, self.vectors * self.block_panels);
        far.map_or(0.0, |far| multiply_adds * share(far))
    }
}

/// Multiply-adds of a work item, at least: about half a microsecond, ten times what a work item costs besides.
const MIN_TASK_MULTIPLY_ADDS: usize = 1 << 15;

/// Work items, at most, of a product of usual size: so many even out among as many threads as machines have.
const MOST_TASKS: usize = 256;

/// Share of the modelled time that is taken to be shared among threads, in the choice of a register tile.
const BALANCE_WEIGHT: f64 = 0.15;

/// Imbalance, at most, that counts in the choice of a register tile: time alone on a core counts more.
const MOST_IMBALANCE: f64 = 0.5;

/// Share of the L2 that all panels may take, if each strip of rows meets them before the next one.
const PANELS_SHARE: f64 = 0.375;

/// What that order may cost in [`TileGrid::cost`]: storing results in the order of their addresses saves about as much.
const ROWS_OUTER_GAIN: f64 = 0.03;

/// Rows that a register tile takes as long as at least: a skinny GEMM waits for its panels.
const ROWS_OF_A_PANEL: usize = 8;

/// The work of a register tile of so many rows and columns, in multiply-adds: panels are read, or packed, and results are stored.
fn tile_work((rows, width): (usize, usize), k: usize, staging: Staging) -> usize {
    const OF_A_RESULT: usize = 32;
    let panel_rows = if staging.panels { PACKED_VECTOR_SLOTS as usize } else { 0 };
    width * (k * (panel_rows + rows.max(ROWS_OF_A_PANEL)) + rows * OF_A_RESULT)
}

/// Register tiles that are cut into work items: `strips` by `panels` of them, `others` times.
struct TileGrid {
    others: usize,
    strips: usize,
    panels: usize,
}

/// Register tiles of one work item.
struct TaskTiles {
    strips: usize,
    panels: usize,
}

impl TileGrid {
    /// The most even work items of at least so many strips, and of enough work if a register tile is so many multiply-adds.
    fn cut(&self, tile_multiply_adds: usize, least_strips: usize) -> TaskTiles {
        let Self { strips, panels, .. } = *self;
        let of_strips = (least_strips..strips).map(|strips| TaskTiles { strips, panels: 1 });
        let of_panels = (1..=panels).map(|panels| TaskTiles { strips, panels });
        let cost = |cut: &TaskTiles| self.cost(cut);
        self.cheapest(of_strips.chain(of_panels), tile_multiply_adds, cost)
            .unwrap_or(TaskTiles { strips, panels })
    }

    /// The same where rows come from the L3, in time on one thread and on several. Panels come from there as well, and only all strips of a
    /// block prefetch all of the next one: products of 32 and 64 rows of 128 by several panels take 1.4 and 1.2 times as long.
    fn cut_of_far_rows(
        &self,
        far: FarRows,
        vectors: usize,
        tile_multiply_adds: usize,
        least_strips: usize,
    ) -> Option<TaskTiles> {
        let Self { strips, panels, .. } = *self;
        let of_strips = (least_strips..strips).map(|strips| TaskTiles { strips, panels: 1 });
        let numbers = PANELS_OF_FAR_ROWS.into_iter().filter(|&number| number <= panels);
        let of_panels = numbers.map(|panels| TaskTiles { strips, panels });
        let time = |cut: &TaskTiles| {
            (1.0 + far.share(FAR_LINE_SLOTS, vectors * cut.panels)) * (1.0 + self.cost(cut))
        };
        self.cheapest(of_strips.chain(of_panels), tile_multiply_adds, time)
    }

    /// The same of work items that have all panels.
    fn cut_strips(&self, tile_multiply_adds: usize) -> Option<TaskTiles> {
        let Self { strips, panels, .. } = *self;
        let cuts = (1..=strips).map(|strips| TaskTiles { strips, panels });
        self.cheapest(cuts, tile_multiply_adds, |cut| self.cost(cut))
    }

    /// The work items of least cost, without those that are small.
    fn cheapest(
        &self,
        cuts: impl Iterator<Item = TaskTiles>,
        tile_multiply_adds: usize,
        cost: impl Fn(&TaskTiles) -> f64,
    ) -> Option<TaskTiles> {
        let Self { others, strips, panels } = *self;
        let least_tiles = MIN_TASK_MULTIPLY_ADDS.div_ceil(tile_multiply_adds.max(1));
        let least_tiles = least_tiles.max((others * strips * panels).div_ceil(MOST_TASKS));
        let is_enough = |cut: &TaskTiles| cut.strips * cut.panels >= least_tiles.min(strips * panels);
        cuts.filter(is_enough).min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// How many times as long as an even share the largest share of such work items is modelled to be, with what handing them out costs.
    fn cost(&self, cut: &TaskTiles) -> f64 {
        let Self { others, strips, panels } = *self;
        let tasks = others * strips.div_ceil(cut.strips) * panels.div_ceil(cut.panels);
        let largest = (cut.strips * cut.panels) as f64 / (others * strips * panels) as f64;
        sharing_cost(tasks, largest)
    }
}

/// Rows of which a block does not stay in the L2: each work item reads them from the L3.
#[derive(Clone, Copy)]
struct FarRows {
    /// Elements of a line of the cache.
    line_elems: usize,
}

impl FarRows {
    /// If so many elements of rows do not stay there.
    fn of(row_elems: usize, elem_bytes: usize, target: &CpuTarget) -> Option<Self> {
        let are_far = (row_elems * elem_bytes) as f64 > target.l2_bytes as f64 * CACHE_SHARE;
        are_far.then_some(Self { line_elems: CACHE_LINE / elem_bytes })
    }

    /// How long lines of so many slots take that so many vectors of columns are multiplied by, as a share of the multiply-adds.
    fn share(self, slots_of_line: f64, vectors: usize) -> f64 {
        slots_of_line / (self.line_elems * vectors) as f64
    }
}

/// The rows of a product that packs them: threads pack each block that they have work items of.
struct PackedRows<'a> {
    extents: GemmShape,
    staging: Staging,
    tile: TileShape,
    lanes: usize,
    target: &'a CpuTarget,
    /// Multiply-adds of a register tile.
    tile_work: usize,
}

impl PackedRows<'_> {
    /// Register tiles below one another of a block, and of a work item's tiles at least so many, if a cache wants at least so many blocks.
    fn cut(&self, least_blocks: usize, least_strips: usize) -> (usize, TaskTiles) {
        let strips = self.tile.strips(self.extents.m);
        let panels = self.extents.n.div_ceil(self.tile.vectors * self.lanes).max(1);
        let more = PACKED_BLOCKS.into_iter().chain([strips]).filter(|&blocks| blocks > least_blocks);
        let mut counts: Vec<usize> = more.map(|blocks| strips.div_ceil(blocks)).collect();
        counts.retain(|&of_block| {
            let packed = strips.div_ceil(of_block) * self.elems(of_block);
            let is_once = packed as f64 <= MOST_OVERLAP * self.elems(strips) as f64;
            let is_enough = of_block * panels * self.tile_work >= MIN_TASK_MULTIPLY_ADDS;
            is_once && is_enough && of_block >= least_strips && strips.div_ceil(of_block) <= MOST_TASKS
        });
        counts.dedup();
        let all = [strips.div_ceil(least_blocks.max(1))].into_iter().chain(counts);
        let cuts = all.flat_map(|of_block| {
            let others = self.extents.batch * strips.div_ceil(of_block);
            let tiles = TileGrid { others, strips: of_block, panels };
            let even = tiles.cut(self.tile_work, least_strips.min(of_block));
            let whole = TaskTiles { strips: of_block, panels };
            [even, whole].map(|cut| (of_block, cut))
        });
        let ranked = cuts.map(|(of_block, cut)| (self.cost(of_block, &cut), (of_block, cut)));
        let best = ranked.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or((strips, TaskTiles { strips, panels }), |(_, best)| best)
    }

    /// Elements of a block of so many register tiles below one another.
    fn elems(&self, of_block: usize) -> usize {
        let rows = (of_block * self.tile.rows).min(self.extents.m);
        self.staging.row_elems(rows, self.extents.k)
    }

    /// How long such blocks and work items are modelled to take in multiples of the multiply-adds, in equal parts on one thread and, in
    /// multiples of an even share, a mean over numbers of threads.
    fn cost(&self, of_block: usize, cut: &TaskTiles) -> f64 {
        let GemmShape { batch, m, n, k } = self.extents;
        let TileShape { rows, vectors, .. } = self.tile;
        let (strips, panels) = (self.tile.strips(m), n.div_ceil(vectors * self.lanes).max(1));
        let blocks = batch * strips.div_ceil(of_block);
        let tasks_of_block = of_block.div_ceil(cut.strips) * panels.div_ceil(cut.panels);
        let multiply_adds = (batch * m * n.div_ceil(self.lanes) * k) as f64;
        // Panels that do not stay in the L2 come from the L3 for each block, which the first of its row tiles hides in part.
        let panel_bytes = k * n * self.target.vector_bytes / self.lanes;
        let is_far = panel_bytes as f64 > self.target.l2_bytes as f64 * PANELS_SHARE;
        let exposed = if is_far { (FAR_VECTOR_SLOTS - rows as f64).max(0.0) } else { 0.0 };
        let work = 1.0 + exposed / (of_block * rows).min(m) as f64;
        let elems = self.staging.row_elems(of_block * rows, k);
        let packing = elems as f64 / self.lanes as f64 * PACKED_VECTOR_SLOTS / multiply_adds;
        let largest = (cut.strips * cut.panels) as f64 / (batch * strips * panels) as f64;
        let shared = |&threads: &usize| {
            let own = ((blocks * tasks_of_block).div_ceil(threads) as f64 + UNEVEN_TASKS) * largest;
            let packed = most_blocks(blocks, tasks_of_block, threads) as f64 * packing;
            ((own.min(1.0) * work + packed) * threads as f64).max(work + packing * blocks as f64)
        };
        let shared = EVEN_FOR.iter().map(shared).sum::<f64>() / EVEN_FOR.len() as f64;
        let alone = work + packing * blocks as f64;
        0.5 * alone + 0.5 * shared + TASK_COST * (blocks * tasks_of_block) as f64
    }
}

/// The most blocks that one of so many threads has work items of, where each has a contiguous part of them.
fn most_blocks(blocks: usize, tasks_of_block: usize, threads: usize) -> usize {
    let items = parts(blocks * tasks_of_block, threads);
    items.map(|items| groups(&items, tasks_of_block).len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contraction::RowOrder;
    use orch_thread::target::{X86_64_AMX, X86_64_V3, X86_64_V4};

    #[test]
    fn tiles_fit_the_problem() {
        for (m, n) in [(1, 1), (1, 4096), (7, 5), (197, 768), (3136, 64), (49, 2048), (8, 100)] {
            let extents = GemmShape { batch: 1, m, n, k: 64 };
            let given = Staging { term_bytes: Some(1 << 20), ..Staging::default() };
            let ways =
                [(&X86_64_V4, 16), (&X86_64_V3, 8)].map(|way| [Staging::default(), given].map(|s| (way, s)));
            for ((target, lanes), staging) in ways.into_iter().flatten() {
                let schedules = CpuContractionSchedule::candidates(extents, staging, lanes, target, 4);
                assert!(!schedules.is_empty());
                for s in schedules {
                    assert!(s.rows <= m && s.block_rows.is_multiple_of(s.rows), "{s:?} for {extents:?}");
                    assert!(s.rows * s.vectors + s.vectors <= target.vector_registers, "{s:?} spills");
                }
            }
        }
    }

    /// A convolution of 3 x 3 of an image of so many rows and columns, whose padding is packed in a window.
    fn window(side: usize, channels: usize, step: usize) -> Staging {
        let window = WindowSize {
            line_rows: side,
            lines: side,
            step,
            first: 3,
            step_elems: (side * step + 2) * channels,
            run: 3 * channels,
            row_run: side,
        };
        Staging { window: Some(window), ..Staging::default() }
    }

    /// The same of an image whose lines are read where they lie.
    fn lines(side: usize, channels: usize, step: usize) -> Staging {
        // Of both sides of an image one row in `side` has no pixel in one tap of three, but for the last one of larger steps.
        let taps = 3 * side - if step == 1 { 2 } else { 1 };
        let lines = LineSize {
            rows: side,
            row_bytes: 4 * step * channels,
            run: channels,
            pairs: 9 * side * side,
            pairs_inside: taps * taps,
        };
        Staging { lines: Some(lines), ..window(side, channels, step) }
    }

    /// Products with M, N and K, and how often a model has them.
    type Products = Vec<(Staging, [usize; 3], usize)>;

    /// The convolutions of ResNet-50.
    fn resnet50() -> Products {
        let in_place = Staging::default();
        let mut products = Vec::new();
        for (side, channels, blocks) in [(56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)] {
            let (m, wide) = (side * side, 4 * channels);
            products.push((in_place, [m, channels, wide], blocks - 1));
            products.push((in_place, [m, wide, channels], blocks));
            let is_first = usize::from(side == 56);
            products.push((lines(side, channels, 1), [m, channels, 9 * channels], blocks - 1 + is_first));
            if side < 56 {
                products.push((lines(side, channels, 2), [m, channels, 9 * channels], 1));
                let pixels = LineSize {
                    rows: side,
                    row_bytes: 16 * channels,
                    run: 2 * channels,
                    pairs: m,
                    pairs_inside: m,
                };
                let skipping = Staging { lines: Some(pixels), ..Staging::default() };
                products.push((skipping, [m, wide, 2 * channels], 1));
            }
        }
        products
    }

    /// The convolutions of 3 x 3 of ResNet-50 behind an addition that nothing else computes, so that windows are packed.
    fn packed_windows() -> Products {
        let sides = [(56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)];
        sides
            .map(|(side, channels, blocks)| {
                (window(side, channels, 1), [side * side, channels, 9 * channels], blocks)
            })
            .into()
    }

    /// The products of BERT for 128 tokens, some with a fused producer.
    fn bert() -> Products {
        let packed = Staging { rows: Some(RowOrder::KInner), ..Staging::default() };
        let in_place = Staging::default();
        vec![
            (in_place, [128, 768, 768], 48),
            (in_place, [128, 3072, 768], 12),
            (packed, [128, 768, 3072], 12),
            (packed, [197, 768, 768], 12),
        ]
    }

    /// The convolutions of one pixel of MobileNet v2.
    fn mobilenet() -> Products {
        let mut products = Vec::new();
        for (side, narrow, wide, blocks) in [
            (112, 16, 96, 1),
            (56, 24, 144, 2),
            (28, 32, 192, 3),
            (14, 64, 384, 4),
            (14, 96, 576, 3),
            (7, 160, 960, 3),
            (7, 320, 1280, 1),
        ] {
            products.push((Staging::default(), [side * side, wide, narrow], blocks));
            products.push((Staging::default(), [side * side, narrow, wide], blocks));
        }
        products
    }

    /// How many times as fast so many threads are as one.
    fn speed_up_of(products: &Products, threads: usize) -> f64 {
        let (mut alone, mut shared) = (0.0, 0.0);
        for &(staging, [m, n, k], times) in products {
            let extents = GemmShape { batch: 1, m, n, k };
            let schedule = CpuContractionSchedule::candidates(extents, staging, 16, &X86_64_V4, 1)[0];
            let work = (times * m * n * k) as f64;
            alone += work;
            shared += work * schedule.largest_shares(extents, 16, &[threads])[0] / threads as f64;
        }
        alone / shared
    }

    #[test]
    fn work_items_keep_many_threads_busy() {
        for (name, products) in [("ResNet-50", resnet50()), ("BERT", bert()), ("MobileNet v2", mobilenet())] {
            let speed_ups = [8, 16, 32].map(|threads| speed_up_of(&products, threads));
            assert!(
                speed_ups[0] >= 7.2 && speed_ups[1] >= 13.5 && speed_ups[2] >= 22.0,
                "{name}: {speed_ups:?}"
            );
        }
    }

    #[test]
    fn no_thread_has_much_more_than_its_share() {
        /// Multiply-adds of 100 us of a fast core.
        const LONG: usize = 6_000_000;
        for (staging, [m, n, k], _) in [resnet50(), bert(), mobilenet()].concat() {
            let extents = GemmShape { batch: 1, m, n, k };
            let schedule = CpuContractionSchedule::candidates(extents, staging, 16, &X86_64_V4, 1)[0];
            // On 16 threads the last ones of MobileNet v2 take 10 us.
            let bounds = [1.15, 1.15, 1.3, 1.35];
            let shares = schedule.largest_shares(extents, 16, &[2, 4, 8, 16]);
            let is_even = shares.iter().zip(bounds).all(|(&share, bound)| share <= bound);
            assert!(m * n * k < LONG || is_even, "{extents:?} {schedule:?}: {shares:.3?}");
        }
    }

    #[test]
    fn a_thread_for_each_work_item_has_one() {
        for [batch, m, n, k] in [[1, 3136, 64, 576], [3, 197, 1000, 768], [2, 5, 33, 64], [1, 1, 7, 3]] {
            let extents = GemmShape { batch, m, n, k };
            let schedule =
                CpuContractionSchedule::candidates(extents, Staging::default(), 16, &X86_64_V4, 1)[0];
            let tasks = schedule.grid(extents, 16).tasks();
            let rows = schedule.task_rows.min(schedule.block_rows).min(m);
            let columns = (schedule.block_panels * schedule.vectors * 16).min(n);
            let share = schedule.largest_shares(extents, 16, &[tasks])[0];
            let expected = (rows * columns * tasks) as f64 / (batch * m * n) as f64;
            assert!((share - expected).abs() < 1e-9, "{extents:?} {schedule:?}: {share} {expected}");
        }
    }

    /// 128 rows of 4096 elements fill the L2, and each work item reads them anew: by several panels, if enough work items are left.
    #[test]
    fn rows_from_the_l3_meet_several_panels() {
        let schedule = |n: usize, k: usize| {
            let extents = GemmShape { batch: 1, m: 128, n, k };
            CpuContractionSchedule::candidates(extents, Staging::default(), 16, &X86_64_AMX, 1)[0]
        };
        for [n, k] in [[4096, 4096], [11008, 4096], [4096, 11008]] {
            let schedule = schedule(n, k);
            assert!(schedule.block_panels > 1 && schedule.task_rows >= 128, "{n} {k}: {schedule:?}");
        }
        let few = schedule(768, 4096);
        assert_eq!(few.block_panels, 1, "{few:?}");
    }

    /// Elements of windows and rows that are packed by so many threads, each once for each block that it has work items of, over those
    /// that there are.
    fn packed_times(staging: Staging, extents: GemmShape, target: &CpuTarget, threads: usize) -> f64 {
        let lanes = target.lanes(size_of::<f32>());
        let schedule = CpuContractionSchedule::candidates(extents, staging, lanes, target, 1)[0];
        let grid = schedule.grid(extents, lanes);
        if schedule.line_rows.is_some() {
            return 0.0;
        }
        let elems = |rows: usize| staging.row_elems(rows, extents.k);
        let share = |thread: usize| thread * grid.tasks() / threads;
        let of_block = grid.tasks_of_block();
        let blocks_of = |thread: usize| {
            let (first, past) = (share(thread), share(thread + 1));
            if first == past { 0..0 } else { first / of_block..(past - 1) / of_block + 1 }
        };
        let rows = |block: usize| {
            let first = block % grid.row_blocks * schedule.block_rows;
            schedule.block_rows.min(extents.m - first)
        };
        let packed: usize = (0..threads).flat_map(blocks_of).map(|block| elems(rows(block))).sum();
        packed as f64 / (grid.batch * elems(extents.m)) as f64
    }

    /// The mean of [`packed_times`] over products whose first operand is not read in order.
    fn mean_packed_times(products: &Products, threads: usize) -> f64 {
        let (mut packed, mut all) = (0.0, 0.0);
        for &(staging, [m, n, k], times) in products {
            if staging.window.is_some() || staging.rows.is_some() {
                let extents = GemmShape { batch: 1, m, n, k };
                all += times as f64;
                packed += times as f64 * packed_times(staging, extents, &X86_64_V4, threads);
            }
        }
        packed / all
    }

    #[test]
    fn one_thread_packs_elements_about_once() {
        for products in [resnet50(), packed_windows(), bert()] {
            let times = mean_packed_times(&products, 1);
            assert!(times <= 1.1, "{times}");
        }
    }

    #[test]
    fn lines_that_exceed_the_l2_are_packed_about_once() {
        // The first convolution of an image of 2048 x 2048 x 3, to 16 channels: three lines take 72 KiB.
        let extents = GemmShape { batch: 1, m: 1024 * 1024, n: 16, k: 27 };
        for l2_bytes in [128 << 10, 256 << 10, 1 << 20, 2 << 20] {
            for target in [X86_64_V3, X86_64_V4] {
                let target = CpuTarget { l2_bytes, ..target };
                let times = packed_times(window(1024, 3, 2), extents, &target, 1);
                assert!(times <= 1.31, "{} with {l2_bytes} bytes: {times}", target.name);
            }
        }
    }

    #[test]
    fn many_results_of_an_element_are_worth_packing_it_again() {
        // Of 14 x 14 x 256, to 256: a block that stays in a small L2 packs some lines twice.
        let (staging, extents) = (window(14, 256, 1), GemmShape { batch: 1, m: 196, n: 256, k: 2304 });
        let target = CpuTarget { l2_bytes: 512 << 10, ..X86_64_V3 };
        let schedule = CpuContractionSchedule::candidates(extents, staging, 8, &target, 1)[0];
        let rows = schedule.block_rows.min(extents.m);
        let packed = staging.window.expect("a window").elems_of(rows);
        assert!(PACKED_VECTOR_SLOTS * packed as f64 <= FEW_PACKING * (rows * extents.n * extents.k) as f64);
        assert!(packed * size_of::<f32>() <= target.l2_bytes, "{schedule:?} packs {packed} elements");
    }

    #[test]
    fn convolutions_pack_nothing_for_any_number_of_threads() {
        for threads in [1, 16, 64] {
            assert_eq!(mean_packed_times(&resnet50(), threads), 0.0, "{threads} threads");
        }
    }

    #[test]
    fn rows_that_share_places_in_the_cache_are_few() {
        let extents = GemmShape { batch: 1, m: 16, n: 8, k: 8192 };
        let rows = |row_bytes: usize, target: &CpuTarget| {
            let staging = Staging { row_bytes: Some(row_bytes), ..Staging::default() };
            CpuContractionSchedule::candidates(extents, staging, 16, target, 1)[0].rows
        };
        // 8 ways, and 12.
        assert_eq!(rows(4 * 8192, &X86_64_V4), 8);
        assert_eq!(rows(4 * 8192, &X86_64_AMX), 8);
        assert_eq!(rows(4 * 8192 + 2048, &X86_64_V4), 16);
        assert_eq!(rows(4 * 8192 + 1024, &X86_64_V4), 16);
        assert_eq!(rows(4 * 8208, &X86_64_V4), 16);
    }

    #[test]
    fn skinny_operands_that_are_copied_meet_parts_of_the_panels() {
        let staging = Staging { rows: Some(RowOrder::KInner), ..Staging::default() };
        let grid = |m: usize, n: usize| {
            let extents = GemmShape { batch: 1, m, n, k: 4096 };
            CpuContractionSchedule::candidates(extents, staging, 16, &X86_64_V4, 1)[0].grid(extents, 16)
        };
        assert_eq!(grid(2, 6144).row_blocks, 1);
        assert!(grid(2, 6144).panel_blocks >= 16, "{:?}", grid(2, 6144));
        // Work items of one block share its rows, which a thread packs once.
        assert_eq!(grid(49, 128).row_blocks, 1);
        assert!(grid(49, 128).tasks() >= 4, "{:?}", grid(49, 128));
        assert!(grid(3136, 64).row_blocks >= 8, "{:?}", grid(3136, 64));
    }

    #[test]
    fn a_row_vector_uses_long_rows() {
        let extents = GemmShape { batch: 1, m: 1, n: 4096, k: 4096 };
        let best = CpuContractionSchedule::candidates(extents, Staging::default(), 16, &X86_64_V4, 1)[0];
        assert!(best.vectors >= 8, "{best:?}: fewer accumulators than the latency needs");
    }
}
