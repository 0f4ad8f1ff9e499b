//! Programs cut down along parallel indices to a few elements, in at most two blocks.
//!
//! An index is *parallel* in a program if each element of the output along it depends on the same element of the inputs
//! only, always in the same way: heads and rows of an attention, columns of a matrix product. If it is parallel in both of
//! two programs, and the same dimensions of their outputs run over it, they are equal at any extent if they are equal at
//! two. What decides is the operators: an index is not parallel once it is summed, concatenated, cut by a loop, compared
//! with another one (in a causal mask), met by another one, twice in one tensor, or cut by a grid in one place and not in
//! another. That holds for the operators inside blocks too, so the number of elements of a tile does not matter either:
//! kernels whose tiles differ need not be tested at a common multiple of them, nor in parts of one size. (A last part of one
//! element would be repeated to the extent of another tile; the first one has two here, which would not.)
//!
//! Indices are cut to different extents of two at least, which no other dimension has. So an index that this module took
//! for another one is an error of shapes, and the programs are not cut.

use super::checks::{Check, Checks};
use super::shrink::{Classes, resize, with_shape};
use crate::graph::{Accumulation, BlockGraph, MuGraph, Node, TensorId, TileNode};
use crate::op::Op;
use std::collections::{BTreeMap, BTreeSet};

/// A parallel index, by the representative of its dimensions in the program.
type Index = usize;

/// The index of each dimension of a tensor or tile, if it is a parallel one.
type Dims = Vec<Option<Index>>;

/// Extents of indices, before and now.
type Extents = BTreeMap<Index, (usize, usize)>;

/// The least extent of an index: a tile of one element would be repeated to any extent.
const LEAST: usize = 2;

/// The least extent of an index that a grid cuts into tiles of several elements: two blocks, of which the first has two.
const LEAST_TILED: usize = 3;

/// Two programs at smaller extents, which are equal if and only if the given ones are.
pub(crate) struct Isomorph {
    /// The program.
    pub(crate) program: MuGraph,
    /// The candidate.
    pub(crate) candidate: MuGraph,
    /// The program with one element along the indices that may be cut.
    pub(crate) single: MuGraph,
    /// Extents that are smaller: before and now.
    pub(crate) cut: Vec<(usize, usize)>,
}

/// The pair cut down along all indices that are parallel in both; `None` if there are none to cut.
pub(crate) fn isomorph(program: &MuGraph, candidate: &MuGraph, checks: Checks) -> Option<Isomorph> {
    if program.nodes().any(|(_, node)| matches!(node, Node::Block(_))) {
        return None;
    }
    let own = tensors(program, &mut Classes::of(program))?;
    let mut walk = Walk { checks, ..Walk::default() };
    walk.program(program, &own);
    let inputs: Vec<&Dims> = program.inputs().map(|(id, ..)| &own[id.index()]).collect();
    let theirs = walk.candidate(candidate, &inputs);
    let outputs = |graph: &MuGraph| graph.outputs().iter().map(|(_, id)| id.index()).collect::<Vec<_>>();
    for (own_at, at) in outputs(program).into_iter().zip(outputs(candidate)) {
        walk.same(&own[own_at], &theirs[at]);
    }
    let extents = walk.extents(program, &own);
    let now = |dims: &Dims, shape: &[usize]| -> Vec<usize> {
        let extent = |(index, &full): (&Option<Index>, &usize)| {
            index.and_then(|index| extents.get(&index)).map_or(full, |(_, now)| *now)
        };
        dims.iter().zip(shape).map(extent).collect()
    };
    let small = resize(program, |id, dim| now(&own[id.index()], program.shape(id))[dim]).ok()?;
    let single = resize(program, |id, dim| {
        let index = own[id.index()][dim].filter(|index| extents.contains_key(index));
        index.map_or(program.shape(id)[dim], |_| 1)
    });
    let single = single.ok()?;
    let small_candidate = cut_candidate(candidate, &theirs, (&walk.grids, &extents), &now)?;
    let cut: BTreeSet<(usize, usize)> = extents.values().copied().filter(|(from, to)| from != to).collect();
    (!cut.is_empty()).then(|| Isomorph {
        program: small,
        candidate: small_candidate,
        single,
        cut: cut.into_iter().collect(),
    })
}

