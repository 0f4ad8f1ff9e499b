//! Scratch: where tiles are put, and what is put there when they are not needed any more.

use super::CpuBlockEmitter;
use super::element::TileView;
use super::extent::Extent;
use super::home::Home;
use super::plan::{CpuTilePlan, Work};
use crate::tiling::Stage;
use orch_compute::BufferId;
use orch_ir::DType;
use orch_thread::{Buffer, Scope};

/// When a tile is computed: tiles before the loop, in the loop and after it, each in order. Accumulators are computed in
/// the loop.
pub(super) fn time(plan: &CpuTilePlan, tile: usize) -> usize {
    phase(plan, tile) * plan.nodes.len() + tile
}

fn phase(plan: &CpuTilePlan, tile: usize) -> usize {
    let node = &plan.nodes[tile];
    match (node.stage, &node.work) {
        (_, Work::Accumulate(_) | Work::Rescaled { .. }) | (Stage::Loop, _) => 1,
        (Stage::Invariant, _) => 0,
        (Stage::After, _) => 2,
    }
}

/// When each tile is read for the last time, by whatever is computed where it is read.
pub(super) fn ends(ctx: &CpuBlockEmitter<'_>) -> Vec<usize> {
    let plan = &ctx.plan;
    let mut ends = vec![0; plan.nodes.len()];
    for &stored in &plan.stored {
        ends[stored] = 3 * plan.nodes.len();
    }
    for at in (0..plan.nodes.len()).rev() {
        let end = match ctx.homes[at] {
            Home::Inline => ends[at],
            Home::Scratch => time(plan, at),
            Home::Into(sum) => time(plan, sum),
        };
        for &arg in &plan.nodes[at].args {
            ends[arg] = ends[arg].max(end);
        }
    }
    ends
}

impl CpuBlockEmitter<'_> {
    /// Scratch for a tile.
    pub fn scratch_for(&mut self, tile: usize, name: &str) -> TileView {
        let shape = self.plan.nodes[tile].shape.clone();
        let view = self.scratch(name, &shape);
        if self.is_given_back(tile) {
            self.tenants.push((tile, view.buffer));
        }
        view
    }

    /// Scratch for an elementwise tile: that of an operand which is read here for the last time, or other.
    pub fn scratch_in_place(&mut self, tile: usize) -> TileView {
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        self.operands(tile, true, (&mut here, &mut elsewhere));
        let now = time(&self.plan, tile);
        let is_last = |(held, _): &(usize, BufferId)| {
            here.contains(held) && !elsewhere.contains(held) && self.ends[*held] == now
        };
        let Some(at) = self.tenants.iter().position(is_last).filter(|_| self.is_given_back(tile)) else {
            return self.scratch_for(tile, "tile");
        };
        let held = std::mem::replace(&mut self.tenants[at].0, tile);
        self.tiles[held].clone().expect("what holds scratch is there")
    }

    /// The tiles in scratch that a tile reads: those of which it reads the element at its own place, and the others.
    fn operands(&self, tile: usize, is_here: bool, (here, elsewhere): (&mut Vec<usize>, &mut Vec<usize>)) {
        let node = &self.plan.nodes[tile];
        for &arg in &node.args {
            let is_here =
                is_here && matches!(node.work, Work::Map(_)) && self.plan.nodes[arg].shape == node.shape;
            if self.tiles[arg].is_some() {
                if is_here { here.push(arg) } else { elsewhere.push(arg) }
            } else {
                self.operands(arg, is_here, (here, elsewhere));
            }
        }
    }

    /// True if the scratch of a tile is put to other uses: it is not kept for other iterations.
    fn is_given_back(&self, tile: usize) -> bool {
        let kept = matches!(
            self.plan.nodes[tile].work,
            Work::Accumulate(_) | Work::Rescaled { .. } | Work::RunningMax
        );
        let end = self.ends[tile] / self.plan.nodes.len();
        !kept && (end == phase(&self.plan, tile) || self.loop_range == 1 && end < 3)
    }

    /// Gives back the scratch of tiles that are not read after a time.
    pub fn give_back(&mut self, now: usize) {
        let ends = &self.ends;
        let (done, held) = self.tenants.drain(..).partition(|(tile, _)| ends[*tile] <= now);
        let done: Vec<(usize, BufferId)> = done;
        self.tenants = held;
        self.free.extend(done.into_iter().map(|(_, buffer)| buffer));
    }

    /// Scratch for a tile of a shape, in row-major order with lines of whole vectors.
    pub fn scratch(&mut self, name: &str, shape: &[Extent]) -> TileView {
        let mut strides = vec![1; shape.len()];
        let mut elems = 1;
        for (dim, extent) in shape.iter().enumerate().rev() {
            strides[dim] = elems;
            elems *= extent.full.max(1);
            if dim + 1 == shape.len() && extent.full > 1 {
                elems = self.line(extent.full);
            }
        }
        let buffer = self.memory(name, elems.next_multiple_of(self.lanes));
        TileView { buffer, dtype: DType::F32, offset: self.program.exprs.index(0), strides }
    }

    /// Scratch of at least so many elements: some that is free, if need be made larger, or new.
    fn memory(&mut self, name: &str, elems: usize) -> BufferId {
        let size = |buffer: &BufferId| self.program.buffer(*buffer).elems;
        let fitting =
            self.free.iter().filter(|buffer| size(buffer) >= elems).min_by_key(|buffer| size(buffer));
        let free = fitting.or_else(|| self.free.iter().max_by_key(|buffer| size(buffer))).copied();
        let Some(buffer) = free else {
            let buffer = Buffer { name: name.into(), dtype: DType::F32, elems, scope: Scope::Scratch };
            return self.program.add_buffer(buffer);
        };
        self.free.retain(|other| *other != buffer);
        let known = &mut self.program.buffers[buffer.index()];
        known.elems = known.elems.max(elems);
        buffer
    }

    /// Elements of a line in scratch: whole vectors, and lines do not compete for the same places of the cache.
    fn line(&self, elems: usize) -> usize {
        const ALIASING_ELEMS: usize = 256;
        let line = elems.next_multiple_of(self.lanes);
        if line.is_multiple_of(ALIASING_ELEMS) { line + self.lanes } else { line }
    }

    /// Scratch for the panels of right operands, which follow one another.
    pub fn panel_buffer(&mut self, elems: usize) -> BufferId {
        let elems = elems.max(self.lanes);
        match self.panel {
            Some(buffer) => {
                let known = &mut self.program.buffers[buffer.index()];
                known.elems = known.elems.max(elems);
                buffer
            }
            None => {
                let buffer = Buffer { name: "panel".into(), dtype: DType::F32, elems, scope: Scope::Scratch };
                *self.panel.insert(self.program.add_buffer(buffer))
            }
        }
    }
}
