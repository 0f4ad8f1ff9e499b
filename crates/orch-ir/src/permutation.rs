//! Orders of dimensions, as [`Transpose`](crate::PrimOp::Transpose) has them: dimension `i` of the result is dimension `perm[i]` of the
//! operand.

/// The position of each dimension of the operand in the result of a transpose: the order that undoes it.
#[must_use]
pub fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(position, &dim)| inverse[dim] = position);
    inverse
}

/// Whether an order of three dimensions or more exchanges the first two and leaves the others: images and channels of a batch.
#[must_use]
pub fn exchanges_first_two(perm: &[usize]) -> bool {
    perm.len() > 2 && perm[..2] == [1, 0] && perm[2..].iter().copied().eq(2..perm.len())
}

#[cfg(test)]
mod tests {
    use super::{exchanges_first_two, inverse};

    #[test]
    fn an_order_is_undone() {
        let perm = [2, 0, 3, 1];
        let undone = inverse(&perm);
        assert_eq!(undone, [1, 3, 0, 2]);
        assert!((0..4).all(|dim| perm[undone[dim]] == dim));
        assert_eq!(inverse(&[]), Vec::<usize>::new());
    }

    #[test]
    fn only_the_first_two_are_exchanged() {
        assert!(exchanges_first_two(&[1, 0, 2]) && exchanges_first_two(&[1, 0, 2, 3]));
        assert!(
            !exchanges_first_two(&[1, 0])
                && !exchanges_first_two(&[0, 1, 2])
                && !exchanges_first_two(&[1, 0, 3, 2])
        );
    }
}
