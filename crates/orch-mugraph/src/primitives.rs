//! A program of predefined operators as a graph of primitives: the same computation, for what compiles and interprets those.

use crate::graph::{InputKind, MuGraph, Node, TensorId};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use orch_ir::{
    BinaryFn as Binary, CompareFn, Contract, DType, InferError, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape,
    Tensor, UnaryFn as Unary,
};

/// Why a program has no primitives.
#[derive(Debug, thiserror::Error)]
pub enum NoPrimitives {
    /// A kernel is defined by a block graph.
    #[error("{0} is defined by a block graph, not by an operator")]
    Block(TensorId),
    /// A tensor is too large.
    #[error("{0}: too many elements")]
    TooLarge(TensorId),
    /// The program is not valid.
    #[error(transparent)]
    Invalid(#[from] InferError),
}

/// The primitives of a program: numbers are f32, masks `bool`. Inputs and outputs keep their names and their order.
///
/// # Errors
/// If the program is not valid, or has kernels that are not predefined.
pub fn primitives(program: &MuGraph) -> Result<PrimGraph, NoPrimitives> {
    let mut builder = Builder { graph: PrimGraph::new(program.name.clone()), values: Vec::new() };
    for (tensor, node) in program.nodes() {
        let shape = program.shape(tensor);
        Shape::checked(shape).ok_or(NoPrimitives::TooLarge(tensor))?;
        builder.graph.set_origin(tensor.to_string());
        let value = match node {
            Node::Input { name, kind, shape } => {
                let dtype = if *kind == InputKind::Mask { DType::Bool } else { DType::F32 };
                builder.graph.add_input(name.clone(), dtype, shape.clone())
            }
            Node::Op { op, args } => {
                let args: Vec<Value> = args.iter().map(|arg| builder.values[arg.index()]).collect();
                builder.op(op, &args, shape)?
            }
            Node::Block(_) => return Err(NoPrimitives::Block(tensor)),
        };
        builder.values.push(value);
    }
    for (name, tensor) in program.outputs() {
        let value = builder.numbers(builder.values[tensor.index()])?;
        builder.graph.add_output(name.clone(), value);
    }
    Ok(builder.graph)
}

/// A tensor of the primitive graph.
type Value = orch_ir::TensorId;

struct Builder {
    graph: PrimGraph,
    /// Of each tensor of the program.
    values: Vec<Value>,
}

impl Builder {
    fn op(&mut self, op: &Op, args: &[Value], result: &[usize]) -> Result<Value, InferError> {
        let args: Vec<Value> = match takes_masks(op) {
            true => args.to_vec(),
            false => args.iter().map(|&arg| self.numbers(arg)).collect::<Result<_, _>>()?,
        };
        match op {
            Op::Matmul => self.matmul(args[0], args[1]),
            Op::Unary(f) => self.unary(*f, args[0]),
            Op::Scale(factor) => self.with_number(Binary::Mul, args[0], factor.to_f64()),
            Op::Offset(number) => self.with_number(Binary::Add, args[0], number.to_f64()),
            Op::Binary(f) => match primitive(*f) {
                None => self.mask(args[0], args[1], result),
                Some(f) => {
                    let lhs = self.repeated(args[0], result)?;
                    let rhs = self.repeated(args[1], result)?;
                    self.binary(f, lhs, rhs)
                }
            },
            Op::Reduce { f, dim, keep } => self.reduce(*f, args[0], (*dim, *keep)),
            Op::RmsNorm { eps } => self.rms_norm(args[0], eps.to_f64()),
            Op::Transpose(perm) => self.graph.add(PrimOp::Transpose { perm: perm.clone() }, &args),
            Op::Reshape(shape) => self.reshape(args[0], shape.clone()),
            Op::Broadcast(shape) => self.repeated(args[0], shape),
            Op::Slice { dim, start, len } => self.slice(args[0], *dim, (*start, *len)),
            Op::Repeat { dim, times } => {
                let shape = self.extents(args[0]);
                let with = |count| spliced(&shape, *dim, &[shape[*dim], count]);
                let apart = self.reshape(args[0], with(1))?;
                let repeated = self.repeated(apart, &with(*times))?;
                self.reshape(repeated, result.to_vec())
            }
            Op::Rotate { dim, group } => self.rotate(args[0], *dim, *group),
            Op::Concat { dim } => self.graph.add(PrimOp::Concat { axis: *dim }, &args),
            Op::Causal { shape, offset } => {
                let rank = shape.len();
                Ok(self.computed_mask(shape, |at| at[rank - 1] as i64 <= at[rank - 2] as i64 + offset))
            }
            Op::Below { shape, dim, limit } => Ok(self.computed_mask(shape, |at| at[*dim] < *limit)),
        }
    }

    fn extents(&self, value: Value) -> Vec<usize> {
        self.graph.shape(value).to_vec()
    }

