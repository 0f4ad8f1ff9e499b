//! Stable forms are equal to their programs and numerically stable; graphs without one are refused.

mod common;

use common::{mugraph, program, random_inputs, resized, valid};
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::{InputKind, MuGraph, Precision, Unstable, VerifyOptions, interpret, print, stabilise};

/// The stable form of a candidate, and its error in a type where logits have a standard deviation of `scale`. Inputs
/// are rounded to the type before anything is computed.
fn stable_error(program: &MuGraph, candidate: &MuGraph, precision: Precision, scale: f64) -> (MuGraph, f64) {
    let stable = stabilise(program, candidate, &VerifyOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", print(candidate)));
    assert!(stable.certificate.log2_bound < -64.0, "{}", stable.certificate.log2_bound);
    let round = |x: f64| match precision {
        Precision::F16 => half::f16::from_f64(x).to_f64(),
        Precision::F32 | Precision::F64 => f64::from(x as f32),
    };
    let mut inputs: Vec<Array<f64>> = random_inputs(program, 11, 1.0).iter().map(|a| a.map(round)).collect();
    let columns = program.shape(orch_mugraph::TensorId(0))[2] as f64;
    inputs[0] = inputs[0].map(|x| round(scale / columns.sqrt() * x));
    // Rows that are masked out completely have no value in the program.
    for (input, (id, _, kind)) in inputs.iter_mut().zip(program.inputs()) {
        if kind == InputKind::Mask {
            let row = program.shape(id).last().copied().unwrap_or(1);
            input.data.iter_mut().step_by(row).for_each(|bit| *bit = 1.0);
        }
    }
    let reference = stabilise(program, program, &VerifyOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let expected = interpret(&reference.graph, &inputs, Precision::F64).unwrap();
    let given = interpret(&stable.graph, &inputs, precision).unwrap();
    (stable.graph, relative_error(&expected[0], &given[0]))
}

const SMALL: [(usize, usize); 5] = [(256, 32), (4096, 256), (64, 16), (262144, 2048), (1024, 64)];

#[test]
fn split_attention_with_logits_times_30_is_finite_and_exact_enough() {
    for name in ["osdi_gqa", "mha_inc"] {
        let program = resized(&program(name), &SMALL);
        let candidate = mugraph("gqa_split");
        let heads = program.shape(orch_mugraph::TensorId(0))[0];
        let rows = program.shape(orch_mugraph::TensorId(0))[1];
        let text = print(&resized(&candidate, &SMALL)).replace("[2, ", &format!("[{heads}, "));
        let candidate =
            valid(&text.replace(", 32, 16]", &format!(", {rows}, 16]")).replace("loop 1", "loop 2"));
        for (precision, limit) in [(Precision::F16, 1e-2), (Precision::F32, 1e-5)] {
            let mut inputs = random_inputs(&program, 11, 1.0);
            inputs[0] = inputs[0].map(|x| 30.0 / 4.0 * x);
            let plain = interpret(&candidate, &inputs, precision).unwrap();
            assert!(plain[0].data.iter().any(|x| !x.is_finite()), "the unstable form overflows");
            let (_, error) = stable_error(&program, &candidate, precision, 30.0);
            assert!(error < limit, "{name} {precision:?}: {error:e}");
        }
    }
}

#[test]
fn the_stable_split_attention_exports_its_maxima() {
    let (program, candidate) =
        (resized(&program("osdi_gqa"), &SMALL), resized(&mugraph("gqa_split"), &SMALL));
    let stable = stabilise(&program, &candidate, &VerifyOptions::default()).unwrap();
    let text = print(&stable.graph);
    let expected = "\
  t3, t4, t5 = block [2, 8, 16] loop 4 {
    s0 = load t0 [0, -, 1] -
    s1 = load t1 [0, 2, -] 2
    s2 = load t2 [0, 1, -] 1
    s3 = matmul s0, s1
    s4 = largest(2) s3
    s5 = running_max s4
    s6 = guard s5
    s7 = sub s3, s6
    s8 = exp s7
    s9 = accumulate rescaled s5 1 s8
    s10 = matmul s8, s2
    s11 = accumulate rescaled s5 1 s10
    s12 = accumulate max s4
    store s9 [0, 2, 1]
    store s11 [0, 2, 1]
    store s12 [0, 2, 1]
  }
";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("repeat(2, 16)"), "{text}");
}

#[test]
fn one_kernel_and_plain_programs_have_stable_forms() {
    let program = resized(&program("osdi_gqa"), &SMALL);
    let fused = valid(
        "mugraph \"fused\" {\n t0 = input \"q\" [2, 32, 16]\n t1 = input \"k\" [2, 16, 256]\n \
         t2 = input \"v\" [2, 256, 16]\n t3 = block [2, 4] loop 8 {\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n \
         s2 = load t2 [0, -] 1\n s3 = matmul s0, s1\n s4 = exp s3\n s5 = sum(2) s4\n s6 = accumulate sum s5\n \
         s7 = matmul s4, s2\n s8 = accumulate sum s7\n s9 = div s8, s6\n store s9 [0, 1]\n }\n output \"o\" t3\n}\n",
    );
    for candidate in [&fused, &program] {
        let (graph, error) = stable_error(&program, candidate, Precision::F32, 30.0);
        assert!(error < 1e-5 && graph.outputs().len() == 1, "{error:e}");
    }
}

#[test]
fn causal_and_padded_masks_work() {
    let program = |mask: &str| {
        valid(&format!(
            "mugraph \"m\" {{\n t0 = input \"q\" [2, 24, 16]\n t1 = input \"k\" [2, 16, 32]\n \
             t2 = input \"v\" [2, 32, 16]\n t3 = {mask}\n t4 = matmul t0, t1\n t5 = scale(1/4) t4\n t6 = mask t5, t3\n \
             t7 = exp t6\n t8 = sum(2) t7\n t9 = div t7, t8\n t10 = matmul t9, t2\n output \"o\" t10\n}}\n"
        ))
    };
    let split = |mask: &str| {
        let heads = if mask.contains("[2,") { "0" } else { "-" };
        valid(&format!(
            "mugraph \"s\" {{\n t0 = input \"q\" [2, 24, 16]\n t1 = input \"k\" [2, 16, 32]\n \
             t2 = input \"v\" [2, 32, 16]\n t3 = {mask}\n t4, t5 = block [2, 4, 3] loop 2 {{\n s0 = load t0 [0, -, 1] -\n \
             s1 = load t1 [0, 2, -] 2\n s2 = load t2 [0, 1, -] 1\n s3 = load t3 [{heads}, 2, 1] 2\n s4 = matmul s0, s1\n \
             s5 = scale(1/4) s4\n s6 = mask s5, s3\n s7 = exp s6\n s8 = sum(2) s7\n s9 = accumulate sum s8\n \
             s10 = matmul s7, s2\n s11 = accumulate sum s10\n store s9 [0, 2, 1]\n store s11 [0, 2, 1]\n }}\n \
             t6 = sum(2) t4\n t7 = sum(2, 16) t5\n t8 = div t7, t6\n output \"o\" t8\n}}\n"
        ))
    };
    // The causal mask leaves whole splits empty for the first rows, the padded one for all.
    for mask in
        ["causal(0, 1, 24, 32)", "causal(8, 1, 24, 32)", "below(2, 13, 1, 24, 32)", "mask \"m\" [2, 24, 32]"]
    {
        for (precision, limit) in [(Precision::F16, 1e-2), (Precision::F32, 1e-5)] {
            let (_, error) = stable_error(&program(mask), &split(mask), precision, 30.0);
            assert!(error < limit, "{mask} {precision:?}: {error:e}");
        }
    }
}

#[test]
fn roots_of_sums_of_squares_are_rescaled_by_their_degree() {
    // e / sqrt(sum of e²), in a loop: the square sum has degree 2.
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"x\" [4, 32]\n t1 = input \"v\" [32, 8]\n t2 = exp t0\n t3 = square t2\n \
         t4 = sum(1) t3\n t5 = sqrt t4\n t6 = matmul t2, t1\n t7 = div t6, t5\n output \"o\" t7\n}\n",
    );
    let fused = valid(
        "mugraph \"f\" {\n t0 = input \"x\" [4, 32]\n t1 = input \"v\" [32, 8]\n t2 = block [2] loop 4 {\n \
         s0 = load t0 [0] 1\n s1 = load t1 [-] 0\n s2 = exp s0\n s3 = square s2\n s4 = sum(1) s3\n \
         s5 = accumulate sum s4\n s6 = matmul s2, s1\n s7 = accumulate sum s6\n s8 = sqrt s5\n s9 = div s7, s8\n \
         store s9 [0]\n }\n output \"o\" t2\n}\n",
    );
    let group = orch_mugraph::stabilise::analyse(&fused, (orch_mugraph::TensorId(2), Some(2))).unwrap();
    let stable = orch_mugraph::stabilise::rewrite(&fused, &group).unwrap();
    assert!(print(&stable).contains("accumulate rescaled s3 2"), "{}", print(&stable));
    let inputs = random_inputs(&program, 3, 1.0);
    let run = |graph| interpret(graph, &inputs, Precision::F64).unwrap();
    assert!(relative_error(&run(&program)[0], &run(&stable)[0]) < 1e-12);
}

