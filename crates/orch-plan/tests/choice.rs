//! Kernel choice against brute force, against the published counter-example, and on the published models.

mod zoo;

use orch_ir::{NodeId, TensorId};
use orch_plan::blp::{
    BlpError, Choice, ChooseOptions, ClassId, Column, ColumnId, Problem, Status, choose, schedule,
};
use orch_plan::dag::{Dag, DagNode, NodeKind};
use orch_plan::enumerate::{AnchorPolicy, KindRule, Limits, ReducePolicy, enumerate};
use orch_plan::solver::MicroLp;
use proptest::prelude::*;
use zoo::segformer::Segformer;

fn column(cost_us: f64, inputs: &[u32], outputs: &[u32], executes: &[u32]) -> Column {
    Column {
        cost_us,
        kernels: 1,
        inputs: inputs.iter().copied().map(ClassId).collect(),
        outputs: outputs.iter().copied().map(ClassId).collect(),
        executes: executes.iter().copied().map(NodeId).collect(),
    }
}

fn problem(classes: usize, available: &[u32], required: &[u32], columns: Vec<Column>) -> Problem {
    let ids = |list: &[u32]| list.iter().copied().map(ClassId).collect();
    Problem { classes, available: ids(available), required: ids(required), columns }
}

/// Solves, and checks that the choice is what it says it is.
fn solved(problem: &Problem, options: &ChooseOptions) -> Choice {
    let choice = choose(problem, options, &MicroLp).expect("a valid problem");
    if choice.status != Status::Infeasible {
        let schedule = schedule(problem, &choice.columns);
        assert!(schedule.is_complete(), "{schedule:?}");
        let cost: f64 = choice.columns.iter().map(|id| problem.columns[id.index()].cost_us).sum();
        assert!((cost - choice.objective_us).abs() < 1e-9);
        assert!(choice.bound_us <= choice.objective_us);
        runs_in_order(problem, &choice);
    }
    choice
}

fn runs_in_order(problem: &Problem, choice: &Choice) {
    let mut is_there = vec![false; problem.classes];
    problem.available.iter().for_each(|class| is_there[class.index()] = true);
    for id in &choice.columns {
        let column = &problem.columns[id.index()];
        assert!(column.inputs.iter().all(|class| is_there[class.index()]), "{id} runs too early");
        for class in &column.outputs {
            let is_first = !std::mem::replace(&mut is_there[class.index()], true);
            assert!(!is_first || choice.producers[class.index()] == Some(*id));
        }
    }
    assert!(problem.required.iter().all(|class| is_there[class.index()]));
}

/// The least cost over all subsets of columns that can run and produce what is required.
fn brute_force(problem: &Problem) -> Option<f64> {
    let subsets = 0..1u32 << problem.columns.len();
    let cost_of = |subset: u32| {
        let chosen: Vec<ColumnId> =
            (0..problem.columns.len() as u32).filter(|bit| subset >> bit & 1 == 1).map(ColumnId).collect();
        let suffices = schedule(problem, &chosen).missing.is_empty();
        suffices.then(|| chosen.iter().map(|id| problem.columns[id.index()].cost_us).sum())
    };
    subsets.filter_map(cost_of).min_by(f64::total_cmp)
}

/// Without dynamic programming beyond the narrowest sweep.
fn by_integer_program() -> ChooseOptions {
    ChooseOptions { max_states: 0, ..ChooseOptions::default() }
}

#[test]
fn kernels_do_not_justify_each_other_in_a_circle() {
    // x = 0, a = 1, b = 2, c = 3, d = 4: K1 makes a and d from x and b, K2 makes b and c from x and a.
    let circle = vec![column(1.0, &[0, 2], &[1, 4], &[0, 1]), column(1.0, &[0, 1], &[2, 3], &[2, 3])];
    let alone = problem(5, &[0], &[3, 4], circle.clone());
    let choice = solved(&alone, &ChooseOptions::default());
    assert_eq!(choice.status, Status::Infeasible);
    assert_eq!(choice.underivable, [ClassId(3), ClassId(4)]);
    let single = [column(3.0, &[0], &[1], &[0]), column(4.0, &[0], &[2], &[2])];
    let with_a_way_out = problem(5, &[0], &[3, 4], [circle.as_slice(), &single].concat());
    for options in [ChooseOptions::default(), by_integer_program()] {
        let choice = solved(&with_a_way_out, &options);
        assert_eq!(choice.status, Status::Optimal);
        assert_eq!(choice.objective_us, 5.0);
        assert_eq!(choice.columns, [ColumnId(2), ColumnId(1), ColumnId(0)]);
    }
}

