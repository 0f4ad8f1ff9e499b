//! Regions of primitive graphs compute what their primitives compute, and are the programs that they should be.

mod common;

use common::regions::{checked, graph, ops, programs, softmax};
use orch_ir::TensorId;
use orch_mugraph::search::{SearchOptions, search};
use orch_mugraph::{Premise, Region, RegionLimits, View, regions};

/// Attention of two heads with a scale.
fn attention() -> String {
    format!(
        "graph \"attention\" {{
  input \"q\" $q: f32[2, 3, 5]
  input \"k\" $k: f32[2, 7, 5]
  input \"v\" $v: f32[2, 7, 4]
  const $c: f32[] = [0.125]
  $dots: f32[2, 3, 7] = contract $q, $k labels=\"adc,abc->adb\"
  $cs: f32[2, 3, 7] = broadcast $c dims=[]
  $scores: f32[2, 3, 7] = mul $dots, $cs
{}
  $o: f32[2, 3, 4] = contract $p, $v labels=\"abc,acd->abd\"
  output \"o\" $o
}}",
        softmax(&[2, 3, 7])
    )
}

#[test]
fn attention_is_one_region_without_its_maximum() {
    let found = checked(&attention());
    assert_eq!(found.len(), 1);
    assert_eq!(ops(&found[0].program), "matmul scale(1/8) exp sum(2) div matmul");
    assert!(found[0].subtracts_maxima && found[0].premises.is_empty());
    assert_eq!(found[0].nodes.len(), 11);
    // The view of the keys is transposed.
    assert_eq!(found[0].inputs[1].strides, [35, 1, 5]);
}

#[test]
fn half_precision_is_widened_and_rounded_at_the_ends() {
    let half = attention()
        .replace("input \"q\" $q: f32[2, 3, 5]", "input \"q\" $q16: f16[2, 3, 5]")
        .replace("  $dots:", "  $q: f32[2, 3, 5] = cast.f32 $q16\n  $dots:")
        .replace("  output \"o\" $o", "  $o16: f16[2, 3, 4] = cast.f16 $o\n  output \"o\" $o16");
    let graph = graph(&half);
    let found = regions(&graph, &RegionLimits::default());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].inputs[0].tensor, found[0].output.tensor), (graph.inputs[0].1, graph.outputs[0].1));
    assert_eq!(ops(&found[0].program), "matmul scale(1/8) exp sum(2) div matmul");
}

/// A copy of an input, which a kernel of its own may store as f16: one region reads the input, another one the copy.
#[test]
fn copies_are_read_or_what_they_copy() {
    let copied = attention()
        .replace("  $dots:", "  $copy: f32[2, 7, 4] = cast.f32 $v\n  $dots:")
        .replace("contract $p, $v", "contract $p, $copy");
    let found = checked(&copied);
    let [own, of_copy] = found.as_slice() else { panic!("{} regions", found.len()) };
    assert_eq!(own.program, of_copy.program);
    assert_ne!(own.inputs[2].tensor, of_copy.inputs[2].tensor);
    assert_eq!(own.nodes.len(), of_copy.nodes.len() + 1);
}

#[test]
fn maxima_that_cannot_be_put_back_are_refused() {
    let other = attention().replace("reduce.max $scores", "reduce.max $dots");
    assert!(programs(&other).is_empty(), "the maximum of another tensor");
    let columns = attention()
        .replace(
            "$max: f32[2, 3] = reduce.max $scores axes=[2]",
            "$max: f32[2, 7] = reduce.max $scores axes=[1]",
        )
        .replace("broadcast $max dims=[0, 1]", "broadcast $max dims=[0, 2]");
    assert!(programs(&columns).is_empty(), "a maximum that differs among what is summed");
    let all = attention()
        .replace(
            "$max: f32[2, 3] = reduce.max $scores axes=[2]",
            "$max: f32[2] = reduce.max $scores axes=[1, 2]",
        )
        .replace("broadcast $max dims=[0, 1]", "broadcast $max dims=[0]");
    assert_eq!(programs(&all), ["matmul scale(1/8) exp sum(2) div matmul"], "one maximum of several rows");
    let sum = attention().replace("div $exp, $sums", "add $exp, $sums");
    assert!(programs(&sum).is_empty(), "of degree 1 in the exponential");
    // Without any maximum, exponentials of degree 1 remain.
    let is_kept = |line: &&str| !["$max", "$wide", "$less"].iter().any(|name| line.trim().starts_with(name));
    let plain: Vec<&str> = sum.lines().filter(is_kept).collect();
    let plain = plain.join("\n").replace("exp $less", "exp $scores");
    assert_eq!(programs(&plain), ["matmul scale(1/8) exp sum(2) add matmul"]);
}

