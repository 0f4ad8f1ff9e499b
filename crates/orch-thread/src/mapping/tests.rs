//! The algebra of task mappings, by enumeration.

use super::*;
use orch_compute::Simplifier;
use proptest::prelude::*;

/// All tasks of all workers.
fn table(mapping: &TaskMapping) -> Vec<Vec<Vec<usize>>> {
    (0..mapping.workers()).map(|worker| mapping.tasks_of(worker)).collect()
}

/// Every task of the shape is done once, by workers with equally many tasks.
fn covers_exactly(mapping: &TaskMapping) -> bool {
    let table = table(mapping);
    let is_even = table.iter().all(|tasks| tasks.len() == mapping.tasks_per_worker());
    let mut all: Vec<Vec<usize>> = table.into_iter().flatten().collect();
    all.sort_unstable();
    let shape = mapping.shape();
    let points = shape.iter().product();
    is_even
        && all.len() == points
        && (0..points).all(|at| all[at] == unflatten(at, shape, &row_major(shape.len())))
}

/// The tasks that the symbolic form gives a worker, running its loops in order.
fn lowered_tasks(mapping: &TaskMapping, worker: usize) -> Vec<Vec<usize>> {
    let mut exprs = Exprs::new();
    let (var, value) = exprs.fresh_index("worker", mapping.workers());
    let LoweredMapping { loops, task } = mapping.lower(&mut exprs, value, "t");
    let mut simplifier = Simplifier::new();
    let task: Vec<ExprId> =
        task.into_iter().map(|position| simplifier.simplify(&mut exprs, position)).collect();
    let extents: Vec<usize> = loops.iter().map(|(_, extent)| *extent).collect();
    let order = row_major(extents.len());
    (0..extents.iter().product())
        .map(|step| {
            let steps = unflatten(step, &extents, &order);
            let values: Vec<(VarId, i64)> = (loops.iter().zip(steps))
                .map(|((var, _), step)| (*var, step as i64))
                .chain([(var, worker as i64)])
                .collect();
            let evaluate =
                |&position| exprs.evaluate(position, &values).expect("a closed expression") as usize;
            task.iter().map(evaluate).collect()
        })
        .collect()
}

#[test]
fn the_example_of_the_paper() {
    // Figure 8: repeat(4, 1) * spatial(16, 8) copies a 64 x 8 tile with 128 threads.
    let mapping = TaskMapping::repeat(&[4, 1]) * TaskMapping::spatial(&[16, 8]);
    assert_eq!((mapping.workers(), mapping.tasks_per_worker()), (128, 4));
    assert_eq!(mapping.shape(), [64, 8]);
    let expected: Vec<Vec<usize>> = (0..4).map(|i| vec![i * 16 + 77 / 8, 77 % 8]).collect();
    assert_eq!(mapping.tasks_of(77), expected);
}

#[test]
fn composition_is_not_commutative() {
    let (repeat, spatial) = (TaskMapping::repeat(&[2, 2]), TaskMapping::spatial(&[2, 2]));
    assert_eq!((repeat.clone() * spatial.clone()).tasks_of(0), [[0, 0], [0, 2], [2, 0], [2, 2]]);
    assert_eq!((spatial * repeat).tasks_of(0), [[0, 0], [0, 1], [1, 0], [1, 1]]);
}

#[test]
fn columns_first() {
    let spatial = TaskMapping::column_spatial(&[2, 3]);
    let all: Vec<Vec<usize>> = table(&spatial).into_iter().flatten().collect();
    assert_eq!(all, [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]);
    assert_eq!(TaskMapping::column_repeat(&[2, 3]).tasks_of(0), all);
    let rotated = TaskMapping::repeat_in_order(&[2, 1, 3], &[2, 0, 1]);
    assert_eq!(rotated.tasks_of(0)[1], [1, 0, 0]);
}

#[test]
fn a_matrix_fragment_is_a_composition() {
    // The accumulator of mma.m16n8: lane l holds rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next.
    let fragment =
        TaskMapping::repeat(&[2, 1]) * TaskMapping::spatial(&[8, 4]) * TaskMapping::repeat(&[1, 2]);
    assert_eq!((fragment.workers(), fragment.shape()), (32, &[16, 8][..]));
    assert_eq!(fragment.tasks_of(6), [[1, 4], [1, 5], [9, 4], [9, 5]]);
    assert!(covers_exactly(&fragment));
}