#[test]
fn layouts_convert_both_ways() {
    // Classes 1 and 2 are one tensor in two layouts; 3 and 4 need one each.
    let columns = vec![
        column(5.0, &[0], &[1], &[0]),
        column(7.0, &[0], &[2], &[0]),
        column(1.0, &[1], &[2], &[]),
        column(1.0, &[2], &[1], &[]),
        column(2.0, &[1], &[3], &[1]),
        column(2.0, &[2], &[4], &[2]),
    ];
    let choice = solved(&problem(5, &[0], &[3, 4], columns), &ChooseOptions::default());
    assert_eq!((choice.status, choice.objective_us), (Status::Optimal, 10.0));
    assert_eq!(choice.producers[2], Some(ColumnId(2)));
}

#[test]
fn ties_go_to_fewer_kernels_then_to_less_recomputation() {
    let columns = vec![
        column(1.0, &[0], &[1], &[0]),
        column(1.0, &[1], &[2], &[1]),
        column(2.0, &[0], &[2], &[0, 0, 1, 7]),
        column(2.0, &[0], &[2], &[0, 1]),
    ];
    let choice = solved(&problem(3, &[0], &[2], columns), &ChooseOptions::default());
    assert_eq!(choice.columns, [ColumnId(3)]);
}

#[test]
fn required_and_available_needs_nothing() {
    let choice = solved(&problem(1, &[0], &[0], vec![]), &ChooseOptions::default());
    assert_eq!((choice.status, choice.objective_us), (Status::Optimal, 0.0));
    let choice = solved(&problem(0, &[], &[], vec![]), &ChooseOptions::default());
    assert_eq!((choice.status, choice.gap()), (Status::Optimal, 0.0));
}

#[test]
fn kernels_of_hours_can_be_chosen() {
    let hours =
        problem(2, &[0], &[1], vec![column(1e10, &[0], &[1], &[0]), column(1e300, &[0], &[1], &[0, 1])]);
    let choice = solved(&hours, &ChooseOptions::default());
    assert_eq!((choice.status, choice.objective_us), (Status::Optimal, 1e10));
}

#[test]
fn malformed_problems_are_refused() {
    let refused = |problem: &Problem| choose(problem, &ChooseOptions::default(), &MicroLp).unwrap_err();
    let unknown = problem(2, &[0], &[5], vec![]);
    assert_eq!(refused(&unknown), BlpError::UnknownClass { class: ClassId(5), classes: 2 });
    let column_unknown = problem(2, &[0], &[1], vec![column(1.0, &[9], &[1], &[])]);
    assert_eq!(refused(&column_unknown).to_string(), "c9 does not exist: the problem has 2 classes");
    for cost in [f64::NAN, f64::INFINITY, -1.0] {
        let bad = problem(2, &[0], &[1], vec![column(cost, &[0], &[1], &[])]);
        assert!(refused(&bad).to_string().starts_with("k0 costs"), "{cost}");
    }
    let silent = problem(2, &[0], &[1], vec![column(1.0, &[0], &[], &[])]);
    assert_eq!(refused(&silent), BlpError::NoOutputs { column: ColumnId(0) });
}

/// Any columns over a few classes: circles, several outputs, useless and unrunnable ones.
fn any_problem() -> impl Strategy<Value = Problem> {
    let classes = 7u32;
    let some = move |range: std::ops::RangeInclusive<usize>| prop::collection::vec(0..classes, range);
    let any_column = (0..12u32, some(0..=3), some(1..=3), prop::collection::vec(0..5u32, 0..3))
        .prop_map(|(cost, inputs, outputs, executes)| column(f64::from(cost), &inputs, &outputs, &executes));
    (prop::collection::vec(any_column, 1..11), some(1..=3))
        .prop_map(move |(columns, required)| problem(classes as usize, &[0], &required, columns))
}