#[test]
fn heads_are_views_and_masks_may_hide_rows() {
    // As BERT: heads within a row, a mask of keys that is added, and NaN replaced by 0.
    let text = format!(
        "graph \"bert\" {{
  input \"q\" $q: f32[1, 6, 15]
  input \"k\" $k: f32[1, 6, 15]
  input \"v\" $v: f32[1, 6, 15]
  input \"mask\" $m: f32[1, 6]
  const $c: f32[] = [0.0]
  $qs: f32[1, 6, 3, 5] = reshape $q
  $ks: f32[1, 6, 3, 5] = reshape $k
  $vs: f32[1, 6, 3, 5] = reshape $v
  $dots: f32[1, 3, 6, 6] = contract $qs, $ks labels=\"eadc,ebdc->edab\"
  $mask: f32[1, 3, 6, 6] = broadcast $m dims=[0, 3]
  $scores: f32[1, 3, 6, 6] = add $dots, $mask
{}
  $nan: bool[1, 3, 6, 6] = is_nan $p
  $zero: f32[1, 3, 6, 6] = broadcast $c dims=[]
  $safe: f32[1, 3, 6, 6] = select $nan, $zero, $p
  $heads: f32[1, 6, 3, 5] = contract $safe, $vs labels=\"edac,ecdb->eadb\"
  $o: f32[1, 6, 15] = reshape $heads
  output \"o\" $o
}}",
        softmax(&[1, 3, 6, 6])
    );
    let found = checked(&text);
    assert_eq!(found.len(), 1);
    assert_eq!(ops(&found[0].program), "matmul add exp sum(2) div matmul");
    assert_eq!(found[0].premises, [Premise::HiddenRowsAreZero]);
    assert_eq!(found[0].inputs[0], View { tensor: TensorId(0), strides: vec![5, 15, 1], offset: 0 });
    assert_eq!(found[0].inputs[2], View { tensor: TensorId(3), strides: vec![0, 0, 1], offset: 0 });
    assert_eq!(found[0].output.strides, [5, 15, 1]);
}

#[test]
fn repeated_heads_are_read_once() {
    // As Llama: each of 2 heads of keys and values serves 3 heads of queries.
    let text = format!(
        "graph \"gqa\" {{
  input \"q\" $q: f32[1, 4, 6, 5]
  input \"k\" $k: f32[1, 2, 7, 5]
  input \"v\" $v: f32[1, 2, 7, 5]
  $qs: f32[1, 6, 4, 5] = transpose $q perm=[0, 2, 1, 3]
  $k3: f32[1, 2, 3, 7, 5] = broadcast $k dims=[0, 1, 3, 4]
  $ks: f32[1, 6, 7, 5] = reshape $k3
  $v3: f32[1, 2, 3, 7, 5] = broadcast $v dims=[0, 1, 3, 4]
  $vs: f32[1, 6, 7, 5] = reshape $v3
  $scores: f32[1, 6, 4, 7] = contract $qs, $ks labels=\"edac,edbc->edab\"
{}
  $o: f32[1, 6, 4, 5] = contract $p, $vs labels=\"edac,edcb->edab\"
  output \"o\" $o
}}",
        softmax(&[1, 6, 4, 7])
    );
    let found = checked(&text);
    assert_eq!(found.len(), 1);
    let program = &found[0].program;
    assert_eq!(ops(program), "matmul exp sum(3) div matmul");
    let shapes: Vec<&[usize]> = program.inputs().map(|(id, _, _)| program.shape(id)).collect();
    assert_eq!(shapes, [&[2, 3, 4, 5][..], &[2, 1, 5, 7], &[2, 1, 7, 5]]);
}

