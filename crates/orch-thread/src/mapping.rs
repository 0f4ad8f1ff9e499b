//! Task mappings (Hidet, ASPLOS'23, section 5.1): which worker does which tasks, in which order.
//!
//! A mapping `f` from `n` workers to tasks of a shape `d` is a function `f(w) = [t_0, t_1, ..]` from a worker
//! `0 <= w < n` to the ordered list of index tuples it does. The basic ones are
//!
//! - `repeat(d)`: one worker does all tasks of `d`, in the order of its ranks;
//! - `spatial(d)`: one worker per task, `f(w) = [unflatten(w)]`;
//! - `custom`: any table.
//!
//! and the composition of `f` (outer, `n1` workers, shape `d1`) with `g` (inner, `n2` workers, shape `d2`) has
//! `n1 * n2` workers and shape `d1 * d2` (elementwise):
//!
//! ```text
//! (f * g)(w) = [ t1 * d2 + t2  for t1 in f(w / n2)  for t2 in g(w mod n2) ]      (elementwise * and +)
//! ```
//!
//! Composition is associative, and each task is done by exactly one worker, once. The order of dimensions in
//! `repeat` and `spatial` is a permutation `order`, outermost first: row-major is `[0, 1, ..]`.
//!
//! The symbolic form ([`TaskMapping::lower`]) turns a worker *expression* into loops and a task *expression*. It
//! assumes `0 <= worker < workers()`; code that starts more workers guards them.

use orch_compute::expr::{ExprId, Exprs, VarId};

/// An assignment of tasks to workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskMapping {
    shape: Vec<usize>,
    /// Basic parts, outermost first; at least one.
    parts: Vec<Part>,
}

/// A mapping that is not a composition.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// One worker does all tasks; dimensions in this order, outermost first.
    Repeat { shape: Vec<usize>, order: Vec<usize> },
    /// One worker per task; dimensions in this order, outermost first.
    Spatial { shape: Vec<usize>, order: Vec<usize> },
    /// `table[w]` is what worker `w` does.
    Custom { shape: Vec<usize>, table: Vec<Vec<Vec<usize>>> },
}

/// The symbolic form of a mapping for one worker: loops to run, and the task of each iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoweredMapping {
    /// Loops, outermost first: variables with values `0..extent`.
    pub loops: Vec<(VarId, usize)>,
    /// The task's index tuple, over the worker expression and the loop variables.
    pub task: Vec<ExprId>,
}

impl TaskMapping {
    /// One worker does all tasks of `shape`, last dimension fastest.
    pub fn repeat(shape: &[usize]) -> Self {
        Self::repeat_in_order(shape, &row_major(shape.len()))
    }

    /// One worker does all tasks of `shape`, first dimension fastest.
    pub fn column_repeat(shape: &[usize]) -> Self {
        Self::repeat_in_order(shape, &column_major(shape.len()))
    }

    /// One worker does all tasks of `shape`; dimensions are looped over in `order`, outermost first.
    ///
    /// # Panics
    /// If `order` is not a permutation of the dimensions.
    pub fn repeat_in_order(shape: &[usize], order: &[usize]) -> Self {
        check_order(shape, order);
        Self::from_part(Part::Repeat { shape: shape.to_vec(), order: order.to_vec() })
    }

    /// One worker per task of `shape`, row-major.
    pub fn spatial(shape: &[usize]) -> Self {
        Self::spatial_in_order(shape, &row_major(shape.len()))
    }

    /// One worker per task of `shape`, column-major.
    pub fn column_spatial(shape: &[usize]) -> Self {
        Self::spatial_in_order(shape, &column_major(shape.len()))
    }

    /// One worker per task of `shape`; workers are numbered with dimensions in `order`, outermost first.
    ///
    /// # Panics
    /// If `order` is not a permutation of the dimensions.
    pub fn spatial_in_order(shape: &[usize], order: &[usize]) -> Self {
        check_order(shape, order);
        Self::from_part(Part::Spatial { shape: shape.to_vec(), order: order.to_vec() })
    }

