//! Which type the operands of a graph's products have, as the graph states it.
//!
//! Models in half precision often compute around their products in f32: norms, rotations, softmax. Tensor cores take the operands in
//! half precision all the same, also if they were scaled by a number before.

use orch_ir::{BinaryFn, DType, PrimGraph, PrimOp, ScalarFn, TensorId};

/// The half type that all products and convolutions of a graph multiply: f16 or bf16, if each has an operand whose elements are
/// values of that type, widened to f32 or scaled by a number in f32 as they may be. `None` if one has none, they are of both types, or there are no products.
pub fn half_operands(graph: &PrimGraph) -> Option<DType> {
    let mut known_half: Vec<Option<DType>> = vec![None; graph.tensors().len()];
    // Tensors of one number.
    let mut uniform = vec![false; graph.tensors().len()];
    for (id, value) in graph.constants() {
        uniform[id.index()] = value.shape().elems() == 1;
    }
    let mut found = None;
    let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16).then_some(dtype);
    for (number, info) in graph.tensors().iter().enumerate() {
        known_half[number] = half(info.dtype);
    }
    for node in graph.nodes() {
        let of = |input: &TensorId| known_half[input.index()];
        if let PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } = node.op {
            if !graph.dtype(node.outputs[0]).is_float() {
                continue;
            }
            let operand = node.inputs.iter().take(2).find_map(of)?;
            if *found.get_or_insert(operand) != operand {
                return None;
            }
        }
        let is_uniform = |input: &TensorId| uniform[input.index()];
        let moved = match &node.op {
            PrimOp::Map(ScalarFn::Cast(DType::F32)) => of(&node.inputs[0]),
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul | BinaryFn::Div)) if is_uniform(&node.inputs[1]) => {
                of(&node.inputs[0])
            }
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)) if is_uniform(&node.inputs[0]) => {
                of(&node.inputs[1])
            }
            PrimOp::Broadcast { .. }
            | PrimOp::Transpose { .. }
            | PrimOp::Reshape { .. }
            | PrimOp::Slice { .. } => of(&node.inputs[0]),
            PrimOp::Concat { .. } => {
                let first = of(&node.inputs[0]);
                first.filter(|_| node.inputs.iter().all(|input| of(input) == first))
            }
            PrimOp::Take { .. } | PrimOp::TakeAlong { .. } | PrimOp::GatherNd { .. } => of(&node.inputs[0]),
            _ => None,
        };
        let moves = matches!(node.op, PrimOp::Broadcast { .. } | PrimOp::Reshape { .. });
        let stays_uniform = moves && is_uniform(&node.inputs[0]);
        for output in &node.outputs {
            uniform[output.index()] = stays_uniform;
            let known = &mut known_half[output.index()];
            *known = known.or(moved.filter(|_| graph.dtype(*output) == DType::F32));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::half_operands;
    use orch_ir::DType;
    use orch_ir::text::parse;

    /// Of a graph of these nodes, which follow `x` (t0, f16), `y` (t1, f32) and `z` (t2, bf16); the last one's result is the output.
    fn of(nodes: &[&str]) -> Option<DType> {
        let numbered: Vec<String> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| node.replacen("t_", &format!("t{}", number + 3), 1))
            .collect();
        let text = format!(
            "graph \"g\" {{\ninput \"x\" t0: f16[4, 4]\ninput \"y\" t1: f32[4, 4]\ninput \"z\" t2: bf16[4, 4]\n{}\n\
             output \"o\" t{}\n}}",
            numbered.join("\n"),
            nodes.len() + 2
        );
        half_operands(&parse(&text).unwrap_or_else(|error| panic!("{text}\n{error}")))
    }

    #[test]
    fn operands_count_as_they_come() {
        assert_eq!(of(&["t_: f16[4, 4] = contract t0, t0 labels=\"ab,bc->ac\""]), Some(DType::F16));
        assert_eq!(of(&["t_: bf16[4, 4] = contract t2, t2 labels=\"ab,bc->ac\""]), Some(DType::BF16));
        assert_eq!(of(&["t_: f32[4, 4] = contract t1, t1 labels=\"ab,bc->ac\""]), None);
        assert_eq!(of(&["t_: f16[4, 4] = neg t0"]), None);
    }

    #[test]
    fn a_widened_or_scaled_operand_is_one_of_half_precision() {
        let after = |f: &str| {
            let scale = [
                "const t_: f32[1] = [3]",
                "t_: f32[4, 4] = broadcast t3 dims=[0]",
                "t_: f32[4, 4] = cast.f32 t0",
            ];
            let product = "t_: f32[4, 4] = contract t6, t1 labels=\"ab,bc->ac\"";
            of(&[scale[0], scale[1], scale[2], &format!("t_: f32[4, 4] = {f}"), product])
        };
        assert_eq!(after("transpose t5 perm=[1, 0]"), Some(DType::F16));
        assert_eq!(after("mul t5, t4"), Some(DType::F16));
        assert_eq!(after("mul t4, t5"), Some(DType::F16));
        assert_eq!(after("mul t5, t5"), None);
        assert_eq!(after("neg t5"), None);
    }

    #[test]
    fn products_of_several_types_have_none_in_common() {
        let product = |of: &str| format!("t_: {of} labels=\"ab,bc->ac\"");
        let [first, second] = ["f16[4, 4] = contract t0, t0", "bf16[4, 4] = contract t2, t2"].map(product);
        let sum =
            ["t_: f32[4, 4] = cast.f32 t3", "t_: f32[4, 4] = cast.f32 t4", "t_: f32[4, 4] = add t5, t6"];
        assert_eq!(of(&[&first, &second, sum[0], sum[1], sum[2]]), None);
    }
}