    /// A mask as zeros and ones.
    fn numbers(&mut self, value: Value) -> Result<Value, InferError> {
        match self.graph.dtype(value) {
            DType::Bool => self.graph.add(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[value]),
            _ => Ok(value),
        }
    }

    fn number(&mut self, number: f64, shape: &[usize]) -> Result<Value, InferError> {
        let constant = self.graph.add_constant(Tensor::from_f64(DType::F32, Shape::scalar(), &[number]));
        self.graph.add(PrimOp::Broadcast { shape: Shape::from(shape), dims: Vec::new() }, &[constant])
    }

    fn map(&mut self, f: Unary, value: Value) -> Result<Value, InferError> {
        self.graph.add(PrimOp::Map(f.into()), &[value])
    }

    fn binary(&mut self, f: Binary, lhs: Value, rhs: Value) -> Result<Value, InferError> {
        self.graph.add(PrimOp::Map(f.into()), &[lhs, rhs])
    }

    fn with_number(&mut self, f: Binary, value: Value, number: f64) -> Result<Value, InferError> {
        let number = self.number(number, &self.extents(value))?;
        self.binary(f, value, number)
    }

    fn reshape(&mut self, value: Value, shape: Vec<usize>) -> Result<Value, InferError> {
        self.graph.add(PrimOp::Reshape { shape: Shape::from(shape) }, &[value])
    }

    /// Extents of 1 repeated.
    fn repeated(&mut self, value: Value, shape: &[usize]) -> Result<Value, InferError> {
        if self.extents(value) == shape {
            return Ok(value);
        }
        let dims = (0..shape.len()).collect();
        self.graph.add(PrimOp::Broadcast { shape: Shape::from(shape), dims }, &[value])
    }

    fn slice(&mut self, value: Value, dim: usize, (start, len): (usize, usize)) -> Result<Value, InferError> {
        let mut sizes = self.extents(value);
        let (mut starts, steps) = (vec![0; sizes.len()], vec![1; sizes.len()]);
        (starts[dim], sizes[dim]) = (start as i64, len);
        self.graph.add(PrimOp::Slice { starts, steps, sizes }, &[value])
    }

    /// Leading extents of 1 of one operand are left out of its labels, which repeats them.
    fn matmul(&mut self, lhs: Value, rhs: Value) -> Result<Value, InferError> {
        let shapes = [self.extents(lhs), self.extents(rhs)];
        let batch = shapes[0].len() - 2;
        let whole = Contract::matmul(batch);
        let mut operand = |value: Value, own: usize, labels: &[u8]| {
            let is_repeated = |dim: usize| dim < batch && shapes[own][dim] == 1 && shapes[1 - own][dim] != 1;
            let kept: Vec<usize> = (0..batch + 2).filter(|&dim| !is_repeated(dim)).collect();
            let shape: Vec<usize> = kept.iter().map(|&dim| shapes[own][dim]).collect();
            let value = match kept.len() == batch + 2 {
                true => value,
                false => self.reshape(value, shape)?,
            };
            Ok((value, kept.iter().map(|&dim| labels[dim]).collect()))
        };
        let (lhs, lhs_labels) = operand(lhs, 0, &whole.lhs)?;
        let (rhs, rhs_labels) = operand(rhs, 1, &whole.rhs)?;
        let contract = Contract { lhs: lhs_labels, rhs: rhs_labels, out: whole.out };
        self.graph.add(PrimOp::Contract(contract), &[lhs, rhs])
    }

    /// The value where the mask is not 0, else minus infinity.
    fn mask(&mut self, value: Value, mask: Value, shape: &[usize]) -> Result<Value, InferError> {
        let value = self.numbers(value)?;
        let mask = match self.graph.dtype(mask) {
            DType::Bool => mask,
            _ => self.graph.add(PrimOp::Map(ScalarFn::Cast(DType::Bool)), &[mask])?,
        };
        let mask = self.repeated(mask, shape)?;
        let hidden = self.number(f64::NEG_INFINITY, shape)?;
        self.graph.add(PrimOp::Map(ScalarFn::Select), &[mask, value, hidden])
    }

    fn unary(&mut self, f: UnaryFn, x: Value) -> Result<Value, InferError> {
        match f {
            UnaryFn::Exp => self.map(Unary::Exp, x),
            UnaryFn::Square => self.binary(Binary::Mul, x, x),
            UnaryFn::Sqrt => self.map(Unary::Sqrt, x),
            UnaryFn::Sigmoid => self.sigmoid(x),
            UnaryFn::Silu => {
                let sigmoid = self.sigmoid(x)?;
                self.binary(Binary::Mul, x, sigmoid)
            }
            UnaryFn::Tanh => self.map(Unary::Tanh, x),
            UnaryFn::Gelu => self.gelu(x),
            UnaryFn::Relu => self.with_number(Binary::Max, x, 0.0),
            UnaryFn::Erf => self.map(Unary::Erf, x),
            UnaryFn::Log => self.map(Unary::Log, x),
            UnaryFn::Guard => {
                let shape = self.extents(x);
                let (lowest, zero) = (self.number(f64::NEG_INFINITY, &shape)?, self.number(0.0, &shape)?);
                let is_lowest = self.graph.add(PrimOp::Map(CompareFn::Eq.into()), &[x, lowest])?;
                self.graph.add(PrimOp::Map(ScalarFn::Select), &[is_lowest, zero, x])
            }
        }
    }

