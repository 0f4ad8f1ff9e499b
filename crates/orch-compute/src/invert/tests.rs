//! Inverses checked at every point.

use super::*;
use proptest::prelude::*;

/// A reshape, transposition or flip.
#[derive(Clone, Debug)]
enum Move {
    Reshape(Vec<usize>),
    Transpose(Vec<usize>),
    Flip(usize),
}

struct Fixture {
    exprs: Exprs,
    axes: Vec<VarId>,
    index: Vec<ExprId>,
    shape: Vec<usize>,
}

impl Fixture {
    fn new(shape: &[usize]) -> Self {
        let mut exprs = Exprs::new();
        let (axes, index) = shape.iter().map(|&extent| exprs.fresh_index("x", extent)).unzip();
        Self { exprs, axes, index, shape: shape.to_vec() }
    }

    /// Where the element goes.
    fn apply(&mut self, step: &Move) {
        match step {
            Move::Reshape(to) => {
                let strides = orch_ir::Shape::from(&self.shape[..]).strides();
                let linear = self.exprs.linear_index(&self.index, &strides);
                self.index = self.exprs.unflatten(linear, to);
                self.shape = to.clone();
            }
            Move::Transpose(perm) => {
                self.index = perm.iter().map(|&dim| self.index[dim]).collect();
                self.shape = perm.iter().map(|&dim| self.shape[dim]).collect();
            }
            Move::Flip(dim) => {
                let last = self.exprs.index(self.shape[*dim] as i64 - 1);
                self.index[*dim] = self.exprs.sub(last, self.index[*dim]);
            }
        }
    }

    fn inverse(&mut self) -> Option<(Vec<VarId>, Vec<ExprId>)> {
        let (point, at): (Vec<VarId>, Vec<ExprId>) =
            self.shape.iter().map(|&extent| self.exprs.fresh_index("p", extent)).unzip();
        let inverse = invert_index(&mut self.exprs, &self.index, &self.shape, &self.axes, &at)?;
        Some((point, inverse))
    }

    /// Whether the inverse, if one is found, holds at every point.
    fn inverse_is_right(&mut self) -> Option<bool> {
        let (point, inverse) = self.inverse()?;
        let map = IndexMap { axes: self.axes.clone(), index: self.index.clone(), point };
        Some(map.holds_everywhere(&self.exprs, &inverse))
    }
}

#[test]
fn chains_of_layout_changes_invert() {
    let chains: &[(&[usize], &[Move])] = &[
        (&[5], &[]),
        (&[3, 4], &[Move::Transpose(vec![1, 0])]),
        (&[12], &[Move::Reshape(vec![3, 4]), Move::Transpose(vec![1, 0])]),
        (&[2, 12, 4], &[Move::Reshape(vec![2, 3, 4, 4]), Move::Transpose(vec![0, 2, 1, 3])]),
        (&[6, 4], &[Move::Reshape(vec![8, 3]), Move::Transpose(vec![1, 0]), Move::Reshape(vec![4, 6])]),
        (&[1, 7, 1], &[Move::Reshape(vec![7]), Move::Flip(0)]),
        (&[4, 6], &[Move::Flip(1), Move::Reshape(vec![24]), Move::Flip(0), Move::Reshape(vec![2, 12])]),
        (&[9, 5], &[Move::Reshape(vec![3, 15]), Move::Transpose(vec![1, 0]), Move::Flip(0)]),
    ];
    for (shape, moves) in chains {
        let mut t = Fixture::new(shape);
        moves.iter().for_each(|step| t.apply(step));
        assert_eq!(t.inverse_is_right(), Some(true), "{shape:?} {moves:?}");
    }
}

