//! Contractions in half precision: what a caller asks for who gives digits for speed.
//!
//! Operands of matrix products and convolutions in f32 are rounded to bf16 (or f16) and widened again:
//!
//! ```text
//! y = contract(x, w)      becomes      y = contract(f32(bf16(x)), f32(bf16(w)))
//! ```
//!
//! The contraction stays one of f32, which says that it multiplies exactly and adds in f32; that its operands hold bf16
//! values says that they may be read, and stored, as such. Primitives that only move elements move bf16 then, so that
//! the rounding happens where a value is computed; constants are rounded here. Everything else stays in f32, as do the
//! types of inputs and outputs.
//!
//! Rounding is to nearest even: a relative error of at most 2^-9 per operand in bf16, 2^-12 in f16.

use orch_ir::{Contract, ConvSpec, DType, PrimGraph, PrimNode, PrimOp, ScalarFn, Shape, Tensor, TensorId};

/// What [`narrow_contractions`] did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NarrowReport {
    /// Contractions whose operands are rounded now.
    pub narrowed: usize,
    /// Contractions of f32 that stay as they are: they have no sums to speak of.
    pub kept: usize,
}

/// The graph with operands of contractions in `half`. Inputs, outputs and their types stay; what nobody reads goes.
pub fn narrow_contractions(graph: &PrimGraph, half: DType) -> (PrimGraph, NarrowReport) {
    let forms = Forms::of(graph);
    let mut narrower = Narrower {
        graph,
        half,
        result: PrimGraph::new(&graph.name),
        wide: vec![None; graph.tensors().len()],
        narrow: vec![None; graph.tensors().len()],
        widened: vec![None; graph.tensors().len()],
    };
    narrower.sources(&forms);
    for id in graph.node_ids() {
        narrower.result.set_origin(graph.origin(id));
        narrower.node(graph.node(id), &forms);
    }
    for (name, output) in &graph.outputs {
        let output = narrower.wide[output.index()].expect("outputs are needed as they are");
        narrower.result.add_output(name, output);
    }
    let contractions = graph.nodes().iter().filter(|node| is_contraction(graph, node));
    let mut report = NarrowReport::default();
    for node in contractions {
        let count = if pays(graph, node) { &mut report.narrowed } else { &mut report.kept };
        *count += 1;
    }
    (narrower.result, report)
}

/// In which forms each tensor is needed.
struct Forms {
    wide: Vec<bool>,
    narrow: Vec<bool>,
}

impl Forms {
    /// Walks from the outputs to what they are computed from.
    fn of(graph: &PrimGraph) -> Self {
        let tensors = graph.tensors().len();
        let mut forms = Self { wide: vec![false; tensors], narrow: vec![false; tensors] };
        for (_, output) in &graph.outputs {
            forms.wide[output.index()] = true;
        }
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            for output in &node.outputs {
                if !forms.narrow[output.index()] {
                    continue;
                }
                match moves_elements(&node.op) {
                    true => forms.narrow[node.inputs[0].index()] = true,
                    false => forms.wide[output.index()] = true,
                }
            }
            if node.outputs.iter().any(|output| forms.wide[output.index()]) {
                let is_rounded = pays(graph, node);
                let needed = if is_rounded { &mut forms.narrow } else { &mut forms.wide };
                node.inputs.iter().for_each(|input| needed[input.index()] = true);
            }
        }
        forms
    }
}

struct Narrower<'a> {
    graph: &'a PrimGraph,
    half: DType,
    result: PrimGraph,
    /// Each tensor in the result, as it was.
    wide: Vec<Option<TensorId>>,
    /// Each tensor in half precision.
    narrow: Vec<Option<TensorId>>,
    /// Each tensor rounded, in f32.
    widened: Vec<Option<TensorId>>,
}