    fn sigmoid(&mut self, x: Value) -> Result<Value, InferError> {
        let negated = self.map(Unary::Neg, x)?;
        let power = self.map(Unary::Exp, negated)?;
        let sum = self.with_number(Binary::Add, power, 1.0)?;
        self.map(Unary::Recip, sum)
    }

    /// `x (1 + tanh(sqrt(2 / π) (x + 0.044715 x³))) / 2`
    fn gelu(&mut self, x: Value) -> Result<Value, InferError> {
        let square = self.binary(Binary::Mul, x, x)?;
        let cube = self.binary(Binary::Mul, square, x)?;
        let small = self.with_number(Binary::Mul, cube, 0.044715)?;
        let sum = self.binary(Binary::Add, x, small)?;
        let argument = self.with_number(Binary::Mul, sum, (2.0 / std::f64::consts::PI).sqrt())?;
        let tanh = self.map(Unary::Tanh, argument)?;
        let weight = self.with_number(Binary::Add, tanh, 1.0)?;
        let double = self.binary(Binary::Mul, x, weight)?;
        self.with_number(Binary::Mul, double, 0.5)
    }

    fn rms_norm(&mut self, x: Value, eps: f64) -> Result<Value, InferError> {
        let shape = self.extents(x);
        let last = shape.len() - 1;
        let square = self.binary(Binary::Mul, x, x)?;
        let sum = self.reduce(ReduceFn::Sum, square, (last, 1))?;
        let mean = self.with_number(Binary::Mul, sum, 1.0 / shape[last].max(1) as f64)?;
        let mean = self.with_number(Binary::Add, mean, eps)?;
        let root = self.map(Unary::Sqrt, mean)?;
        let root = self.repeated(root, &shape)?;
        self.binary(Binary::Div, x, root)
    }

    fn reduce(
        &mut self,
        f: ReduceFn,
        value: Value,
        (dim, keep): (usize, usize),
    ) -> Result<Value, InferError> {
        let shape = self.extents(value);
        let apart = self.reshape(value, spliced(&shape, dim, &[shape[dim] / keep, keep]))?;
        let op = match f {
            ReduceFn::Sum => ReduceOp::Sum,
            ReduceFn::Max => ReduceOp::Max,
        };
        self.graph.add(PrimOp::Reduce { op, axes: vec![dim] }, &[apart])
    }

    fn rotate(&mut self, value: Value, dim: usize, group: usize) -> Result<Value, InferError> {
        let shape = self.extents(value);
        let pairs = self.reshape(value, spliced(&shape, dim, &[shape[dim] / (2 * group), 2, group]))?;
        let first = self.slice(pairs, dim + 1, (0, 1))?;
        let second = self.slice(pairs, dim + 1, (1, 1))?;
        let second = self.map(Unary::Neg, second)?;
        let turned = self.graph.add(PrimOp::Concat { axis: dim + 1 }, &[second, first])?;
        self.reshape(turned, shape)
    }

    fn computed_mask(&mut self, shape: &[usize], keeps: impl Fn(&[usize]) -> bool) -> Value {
        let steps = crate::array::strides(shape);
        let kept = |place: usize| {
            let at: Vec<usize> =
                steps.iter().zip(shape).map(|(step, extent)| place / step % extent).collect();
            keeps(&at)
        };
        let values: Vec<bool> = (0..crate::op::elems(shape)).map(kept).collect();
        self.graph.add_constant(Tensor::from_bools(shape.to_vec(), &values))
    }
}

/// True of masking and of what moves elements: masks stay `bool`.
fn takes_masks(op: &Op) -> bool {
    matches!(
        op,
        Op::Binary(BinaryFn::Mask)
            | Op::Transpose(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Slice { .. }
            | Op::Repeat { .. }
    )
}

/// The primitive of two numbers; `None` of masking.
fn primitive(f: BinaryFn) -> Option<Binary> {
    match f {
        BinaryFn::Add => Some(Binary::Add),
        BinaryFn::Sub => Some(Binary::Sub),
        BinaryFn::Mul => Some(Binary::Mul),
        BinaryFn::Div => Some(Binary::Div),
        BinaryFn::Max => Some(Binary::Max),
        BinaryFn::Mask => None,
    }
}

/// `shape` with several extents in place of one.
fn spliced(shape: &[usize], dim: usize, extents: &[usize]) -> Vec<usize> {
    [&shape[..dim], extents, &shape[dim + 1..]].concat()
}