/// Attention of one head, with statements that compute `$scores` from `$dots`.
fn masked(declared: &str, statement: &str) -> String {
    format!(
        "graph \"masked\" {{
  input \"q\" $q: f32[4, 5]
  input \"k\" $k: f32[4, 5]
  input \"v\" $v: f32[4, 3]
  {declared}
  $dots: f32[4, 4] = contract $q, $k labels=\"ac,bc->ab\"
  {statement}
{}
  $o: f32[4, 3] = contract $p, $v labels=\"ac,cb->ab\"
  output \"o\" $o
}}",
        softmax(&[4, 4])
    )
}

#[test]
fn masks_are_causal_or_inputs() {
    let values = "[0, -inf, -inf, -inf, 0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0]";
    let added = masked(&format!("const $m: f32[4, 4] = {values}"), "$scores: f32[4, 4] = add $dots, $m");
    assert_eq!(programs(&added), ["matmul causal(0, 4, 4) mask exp sum(1) div matmul"]);
    let other = added.replace("[0, -inf, -inf, -inf, 0,", "[0, -inf, -inf, 0, 0,");
    assert_eq!(programs(&other), ["matmul add exp sum(1) div matmul"]);
    let chosen = masked(
        "input \"keep\" $m: bool[4, 4]\n  const $c: f32[] = [-inf]",
        "$low: f32[4, 4] = broadcast $c dims=[]\n  $scores: f32[4, 4] = select $m, $dots, $low",
    );
    assert_eq!(programs(&chosen), ["matmul mask exp sum(1) div matmul"]);
    assert_eq!(checked(&chosen)[0].premises, []);
    assert_eq!(checked(&chosen.replace("-inf", "-1e30"))[0].premises, [Premise::RowsAreSeen]);
}

/// A mask of 0 and a low number that a graph computes from a condition and adds is one of the condition. One that hides no row needs
/// no premise.
#[test]
fn masks_that_are_computed_are_conditions() {
    let computed = |low: &str, comparison: &str| {
        masked(
            &format!("const $c: f32[] = [{low}]\n  const $n: f32[] = [0]"),
            &format!(
                "$i: i64[4, 4] = iota axis=0\n  $j: i64[4, 4] = iota axis=1\n  $m: bool[4, 4] = {comparison}\n  \
                 $low: f32[4, 4] = broadcast $c dims=[]\n  $none: f32[4, 4] = broadcast $n dims=[]\n  \
                 $added: f32[4, 4] = select $m, $none, $low\n  $scores: f32[4, 4] = add $dots, $added"
            ),
        )
    };
    let premises = |low: &str, comparison: &str| {
        let is_masked = |region: &Region| ops(&region.program) == "matmul mask exp sum(1) div matmul";
        let found = regions(&graph(&computed(low, comparison)), &RegionLimits::default());
        let masked = found.into_iter().find(is_masked);
        masked.expect("a region with the condition").premises
    };
    for low in ["-inf", "-1e30"] {
        assert_eq!(premises(low, "le $j, $i"), []);
        checked(&computed(low, "le $j, $i"));
    }
    // The first row sees nothing.
    assert_eq!(premises("-1e30", "lt $j, $i"), [Premise::RowsAreSeen]);
}

/// The root mean square norm of `$x`, with weights: `$normed`.
fn norm(rows: usize, columns: usize) -> String {
    let (vector, matrix) = (format!("f32[1, {rows}]"), format!("f32[1, {rows}, {columns}]"));
    format!(
        "  $squares: {matrix} = mul $x, $x
  $total: {vector} = reduce.sum $squares axes=[2]
  $shares: {vector} = broadcast $share dims=[]
  $mean: {vector} = mul $total, $shares
  $epss: {vector} = broadcast $eps dims=[]
  $above: {vector} = add $mean, $epss
  $root: {vector} = sqrt $above
  $factor: {vector} = recip $root
  $factors: {matrix} = broadcast $factor dims=[0, 1]
  $unit: {matrix} = mul $x, $factors
  $weights: {matrix} = broadcast $w dims=[2]
  $normed: {matrix} = mul $unit, $weights"
    )
}