#[test]
fn large_maps_are_proved_without_enumeration() {
    // The head split of attention: [8, 197, 768] -> [8, 197, 12, 64] -> [8, 12, 197, 64].
    let mut t = Fixture::new(&[8, 197, 768]);
    t.apply(&Move::Reshape(vec![8, 197, 12, 64]));
    t.apply(&Move::Transpose(vec![0, 2, 1, 3]));
    let (point, inverse) = t.inverse().expect("an inverse");
    let at: Vec<ExprId> = point.iter().map(|&var| t.exprs.var(var)).collect();
    let channel = t.exprs.linear_index(&[at[1], at[3]], &[64, 1]);
    assert_eq!(inverse, [at[0], at[2], channel]);
}

#[test]
fn what_is_no_bijection_is_refused() {
    // Too small, too large, not injective, out of the shape, a broadcast.
    let mut t = Fixture::new(&[3, 4]);
    t.shape = vec![3, 5];
    assert!(t.inverse().is_none());
    t.shape = vec![3, 3];
    assert!(t.inverse().is_none());
    let mut t = Fixture::new(&[2, 2]);
    t.index = vec![t.index[0], t.index[0]];
    assert!(t.inverse().is_none());
    let mut t = Fixture::new(&[4]);
    t.index[0] = t.exprs.add_const(t.index[0], 1);
    assert!(t.inverse().is_none());
    let mut t = Fixture::new(&[4]);
    t.index[0] = t.exprs.mul_const(t.index[0], 2);
    assert!(t.inverse().is_none());
    let mut t = Fixture::new(&[4, 3]);
    t.index = vec![t.index[1], t.index[0]];
    t.shape = vec![4, 3];
    assert!(t.inverse().is_none());
    // A flattening that happens to be complete although an index leaves its dimension.
    let mut t = Fixture::new(&[2, 6]);
    t.shape = vec![4, 3];
    let doubled = t.exprs.mul_const(t.index[0], 2);
    t.index = vec![doubled, t.index[1]];
    assert!(t.inverse().is_none());
}

#[test]
fn scalars_invert_to_nothing() {
    assert_eq!(Fixture::new(&[]).inverse().map(|(_, inverse)| inverse), Some(vec![]));
}

/// Random factors with random moves that regroup, permute and flip them.
fn moves() -> impl Strategy<Value = (Vec<usize>, Vec<(u8, bool, usize)>)> {
    let step = (0u8..3, any::<bool>(), 0usize..1000);
    (proptest::collection::vec(1usize..5, 1..6), proptest::collection::vec(step, 0..6))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_inverse_is_right((factors, steps) in moves()) {
        let mut t = Fixture::new(&factors);
        for (kind, splits, seed) in steps {
            let rank = t.shape.len();
            let step = match kind {
                0 => {
                    let total: usize = t.shape.iter().product();
                    let divisors: Vec<usize> = (1..=total).filter(|d| total.is_multiple_of(*d)).collect();
                    let first = divisors[seed % divisors.len()];
                    Move::Reshape(if splits { vec![first, total / first] } else { factors.clone() })
                }
                1 => {
                    let mut perm: Vec<usize> = (0..rank).collect();
                    perm.rotate_left(seed % rank);
                    Move::Transpose(perm)
                }
                _ => Move::Flip(seed % rank),
            };
            t.apply(&step);
        }
        prop_assert_ne!(t.inverse_is_right(), Some(false));
    }

    #[test]
    fn regrouped_permutations_always_invert(
        factors in proptest::collection::vec(1usize..5, 1..6),
        rotation in 0usize..6,
        cut in proptest::collection::vec(any::<bool>(), 6),
    ) {
        // [factors] -> permuted -> grouped as `cut` says.
        let mut t = Fixture::new(&factors);
        let mut perm: Vec<usize> = (0..factors.len()).collect();
        perm.rotate_left(rotation % factors.len());
        t.apply(&Move::Transpose(perm.clone()));
        let mut grouped = vec![1];
        for (at, &dim) in perm.iter().enumerate() {
            if cut[at] {
                grouped.push(factors[dim]);
            } else {
                *grouped.last_mut().expect("starts with one") *= factors[dim];
            }
        }
        t.apply(&Move::Reshape(grouped));
        prop_assert_eq!(t.inverse_is_right(), Some(true));
    }
}