/// Graphs that are refused, and the reason that is given.
#[test]
fn counter_examples_are_refused() {
    let head = "mugraph \"c\" {\n t0 = input \"x\" [4, 6]\n t1 = input \"v\" [6, 4]\n t2 = exp t0\n";
    let cases = [
        ("softmax minus one", " t3 = sum(1) t2\n t4 = offset(-1) t3\n t5 = div t2, t4\n", "adds a constant"),
        (
            "one more of each",
            " t3 = offset(1) t2\n t4 = sum(1) t2\n t5 = div t3, t4\n",
            "without the constant",
        ),
        (
            "a sink beside the sum",
            " t3 = sum(1) t2\n t4 = sum(1) t0\n t5 = add t3, t4\n t6 = div t2, t5\n",
            "adds values of different degrees",
        ),
        ("log of the sum", " t3 = sum(1) t2\n t4 = log t3\n", "not homogeneous"),
        ("unnormalised", " t3 = matmul t2, t1\n", "output o has degree 1"),
        ("gating", " t3 = mul t2, t0\n", "output o has degree 1"),
        ("sigmoid of it", " t3 = sigmoid t2\n", "not homogeneous"),
        ("nested", " t3 = exp t2\n", "not homogeneous"),
        ("relu of it", " t3 = relu t2\n t4 = sum(1) t2\n t5 = div t3, t4\n", "not homogeneous"),
        (
            "rows and columns",
            " t3 = sum(1) t2\n t4 = sum(0) t2\n t5 = div t2, t3\n t6 = div t2, t4\n t7 = add t5, t6\n",
            "over other elements",
        ),
        (
            "rows and columns multiplied",
            " t3 = sum(1) t2\n t4 = sum(0) t2\n t5 = mul t2, t2\n t6 = div t5, t3\n t7 = div t6, t4\n",
            "over other elements",
        ),
        (
            "other normalisers of one exponential",
            " t3 = sum(1) t2\n t4 = sum(0) t3\n t5 = div t2, t3\n t6 = div t2, t4\n t7 = add t5, t6\n",
            "over other elements",
        ),
        ("a subset", " t3 = slice(1, 0, 3) t2\n t4 = sum(1) t3\n t5 = div t3, t4\n", "a part"),
        (
            "a weighted subset",
            " t3 = mul t2, t0\n t4 = sum(1) t3\n t5 = div t2, t4\n",
            "more than a sum of exponentials",
        ),
        (
            "signed sums",
            " t3 = scale(2) t0\n t4 = sum(1) t2\n t5 = scale(-1) t2\n t6 = sum(1) t5\n t7 = scale(3) t4\n \
             t8 = add t7, t6\n t9 = div t2, t8\n t10 = scale(0) t3\n t11 = add t9, t10\n",
            "more than a sum of exponentials",
        ),
        (
            "a difference",
            " t3 = scale(2) t0\n t4 = exp t3\n t5 = sub t2, t4\n t6 = sum(1) t5\n t7 = div t2, t6\n",
            "adds values of different degrees",
        ),
        (
            "other rows",
            " t3 = sum(1) t2\n t4 = slice(1, 0, 1) t0\n t5 = transpose(1, 0) t3\n t6 = mul t4, t5\n t7 = div t6, t3\n",
            "different rows",
        ),
        ("a maximum of it", " t3 = largest(1) t2\n t4 = div t2, t3\n", "a maximum of"),
    ];
    for (name, body, reason) in cases {
        let last =
            body.trim().lines().last().and_then(|line| line.trim().split(' ').next()).expect("a result");
        let graph = orch_mugraph::parse(&format!("{head}{body} output \"o\" {last}\n}}\n")).unwrap();
        let place = orch_mugraph::stabilise::unstable(&graph).expect("an exponential");
        let refusal = orch_mugraph::stabilise::analyse(&graph, place);
        let message = refusal.map(|group| format!("{:?}", group.reduced)).map_err(|e| e.to_string());
        assert!(message.as_ref().is_err_and(|e| e.contains(reason)), "{name}: {message:?}");
    }
}

