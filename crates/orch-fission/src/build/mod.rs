//! Constructors of primitives: numpy broadcasting, and nothing where nothing happens (identity reshapes,
//! transpositions, broadcasts, slices, conversions).

mod elementwise;
mod layout;
mod reduction;

use crate::RuleError;
use orch_ir::{Shape, TensorId};

type Built = Result<TensorId, RuleError>;

/// The shape that numpy's rules broadcast these shapes to.
///
/// # Errors
/// If two extents differ and neither is 1, or the result is absurdly large.
pub(crate) fn broadcast_shapes<'s>(shapes: impl IntoIterator<Item = &'s Shape>) -> Result<Shape, RuleError> {
    let mut reversed: Vec<usize> = Vec::new();
    for shape in shapes {
        for (position, &extent) in shape.iter().rev().enumerate() {
            match reversed.get_mut(position) {
                None => reversed.push(extent),
                Some(known) if *known == 1 => *known = extent,
                Some(known) if extent == 1 || extent == *known => {}
                Some(known) => {
                    return Err(RuleError::invalid(format!(
                        "shape {shape} does not broadcast with extent {known} of another operand"
                    )));
                }
            }
        }
    }
    reversed.reverse();
    checked_shape(reversed)
}

/// A shape from extents that a model asks for.
///
/// # Errors
/// If it is absurdly large.
pub(crate) fn checked_shape(dims: Vec<usize>) -> Result<Shape, RuleError> {
    let text = format!("{dims:?}");
    Shape::checked(dims).ok_or_else(|| RuleError::invalid(format!("a tensor of shape {text} is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_numpy() {
        let of = |dims: &[&[usize]]| {
            let shapes: Vec<Shape> = dims.iter().map(|&d| d.into()).collect();
            broadcast_shapes(&shapes).map(|shape| shape.to_vec())
        };
        assert_eq!(of(&[&[3, 1], &[4]]), Ok(vec![3, 4]));
        assert_eq!(of(&[&[], &[2, 0], &[1]]), Ok(vec![2, 0]));
        assert!(of(&[&[3], &[4]]).is_err());
    }
}
