//! The schedule space of contractions: register tile and task blocking, chosen by a small model of the core.

use super::form::Form;
use super::operand::RowOrder;
use orch_compute::affine::gcd;
use orch_compute::block::BlockProgram;
use orch_thread::program::CACHE_LINE;
use orch_thread::target::CpuTarget;
use std::fmt;

/// How a contraction is tiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContractionSchedule {
    /// Rows of the register tile.
    pub rows: usize,
    /// Vectors per row of the register tile; a panel of the second factor is that wide.
    pub vectors: usize,
    /// Rows that one task computes, a multiple of `rows`.
    pub block_rows: usize,
    /// Panels that one task computes.
    pub block_panels: usize,
    /// Terms that are summed for a task's whole block before the next are looked at; at least `k` if sums are
    /// finished one register tile after the other.
    pub block_terms: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for ContractionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, vectors, block_rows, block_panels, block_terms } = self;
        write!(f, "rows={rows} vectors={vectors} block_rows={block_rows} block_panels={block_panels} ")?;
        write!(f, "block_k={block_terms}")
    }
}

/// Flattened extents of a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents {
    /// Independent products.
    pub batch: usize,
    /// Rows.
    pub m: usize,
    /// Columns, along vectors.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
}

/// Register tiles that keep the multiply-add units busy on targets with 32 vector registers; each leaves room
/// for the loaded vectors of the second factor. Tiles of few rows serve products with few rows.
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

/// Which factors a task copies to scratch before it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Staging {
    /// The task's rows of the first factor, and how.
    pub rows: Option<RowOrder>,
    /// Each of the task's panels of the second factor.
    pub panels: bool,
    /// Bytes from one row of the first factor to the next, where they are read in place and evenly apart.
    pub row_bytes: Option<usize>,
    /// Bytes from one term of the second factor to the next, where its panels are read in place.
    pub term_bytes: Option<usize>,
}

impl Staging {
    /// Whether so many rows that are read at a time do not stay in the first-level cache, because their places in it
    /// are the same: lines this many bytes apart share as many places as it has ways.
    fn rows_collide(&self, rows: usize, target: &CpuTarget) -> bool {
        self.row_bytes.is_some_and(|bytes| collide(bytes, rows, target))
    }

    /// Whether memory is what a product in register tiles of so many rows and columns waits for: few strips of rows read large
    /// panels where they lie, each of which is a part of longer lines.
    pub(super) fn waits_for_panels(
        &self,
        (rows, width): (usize, usize),
        extents: Extents,
        target: &CpuTarget,
    ) -> bool {
        let is_large = |bytes| bytes * extents.k > target.l2_bytes / 4;
        let has_few_strips = extents.m.div_ceil(rows) <= MOST_STRIPS;
        has_few_strips && extents.n > width && self.term_bytes.is_some_and(is_large)
    }

    /// The same of the lines of a panel, which each strip of rows reads again.
    fn terms_collide(&self, terms: usize, target: &CpuTarget) -> bool {
        self.term_bytes.is_some_and(|bytes| collide(bytes, terms, target))
    }
}

/// Strips of rows, at most, that wait for memory: others are busy with multiplying.
const MOST_STRIPS: usize = 8;

/// Terms that such strips read of a panel before they read them of the next one: what lies in one page is read together.
const STREAMED_TERMS: usize = 64;

/// Columns of a task that reads so, at least.
const STREAMED_COLUMNS: usize = 256;

/// Whether so many lines that are so many bytes apart do not stay in the first-level cache.
fn collide(bytes: usize, lines: usize, target: &CpuTarget) -> bool {
    const PERIOD: usize = 4096;
    let places = PERIOD / (gcd(bytes as i64, PERIOD as i64) as usize).max(CACHE_LINE);
    lines.div_ceil(places) > target.l1_bytes / PERIOD
}

/// Multiply-adds that a unit could do while an element of a row comes from the second-level cache, every time it is read.
const COLLISION_SLOTS: f64 = 2.3;

/// Multiply-adds that a unit could do while one vector of a panel comes from the second-level cache.
const PANEL_VECTOR_SLOTS: f64 = 5.5;

/// Bytes of the second factor's panel and the first factor's block that should stay in the second-level cache.
const CACHE_SHARE: f64 = 0.5;

/// Share of the second-level cache that a block of rows and a panel may take before their terms are blocked.
const BLOCKING_SHARE: f64 = 0.75;

/// Terms of a block, about: its part of a panel leaves the second-level cache to the rows.
const BLOCK_TERMS: usize = 512;

/// Most rows of a block whose terms are blocked.
const MOST_BLOCK_ROWS: usize = 256;

/// Least columns of such a block: its rows may have to be copied for them.
const MIN_BLOCK_COLUMNS: usize = 128;

