use super::*;
use crate::Layout;
use crate::block::interp::interpret_block;
use crate::block::validate::validate_block;
use crate::fuse::build;
use orch_ir::text::parse;
use orch_ir::{PrimGraph, Tensor, TensorId};

/// Inputs, then primitives and outputs, as one block program.
fn block(text: &str) -> (PrimGraph, BlockProgram) {
    let graph =
        parse(&format!("graph \"g\" {{\n{text}}}\n")).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let nodes: Vec<_> = graph.node_ids().collect();
    let outputs: Vec<TensorId> = graph.outputs.iter().map(|(_, tensor)| *tensor).collect();
    let layouts = |tensor: TensorId| Layout::row_major(graph.shape(tensor).rank());
    let block = build(&graph, &nodes, &outputs, &layouts, "k").unwrap();
    (graph, block)
}

/// The program that updates inputs by outputs of these names.
fn updated(text: &str, pairs: &[(&str, &str)]) -> Option<BlockProgram> {
    let (graph, plain) = block(text);
    let mut block = plain.clone();
    for (input, output) in pairs {
        let named =
            |list: &[(String, TensorId)], name: &str| list.iter().find(|(known, _)| known == name).unwrap().1;
        let argument = |tensor| ArgId::new(block.args.iter().position(|arg| arg.tensor == tensor).unwrap());
        let ends = [named(&graph.inputs, input), named(&graph.outputs, output)].map(argument);
        block = block.updated(ends[0], ends[1])?;
    }
    assert_eq!(validate_block(&block), Vec::<String>::new(), "{block}");
    check(&graph, &plain, &block, pairs);
    Some(block)
}

/// Both programs give the same, where updated arguments hold the values of their inputs.
fn check(graph: &PrimGraph, plain: &BlockProgram, updated: &BlockProgram, pairs: &[(&str, &str)]) {
    let values: Vec<Tensor> = (graph.inputs.iter().enumerate())
        .map(|(number, (_, tensor))| {
            let shape = graph.shape(*tensor);
            let value = |at: usize| ((at * 7 + number * 3) % 11) as f64 - 4.0;
            let values: Vec<f64> = (0..shape.elems()).map(value).collect();
            Tensor::from_f64(graph.dtype(*tensor), shape.clone(), &values)
        })
        .collect();
    let given = |block: &BlockProgram| -> Vec<Option<Tensor>> {
        let value = |tensor: TensorId| {
            let output = graph.outputs.iter().find(|(_, output)| *output == tensor);
            let old = output.and_then(|(name, _)| pairs.iter().find(|(_, output)| output == name));
            let is_it = |(name, input): &(String, TensorId)| {
                *input == tensor || old.is_some_and(|(old, _)| old == name)
            };
            graph.inputs.iter().position(is_it).map(|number| values[number].clone())
        };
        block.args.iter().map(|arg| value(arg.tensor)).collect()
    };
    let [expected, found] = [plain, updated].map(|block| interpret_block(block, &given(block)).unwrap());
    assert_eq!(found, expected, "{updated}");
}

/// `new` in the row `at` of `old`.
const CACHE: &str = "  input \"old\" t0: f32[2, 5, 3]
  input \"new\" t1: f32[2, 3]
  input \"at\" t2: i64[]
  const t3: i64[] = [0]
  const t4: i64[] = [4]
  t5: i64[] = max t2, t3
  t6: i64[] = min t5, t4
  t7: i64[2, 5, 3] = broadcast t6 dims=[]
  t8: i64[2, 5, 3] = iota axis=1
  t9: bool[2, 5, 3] = eq t7, t8
  t10: f32[2, 5, 3] = broadcast t1 dims=[0, 2]
  t11: f32[2, 5, 3] = select t9, t10, t0
  output \"y\" t11
";

fn domain_of(block: &BlockProgram, output: usize) -> usize {
    let store = block.stages.iter().find(|stage| stage.stores(ArgId::new(output))).unwrap();
    store.axes().iter().map(|&axis| block.extent(axis)).product()
}

fn position(block: &BlockProgram, role: ArgRole) -> usize {
    block.args.iter().position(|arg| arg.role == role).unwrap()
}

/// As PyTorch's `index_copy_` along a middle axis comes: an index that may count from the end, rows in front, comparisons of 32 bits.
const INDEX_COPY: &str = "  input \"old\" t0: f16[2, 3, 5, 4]
  input \"new\" t1: f16[2, 3, 1, 4]
  input \"at\" t2: i64[1]
  const t3: i64[1] = [0]
  const t4: i64[] = [4]
  const t5: i64[1] = [5]
  const t6: i64[] = [0]
  t7: bool[1] = lt t2, t3
  t8: i64[1] = add t2, t5
  t9: i64[1] = select t7, t8, t2
  t10: f16[5, 2, 3, 4] = transpose t0 perm=[2, 0, 1, 3]
  t11: f16[1, 2, 3, 4] = reshape t1
  t12: bool[1] = lt t9, t3
  t13: i64[1] = add t9, t5
  t14: i64[1] = select t12, t13, t9
  t15: i64[1, 1] = reshape t14
  t16: i64[1] = reshape t15
  t17: i64[1] = broadcast t6 dims=[]
  t18: i64[1] = broadcast t4 dims=[]
  t19: i64[1] = max t16, t17
  t20: i64[1] = min t19, t18
  t21: i32[1] = cast.i32 t20
  t22: i32[5, 1] = iota axis=0
  t23: i32[5, 1] = broadcast t21 dims=[1]
  t24: bool[5, 1] = eq t23, t22
  t25: bool[5] = reshape t24
  t26: bool[5, 2, 3, 4] = broadcast t25 dims=[0]
  t27: f16[2, 3, 4] = reshape t11
  t28: f16[5, 2, 3, 4] = broadcast t27 dims=[1, 2, 3]
  t29: f16[5, 2, 3, 4] = select t26, t28, t10
  t30: f16[2, 3, 5, 4] = transpose t29 perm=[1, 2, 0, 3]
  output \"y\" t30