/// A norm followed by `statements`, which read `$normed`, `$a` and `$b`.
fn normed(statements: &str) -> String {
    format!(
        "graph \"normed\" {{
  input \"x\" $x: f32[1, 6, 8]
  input \"w\" $w: f32[8]
  input \"a\" $a: f32[8, 5]
  input \"b\" $b: f32[8, 5]
  const $share: f32[] = [0.125]
  const $eps: f32[] = [0.0625]
  const $one: f32[] = [1.0]
{}
{statements}
}}",
        norm(6, 8)
    )
}

#[test]
fn a_norm_that_products_share_is_part_of_each() {
    let text = normed(
        "  $left: f32[1, 6, 5] = contract $normed, $a labels=\"dac,cb->dab\"
  $right: f32[1, 6, 5] = contract $normed, $b labels=\"dac,cb->dab\"
  output \"left\" $left
  output \"right\" $right",
    );
    assert_eq!(programs(&text), ["rms_norm(1/16) mul matmul"; 2]);
    let [left, right] = &checked(&text)[..] else { panic!("two regions") };
    assert!(left.program == right.program, "what they read does not tell programs apart");
    assert_ne!(left.inputs, right.inputs);
}

#[test]
fn gated_units_are_one_region() {
    let text = normed(
        "  $gate: f32[1, 6, 5] = contract $normed, $a labels=\"dac,cb->dab\"
  $minus: f32[1, 6, 5] = neg $gate
  $power: f32[1, 6, 5] = exp $minus
  $ones: f32[1, 6, 5] = broadcast $one dims=[]
  $below: f32[1, 6, 5] = add $power, $ones
  $silu: f32[1, 6, 5] = div $gate, $below
  $up: f32[1, 6, 5] = contract $normed, $b labels=\"dac,cb->dab\"
  $o: f32[1, 6, 5] = mul $silu, $up
  output \"o\" $o",
    );
    let found = programs(&text);
    assert!(found.contains(&"matmul silu matmul mul".to_owned()), "{found:?}");
    assert!(found.contains(&"rms_norm(1/16) mul matmul silu matmul mul".to_owned()), "{found:?}");
}

#[test]
fn gaussian_units_are_recognised() {
    let text = normed(
        "  $y: f32[1, 6, 5] = contract $normed, $a labels=\"dac,cb->dab\"
  $square: f32[1, 6, 5] = mul $y, $y
  $cube: f32[1, 6, 5] = mul $square, $y
  $thirds: f32[1, 6, 5] = broadcast $c3 dims=[]
  $third: f32[1, 6, 5] = mul $cube, $thirds
  $inner: f32[1, 6, 5] = add $y, $third
  $roots: f32[1, 6, 5] = broadcast $c1 dims=[]
  $scaled: f32[1, 6, 5] = mul $inner, $roots
  $tanh: f32[1, 6, 5] = tanh $scaled
  $ones: f32[1, 6, 5] = broadcast $one dims=[]
  $above1: f32[1, 6, 5] = add $tanh, $ones
  $halves: f32[1, 6, 5] = broadcast $half dims=[]
  $y2: f32[1, 6, 5] = mul $y, $halves
  $o: f32[1, 6, 5] = mul $y2, $above1
  output \"o\" $o",
    );
    let text = text.replace(
        "  const $one",
        "  const $half: f32[] = [0.5]
  const $c1: f32[] = [0.7978845834732056]
  const $c3: f32[] = [0.044714998453855515]
  const $one",
    );
    assert_eq!(programs(&text).last().map(String::as_str), Some("rms_norm(1/16) mul matmul gelu"));
}