impl Narrower<'_> {
    /// Inputs, and constants in the forms that are needed.
    fn sources(&mut self, forms: &Forms) {
        for (name, id) in &self.graph.inputs {
            let shape = self.graph.shape(*id).clone();
            let input = self.result.add_input(name, self.graph.dtype(*id), shape);
            self.wide[id.index()] = Some(input);
        }
        for (id, value) in self.graph.constants() {
            if forms.wide[id.index()] {
                self.wide[id.index()] = Some(self.result.add_constant(value.clone()));
            }
            if forms.narrow[id.index()] {
                self.narrow[id.index()] = Some(self.result.add_constant(rounded(value, self.half)));
            }
        }
        for (_, id) in &self.graph.inputs {
            if forms.narrow[id.index()] {
                self.round(*id);
            }
        }
    }

    fn node(&mut self, node: &PrimNode, forms: &Forms) {
        if node.outputs.iter().any(|output| forms.wide[output.index()]) {
            let inputs = match pays(self.graph, node) {
                true => node.inputs.iter().map(|&input| self.widened(input)).collect(),
                false => node.inputs.iter().map(|input| self.wide[input.index()]).map(known).collect(),
            };
            let outputs =
                self.result.add_node(node.op.clone(), inputs).expect("operands have the types they had");
            for (old, new) in node.outputs.iter().zip(outputs) {
                self.wide[old.index()] = Some(new);
            }
        }
        for &output in node.outputs.iter().filter(|output| forms.narrow[output.index()]) {
            if moves_elements(&node.op) {
                let input = known(self.narrow[node.inputs[0].index()]);
                let moved = self.result.add(node.op.clone(), &[input]).expect("moving takes every type");
                self.narrow[output.index()] = Some(moved);
            } else {
                self.round(output);
            }
        }
    }

    /// Adds the rounding of a tensor.
    fn round(&mut self, id: TensorId) {
        let source = known(self.wide[id.index()]);
        let cast = PrimOp::Map(ScalarFn::Cast(self.half));
        self.narrow[id.index()] = Some(self.result.add(cast, &[source]).expect("floats convert"));
    }

    /// A tensor rounded, in f32.
    fn widened(&mut self, id: TensorId) -> TensorId {
        if let Some(widened) = self.widened[id.index()] {
            return widened;
        }
        let source = known(self.narrow[id.index()]);
        let cast = PrimOp::Map(ScalarFn::Cast(DType::F32));
        let widened = self.result.add(cast, &[source]).expect("floats convert");
        self.widened[id.index()] = Some(widened);
        widened
    }
}

fn known(tensor: Option<TensorId>) -> TensorId {
    tensor.expect("nodes are in topological order, and every form that is needed was asked for")
}

/// A constant in half precision.
fn rounded(value: &Tensor, half: DType) -> Tensor {
    Tensor::from_f64(half, value.shape().clone(), &value.to_f64())
}

/// True for primitives of one operand whose result holds nothing but elements of it.
fn moves_elements(op: &PrimOp) -> bool {
    matches!(
        op,
        PrimOp::Transpose { .. }
            | PrimOp::Reshape { .. }
            | PrimOp::Slice { .. }
            | PrimOp::Select { .. }
            | PrimOp::Broadcast { .. }
    )
}

fn is_contraction(graph: &PrimGraph, node: &PrimNode) -> bool {
    matches!(node.op, PrimOp::Contract(_) | PrimOp::Conv(_)) && graph.dtype(node.outputs[0]) == DType::F32
}

/// True for contractions that gain by rounding: those with several products per sum that are not many products of single
/// rows or columns, as convolutions of each channel by itself are.
fn pays(graph: &PrimGraph, node: &PrimNode) -> bool {
    if !is_contraction(graph, node) {
        return false;
    }
    let shapes = [0, 1].map(|input| graph.shape(node.inputs[input]));
    let extents = match &node.op {
        PrimOp::Contract(labels) => contract_extents(labels, shapes),
        PrimOp::Conv(spec) => conv_extents(spec, shapes, graph.shape(node.outputs[0])),
        _ => return false,
    };
    let ContractExtents { batch, m, n, k } = extents;
    k > 1 && (batch <= 1 || (m > 1 && n > 1))
}

/// Independent products, rows, columns and terms of a contraction.
struct ContractExtents {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
}

fn contract_extents(labels: &Contract, [lhs, rhs]: [&Shape; 2]) -> ContractExtents {
    let product = |list: &[u8], shape: &Shape, other: &[u8], shared: bool, kept: bool| -> usize {
        (list.iter().zip(shape.iter()))
            .filter(|(label, _)| other.contains(label) == shared && labels.out.contains(label) == kept)
            .map(|(_, &extent)| extent)
            .product()
    };
    ContractExtents {
        batch: product(&labels.lhs, lhs, &labels.rhs, true, true),
        m: product(&labels.lhs, lhs, &labels.rhs, false, true),
        n: product(&labels.rhs, rhs, &labels.lhs, false, true),
        k: product(&labels.lhs, lhs, &labels.rhs, true, false),
    }
}

