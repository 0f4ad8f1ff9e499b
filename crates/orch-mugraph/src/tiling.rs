//! Which part of a tensor a block sees, the stages and shapes of its tiles, and the shapes of what it stores.
//!
//! The rules of a block graph, checked here:
//! 1. The grid has one to three dimensions of at least one block and at most [`MAX_BLOCKS`] in all; the loop at least one
//!    iteration and at most [`MAX_LOOP`].
//! 2. Loads and stores have one entry per grid dimension; no dimension of a tensor is partitioned by two.
//! 3. Tiles are defined before they are read; operators suit tiles and their operands, in every block and iteration,
//!    remainders and empty parts included.
//! 4. Operators do not mix values of the loop with values after it; accumulators take values that are known in the loop,
//!    of the same shape in every iteration; a rescaled sum names a running maximum that suits it.
//! 5. What is stored is not a value of the loop; every grid dimension of more than one block has its own dimension of
//!    the result, and only that grid dimension changes the tile's extent there.

use crate::graph::{Accumulation, BlockGraph, GraphError, TileId, TileNode};

/// The largest grid.
pub const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
pub const MAX_LOOP: usize = 1 << 16;

/// When a tile is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Throughout: nothing that it is made of depends on the iteration.
    Invariant,
    /// In the loop, anew in each iteration.
    Loop,
    /// After the loop.
    After,
}

/// Parts that are not all the same have a multiple of this many elements, the last one excepted: whole matrix instructions.
pub const PART_MULTIPLE: usize = 16;

/// The elements of each of so many parts of `extent`. If they do not divide it, the last one has what is left, and the others a
/// multiple of 16, unless that would leave a part empty: 257 in 5 parts is four of 64 and one of 1.
pub fn part_size(extent: usize, parts: usize) -> usize {
    let least = extent.div_ceil(parts);
    let whole = least.next_multiple_of(PART_MULTIPLE);
    let is_even = extent.is_multiple_of(parts);
    if is_even || (parts - 1).saturating_mul(whole) >= extent { least } else { whole }
}

/// The part of `extent` with this number: start and length.
pub fn part(extent: usize, parts: usize, number: usize) -> (usize, usize) {
    let size = part_size(extent, parts);
    let start = (number * size).min(extent);
    (start, size.min(extent - start))
}

/// The ranges that a load takes of a tensor, in one block and iteration.
pub fn ranges(
    shape: &[usize],
    block: &BlockGraph,
    (grid, along_loop): (&[Option<usize>], Option<usize>),
    (index, iteration): (&[usize], usize),
) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = shape.iter().map(|&extent| (0, extent)).collect();
    let mut full = shape.to_vec();
    for ((dim, &blocks), &number) in grid.iter().zip(&block.grid).zip(index) {
        if let Some(dim) = *dim {
            ranges[dim] = part(shape[dim], blocks, number);
            full[dim] = part_size(shape[dim], blocks);
        }
    }
    if let Some(dim) = along_loop {
        let (start, len) = ranges[dim];
        let size = part_size(full[dim], block.loop_range);
        let skip = (iteration * size).min(len);
        ranges[dim] = (start + skip, size.min(len - skip));
    }
    ranges
}

/// The stage of each tile.
///
/// # Errors
/// If stages are mixed.
pub fn stages(block: &BlockGraph) -> Result<Vec<Stage>, GraphError> {
    let mut stages: Vec<Stage> = Vec::with_capacity(block.nodes.len());
    for (position, node) in block.nodes.iter().enumerate() {
        let wrong = |problem: &str| GraphError::new(format!("s{position}"), problem);
        let args = node.args();
        if args.iter().any(|arg| arg.index() >= position) {
            return Err(wrong("reads a tile that is not defined before"));
        }
        let of_args = || args.iter().map(|arg| stages[arg.index()]);
        let stage = match node {
            TileNode::Load { along_loop: Some(_), .. } => Stage::Loop,
            TileNode::Load { along_loop: None, .. } => Stage::Invariant,
            TileNode::Op { .. } => {
                let latest = of_args().max().unwrap_or(Stage::Invariant);
                if latest == Stage::After && of_args().any(|stage| stage == Stage::Loop) {
                    return Err(wrong("mixes a value of the loop with a value after it"));
                }
                latest
            }
            TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => {
                if of_args().any(|stage| stage == Stage::After) {
                    return Err(wrong("accumulates a value that is known after the loop only"));
                }
                if matches!(node, TileNode::RunningMax { .. }) { Stage::Loop } else { Stage::After }
            }
        };
        stages.push(stage);
    }
    Ok(stages)
}

