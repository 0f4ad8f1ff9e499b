//! Contractions that are products of matrices in memory: libraries compute them, too.
//!
//! `result[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, plus `bias[n]` and plus `addend[batch, m, n]` where
//! there are such. Sums are f32, bias and addend are added in f32, and what is stored is rounded once, as by the template's
//! own kernels: results differ in the order of additions only. Everything else - factors that are computed or converted on the way, results in several parts, any other
//! epilogue - is no such product.

use super::array::{Anywhere, Array, Places};
use super::lower::Lowering;
use super::schedule::{ContractionSchedule, Engine};
use crate::contraction::{ContractionForm, GemmShape};
use crate::gpu::cta::stores_of;
use orch_compute::block::BlockProgram;
use orch_compute::expr::{BufferId, Expr, ExprId};
use orch_ir::{BinaryFn, DType};
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;
use orch_thread::kernel::Binding;

/// A product of matrices that are in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixProduct {
    /// Its extents.
    pub extents: GemmShape,
    /// What is passed for each buffer that the matrices name, as for a kernel.
    pub bindings: Vec<Binding>,
    /// Element type of the factors.
    pub factors: DType,
    /// Element type of result, bias and addend.
    pub stored: DType,
    /// Whether factors of f32 may be multiplied with 10 bits of their fraction.
    pub is_tf32: bool,
    /// The first factor: `m` rows and `k` columns.
    pub a: Matrix,
    /// The second factor: `k` rows and `n` columns.
    pub b: Matrix,
    /// `m` rows and `n` columns, those of a row one after the other.
    pub result: Matrix,
    /// What is added to each column, `n` elements one after the other: its buffer and its first element.
    pub bias: Option<(BufferId, usize)>,
    /// What is added to each element, as the result lies in memory or with other distances.
    pub addend: Option<Matrix>,
}

/// A matrix for each batch, in a buffer. Places are counted in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// The buffer.
    pub buffer: BufferId,
    /// The first element.
    pub offset: usize,
    /// Which elements are neighbours.
    pub order: MatrixOrder,
    /// From one row (or column) to the next: at least as much as it is long.
    pub lead: usize,
    /// From one batch to the next.
    pub batch: usize,
}

/// Which elements of a matrix are neighbours in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixOrder {
    /// Those of a row.
    Rows,
    /// Those of a column.
    Columns,
}

/// No tile is made of what is only looked at: any schedule will do.
pub(super) const ANY_SCHEDULE: ContractionSchedule = ContractionSchedule {
    block_m: 16,
    block_n: 16,
    block_k: 16,
    warps_m: 1,
    warps_n: 1,
    stages: 2,
    split_k: 1,
    wgmma: false,
    tma: false,
};

/// A block program as a product of matrices; `None` if it is not exactly that.
pub fn product(block: &BlockProgram, factors: OperandPrecision) -> Option<MatrixProduct> {
    let form = ContractionForm::of(block).ok()?;
    let engine = Engine::of(block, &form, factors)?;
    let is_tf32 = engine == Engine::Matrix(MmaType::Tf32);
    let is_multiplied = matches!(engine, Engine::Matrix(_) | Engine::Scalar(DType::F32));
    let mut lowering = Lowering::new(block, form, engine, ANY_SCHEDULE);
    let extents = lowering.extents;
    let GemmShape { batch, m, n, k } = extents;
    if !is_multiplied || [batch, m, n, k].contains(&0) {
        return None;
    }
    lowering.place_task(&mut Vec::new());
    let (sides, bindings) = lowering.declare_arguments();
    let a = factor(Array::of(&mut lowering, &sides[0])?, (m, k))?;
    let columns = Array::of(&mut lowering, &sides[1])?;
    // Its rows are the columns of the product's second factor.
    let b = factor(columns, (n, k))?;
    let b = Matrix { order: b.order.other(), ..b };
    let Stored { result, dtype: stored, bias, addend } = result(&mut lowering)?;
    let factors = engine.factor_type();
    Some(MatrixProduct { extents, bindings, factors, stored, is_tf32, a, b, result, bias, addend })
}

impl MatrixOrder {
    fn other(self) -> Self {
        match self {
            MatrixOrder::Rows => MatrixOrder::Columns,
            MatrixOrder::Columns => MatrixOrder::Rows,
        }
    }
}

/// A factor as rows of terms.
fn factor(array: Array, extents: (usize, usize)) -> Option<Matrix> {
    let batch: Vec<usize> = array.batch.iter().map(|&(extent, _)| extent).collect();
    matrix(array.buffer, &array.places, extents, &batch)
}

