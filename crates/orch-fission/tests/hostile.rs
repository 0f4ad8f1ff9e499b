//! No model makes fission panic: every rule on arbitrary operands and attributes.

use orch_fission::{FissionOptions, fission, registry};
use orch_ir::{Attribute, DType, Encoding, OperatorGraph, OperatorNode, Tensor, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Names that rules ask for, with values of the right kind more often than not.
const INT_LISTS: &[&str] = &[
    "axes",
    "kernel_shape",
    "pads",
    "strides",
    "dilations",
    "output_shape",
    "output_padding",
    "perm",
    "split",
    "shape",
    "sizes",
    "starts",
    "ends",
    "repeats",
    "pooled_shape",
    "ngram_counts",
    "ngram_indexes",
    "pool_int64s",
    "scan_input_axes",
    "value_ints",
];
const FLOAT_LISTS: &[&str] = &["scales", "weights", "activation_alpha", "activation_beta", "value_floats"];
const INTS: &[&str] = &[
    "axis",
    "group",
    "keepdims",
    "noop_with_empty_axes",
    "ceil_mode",
    "count_include_pad",
    "storage_order",
    "p",
    "size",
    "num_groups",
    "block_size",
    "to",
    "q_num_heads",
    "kv_num_heads",
    "num_heads",
    "is_causal",
    "left_window_size",
    "rotary_embedding_dim",
    "interleaved",
    "stash_type",
    "training_mode",
    "softmax_precision",
    "blocksize",
    "num_outputs",
    "k",
    "batch_dims",
    "hidden_size",
    "allowzero",
    "antialias",
    "exclude_outside",
    "start",
    "end",
    "upper",
    "exclusive",
    "reverse",
    "periodic",
    "onesided",
    "inverse",
    "align_corners",
    "sampling_ratio",
    "output_height",
    "output_width",
    "offset_group",
    "layout",
    "batch_axis",
    "time_axis",
    "keepdims",
    "new_axis",
    "max_skip_count",
    "max_gram_length",
    "ignore_index",
    "output_datatype",
    "dtype",
    "num_scan_inputs",
    "sorted",
];
const TEXTS: &[&str] = &[
    "auto_pad",
    "equation",
    "mode",
    "approximate",
    "direction",
    "update_rule",
    "activation",
    "coordinate_transformation_mode",
    "nearest_mode",
    "keep_aspect_ratio_policy",
    "reduction",
    "padding_mode",
];
const TEXT_VALUES: &[&str] = &[
    "",
    "SAME_UPPER",
    "VALID",
    "ij,jk->ik",
    "...i,...i",
    "ii",
    "LEFT",
    "linear",
    "tanh",
    "nearest",
    "reflect",
    "é->",
    "cubic",
    "edge",
    "wrap",
    "bidirectional",
    "tf_crop_and_resize",
    "align_corners",
    "half_pixel_symmetric",
    "ceil",
    "not_larger",
    "not_smaller",
    "add",
    "sum",
    "none",
    "circular",
    "CRD",
    "TFIDF",
    "border",
    "max",
];

/// One operand: its type, its extents, and whether the model stores it.
type Operand = (DType, Vec<usize>, bool);

/// Operands that more often than not agree in type, and in extents up to leading dimensions.
fn operands() -> impl Strategy<Value = Vec<Option<Operand>>> {
    let dtypes = [DType::F32, DType::F16, DType::I64, DType::I32, DType::U8, DType::I8, DType::Bool];
    let dtype = || prop::sample::select(dtypes.to_vec());
    let dims = || prop::collection::vec(prop::sample::select(vec![0usize, 1, 2, 2, 3, 4, 4]), 0..6);
    let one = (any::<[bool; 3]>(), dtype(), dims(), 0usize..4);
    (dtype(), dims(), prop::collection::vec(prop::option::weighted(0.9, one), 0..7)).prop_map(
        |(shared_type, shared_dims, operands)| {
            let build = |([own_type, own_dims, constant], dtype, dims, cut): (
                [bool; 3],
                DType,
                Vec<usize>,
                usize,
            )| {
                let dtype = if own_type { dtype } else { shared_type };
                let dims = if own_dims { dims } else { shared_dims.iter().skip(cut / 2).copied().collect() };
                (dtype, dims, constant)
            };
            operands.into_iter().map(|operand| operand.map(build)).collect()
        },
    )
}

fn number() -> impl Strategy<Value = i64> {
    let edges = vec![i64::MIN, -(1 << 40), -3, -1, 0, 1, 2, 3, 4, 16, 1 << 21, 1 << 40, i64::MAX];
    prop_oneof![3 => -2i64..5, 1 => prop::sample::select(edges)]
}

fn attributes() -> impl Strategy<Value = BTreeMap<String, Attribute>> {
    let list = (prop::sample::select(INT_LISTS), prop::collection::vec(number(), 0..7))
        .prop_map(|(name, values)| (name, Attribute::Ints(values)));
    let int = (prop::sample::select(INTS), number()).prop_map(|(name, value)| (name, Attribute::Int(value)));
    let text = (prop::sample::select(TEXTS), prop::sample::select(TEXT_VALUES))
        .prop_map(|(name, value)| (name, Attribute::String(value.to_owned())));
    let odd = prop::sample::select(INTS).prop_map(|name| (name, Attribute::Float(f32::NAN)));
    let float = prop::sample::select(vec![f32::NAN, f32::INFINITY, -1.0, 0.0, 1e-9, 0.6, 1.0, 2.5, 1e30]);
    let floats = (prop::sample::select(FLOAT_LISTS), prop::collection::vec(float, 0..7))
        .prop_map(|(name, values)| (name, Attribute::Floats(values)));
    prop::collection::vec(prop_oneof![6 => list, 2 => floats, 8 => int, 5 => text, 1 => odd], 0..8)
        .prop_map(|pairs| pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A model of one operator.
fn model(
    rule: usize,
    opset: i64,
    operands: Vec<Option<Operand>>,
    outputs: usize,
    attributes: BTreeMap<String, Attribute>,
    encoding: Option<Encoding>,
) -> OperatorGraph {
    let rules: Vec<_> = registry::rules().collect();
    let rule = rules[rule % rules.len()];
    let mut graph = OperatorGraph::default();
    let mut node = OperatorNode {
        name: "node".to_owned(),
        domain: rule.domain.to_owned(),
        op_type: rule.op_type.to_owned(),
        opset,
        inputs: Vec::new(),
        outputs: Vec::new(),
        attributes,
    };
    for (position, operand) in operands.into_iter().enumerate() {
        let Some((dtype, dims, constant)) = operand else {
            node.inputs.push(None);
            continue;
        };
        let shape = Some(dims.iter().map(|&extent| Some(extent)).collect());
        let id = graph.add_value(Value {
            name: format!("x{position}"),
            dtype: Some(dtype),
            shape,
            encoding: encoding.filter(|encoding| encoding.carrier() == dtype),
        });
        node.inputs.push(Some(id));
        if constant {
            let count: usize = dims.iter().product();
            let values: Vec<i64> = (0..count as i64).map(|at| at % 5 - 1).collect();
            graph.initializers.insert(id, Tensor::from_i64(dtype, dims, &values));
        } else {
            graph.inputs.push(id);
        }
    }
    for position in 0..outputs {
        let id = graph.add_value(Value { name: format!("y{position}"), ..Value::default() });
        node.outputs.push(Some(id));
        graph.outputs.push(id);
    }
    graph.nodes.push(node);
    graph
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40000))]

    #[test]
    fn any_operator_on_anything_gives_a_graph_or_an_error(
        rule in any::<usize>(),
        opset in 7i64..29,
        operands in operands(),
        outputs in 1usize..5,
        attributes in attributes(),
        encoding in prop::option::of(prop::sample::select(Encoding::ALL.to_vec())),
    ) {
        let graph = model(rule, opset, operands, outputs, attributes, encoding);
        if let Err(errors) = fission(&graph, &FissionOptions::default()) {
            prop_assert!(!errors.0.is_empty());
        }
    }
}