/// Least work of a task in multiply-adds: about 20 microseconds, so that handing tasks out costs nothing.
const MIN_TASK_MULTIPLY_ADDS: usize = 1 << 20;

/// Tasks of a product that copies its rows: every task streams all panels of the second factor, so few.
const COPYING_TASKS: usize = 8;

/// Least rows of a task that copies them.
const MIN_COPIED_ROWS: usize = 96;

/// Least columns of a task that copies rows which other tasks copy too.
const MIN_COPYING_COLUMNS: usize = 160;

/// Most rows of a task in scratch where rows are the inner coordinate: neighbouring terms stay within a page or two.
const MOST_INNER_ROWS: usize = 384;

/// Tasks per thread that even out their lengths.
const TASKS_WANTED: usize = 16;

impl Extents {
    /// The extents of a recognised contraction.
    pub fn of(block: &BlockProgram, form: &Form) -> Self {
        let product = |axes: &[_]| axes.iter().map(|&axis| block.extent(axis)).product();
        Self { batch: product(&form.batch), m: product(&form.m), n: product(&form.n), k: product(&form.k) }
    }

    /// Tasks in which the products are worth being cut.
    fn tasks_wanted(self) -> usize {
        let multiply_adds = self.batch * self.m * self.n * self.k;
        (multiply_adds / MIN_TASK_MULTIPLY_ADDS).clamp(1, TASKS_WANTED)
    }
}

