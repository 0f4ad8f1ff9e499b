//! The floating-point meaning of a µGraph: in 64 bits, or as a kernel of a narrower type computes it.
//!
//! A narrow kernel holds tiles in 32-bit registers. The type shows where it has to: inputs and outputs of the program are
//! rounded to it, and so are the operands of a matrix product, which sums in 32 bits. What one kernel leaves for another
//! stays in 32 bits.

use crate::array::Array;
use crate::eval::{Domain, EvalError, Site, apply_rms_norm, outputs};
use crate::graph::MuGraph;
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn, elems};

/// Element types of kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// 64 bits throughout.
    F64,
    /// 32 bits throughout.
    F32,
    /// 16 bits with sums in 32 bits.
    F16,
}

/// Computes with floating-point numbers.
#[derive(Clone, Copy, Debug)]
pub struct Floats {
    /// The type.
    pub precision: Precision,
}

/// The outputs of a program for inputs in order.
///
/// # Errors
/// If inputs do not suit the program.
pub fn interpret(
    graph: &MuGraph,
    inputs: &[Array<f64>],
    precision: Precision,
) -> Result<Vec<Array<f64>>, EvalError> {
    let shapes: Vec<&[usize]> = graph.inputs().map(|(id, _, _)| graph.shape(id)).collect();
    if shapes.len() != inputs.len() || shapes.iter().zip(inputs).any(|(shape, input)| *shape != input.shape) {
        return Err(EvalError::Inputs(format!("inputs of other shapes than {shapes:?}")));
    }
    let mut domain = Floats { precision };
    let inputs: Vec<Array<f64>> = inputs.iter().map(|input| input.map(|x| domain.narrow(x))).collect();
    let results = outputs(&mut domain, graph, &inputs)?;
    Ok(results.into_iter().map(|result| result.map(|x| domain.narrow(x))).collect())
}

impl Floats {
    /// Rounds to the element type.
    fn narrow(&self, x: f64) -> f64 {
        match self.precision {
            Precision::F64 => x,
            Precision::F32 => f64::from(x as f32),
            Precision::F16 => half::f16::from_f64(x).to_f64(),
        }
    }

    /// Rounds to the type of registers.
    fn round(&self, x: f64) -> f64 {
        match self.precision {
            Precision::F64 => x,
            Precision::F32 | Precision::F16 => f64::from(x as f32),
        }
    }

    fn matmul(&self, lhs: &Array<f64>, rhs: &Array<f64>, shape: &[usize]) -> Array<f64> {
        let [lhs, rhs] = [lhs, rhs].map(|operand| operand.map(|x| self.narrow(x)));
        let mut result = Array::full(shape, 0.0);
        let wide = self.precision == Precision::F64;
        for product in MatrixProduct::all(&lhs.shape, &rhs.shape, shape) {
            let MatrixProduct { m, k, n, lhs: a, rhs: b, out } = product;
            for i in 0..m {
                let row = &mut result.data[out + i * n..out + (i + 1) * n];
                for l in 0..k {
                    let factor = lhs.data[a + i * k + l];
                    for (sum, &x) in row.iter_mut().zip(&rhs.data[b + l * n..b + (l + 1) * n]) {
                        let next = *sum + factor * x;
                        *sum = if wide { next } else { f64::from(next as f32) };
                    }
                }
            }
        }
        result
    }
}

/// One matrix product of a batch: extents, and where the operands and the result start.
pub(crate) struct MatrixProduct {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) lhs: usize,
    pub(crate) rhs: usize,
    pub(crate) out: usize,
}

impl MatrixProduct {
    /// The products of a batch, whose leading extents of 1 are repeated.
    pub(crate) fn all(lhs: &[usize], rhs: &[usize], shape: &[usize]) -> Vec<MatrixProduct> {
        let rank = shape.len();
        let (m, k, n) = (shape[rank - 2], lhs[rank - 1], shape[rank - 1]);
        let batch = &shape[..rank - 2];
        let starts = crate::array::repeated(&lhs[..rank - 2], batch)
            .zip(crate::array::repeated(&rhs[..rank - 2], batch));
        let product = |(out, (l, r)): (usize, (usize, usize))| MatrixProduct {
            m,
            k,
            n,
            lhs: l * m * k,
            rhs: r * k * n,
            out: out * m * n,
        };
        starts.enumerate().map(product).collect()
    }
}

/// A function of one number.
fn unary(f: UnaryFn, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + libm::exp(-x));
    match f {
        UnaryFn::Exp => libm::exp(x),
        UnaryFn::Square => x * x,
        UnaryFn::Sqrt => x.sqrt(),
        UnaryFn::Silu => x * sigmoid(x),
        UnaryFn::Sigmoid => sigmoid(x),
        UnaryFn::Tanh => libm::tanh(x),
        UnaryFn::Gelu => 0.5 * x * (1.0 + libm::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
        UnaryFn::Relu => x.max(0.0),
        UnaryFn::Erf => libm::erf(x),
        UnaryFn::Log => libm::log(x),
        UnaryFn::Guard => {
            if x == f64::NEG_INFINITY {
                0.0
            } else {
                x
            }
        }
    }
}