#[test]
fn maxima_that_stay_in_their_block_are_wrong_for_splits() {
    // The published rewriting: running maxima, but nothing beside the partial sums.
    let program = resized(&program("osdi_gqa"), &SMALL);
    let wrong = valid(
        "mugraph \"w\" {\n t0 = input \"q\" [2, 32, 16]\n t1 = input \"k\" [2, 16, 256]\n t2 = input \"v\" [2, 256, 16]\n \
         t3, t4 = block [2, 8, 16] loop 4 {\n s0 = load t0 [0, -, 1] -\n s1 = load t1 [0, 2, -] 2\n \
         s2 = load t2 [0, 1, -] 1\n s3 = matmul s0, s1\n s4 = largest(2) s3\n s5 = running_max s4\n s6 = sub s3, s5\n \
         s7 = exp s6\n s8 = sum(2) s7\n s9 = accumulate rescaled s5 1 s8\n s10 = matmul s7, s2\n \
         s11 = accumulate rescaled s5 1 s10\n store s9 [0, 2, 1]\n store s11 [0, 2, 1]\n }\n t5 = sum(2) t3\n \
         t6 = sum(2, 16) t4\n t7 = div t6, t5\n output \"o\" t7\n}\n",
    );
    let result = orch_mugraph::verify(&program, &wrong, &VerifyOptions::default());
    assert!(
        matches!(result, Err(orch_mugraph::Rejection::Different { .. })),
        "{:?}",
        result.map(|c| c.log2_bound)
    );
}

