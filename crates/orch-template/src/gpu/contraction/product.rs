//! Contractions that are products of strided matrices in memory, which libraries (cuBLASLt) compute, too.
//!
//! `result[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n] [+ bias[n]] [+ addend[batch, m, n]]`. Libraries
//! accumulate in f32, add bias and addend in f32 and round once, as the template's own kernels do: results differ in the order of
//! additions only. Everything else - operands that are computed or converted, results in several parts, any other epilogue - is
//! no such product.

use super::array::{MatrixStrides, StridedOperand, SymbolicPoint};
use super::choose::form_of;
use super::emitter::GemmEmitter;
use super::operand::declare_arguments;
use super::schedule::GpuContractionSchedule;
use super::unit::MathUnit;
use crate::contraction::GemmShape;
use crate::gpu::cta::stores_of;
use orch_compute::block::BlockProgram;
use orch_compute::expr::{BufferId, Expr, ExprId};
use orch_ir::{BinaryFn, DType};
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;
use orch_thread::kernel::Binding;

/// A block program seen as a product of matrices in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixProductForm {
    /// Its extents.
    pub extents: GemmShape,
    /// What is passed for each buffer that the matrices name, as for a kernel.
    pub bindings: Vec<Binding>,
    /// Element type of `a` and `b`.
    pub operands: DType,
    /// Element type of result, bias and addend.
    pub stored: DType,
    /// Whether f32 operands may be multiplied as tf32.
    pub is_tf32: bool,
    /// `[m, k]`.
    pub a: StridedMatrix,
    /// `[k, n]`.
    pub b: StridedMatrix,
    /// `[m, n]`, row-major.
    pub result: StridedMatrix,
    /// A consecutive vector `[n]` that is added to every row: its buffer and its first element.
    pub bias: Option<(BufferId, usize)>,
    /// `[m, n]`, row-major, added element by element.
    pub addend: Option<StridedMatrix>,
}

/// A matrix for each batch, in a buffer: element `[batch, line, i]` is at `offset + self.batch * batch + lead * line + i`, where
/// lines are rows or columns by the order. Offsets and strides are in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StridedMatrix {
    /// The buffer.
    pub buffer: BufferId,
    /// The first element.
    pub offset: usize,
    /// Whether lines are rows or columns.
    pub order: StorageOrder,
    /// Leading dimension: from one line to the next, at least a line's length.
    pub lead: usize,
    /// From one batch to the next.
    pub batch: usize,
}

/// Which elements of a matrix are consecutive in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageOrder {
    /// Those of a row.
    RowMajor,
    /// Those of a column.
    ColumnMajor,
}

impl MatrixProductForm {
    /// A block program as a product of matrices; `None` if it is not exactly that.
    pub fn of(block: &BlockProgram, precision: OperandPrecision) -> Option<Self> {
        let form = form_of(block).ok()?;
        let unit = MathUnit::of(block, &form, precision)?;
        let is_tf32 = unit == MathUnit::TensorCore(MmaType::Tf32);
        let is_multiplied = matches!(unit, MathUnit::TensorCore(_) | MathUnit::Fma(DType::F32));
        let mut emitter = GemmEmitter::new(block, form, unit, GpuContractionSchedule::EXAMINE);
        let extents = emitter.extents;
        let GemmShape { batch, m, n, k } = extents;
        if !is_multiplied || [batch, m, n, k].contains(&0) {
            return None;
        }
        emitter.place_cta(&mut Vec::new());
        let (operands, bindings) = declare_arguments(&mut emitter);
        let a = operand_matrix(StridedOperand::of(&mut emitter, &operands[0])?, (m, k))?;
        // As an operand of the emitter, `b` is transposed: `[n, k]`.
        let b = operand_matrix(StridedOperand::of(&mut emitter, &operands[1])?, (n, k))?;
        let b = StridedMatrix { order: b.order.transposed(), ..b };
        let MatrixEpilogue { result, dtype: stored, bias, addend } = MatrixEpilogue::of(&mut emitter)?;
        let operands = unit.operand_type();
        Some(Self { extents, bindings, operands, stored, is_tf32, a, b, result, bias, addend })
    }
}

impl StorageOrder {
    fn transposed(self) -> Self {
        match self {
            StorageOrder::RowMajor => StorageOrder::ColumnMajor,
            StorageOrder::ColumnMajor => StorageOrder::RowMajor,
        }
    }
}

/// An operand as a matrix `[rows, k]`.
fn operand_matrix(operand: StridedOperand, extents: (usize, usize)) -> Option<StridedMatrix> {
    let batch: Vec<usize> = operand.batch.iter().map(|&(extent, _)| extent).collect();
    matrix(operand.buffer, &operand.strides, extents, &batch)
}

