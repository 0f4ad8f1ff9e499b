//! The stages of a solve against each other and against brute force, on random programs.

use super::execute::derivable;
use super::greedy::greedy;
use super::instance::{Instance, Subprogram, Weight};
use super::prices::{PricedSets, Prices, excess_with_column};
use super::pricing::{PricingLimits, prices};
use super::structure::{cut_at_forced, forced, groups, parts};
use super::sweep::{SweepLimits, Sweeper};
use super::window::{Window, running_order};
use super::{ClassId, Column, ColumnId, Problem, milp, reduce};
use crate::solver::{MicroLp, SolverLimits};
use orch_ir::NodeId;
use proptest::prelude::*;

const LIMITS: SolverLimits = SolverLimits { pivots: 1_000_000 };

/// A column: `(cost, inputs, outputs, more nodes)`.
type Spec = (u32, Vec<u32>, Vec<u32>, Vec<u32>);

/// A program of `classes` classes. Class 0 is available, every other class has a column that makes it from lower
/// ones, and there are some columns with several outputs, which mostly read lower classes, but may make circles.
/// Columns execute the node of each class they make, and others.
fn any_instance(classes: u32, extra: usize) -> impl Strategy<Value = Instance> {
    let nodes = move || prop::collection::vec(1..classes, 0..3);
    let own: Vec<BoxedStrategy<Spec>> = (1..classes)
        .map(|class| (3..12u32, prop::collection::vec(0..class, 1..=2), Just(vec![class]), nodes()).boxed())
        .collect();
    let any_extra = (1..classes, 0..5u32).prop_flat_map(move |(lowest, circular)| {
        let highest_input = if circular == 0 { classes } else { lowest };
        let inputs = prop::collection::vec(0..highest_input, 1..=2);
        (1..20u32, inputs, prop::collection::vec(lowest..classes, 1..=3), nodes())
    });
    let required = prop::collection::vec(classes / 2..classes, 1..=2);
    (own, prop::collection::vec(any_extra, extra), required).prop_map(move |(own, extra, required)| {
        let columns = own.into_iter().chain(extra).map(|(cost, inputs, outputs, more)| {
            let executes = outputs.iter().chain(&more).copied().map(NodeId).collect();
            let ids = |list: Vec<u32>| list.into_iter().map(ClassId).collect();
            let (inputs, outputs) = (ids(inputs), ids(outputs));
            Column { cost_us: f64::from(cost), kernels: 1, inputs, outputs, executes }
        });
        let required = required.into_iter().map(ClassId).collect();
        let columns = columns.collect();
        let problem = Problem { classes: classes as usize, available: vec![ClassId(0)], required, columns };
        Instance::new(&problem).expect("a valid problem")
    })
}

/// The same without columns that serve nobody.
fn relevant(mut instance: Instance) -> Instance {
    assert!(reduce::drop_underivable(&mut instance).is_empty());
    reduce::drop_irrelevant(&mut instance);
    instance
}

/// All choices, as masks, that produce what is required.
fn choices(instance: &Instance) -> Vec<u32> {
    let suffices = |mask: &u32| {
        let is_there = derivable(instance, |column| mask >> column & 1 == 1);
        instance.required.iter().all(|&class| is_there[class as usize])
    };
    (0..1u32 << instance.columns.len()).filter(suffices).collect()
}

fn weight_of(instance: &Instance, mask: u32) -> Weight {
    let chosen = instance.columns.iter().enumerate().filter(|&(index, _)| mask >> index & 1 == 1);
    chosen.map(|(_, column)| column.weight).sum()
}

fn optimum(instance: &Instance) -> Weight {
    choices(instance).iter().map(|&mask| weight_of(instance, mask)).min().expect("derivable")
}

/// True if no column can be left out.
fn is_minimal(all: &[u32], mask: u32) -> bool {
    (0..32).filter(|bit| mask >> bit & 1 == 1).all(|bit| all.binary_search(&(mask & !(1 << bit))).is_err())
}

/// Prices that the solver finds for an instance.
fn priced(instance: &Instance) -> Prices {
    let order = groups(instance);
    let limits = PricingLimits { solver: LIMITS, enough: u64::MAX };
    prices(instance, &forced(instance, &order), &MicroLp, limits)
}

