//! Matrix products. Those of f16 and bf16 are summed in f32 and rounded once, before anything is added.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, wide};
use crate::promote::Number;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.mm.default", "self mat2", product),
    rule("aten.bmm.default", "self mat2", product),
    rule("aten.addmm.default", "self mat1 mat2 beta alpha", |emitter, call| {
        add(emitter, call, ["mat1", "mat2"])
    }),
    rule("aten.baddbmm.default", "self batch1 batch2 beta alpha", |emitter, call| {
        add(emitter, call, ["batch1", "batch2"])
    }),
    rule("aten.mv.default", "self vec", by_vector),
    rule("aten.dot.default", "self tensor", dot),
];

fn product(emitter: &mut Emitter, call: &Call) -> Applied {
    one(emitter.matmul(call.tensor("self")?, call.tensor("mat2")?)?)
}

/// `beta self + alpha mat1 mat2`; `self` is not read where `beta` is 0.
fn add(emitter: &mut Emitter, call: &Call, names: [&str; 2]) -> Applied {
    let dtype = call.dtype()?;
    let product = emitter.matmul(call.tensor(names[0])?, call.tensor(names[1])?)?;
    let (beta, alpha) = (call.number_or("beta", Number::Int(1))?, call.number_or("alpha", Number::Int(1))?);
    let plain = beta.is(1.0) && alpha.is(1.0);
    let compute = if plain { dtype } else { wide(dtype) };
    let product = emitter.cast(&product, compute);
    let product = scaled(emitter, product, alpha)?;
    if beta.is(0.0) {
        return one(emitter.cast(&product, dtype));
    }
    let summand = emitter.cast(call.tensor("self")?, compute);
    let summand = scaled(emitter, summand, beta)?;
    let sum = emitter.binary("Add", &product, &summand)?;
    one(emitter.cast(&sum, dtype))
}

fn scaled(emitter: &mut Emitter, x: Val, factor: Number) -> Emitted {
    if factor.is(1.0) {
        return Ok(x);
    }
    let factor = factor.emit(emitter, x.dtype);
    emitter.binary("Mul", &x, &factor)
}

fn by_vector(emitter: &mut Emitter, call: &Call) -> Applied {
    let (matrix, vector) = (call.tensor("self")?, call.tensor("vec")?);
    if matrix.rank() != 2 || vector.rank() != 1 {
        return invalid(format!("the product of {} and {}", matrix.describe(), vector.describe()));
    }
    let column = emitter.reshape(vector, [vector.shape[0], 1])?;
    let product = emitter.matmul(matrix, &column)?;
    one(emitter.reshape(&product, [matrix.shape[0]])?)
}

fn dot(emitter: &mut Emitter, call: &Call) -> Applied {
    let (a, b) = (call.tensor("self")?, call.tensor("tensor")?);
    if a.rank() != 1 || b.rank() != 1 {
        return invalid(format!("the product of {} and {}", a.describe(), b.describe()));
    }
    let row = emitter.reshape(a, [1, a.shape[0]])?;
    let column = emitter.reshape(b, [b.shape[0], 1])?;
    let product = emitter.matmul(&row, &column)?;
    one(emitter.reshape(&product, [])?)
}
