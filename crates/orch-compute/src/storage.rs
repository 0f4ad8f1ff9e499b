//! How every tensor of a primitive graph is stored between kernels: its memory layout and its element type.
//!
//! A tensor of f32 may be stored in half precision although it is computed, and read, in f32. What keeps the type that
//! the graph states:
//!
//! - graph inputs and outputs, and the operands and results of opaque routines: others see them;
//! - results of reductions, and what is computed from nothing else: the means and variances of rows are few, and an
//!   error in one of them is an error of a whole row;
//! - values beyond the range of the type that are computed from single numbers and integers alone: the large negative
//!   numbers of masks, which would become infinite;
//! - constants that are read element by element and would be wrong by more than 1/128: what ALiBi adds to scores, which exponentials are
//!   taken of;
//! - in f16, long sums of products of data and what is as large (`storage/sums.rs`): linear attention before its division.
//!   Contractions that read them do not round them to f16 either ([`OperandRounding`]). bf16 has the range of f32.

mod sums;

use crate::layout::Layout;
use crate::operands::{OperandRounding, half_operands};
use orch_ir::{DType, PrimGraph, PrimNode, PrimOp, Tensor, TensorId};

/// By how much an element of a constant that is read element by element may be wrong, at most, to be stored in half precision.
const COARSE: f64 = 1.0 / 128.0;

/// Elements of a constant, at most, that is stored in f32 because it would be wrong.
const MOST_WIDE: usize = 1 << 16;

/// Layout and element type of every tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Storage {
    layouts: Vec<Layout>,
    dtypes: Vec<DType>,
    rounding: Vec<OperandRounding>,
}

impl Storage {
    /// In the types that the graph states; one layout per tensor.
    pub fn as_stated(graph: &PrimGraph, layouts: Vec<Layout>) -> Self {
        let dtypes = graph.tensors().iter().map(|info| info.dtype).collect();
        Self { layouts, dtypes, rounding: vec![OperandRounding::default(); graph.tensors().len()] }
    }

    /// In the types that the graph states, for products of which some have an operand of `half`, which they multiply: the operands of
    /// others are not rounded.
    pub fn with_half_operands(graph: &PrimGraph, layouts: Vec<Layout>, half: DType) -> Self {
        let mut storage = Self::with_wide_sums(graph, layouts, half);
        let in_full = half_operands(graph).map(|operands| operands.in_full).unwrap_or_default();
        for (rounding, _) in storage.rounding.iter_mut().zip(in_full).filter(|(_, in_full)| *in_full) {
            *rounding = OperandRounding::None;
        }
        storage
    }

    /// In the types that the graph states, for products that multiply `half`: long sums are wide.
    fn with_wide_sums(graph: &PrimGraph, layouts: Vec<Layout>, half: DType) -> Self {
        let mut storage = Self::as_stated(graph, layouts);
        if half == DType::F16 {
            let of = |is_wide| if is_wide { OperandRounding::Tf32 } else { OperandRounding::Half };
            storage.rounding = sums::sums(graph).into_iter().map(of).collect();
        }
        storage
    }

    /// With tensors of f32 stored as `half` where that is harmless; one layout per tensor.
    pub fn narrowed(graph: &PrimGraph, layouts: Vec<Layout>, half: DType) -> Self {
        let mut storage = Self::with_wide_sums(graph, layouts, half);
        let kept = kept(graph, half);
        for ((dtype, keep), rounding) in storage.dtypes.iter_mut().zip(kept).zip(&storage.rounding) {
            if *dtype == DType::F32 && !keep && *rounding == OperandRounding::Half {
                *dtype = half;
            }
        }
        storage
    }

    /// The memory order of a tensor.
    pub fn layout(&self, tensor: TensorId) -> &Layout {
        &self.layouts[tensor.index()]
    }