/// A random graph with up to 7 nodes, some with two outputs.
fn any_dag() -> impl Strategy<Value = Dag> {
    let any_node = (0..3usize, any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 1..4));
    (prop::collection::vec(any_node, 1..8), prop::collection::vec(any::<prop::sample::Index>(), 1..3))
        .prop_map(|(specs, outputs)| {
            let mut tensors = 2u32;
            let mut nodes = Vec::new();
            for (kind, has_two_outputs, inputs) in specs {
                let inputs =
                    inputs.iter().map(|index| TensorId::new(index.index(tensors as usize))).collect();
                let count = if has_two_outputs { 2 } else { 1 };
                let outputs = (tensors..tensors + count).map(TensorId).collect();
                nodes.push(DagNode { kind: NodeKind::ALL[kind], is_cheap: true, inputs, outputs });
                tensors += count;
            }
            let outputs = outputs.iter().map(|index| TensorId::new(index.index(tensors as usize))).collect();
            Dag::new(tensors as usize, nodes, outputs).expect("valid by construction")
        })
}

/// The program of choice with a column per candidate, costs drawn from a list.
fn with_costs(dag: &Dag, limits: &Limits, costs: &[u32]) -> Problem {
    let candidates = enumerate(dag, &KindRule::PUBLISHED, limits).candidates;
    let costed = candidates.iter().zip(costs.iter().cycle());
    let columns = costed.map(|(candidate, &cost)| Column::of_candidate(candidate, f64::from(cost)));
    Problem { columns: columns.collect(), ..Problem::of_graph(dag) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_problem_is_solved_to_its_optimum(problem in any_problem()) {
        let expected = brute_force(&problem);
        for options in [ChooseOptions::default(), by_integer_program()] {
            let choice = solved(&problem, &options);
            match expected {
                Some(cost) => {
                    prop_assert_eq!(choice.status, Status::Optimal);
                    prop_assert_eq!(choice.objective_us, cost);
                }
                None => prop_assert_eq!(choice.status, Status::Infeasible),
            }
        }
    }

    #[test]
    fn kernels_of_any_graph_are_chosen_optimally(dag in any_dag(), costs in prop::collection::vec(1..20u32, 30)) {
        let limits = Limits { max_reentrant_nodes: 2, max_exports: 2, ..Limits::NONE };
        let problem = with_costs(&dag, &limits, &costs);
        prop_assume!(problem.columns.len() <= 14);
        let choice = solved(&problem, &ChooseOptions::default());
        prop_assert_eq!(choice.status, Status::Optimal);
        prop_assert_eq!(Some(choice.objective_us), brute_force(&problem));
    }
}

/// Solves Segformer, cut at nothing, under the published rules.
fn segformer(reduces: ReducePolicy) -> (Choice, usize) {
    let model = Segformer::build();
    let dag = model.dag();
    let rule = KindRule { anchors: AnchorPolicy::Alone, reduces };
    let candidates = enumerate(&dag, &rule, &Limits::NONE).candidates;
    let problem = zoo::cost::problem(&model.net, &dag, &candidates);
    (solved(&problem, &ChooseOptions::default()), candidates.len())
}

#[test]
fn whole_segformer_is_solved_to_the_published_optimum() {
    for (reduces, cost_us, kernels) in
        [(ReducePolicy::SinkOnly, 2895.98, 301), (ReducePolicy::Inside, 2384.30, 197)]
    {
        let (choice, candidates) = segformer(reduces);
        assert_eq!(choice.status, Status::Optimal);
        assert_eq!(choice.columns.len(), kernels);
        assert!((choice.objective_us - cost_us).abs() < 0.005, "{}", choice.objective_us);
        assert_eq!(choice.report.columns, candidates);
    }
}

#[test]
fn recomputation_across_reductions_pays_on_segformer() {
    let model = Segformer::build();
    let dag = model.dag();
    let rule = KindRule { anchors: AnchorPolicy::Alone, reduces: ReducePolicy::SinkOnly };
    let limits = Limits { max_reentrant_nodes: usize::MAX, ..Limits::NONE };
    let candidates = enumerate(&dag, &rule, &limits).candidates;
    let nonconvex = candidates.iter().filter(|candidate| !candidate.is_convex).count();
    assert_eq!((candidates.len(), nonconvex), (43_696, 41_326));
    let choice = solved(&zoo::cost::problem(&model.net, &dag, &candidates), &ChooseOptions::default());
    assert_eq!((choice.status, choice.columns.len()), (Status::Optimal, 245));
    assert!((choice.objective_us - 2629.96).abs() < 0.005, "{}", choice.objective_us);
}

/// Instance normalisation, activation and reflecting padding of Candy, as one graph.
fn normalised_and_padded() -> (zoo::net::Net, Dag) {
    let mut net = zoo::net::Net::default();
    let image = net.input(&[1, 32, 224, 224]);
    let normal = zoo::candy::instance_norm(&mut net, image);
    let active = net.map("Relu", &[normal]);
    let padded = net.layout("Pad", active, &[1, 32, 226, 226]);
    let dag = net.dag(&[padded]);
    (net, dag)
}

#[test]
fn normalisation_is_three_kernels_if_reductions_end_kernels() {
    let (net, dag) = normalised_and_padded();
    let rule = |reduces| KindRule { anchors: AnchorPolicy::Alone, reduces };
    let plan = |reduces, max_reentrant_nodes| {
        let limits = Limits { max_reentrant_nodes, ..Limits::NONE };
        let candidates = enumerate(&dag, &rule(reduces), &limits).candidates;
        let choice = solved(&zoo::cost::problem(&net, &dag, &candidates), &ChooseOptions::default());
        let centered = dag.node(NodeId(1)).outputs[0];
        let stores_centered = choice.producers[centered.index()].is_some();
        (choice.columns.len(), (choice.objective_us * 10.0).round() / 10.0, stores_centered)
    };
    assert_eq!(enumerate(&dag, &rule(ReducePolicy::Inside), &Limits::NONE).candidates.len(), 66);
    assert_eq!(plan(ReducePolicy::SinkOnly, 0), (4, 47.1, true));
    assert_eq!(plan(ReducePolicy::SinkOnly, 1), (3, 32.7, false));
    assert_eq!(plan(ReducePolicy::Inside, 0), (1, 14.4, false));
}

#[test]
fn the_plan_follows_measured_costs() {
    let model = Segformer::build();
    let (sources, outputs) = &model.parts()[7];
    let dag = model.dag().between(sources, outputs).0;
    let limits = Limits { max_sets_per_sink: 1 << 11, ..Limits::NONE };
    let candidates = enumerate(&dag, &KindRule::PUBLISHED, &limits).candidates;
    let whole = candidates.iter().position(|candidate| candidate.nodes.len() == 17).expect("all in one");
    let mut problem = zoo::cost::problem(&model.net, &dag, &candidates);
    let one_kernel = solved(&problem, &ChooseOptions::default());
    assert_eq!(one_kernel.columns, [ColumnId(whole as u32)]);
    problem.columns[whole].cost_us *= 2.24;
    let several = solved(&problem, &ChooseOptions::default());
    assert_eq!(several.status, Status::Optimal);
    assert!(several.columns.len() > 1);
    assert!(several.objective_us < 2.24 * one_kernel.objective_us);
}

#[test]
fn a_stage_of_segformer_is_solved_to_the_published_optimum() {
    let model = Segformer::build();
    let (dag, originals) = model.dag().between(&model.parts()[0].0, &model.parts()[0].1);
    assert_eq!(originals[0], NodeId(0), "the first stage keeps its node ids, by which costs are looked up");
    for (reduces, cost_us, kernels) in
        [(ReducePolicy::SinkOnly, 682.34, 76), (ReducePolicy::Inside, 521.55, 48)]
    {
        let rule = KindRule { anchors: AnchorPolicy::Alone, reduces };
        let candidates = enumerate(&dag, &rule, &Limits::NONE).candidates;
        let choice = solved(&zoo::cost::problem(&model.net, &dag, &candidates), &ChooseOptions::default());
        assert_eq!((choice.status, choice.columns.len()), (Status::Optimal, kernels));
        assert!((choice.objective_us - cost_us).abs() < 0.005, "{}", choice.objective_us);
    }
}

#[test]
fn results_are_the_same_every_time() {
    let (mut first, mut second) = (segformer(ReducePolicy::Inside).0, segformer(ReducePolicy::Inside).0);
    first.report.time = std::time::Duration::ZERO;
    second.report.time = std::time::Duration::ZERO;
    assert_eq!(first, second);
}
