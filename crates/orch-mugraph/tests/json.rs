//! The published saved form is read, malformed input is refused with its position, and our own form is written.

mod common;

use common::program;
use common::saved::{NONE, SavedGraph};
use common::saved_form::{import_saved, to_json};
use common::saved_sets::good_sets;
use common::wrong_qknorm::{Extents, Logits, forms};
use orch_mugraph::{parse, print};
use serde_json::{Value, json};

/// `exp(x) / sum(exp(x))` of `[4, 8]`, in a kernel of two blocks that sees two columns at a time, and a predefined one.
fn softmax() -> Value {
    let mut graph = SavedGraph::new(4);
    let x = graph.input(&[4, 8]);
    let e = graph.op("exp", &[&x]);
    let mut block = graph.kernel([2, 1, 1], 4);
    let tile = block.load(&x, [0, NONE, NONE], 1);
    let tile = block.op("exp", &[&tile]);
    let sum = block.op("accum_red_ld_sum", &[&tile]);
    block.store(&sum, [0, NONE, NONE]);
    let [sum] = block.finish();
    let o = graph.op("div", &[&e, &sum]);
    graph.output(&o)
}

#[test]
fn a_saved_graph_is_read() {
    let graphs = import_saved(&json!([softmax()]).to_string()).unwrap();
    let expected = "\
mugraph \"saved\" {
  t0 = input \"x0\" [4, 8]
  t1 = exp t0
  t2 = block [2, 1, 1] loop 4 {
    s0 = load t0 [0, -, -] 1
    s1 = exp s0
    s2 = sum(1) s1
    s3 = accumulate sum s2
    store s3 [0, -, -]
  }
  t3 = div t1, t2
  output \"o0\" t3
}
";
    assert_eq!(graphs.iter().map(print).collect::<String>(), expected);
}

#[test]
fn accumulators_and_operators_of_the_saved_form_are_taken_apart() {
    let mut graph = SavedGraph::new(2);
    let (x, y) = (graph.input(&[4, 8]), graph.input(&[8, 6]));
    let mut block = graph.kernel([1, 1, 1], 2);
    let (tile, other) = (block.load(&x, [NONE; 3], 1), block.load(&y, [NONE; 3], 0));
    let kept = block.op("accum_redtox_ld_sum", &[&tile]);
    let mean = block.op("accum_red_ld_mean", &[&tile]);
    let rms = block.op("accum_red_ld_rms", &[&tile]);
    let joined = block.op("concat_then_matmul", &[&tile, &tile, &other, &other]);
    let joined = block.op("accum_nored", &[&joined]);
    let joined = block.op("reduction_1_to_dimx", &[&joined]);
    let norms = block.op("add", &[&mean, &rms]);
    let sum = block.op("mul", &[&kept, &norms]);
    let sum = block.op("add", &[&sum, &joined]);
    block.store(&sum, [NONE; 3]);
    let [o] = block.finish();
    let graph = graph.output(&o);
    let imported = import_saved(&json!([graph]).to_string()).unwrap();
    let printed = print(&imported[0]);
    let tiles: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("    s")).collect();
    let expected = [
        "0 = load t0 [-, -, -] 1",
        "1 = load t1 [-, -, -] 0",
        "2 = sum(1, 2) s0",
        "3 = accumulate sum s2",
        "4 = sum(1) s0",
        "5 = accumulate sum s4",
        "6 = scale(1/8) s5",
        "7 = square s0",
        "8 = sum(1) s7",
        "9 = accumulate sum s8",
        "10 = scale(1/8) s9",
        "11 = sqrt s10",
        "12 = concat(1) s0, s0",
        "13 = concat(0) s1, s1",
        "14 = matmul s12, s13",
        "15 = accumulate sum s14",
        "16 = sum(1, 2) s15",
        "17 = add s6, s11",
        "18 = mul s3, s17",
        "19 = add s18, s16",
        "tore s19 [-, -, -]",
    ];
    assert_eq!(tiles, expected);
}

/// The error message for the softmax in which the value at a path is replaced.
fn refusal(path: &str, value: Value) -> String {
    let mut set = json!([softmax()]);
    *set.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
    import_saved(&set.to_string()).unwrap_err().to_string()
}

