//! The interpretation of µGraphs, compared with that of the plain programs in f64.

mod common;

use common::{mugraph, program, random_inputs, resized, valid};
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::{MuGraph, Precision, interpret};

/// The relative error of `candidate` against `program`.
fn error(program: &MuGraph, candidate: &MuGraph) -> f64 {
    let inputs = random_inputs(program, 7, 0.2);
    let run = |graph| interpret(graph, &inputs, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
    let pairs: Vec<(Array<f64>, Array<f64>)> = run(program).into_iter().zip(run(candidate)).collect();
    pairs.iter().map(|(expected, given)| relative_error(expected, given)).fold(0.0, f64::max)
}

#[test]
fn good_mugraphs_compute_their_programs() {
    let small = [(256, 32), (4096, 256), (6144, 512), (8192, 256)];
    for (candidate, name) in [
        ("gqa_split", "osdi_gqa"),
        ("rmsnorm", "osdi_rmsnorm"),
        ("gated_mlp", "osdi_gated_mlp"),
        ("lora", "osdi_lora"),
        ("ntrans", "osdi_ntrans"),
        ("adapter_split", "mlp_adapter"),
    ] {
        let (program, candidate) = (resized(&program(name), &small), resized(&mugraph(candidate), &small));
        let error = error(&program, &candidate);
        assert!(error < 1e-10, "{name}: {error}");
    }
}

#[test]
fn the_published_wrong_graph_is_wrong() {
    let small = [(256, 64), (4096, 128), (64, 16), (262144, 2048)];
    let (program, candidate) =
        (resized(&program("osdi_qknorm"), &small), resized(&mugraph("qknorm_wrong"), &small));
    assert!(error(&program, &candidate) > 0.1);
}

#[test]
fn remainders_of_partitions_are_predicated() {
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"x\" [5, 13]\n t1 = input \"w\" [13, 7]\n t2 = matmul t0, t1\n t3 = exp t2\n t4 = sum(1) t3\n \
         t5 = div t3, t4\n output \"o\" t5\n}\n",
    );
    let candidate = valid(
        "mugraph \"c\" {\n t0 = input \"x\" [5, 13]\n t1 = input \"w\" [13, 7]\n t2, t3 = block [4, 3] loop 4 {\n \
         s0 = load t0 [0, -] 1\n s1 = load t1 [-, 1] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = exp s3\n \
         s5 = sum(1) s4\n store s4 [0, 1]\n store s5 [0, 1]\n }\n \
         t4 = block [2] loop 1 {\n s0 = load t2 [0] -\n s1 = load t3 [0] -\n s2 = sum(1) s1\n s3 = div s0, s2\n \
         store s3 [0]\n }\n output \"o\" t4\n}\n",
    );
    let error = error(&program, &candidate);
    assert!(error < 1e-12, "{error}");
}

#[test]
fn inputs_may_enter_after_the_loop() {
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"x\" [6, 8]\n t1 = input \"w\" [8, 4]\n t2 = input \"bias\" [1, 4]\n \
         t3 = matmul t0, t1\n t4 = add t3, t2\n output \"o\" t4\n}\n",
    );
    let candidate = valid(
        "mugraph \"c\" {\n t0 = input \"x\" [6, 8]\n t1 = input \"w\" [8, 4]\n t2 = input \"bias\" [1, 4]\n \
         t3 = block [3, 2] loop 2 {\n s0 = load t0 [0, -] 1\n s1 = load t1 [-, 1] 0\n s2 = matmul s0, s1\n \
         s3 = accumulate sum s2\n s4 = load t2 [-, 1] -\n s5 = add s3, s4\n store s5 [0, 1]\n }\n \
         output \"o\" t3\n}\n",
    );
    assert!(error(&program, &candidate) < 1e-12);
}

#[test]
fn rotary_embedding_is_made_of_index_and_map_operators() {
    let graph = valid(
        "mugraph \"rope\" {\n t0 = input \"x\" [2, 4]\n t1 = input \"cos\" [2, 4]\n t2 = input \"sin\" [2, 4]\n \
         t3 = slice(1, 0, 2) t0\n t4 = slice(1, 2, 2) t0\n t5 = scale(-1) t4\n t6 = concat(1) t5, t3\n \
         t7 = mul t0, t1\n t8 = mul t6, t2\n t9 = add t7, t8\n output \"o\" t9\n}\n",
    );
    let array = |data: [f64; 8]| Array { shape: vec![2, 4], data: data.to_vec() };
    let x = array([1., 2., 3., 4., 5., 6., 7., 8.]);
    let (cos, sin) = (Array::full(&[2, 4], 0.0), Array::full(&[2, 4], 1.0));
    let result = interpret(&graph, &[x, cos, sin], Precision::F64).unwrap();
    assert_eq!(result[0].data, [-3., -4., 1., 2., -7., -8., 5., 6.]);
}

#[test]
fn remainders_are_checked_after_another_load_has_run_out() {
    // The first load's tiles are empty after the first iteration; the second load's are smaller in the last one.
    let text = "mugraph \"c\" {\n t0 = input \"x\" [17, 1]\n t1 = input \"y\" [17, 5]\n t2 = block [1] loop 5 {\n \
                s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n s2 = accumulate sum s1\n store s2 [1]\n }\n output \"o\" t2\n}\n";
    let error = orch_mugraph::parse(text).unwrap_err().to_string();
    assert!(error.contains("in iteration 4"), "{error}");
}
