//! Which operands of a contraction are packed into scratch before they are multiplied, and how those that are read in place
//! meet the caches.

use super::form::{ContractionForm, GemmShape};
use super::linear::read_offsets;
use super::lines::{LineSize, Lines};
use super::math_unit::CpuMathUnit;
use super::operand::{FlatAxes, PanelsFrom, RowsFrom, flat_operands, row_bytes, sources};
use super::pack_cost::{AlongK, PackingWork, RowOrder, cpu_form, operand_packing};
use super::schedule::TaskGrid;
use super::window::WindowSize;
use crate::singles::{SingleAccesses, VectorAccess, lines_kept};
use orch_compute::block::{BlockProgram, Stage};
use orch_compute::simplify::Simplifier;
use orch_thread::target::CpuTarget;

/// Which operands a work item copies to scratch before it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Staging {
    /// The work item's rows of the first operand, and how.
    pub rows: Option<RowOrder>,
    /// How much of a window the rows take, if that is what is copied of them.
    pub window: Option<WindowSize>,
    /// The lines of rows, if they can be read where they lie, but not evenly apart.
    pub lines: Option<LineSize>,
    /// Each of the work item's panels of the second operand.
    pub panels: bool,
    /// Bytes from one row of the first operand to the next, where they are read in place and evenly apart.
    pub row_bytes: Option<usize>,
    /// Bytes from one step along K of the second operand to the next, where its panels are read in place.
    pub term_bytes: Option<usize>,
}

impl Staging {
    /// Whether work items pack their rows, in a schedule that reads lines where they lie or not.
    pub(super) fn packs_rows(&self, is_in_lines: bool) -> bool {
        !is_in_lines && (self.rows.is_some() || self.window.is_some())
    }

    /// Elements that so many rows of a product are computed from: a part of a window, or rows of `k`.
    pub(super) fn row_elems(&self, rows: usize, k: usize) -> usize {
        self.window.map_or(rows * k, |window| window.elems_of(rows))
    }

    /// Whether so many rows that are read at a time do not stay in the L1, because their places in it
    /// are the same: lines this many bytes apart share as many places as it has ways.
    pub(super) fn rows_collide(&self, rows: usize, target: &CpuTarget) -> bool {
        self.row_bytes.is_some_and(|bytes| collide(bytes, rows, target))
    }

    /// The same of rows that are read line by line.
    pub(super) fn lines_collide(&self, rows: usize, target: &CpuTarget) -> bool {
        self.lines.is_some_and(|lines| collide(lines.row_bytes, rows, target))
    }

    /// Whether memory is what a product in register tiles of so many rows and columns waits for: few row tiles read large
    /// panels where they lie, each of which is a part of longer lines.
    pub(super) fn waits_for_panels(
        &self,
        (rows, width): (usize, usize),
        extents: GemmShape,
        target: &CpuTarget,
    ) -> bool {
        let is_large = |bytes| bytes * extents.k > target.l2_bytes / 4;
        let has_few_strips = extents.m.div_ceil(rows) <= MOST_STRIPS;
        has_few_strips && extents.n > width && self.term_bytes.is_some_and(is_large)
    }

    /// The same of the lines of a panel, which each strip of rows reads again.
    pub(super) fn panel_lines_collide(&self, terms: usize, target: &CpuTarget) -> bool {
        self.term_bytes.is_some_and(|bytes| collide(bytes, terms, target))
    }
}

/// Row tiles, at most, that wait for memory: others are busy with multiplying.
const MOST_STRIPS: usize = 8;

/// Whether so many lines that are so many bytes apart do not stay in the L1.
fn collide(bytes: usize, lines: usize, target: &CpuTarget) -> bool {
    lines > lines_kept(target, bytes as i64)
}

