//! `Det`: determinants.
//!
//! Operand: `x [.., m, m]`. Result `[..]`. Gaussian elimination with partial pivoting.
//!
//! - ints, floats, texts: `[]`

use super::Call;
use crate::EvalError;
use orch_ir::Tensor;

/// Runs the routine.
///
/// # Errors
/// If the operand is not a stack of square matrices.
pub fn det(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x] = call.operands()?;
    let [batch @ .., rows, columns] = x.shape().dims() else {
        return Err(call.error(format!("x is {}, matrices expected", x.shape())));
    };
    if rows != columns {
        return Err(call.error(format!("x is {}, square matrices expected", x.shape())));
    }
    let matrices: usize = batch.iter().product();
    let (size, values) = (rows * columns, x.to_f64());
    let results: Vec<f64> =
        (0..matrices).map(|index| determinant(values[index * size..][..size].to_vec(), *rows)).collect();
    Ok(call.result(batch, &results))
}

/// The determinant of a row-major square matrix.
fn determinant(mut matrix: Vec<f64>, n: usize) -> f64 {
    let mut result = 1.0;
    for column in 0..n {
        let magnitude = |row: &usize| matrix[row * n + column].abs();
        let pivot = (column..n).max_by(|a, b| magnitude(a).total_cmp(&magnitude(b))).unwrap_or(column);
        if pivot != column {
            result = -result;
            (0..n).for_each(|at| matrix.swap(pivot * n + at, column * n + at));
        }
        let diagonal = matrix[column * n + column];
        result *= diagonal;
        if diagonal == 0.0 {
            return result;
        }
        for row in column + 1..n {
            let factor = matrix[row * n + column] / diagonal;
            for at in column..n {
                matrix[row * n + at] -= factor * matrix[column * n + at];
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_determinants() {
        assert_eq!(determinant(vec![], 0), 1.0);
        assert_eq!(determinant(vec![3.0], 1), 3.0);
        assert_eq!(determinant(vec![0.0, 2.0, 3.0, 4.0], 2), -6.0);
        assert_eq!(determinant(vec![1.0, 2.0, 2.0, 4.0], 2), 0.0);
        assert_eq!(determinant(vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 3), 1.0);
    }
}