fn binary(f: BinaryFn, a: f64, b: f64) -> f64 {
    match f {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        BinaryFn::Div => a / b,
        BinaryFn::Max => a.max(b),
        BinaryFn::Mask => {
            if b != 0.0 {
                a
            } else {
                f64::NEG_INFINITY
            }
        }
    }
}

impl Domain for Floats {
    type Value = Array<f64>;

    fn apply(&mut self, site: Site, op: &Op, args: &[&Array<f64>]) -> Result<Array<f64>, EvalError> {
        let shapes: Vec<&[usize]> = args.iter().map(|arg| arg.shape.as_slice()).collect();
        let shape = op.infer(&shapes).map_err(EvalError::Inputs)?;
        let round = |x| self.round(x);
        Ok(match op {
            Op::Matmul => self.matmul(args[0], args[1], &shape),
            Op::Unary(f) => args[0].map(|x| round(unary(*f, x))),
            Op::Scale(c) => args[0].map(|x| round(x * round(c.to_f64()))),
            Op::Offset(c) => args[0].map(|x| round(x + round(c.to_f64()))),
            Op::Binary(f) => args[0].zip(args[1], &shape, |a, b| round(binary(*f, a, b))),
            Op::Reduce { f: ReduceFn::Sum, dim, keep } => {
                args[0].reduce(*dim, *keep, 0.0, |a, b| round(a + b))
            }
            Op::Reduce { f: ReduceFn::Max, dim, keep } => {
                args[0].reduce(*dim, *keep, f64::NEG_INFINITY, f64::max)
            }
            Op::RmsNorm { eps } => apply_rms_norm(self, site, (args[0], &shape), *eps)?,
            Op::Rotate { dim, group } => args[0].rotate(*dim, *group, |x| -x),
            op => moved(op, args, shape, (0.0, 1.0))?,
        })
    }

    fn slice(&self, value: &Array<f64>, ranges: &[(usize, usize)]) -> Array<f64> {
        value.slice(ranges)
    }

    fn concat(&self, parts: &[Array<f64>], dim: usize) -> Array<f64> {
        Array::concat(&parts.iter().collect::<Vec<_>>(), dim)
    }
}

/// Operators that only move elements, and masks of the given zero and one.
pub(crate) fn moved<T: Copy>(
    op: &Op,
    args: &[&Array<T>],
    shape: Vec<usize>,
    (zero, one): (T, T),
) -> Result<Array<T>, EvalError> {
    let mask = |shape: &[usize], keep: &dyn Fn(&[usize]) -> bool| {
        let data = crate::tiling::indices(shape).map(|index| if keep(&index) { one } else { zero }).collect();
        Array { shape: shape.to_vec(), data }
    };
    Ok(match op {
        Op::Transpose(perm) => args[0].transpose(perm),
        Op::Reshape(_) => Array { shape, data: args[0].data.clone() },
        Op::Broadcast(_) => args[0].broadcast(&shape),
        Op::Slice { dim, start, len } => {
            let mut ranges: Vec<(usize, usize)> = args[0].shape.iter().map(|&extent| (0, extent)).collect();
            ranges[*dim] = (*start, *len);
            args[0].slice(&ranges)
        }
        Op::Repeat { dim, times } => args[0].repeat(*dim, *times),
        Op::Concat { dim } => Array::concat(args, *dim),
        Op::Causal { offset, .. } => {
            let rank = shape.len();
            mask(&shape, &|index| index[rank - 1] as i64 <= (index[rank - 2] as i64).saturating_add(*offset))
        }
        Op::Below { dim, limit, .. } => mask(&shape, &|index| index[*dim] < *limit),
        Op::Matmul | Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) => return Err(unmoved()),
        Op::Reduce { .. } | Op::RmsNorm { .. } | Op::Rotate { .. } => return Err(unmoved()),
    })
}

fn unmoved() -> EvalError {
    EvalError::Unsupported("an operator that computes".into())
}

/// The relative error of a result: the largest difference over the largest magnitude. Infinite for what is not finite.
pub fn relative_error(expected: &Array<f64>, given: &Array<f64>) -> f64 {
    let scale = expected.data.iter().fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
    let differences = expected.data.iter().zip(&given.data).map(|(a, b)| (a - b).abs());
    let worst =
        differences.fold(0.0, |worst: f64, d| if d.is_finite() { worst.max(d) } else { f64::INFINITY });
    if expected.shape == given.shape && elems(&given.shape) == given.data.len() {
        worst / scale
    } else {
        f64::INFINITY
    }
}