/// The classes of a program's dimensions; `None` if a tensor has one twice.
fn tensors(program: &MuGraph, classes: &mut Classes) -> Option<Vec<Dims>> {
    let mut all = Vec::new();
    for at in 0..program.shapes().len() {
        let id = TensorId(at as u32);
        let mut dims = Dims::new();
        for (dim, &extent) in program.shape(id).iter().enumerate() {
            let index = (extent > 1 && !classes.fixed(id, dim)).then(|| classes.class(id, dim));
            if index.is_some() && dims.contains(&index) {
                return None;
            }
            dims.push(index);
        }
        all.push(dims);
    }
    Some(all)
}

/// What is found out about indices on the way through both programs.
#[derive(Default)]
struct Walk {
    checks: Checks,
    /// Indices that are not parallel.
    serial: BTreeSet<Index>,
    /// Indices of which a block of some kernel has several elements, not all.
    tiled: BTreeSet<Index>,
    /// For each kernel the index that each grid dimension cuts.
    grids: BTreeMap<TensorId, Dims>,
    /// The program's masks.
    masks: Vec<(Op, Dims)>,
}

impl Walk {
    fn refuse(&mut self, check: Check, dims: impl IntoIterator<Item = Option<Index>>) {
        if self.checks.make(check) {
            self.serial.extend(dims.into_iter().flatten());
        }
    }

    /// Marks what a program of predefined operators does not treat element by element.
    fn program(&mut self, program: &MuGraph, dims: &[Dims]) {
        for (first, node) in program.nodes() {
            let Node::Op { op, args } = node else { continue };
            let operands: Vec<&Dims> = args.iter().map(|arg| &dims[arg.index()]).collect();
            let own = &dims[first.index()];
            self.op(op, &operands, own.len());
            match op {
                Op::Causal { .. } => self.refuse(Check::SerialIndices, own.iter().rev().take(2).copied()),
                Op::Below { dim, .. } => self.refuse(Check::SerialIndices, [own[*dim]]),
                _ => continue,
            }
            self.masks.push((op.clone(), own.clone()));
        }
    }