#[test]
fn tables_must_be_bijections() {
    let diagonal = |a: [usize; 2], b: [usize; 2]| vec![a.to_vec(), b.to_vec()];
    let valid = vec![diagonal([0, 0], [1, 1]), diagonal([0, 1], [1, 0])];
    let mapping = TaskMapping::custom(&[2, 2], valid.clone()).expect("a bijection");
    assert_eq!(table(&mapping), valid);
    assert!(covers_exactly(&(TaskMapping::spatial(&[1, 3]) * mapping * TaskMapping::repeat(&[2, 1]))));
    let twice = vec![diagonal([0, 0], [1, 1]), diagonal([0, 0], [1, 0])];
    assert_eq!(TaskMapping::custom(&[2, 2], twice), None);
    let outside = vec![diagonal([0, 0], [1, 2]), diagonal([0, 1], [1, 0])];
    assert_eq!(TaskMapping::custom(&[2, 2], outside), None);
    let missing = vec![diagonal([0, 0], [1, 1])];
    assert_eq!(TaskMapping::custom(&[2, 2], missing), None);
    let uneven = vec![diagonal([0, 0], [1, 1]), vec![vec![0, 1]], vec![vec![1, 0]]];
    assert_eq!(TaskMapping::custom(&[2, 2], uneven), None);
    assert_eq!(TaskMapping::custom(&[2, 2], vec![]), None);
}

#[test]
fn no_tasks() {
    let empty = TaskMapping::spatial(&[0, 4]) * TaskMapping::repeat(&[3, 1]);
    assert_eq!((empty.workers(), empty.shape()), (0, &[0, 4][..]));
    assert!(covers_exactly(&empty));
    let idle = TaskMapping::spatial(&[2]) * TaskMapping::repeat(&[0]);
    assert_eq!(idle.tasks_of(1), Vec::<Vec<usize>>::new());
    let mut exprs = Exprs::new();
    let worker = exprs.index(0);
    assert_eq!(empty.lower(&mut exprs, worker, "t").task.len(), 2);
}

#[test]
fn the_first_position_is_not_reduced() {
    // Which shows workers out of range, so that a predicate on it can be trusted.
    let mut exprs = Exprs::new();
    let (var, worker) = exprs.fresh_index("worker", 100);
    let lowered = TaskMapping::spatial(&[4, 8]).lower(&mut exprs, worker, "t");
    assert_eq!(exprs.evaluate(lowered.task[0], &[(var, 99)]), Some(12));
}

#[test]
fn coverings_reach_over_the_end() {
    for (extent, tile, tiles) in [(1, 16, 1), (15, 16, 1), (16, 16, 1), (17, 16, 2), (13, 1, 13), (0, 4, 0)] {
        let cover = covering(&[extent], &[tile]);
        assert_eq!(cover.tiles, [tiles], "{extent} by {tile}");
        assert_eq!(cover.has_remainder(0), extent % tile != 0);
        let mut exprs = Exprs::new();
        let (var, position) = exprs.fresh_index("p", tiles * tile);
        let predicate = cover.predicate(&mut exprs, &[position]);
        let inside: usize = (0..tiles * tile)
            .filter(|&at| {
                predicate.is_none_or(|predicate| exprs.evaluate(predicate, &[(var, at as i64)]) == Some(1))
            })
            .count();
        assert_eq!(inside, extent);
    }
    let cover = covering(&[6, 7], &[3, 7]);
    let mut exprs = Exprs::new();
    let position = vec![exprs.index(0); 2];
    assert_eq!(cover.predicate(&mut exprs, &position), None);
}

/// A basic mapping of this rank.
fn basic(rank: usize) -> impl Strategy<Value = TaskMapping> {
    let shape = proptest::collection::vec(1usize..4, rank);
    let order = Just((0..rank).collect::<Vec<usize>>()).prop_shuffle();
    (any::<bool>(), shape, order).prop_map(|(is_repeat, shape, order)| {
        if is_repeat {
            TaskMapping::repeat_in_order(&shape, &order)
        } else {
            TaskMapping::spatial_in_order(&shape, &order)
        }
    })
}

proptest! {
    #[test]
    fn composition_is_associative_and_exact(
        (f, g, h) in (1usize..4).prop_flat_map(|rank| (basic(rank), basic(rank), basic(rank)))
    ) {
        let left = (f.clone() * g.clone()) * h.clone();
        let right = f.clone() * (g.clone() * h.clone());
        prop_assert_eq!(table(&left), table(&right));
        prop_assert!(covers_exactly(&left));
        // A composition is again a part: composing its table gives the same.
        let inner = g * h;
        let as_table = TaskMapping::custom(inner.shape(), table(&inner)).expect("a bijection");
        prop_assert_eq!(table(&(f * as_table)), table(&left));
    }

    #[test]
    fn the_symbolic_form_does_the_same_tasks(
        (f, g, h) in (1usize..4).prop_flat_map(|rank| (basic(rank), basic(rank), basic(rank)))
    ) {
        let mapping = f * g * h;
        for worker in 0..mapping.workers().min(20) {
            prop_assert_eq!(lowered_tasks(&mapping, worker), mapping.tasks_of(worker));
        }
    }
}