/// Which operands work items will copy, whatever the schedule.
pub fn staging(block: &BlockProgram, form: &ContractionForm, math_unit: CpuMathUnit) -> Staging {
    let mut exprs = block.exprs.clone();
    let flat = FlatAxes::new(block, &mut exprs, form);
    let factors = flat_operands(&mut exprs, form, &flat, math_unit);
    let (rows, panels) = sources(block, &mut exprs, form, &flat, factors, math_unit, 1);
    let (rows, window, row_bytes) = match rows {
        RowsFrom::Lines(_) => unreachable!("the schedule decides that"),
        RowsFrom::Scratch(order) => (Some(order), None, None),
        RowsFrom::Window(window) => (None, Some(window.size(block)), None),
        RowsFrom::Argument { .. } => (None, None, row_bytes(block, &mut exprs, &flat, factors.0)),
    };
    let term_bytes = panels.term_bytes(exprs.dtype(factors.1));
    let lines = match math_unit {
        CpuMathUnit::Fma if row_bytes.is_none() => Lines::of(block, &mut exprs, form).map(|lines| lines.size),
        CpuMathUnit::Fma | CpuMathUnit::Bf16Dot | CpuMathUnit::Amx => None,
    };
    Staging { rows, window, lines, panels: matches!(panels, PanelsFrom::Scratch), row_bytes, term_bytes }
}

/// What a contraction does under the schedule that the model prefers, beside its multiply-adds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ContractionWork {
    /// The work items.
    pub grid: TaskGrid,
    /// The filling of both operands; nothing for operands that are read where they are.
    pub packing: PackingWork,
    /// The speed of its multiply-adds as a share of what it would be with both operands at hand; 1 for operands that lie, or are packed, row by
    /// row: what those wait for is in the figures of all products.
    pub relative_speed: f64,
    /// What the epilogue accesses one element at a time.
    pub epilogue: SingleAccesses,
}

/// Counts the work of a contraction, which fills operands in so many lanes; `None` for other programs.
pub fn work(block: &BlockProgram, target: &CpuTarget, fill_lanes: usize) -> Option<ContractionWork> {
    let form = cpu_form(block).ok()?;
    let extents = GemmShape::of(block, &form);
    let math_unit = CpuMathUnit::of(block, &form, target);
    let staging = staging(block, &form, math_unit);
    let lanes = target.lanes(block.exprs.dtype(form.a).size_bytes());
    let schedule = *math_unit.schedules(extents, staging, lanes, target, 1).first()?;
    let along = match staging.rows {
        Some(RowOrder::KInner) => form.k.last(),
        Some(RowOrder::RowsInner) => form.m.last(),
        None => None,
    };
    let rows = along.map(|&along| operand_packing(block, form.a, along, fill_lanes));
    let of_window = |window: WindowSize| {
        let elems = window.elems_of(window.lines * window.line_rows) * extents.batch;
        PackingWork { lanes: elems as u64, ..PackingWork::default() }
    };
    let rows = rows.or(staging.window.map(of_window)).filter(|_| schedule.line_rows.is_none());
    let panels = form.n.last().filter(|_| staging.panels).map(|&along| {
        let packing = operand_packing(block, form.b, along, fill_lanes);
        match AlongK::of_panels(block, &form, math_unit) {
            Some(_) => packing.transposing(extents.k),
            None => packing,
        }
    });
    let (rows, panels) = (rows.unwrap_or_default(), panels.unwrap_or_default());
    let packing = rows.plus(panels);
    let is_scattered = staging.panels
        || schedule.line_rows.is_none()
            && (staging.window.is_some() || staging.rows == Some(RowOrder::RowsInner));
    let relative_speed = match math_unit {
        CpuMathUnit::Fma if is_scattered => schedule.relative_speed(extents, staging, lanes, target),
        CpuMathUnit::Fma | CpuMathUnit::Bf16Dot | CpuMathUnit::Amx => 1.0,
    };
    let columns = extents.n.min(schedule.block_panels * schedule.vectors * lanes);
    let epilogue = epilogue_accesses(block, &form, columns, target);
    Some(ContractionWork { grid: schedule.grid(extents, lanes), packing, relative_speed, epilogue })
}