    /// The indices of an operator's result; those that it does not treat element by element are refused.
    fn op(&mut self, op: &Op, args: &[&Dims], rank: usize) -> Dims {
        match op {
            Op::Matmul => {
                let [lhs, rhs] = [args[0], args[1]];
                self.refuse(Check::SerialIndices, [lhs[rank - 1], rhs[rank - 2]]);
                let mut result = self.joined(&[&lhs[..rank - 2], &rhs[..rank - 2]]);
                result.extend([lhs[rank - 2], rhs[rank - 1]]);
                result
            }
            Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) => {
                let args: Vec<&[Option<Index>]> = args.iter().map(|arg| arg.as_slice()).collect();
                self.joined(&args)
            }
            Op::Broadcast(_) => args[0].clone(),
            Op::RmsNorm { .. } => {
                self.refuse(Check::SerialIndices, [args[0][rank - 1]]);
                args[0].clone()
            }
            Op::Transpose(perm) => perm.iter().map(|&dim| args[0][dim]).collect(),
            Op::Reduce { dim, .. }
            | Op::Slice { dim, .. }
            | Op::Repeat { dim, .. }
            | Op::Rotate { dim, .. }
            | Op::Concat { dim } => {
                self.refuse(Check::SerialIndices, args.iter().map(|arg| arg[*dim]));
                let args: Vec<&[Option<Index>]> = args.iter().map(|arg| arg.as_slice()).collect();
                let mut result = self.joined(&args);
                result[*dim] = None;
                result
            }
            Op::Reshape(_) => {
                self.refuse(Check::SerialIndices, args[0].clone());
                vec![None; rank]
            }
            Op::Causal { .. } | Op::Below { .. } => vec![None; rank],
        }
    }

    /// The indices of operands whose elements are taken together; where two differ both are refused.
    fn joined(&mut self, args: &[&[Option<Index>]]) -> Dims {
        let mut result: Dims = args[0].to_vec();
        for arg in &args[1..] {
            for (dim, &index) in arg.iter().enumerate() {
                match (result[dim], index) {
                    (None, index) => result[dim] = index,
                    (Some(known), Some(index)) if known != index => {
                        self.refuse(Check::OperandIndices, [Some(known), Some(index)])
                    }
                    _ => {}
                }
            }
        }
        result
    }

    /// Refuses what is in one place of two tensors that are to be the same, and not in the other.
    fn same(&mut self, a: &Dims, b: &Dims) {
        for (a, b) in a.iter().zip(b).filter(|(a, b)| a != b) {
            self.refuse(Check::OutputIndices, [*a, *b]);
        }
    }

    /// Refuses what a tensor or tile of the candidate has twice.
    fn once(&mut self, dims: &Dims) {
        for (at, index) in dims.iter().enumerate() {
            if index.is_some() && dims[..at].contains(index) {
                self.refuse(Check::IndexTwice, [*index]);
            }
        }
    }

    /// The indices of a candidate's tensors, from those of its inputs.
    fn candidate(&mut self, candidate: &MuGraph, inputs: &[&Dims]) -> Vec<Dims> {
        let mut tensors: Vec<Dims> = Vec::new();
        let mut inputs = inputs.iter();
        for (first, node) in candidate.nodes() {
            match node {
                Node::Input { .. } => {
                    tensors.push(inputs.next().map(|dims| (*dims).clone()).unwrap_or_default())
                }
                Node::Op { op, args } => {
                    let args: Vec<&Dims> = args.iter().map(|arg| &tensors[arg.index()]).collect();
                    let mask = self.masks.iter().find(|(mask, _)| mask == op).map(|(_, dims)| dims.clone());
                    let result = mask.unwrap_or_else(|| self.op(op, &args, candidate.shape(first).len()));
                    tensors.push(result);
                }
                Node::Block(block) => {
                    let results = self.block(first, block, candidate, &tensors);
                    tensors.extend(results);
                }
            }
        }
        tensors.iter().for_each(|dims| self.once(dims));
        tensors
    }

    fn block(
        &mut self,
        kernel: TensorId,
        block: &BlockGraph,
        candidate: &MuGraph,
        tensors: &[Dims],
    ) -> Vec<Dims> {
        let grid = self.grid(block, candidate, tensors);
        let mut tiles: Vec<Dims> = Vec::new();
        for node in &block.nodes {
            let dims = match node {
                TileNode::Load { tensor, .. } => tensors[tensor.index()].clone(),
                TileNode::Op { op, args } => {
                    let args: Vec<&Dims> = args.iter().map(|arg| &tiles[arg.index()]).collect();
                    self.op(op, &args, args[0].len())
                }
                TileNode::Accumulate { how: Accumulation::RescaledSum { max, .. }, tile } => {
                    self.joined(&[&tiles[tile.index()], &tiles[max.index()]])
                }
                TileNode::Accumulate { tile, .. } | TileNode::RunningMax { tile } => {
                    tiles[tile.index()].clone()
                }
            };
            self.once(&dims);
            tiles.push(dims);
        }
        let results = block.stores.iter().map(|store| {
            let mut dims = tiles[store.tile.index()].clone();
            for (cut, dim) in grid.iter().zip(&store.grid) {
                let Some(dim) = *dim else { continue };
                if dims[dim] != *cut {
                    self.refuse(Check::BlockIndices, [dims[dim], *cut]);
                    dims[dim] = None;
                }
            }
            dims
        });
        let results = results.collect();
        self.grids.insert(kernel, grid);
        results
    }

    /// The index that each grid dimension cuts. One that several loads cut differently, or a loop cuts, is refused.
    fn grid(&mut self, block: &BlockGraph, candidate: &MuGraph, tensors: &[Dims]) -> Vec<Option<Index>> {
        let mut grid: Vec<Option<Index>> = vec![None; block.grid.len()];
        let loads = || {
            block.nodes.iter().filter_map(|node| match node {
                TileNode::Load { tensor, grid, along_loop } => Some((*tensor, grid, *along_loop)),
                _ => None,
            })
        };
        for (tensor, map, along_loop) in loads() {
            let dims = &tensors[tensor.index()];
            self.refuse(Check::BlockIndices, along_loop.map(|dim| dims[dim]));
            for (axis, dim) in map.iter().enumerate() {
                let Some(dim) = *dim else { continue };
                let extent = candidate.shape(tensor)[dim];
                if grid[axis].is_some_and(|own| Some(own) != dims[dim]) {
                    self.refuse(Check::BlockIndices, [grid[axis], dims[dim]]);
                }
                grid[axis] = grid[axis].or(dims[dim]);
                self.tiled.extend(dims[dim].filter(|_| extent > block.grid[axis]));
            }
        }
        for (tensor, map, _) in loads() {
            for (dim, index) in tensors[tensor.index()].iter().enumerate() {
                let axis = grid.iter().position(|cut| cut.is_some() && cut == index);
                // What one load cuts, all do, along the same dimension of the grid.
                if axis.is_some_and(|axis| map[axis] != Some(dim)) {
                    self.refuse(Check::BlockIndices, [*index]);
                }
            }
            for (axis, dim) in map.iter().enumerate() {
                if dim.is_some_and(|dim| tensors[tensor.index()][dim] != grid[axis]) {
                    self.refuse(Check::BlockIndices, [grid[axis]]);
                }
            }
        }
        grid
    }

    /// Extents of parallel indices, before and now: all different, and different from the extents that stay.
    fn extents(&self, program: &MuGraph, dims: &[Dims]) -> Extents {
        let mut full = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for (at, dims) in dims.iter().enumerate() {
            for (index, &extent) in dims.iter().zip(&program.shapes()[at]) {
                match index.filter(|index| !self.serial.contains(index)) {
                    Some(index) => drop(full.insert(index, extent)),
                    None => drop(taken.insert(extent)),
                }
            }
        }
        let mut extents = BTreeMap::new();
        for (index, full) in full {
            let least = if self.tiled.contains(&index) { LEAST_TILED } else { LEAST };
            let is_free =
                |extent: &usize| !self.checks.make(Check::DistinctExtents) || !taken.contains(extent);
            let now = (least..full).find(is_free).unwrap_or(full);
            taken.insert(now);
            extents.insert(index, (full, now));
        }
        extents
    }
}

