//! A contraction seen as a linear map of one operand, the other one being its matrix.

use super::Space;
use super::space::ClassView;
use egg::Id;
use orch_ir::{Contract, PrimOp, Shape};

/// `out = contract(x, matrix)`, labels as in [`Contract`], `x` on the left.
#[derive(Clone)]
pub(crate) struct ContractProduct {
    pub(crate) x: Id,
    pub(crate) matrix: Id,
    /// Labels of `x`.
    pub(crate) own: Vec<u8>,
    /// Labels of the matrix.
    pub(crate) other: Vec<u8>,
    /// Labels of the result.
    pub(crate) out: Vec<u8>,
}

impl ContractProduct {
    /// The two ways to see a contraction as a product; none for other primitives.
    pub(crate) fn both(view: &ClassView) -> Vec<ContractProduct> {
        let PrimOp::Contract(Contract { lhs, rhs, out }) = &*view.op else { return Vec::new() };
        let [l, r] = view.children[..] else { return Vec::new() };
        let product = |x, matrix, own: &[u8], other: &[u8]| ContractProduct {
            x,
            matrix,
            own: own.to_vec(),
            other: other.to_vec(),
            out: out.clone(),
        };
        vec![product(l, r, lhs, rhs), product(r, l, rhs, lhs)]
    }

    /// True for dimensions of `x` that the matrix does not have: the product acts at each of their positions alone.
    pub(crate) fn is_free(&self, dim: usize) -> bool {
        let label = self.own[dim];
        !self.other.contains(&label) && self.out.contains(&label)
    }

    /// True if every label of `x` is in the matrix or in the result.
    pub(crate) fn sums_shared_labels_only(&self) -> bool {
        self.own.iter().all(|label| self.other.contains(label) || self.out.contains(label))
    }

    /// The labels of the result in the order of `x`'s dimensions: new ones stand where the first summed one stood.
    pub(crate) fn in_place(&self) -> Vec<u8> {
        let mut new: Vec<u8> = self.out.iter().copied().filter(|label| !self.own.contains(label)).collect();
        let mut labels = Vec::with_capacity(self.out.len());
        for label in &self.own {
            if self.out.contains(label) {
                labels.push(*label);
            } else {
                labels.append(&mut new);
            }
        }
        labels.append(&mut new);
        labels
    }

    /// The dimension of the result that a label is.
    pub(crate) fn out_dim(&self, label: u8) -> Option<usize> {
        self.out.iter().position(|&other| other == label)
    }

    /// The result's shape with dimensions in the order of `labels`.
    pub(crate) fn shape_of(&self, space: &Space, labels: &[u8]) -> Shape {
        let extent = |label: &u8| match self.own.iter().position(|own| own == label) {
            Some(dim) => space.shape(self.x)[dim],
            None => {
                let dim = self.other.iter().position(|other| other == label);
                dim.map_or(1, |dim| space.shape(self.matrix)[dim])
            }
        };
        labels.iter().map(extent).collect::<Vec<_>>().into()
    }

    /// The contraction with these operands and labels.
    pub(crate) fn emit(&self, space: &mut Space) -> Option<Id> {
        let contract = Contract { lhs: self.own.clone(), rhs: self.other.clone(), out: self.out.clone() };
        space.emit(PrimOp::Contract(contract), &[self.x, self.matrix])
    }

    /// The same map of another tensor with labels `own`, its result in place.
    pub(crate) fn of(&self, x: Id, own: Vec<u8>) -> ContractProduct {
        let mut product = ContractProduct { x, own, ..self.clone() };
        product.out.retain(|label| product.own.contains(label) || product.other.contains(label));
        product.out.extend(product.own.iter().filter(|label| !self.own.contains(label)));
        product.out = product.in_place();
        product
    }

    /// A result in the order of `labels`, brought into the order of [`ContractProduct::out`].
    pub(crate) fn ordered(&self, space: &mut Space, x: Id, labels: &[u8]) -> Option<Id> {
        let perm = self
            .out
            .iter()
            .map(|label| labels.iter().position(|other| other == label))
            .collect::<Option<_>>()?;
        space.transpose(x, perm)
    }

    /// A label that neither operand has.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = u8> + use<> {
        let used: Vec<u8> = self.own.iter().chain(&self.other).chain(&self.out).copied().collect();
        (0..=u8::MAX).filter(move |label| !used.contains(label))
    }
}