/// The weight that an unlimited sweep finds.
fn swept(instance: &Instance, prices: &Prices) -> Weight {
    let order = groups(instance);
    let sweeper = Sweeper::new(instance, &order, &forced(instance, &order), prices);
    let limits = SweepLimits { width: usize::MAX, states: usize::MAX, steps: usize::MAX };
    let sweep = sweeper.sweep(limits, Weight::INFINITE);
    let better = sweep.better.expect("derivable");
    let is_there = derivable(instance, |column| better.contains(column));
    assert!(instance.required.iter().all(|&class| is_there[class as usize]));
    assert_eq!(sweep.dropped, Weight::INFINITE);
    better.weight
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sweeps_with_and_without_prices_find_the_optimum(instance in any_instance(6, 6)) {
        let instance = relevant(instance);
        let expected = optimum(&instance);
        prop_assert_eq!(swept(&instance, &Prices::default()), expected);
        prop_assert_eq!(swept(&instance, &priced(&instance)), expected);
    }

    #[test]
    fn narrow_sweeps_bound_the_optimum(instance in any_instance(6, 6), width in 1..3usize, states in 1..6usize, steps in 1..9usize) {
        let instance = relevant(instance);
        let expected = optimum(&instance);
        let (order, prices) = (groups(&instance), priced(&instance));
        let sweeper = Sweeper::new(&instance, &order, &forced(&instance, &order), &prices);
        let sweep = sweeper.sweep(SweepLimits { width, states, steps }, Weight::INFINITE);
        let found = sweep.better.map_or(Weight::INFINITE, |better| better.weight);
        prop_assert!(sweep.dropped.min(found) <= expected && expected <= found);
    }

    #[test]
    fn the_integer_program_finds_the_optimum(instance in any_instance(7, 5)) {
        let instance = relevant(instance);
        let order = groups(&instance);
        let start = greedy(&instance, &order, |_| true).expect("derivable");
        let common = forced(&instance, &order);
        let result = milp::solve(&instance, &common, &start, &MicroLp, LIMITS).expect("no failure");
        let expected = optimum(&instance);
        let best = result.better.as_ref().unwrap_or(&start);
        prop_assert_eq!(best.weight.picoseconds, expected.picoseconds);
        prop_assert!((result.bound_us - expected.microseconds()).abs() < 1e-6);
    }

    #[test]
    fn reductions_and_cuts_keep_the_optimum(instance in any_instance(6, 6)) {
        let mut instance = relevant(instance);
        let expected = optimum(&instance);
        reduce::drop_dominated(&mut instance);
        prop_assert_eq!(optimum(&instance), expected);
        let order = groups(&instance);
        let common = forced(&instance, &order);
        cut_at_forced(&mut instance, &order, &common);
        reduce::drop_irrelevant(&mut instance);
        reduce::drop_dominated(&mut instance);
        let total: Weight = parts(&instance).iter().map(optimum).sum();
        prop_assert_eq!(total, expected);
    }

    #[test]
    fn forced_classes_and_nodes_are_in_every_choice(instance in any_instance(6, 5)) {
        let instance = relevant(instance);
        let common = forced(&instance, &groups(&instance));
        for mask in choices(&instance) {
            let is_chosen = |column: usize| mask >> column & 1 == 1;
            let is_there = derivable(&instance, is_chosen);
            prop_assert!(common.classes.ones().all(|class| is_there[class]));
            let executes = |node: usize| {
                let executes_it = |index: usize| instance.columns[index].executes.contains(&(node as u32));
                (0..instance.columns.len()).any(|index| is_chosen(index) && executes_it(index))
            };
            prop_assert!(common.nodes.ones().all(executes));
        }
    }

    #[test]
    fn prices_are_valid_bounds(
        instance in any_instance(6, 5),
        wild in prop::collection::vec(0..20_000_000u64, 6),
    ) {
        let instance = relevant(instance);
        let nodes: Vec<u32> = (0..6).collect();
        let prices = Prices::lowered_from(&instance, &nodes, wild.into_iter());
        for column in &instance.columns {
            let worth: u64 = column.executes.iter().map(|&node| prices.of(node as usize)).sum();
            prop_assert!(worth <= column.weight.picoseconds);
        }
        let prices = priced(&instance);
        let excess = excess_with_column(&instance, &groups(&instance), &prices);
        let all = choices(&instance);
        for &mask in all.iter().filter(|&&mask| is_minimal(&all, mask)) {
            let weight = weight_of(&instance, mask).picoseconds;
            let chosen = (0..instance.columns.len()).filter(|column| mask >> column & 1 == 1);
            for column in chosen {
                prop_assert!(prices.total() + excess[column] <= weight);
            }
        }
    }

    #[test]
    fn unions_are_worth_the_nodes_in_them(
        weights in prop::collection::vec(0..9u64, 150),
        sets in prop::collection::vec(prop::collection::btree_set(0..150usize, 0..150), 6),
    ) {
        let nodes: Vec<u32> = (0..150).collect();
        let prices = Prices::lowered_from(&Instance { classes: 0, required: vec![], columns: vec![] }, &nodes, weights.iter().copied());
        let rows = PricedSets::new(&prices, sets.iter().map(|set| set.iter().copied()));
        let union = rows.union([0, 1].into_iter());
        let found = rows.price_with(&union, || [2, 3].into_iter(), &rows, || [4, 5].into_iter());
        let is_in = |range: std::ops::Range<usize>, node: &usize| sets[range].iter().any(|set| set.contains(node));
        let expected = (0..150).filter(|node| is_in(0..4, node) && !is_in(4..6, node));
        prop_assert_eq!(found, expected.map(|node| weights[node]).sum::<u64>());
    }

    #[test]
    fn a_window_can_be_replaced_by_any_choice_for_it(
        instance in any_instance(6, 5),
        start in 0..4usize,
        length in 1..4usize,
    ) {
        let instance = relevant(instance);
        let choice = greedy(&instance, &groups(&instance), |_| true).expect("derivable");
        let order = running_order(&instance, &choice);
        let (window, stretch) = Window::new(&instance, &instance.producers(), &order, start..start + length);
        for mask in choices(&stretch.instance) {
            let chosen = stretch.instance.columns.iter().map(|column| column.source);
            let chosen: Vec<ColumnId> = chosen.filter(|column| mask >> column.index() & 1 == 1).collect();
            let replaced = window.replaced(&instance, &chosen);
            let is_there = derivable(&instance, |column| replaced.contains(column));
            prop_assert!(instance.required.iter().all(|&class| is_there[class as usize]));
        }
    }
}