#[test]
fn layer_norms_are_root_mean_square_norms_of_what_is_centred() {
    let text = "graph \"layer norm\" {
  input \"x\" $x: f32[1, 6, 10]
  input \"w\" $w: f32[10, 7]
  const $n: f32[] = [10.0]
  const $eps: f32[] = [0.0625]
  $total: f32[1, 6] = reduce.sum $x axes=[2]
  $ns: f32[1, 6] = broadcast $n dims=[]
  $mean: f32[1, 6] = div $total, $ns
  $means: f32[1, 6, 10] = broadcast $mean dims=[0, 1]
  $centred: f32[1, 6, 10] = sub $x, $means
  $squares: f32[1, 6, 10] = mul $centred, $centred
  $power: f32[1, 6] = reduce.sum $squares axes=[2]
  $variance: f32[1, 6] = div $power, $ns
  $epss: f32[1, 6] = broadcast $eps dims=[]
  $above: f32[1, 6] = add $variance, $epss
  $root: f32[1, 6] = sqrt $above
  $factor: f32[1, 6] = recip $root
  $factors: f32[1, 6, 10] = broadcast $factor dims=[0, 1]
  $normed: f32[1, 6, 10] = mul $centred, $factors
  $o: f32[1, 6, 7] = contract $normed, $w labels=\"dac,cb->dab\"
  output \"o\" $o
}";
    let alone = "sum(1) scale(1/10) sub rms_norm(1/16)";
    assert_eq!(programs(text), [alone.to_owned(), format!("{alone} matmul")]);
}

#[test]
fn norms_of_queries_belong_to_attention() {
    let text = format!(
        "graph \"query norm\" {{
  input \"x\" $x: f32[1, 6, 8]
  input \"w\" $w: f32[8]
  input \"k\" $k: f32[1, 7, 8]
  input \"v\" $v: f32[1, 7, 8]
  const $share: f32[] = [0.125]
  const $eps: f32[] = [0.0625]
{}
  $scores: f32[1, 6, 7] = contract $normed, $k labels=\"dac,dbc->dab\"
{}
  $o: f32[1, 6, 8] = contract $p, $v labels=\"dac,dcb->dab\"
  output \"o\" $o
}}",
        norm(6, 8),
        softmax(&[1, 6, 7])
    );
    let expected = ["matmul exp sum(1) div matmul", "rms_norm(1/16) mul matmul exp sum(1) div matmul"];
    assert_eq!(programs(&text), expected);
    // Norms of keys are along the rows of the product's operand.
    let keys = text.replace("contract $normed, $k labels=\"dac,dbc", "contract $k, $normed labels=\"dbc,dac");
    assert_eq!(programs(&keys), expected);
}

#[test]
fn low_rank_products_are_taken_in() {
    let lora = "graph \"lora\" {
  input \"x\" $x: f32[2, 16]
  input \"w\" $w: f32[16, 9]
  input \"a\" $a: f32[16, 3]
  input \"b\" $b: f32[3, 9]
  $low: f32[2, 3] = contract $x, $a labels=\"ac,cb->ab\"
  $step: f32[2, 9] = contract $low, $b labels=\"ac,cb->ab\"
  $full: f32[2, 9] = contract $x, $w labels=\"ac,cb->ab\"
  $o: f32[2, 9] = add $full, $step
  output \"o\" $o
}";
    assert_eq!(programs(lora).last().map(String::as_str), Some("matmul matmul matmul add"));
    let adapter = "graph \"adapter\" {
  input \"x\" $x: f32[2, 16]
  input \"a\" $a: f32[16, 3]
  input \"b\" $b: f32[3, 16]
  const $c: f32[] = [0.0]
  $low: f32[2, 3] = contract $x, $a labels=\"ac,cb->ab\"
  $zero: f32[2, 3] = broadcast $c dims=[]
  $relu: f32[2, 3] = max $low, $zero
  $o: f32[2, 16] = contract $relu, $b labels=\"ac,cb->ab\"
  output \"o\" $o
}";
    assert_eq!(programs(adapter), ["matmul relu matmul"]);
    assert_eq!(programs(&adapter.replace("max $low, $zero", "exp $low")), ["matmul exp matmul"]);
    assert!(programs(&adapter.replace("[2, ", "[9, ")).is_empty(), "results as large as the weights");
}

