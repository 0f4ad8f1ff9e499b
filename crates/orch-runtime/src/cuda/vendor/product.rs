//! Matrix products, as they are described to vendor libraries.

use crate::program::{Access, BufferRef};
use serde::{Deserialize, Serialize};

/// `result[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, plus `bias[n]` and plus `addend[batch, m, n]` where
/// present. Accumulators are f32, bias and addend are added in f32, and what is stored is rounded once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MatrixProduct {
    /// Independent products.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The K dimension: elements that are summed.
    pub k: usize,
    /// Type of the operands `a` and `b`.
    #[serde(rename = "factors")]
    pub operands: Element,
    /// Type of result, bias and addend.
    pub stored: Element,
    /// Whether operands of f32 may be rounded to tf32 (10 bits of fraction).
    #[serde(default)]
    pub is_tf32: bool,
    /// Operand A, `[m, k]`.
    pub a: Matrix,
    /// Operand B, `[k, n]`.
    pub b: Matrix,
    /// `[m, n]`, row-major.
    pub result: Matrix,
    /// `[n]`, contiguous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Vector>,
    /// `[m, n]`, row-major.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addend: Option<Matrix>,
}

/// An element type that is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

/// A matrix for each batch, in an argument of a launch. Places are counted in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Matrix {
    /// Index of the tensor in the launch.
    pub argument: usize,
    /// The first element.
    pub offset: usize,
    /// Which elements are neighbours.
    pub order: MatrixOrder,
    /// From one row (or column) to the next.
    pub lead: usize,
    /// From one batch to the next.
    pub batch: usize,
}

/// Which elements of a matrix are neighbours in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixOrder {
    /// Those of a row.
    Rows,
    /// Those of a column.
    Columns,
}

/// Neighbouring elements of an argument of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vector {
    /// Index of the tensor in the launch.
    pub argument: usize,
    /// The first element.
    pub offset: usize,
}

/// Largest extent of a matrix, and most batches: libraries count them in 32 bits.
pub(in crate::cuda) const MAX_EXTENT: usize = i32::MAX as usize;

impl Element {
    /// Its size.
    pub fn size_bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }
}

impl MatrixProduct {
    /// What is wrong with it for a launch with these tensors, as clauses that begin with a verb.
    pub(in crate::cuda) fn violations(&self, buffers: &[BufferRef]) -> Vec<String> {
        let Self { batch, m, n, k, .. } = *self;
        if ![batch, m, n, k].iter().all(|extent| (1..=MAX_EXTENT).contains(extent)) {
            return vec![format!("calls for {batch} products of {m} x {k} by {k} x {n}")];
        }
        let mut violations = Vec::new();
        if [Some(self.result), self.addend].iter().flatten().any(|matrix| matrix.order != MatrixOrder::Rows) {
            violations.push("calls for a result or addend by columns".to_owned());
        }
        if self.stored != self.operands && self.stored != Element::F32 {
            violations.push(format!("calls for a result in {:?} of {:?}", self.stored, self.operands));
        }
        let matrices = [
            ("A operand", &self.a, (m, k), self.operands, Access::Read),
            ("B operand", &self.b, (k, n), self.operands, Access::Read),
            ("result", &self.result, (m, n), self.stored, Access::Write),
        ];
        let addend = self.addend.as_ref();
        let addend = addend.map(|matrix| ("addend", matrix, (m, n), self.stored, Access::Read));
        for (what, matrix, extents, element, access) in matrices.into_iter().chain(addend) {
            let end = matrix.end(extents, batch);
            let is_inside = end.is_some_and(|end| is_inside(buffers, matrix.argument, end, element, access));
            if !is_inside {
                violations.push(format!("calls for a product whose {what} is not in a tensor for it"));
            }
        }
        if let Some(bias) = self.bias {
            let end = bias.offset.checked_add(n);
            let read = Access::Read;
            if !end.is_some_and(|end| is_inside(buffers, bias.argument, end, self.stored, read)) {
                violations.push("calls for a product whose bias is not in a tensor for it".to_owned());
            }
        }
        violations
    }
}

impl Matrix {
    /// Lines of neighbouring elements, and elements of a line.
    pub(in crate::cuda) fn lines(&self, (rows, columns): (usize, usize)) -> (usize, usize) {
        match self.order {
            MatrixOrder::Rows => (rows, columns),
            MatrixOrder::Columns => (columns, rows),
        }
    }

    /// One more than the place of its last element; `None` if lines overlap or there is no such number.
    fn end(&self, extents: (usize, usize), batch: usize) -> Option<usize> {
        let (lines, line) = self.lines(extents);
        let last_batch = self.batch.checked_mul(batch - 1)?;
        let last_line = self.lead.checked_mul(lines - 1)?;
        let start = self.offset.checked_add(last_batch)?.checked_add(last_line)?;
        start.checked_add(line).filter(|_| self.lead >= line)
    }
}

/// True if that many elements are in an argument that is used like this.
pub(in crate::cuda) fn is_inside(
    buffers: &[BufferRef],
    argument: usize,
    end: usize,
    element: Element,
    access: Access,
) -> bool {
    let end_bytes = end.checked_mul(element.size_bytes());
    let buffer = buffers.get(argument).filter(|buffer| buffer.access == access);
    buffer.is_some_and(|buffer| end_bytes.is_some_and(|end| end <= buffer.len_bytes))
}