    /// The memory order of every tensor.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// The type in which a tensor is stored.
    pub fn dtype(&self, tensor: TensorId) -> DType {
        self.dtypes[tensor.index()]
    }

    /// How far products may round a tensor that they multiply.
    pub fn rounding(&self, tensor: TensorId) -> OperandRounding {
        self.rounding[tensor.index()]
    }

    /// Bytes that a tensor takes.
    pub fn bytes(&self, graph: &PrimGraph, tensor: TensorId) -> usize {
        graph.shape(tensor).elems() * self.dtype(tensor).size_bytes()
    }

    /// A constant's bytes as kernels read them.
    pub fn stored(&self, tensor: TensorId, value: &Tensor) -> Tensor {
        let (layout, dtype) = (self.layout(tensor), self.dtype(tensor));
        let converted = if value.dtype() == dtype { value.clone() } else { rounded(value, dtype) };
        if layout.is_row_major() { converted } else { laid_out(&converted, layout) }
    }
}

/// A tensor of f32 in another type: weights are large, and so not taken through f64 as a whole.
fn rounded(value: &Tensor, dtype: DType) -> Tensor {
    let elements =
        value.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four")));
    let bytes: Vec<u8> = match dtype {
        DType::F16 => elements.flat_map(|element| half::f16::from_f32(element).to_le_bytes()).collect(),
        DType::BF16 => elements.flat_map(|element| half::bf16::from_f32(element).to_le_bytes()).collect(),
        _ => return Tensor::from_f64(dtype, value.shape().clone(), &value.to_f64()),
    };
    Tensor::from_bytes(dtype, value.shape().clone(), bytes.into()).expect("as many elements")
}

/// The elements of a row-major tensor in the order of a layout, under the logical shape.
fn laid_out(tensor: &Tensor, layout: &Layout) -> Tensor {
    let (shape, size) = (tensor.shape(), tensor.dtype().size_bytes());
    let from = shape.strides();
    let order = layout.order();
    let mut bytes = Vec::with_capacity(tensor.bytes().len());
    let mut index = vec![0; order.len()];
    for _ in 0..shape.elems() {
        let offset: usize = order.iter().zip(&index).map(|(&dim, &at)| at * from[dim]).sum();
        bytes.extend_from_slice(&tensor.bytes()[offset * size..][..size]);
        for (position, &dim) in order.iter().enumerate().rev() {
            index[position] += 1;
            if index[position] < shape[dim] {
                break;
            }
            index[position] = 0;
        }
    }
    Tensor::from_bytes(tensor.dtype(), shape.clone(), bytes.into()).expect("as many elements")
}

/// Tensors that keep their type whether they are wide or not.
fn kept(graph: &PrimGraph, half: DType) -> Vec<bool> {
    let count = graph.tensors().len();
    let (mut kept, mut statistics) = (vec![false; count], vec![false; count]);
    let (mut data, mut beyond) = (vec![false; count], vec![false; count]);
    for (_, input) in &graph.inputs {
        data[input.index()] = graph.dtype(*input).is_float();
    }
    let is_elementwise = |op: &PrimOp| matches!(op, PrimOp::Map(_) | PrimOp::Broadcast { .. });
    let mut has_others = vec![false; count];
    for node in graph.nodes().iter().filter(|node| !is_elementwise(&node.op)) {
        node.inputs.iter().for_each(|input| has_others[input.index()] = true);
    }
    for (id, value) in graph.constants() {
        kept[id.index()] = !has_others[id.index()] && is_coarse(value, half);
        beyond[id.index()] = is_beyond(value, half);
        // Weights and tables, but not the single numbers that masks are made of.
        data[id.index()] = value.dtype().is_float() && value.shape().elems() > 1 && !beyond[id.index()];
    }
    for node in graph.nodes() {
        let is_statistic = is_statistic(graph, node, &statistics);
        let any = |of: &[bool]| node.inputs.iter().any(|input| of[input.index()]);
        let (is_data, is_beyond) = (any(&data), any(&beyond));
        for output in &node.outputs {
            let output = output.index();
            statistics[output] = is_statistic;
            data[output] = is_data;
            beyond[output] = is_beyond && !is_data;
        }
        if matches!(node.op, PrimOp::Opaque(_)) {
            node.inputs.iter().chain(&node.outputs).for_each(|tensor| kept[tensor.index()] = true);
        }
    }
    for (_, tensor) in graph.inputs.iter().chain(&graph.outputs) {
        kept[tensor.index()] = true;
    }
    (0..count).map(|tensor| kept[tensor] || statistics[tensor] || beyond[tensor]).collect()
}