#[test]
fn malformed_operators_are_refused_with_place_and_expectation() {
    let exp = "/0/1";
    let block = "/0/2/bgraph";
    let at = |parent: &str, path: &str| format!("{parent}{path}");
    let cases = [
        // Unknown operators.
        (
            at(exp, "/op_type"),
            json!("kn_frob_op"),
            "saved graph 0, operator 1 (kn_frob_op): no operator frob with a result of shape [4, 8]; there are matmul, ",
        ),
        (
            at(block, "/operators/2/op_type"),
            json!("tb_accum_frob_op"),
            "saved graph 0, operator 2 (kn_customized_op), tile operator 2 (tb_accum_frob_op): no accumulator frob; \
             there are nored, ",
        ),
        (at(exp, "/op_type"), json!(7), "saved graph 0, operator 1: expected a text op_type"),
        // Wrong shapes.
        (
            at(exp, "/output_tensors/0/dim/1"),
            json!(9),
            "saved graph 0, operator 1 (kn_exp_op): a tensor of shape [4, 8], saved as [4, 9]",
        ),
        (
            at(block, "/operators/2/output_tensors/0/dim/0"),
            json!(3),
            "saved graph 0, operator 2 (kn_customized_op), tile operator 2 (tb_accum_red_ld_sum_op): a tensor of shape \
             [2, 1], saved as [3, 1]",
        ),
        (
            at("/0/2", "/output_tensors/0/dim/0"),
            json!(2),
            "saved graph 0, operator 2 (kn_customized_op): a tensor of shape [4, 1], saved as [2, 1]",
        ),
        (
            at(exp, "/output_tensors/0/num_dims"),
            json!(5),
            "saved graph 0, operator 1 (kn_exp_op): expected a shape: num_dims, and as many extents up to 4294967296",
        ),
        (
            at("/0/0", "/output_tensors/0/dim/0"),
            json!(u64::MAX),
            "saved graph 0, operator 0 (kn_input_op): expected a shape",
        ),
        // Cycles, and operators out of order.
        (
            at(exp, "/input_tensors/0/guid"),
            softmax()[1]["output_tensors"][0]["guid"].clone(),
            "saved graph 0, operator 1 (kn_exp_op): tensor 12 is defined by no operator before: expected operators in \
             order, without cycles",
        ),
        (
            at(block, "/operators/1/input_tensors/0/guid"),
            softmax()[2]["bgraph"]["operators"][2]["output_tensors"][0]["guid"].clone(),
            "saved graph 0, operator 2 (kn_customized_op), tile operator 1 (tb_exp_op): tile 15 is defined by no operator \
             before",
        ),
        (
            at(exp, "/output_tensors/0/guid"),
            json!(11),
            "saved graph 0, operator 1 (kn_exp_op): tensor 11 is defined twice",
        ),
        // Maps, grids and loops.
        (
            at(block, "/operators/0/input_map/x"),
            json!(2),
            "saved graph 0, operator 2 (kn_customized_op), tile operator 0 (tb_input_op): partitions dimension 2 of a \
             tensor of shape [4, 8]",
        ),
        (
            at(block, "/operators/0/forloop_dim"),
            json!(-2),
            "saved graph 0, operator 2 (kn_customized_op), tile operator 0 (tb_input_op): expected a dimension, or -1 for \
             none, in forloop_dim",
        ),
        (
            at(block, "/grid_dim/x"),
            json!(0),
            "saved graph 0, operator 2 (kn_customized_op): a grid of [0, 1, 1] and a loop of 4; expected 1 to ",
        ),
        (
            at(block, "/operators/3/output_map/x"),
            json!(-1),
            "saved graph 0, operator 2 (kn_customized_op): t2, s3: grid [None, None, None] lets several blocks store",
        ),
        (
            at(block, "/operators/3/dtensor/guid"),
            json!(11),
            "saved graph 0, operator 2 (kn_customized_op): stores tensor 11 at another position than output_tensors says",
        ),
        // Missing and excess operands and results.
        (
            at(exp, "/input_tensors"),
            json!([]),
            "saved graph 0, operator 1 (kn_exp_op): 0 operands, expected 1",
        ),
        (
            at(exp, "/output_tensors"),
            json!([]),
            "saved graph 0, operator 1 (kn_exp_op): 0 results, expected 1",
        ),
        (
            at("/0/2", "/output_tensors"),
            json!([]),
            "saved graph 0, operator 2 (kn_customized_op): makes 1 tensors, 0 are saved",
        ),
        (
            at("/0/2", "/bgraph"),
            Value::Null,
            "saved graph 0, operator 2 (kn_customized_op): expected a number x",
        ),
        ("/0".into(), json!({}), "saved graph 0: expected a list of operators"),
        ("/0".into(), json!([]), "saved graph 0: expected a kn_output_op"),
        (String::new(), json!({}), "saved set: expected a list of graphs"),
    ];
    for (path, value, expected) in cases {
        let message = refusal(&path, value);
        assert!(message.starts_with(expected), "{path}: {message}");
    }
}

#[test]
fn a_set_that_is_cut_short_is_refused_wherever_it_ends() {
    let text = json!([softmax()]).to_string();
    for end in 0..text.len() {
        let error = import_saved(&text[..end]).unwrap_err();
        assert_eq!(error.place, "saved set");
        assert!(error.problem.ends_with("expected the JSON of a whole set"), "{error}");
    }
}

/// The paths of all values within a value.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                paths(item, &format!("{path}/{at}"), found);
            }
        }
        Value::Object(entries) => {
            for (key, item) in entries {
                paths(item, &format!("{path}/{key}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn changes_of_one_value_are_read_or_refused() {
    let lora = good_sets().into_iter().find(|set| set.name == "lora").unwrap();
    let graphs =
        [softmax(), lora.graphs[3].clone(), forms()[0].graph(Extents::small(1), Logits::SumTimesRow)];
    let replacements = [
        Value::Null,
        json!([]),
        json!({}),
        json!("tb_matmul_op"),
        json!("kn_concat_0_op"),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(u64::MAX),
    ];
    let (mut read, mut refused) = (0, 0);
    for graph in graphs {
        let mut found = Vec::new();
        paths(&graph, "", &mut found);
        for path in &found {
            for replacement in &replacements {
                let mut changed = graph.clone();
                *changed.pointer_mut(path).unwrap() = replacement.clone();
                match import_saved(&json!([changed]).to_string()) {
                    Ok(graphs) => {
                        read += 1;
                        let text = print(&graphs[0]);
                        assert_eq!(parse(&text).as_ref(), Ok(&graphs[0]), "{path}: {replacement}");
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.place.starts_with("saved graph 0"), "{path}: {replacement}: {error}");
                    }
                }
            }
        }
    }
    assert!(read > 0 && refused > 3 * read, "{read} read, {refused} refused");
}

#[test]
fn our_form_lists_nodes_shapes_and_outputs() {
    let json = to_json(&program("osdi_lora"));
    assert_eq!(json["nodes"].as_array().unwrap().len(), 8);
    assert_eq!(json["shapes"][7], json!([16, 4096]));
    assert_eq!(json["outputs"][0], json!(["o", 7]));
}