/// The shapes of all tiles in one block and iteration.
///
/// # Errors
/// If operands do not suit.
pub fn tile_shapes(
    block: &BlockGraph,
    tensors: &[Vec<usize>],
    at: (&[usize], usize),
) -> Result<Vec<Vec<usize>>, GraphError> {
    let mut shapes: Vec<Vec<usize>> = Vec::with_capacity(block.nodes.len());
    for (position, node) in block.nodes.iter().enumerate() {
        let shape = tile_shape(node, &shapes, (block, tensors), at)
            .map_err(|problem| GraphError::new(format!("s{position}"), problem))?;
        shapes.push(shape);
    }
    Ok(shapes)
}

/// The shape of a tile in one block and iteration, from those of the tiles before it.
///
/// # Errors
/// If operands do not suit.
pub fn tile_shape(
    node: &TileNode,
    tiles: &[Vec<usize>],
    (block, tensors): (&BlockGraph, &[Vec<usize>]),
    at: (&[usize], usize),
) -> Result<Vec<usize>, String> {
    match node {
        TileNode::Load { tensor, grid, along_loop } => {
            let ranges = ranges(&tensors[tensor.index()], block, (grid, *along_loop), at);
            Ok(ranges.into_iter().map(|(_, len)| len).collect())
        }
        TileNode::Op { op, args } => {
            let args: Vec<&[usize]> = args.iter().map(|arg| tiles[arg.index()].as_slice()).collect();
            op.infer(&args)
        }
        TileNode::Accumulate { how, tile } => {
            let shape = tiles[tile.index()].clone();
            if let Accumulation::RescaledSum { max, .. } = how {
                let joint = crate::op::Op::Binary(crate::op::BinaryFn::Mul);
                if joint.infer(&[&shape, &tiles[max.index()]]) != Ok(shape.clone()) {
                    return Err(format!("{:?} does not scale {shape:?}", tiles[max.index()]));
                }
            }
            Ok(shape)
        }
        TileNode::RunningMax { tile } => Ok(tiles[tile.index()].clone()),
    }
}

/// The shapes of what a block graph stores, after checking all its rules.
///
/// # Errors
/// The first rule that is broken, and where.
pub(crate) fn stored_shapes(
    block: &BlockGraph,
    tensors: &[Vec<usize>],
) -> Result<Vec<Vec<usize>>, GraphError> {
    check_form(block, tensors)?;
    let stages = stages(block)?;
    for (position, node) in block.nodes.iter().enumerate() {
        if let TileNode::Accumulate { how: Accumulation::RescaledSum { max, .. }, .. } = node
            && !matches!(block.nodes[max.index()], TileNode::RunningMax { .. })
        {
            let problem = format!("{max} is not a running maximum");
            return Err(GraphError::new(format!("s{position}"), problem));
        }
    }
    if let Some(store) = block.stores.iter().find(|store| stages[store.tile.index()] == Stage::Loop) {
        return Err(GraphError::new(store.tile, "stores a value of the loop; accumulate it first"));
    }
    let nominal = check_block(block, tensors, &stages, &[0; 3][..block.grid.len()])?;
    let mut results: Vec<Vec<usize>> = block.stores.iter().map(|s| nominal[s.tile.index()].clone()).collect();
    for (store, result) in block.stores.iter().zip(&mut results) {
        for (dim, &blocks) in store.grid.iter().zip(&block.grid) {
            if let Some(dim) = dim {
                let Some(extent) = result.get_mut(*dim) else {
                    return Err(GraphError::new(store.tile, format!("no dimension {dim} in {result:?}")));
                };
                *extent = extent.checked_mul(blocks).ok_or_else(|| too_long(store.tile, *dim))?;
            }
        }
    }
    if !divides_evenly(block, tensors) {
        remainders(block, tensors, &stages, &mut results)?;
    }
    Ok(results)
}

fn too_long(tile: TileId, dim: usize) -> GraphError {
    GraphError::new(tile, format!("the blocks' tiles make dimension {dim} too long"))
}

