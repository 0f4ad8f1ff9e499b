//! The memory plan of whole models: how close the arena comes to what is live.

mod zoo;

use orch_ir::TensorId;
use orch_plan::blp::{Choice, ChooseOptions, ClassId, Column, ColumnId, Life, Problem, choose};
use orch_plan::dag::Dag;
use orch_plan::enumerate::{KindRule, Limits, enumerate};
use orch_plan::memory::{Buffer, MemoryPlan, MemoryRequest, plan_memory};
use orch_plan::solver::MicroLp;
use zoo::net::Net;

const ALIGNMENT: u64 = 64;

fn chosen(net: &Net, dag: &Dag) -> (Problem, Choice) {
    let candidates = enumerate(dag, &KindRule::PUBLISHED, &Limits::NONE).candidates;
    let problem = zoo::cost::problem(net, dag, &candidates);
    let choice = choose(&problem, &ChooseOptions::default(), &MicroLp).expect("a valid problem");
    (problem, choice)
}

fn arena(net: &Net, dag: &Dag) -> MemoryPlan {
    let (problem, choice) = chosen(net, dag);
    let lives = choice.lives(&problem);
    let buffers = lives.iter().enumerate().filter_map(|(class, life)| {
        let bytes = 4 * net.elems(TensorId::new(class)) as u64;
        life.map(|life| Buffer { bytes, alignment: ALIGNMENT, first_use: life.first, last_use: life.last })
    });
    let request = MemoryRequest { buffers: buffers.collect(), ..MemoryRequest::default() };
    plan_memory(&request).expect("a valid request")
}

#[test]
fn arenas_of_models_are_what_is_live() {
    let segformer = zoo::segformer::Segformer::build();
    let (candy, candy_output) = zoo::candy::build();
    let yolox = zoo::yolox::build();
    let models = [(&segformer.net, segformer.logits), (&candy, candy_output), (&yolox.net, yolox.output)];
    for (net, output) in models {
        let plan = arena(net, &net.dag(&[output]));
        assert!(
            plan.arena_bytes as f64 <= plan.live_bytes as f64 * 1.01,
            "{} bytes for {} live ones",
            plan.arena_bytes,
            plan.live_bytes
        );
    }
}

#[test]
fn classes_live_from_producer_to_last_reader() {
    let column = |inputs: &[u32], outputs: &[u32]| Column {
        cost_us: 1.0,
        kernels: 1,
        inputs: inputs.iter().copied().map(ClassId).collect(),
        outputs: outputs.iter().copied().map(ClassId).collect(),
        executes: Vec::new(),
    };
    let problem = Problem {
        classes: 6,
        available: vec![ClassId(0)],
        required: vec![ClassId(1), ClassId(4)],
        columns: vec![column(&[0], &[1, 5]), column(&[1], &[2]), column(&[1, 2], &[3]), column(&[3], &[4])],
    };
    let choice = choose(&problem, &ChooseOptions::default(), &MicroLp).expect("a valid problem");
    assert_eq!(choice.columns, [ColumnId(0), ColumnId(1), ColumnId(2), ColumnId(3)]);
    let life = |first, last| Some(Life { first, last });
    assert_eq!(choice.lives(&problem), [None, life(0, 3), life(1, 2), life(2, 3), life(3, 3), life(0, 0)]);
}