#[test]
fn branches_are_summed_before_a_product() {
    // As SKNet: concatenated branches are summed, averaged over the image, and squeezed. All tensors of a program have
    // a dimension of branches, which has extent 1 in the result.
    let text = "graph \"selective kernel\" {
  input \"x\" $x: f32[3, 2, 6, 4, 4]
  input \"w\" $w: f32[7, 6]
  const $c: f32[] = [0.0625]
  $both: f32[3, 6, 4, 4] = reduce.sum $x axes=[1]
  $sum: f32[3, 6] = reduce.sum $both axes=[2, 3]
  $cs: f32[3, 6] = broadcast $c dims=[]
  $mean: f32[3, 6] = mul $sum, $cs
  $o: f32[3, 7] = contract $mean, $w labels=\"ac,bc->ab\"
  output \"o\" $o
}";
    let found = checked(text);
    assert_eq!(ops(&found[1].program), "sum(1) sum(2) matmul scale(1/16)");
    assert_eq!(found[1].inputs[0].strides, [192, 96, 1, 16]);
    assert_eq!(found[1].output.strides, [7, 0, 0, 1]);
}

#[test]
fn what_both_operands_repeat_is_summed_as_often() {
    let text = "graph \"repeated\" {
  input \"x\" $x: f32[2, 6]
  input \"y\" $y: f32[6, 7]
  $part: f32[6] = reduce.sum $x axes=[0]
  $xs: f32[3, 6] = broadcast $part dims=[1]
  $ys: f32[3, 6, 7] = broadcast $y dims=[1, 2]
  $o: f32[7] = contract $xs, $ys labels=\"ac,acb->b\"
  output \"o\" $o
}";
    assert_eq!(programs(text), ["sum(0) matmul scale(3)"]);
}

#[test]
fn different_labels_of_a_product_are_different_indices() {
    // The second operand is repeated along its last dimension, which has the label of the first operand's rows, not of
    // its columns.
    let text = "graph \"diagonal\" {
  input \"x\" $x: f32[3, 3, 4]
  $xs: f32[3, 3, 4, 3] = broadcast $x dims=[0, 1, 2]
  $sum: f32[3, 4, 3] = reduce.sum $xs axes=[0]
  $o: f32[3, 3] = contract $sum, $xs labels=\"abc,cdba->dc\"
  output \"o\" $o
}";
    assert!(programs(text).is_empty());
}

#[test]
fn normalised_steps_are_one_region() {
    let text = "graph \"step\" {
  input \"h\" $h: f32[3, 16]
  input \"x\" $x: f32[3, 16]
  input \"alpha\" $alpha: f32[16]
  const $c: f32[] = [1e-12]
  $squares: f32[3, 16] = mul $h, $h
  $total: f32[3] = reduce.sum $squares axes=[1]
  $length: f32[3] = sqrt $total
  $least: f32[3] = broadcast $c dims=[]
  $bounded: f32[3] = max $length, $least
  $lengths: f32[3, 16] = broadcast $bounded dims=[0]
  $unit: f32[3, 16] = div $h, $lengths
  $way: f32[3, 16] = sub $unit, $x
  $alphas: f32[3, 16] = broadcast $alpha dims=[1]
  $part: f32[3, 16] = mul $alphas, $way
  $next: f32[3, 16] = add $x, $part
  $squares2: f32[3, 16] = mul $next, $next
  $total2: f32[3] = reduce.sum $squares2 axes=[1]
  $length2: f32[3] = sqrt $total2
  $bounded2: f32[3] = max $length2, $least
  $lengths2: f32[3, 16] = broadcast $bounded2 dims=[0]
  $o: f32[3, 16] = div $next, $lengths2
  output \"o\" $o
}";
    let found = checked(text);
    assert_eq!(found.len(), 1);
    assert_eq!(ops(&found[0].program), "rms_norm(0) scale(1/4) sub mul add rms_norm(0) scale(1/4)");
    assert!(matches!(found[0].premises[..], [Premise::LongerThan(bound)] if bound < 1.1e-12));
}

#[test]
fn what_templates_serve_best_is_left_to_them() {
    let plain = "graph \"plain\" {
  input \"x\" $x: f32[6, 16]
  input \"w\" $w: f32[16, 9]
  $dots: f32[6, 9] = contract $x, $w labels=\"ac,cb->ab\"
  $o: f32[6, 9] = tanh $dots
  output \"o\" $o
}";
    assert!(programs(plain).is_empty());
}

#[test]
fn what_is_found_is_searched() {
    let found = regions(&graph(&attention()), &RegionLimits::default());
    let options = SearchOptions { kernels: 1, ..SearchOptions::default() };
    let (candidates, _) = search(&found[0].program, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(!candidates.is_empty());
}
