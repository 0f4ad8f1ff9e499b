//! Programs that are too long for one search are found with their elementwise chains as one value, and with more operators in a block.

mod common;

use common::random_inputs;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::chains::Chains;
use orch_mugraph::{
    MuGraph, Precision, SuperoptimizeOptions, Superoptimized, interpret, parse, superoptimize,
};
use std::time::Duration;

/// Five elementwise operators of six inputs, and a norm.
const CHAIN: &str = "mugraph \"chain\" {
  t0 = input \"a\" [8, 64]
  t1 = input \"b\" [8, 64]
  t2 = input \"c\" [1, 64]
  t3 = input \"d\" [8, 64]
  t4 = input \"e\" [8, 64]
  t5 = input \"f\" [8, 1]
  t6 = add t0, t1
  t7 = mul t6, t2
  t8 = add t7, t3
  t9 = mul t8, t4
  t10 = add t9, t5
  t11 = rms_norm(1/1000) t10
  output \"o\" t11
}
";

/// Attention of normed queries with bias, gate and residual: 19 tiles.
const ATTENTION: &str = "mugraph \"attention\" {
  t0 = input \"q\" [4, 8, 16]
  t1 = input \"k\" [4, 16, 64]
  t2 = input \"v\" [4, 64, 16]
  t3 = input \"bias\" [4, 8, 64]
  t4 = input \"gate\" [4, 8, 16]
  t5 = input \"x\" [4, 8, 16]
  t6 = rms_norm(1/1000) t0
  t7 = matmul t6, t1
  t8 = add t7, t3
  t9 = exp t8
  t10 = sum(2) t9
  t11 = div t9, t10
  t12 = matmul t11, t2
  t13 = sigmoid t4
  t14 = mul t12, t13
  t15 = add t14, t5
  output \"o\" t15
}
";

fn found(program: &MuGraph, budget: Option<Duration>) -> Superoptimized {
    let search = SearchOptions { kernels: 1, ..SearchOptions::default() };
    let options = SuperoptimizeOptions { search, budget, proofs: 1, ..SuperoptimizeOptions::default() };
    superoptimize(program, &options, &|_, cost_us| Ok(cost_us), &|| true).unwrap_or_else(|e| panic!("{e}"))
}

/// The relative error of what was found.
fn error(program: &MuGraph, candidate: &MuGraph) -> f64 {
    let inputs = random_inputs(program, 3, 0.3);
    let run = |graph| interpret(graph, &inputs, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
    let pairs: Vec<(Array<f64>, Array<f64>)> = run(program).into_iter().zip(run(candidate)).collect();
    pairs.iter().map(|(expected, given)| relative_error(expected, given)).fold(0.0, f64::max)
}

#[test]
fn long_programs_are_found_in_one_kernel() {
    for text in [CHAIN, ATTENTION] {
        let program = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let found = found(&program, Some(Duration::from_secs(600)));
        let [best, ..] = &found.proved[..] else { panic!("{}: {found:?}", program.name) };
        let graph = best.graph().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((graph.kernels(), best.unstable.as_ref()), (1, None), "{}", best.certificate.candidate);
        assert!(error(&program, &graph) < 1e-9, "{}", best.certificate.candidate);
    }
}

#[test]
fn chains_are_taken_out_and_put_back() {
    let contracted = |text: &str| {
        let program = parse(text).unwrap_or_else(|e| panic!("{e}"));
        Chains::of(&program).map(|chains| chains.contracted.nodes().count())
    };
    // One input and the norm; without gate and residual.
    assert_eq!(contracted(CHAIN), Some(2));
    assert_eq!(contracted(ATTENTION), Some(11));
    // Nothing is left of what is elementwise throughout, and nothing is gained where one operator is.
    let whole =
        CHAIN.replace("output \"o\" t11", "output \"o\" t10").replace("  t11 = rms_norm(1/1000) t10\n", "");
    assert_eq!(contracted(&whole), None);
    let short = "mugraph \"p\" {\n t0 = input \"x\" [4, 8]\n t1 = input \"w\" [8, 8]\n t2 = matmul t0, t1\n \
                 t3 = relu t2\n output \"o\" t3\n}\n";
    assert_eq!(contracted(short), None);
}

#[test]
fn without_time_there_is_one_search() {
    let program = parse(CHAIN).unwrap_or_else(|e| panic!("{e}"));
    let found = found(&program, None);
    assert!(found.proved.is_empty(), "{found:?}");
}