/// Places as those of a matrix of so many rows and lines of them.
fn matrix(
    buffer: BufferId,
    places: &Places,
    (rows, columns): (usize, usize),
    batch: &[usize],
) -> Option<Matrix> {
    // Of a single row or column the stride is anything.
    let row = if rows == 1 { None } else { Some(places.row) };
    let column = if columns == 1 { None } else { Some(places.line) };
    let (order, lead) = match (row, column) {
        (row, None | Some(1)) if row.is_none_or(|row| row >= columns) => {
            (MatrixOrder::Rows, row.unwrap_or(columns))
        }
        (None | Some(1), column) if column.is_none_or(|column| column >= rows) => {
            (MatrixOrder::Columns, column.unwrap_or(rows))
        }
        _ => return None,
    };
    let batch = flat_stride(batch, &places.batch)?;
    Some(Matrix { buffer, offset: places.offset, order, lead, batch })
}

/// From one place to the next of several axes seen as one, if they are at equal distances.
fn flat_stride(extents: &[usize], strides: &[usize]) -> Option<usize> {
    let axes = extents.iter().copied().zip(strides.iter().copied());
    let axes: Vec<(usize, usize)> = axes.filter(|&(extent, _)| extent > 1).collect();
    let is_flat = axes.windows(2).all(|pair| pair[0].1 == pair[1].0 * pair[1].1);
    is_flat.then(|| axes.last().map_or(0, |&(_, stride)| stride))
}

/// What is stored where, if it is the sum with at most a bias and an addend.
struct Stored {
    result: Matrix,
    dtype: DType,
    bias: Option<(BufferId, usize)>,
    addend: Option<Matrix>,
}

fn result(lowering: &mut Lowering<'_>) -> Option<Stored> {
    let bindings = lowering.flat.bindings.clone();
    let stores = stores_of(lowering.block, &mut lowering.source, &bindings);
    let &[(arg, offset, body)] = &stores[..] else { return None };
    let GemmShape { m, n, .. } = lowering.extents;
    let anywhere = Anywhere::new(lowering, (lowering.flat.m, m), lowering.flat.n, n);
    let (offset, body) = (anywhere.import(lowering, offset), anywhere.import(lowering, body));
    let places = anywhere.places(lowering, offset)?;
    let batch: Vec<usize> = lowering.form.batch.iter().map(|&axis| lowering.block.extent(axis)).collect();
    let result = matrix(lowering.arg_buffers[arg.index()]?, &places, (m, n), &batch)?;
    let stored = lowering.block.arg(arg).dtype;
    let is_stored = [DType::F32, lowering.engine.factor_type()].contains(&stored);
    if result.order != MatrixOrder::Rows || !is_stored {
        return None;
    }
    let (mut bias, mut addend) = (None, None);
    for (buffer, offset) in added(lowering, body, stored)? {
        let places = anywhere.places(lowering, offset)?;
        let vector = vector(lowering, &places);
        if let Some(first) = vector.filter(|_| bias.is_none()) {
            bias = Some((buffer, first));
        } else {
            let matrix = matrix(buffer, &places, (m, n), &batch)?;
            let is_alike = matrix.order == MatrixOrder::Rows && addend.replace(matrix).is_none();
            is_alike.then_some(())?;
        }
    }
    Some(Stored { result, dtype: stored, bias, addend })
}

/// What is added to the sum, if nothing else happens to it, as buffers and places.
pub(super) fn added(lowering: &Lowering<'_>, body: ExprId, stored: DType) -> Option<Vec<(BufferId, ExprId)>> {
    let exprs = &lowering.program.exprs;
    let sum_type = exprs.var_info(lowering.sum).ty.dtype;
    let inner = |id: ExprId, to: DType| match *exprs.get(id) {
        Expr::Cast(dtype, inner) if dtype == to => inner,
        _ => id,
    };
    let (mut found, mut sums) = (Vec::new(), 0);
    let mut open = vec![inner(body, stored)];
    while let Some(id) = open.pop() {
        match *exprs.get(id) {
            Expr::Binary(BinaryFn::Add, lhs, rhs) => open.extend([rhs, lhs]),
            Expr::Var(var) if var == lowering.sum => sums += 1,
            _ => {
                let loaded = inner(id, DType::F32);
                let Expr::Load { buffer, offset, lanes: 1, mask: None } = *exprs.get(loaded) else {
                    return None;
                };
                (lowering.program.buffer(buffer).dtype == stored).then_some(())?;
                found.push((buffer, offset));
            }
        }
    }
    // A sum of another type than f32 was rounded to that already.
    let is_exact = sum_type == DType::F32 || sum_type == stored && found.is_empty();
    (sums == 1 && is_exact).then_some(found)
}

/// The first element of a vector that has one for each column, whatever row and batch.
fn vector(lowering: &Lowering<'_>, places: &Places) -> Option<usize> {
    let GemmShape { m, n, .. } = lowering.extents;
    let is_same = (m == 1 || places.row == 0) && places.batch.iter().all(|&stride| stride == 0);
    (is_same && (n == 1 || places.line == 1)).then_some(places.offset)
}