/// Checks blocks with remainders, and corrects the shapes of the results.
fn remainders(
    block: &BlockGraph,
    tensors: &[Vec<usize>],
    stages: &[Stage],
    results: &mut [Vec<usize>],
) -> Result<(), GraphError> {
    let kinds = distinct_numbers(block, tensors);
    for (store, result) in block.stores.iter().zip(results.iter_mut()) {
        for (axis, dim) in store.grid.iter().enumerate() {
            let Some(dim) = *dim else { continue };
            result[dim] = 0;
            for (at, &first) in kinds[axis].iter().enumerate() {
                let next = kinds[axis].get(at + 1).copied().unwrap_or(block.grid[axis]);
                let index = crate::op::with(&vec![0; block.grid.len()], axis, first);
                let extent = tile_shapes(block, tensors, (&index, 0))?[store.tile.index()][dim];
                let more = extent.checked_mul(next - first).and_then(|more| more.checked_add(result[dim]));
                result[dim] = more.ok_or_else(|| too_long(store.tile, dim))?;
            }
        }
    }
    for combination in combinations(&kinds) {
        let shapes = check_block(block, tensors, stages, &combination)?;
        for store in &block.stores {
            for (dim, &given) in shapes[store.tile.index()].iter().enumerate() {
                let mut alone = vec![0; combination.len()];
                if let Some(axis) = store.grid.iter().position(|d| *d == Some(dim)) {
                    alone[axis] = combination[axis];
                }
                let expected = tile_shapes(block, tensors, (&alone, 0))?[store.tile.index()][dim];
                if given != expected {
                    let problem =
                        format!("extent {given} of dimension {dim} in block {combination:?}, not {expected}");
                    return Err(GraphError::new(store.tile, problem));
                }
            }
        }
    }
    Ok(())
}

/// Rules 1 and 2, and the existence of what is named.
fn check_form(block: &BlockGraph, tensors: &[Vec<usize>]) -> Result<(), GraphError> {
    let wrong = |problem: String| Err(GraphError::new("grid", problem));
    if !(1..=3).contains(&block.grid.len()) || !(1..=MAX_BLOCKS).contains(&block.blocks()) {
        return wrong(format!("{:?}, expected 1 to 3 dimensions and 1 to {MAX_BLOCKS} blocks", block.grid));
    }
    if !(1..=MAX_LOOP).contains(&block.loop_range) {
        return wrong(format!("a loop of {}, expected 1 to {MAX_LOOP}", block.loop_range));
    }
    if block.stores.is_empty() {
        return wrong("nothing is stored".into());
    }
    for (position, node) in block.nodes.iter().enumerate() {
        let place = format!("s{position}");
        match node {
            TileNode::Load { tensor, grid, along_loop } => {
                let Some(shape) = tensors.get(tensor.index()) else {
                    return Err(GraphError::new(place, format!("{tensor} is not defined before")));
                };
                check_map(block, grid, &place, false)?;
                if grid.iter().chain([along_loop]).flatten().any(|&dim| dim >= shape.len()) {
                    return Err(GraphError::new(
                        place,
                        format!("partitions a dimension that {shape:?} lacks"),
                    ));
                }
            }
            TileNode::Op { op, .. } if !op.suits_tiles() => {
                return Err(GraphError::new(place, "this operator is for tensors, not tiles"));
            }
            TileNode::Op { .. } | TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => {}
        }
    }
    for store in &block.stores {
        if store.tile.index() >= block.nodes.len() {
            return Err(GraphError::new(store.tile, "is stored but not defined"));
        }
        check_map(block, &store.grid, &store.tile.to_string(), true)?;
    }
    Ok(())
}

fn check_map(block: &BlockGraph, map: &[Option<usize>], place: &str, stores: bool) -> Result<(), GraphError> {
    let wrong = |problem: &str| Err(GraphError::new(place, format!("grid {map:?} {problem}")));
    if map.len() != block.grid.len() {
        return wrong("has not one entry per grid dimension");
    }
    let mut dims: Vec<usize> = map.iter().flatten().copied().collect();
    dims.sort_unstable();
    if dims.windows(2).any(|pair| pair[0] == pair[1]) {
        return wrong("partitions a dimension twice");
    }
    if stores && map.iter().zip(&block.grid).any(|(dim, &blocks)| dim.is_none() && blocks > 1) {
        return wrong("lets several blocks store the same elements");
    }
    Ok(())
}