#[test]
fn programs_that_need_no_maxima_stay_as_they_are() {
    let program = resized(&program("osdi_rmsnorm"), &[(4096, 64), (6144, 96)]);
    let stable = stabilise(&program, &program, &VerifyOptions::default()).unwrap();
    assert_eq!(stable.graph, program);
    let adapter = common::program("mlp_adapter");
    let result = stabilise(&adapter, &adapter, &VerifyOptions::default());
    assert!(matches!(result, Err(Unstable::Refused(_))));
}

#[test]
fn maxima_of_softmax_plus_one_are_of_zero_too() {
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"q\" [2, 16, 16]\n t1 = input \"k\" [2, 16, 64]\n t2 = input \"v\" [2, 64, 16]\n \
         t3 = matmul t0, t1\n t4 = exp t3\n t5 = sum(2) t4\n t6 = offset(1) t5\n t7 = matmul t4, t2\n t8 = div t7, t6\n \
         output \"o\" t8\n}\n",
    );
    let fused = valid(
        "mugraph \"f\" {\n t0 = input \"q\" [2, 16, 16]\n t1 = input \"k\" [2, 16, 64]\n t2 = input \"v\" [2, 64, 16]\n \
         t3 = block [2, 4] loop 4 {\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n s2 = load t2 [0, -] 1\n \
         s3 = matmul s0, s1\n s4 = exp s3\n s5 = sum(2) s4\n s6 = accumulate sum s5\n s7 = matmul s4, s2\n \
         s8 = accumulate sum s7\n s9 = offset(1) s6\n s10 = div s8, s9\n store s10 [0, 1]\n }\n output \"o\" t3\n}\n",
    );
    for (candidate, scale) in [(&program, 30.0), (&fused, 30.0), (&fused, 1000.0)] {
        let (graph, error) = stable_error(&program, candidate, Precision::F32, scale);
        assert!(error < 1e-4 && print(&graph).contains("max "), "{error:e}");
    }
}

#[test]
fn a_maximum_of_more_than_a_row_is_refused() {
    let head = "mugraph \"m\" {\n t0 = input \"q\" [2, 16, 16]\n t1 = input \"k\" [2, 16, 64]\n \
                t2 = input \"v\" [2, 64, 16]\n";
    let program = valid(&format!(
        "{head} t3 = matmul t0, t1\n t4 = exp t3\n t5 = sum(2) t4\n t6 = div t4, t5\n t7 = matmul t6, t2\n \
         output \"o\" t7\n}}\n"
    ));
    let candidate = |largest: &str| {
        valid(&format!(
            "{head} t3 = block [2] loop 4 {{\n s0 = load t0 [0] -\n s1 = load t1 [0] 2\n s2 = load t2 [0] 1\n \
             s3 = matmul s0, s1\n s4 = largest(2) s3\n s5 = {largest}\n s6 = running_max s5\n s7 = guard s6\n \
             s8 = sub s3, s7\n s9 = exp s8\n s10 = sum(2) s9\n s11 = accumulate rescaled s6 1 s10\n s12 = matmul s9, s2\n \
             s13 = accumulate rescaled s6 1 s12\n s14 = div s13, s11\n store s14 [0]\n }}\n output \"o\" t3\n}}\n"
        ))
    };
    let (of_row, of_tile) = (candidate("scale(1) s4"), candidate("largest(1) s4"));
    // Both are right over the real numbers.
    assert!(orch_mugraph::verify(&program, &of_tile, &VerifyOptions::default()).is_ok());
    let options = VerifyOptions::default();
    assert!(stabilise(&program, &of_row, &options).is_ok());
    let message = stabilise(&program, &of_tile, &options).map(|_| ()).expect_err("it underflows").to_string();
    assert!(message.contains("more than its row"), "{message}");
    // What this crate makes passes, in one kernel and in two.
    let split = resized(&mugraph("gqa_split"), &SMALL);
    let stable = stabilise(&resized(&common::program("osdi_gqa"), &SMALL), &split, &options).unwrap();
    assert_eq!(orch_mugraph::stabilise::check_maxima(&stable.graph), Ok(()));
}
