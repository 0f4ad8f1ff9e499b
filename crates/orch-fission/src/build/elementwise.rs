//! Scalar functions of operands that broadcast together.

use super::layout::inserted_units;
use super::{Built, broadcast_shapes};
use crate::Context;
use orch_ir::{BinaryFn, CompareFn, DType, PrimOp, ScalarFn, Shape, TensorId, UnaryFn};

impl Context<'_> {
    /// A scalar function of operands that broadcast together.
    ///
    /// # Errors
    /// If they do not, or the function is not defined for their types.
    pub fn map(&mut self, f: ScalarFn, operands: &[TensorId]) -> Built {
        let shape = broadcast_shapes(operands.iter().map(|&operand| self.graph.shape(operand)))?;
        if let Some(sources) = self.without_units(operands, &shape) {
            let result = self.map(f, &sources)?;
            return self.reshape(result, shape.to_vec());
        }
        let operands = operands
            .iter()
            .map(|&operand| self.broadcast_to(operand, &shape))
            .collect::<Result<Vec<_>, _>>()?;
        self.emit(PrimOp::Map(f), &operands)
    }

    /// The operands before dimensions of extent 1 were inserted, if that was done to all of them alike; scalars
    /// do not count.
    ///
    /// A function of what a reduction left thus comes before the reshape that keeps its axes, and the broadcast
    /// that follows sees through that reshape.
    fn without_units(&self, operands: &[TensorId], shape: &Shape) -> Option<Vec<TensorId>> {
        let mut inner: Option<&Shape> = None;
        let mut sources = Vec::with_capacity(operands.len());
        for &operand in operands {
            if self.rank(operand) == 0 {
                sources.push(operand);
                continue;
            }
            let node = self.graph.node(self.graph.producer(operand)?);
            let (PrimOp::Reshape { shape: to }, &[source]) = (&node.op, node.inputs.as_slice()) else {
                return None;
            };
            let from = self.graph.shape(source);
            if to != shape || inner.is_some_and(|inner| inner != from) {
                return None;
            }
            inserted_units(from, to)?;
            inner = Some(from);
            sources.push(source);
        }
        inner.map(|_| sources)
    }

    /// A function of one operand.
    ///
    /// # Errors
    /// If it is not defined for the operand's type.
    pub fn unary(&mut self, f: UnaryFn, x: TensorId) -> Built {
        self.map(ScalarFn::Unary(f), &[x])
    }

    /// A function of two operands that broadcast together.
    ///
    /// # Errors
    /// If they do not, or the function is not defined for their types.
    pub fn binary(&mut self, f: BinaryFn, lhs: TensorId, rhs: TensorId) -> Built {
        self.map(ScalarFn::Binary(f), &[lhs, rhs])
    }

    /// Like [`Context::binary`], with a scalar constant on the right.
    ///
    /// # Errors
    /// If the function is not defined for the operand's type.
    pub fn binary_scalar(&mut self, f: BinaryFn, lhs: TensorId, rhs: f64) -> Built {
        let rhs = self.scalar_like(lhs, rhs);
        self.binary(f, lhs, rhs)
    }

    /// `lhs + rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Context::binary`].
    pub fn add(&mut self, lhs: TensorId, rhs: TensorId) -> Built {
        self.binary(BinaryFn::Add, lhs, rhs)
    }

    /// `lhs - rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Context::binary`].
    pub fn sub(&mut self, lhs: TensorId, rhs: TensorId) -> Built {
        self.binary(BinaryFn::Sub, lhs, rhs)
    }

    /// `lhs * rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Context::binary`].
    pub fn mul(&mut self, lhs: TensorId, rhs: TensorId) -> Built {
        self.binary(BinaryFn::Mul, lhs, rhs)
    }

    /// `lhs / rhs`, broadcasting.
    ///
    /// # Errors
    /// As [`Context::binary`].
    pub fn div(&mut self, lhs: TensorId, rhs: TensorId) -> Built {
        self.binary(BinaryFn::Div, lhs, rhs)
    }

    /// A comparison of operands that broadcast together.
    ///
    /// # Errors
    /// If they do not, or their types differ.
    pub fn compare(&mut self, f: CompareFn, lhs: TensorId, rhs: TensorId) -> Built {
        self.map(ScalarFn::Compare(f), &[lhs, rhs])
    }

    /// Like [`Context::compare`], with a scalar constant on the right.
    ///
    /// # Errors
    /// As [`Context::compare`].
    pub fn compare_scalar(&mut self, f: CompareFn, lhs: TensorId, rhs: f64) -> Built {
        let rhs = self.scalar_like(lhs, rhs);
        self.compare(f, lhs, rhs)
    }

    /// `condition ? if_true : if_false`, broadcasting.
    ///
    /// # Errors
    /// If the operands do not broadcast together or their types do not suit.
    pub fn select(&mut self, condition: TensorId, if_true: TensorId, if_false: TensorId) -> Built {
        self.map(ScalarFn::Select, &[condition, if_true, if_false])
    }

    /// Conversion to another element type.
    ///
    /// # Errors
    /// Never, for a tensor of this graph.
    pub fn cast(&mut self, x: TensorId, to: DType) -> Built {
        if self.dtype(x) == to { Ok(x) } else { self.map(ScalarFn::Cast(to), &[x]) }
    }

    /// The operand as `f32` if it is of a narrower float type: what normalisations and reductions compute in.
    ///
    /// # Errors
    /// Never, for a tensor of this graph.
    pub fn widen(&mut self, x: TensorId) -> Built {
        match self.dtype(x) {
            DType::F16 | DType::BF16 => self.cast(x, DType::F32),
            _ => Ok(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FissionOptions;

    #[test]
    fn functions_of_a_reduction_come_before_its_kept_axes() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.graph.add_input("x", DType::F32, [2, 3]);
        let mean = ctx.mean_keep(x, &[1]).expect("an axis");
        let root = ctx.unary(UnaryFn::Sqrt, mean).expect("floats");
        assert_eq!(ctx.shape(root)[..], [2, 1]);
        let y = ctx.div(x, root).expect("broadcasts");
        ctx.graph.add_output("y", y);
        let pruned = crate::prune::prune(&ctx.graph);
        let is_reshape = |node: &orch_ir::PrimNode| matches!(node.op, PrimOp::Reshape { .. });
        assert!(!pruned.nodes().iter().any(is_reshape), "{:?}", pruned.nodes());
    }
}