/// The nominal shapes of one block, all iterations checked.
fn check_block(
    block: &BlockGraph,
    tensors: &[Vec<usize>],
    stages: &[Stage],
    index: &[usize],
) -> Result<Vec<Vec<usize>>, GraphError> {
    let first = tile_shapes(block, tensors, (index, 0))?;
    let iterations = if divides_evenly(block, tensors) { 1 } else { block.loop_range };
    for iteration in 1..iterations {
        let shapes = tile_shapes(block, tensors, (index, iteration))?;
        let fixed = |position: usize| {
            stages[position] != Stage::Loop || matches!(block.nodes[position], TileNode::RunningMax { .. })
        };
        if let Some(position) = (0..shapes.len()).find(|&p| fixed(p) && shapes[p] != first[p]) {
            let problem =
                format!("{:?} in iteration {iteration}, {:?} before", shapes[position], first[position]);
            return Err(GraphError::new(format!("s{position}"), problem));
        }
        let is_exhausted = |(node, shape): (&TileNode, &Vec<usize>)| match node {
            TileNode::Load { along_loop: Some(dim), .. } => shape[*dim] == 0,
            TileNode::Load { .. } | TileNode::Op { .. } => true,
            TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => true,
        };
        if block.nodes.iter().zip(&shapes).all(is_exhausted) {
            break;
        }
    }
    Ok(first)
}

/// True if no partition leaves a remainder.
pub(crate) fn divides_evenly(block: &BlockGraph, tensors: &[Vec<usize>]) -> bool {
    block.nodes.iter().all(|node| match node {
        TileNode::Load { tensor, grid, along_loop } => {
            let mut shape = tensors[tensor.index()].clone();
            let parts = grid.iter().zip(&block.grid).map(|(dim, &blocks)| (*dim, blocks));
            parts.chain([(*along_loop, block.loop_range)]).all(|(dim, parts)| {
                dim.is_none_or(|dim| {
                    let even = shape[dim].is_multiple_of(parts);
                    shape[dim] /= parts;
                    even
                })
            })
        }
        TileNode::Op { .. } | TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => true,
    })
}

/// Per grid dimension the first block of each kind: full, with a remainder, empty.
fn distinct_numbers(block: &BlockGraph, tensors: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let lengths = |axis: usize, number: usize| -> Vec<usize> {
        let loads = block.nodes.iter().filter_map(|node| match node {
            TileNode::Load { tensor, grid, .. } => grid[axis].map(|dim| tensors[tensor.index()][dim]),
            TileNode::Op { .. } | TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => None,
        });
        loads.map(|extent| part(extent, block.grid[axis], number).1).collect()
    };
    let kinds = |(axis, &blocks): (usize, &usize)| {
        let mut firsts = vec![0];
        let mut known = lengths(axis, 0);
        for number in 1..blocks {
            let now = lengths(axis, number);
            if now != known {
                firsts.push(number);
                known = now;
            }
        }
        firsts
    };
    block.grid.iter().enumerate().map(kinds).collect()
}

fn combinations(choices: &[Vec<usize>]) -> Vec<Vec<usize>> {
    choices.iter().fold(vec![Vec::new()], |prefixes, choices| {
        let extend = |prefix: &Vec<usize>| {
            let prefix = prefix.clone();
            choices.iter().map(move |&choice| [prefix.clone(), vec![choice]].concat()).collect::<Vec<_>>()
        };
        prefixes.iter().flat_map(extend).collect()
    })
}

/// All indices of a grid, the last dimension fastest.
pub fn indices(grid: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..crate::op::elems(grid)).map(move |flat| {
        let mut rest = flat;
        let mut index = vec![0; grid.len()];
        for (position, &extent) in index.iter_mut().zip(grid).rev() {
            *position = rest % extent;
            rest /= extent;
        }
        index
    })
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_that_differ_are_whole_multiples() {
        let sizes = |extent: usize, parts: usize| -> Vec<usize> {
            (0..parts).map(|number| part(extent, parts, number).1).collect()
        };
        assert_eq!(sizes(257, 5), [64, 64, 64, 64, 1]);
        assert_eq!(sizes(577, 5), [128, 128, 128, 128, 65]);
        // Parts of one size stay; no part is left empty that need not be.
        assert_eq!(sizes(120, 5), [24; 5]);
        assert_eq!(sizes(50, 3), [17, 17, 16]);
        assert_eq!(sizes(9, 6), [2, 2, 2, 2, 1, 0]);
        for (extent, parts) in [(1, 1), (7, 9), (1000, 7), (4096, 3)] {
            assert_eq!(sizes(extent, parts).iter().sum::<usize>(), extent);
        }
    }
}
