//! Register and cache blocking of contractions, chosen by a small model of the core.

use super::form::GemmShape;
use super::math_unit::{AMX_COLUMNS, AMX_K, AMX_SIDE, CpuMathUnit};
use super::pack_cost::RowOrder;
use super::schedule::CpuContractionSchedule;
use super::staging::Staging;
use orch_thread::amx::MAX_TILE_ROWS;
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
    CpuContractionSchedule::whole_k(pairs, staging, (rows, vectors), lanes, target)
}

/// Register tiles that keep the multiply-add units busy on targets with 32 vector registers; each leaves room
/// for the loaded vectors of the second operand. Tiles of one to three rows serve skinny products (small M).
const TILES_32: [(usize, usize); 23] = [
    (7, 4),
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

/// Multiply-adds that a unit could do while one vector of a panel comes from the L2.
const PANEL_VECTOR_SLOTS: f64 = 5.5;

/// Bytes of the second operand's panel and the first operand's block that should stay in the L2.
const CACHE_SHARE: f64 = 0.5;

/// Share of the L2 that a block of rows and a panel may take before K is blocked.
const BLOCKING_SHARE: f64 = 0.75;

/// Terms of a block, about: its part of a panel leaves the L2 to the rows.
const BLOCK_TERMS: usize = 512;

/// Most rows of a block for which K is blocked.
const MOST_BLOCK_ROWS: usize = 256;

/// Least columns of such a block: its rows may have to be copied for them.
const MIN_BLOCK_COLUMNS: usize = 128;

/// Least work of a work item in multiply-adds: about 20 microseconds, so that handing work items out costs nothing.
const MIN_TASK_MULTIPLY_ADDS: usize = 1 << 20;

/// Work items of a product that copies its rows: every work item streams all panels of the second operand, so few.
const COPYING_TASKS: usize = 8;

/// Least rows of a work item that copies them.
const MIN_COPIED_ROWS: usize = 96;

/// Least columns of a work item that copies rows which other work items copy too.
const MIN_COPYING_COLUMNS: usize = 160;

/// Most rows of a work item in scratch where rows are the inner coordinate: neighbours along K stay within a page or two.
const MOST_INNER_ROWS: usize = 384;

/// Work items per thread that even out their lengths.
const TASKS_WANTED: usize = 16;

/// Work items into which the products are worth being cut.
fn work_items_wanted(shape: GemmShape) -> usize {
    let multiply_adds = shape.batch * shape.m * shape.n * shape.k;
    (multiply_adds / MIN_TASK_MULTIPLY_ADDS).clamp(1, TASKS_WANTED)
}

impl CpuContractionSchedule {
    /// Schedules in order of modelled cost, best first; at most `limit`.
    pub fn candidates(
        extents: GemmShape,
        staging: Staging,
        lanes: usize,
        target: &CpuTarget,
        limit: usize,
    ) -> Vec<Self> {
        let tiles: &[(usize, usize)] = if target.vector_registers >= 32 { &TILES_32 } else { &TILES_16 };
        let fitted = |&(rows, vectors): &(usize, usize)| {
            (rows.min(extents.m.max(1)), vectors.min(extents.n.div_ceil(lanes).max(1)))
        };
        let mut tiles: Vec<(usize, usize)> = tiles.iter().map(fitted).collect();
        // Panels that do not divide the columns would be copied.
        let is_in_place = |&(rows, vectors): &(usize, usize)| {
            let width = vectors * lanes;
            let waits = staging.waits_for_panels((rows, width), extents, target);
            !waits || extents.n.is_multiple_of(width)
        };
        if tiles.iter().any(is_in_place) {
            tiles.retain(is_in_place);
        }
        let ranked = tiles.into_iter().map(|tile| {
            let schedule = Self::blocked(extents, staging, tile, lanes, target);
            (schedule.modelled_slots(extents, staging, lanes, target), schedule)
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
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        Self::blocked_k(extents, staging, (rows, vectors), lanes, target)
            .unwrap_or_else(|| Self::whole_k(extents, staging, (rows, vectors), lanes, target))
    }

    /// The work item blocking where each register tile walks all of K before the next one.
    pub(super) fn whole_k(
        extents: GemmShape,
        staging: Staging,
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        let GemmShape { batch, m, n, k } = extents;
        let panels = n.div_ceil(vectors * lanes).max(1);
        let row_bytes = (k * target.vector_bytes / lanes).max(1);
        let cache_rows = ((target.l2_bytes as f64 * CACHE_SHARE) as usize / row_bytes).max(rows);
        let cache_rows = match staging.rows {
            Some(RowOrder::RowsInner) => cache_rows.min(MOST_INNER_ROWS),
            _ => cache_rows,
        };
        let tasks = work_items_wanted(extents).div_ceil(batch.max(1));
        let whole = |count: usize| count.max(1).next_multiple_of(rows).min(m.max(1).next_multiple_of(rows));
        let (block_rows, block_panels) = match (staging.rows.is_some(), staging.panels) {
            (true, true) => (whole(cache_rows.min(m)), panels),
            (true, false) => {
                let even = m.div_ceil(tasks.min(COPYING_TASKS)).max(MIN_COPIED_ROWS).min(cache_rows);
                let row_blocks = m.div_ceil(even).max(1);
                let wanted = tasks.min(COPYING_TASKS).div_ceil(row_blocks);
                let panel_blocks = wanted.min(n / MIN_COPYING_COLUMNS).max(1);
                (whole(m.div_ceil(row_blocks)), panels.div_ceil(panel_blocks))
            }
            (false, true) => (whole(m), panels.div_ceil(tasks).max(1)),
            (false, false) => {
                let block_rows = whole(cache_rows.min(m));
                let row_blocks = m.div_ceil(block_rows).max(1);
                let panel_blocks = tasks.div_ceil(row_blocks).min(panels);
                if panel_blocks * row_blocks * 2 > tasks {
                    (block_rows, panels.div_ceil(panel_blocks))
                } else {
                    (whole(m.div_ceil(tasks.div_ceil(panels))), 1)
                }
            }
        };
        Self { rows, vectors, block_rows, block_panels, block_k: k }
    }

    /// The work item blocking for K so long that a panel and a block of rows do not stay in the L2:
    /// the accumulators of a block are kept in scratch, and K is walked a few hundred elements at a time.
    fn blocked_k(
        extents: GemmShape,
        staging: Staging,
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Option<Self> {
        let GemmShape { batch, m, n, k } = extents;
        let (width, elem_bytes) = (vectors * lanes, target.vector_bytes / lanes);
        if staging.waits_for_panels((rows, width), extents, target) && k > STREAMED_TERMS {
            let panels = n.div_ceil(width).max(1);
            let tasks = work_items_wanted(extents).div_ceil(batch.max(1));
            let panel_blocks = tasks.min(n / STREAMED_COLUMNS).max(1);
            let (block_rows, block_panels) = (m.next_multiple_of(rows), panels.div_ceil(panel_blocks));
            return Some(Self { rows, vectors, block_rows, block_panels, block_k: STREAMED_TERMS });
        }
        let whole = |count: usize| count.next_multiple_of(rows).min(m.next_multiple_of(rows));
        let block_rows = whole(m.div_ceil(m.div_ceil(MOST_BLOCK_ROWS).max(1)).max(1));
        let working_set = (block_rows + width) * k * elem_bytes;
        if staging.panels || m < 2 * rows || (working_set as f64) < target.l2_bytes as f64 * BLOCKING_SHARE {
            return None;
        }
        let block_k = k.div_ceil(k.div_ceil(BLOCK_TERMS)).next_multiple_of(lanes);
        if block_k >= k {
            return None;
        }
        let panels = n.div_ceil(width).max(1);
        let row_blocks = m.div_ceil(block_rows);
        let room = (target.l2_bytes / 4 / (block_rows * width * elem_bytes)).max(1);
        let tasks = work_items_wanted(extents).div_ceil(batch * row_blocks);
        let panel_blocks =
            panels.div_ceil(room).max(tasks).min(panels.div_ceil(MIN_BLOCK_COLUMNS.div_ceil(width)));
        let block_panels = panels.div_ceil(panel_blocks.max(1));
        Some(Self { rows, vectors, block_rows, block_panels, block_k })
    }

    /// Slots of a multiply-add unit that one product takes: each step of `k` issues `rows * vectors` multiply-adds
    /// and `rows + vectors` loads, streams `vectors` of a panel, and a chain of multiply-adds has to wait for itself.
    fn modelled_slots(&self, extents: GemmShape, staging: Staging, lanes: usize, target: &CpuTarget) -> f64 {
        /// Multiply-adds that are in flight at a time.
        const LATENCY: f64 = 8.0;
        const STORE_AND_SETUP: f64 = 6.0;
        const TILE_SETUP: f64 = 48.0;
        /// What a load costs beside the multiply-adds that hide it.
        const ISSUE_SHARE: f64 = 0.1;
        let terms = self.block_k.min(extents.k);
        let panel_bytes = terms * self.vectors * target.vector_bytes;
        let is_streamed = panel_bytes > target.l1_bytes / 2
            || staging.panel_lines_collide(terms, target)
            || staging.waits_for_panels((self.rows, self.vectors * lanes), extents, target);
        let stream = if is_streamed { PANEL_VECTOR_SLOTS } else { 1.0 };
        let tile = |rows: usize, vectors: usize| {
            let collides = staging.rows_collide(rows, target);
            let (rows, vectors) = (rows as f64, vectors as f64);
            let step = (rows * vectors).max(rows + vectors).max(stream * vectors).max(LATENCY);
            let issue = step + ISSUE_SHARE * (rows + vectors);
            let issue = issue + if collides { COLLISION_SLOTS * rows } else { 0.0 };
            extents.k as f64 * issue + STORE_AND_SETUP * rows * vectors + TILE_SETUP
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
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let tasks = |m: usize, n: usize| {
            let extents = GemmShape { batch: 1, m, n, k: 4096 };
            let s = CpuContractionSchedule::candidates(extents, staging, 16, &X86_64_V4, 1)[0];
            (m.div_ceil(s.block_rows), n.div_ceil(16 * s.vectors).div_ceil(s.block_panels))
        };
        assert_eq!(tasks(2, 6144).0, 1);
        assert!(tasks(2, 6144).1 >= 4, "{:?}", tasks(2, 6144));
        // Few columns, and rows enough.
        assert_eq!(tasks(49, 128), (1, 1));
        assert_eq!(tasks(3136, 64).1, 1);
    }

    #[test]
    fn a_row_vector_uses_long_rows() {
        let extents = GemmShape { batch: 1, m: 1, n: 4096, k: 4096 };
        let best = CpuContractionSchedule::candidates(extents, Staging::default(), 16, &X86_64_V4, 1)[0];
        assert!(best.vectors >= 8, "{best:?}: fewer accumulators than the latency needs");
    }
}