/// The problem of a window in the middle of a chain of so many nodes, of which kernels of three are chosen.
fn stretch_of_chain(nodes: u32) -> Subprogram {
    let column = |first: u32, end: u32| Column {
        cost_us: 1.0 + 0.1 * f64::from(end - first),
        kernels: 1,
        inputs: vec![ClassId(first)],
        outputs: vec![ClassId(end)],
        executes: (first..end).map(NodeId).collect(),
    };
    let columns =
        (0..nodes).flat_map(|first| (first + 1..=nodes.min(first + 3)).map(move |end| column(first, end)));
    let (available, required) = (vec![ClassId(0)], vec![ClassId(nodes)]);
    let problem = Problem { classes: nodes as usize + 1, available, required, columns: columns.collect() };
    let instance = Instance::new(&problem).expect("valid");
    let is_chosen = |column: &&u32| {
        let executes = &instance.columns[**column as usize].executes;
        executes.len() == 3 && executes[0].is_multiple_of(3)
    };
    let all: Vec<u32> = (0..instance.columns.len() as u32).collect();
    let order: Vec<u32> = all.iter().filter(is_chosen).copied().collect();
    let middle = order.len() / 2;
    Window::new(&instance, &instance.producers(), &order, middle..middle + 4).1
}

#[test]
fn windows_of_equal_stretches_are_equal_problems_in_chains_of_any_length() {
    let [small, medium, large] = [90, 180, 360].map(stretch_of_chain);
    // Twelve nodes of the stretch and those of the columns before it.
    assert!(small.instance.columns.len() < 150, "{}", small.instance.columns.len());
    assert!(small == medium && medium == large);
}

#[test]
fn a_chain_is_cut_at_what_everything_passes_through() {
    let ids = |list: &[u32]| list.iter().copied().map(ClassId).collect();
    let column = |cost_us, inputs: &[u32], outputs: &[u32]| Column {
        cost_us,
        kernels: 1,
        inputs: ids(inputs),
        outputs: ids(outputs),
        executes: Vec::new(),
    };
    // 0 -> {1 or fused} -> 2 -> {3 or fused} -> 4, the anchor between them reading and making 2.
    let columns = vec![
        column(1.0, &[0], &[1]),
        column(1.0, &[1], &[2]),
        column(1.5, &[0], &[2]),
        column(1.0, &[2], &[3]),
        column(1.0, &[3], &[4]),
    ];
    let problem = Problem { classes: 5, available: ids(&[0]), required: ids(&[4]), columns };
    let mut instance = Instance::new(&problem).expect("valid");
    let order = groups(&instance);
    let common = forced(&instance, &order);
    assert_eq!(common.classes.ones().collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(cut_at_forced(&mut instance, &order, &common), 3);
    let sizes: Vec<usize> = parts(&instance).iter().map(|part| part.columns.len()).collect();
    assert_eq!(sizes, [3, 1, 1]);
}
