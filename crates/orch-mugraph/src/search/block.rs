//! The search within one kernel: all block programs of a structure, by adding one operator at a time.
//!
//! A state is a list of tiles. Operators are added in canonical order (by operands, then operator, strictly increasing),
//! so that no set of operators is met twice. With abstract expressions, only operators whose result is part of the
//! target are met: they are read off the e-graph's parents of each tile.

use super::algebra::{Algebra, GRID, LOOP, RopeTerm, TILE, Term, WHOLE};
use super::limits::{BlockLimits, Counts, Goal, STATES_BETWEEN_LOOKS, Target};
use super::tile::{Dim, Sketch, SketchStep, Source, Structure, TileOp};
use crate::op::{BinaryFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::Stage;
use egg::{Id, Language};
use rustc_hash::FxHashMap;

/// The sketches of a structure from some sources with the fewest operators, and with one more; all of up to `limits.ops`
/// operators if parts are wanted too. `None` if `goes_on` says no before the end.
pub fn search_block(
    algebra: &Algebra,
    task: (&Structure, &[Source]),
    (goal, goes_on): (&Goal<'_>, &(dyn Fn() -> bool + Sync)),
    limits: &BlockLimits,
) -> Option<(Vec<Sketch>, Counts)> {
    let search_depth = |ops| search_depth(algebra, task, (goal, goes_on), &BlockLimits { ops, ..*limits });
    if goal.partial {
        return search_depth(limits.ops);
    }
    let mut counts = Counts::default();
    if limits.abstract_expressions {
        if !reaches(algebra, task, goal, limits) {
            counts.prune("target out of reach");
            return Some((Vec::new(), counts));
        }
        // What one of the sources is not needed for is found without it.
        let without = |at: usize| [&task.1[..at], &task.1[at + 1..]].concat();
        if (0..task.1.len()).any(|at| reaches(algebra, (task.0, &without(at)), goal, limits)) {
            counts.prune("source not needed");
            return Some((Vec::new(), counts));
        }
    }
    for ops in task.1.len() + 1..=limits.ops {
        let (found, own) = search_depth(ops)?;
        counts.add(&own);
        if !found.is_empty() && ops < limits.ops {
            let (found, own) = search_depth(ops + 1)?;
            counts.add(&own);
            return Some((found, counts));
        }
        // Fewer operators than the limit sufficed to add whatever can be added, or there were too many states.
        if !found.is_empty()
            || own.truncated > 0
            || !own.pruned.contains_key(AT_LIMIT) && !own.pruned.contains_key(OPEN)
        {
            return Some((found, counts));
        }
    }
    Some((Vec::new(), counts))
}

/// Tiles among which the targets are looked for.
const REACHED: usize = 4096;

/// True if all targets are among the tiles that any number of operators gives, or there are too many to tell.
pub fn reaches(
    algebra: &Algebra,
    (structure, sources): (&Structure, &[Source]),
    goal: &Goal<'_>,
    limits: &BlockLimits,
) -> bool {
    let limits = BlockLimits { canonical_order: false, ..*limits };
    let Some(mut search) = Search::new(algebra, (structure, sources), goal, &limits) else { return false };
    let (mut seen, mut missing) = (0, goal.targets.iter().collect::<Vec<&Target>>());
    while search.tiles.len() < REACHED {
        let is = |tile: &SketchTile, (class, dims): &Target| {
            tile.class == *class && search.stored(tile).is_some_and(|(own, _)| own == *dims)
        };
        missing.retain(|target| !search.tiles[seen..].iter().any(|tile| is(tile, target)));
        if missing.is_empty() {
            return true;
        }
        let from = std::mem::replace(&mut seen, search.tiles.len());
        for (_, tile) in search.next_tiles(from) {
            if !search.has(&tile) {
                search.push(tile);
            }
        }
        if search.tiles.len() == seen {
            return false;
        }
    }
    true
}

/// Left because no operator may be added.
const AT_LIMIT: &str = "operator limit";
/// Left because too many tiles have no reader.
const OPEN: &str = "closability";

/// All sketches of up to `limits.ops` operators; `None` if `goes_on` says no before the end.
fn search_depth(
    algebra: &Algebra,
    (structure, sources): (&Structure, &[Source]),
    (goal, goes_on): (&Goal<'_>, &(dyn Fn() -> bool + Sync)),
    limits: &BlockLimits,
) -> Option<(Vec<Sketch>, Counts)> {
    let Some(mut search) = Search::new(algebra, (structure, sources), goal, limits) else {
        return Some((Vec::new(), Counts::default()));
    };
    search.visit((0, 0, 0), goes_on).then_some((search.found, search.counts))
}

#[derive(Clone, Debug)]
struct SketchTile {
    class: Id,
    dims: Vec<Dim>,
    stage: Stage,
    step: SketchStep,
    readers: usize,
}

/// The order of operators: newest operand, operator, other operand.
type Key = (usize, usize, usize);

/// A tile that is stored, the dimensions of the tensor, and the dimension of each grid index.
type Store = (usize, Vec<Dim>, Vec<usize>);

struct Search<'a> {
    algebra: &'a Algebra,
    structure: &'a Structure,
    sources: &'a [Source],
    goal: &'a Goal<'a>,
    limits: &'a BlockLimits,
    tiles: Vec<SketchTile>,
    /// The tiles of each class, the oldest first.
    by_class: FxHashMap<Id, Vec<usize>>,
    counts: Counts,
    found: Vec<Sketch>,
    /// Classes of terms that are no part of the target, where such are followed.
    foreign: FxHashMap<Term, (Id, u64)>,
}

/// The first class that is no part of the target.
const FOREIGN: usize = 1 << 30;

impl<'a> Search<'a> {
    /// A search that starts with the loads of all sources; `None` if the structure cannot load one.
    fn new(
        algebra: &'a Algebra,
        (structure, sources): (&'a Structure, &'a [Source]),
        goal: &'a Goal<'a>,
        limits: &'a BlockLimits,
    ) -> Option<Search<'a>> {
        let load = |(at, source): (usize, &Source)| {
            let (dims, stage) = structure.load(source)?;
            Some(SketchTile { class: source.class, dims, stage, step: SketchStep::Load(at), readers: 0 })
        };
        let tiles = sources.iter().enumerate().map(load).collect::<Option<Vec<SketchTile>>>()?;
        let mut search = Search {
            algebra,
            structure,
            sources,
            goal,
            limits,
            tiles: Vec::new(),
            by_class: FxHashMap::default(),
            counts: Counts::default(),
            found: Vec::new(),
            foreign: FxHashMap::default(),
        };
        tiles.into_iter().for_each(|tile| search.push(tile));
        Some(search)
    }

    /// All states that operators lead to from this one; false if `goes_on` says no.
    fn visit(&mut self, last: Key, goes_on: &(dyn Fn() -> bool + Sync)) -> bool {
        if self.counts.states >= self.limits.states as u64 {
            self.counts.truncated = 1;
            return true;
        }
        if self.counts.states.is_multiple_of(STATES_BETWEEN_LOOKS) && !goes_on() {
            return false;
        }
        self.counts.states += 1;
        let open = self.tiles.iter().filter(|tile| tile.readers == 0).count();
        if self.close(open) {
            return true;
        }
        let left = self.limits.ops.saturating_sub(self.tiles.len());
        if left == 0 {
            self.counts.prune(AT_LIMIT);
            return true;
        }
        if self.limits.closability && open > self.most_results() + left {
            self.counts.prune(OPEN);
            return true;
        }
        // Operators on older tiles alone come before the last one.
        let from = if self.limits.canonical_order { last.0 } else { 0 };
        for (key, tile) in self.next_tiles(from) {
            if self.limits.canonical_order && key <= last {
                self.counts.prune("canonical order");
                continue;
            }
            if self.limits.value_numbers && self.has(&tile) {
                self.counts.prune("value numbering");
                continue;
            }
            let args = operands(&tile.step);
            args.iter().for_each(|&arg| self.tiles[arg].readers += 1);
            self.push(tile);
            let is_done = self.visit(if self.limits.canonical_order { key } else { (0, 0, 0) }, goes_on);
            self.pop();
            args.iter().for_each(|&arg| self.tiles[arg].readers -= 1);
            if !is_done {
                return false;
            }
        }
        true
    }

    /// True if there is a tile of this value, known no later.
    fn has(&self, tile: &SketchTile) -> bool {
        let is_it = |at: &usize| {
            let known = &self.tiles[*at];
            known.dims == tile.dims && known.stage <= tile.stage
        };
        self.by_class.get(&tile.class).is_some_and(|tiles| tiles.iter().any(is_it))
    }

    /// The dimensions of the tensor that blocks store a tile to, and the dimension of each grid index; `None` if they cannot.
    fn stored(&self, tile: &SketchTile) -> Option<(Vec<Dim>, Vec<usize>)> {
        let stays = tile.stage != Stage::Loop;
        stays.then(|| self.structure.store(&tile.dims, self.algebra.free(tile.class))).flatten()
    }

    /// Results that a kernel may have.
    fn most_results(&self) -> usize {
        if self.goal.partial { self.limits.outputs } else { self.goal.targets.len() }
    }

    /// Records what can be stored here. True if the targets are reached, so that nothing need be added.
    fn close(&mut self, open: usize) -> bool {
        if open > self.most_results() {
            return false;
        }
        let stored = |(at, tile): (usize, &SketchTile)| {
            let is_computed = !matches!(tile.step, SketchStep::Load(_));
            let (dims, map) = is_computed.then(|| self.stored(tile)).flatten()?;
            Some((at, dims, map))
        };
        let is = |(at, dims, _): &Store, target: &Target| {
            (self.tiles[*at].class, dims.as_slice()) == (target.0, target.1.as_slice())
        };
        let tiles = || self.tiles.iter().enumerate();
        let unread: Option<Vec<Store>> = tiles().filter(|(_, tile)| tile.readers == 0).map(stored).collect();
        let Some(mut stores) = unread else { return false };
        // Of several targets one may be an operand of another.
        if !self.goal.partial && stores.len() < self.goal.targets.len() {
            let targets = self.goal.targets.iter();
            let missing = targets.filter(|target| !stores.iter().any(|store| is(store, target)));
            let read = |target: &Target| {
                let mut read = tiles().filter(|(_, tile)| tile.readers > 0 && tile.class == target.0);
                read.find_map(|tile| stored(tile).filter(|store| is(store, target)))
            };
            let found: Option<Vec<Store>> = missing.map(read).collect();
            let Some(found) = found else { return false };
            stores.extend(found);
        }
        let targets = self.goal.targets;
        let reached = stores.len() == targets.len()
            && targets.iter().all(|target| stores.iter().any(|store| is(store, target)));
        if reached || self.goal.partial {
            self.found.push(Sketch {
                structure: self.structure.clone(),
                steps: self.tiles.iter().map(|tile| tile.step.clone()).collect(),
                dims: self.tiles.iter().map(|tile| tile.dims.clone()).collect(),
                in_loop: self.tiles.iter().map(|tile| tile.stage == Stage::Loop).collect(),
                classes: stores.iter().map(|(at, _, _)| self.tiles[*at].class).collect(),
                stores,
                sources: self.sources.to_vec(),
            });
        }
        reached
    }

    /// The class of a term: part of the target, or, without abstract expressions, anything.
    fn class(&mut self, term: Term, free: u64) -> Option<Id> {
        if let Some(class) = self.algebra.lookup(&term) {
            return Some(class);
        }
        if self.limits.abstract_expressions {
            return None;
        }
        let next = Id::from(FOREIGN + self.foreign.len());
        Some(self.foreign.entry(term).or_insert((next, free)).0)
    }

    fn sum(&mut self, class: Id, label: u8, parts: u8) -> Option<Id> {
        if self.limits.abstract_expressions || parts == 0 {
            return self.algebra.sum(class, label, parts);
        }
        [TILE, LOOP, GRID].iter().enumerate().filter(|(_, bit)| parts & **bit != 0).try_fold(
            class,
            |class, (part, _)| {
                let part = self.class(Term::Part(u32::from(label) * 3 + part as u32), 0)?;
                self.class(Term::Sum([part, class]), 0)
            },
        )
    }

    /// All operators that may be added, with a newest operand at or after a position.
    fn next_tiles(&mut self, from: usize) -> Vec<(Key, SketchTile)> {
        let mut next = Vec::new();
        for at in from..self.tiles.len() {
            self.sums(at, &mut next);
            self.norms(at, &mut next);
            self.constants(at, &mut next);
            if self.limits.abstract_expressions {
                let algebra = self.algebra;
                for (term, class) in algebra.parents(self.tiles[at].class) {
                    self.parent(at, term, *class, &mut next);
                }
            } else {
                self.everything(at, &mut next);
            }
        }
        next.sort_by(|a, b| (a.0, &a.1.step).cmp(&(b.0, &b.1.step)));
        next.dedup_by(|a, b| a.1.step == b.1.step);
        next
    }

    /// The operators that a term of the target stands for, with `at` as the newest operand.
    fn parent(&mut self, at: usize, term: &Term, class: Id, next: &mut Vec<(Key, SketchTile)>) {
        let own = self.tiles[at].class;
        if let Term::Mul([a, b]) = term
            && a == b
        {
            self.unary(at, UnaryFn::Square, class, next);
        }
        if term.children().len() == 1 {
            let mut functions = UnaryFn::NAMES.iter().map(|(f, _)| *f);
            if let Some(f) = functions.find(|f| Term::unary(*f, own).as_ref() == Some(term)) {
                self.unary(at, f, class, next);
            }
            return;
        }
        if let Term::Rope(args) = term {
            return self.rope(at, *args, class, next);
        }
        let (f, [a, b]) = match term {
            Term::Add(args) => (BinaryFn::Add, *args),
            Term::Sub(args) => (BinaryFn::Sub, *args),
            Term::Mul(args) => (BinaryFn::Mul, *args),
            Term::Div(args) => (BinaryFn::Div, *args),
            Term::Mask(args) => (BinaryFn::Mask, *args),
            _ => return,
        };
        for other in self.older(own == a, b, at) {
            self.binary(f, (at, other), class, next);
        }
        for other in self.older(own == b && !(f.commutes() && a == b), a, at) {
            if other != at {
                self.binary(f, (other, at), class, next);
            }
        }
    }

    /// Tiles of a class up to `at`, if they are wanted.
    fn older(&self, are_wanted: bool, class: Id, at: usize) -> Vec<usize> {
        let tiles = if are_wanted { self.by_class.get(&class).map_or(&[][..], Vec::as_slice) } else { &[] };
        tiles[..tiles.partition_point(|tile| *tile <= at)].to_vec()
    }

    fn push(&mut self, tile: SketchTile) {
        self.by_class.entry(tile.class).or_default().push(self.tiles.len());
        self.tiles.push(tile);
    }

    fn pop(&mut self) {
        if let Some(tiles) = self.tiles.pop().and_then(|tile| self.by_class.get_mut(&tile.class)) {
            tiles.pop();
        }
    }

    /// All operators with `at` as the newest operand, part of the target or not.
    fn everything(&mut self, at: usize, next: &mut Vec<(Key, SketchTile)>) {
        let own = self.tiles[at].class;
        for f in [UnaryFn::Exp, UnaryFn::Square, UnaryFn::Sqrt, UnaryFn::Silu] {
            if let Some(class) = Term::unary(f, own).and_then(|term| self.class(term, 0)) {
                self.unary(at, f, class, next);
            }
        }
        for other in 0..=at {
            for f in [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Div] {
                for (a, b) in [(at, other), (other, at)] {
                    let term = Term::binary(f, self.tiles[a].class, self.tiles[b].class);
                    if let Some(class) = term.and_then(|term| self.class(term, 0)) {
                        self.binary(f, (a, b), class, next);
                    }
                }
            }
        }
    }

    fn unary(&mut self, at: usize, f: UnaryFn, class: Id, next: &mut Vec<(Key, SketchTile)>) {
        let code = 10 + UnaryFn::NAMES.iter().position(|(known, _)| *known == f).unwrap_or(0);
        let tile = &self.tiles[at];
        let step = SketchStep::Op(TileOp::Unary(f), vec![at]);
        next.push((
            (at, code, 0),
            SketchTile { class, dims: tile.dims.clone(), stage: tile.stage, step, readers: 0 },
        ));
    }

    /// Elementwise, and, for products, as matrices.
    fn binary(&mut self, f: BinaryFn, (a, b): (usize, usize), class: Id, next: &mut Vec<(Key, SketchTile)>) {
        let (lhs, rhs) = (&self.tiles[a], &self.tiles[b]);
        let stages = [lhs.stage, rhs.stage];
        let stage = lhs.stage.max(rhs.stage);
        if lhs.dims.len() != rhs.dims.len() || (stage == Stage::After && stages.contains(&Stage::Loop)) {
            return self.counts.prune("stages");
        }
        let (newest, other) = (a.max(b), a.min(b));
        let joined: Option<Vec<Dim>> = lhs.dims.iter().zip(&rhs.dims).map(|(a, b)| joint(*a, *b)).collect();
        let product = matrix_dims(&lhs.dims, &rhs.dims);
        if let Some(dims) = joined {
            let (a, b) = if f.commutes() { (other, newest) } else { (a, b) };
            let code = 30 + 2 * f as usize + usize::from(a > b);
            let step = SketchStep::Op(TileOp::Binary(f), vec![a, b]);
            next.push(((newest, code, other), SketchTile { class, dims, stage, step, readers: 0 }));
        } else if f != BinaryFn::Mul || product.is_none() {
            self.counts.prune("indices");
        }
        if let (BinaryFn::Mul, Some((dims, inner))) = (f, product)
            && let Some(class) = self.sum(class, inner.label, inner.parts)
        {
            let step = SketchStep::Op(TileOp::Matmul, vec![a, b]);
            next.push((
                (newest, 50 + usize::from(a > b), other),
                SketchTile { class, dims, stage, step, readers: 0 },
            ));
        }
        // A product commutes; a matrix product has the operands in one order only.
        if f == BinaryFn::Mul
            && a != b
            && let Some((dims, inner)) = matrix_dims(&self.tiles[b].dims, &self.tiles[a].dims)
            && let Some(class) = self.sum(class, inner.label, inner.parts)
        {
            let step = SketchStep::Op(TileOp::Matmul, vec![b, a]);
            next.push((
                (newest, 50 + usize::from(b > a), other),
                SketchTile { class, dims, stage, step, readers: 0 },
            ));
        }
    }

    /// Sums along dimensions, and over the iterations.
    fn sums(&mut self, at: usize, next: &mut Vec<(Key, SketchTile)>) {
        let SketchTile { class, stage, .. } = self.tiles[at];
        for dim in 0..self.tiles[at].dims.len() {
            let own = self.tiles[at].dims[dim];
            let outer = own.outer.map(|atom| (atom, TileOp::SumOuter(dim)));
            let inner = own.inner.filter(|_| own.outer.is_none()).map(|atom| (atom, TileOp::Sum(dim)));
            for (atom, op) in outer.into_iter().chain(inner) {
                let Some(class) = self.sum(class, atom.label, atom.parts) else { continue };
                let mut dims = self.tiles[at].dims.clone();
                dims[dim] = if own.outer.is_some() { Dim { outer: None, ..own } } else { Dim::default() };
                let step = SketchStep::Op(op, vec![at]);
                next.push(((at, 2 + dim, 0), SketchTile { class, dims, stage, step, readers: 0 }));
            }
        }
        let Some(label) = self.structure.looped.filter(|_| stage == Stage::Loop) else { return };
        let SketchTile { dims, step, .. } = &self.tiles[at];
        if matches!(step, SketchStep::Load(_))
            || dims.iter().flat_map(|dim| dim.atoms()).any(|atom| atom.label == label)
        {
            return self.counts.prune("accumulated as loaded");
        }
        if let Some(class) = self.sum(class, label, self.structure.loop_parts(label)) {
            let (dims, step) = (self.tiles[at].dims.clone(), SketchStep::Accumulate(at));
            let tile = SketchTile { class, dims, stage: Stage::After, step, readers: 0 };
            next.push(((at, 1, 0), tile));
        }
    }

    fn constants(&mut self, at: usize, next: &mut Vec<(Key, SketchTile)>) {
        let SketchTile { class: own, stage, .. } = self.tiles[at];
        let algebra = self.algebra;
        for (position, (op, constant)) in algebra.constants.iter().enumerate() {
            if algebra.constants[..position].iter().any(|(_, known)| known == constant) {
                continue;
            }
            let term = if matches!(op, crate::Op::Scale(_)) {
                Term::Mul([*constant, own])
            } else {
                Term::Add([*constant, own])
            };
            let Some(class) = self.class(term, 0) else { continue };
            let (dims, step) =
                (self.tiles[at].dims.clone(), SketchStep::Op(TileOp::Constant(position), vec![at]));
            next.push(((at, 60 + position, 0), SketchTile { class, dims, stage, step, readers: 0 }));
        }
    }

    /// Rotary position embeddings, with `at` as the newest operand, along a dimension that is whole.
    fn rope(&mut self, at: usize, term: [Id; 6], class: Id, next: &mut Vec<(Key, SketchTile)>) {
        let [axis, _, operands @ ..] = term;
        let algebra = self.algebra;
        for (position, rope) in algebra.ropes.iter().enumerate().filter(|(_, rope)| rope.axis == axis) {
            let mut choices: Vec<Vec<usize>> = vec![Vec::new()];
            for operand in &operands[..if rope.of_rest.is_some() { 4 } else { 3 }] {
                let tiles: Vec<usize> = (0..=at).filter(|tile| self.tiles[*tile].class == *operand).collect();
                let with_each =
                    |args: Vec<usize>| tiles.iter().map(move |tile| [&args[..], &[*tile]].concat());
                choices = choices.into_iter().flat_map(with_each).collect();
            }
            for args in choices.into_iter().filter(|args| args.contains(&at)) {
                let stages = || args.iter().map(|arg| self.tiles[*arg].stage);
                let stage = stages().max().unwrap_or(Stage::Invariant);
                if stage == Stage::After && stages().any(|stage| stage == Stage::Loop) {
                    continue;
                }
                let Some(dims) = self.rope_dims(rope, &args) else { continue };
                let others = args.iter().fold(0, |number, arg| number * self.tiles.len() + arg);
                let step = SketchStep::Op(TileOp::Rope(position), args);
                next.push((
                    (at, 120 + position, others),
                    SketchTile { class, dims, stage, step, readers: 0 },
                ));
            }
        }
    }

    /// The dimensions of a rotated tile: those of the operand, repeated to those of its angles, with what is joined to it.
    fn rope_dims(&self, rope: &RopeTerm, args: &[usize]) -> Option<Vec<Dim>> {
        let ([x, angles @ ..], rest) = args.split_first_chunk::<3>()?;
        let dims = self.tiles[*x].dims.clone();
        if dims.get(rope.dim) != Some(&Dim::whole(rope.label)) {
            return None;
        }
        let dims = angles.iter().zip(rope.of_angles).try_fold(dims, |dims, (angles, label)| {
            let angles = &self.tiles[*angles].dims;
            let joined = |dim: usize| match label {
                Some(_) if dim == rope.dim => (angles[dim] == Dim::whole(label)).then_some(dims[dim]),
                _ => joint(dims[dim], angles[dim]),
            };
            (0..dims.len()).map(joined).collect::<Option<Vec<Dim>>>()
        })?;
        let (Some([label, result]), [rest]) = (rope.of_rest, rest) else { return Some(dims) };
        let rest = &self.tiles[*rest].dims;
        let joined = |dim: usize| match dim == rope.dim {
            true => (rest[dim] == Dim::whole(label)).then_some(Dim::whole(result)),
            false => (rest[dim] == dims[dim]).then_some(dims[dim]),
        };
        (0..dims.len()).map(joined).collect()
    }

    /// Norms along a last dimension that is whole.
    fn norms(&mut self, at: usize, next: &mut Vec<(Key, SketchTile)>) {
        let SketchTile { class: own, ref dims, stage, .. } = self.tiles[at];
        let Some(last) = dims.last().filter(|dim| dim.outer.is_none()).and_then(|dim| dim.inner) else {
            return;
        };
        if last.parts != WHOLE {
            return;
        }
        for (position, eps) in self.goal.norms.iter().enumerate() {
            let algebra = self.algebra;
            let norm = |scale: Id| {
                let square = algebra.lookup(&Term::Mul([own, own]))?;
                let sum = algebra.sum(square, last.label, WHOLE)?;
                let mut mean = algebra.lookup(&Term::Mul([scale, sum]))?;
                if *eps != Rational::ZERO {
                    let offset = algebra.constants.iter().find(|(op, _)| *op == crate::Op::Offset(*eps))?.1;
                    mean = algebra.lookup(&Term::Add([offset, mean]))?;
                }
                let root = algebra.lookup(&Term::Sqrt(mean))?;
                algebra.lookup(&Term::Div([own, root]))
            };
            let scales = algebra.constants.iter().filter(|(op, _)| matches!(op, crate::Op::Scale(_)));
            if let Some(class) = scales.map(|(_, id)| *id).find_map(norm) {
                let step = SketchStep::Op(TileOp::RmsNorm(*eps), vec![at]);
                next.push((
                    (at, 90 + position, 0),
                    SketchTile { class, dims: dims.clone(), stage, step, readers: 0 },
                ));
            }
        }
    }
}

fn operands(step: &SketchStep) -> Vec<usize> {
    match step {
        SketchStep::Load(_) => Vec::new(),
        SketchStep::Op(_, args) => args.clone(),
        SketchStep::Accumulate(arg) => vec![*arg],
    }
}

fn joint(a: Dim, b: Dim) -> Option<Dim> {
    match (a.is_one(), b.is_one()) {
        _ if a == b => Some(a),
        (true, _) => Some(b),
        (_, true) => Some(a),
        _ => None,
    }
}

/// The dimensions of a matrix product, and the index that it sums.
fn matrix_dims(lhs: &[Dim], rhs: &[Dim]) -> Option<(Vec<Dim>, super::tile::Atom)> {
    let ([lhs_batch @ .., m, k], [rhs_batch @ .., rows, n]) = (lhs, rhs) else { return None };
    let inner = k.inner.filter(|_| k == rows && k.outer.is_none())?;
    let mut dims: Vec<Dim> =
        lhs_batch.iter().zip(rhs_batch).map(|(a, b)| joint(*a, *b)).collect::<Option<_>>()?;
    let labels = |dim: &Dim| dim.inner.map(|atom| atom.label);
    if labels(m).is_some() && labels(m) == labels(n) {
        return None;
    }
    dims.extend([*m, *n]);
    Some((dims, inner))
}
