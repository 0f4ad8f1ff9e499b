//! Which type the operands of a graph's products have, as the graph states it.
//!
//! Models in half precision often compute around their products in f32: norms, rotations, softmax. Tensor cores take the operands in
//! half precision all the same, also if they were scaled by a number before.

use orch_ir::{BinaryFn, DType, PrimGraph, PrimOp, ScalarFn, TensorId};

/// How far a contraction may round a tensor of f32 that it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OperandRounding {
    /// To the half type that the target's products multiply.
    #[default]
    Half,
    /// To TF32, which has the range of f32: the values may be beyond the range of f16.
    Tf32,
    /// Not at all: what multiplies it is of f32 as well, and half precision was not asked for.
    None,
}

/// The half type that products of a graph multiply, and which do not.
pub struct HalfOperands {
    /// f16 or bf16.
    pub half: DType,
    /// For each tensor, by number, whether a product or convolution multiplies it in the type that the graph states.
    pub in_full: Vec<bool>,
}

/// The half type of those products and convolutions of a graph that have an operand whose elements are values of that type, widened to f32
/// or scaled by a number in f32 as they may be. `None` if no product has one, or some are of f16 and others of bf16.
pub fn half_operands(graph: &PrimGraph) -> Option<HalfOperands> {
    let mut known_half: Vec<Option<DType>> = vec![None; graph.tensors().len()];
    let mut in_full = vec![false; graph.tensors().len()];
    // The number of tensors that are one.
    let mut uniform: Vec<Option<f64>> = vec![None; graph.tensors().len()];
    for (id, value) in graph.constants() {
        uniform[id.index()] = (value.shape().elems() == 1).then(|| value.to_f64()[0]);
    }
    let mut found = None;
    let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16).then_some(dtype);
    for (number, info) in graph.tensors().iter().enumerate() {
        known_half[number] = half(info.dtype);
    }
    for node in graph.nodes() {
        let of = |input: &TensorId| known_half[input.index()];
        if let PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } = node.op
            && graph.dtype(node.outputs[0]).is_float()
        {
            let operands = &node.inputs[..2];
            match operands.iter().find_map(of) {
                None => operands.iter().for_each(|operand| in_full[operand.index()] = true),
                Some(half) if *found.get_or_insert(half) != half => return None,
                Some(_) => {}
            }
        }
        let is_uniform = |input: &TensorId| uniform[input.index()].is_some();
        let moved = match &node.op {
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul | BinaryFn::Div)) if is_uniform(&node.inputs[1]) => {
                of(&node.inputs[0])
            }
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)) if is_uniform(&node.inputs[0]) => {
                of(&node.inputs[1])
            }
            op if moves(op) => {
                // Zeros, as padding and masks are, are values of every type.
                let is_zero = |input: &TensorId| uniform[input.index()] == Some(0.0);
                let is_data = |input: &&TensorId| graph.dtype(**input).is_float() && !is_zero(input);
                let mut data = node.inputs.iter().filter(is_data);
                let first = data.next().and_then(of);
                first.filter(|_| data.all(|input| of(input) == first))
            }
            _ => None,
        };
        let repeats = matches!(node.op, PrimOp::Broadcast { .. } | PrimOp::Reshape { .. });
        let number = if repeats { uniform[node.inputs[0].index()] } else { None };
        for output in &node.outputs {
            uniform[output.index()] = uniform[output.index()].or(number);
            let known = &mut known_half[output.index()];
            *known = known.or(moved.filter(|_| graph.dtype(*output) == DType::F32));
        }
    }
    found.map(|half| HalfOperands { half, in_full })
}

/// True if a result's elements are elements of the operands, or a constant beside them.
pub(crate) fn moves(op: &PrimOp) -> bool {
    match op {
        PrimOp::Map(f) => matches!(f, ScalarFn::Select | ScalarFn::Cast(_)),
        PrimOp::Broadcast { .. } | PrimOp::Transpose { .. } | PrimOp::Reshape { .. } => true,
        PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Concat { .. } | PrimOp::Select { .. } => true,
        PrimOp::Take { .. } | PrimOp::TakeAlong { .. } | PrimOp::GatherNd { .. } => true,
        PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => false,
        PrimOp::Reduce { .. } | PrimOp::Window { .. } => false,
        PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } => false,
        PrimOp::Iota { .. } | PrimOp::Recurrence(_) | PrimOp::Opaque(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{HalfOperands, half_operands};
    use orch_ir::DType;
    use orch_ir::text::parse;

    fn of(nodes: &[&str]) -> Option<DType> {
        found(nodes).map(|operands| operands.half)
    }

    /// Of a graph of these nodes, which follow `x` (t0, f16), `y` (t1, f32) and `z` (t2, bf16); the last one's result is the output.
    fn found(nodes: &[&str]) -> Option<HalfOperands> {
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
    fn padded_operands_are_of_half_precision() {
        let padded_by = |number: &str| {
            of(&[
                "t_: f32[4, 4] = cast.f32 t0",
                &format!("const t_: f32[] = [{number}]"),
                "t_: f32[4, 6] = pad.constant t3, t4 low=[0, 0] high=[0, 2]",
                "t_: f32[6, 4] = transpose t5 perm=[1, 0]",
                "t_: f32[4, 4] = contract t5, t6 labels=\"ab,bc->ac\"",
            ])
        };
        assert_eq!(padded_by("0"), Some(DType::F16));
        assert_eq!(padded_by("0.3"), None);
    }

    #[test]
    fn products_of_f32_alone_keep_their_operands() {
        let nodes = [
            "t_: f16[4, 4] = contract t0, t0 labels=\"ab,bc->ac\"",
            "t_: f32[4, 4] = neg t1",
            "t_: f32[4, 4] = contract t1, t4 labels=\"ab,bc->ac\"",
            "t_: f32[4, 4] = cast.f32 t3",
            "t_: f32[4, 4] = contract t5, t6 labels=\"ab,bc->ac\"",
        ];
        let HalfOperands { half, in_full } = found(&nodes).expect("one of two is of half precision");
        assert_eq!(half, DType::F16);
        // The result of the second product is multiplied by one of half precision, as the first one's are.
        assert_eq!(in_full, [false, true, false, false, true, false, false, false]);
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