/// True for reductions and for elementwise functions of their results and of constants.
fn is_statistic(graph: &PrimGraph, node: &PrimNode, statistics: &[bool]) -> bool {
    let is_constant = |tensor: TensorId| match graph.producer(tensor).map(|producer| graph.node(producer)) {
        Some(PrimNode { op: PrimOp::Broadcast { .. }, inputs, .. }) => graph.constant(inputs[0]).is_some(),
        Some(_) => false,
        None => graph.constant(tensor).is_some(),
    };
    match &node.op {
        PrimOp::Reduce { .. } => true,
        PrimOp::Map(_) | PrimOp::Reshape { .. } | PrimOp::Transpose { .. } => {
            node.inputs.iter().any(|input| statistics[input.index()])
                && node.inputs.iter().all(|&input| statistics[input.index()] || is_constant(input))
        }
        _ => false,
    }
}

/// True if an element is wrong by more than [`COARSE`] in the type.
fn is_coarse(value: &Tensor, half: DType) -> bool {
    if value.dtype() != DType::F32 || value.shape().elems() > MOST_WIDE {
        return false;
    }
    let mut elements = value.to_f64().into_iter().zip(rounded(value, half).to_f64());
    elements.any(|(exact, rounded)| exact.is_finite() && (rounded - exact).abs() > COARSE)
}