";

#[test]
fn one_row_of_an_index_copy_is_stored() {
    let block = updated(INDEX_COPY, &[("old", "y")]).unwrap();
    assert_eq!(domain_of(&block, position(&block, ArgRole::Updated)), 2 * 3 * 4, "{block}");
}

#[test]
fn one_row_is_stored() {
    let block = updated(CACHE, &[("old", "y")]).unwrap();
    assert_eq!(domain_of(&block, position(&block, ArgRole::Updated)), 2 * 3, "{block}");
    assert!(!block.axes.iter().any(|axis| axis.extent == 5), "{block}");
}

#[test]
fn places_that_may_be_outside_stay_conditions() {
    let text = CACHE.replace("min t5, t4", "max t5, t4");
    let block = updated(&text, &[("old", "y")]).unwrap();
    assert_eq!(domain_of(&block, position(&block, ArgRole::Updated)), 2 * 5 * 3, "{block}");
}

#[test]
fn places_of_each_element_stay_conditions() {
    let text = CACHE.replace("i64[]", "i64[3]").replace("t6 dims=[]", "t6 dims=[2]");
    let text = text.replace("[3] = [0]", "[3] = [0, 0, 0]").replace("[3] = [4]", "[3] = [4, 4, 4]");
    let block = updated(&text, &[("old", "y")]).unwrap();
    assert_eq!(domain_of(&block, position(&block, ArgRole::Updated)), 2 * 5 * 3, "{block}");
}

/// A step of momentum: `m1` and `p1` are new values of `m` and `p`.
const MOMENTUM: &str = "  input \"m\" t0: f32[4]
  input \"p\" t1: f32[4]
  input \"g\" t2: f32[4]
  t3: f32[4] = add t0, t2
  t4: f32[4] = sub t1, t3
  output \"m1\" t3
  output \"p1\" t4
";

#[test]
fn stores_that_need_the_old_value_come_first() {
    for pairs in [[("m", "m1"), ("p", "p1")], [("p", "p1"), ("m", "m1")]] {
        let block = updated(MOMENTUM, &pairs).unwrap();
        let stored: Vec<ArgId> = (block.stages.iter())
            .filter_map(|stage| match stage {
                Stage::Store { arg, .. } => Some(*arg),
                Stage::Reduce { .. } => None,
            })
            .collect();
        assert_eq!(stored.len(), 2);
        // The last one is that of the sum, which the other needs.
        assert_eq!(block.arg(stored[1]).tensor, TensorId(3), "{block}");
    }
}

#[test]
fn values_that_need_each_other_are_not_both_updated() {
    let text = "  input \"a\" t0: f32[4]
  input \"b\" t1: f32[4]
  t2: f32[4] = add t0, t1
  t3: f32[4] = sub t0, t1
  output \"x\" t2
  output \"y\" t3
";
    assert!(updated(text, &[("a", "x")]).is_some());
    assert!(updated(text, &[("b", "y")]).is_some());
    assert!(updated(text, &[("a", "x"), ("b", "y")]).is_none());
}

#[test]
fn elements_are_not_read_after_they_were_stored() {
    let reversed = "  input \"x\" t0: f32[4]
  t1: f32[4] = slice t0 starts=[3] steps=[-1]
  t2: f32[4] = add t0, t1
  output \"y\" t2
";
    assert!(updated(reversed, &[("x", "y")]).is_none());
    let reduced = "  input \"x\" t0: f32[2, 4]
  t1: f32[2] = reduce.sum t0 axes=[1]
  t2: f32[2, 4] = broadcast t1 dims=[0]
  t3: f32[2, 4] = div t0, t2
  output \"y\" t3
";
    assert!(updated(reduced, &[("x", "y")]).is_none());
    let cast = "  input \"x\" t0: f32[4]
  t1: i32[4] = cast.i32 t0
  output \"y\" t1
";
    assert!(updated(cast, &[("x", "y")]).is_none());
}

#[test]
fn statistics_are_updated_from_reductions_of_others() {
    let text = "  input \"mean\" t0: f32[2]
  input \"x\" t1: f32[2, 4]
  t2: f32[2] = reduce.sum t1 axes=[1]
  t3: f32[2] = add t0, t2
  output \"y\" t3
";
    assert!(updated(text, &[("mean", "y")]).is_some());
}

#[test]
fn violations_of_updated_arguments_are_reported() {
    let mut block = updated(CACHE, &[("old", "y")]).unwrap();
    let Some(Stage::Store { arg, index, body, .. }) = block.stages.last_mut() else { panic!() };
    let mut elsewhere = index.clone();
    elsewhere.swap(0, 2);
    *body = block.exprs.read(*arg, elsewhere, None);
    assert!(validate_block(&block).iter().any(|problem| problem.contains("does not fit")), "{block}");
}