/// The candidate at smaller extents, with two blocks along each parallel index that several blocks share, or with one
/// per element where it is that.
fn cut_candidate(
    candidate: &MuGraph,
    dims: &[Dims],
    (grids, extents): (&BTreeMap<TensorId, Dims>, &Extents),
    now: &dyn Fn(&Dims, &[usize]) -> Vec<usize>,
) -> Option<MuGraph> {
    let shape = |id: TensorId| now(&dims[id.index()], candidate.shape(id));
    let mut small = MuGraph::new(candidate.name.clone());
    for (first, node) in candidate.nodes() {
        match node {
            Node::Input { name, kind, .. } => {
                small.input_of(name.clone(), *kind, &shape(first));
            }
            Node::Op { op, args } => {
                small.op(with_shape(op, candidate.shape(first), shape(first)), args).ok()?;
            }
            Node::Block(block) => {
                let mut block = block.clone();
                for (blocks, index) in block.grid.iter_mut().zip(grids.get(&first)?) {
                    let Some(&(full, now)) = index.as_ref().and_then(|index| extents.get(index)) else {
                        continue;
                    };
                    *blocks = if *blocks == full { now } else { (*blocks).min(2) };
                }
                small.block(block).ok()?;
            }
        }
    }
    for (name, id) in candidate.outputs() {
        small.output(name.clone(), *id).ok()?;
    }
    Some(small)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn isomorph(program: &MuGraph, candidate: &MuGraph) -> Option<Isomorph> {
        super::isomorph(program, candidate, Checks::ALL)
    }

    const PROGRAM: &str = r#"mugraph "attention" {
        t0 = input "q" [6, 64, 16]
        t1 = input "k" [6, 16, 256]
        t2 = input "v" [6, 256, 16]
        t3 = matmul t0, t1
        t4 = exp t3
        t5 = sum(2) t4
        t6 = div t4, t5
        t7 = matmul t6, t2
        output "o" t7
    }"#;

    /// The kernel with these maps of the grid for the three inputs.
    fn kernel(grid: &str, maps: [&str; 3], store: &str) -> MuGraph {
        let [q, k, v] = maps;
        let text = format!(
            r#"mugraph "candidate" {{
            t0 = input "q" [6, 64, 16]
            t1 = input "k" [6, 16, 256]
            t2 = input "v" [6, 256, 16]
            t3 = block {grid} loop 4 {{
                s0 = load t0 {q} -
                s1 = load t1 {k} 2
                s2 = load t2 {v} 1
                s3 = matmul s0, s1
                s4 = exp s3
                s5 = sum(2) s4
                s6 = accumulate sum s5
                s7 = matmul s4, s2
                s8 = accumulate sum s7
                s9 = div s8, s6
                store s9 {store}
            }}
            output "o" t3
        }}"#
        );
        parse(&text).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn heads_rows_and_columns_are_cut() {
        let program = parse(PROGRAM).unwrap();
        let candidate = kernel("[3, 8]", ["[0, 1]", "[0, -]", "[0, -]"], "[0, 1]");
        let small = isomorph(&program, &candidate).unwrap();
        // A block has two heads and eight rows; columns of the values are in no product with themselves.
        let [heads, rows, columns] = [3, 4, 2];
        assert_eq!(small.cut, [(6, heads), (16, columns), (64, rows)]);
        let shapes: Vec<&[usize]> = small.candidate.shapes().iter().map(Vec::as_slice).collect();
        let o = [heads, rows, columns];
        assert_eq!(shapes, [&[heads, rows, 16][..], &[heads, 16, 256], &[heads, 256, columns], &o]);
        assert_eq!(small.program.shape(small.program.outputs()[0].1), o);
    }

    /// Rows are in tiles of 24 and of 10, of which the least common multiple is all of them.
    #[test]
    fn kernels_whose_tiles_differ_are_cut_alike() {
        let program = r#"mugraph "program" {
            t0 = input "x" [120, 8]
            t1 = exp t0
            t2 = sum(1) t1
            output "o" t2
        }"#;
        let kernels = |sum: &str| {
            let text = format!(
                r#"mugraph "candidate" {{
                t0 = input "x" [120, 8]
                t1 = block [5] loop 1 {{
                    s0 = load t0 [0] -
                    s1 = exp s0
                    store s1 [0]
                }}
                t2 = block [12] loop 1 {{
                    s0 = load t1 [0] -
                    s1 = sum(1) s0
                    s2 = {sum}
                    store s2 [0]
                }}
                output "o" t2
            }}"#
            );
            parse(&text).unwrap_or_else(|e| panic!("{e}"))
        };
        let program = parse(program).unwrap();
        let small = isomorph(&program, &kernels("scale(1) s1")).unwrap();
        assert_eq!(small.cut, [(120, 3)]);
        let shapes: Vec<&[usize]> = small.candidate.shapes().iter().map(Vec::as_slice).collect();
        assert_eq!(shapes, [&[3, 8][..], &[3, 8], &[3, 1]]);
        // What takes rows of one tile together is not cut, and seen to be wrong.
        let wrong = kernels("rotate(0, 1) s1");
        assert!(isomorph(&program, &wrong).is_none());
        assert!(crate::verify(&program, &wrong, &crate::VerifyOptions::default()).is_err());
    }

    /// 78 rows in blocks of 16, the last of which has 14.
    #[test]
    fn rows_in_uneven_parts_are_cut() {
        let program = "mugraph \"program\" {\n t0 = input \"x\" [78, 8]\n t1 = exp t0\n t2 = sum(1) t1\n output \"o\" t2\n}";
        let kernel = |body: &str| {
            let text = format!(
                "mugraph \"candidate\" {{\n t0 = input \"x\" [78, 8]\n t1 = block [5] loop 1 {{\n s0 = load t0 [0] -\n \
                 s1 = exp s0\n {body}\n }}\n output \"o\" t1\n}}"
            );
            parse(&text).unwrap_or_else(|e| panic!("{e}"))
        };
        let program = parse(program).unwrap();
        let rows_alone = kernel("s2 = sum(1) s1\n store s2 [0]");
        let small = isomorph(&program, &rows_alone).unwrap();
        assert_eq!(small.cut, [(78, 3)]);
        assert_eq!(small.candidate.shapes(), [vec![3, 8], vec![3, 1]]);
        let options = crate::VerifyOptions::default();
        assert!(crate::verify(&program, &rows_alone, &options).is_ok());
        // Rows of a tile are added up: nothing is cut, and the proof is of all of them.
        let rows_together =
            kernel("s2 = sum(0) s1\n s3 = sub s1, s2\n s4 = add s3, s2\n s5 = sum(1) s4\n store s5 [0]");
        assert!(isomorph(&program, &rows_together).is_none());
        assert!(crate::verify(&program, &rows_together, &options).is_ok());
    }

    #[test]
    fn what_only_some_loads_cut_is_left() {
        let program = parse(PROGRAM).unwrap();
        // A block of one head's queries sees the keys of all: no attention, and no index of heads to cut.
        let keys_of_all = r#"mugraph "wrong" {
            t0 = input "q" [6, 64, 16]
            t1 = input "k" [6, 16, 256]
            t2 = input "v" [6, 256, 16]
            t3 = block [6] loop 1 {
                s0 = load t0 [0] -
                s1 = load t1 [-] -
                s2 = load t2 [0] -
                s3 = matmul s0, s1
                s4 = sum(0) s3
                s5 = matmul s4, s2
                store s5 [0]
            }
            output "o" t3
        }"#;
        let small = isomorph(&program, &parse(keys_of_all).unwrap()).unwrap();
        assert!(small.cut.iter().all(|(from, _)| *from != 6), "{:?}", small.cut);
    }

    #[test]
    fn an_index_that_a_tensor_has_twice_is_not_cut() {
        let text = r#"mugraph "gram" {
            t0 = input "x" [8, 4]
            t1 = transpose(1, 0) t0
            t2 = matmul t0, t1
            output "o" t2
        }"#;
        let program = parse(text).unwrap();
        assert!(isomorph(&program, &program).is_none());
    }
}
