//! Axes as ONNX writes them: negative ones count from the end.

use crate::RuleError;

/// The axis counted from 0, for a tensor of this rank.
///
/// # Errors
/// If it is not in `-rank..rank`.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, RuleError> {
    let signed_rank = rank as i64;
    if (-signed_rank..signed_rank).contains(&axis) {
        Ok((if axis < 0 { axis + signed_rank } else { axis }) as usize)
    } else {
        Err(RuleError::invalid(format!("axis {axis} of a tensor with {rank} dimensions")))
    }
}

/// The axes counted from 0, in ascending order.
///
/// # Errors
/// If one is not in `-rank..rank`, or occurs twice.
pub fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, RuleError> {
    let mut normal = axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    normal.sort_unstable();
    if normal.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(RuleError::invalid(format!("axes {axes:?} name an axis twice")));
    }
    Ok(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_axes_count_from_the_end() {
        assert_eq!(normalize_axes(&[-1, 0], 3), Ok(vec![0, 2]));
        assert!(normalize_axis(3, 3).is_err());
        assert!(normalize_axis(i64::MIN, 3).is_err());
        assert!(normalize_axes(&[-1, 2], 3).is_err());
    }
}