/// Strides of `[rows, columns]` as a matrix that is contiguous in one direction; `None` if it is in neither.
fn matrix(
    buffer: BufferId,
    strides: &MatrixStrides,
    (rows, columns): (usize, usize),
    batch: &[usize],
) -> Option<StridedMatrix> {
    // The stride of a single row or column is arbitrary.
    let row = if rows == 1 { None } else { Some(strides.row) };
    let column = if columns == 1 { None } else { Some(strides.column) };
    let (order, lead) = match (row, column) {
        (row, None | Some(1)) if row.is_none_or(|row| row >= columns) => {
            (StorageOrder::RowMajor, row.unwrap_or(columns))
        }
        (None | Some(1), column) if column.is_none_or(|column| column >= rows) => {
            (StorageOrder::ColumnMajor, column.unwrap_or(rows))
        }
        _ => return None,
    };
    let batch = flat_stride(batch, &strides.batch)?;
    Some(StridedMatrix { buffer, offset: strides.offset, order, lead, batch })
}

/// The stride of several axes seen as one, if each outer axis continues where the next inner one ends.
fn flat_stride(extents: &[usize], strides: &[usize]) -> Option<usize> {
    let axes = extents.iter().copied().zip(strides.iter().copied());
    let axes: Vec<(usize, usize)> = axes.filter(|&(extent, _)| extent > 1).collect();
    let is_flat = axes.windows(2).all(|pair| pair[0].1 == pair[1].0 * pair[1].1);
    is_flat.then(|| axes.last().map_or(0, |&(_, stride)| stride))
}

/// What is stored, if it is the accumulator with at most a bias and an addend.
struct MatrixEpilogue {
    result: StridedMatrix,
    dtype: DType,
    bias: Option<(BufferId, usize)>,
    addend: Option<StridedMatrix>,
}

impl MatrixEpilogue {
    fn of(emitter: &mut GemmEmitter<'_>) -> Option<Self> {
        let bindings = emitter.flat.bindings.clone();
        let stores = stores_of(emitter.block, &mut emitter.source, &bindings);
        let &[(arg, offset, body)] = &stores[..] else { return None };
        let GemmShape { m, n, .. } = emitter.extents;
        let point = SymbolicPoint::new(emitter, (emitter.flat.m, m), emitter.flat.n, n);
        let (offset, body) = (point.import(emitter, offset), point.import(emitter, body));
        let strides = point.strides(emitter, offset)?;
        let batch: Vec<usize> = emitter.form.batch.iter().map(|&axis| emitter.block.extent(axis)).collect();
        let result = matrix(emitter.arg_buffers[arg.index()]?, &strides, (m, n), &batch)?;
        let stored = emitter.block.arg(arg).dtype;
        let is_stored = [DType::F32, emitter.unit.operand_type()].contains(&stored);
        if result.order != StorageOrder::RowMajor || !is_stored {
            return None;
        }
        let (mut bias, mut addend) = (None, None);
        for (buffer, offset) in added(emitter, body, stored)? {
            let strides = point.strides(emitter, offset)?;
            let vector = vector(emitter, &strides);
            if let Some(first) = vector.filter(|_| bias.is_none()) {
                bias = Some((buffer, first));
            } else {
                let matrix = matrix(buffer, &strides, (m, n), &batch)?;
                let is_alike = matrix.order == StorageOrder::RowMajor && addend.replace(matrix).is_none();
                is_alike.then_some(())?;
            }
        }
        Some(Self { result, dtype: stored, bias, addend })
    }
}

/// Summands of an epilogue beyond which no library has one: a bias and an addend.
const MAX_ADDED: usize = 2;

/// What is added to the accumulator, if nothing else happens to it and it is little, as buffers and offsets.
pub(super) fn added(
    emitter: &GemmEmitter<'_>,
    body: ExprId,
    stored: DType,
) -> Option<Vec<(BufferId, ExprId)>> {
    let exprs = &emitter.program.exprs;
    let acc_type = exprs.var_info(emitter.acc_element).ty.dtype;
    let inner = |id: ExprId, to: DType| match *exprs.get(id) {
        Expr::Cast(dtype, inner) if dtype == to => inner,
        _ => id,
    };
    let (mut found, mut accumulators) = (Vec::new(), 0);
    let mut open = vec![inner(body, stored)];
    while let Some(id) = open.pop() {
        if accumulators > 1 || found.len() > MAX_ADDED {
            return None;
        }
        match *exprs.get(id) {
            Expr::Binary(BinaryFn::Add, lhs, rhs) => open.extend([rhs, lhs]),
            Expr::Var(var) if var == emitter.acc_element => accumulators += 1,
            _ => {
                let loaded = inner(id, DType::F32);
                let Expr::Load { buffer, offset, lanes: 1, mask: None } = *exprs.get(loaded) else {
                    return None;
                };
                (emitter.program.buffer(buffer).dtype == stored).then_some(())?;
                found.push((buffer, offset));
            }
        }
    }
    // An accumulator of another type than f32 was rounded to that type before anything is added.
    let is_exact = acc_type == DType::F32 || acc_type == stored && found.is_empty();
    (accumulators == 1 && is_exact).then_some(found)
}

/// The first element of a consecutive vector `[n]` that is the same for all rows and batches, if strides are that.
fn vector(emitter: &GemmEmitter<'_>, strides: &MatrixStrides) -> Option<usize> {
    let GemmShape { m, n, .. } = emitter.extents;
    let is_same = (m == 1 || strides.row == 0) && strides.batch.iter().all(|&stride| stride == 0);
    (is_same && (n == 1 || strides.column == 1)).then_some(strides.offset)
}
