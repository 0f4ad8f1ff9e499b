//! Loop: runs a body up to a trip count, as long as its condition holds.
//!
//! A loop that is known when compiling to be short is unrolled. Else it stays whole; that needs carried values that
//! keep their shapes, and where results are collected a known number of iterations. If it cannot stay whole, even a
//! longer loop is unrolled, as far as trip count and conditions are known.

use super::{
    MAX_UNROLLED_OPERATORS, UNROLLED_OPERATORS, known_condition, operators, result_types, scalar_condition,
};
use crate::registry::Applied;
use crate::{Body, Call, Context, Operand, RuleError};
use orch_ir::{DType, OpaqueKind, OpaqueOp, OperatorGraph, Tensor, TensorId};

/// What must be known of a loop that cannot stay whole; the reason follows.
const COUNT: &str = "0 (trip count), or 1 (condition), of a loop that";

/// Iterations of the longest loop that nothing but its trip count ends.
const MAX_TRIPS: i64 = 1 << 31;

/// A loop of the model.
struct Loop<'a> {
    body: &'a OperatorGraph,
    /// The trip count, if the model gives one.
    limit: Option<TensorId>,
    /// The trip count, if it is known; without one there is no limit.
    known_limit: Option<i64>,
    condition: TensorId,
    carried: Vec<Operand>,
}

pub(super) fn repeat(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let repeated = Loop::read(ctx, call)?;
    if repeated.body.inputs.len() != repeated.carried.len() + 2
        || repeated.body.outputs.len() < repeated.carried.len() + 1
    {
        return Err(RuleError::invalid(format!(
            "a body with {} inputs and {} outputs for {} carried values",
            repeated.body.inputs.len(),
            repeated.body.outputs.len(),
            repeated.carried.len()
        )));
    }
    let per_trip = operators(repeated.body).max(1);
    let trips = repeated.known_limit.map(|limit| usize::try_from(limit.max(0)).unwrap_or(usize::MAX));
    if trips.is_some_and(|trips| trips.saturating_mul(per_trip) <= UNROLLED_OPERATORS)
        && let Ok(results) = repeated.unroll(ctx, UNROLLED_OPERATORS / per_trip)
    {
        return Ok(results);
    }
    repeated
        .whole(ctx)
        .or_else(|problem| repeated.unroll(ctx, MAX_UNROLLED_OPERATORS / per_trip).map_err(|_| problem))
}

impl<'a> Loop<'a> {
    fn read(ctx: &mut Context<'_>, call: &Call<'a>) -> Result<Self, RuleError> {
        let body = call.graph("body")?.ok_or_else(|| RuleError::invalid("attribute body is missing"))?;
        let limit = call.optional_tensor(0)?;
        let known_limit = match limit {
            None => Some(i64::MAX),
            Some(limit) => ctx
                .constant(limit)
                .and_then(|value| value.to_i64())
                .and_then(|values| values.first().copied()),
        };
        let condition = match call.optional_tensor(1)? {
            Some(condition) => scalar_condition(ctx, condition)?,
            None => ctx.tensor(Tensor::from_bools([], &[true])),
        };
        let carried = (2..call.arity())
            .map(|index| call.operand(index).cloned().ok_or(RuleError::MissingOperand(index)))
            .collect::<Result<_, _>>()?;
        Ok(Self { body, limit, known_limit, condition, carried })
    }

    /// The iterations one after the other, at most `most`.
    fn unroll(&self, ctx: &mut Context<'_>, most: usize) -> Applied {
        let unknown =
            || RuleError::unsupported("a loop whose number of iterations is not known when compiling");
        let limit = self.known_limit.ok_or_else(unknown)?;
        let mut go_on = known_condition(ctx, self.condition).ok_or_else(unknown)?;
        let mut carried = self.carried.clone();
        let mut scans: Vec<Vec<TensorId>> = vec![Vec::new(); self.body.outputs.len() - 1 - carried.len()];
        let mut iteration = 0;
        while go_on && iteration < limit {
            if usize::try_from(iteration).is_ok_and(|iteration| iteration >= most) {
                return Err(RuleError::unsupported(format!("unrolling a loop more than {most} times")));
            }
            let number = ctx.scalar_int(DType::I64, iteration);
            let condition = ctx.tensor(Tensor::from_bools([], &[true]));
            let operands: Vec<Operand> =
                [number.into(), condition.into()].into_iter().chain(carried.iter().cloned()).collect();
            let mut results = ctx.inline(self.body, &operands)?.into_iter();
            let Some(Operand::Tensor(condition)) = results.next() else {
                return Err(RuleError::invalid("the body's condition is no tensor"));
            };
            go_on = known_condition(ctx, condition).ok_or_else(unknown)?;
            carried = results.by_ref().take(carried.len()).collect();
            for (slices, slice) in scans.iter_mut().zip(results) {
                let Operand::Tensor(slice) = slice else {
                    return Err(RuleError::unsupported("a loop that collects sequences"));
                };
                slices.push(ctx.unsqueeze(slice, 0)?);
            }
            iteration += 1;
        }
        for (position, slices) in scans.into_iter().enumerate() {
            let collected = match slices.is_empty() {
                true => self.collected_nothing(ctx, 1 + self.carried.len() + position)?,
                false => ctx.concat(&slices, 0)?,
            };
            carried.push(Operand::Tensor(collected));
        }
        Ok(carried)
    }