fn conv_extents(spec: &ConvSpec, [_, weight]: [&Shape; 2], out: &Shape) -> ContractExtents {
    ContractExtents {
        batch: spec.groups,
        m: out[0] * out[2..].iter().product::<usize>(),
        n: weight[0] / spec.groups,
        k: weight[1..].iter().product(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::text::{parse, print};
    use orch_ir::validate::validate;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let graph = parse(text).expect("a valid graph");
        let (narrow, _) = narrow_contractions(&graph, DType::BF16);
        assert_eq!(validate(&narrow), []);
        assert_eq!(print(&narrow).trim(), expected.trim(), "\n{}", print(&narrow));
    }

    #[test]
    fn products_read_bf16_and_what_moves_moves_bf16() {
        check(
            r#"graph "g" {
  input "x" t0: f32[4, 3]
  input "y" t1: f32[5, 3]
  const t2: f32[3] = [1, 1.001, -3]
  t3: f32[5, 3] = exp t1 ; from "e"
  t4: f32[3, 5] = transpose t3 perm=[1, 0] ; from "t"
  t5: f32[4, 5] = contract t0, t4 labels="ab,bc->ac" ; from "m"
  t6: f32[4] = contract t0, t2 labels="ab,b->a" ; from "v"
  output "z" t5
  output "e" t3
  output "v" t6
}"#,
            r#"graph "g" {
  input "x" t0: f32[4, 3]
  input "y" t1: f32[5, 3]
  const t2: bf16[3] = [1, 1, -3]
  t3: bf16[4, 3] = cast.bf16 t0
  t4: f32[5, 3] = exp t1 ; from "e"
  t5: bf16[5, 3] = cast.bf16 t4 ; from "e"
  t6: bf16[3, 5] = transpose t5 perm=[1, 0] ; from "t"
  t7: f32[4, 3] = cast.f32 t3 ; from "m"
  t8: f32[3, 5] = cast.f32 t6 ; from "m"
  t9: f32[4, 5] = contract t7, t8 labels="ab,bc->ac" ; from "m"
  t10: f32[3] = cast.f32 t2 ; from "v"
  t11: f32[4] = contract t7, t10 labels="ab,b->a" ; from "v"
  output "z" t9
  output "e" t4
  output "v" t11
}"#,
        );
    }

    #[test]
    fn any_result_of_a_primitive_is_rounded() {
        // The last state of a recurrent layer is its second result.
        let layer = r#"  input "x" t0: f32[5, 1, 1, 6]
  input "r" t1: f32[1, 2, 6]
  const t2: HALF[2, 1] = [1, 2]
  (t3: f32[5, 1, 1, 2], t4: f32[1, 1, 2]) = recurrence.gru t0, t1 directions=[forward] ATTRIBUTES"#;
        let attributes =
            "activations=[sigmoid, tanh] alphas=[0.0, 0.0] betas=[0.0, 0.0] linear_before_reset=false";
        let layer = layer.replace("ATTRIBUTES", attributes);
        let given = r#"
  t5: f32[1, 2] = reshape t4
  t6: f32[1, 1] = contract t5, t2 labels="ab,bc->ac"
  output "y" t6"#;
        let expected = r#"
  t5: bf16[1, 1, 2] = cast.bf16 t4
  t6: bf16[1, 2] = reshape t5
  t7: f32[1, 2] = cast.f32 t6
  t8: f32[2, 1] = cast.f32 t2
  t9: f32[1, 1] = contract t7, t8 labels="ab,bc->ac"
  output "y" t9"#;
        let graph =
            |dtype: &str, rest: &str| format!("graph \"g\" {{\n{}{rest}\n}}", layer.replace("HALF", dtype));
        check(&graph("f32", given), &graph("bf16", expected));
    }

    #[test]
    fn convolutions_of_single_channels_stay() {
        let graph = parse(
            r#"graph "g" {
  input "x" t0: f32[1, 4, 9]
  const t1: f32[4, 1, 3] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
  t2: f32[1, 4, 7] = conv t0, t1 kernel=[3] groups=4 ; from "c"
  output "y" t2
}"#,
        )
        .expect("a valid graph");
        let (same, report) = narrow_contractions(&graph, DType::BF16);
        assert_eq!(report, NarrowReport { narrowed: 0, kept: 1 });
        assert_eq!(print(&same), print(&graph));
    }
}