/// True if a finite element is infinite in the type.
fn is_beyond(value: &Tensor, half: DType) -> bool {
    /// The largest finite value of f16.
    const F16_MAX: f64 = 65504.0;
    value.dtype() == DType::F32
        && half == DType::F16
        && value.to_f64().iter().any(|element| element.is_finite() && element.abs() > F16_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::text::parse;

    fn narrowed(text: &str, half: DType) -> Storage {
        let graph = parse(text).expect("a valid graph");
        let layouts = crate::layouts::assign(&graph);
        Storage::narrowed(&graph, layouts, half)
    }

    /// The types in which tensors of a graph are stored with f16, by number.
    fn stored(text: &str) -> Vec<DType> {
        narrowed(text, DType::F16).dtypes
    }

    #[test]
    fn what_passes_between_kernels_is_half() {
        let dtypes = stored(
            r#"graph "g" {
  input "x" t0: f32[4, 3]
  const t1: f32[3, 5] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
  t2: f32[4, 5] = contract t0, t1 labels="ab,bc->ac"
  t3: f32[4, 5] = exp t2
  t4: i64[4, 5] = cast.i64 t3
  t5: f32[4] = reduce.sum t3 axes=[1]
  t6: f32[4] = sqrt t5
  t7: f32[4, 5] = broadcast t6 dims=[0]
  t8: f32[4, 5] = div t3, t7
  t9: f32[4, 5] = exp t8
  output "y" t9
  output "i" t4
}"#,
        );
        use DType::{F16, F32, I64};
        assert_eq!(dtypes, [F32, F16, F16, F16, I64, F32, F32, F16, F16, F32]);
    }

    #[test]
    fn masks_stay_finite() {
        let dtypes = stored(
            r#"graph "g" {
  input "m" t0: i64[3]
  input "x" t1: f32[3]
  const t2: f32[3] = [-3e38, -3e38, -3e38]
  t3: f32[3] = cast.f32 t0
  t4: f32[3] = mul t3, t2
  t5: f32[3] = exp t1
  t6: f32[3] = add t4, t5
  t7: f32[3] = exp t6
  output "y" t7
}"#,
        );
        use DType::{F16, F32, I64};
        assert_eq!(dtypes, [I64, F32, F32, F16, F32, F16, F16, F32]);
    }

    /// 100.3 is 100.3125 in f16; 2.7 is nearly itself, and what is multiplied is rounded anyway.
    #[test]
    fn constants_that_would_be_wrong_are_wide() {
        let dtypes = stored(
            r#"graph "g" {
  input "x" t0: f32[2, 2]
  const t1: f32[2] = [100.3, 0]
  const t2: f32[2] = [2.7, 0]
  const t3: f32[2, 2] = [100.3, 0, 0, 0]
  t4: f32[2, 2] = contract t0, t3 labels="ab,bc->ac"
  t5: f32[2, 2] = broadcast t1 dims=[1]
  t6: f32[2, 2] = add t4, t5
  t7: f32[2, 2] = broadcast t2 dims=[1]
  t8: f32[2, 2] = add t6, t7
  output "y" t8
}"#,
        );
        use DType::{F16, F32};
        assert_eq!(dtypes, [F32, F32, F16, F16, F16, F16, F16, F16, F32]);
    }

    #[test]
    fn long_sums_are_wide_in_f16() {
        let gram = r#"graph "g" {
  input "x" t0: f32[1024, 4]
  t1: f32[1024, 4] = neg t0
  t2: f32[4, 4] = contract t1, t1 labels="ab,ac->bc"
  t3: f32[1024, 4] = contract t1, t2 labels="ab,bc->ac"
  t4: f32[1024, 4] = tanh t3
  t5: f32[1024, 4] = exp t4
  output "y" t5
}"#;
        use DType::{BF16, F16, F32};
        let (f16, bf16) = (narrowed(gram, F16), narrowed(gram, BF16));
        assert_eq!(f16.dtypes, [F32, F16, F32, F32, F16, F32]);
        use OperandRounding::{Half, Tf32};
        assert_eq!(f16.rounding, [Half, Half, Tf32, Tf32, Half, Half]);
        assert_eq!(bf16.dtypes, [F32, BF16, BF16, BF16, BF16, F32]);
        assert_eq!(bf16.rounding, [Half; 6]);
    }

    #[test]
    fn operands_that_are_stated_as_f32_are_rounded_only_if_that_is_asked_for() {
        let text = r#"graph "g" {
  input "x" t0: f16[4, 4]
  input "y" t1: f32[4, 4]
  t2: f16[4, 4] = contract t0, t0 labels="ab,bc->ac"
  t3: f32[4, 4] = contract t1, t1 labels="ab,bc->ac"
  output "a" t2
  output "b" t3
}"#;
        let graph = parse(text).expect("a valid graph");
        let layouts = crate::layouts::assign_gpu(&graph);
        use OperandRounding::{Half, None};
        let stated = Storage::with_half_operands(&graph, layouts, DType::F16);
        assert_eq!(stated.rounding, [Half, None, Half, Half]);
        assert_eq!(narrowed(text, DType::F16).rounding, [Half; 4]);
    }

    #[test]
    fn constants_are_converted_and_laid_out() {
        let value = Tensor::from_vec([1, 2, 1, 2], vec![1.0f32, 2.0, 3.0, 4.0]);
        let layouts = vec![Layout::channels_last(4)];
        let storage = Storage { layouts, dtypes: vec![DType::F16], rounding: vec![OperandRounding::Half] };
        let stored = storage.stored(TensorId(0), &value);
        assert_eq!((stored.dtype(), stored.to_f64()), (DType::F16, vec![1.0, 3.0, 2.0, 4.0]));
    }
}