impl ContractionSchedule {
    /// Schedules in order of modelled cost, best first; at most `limit`.
    pub fn candidates(
        extents: Extents,
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

    /// Fills in the task blocking for a register tile.
    ///
    /// A task's rows stay in the second-level cache while its panels pass by. Rows that are copied meet all panels, or each of
    /// several tasks copies them, which only few rows are worth; panels that are copied must meet all rows.
    fn blocked(
        extents: Extents,
        staging: Staging,
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        Self::blocked_terms(extents, staging, (rows, vectors), lanes, target)
            .unwrap_or_else(|| Self::whole_terms(extents, staging, (rows, vectors), lanes, target))
    }

    /// The task blocking where sums are finished one register tile after the other.
    pub(super) fn whole_terms(
        extents: Extents,
        staging: Staging,
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Self {
        let Extents { batch, m, n, k } = extents;
        let panels = n.div_ceil(vectors * lanes).max(1);
        let row_bytes = (k * target.vector_bytes / lanes).max(1);
        let cache_rows = ((target.l2_bytes as f64 * CACHE_SHARE) as usize / row_bytes).max(rows);
        let cache_rows = match staging.rows {
            Some(RowOrder::RowsInner) => cache_rows.min(MOST_INNER_ROWS),
            _ => cache_rows,
        };
        let tasks = extents.tasks_wanted().div_ceil(batch.max(1));
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
        Self { rows, vectors, block_rows, block_panels, block_terms: k }
    }

    /// The task blocking for sums so long that a panel and a block of rows do not stay in the second-level cache:
    /// partial sums of a block are kept, and added to a few hundred terms at a time.
    fn blocked_terms(
        extents: Extents,
        staging: Staging,
        (rows, vectors): (usize, usize),
        lanes: usize,
        target: &CpuTarget,
    ) -> Option<Self> {
        let Extents { batch, m, n, k } = extents;
        let (width, elem_bytes) = (vectors * lanes, target.vector_bytes / lanes);
        if staging.waits_for_panels((rows, width), extents, target) && k > STREAMED_TERMS {
            let panels = n.div_ceil(width).max(1);
            let tasks = extents.tasks_wanted().div_ceil(batch.max(1));
            let panel_blocks = tasks.min(n / STREAMED_COLUMNS).max(1);
            let (block_rows, block_panels) = (m.next_multiple_of(rows), panels.div_ceil(panel_blocks));
            return Some(Self { rows, vectors, block_rows, block_panels, block_terms: STREAMED_TERMS });
        }
        let whole = |count: usize| count.next_multiple_of(rows).min(m.next_multiple_of(rows));
        let block_rows = whole(m.div_ceil(m.div_ceil(MOST_BLOCK_ROWS).max(1)).max(1));
        let working_set = (block_rows + width) * k * elem_bytes;
        if staging.panels || m < 2 * rows || (working_set as f64) < target.l2_bytes as f64 * BLOCKING_SHARE {
            return None;
        }
        let block_terms = k.div_ceil(k.div_ceil(BLOCK_TERMS)).next_multiple_of(lanes);
        if block_terms >= k {
            return None;
        }
        let panels = n.div_ceil(width).max(1);
        let row_blocks = m.div_ceil(block_rows);
        let room = (target.l2_bytes / 4 / (block_rows * width * elem_bytes)).max(1);
        let tasks = extents.tasks_wanted().div_ceil(batch * row_blocks);
        let panel_blocks =
            panels.div_ceil(room).max(tasks).min(panels.div_ceil(MIN_BLOCK_COLUMNS.div_ceil(width)));
        let block_panels = panels.div_ceil(panel_blocks.max(1));
        Some(Self { rows, vectors, block_rows, block_panels, block_terms })
    }

    /// Slots of a multiply-add unit that one product takes: each step of `k` issues `rows * vectors` multiply-adds
    /// and `rows + vectors` loads, streams `vectors` of a panel, and a chain of multiply-adds has to wait for itself.
    fn modelled_slots(&self, extents: Extents, staging: Staging, lanes: usize, target: &CpuTarget) -> f64 {
        /// Multiply-adds that are under way at a time.
        const LATENCY: f64 = 8.0;
        const STORE_AND_SETUP: f64 = 6.0;
        const TILE_SETUP: f64 = 48.0;
        /// What a load costs beside the multiply-adds that hide it.
        const ISSUE_SHARE: f64 = 0.1;
        let terms = self.block_terms.min(extents.k);
        let panel_bytes = terms * self.vectors * target.vector_bytes;
        let is_streamed = panel_bytes > target.l1_bytes / 2
            || staging.terms_collide(terms, target)
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

    /// How `m` rows are cut into strips.
    ///
    /// Where the rows of a last strip would leave most of the registers idle, and the last block of rows has room,
    /// several strips are one row shorter instead: 197 rows in strips of 8 are 22 of 8 and 3 of 7, not 24 of 8 and 5.
    pub fn row_split(&self, m: usize) -> RowSplit {
        let strips = m.div_ceil(self.rows);
        let short = strips * self.rows - m;
        let in_last_block = m - m.saturating_sub(1) / self.block_rows.max(1) * self.block_rows;
        if short > 0 && short <= strips && self.rows > 1 && short * (self.rows - 1) <= in_last_block {
            return RowSplit { full: strips - short, rest_rows: self.rows - 1, rests: short };
        }
        let rest = m % self.rows;
        RowSplit { full: m / self.rows, rest_rows: rest, rests: usize::from(rest > 0) }
    }
}

/// Strips of rows: first the full ones, then shorter ones, all of which belong to the last block of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowSplit {
    /// Strips of the schedule's rows.
    pub full: usize,
    /// Rows of each shorter strip.
    pub rest_rows: usize,
    /// Shorter strips.
    pub rests: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_thread::target::{X86_64_AMX, X86_64_V3, X86_64_V4};

    #[test]
    fn tiles_fit_the_problem() {
        for (m, n) in [(1, 1), (1, 4096), (7, 5), (197, 768), (3136, 64), (49, 2048), (8, 100)] {
            let extents = Extents { batch: 1, m, n, k: 64 };
            let given = Staging { term_bytes: Some(1 << 20), ..Staging::default() };
            let ways =
                [(&X86_64_V4, 16), (&X86_64_V3, 8)].map(|way| [Staging::default(), given].map(|s| (way, s)));
            for ((target, lanes), staging) in ways.into_iter().flatten() {
                let schedules = ContractionSchedule::candidates(extents, staging, lanes, target, 4);
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
        let extents = Extents { batch: 1, m: 16, n: 8, k: 8192 };
        let rows = |row_bytes: usize, target: &CpuTarget| {
            let staging = Staging { row_bytes: Some(row_bytes), ..Staging::default() };
            ContractionSchedule::candidates(extents, staging, 16, target, 1)[0].rows
        };
        // 8 ways, and 12.
        assert_eq!(rows(4 * 8192, &X86_64_V4), 8);
        assert_eq!(rows(4 * 8192, &X86_64_AMX), 8);
        assert_eq!(rows(4 * 8192 + 2048, &X86_64_V4), 16);
        assert_eq!(rows(4 * 8192 + 1024, &X86_64_V4), 16);
        assert_eq!(rows(4 * 8208, &X86_64_V4), 16);
    }

    #[test]
    fn few_rows_that_are_copied_meet_parts_of_the_panels() {
        let staging = Staging { rows: Some(RowOrder::TermsInner), ..Staging::default() };
        let tasks = |m: usize, n: usize| {
            let extents = Extents { batch: 1, m, n, k: 4096 };
            let s = ContractionSchedule::candidates(extents, staging, 16, &X86_64_V4, 1)[0];
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
        let extents = Extents { batch: 1, m: 1, n: 4096, k: 4096 };
        let best = ContractionSchedule::candidates(extents, Staging::default(), 16, &X86_64_V4, 1)[0];
        assert!(best.vectors >= 8, "{best:?}: fewer accumulators than the latency needs");
    }
}