    /// What output `position` of the body collects when it never runs: its type and shape must be declared.
    fn collected_nothing(&self, ctx: &mut Context<'_>, position: usize) -> Result<TensorId, RuleError> {
        let value = self.body.value(self.body.outputs[position]);
        let dims: Option<Vec<usize>> = value.shape.as_ref().and_then(|dims| dims.iter().copied().collect());
        match (value.dtype, dims) {
            (Some(dtype), Some(dims)) => {
                let shape = crate::build::checked_shape([&[0], &dims[..]].concat())?;
                Ok(ctx.tensor(Tensor::zeros(dtype, shape)))
            }
            _ => Err(RuleError::unsupported(format!(
                "a loop that never runs and collects {}, whose type and shape are not declared",
                value.name
            ))),
        }
    }

    /// The loop as one operation.
    fn whole(&self, ctx: &mut Context<'_>) -> Applied {
        let mut carried = Vec::with_capacity(self.carried.len());
        for operand in &self.carried {
            let Operand::Tensor(tensor) = operand else {
                return Err(RuleError::NotConstant(format!("{COUNT} carries a sequence or an optional,")));
            };
            carried.push(*tensor);
        }
        let mut types = vec![(DType::I64, [].into()), (DType::Bool, [].into())];
        types.extend(carried.iter().map(|&tensor| (ctx.dtype(tensor), ctx.shape(tensor))));
        let captures = ctx.captures(&[self.body]);
        let body = ctx.body(self.body, &types, &captures)?;
        let mut results = result_types(&body, 1);
        if results[..carried.len()] != types[2..] {
            return Err(RuleError::NotConstant(format!(
                "{COUNT} changes the type or shape of what it carries, {:?} to {:?},",
                &types[2..],
                &results[..carried.len()]
            )));
        }
        if let (Some(limit), Some(true)) = (self.known_limit, known_condition(ctx, self.condition))
            && limit > MAX_TRIPS
            && always_goes_on(&body)
        {
            let count = self.limit.map_or("no trip count".to_owned(), |_| format!("{limit} iterations"));
            return Err(RuleError::unsupported(format!(
                "a loop of {count} that no condition ends, more than {MAX_TRIPS} iterations"
            )));
        }
        let collects = results.len() > carried.len();
        let trips = if collects { self.trips(ctx, &body)? } else { 0 };
        for (_, shape) in &mut results[carried.len()..] {
            *shape = crate::build::checked_shape([&[trips], shape.dims()].concat())?;
        }
        let limit = match self.limit {
            Some(limit) => {
                let limit = ctx.reshape(limit, [])?;
                ctx.cast(limit, DType::I64)?
            }
            None => ctx.scalar_int(DType::I64, i64::MAX),
        };
        let operands = [&[limit, self.condition], &carried[..], &captures[..]].concat();
        let kind = OpaqueKind::Loop { body: Box::new(body.graph), carried: carried.len(), trips };
        let outputs = ctx.emit_opaque(OpaqueOp { kind, results }, &operands)?;
        Ok(outputs.into_iter().map(Operand::Tensor).collect())
    }

    /// The number of iterations of a loop that only its trip count ends.
    fn trips(&self, ctx: &mut Context<'_>, body: &Body) -> Result<usize, RuleError> {
        let unknown = RuleError::NotConstant(format!("{COUNT} collects results,"));
        match (self.known_limit, known_condition(ctx, self.condition)) {
            (Some(_), Some(false)) => Ok(0),
            (Some(limit), Some(true)) if always_goes_on(body) => {
                usize::try_from(limit.max(0)).map_err(|_| unknown)
            }
            _ => Err(unknown),
        }
    }
}

/// True for bodies that pass on the condition under which they run, or say that it holds.
fn always_goes_on(body: &Body) -> bool {
    let condition = body.graph.outputs[0].1;
    let is_true = |value: &Tensor| value.bytes().first().is_some_and(|&byte| byte != 0);
    condition == body.graph.inputs[1].1 || body.graph.constant(condition).is_some_and(is_true)
}