/// What the epilogue accesses one element at a time: vectors run along columns, and a row of so many columns is between an access to a line
/// and that to the next row's element in it.
fn epilogue_accesses(
    block: &BlockProgram,
    form: &ContractionForm,
    columns: usize,
    target: &CpuTarget,
) -> SingleAccesses {
    let mut singles = SingleAccesses::default();
    let Some(&along) = form.n.last() else { return singles };
    let mut exprs = block.exprs.clone();
    let mut simplifier = Simplifier::new();
    let mut accesses = Vec::new();
    for stage in &block.stages {
        let Stage::Store { arg, index, body, .. } = stage else { continue };
        accesses.extend(read_offsets(block, &mut exprs, *body));
        let meta = block.arg(*arg);
        accesses.push((*arg, exprs.linear_index(index, &meta.layout.strides(&meta.shape))));
    }
    accesses.sort_unstable();
    accesses.dedup();
    for (arg, offset) in accesses {
        let elems = exprs.free_vars(offset).iter().map(|&axis| block.extent(axis)).product();
        let stride = simplifier.stride(&mut exprs, offset, along);
        let access = VectorAccess { stride, lines: columns, size: block.arg(arg).dtype.size_bytes() };
        if let Some(single) = access.single(target) {
            singles.add(single, elems);
        }
    }
    singles
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_compute::{Layout, fuse};
    use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ScalarFn, TensorId};

    fn work_of(graph: &PrimGraph, result: TensorId) -> ContractionWork {
        let nodes: Vec<_> = graph.node_ids().collect();
        let layout = |tensor: TensorId| Layout::row_major(graph.shape(tensor).rank());
        let block = fuse::build(graph, &nodes, &[result], &layout, "kernel").unwrap();
        work(&block, &orch_thread::target::X86_64_V4, 16).unwrap()
    }

    #[test]
    fn a_transposed_operand_is_transposed_in_registers() {
        let mut graph = PrimGraph::new("scores");
        let q = graph.add_input("q", DType::F32, [2, 40, 8]);
        let k = graph.add_input("k", DType::F32, [2, 50, 8]);
        let k = graph.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[k]).unwrap();
        let scores = graph.add(PrimOp::Contract(Contract::matmul(1)), &[q, k]).unwrap();
        let packing = PackingWork { lanes: 2 * 8 * 64, gathered: 0, transposed: 2 * 8 * 50 };
        assert_eq!(work_of(&graph, scores).packing, packing);
    }

    #[test]
    fn plain_matrices_are_read_where_they_are() {
        let mut graph = PrimGraph::new("product");
        let x = graph.add_input("x", DType::F32, [40, 30]);
        let w = graph.add_input("w", DType::F32, [30, 64]);
        let y = graph.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        let work = work_of(&graph, y);
        assert_eq!((work.packing, work.epilogue), (PackingWork::default(), SingleAccesses::default()));
    }

    #[test]
    fn what_an_epilogue_adds_by_columns_of_memory_is_read_one_element_at_a_time() {
        for (rows, far) in [(4096, 4096 * 256), (4100, 0)] {
            let mut graph = PrimGraph::new("sum");
            let x = graph.add_input("x", DType::F32, [rows, 64]);
            let w = graph.add_input("w", DType::F32, [64, 256]);
            let planes = graph.add_input("planes", DType::F32, [256, rows]);
            let product = graph.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]).unwrap();
            let turned = graph.add(PrimOp::Transpose { perm: vec![1, 0] }, &[planes]).unwrap();
            let add = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
            let sum = graph.add(add, &[product, turned]).unwrap();
            // Lines 16 KiB apart share a set of the L1.
            let epilogue = SingleAccesses { near: rows * 256 - far, far, transposed: 0 };
            assert_eq!(work_of(&graph, sum).epilogue, epilogue);
        }
    }
}