    /// The mapping with `tasks_of(w) == table[w]`, or `None` if it does not assign each task of `shape` to
    /// exactly one worker, the same number of tasks to each.
    pub fn custom(shape: &[usize], table: Vec<Vec<Vec<usize>>>) -> Option<Self> {
        let steps = table.first()?.len();
        let mut seen = vec![false; shape.iter().product()];
        for tasks in &table {
            if tasks.len() != steps {
                return None;
            }
            for task in tasks {
                let in_shape = task.len() == shape.len() && task.iter().zip(shape).all(|(t, d)| t < d);
                let slot = if in_shape { &mut seen[flatten(task, shape)] } else { return None };
                if std::mem::replace(slot, true) {
                    return None;
                }
            }
        }
        let is_complete = seen.into_iter().all(|done| done);
        is_complete.then(|| Self::from_part(Part::Custom { shape: shape.to_vec(), table }))
    }

    /// The composition with `inner`: each task of `self` becomes a tile of `inner`'s shape.
    ///
    /// # Panics
    /// If the ranks differ.
    pub fn compose(mut self, inner: Self) -> Self {
        assert_eq!(self.shape.len(), inner.shape.len(), "composed mappings have equal rank");
        for (outer, inner) in self.shape.iter_mut().zip(&inner.shape) {
            *outer *= inner;
        }
        self.parts.extend(inner.parts);
        self
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.parts.iter().map(Part::workers).product()
    }

    /// The number of tasks that each worker does.
    pub fn tasks_per_worker(&self) -> usize {
        self.parts.iter().map(Part::tasks_per_worker).product()
    }

    /// The shape of the index space of tasks.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// What a worker does, in order.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn tasks_of(&self, worker: usize) -> Vec<Vec<usize>> {
        assert!(worker < self.workers(), "worker {worker} of {}", self.workers());
        let mut tasks = vec![vec![0; self.shape.len()]];
        let mut rest = self.workers();
        for part in &self.parts {
            rest /= part.workers();
            let inner = part.tasks_of(worker / rest % part.workers());
            tasks =
                (tasks.iter()).flat_map(|outer| inner.iter().map(|task| part.nested(outer, task))).collect();
        }
        tasks
    }

    /// The symbolic form: declares one variable per repeated dimension of extent above 1, with names that start
    /// with `name`, and gives the task's index tuple for the worker `worker`. Running the loops in order visits
    /// [`TaskMapping::tasks_of`] in order.
    ///
    /// # Panics
    /// If the mapping has a custom part with more than one worker or task: a table has no closed form.
    pub fn lower(&self, exprs: &mut Exprs, worker: ExprId, name: &str) -> LoweredMapping {
        let mut loops = Vec::new();
        let zero = exprs.index(0);
        let mut task = vec![zero; self.shape.len()];
        let mut rest = self.workers();
        for (depth, part) in self.parts.iter().enumerate() {
            let mut own = worker;
            let is_outermost = rest == self.workers();
            rest /= part.workers().max(1);
            if part.workers() > 1 {
                let inner_workers = exprs.index(rest.max(1) as i64);
                own = exprs.floor_div(worker, inner_workers);
                if !is_outermost {
                    let own_workers = exprs.index(part.workers() as i64);
                    own = exprs.floor_rem(own, own_workers);
                }
            }
            let inner = match part {
                Part::Repeat { shape, order } => {
                    repeat_loops(exprs, &format!("{name}{depth}"), (shape, order), &mut loops)
                }
                Part::Spatial { shape, .. } if part.workers() <= 1 => vec![exprs.index(0); shape.len()],
                Part::Spatial { shape, order } => spatial_index(exprs, own, shape, order),
                Part::Custom { table, .. } => {
                    assert!(table.len() == 1 && table[0].len() == 1, "a custom mapping has no closed form");
                    table[0][0].iter().map(|&position| exprs.index(position as i64)).collect()
                }
            };
            for (dim, position) in task.iter_mut().enumerate() {
                let scaled = exprs.mul_const(*position, part.shape()[dim] as i64);
                *position = exprs.add2(scaled, inner[dim]);
            }
        }
        LoweredMapping { loops, task }
    }

    fn from_part(part: Part) -> Self {
        Self { shape: part.shape().to_vec(), parts: vec![part] }
    }
}

impl std::ops::Mul for TaskMapping {
    type Output = Self;

    fn mul(self, inner: Self) -> Self {
        self.compose(inner)
    }
}

impl Part {
    fn shape(&self) -> &[usize] {
        match self {
            Part::Repeat { shape, .. } | Part::Spatial { shape, .. } | Part::Custom { shape, .. } => shape,
        }
    }

    fn workers(&self) -> usize {
        match self {
            Part::Repeat { .. } => 1,
            Part::Spatial { shape, .. } => shape.iter().product(),
            Part::Custom { table, .. } => table.len(),
        }
    }

    fn tasks_per_worker(&self) -> usize {
        match self {
            Part::Repeat { shape, .. } => shape.iter().product(),
            Part::Spatial { .. } => 1,
            Part::Custom { table, .. } => table[0].len(),
        }
    }

    fn tasks_of(&self, worker: usize) -> Vec<Vec<usize>> {
        match self {
            Part::Repeat { shape, order } => {
                (0..shape.iter().product()).map(|step| unflatten(step, shape, order)).collect()
            }
            Part::Spatial { shape, order } => vec![unflatten(worker, shape, order)],
            Part::Custom { table, .. } => table[worker].clone(),
        }
    }

    /// `outer * shape + inner`, elementwise.
    fn nested(&self, outer: &[usize], inner: &[usize]) -> Vec<usize> {
        outer
            .iter()
            .zip(self.shape())
            .zip(inner)
            .map(|((outer, extent), inner)| outer * extent + inner)
            .collect()
    }
}

/// How tiles cover an index space whose extents they need not divide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Covering {
    /// Extents of the index space.
    pub extents: Vec<usize>,
    /// Extents of a tile.
    pub tile: Vec<usize>,
    /// Number of tiles in each dimension: `ceil(extent / tile)`.
    pub tiles: Vec<usize>,
}

/// Covers `0..extents` with tiles, the last one in each dimension possibly reaching over the end.
///
/// # Panics
/// If the ranks differ or a tile extent is 0.
pub fn covering(extents: &[usize], tile: &[usize]) -> Covering {
    assert_eq!(extents.len(), tile.len(), "one tile extent per dimension");
    let tiles = extents.iter().zip(tile).map(|(extent, tile)| extent.div_ceil(*tile)).collect();
    Covering { extents: extents.to_vec(), tile: tile.to_vec(), tiles }
}

impl Covering {
    /// True if tiles reach over the end of this dimension.
    pub fn has_remainder(&self, dim: usize) -> bool {
        !self.extents[dim].is_multiple_of(self.tile[dim])
    }

    /// The predicate that `index` (a task tuple of a mapping of shape `tiles * tile`) lies in the index space;
    /// `None` if it always does.
    pub fn predicate(&self, exprs: &mut Exprs, index: &[ExprId]) -> Option<ExprId> {
        let mut predicate = None;
        for (dim, &position) in index.iter().enumerate() {
            if self.has_remainder(dim) {
                let extent = exprs.index(self.extents[dim] as i64);
                let inside = exprs.lt(position, extent);
                predicate = exprs.and_guard(predicate, Some(inside));
            }
        }
        predicate
    }
}

/// Declares loops for the repeated dimensions; the index tuple over their variables.
fn repeat_loops(
    exprs: &mut Exprs,
    name: &str,
    (shape, order): (&[usize], &[usize]),
    loops: &mut Vec<(VarId, usize)>,
) -> Vec<ExprId> {
    let mut index = vec![exprs.index(0); shape.len()];
    for &dim in order {
        if shape[dim] != 1 {
            let (var, value) = exprs.fresh_index(format!("{name}_{dim}"), shape[dim]);
            loops.push((var, shape[dim]));
            index[dim] = value;
        }
    }
    index
}

/// The index tuple of a worker number.
fn spatial_index(exprs: &mut Exprs, worker: ExprId, shape: &[usize], order: &[usize]) -> Vec<ExprId> {
    let extents: Vec<usize> = order.iter().map(|&dim| shape[dim]).collect();
    let ordered = exprs.unflatten(worker, &extents);
    let mut index = vec![worker; shape.len()];
    for (&dim, position) in order.iter().zip(ordered) {
        index[dim] = position;
    }
    index
}

fn row_major(rank: usize) -> Vec<usize> {
    (0..rank).collect()
}

fn column_major(rank: usize) -> Vec<usize> {
    (0..rank).rev().collect()
}

fn check_order(shape: &[usize], order: &[usize]) {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, row_major(shape.len()), "an order names each dimension once");
}

fn flatten(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |linear, (position, extent)| linear * extent + position)
}

fn unflatten(mut linear: usize, shape: &[usize], order: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for &dim in order.iter().rev() {
        index[dim] = linear % shape[dim];
        linear /= shape[dim];
    }
    index
}

#[cfg(test)]
mod tests;
