//! The interpreter of block programs: exact semantics, slowly, every access checked. It is the oracle between the
//! primitive graph above and thread programs below.
//!
//! Tensors are logical here: layouts do not matter. Float sums and products accumulate in `f64` and are rounded
//! once, so results are at least as accurate as any order of summation.

use crate::block::{ArgRole, BlockProgram, Stage};
use crate::expr::scalar::{self, Number};
use crate::expr::{ArgId, Const, Expr, ExprId, StageId, VarId};
use orch_ir::{DType, ReduceOp, Tensor};
use rustc_hash::FxHashMap;

/// Why a block program cannot be interpreted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum BlockError {
    /// An argument that is read has no value, or one of another type or shape.
    #[error("argument {0} is not given, or not of its type and shape")]
    BadArgument(ArgId),
    /// An access outside a tensor.
    #[error("{arg}[{index:?}] is outside of the argument")]
    OutOfBounds {
        /// The argument.
        arg: ArgId,
        /// The index.
        index: Vec<i64>,
    },
    /// An element of an output is stored twice.
    #[error("{arg}[{index:?}] is stored twice")]
    StoredTwice {
        /// The output.
        arg: ArgId,
        /// The index.
        index: Vec<i64>,
    },
    /// Elements of an output are never stored.
    #[error("{missing} elements of output {arg} are never stored")]
    NotStored {
        /// The output.
        arg: ArgId,
        /// How many.
        missing: usize,
    },
    /// An expression that has no value here: an unbound axis, a later stage, a function not defined for its type.
    #[error("{0} has no value here")]
    Undefined(String),
}

/// The values of a program's outputs and updated arguments, in order of its arguments. `values` has an entry for each argument; those of
/// outputs are not looked at.
///
/// # Errors
/// If arguments are missing, or the program accesses what it must not.
pub fn interpret_block(program: &BlockProgram, values: &[Option<Tensor>]) -> Result<Vec<Tensor>, BlockError> {
    let mut machine = BlockInterpreter::new(program, values)?;
    for stage in &program.stages {
        machine.run(stage)?;
    }
    machine.finish()
}

/// The values of a stage: one per point of its domain, row-major over the domain's axes.
struct StageValues {
    domain: Vec<VarId>,
    extents: Vec<usize>,
    values: Vec<Number>,
}

struct BlockInterpreter<'a> {
    program: &'a BlockProgram,
    /// Elements of each argument that is read.
    inputs: Vec<Option<Vec<Number>>>,
    outputs: Vec<Option<Vec<Option<Number>>>>,
    stages: Vec<StageValues>,
    point: FxHashMap<VarId, i64>,
}

impl<'a> BlockInterpreter<'a> {
    fn new(program: &'a BlockProgram, values: &[Option<Tensor>]) -> Result<Self, BlockError> {
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for (number, arg) in program.args.iter().enumerate() {
            let stored = arg.role.is_stored().then(|| vec![None; arg.shape.elems()]);
            outputs.push(stored);
            if arg.role == ArgRole::Output {
                inputs.push(None);
                continue;
            }
            let value = values.get(number).and_then(Option::as_ref);
            let value = value
                .filter(|value| value.dtype() == arg.dtype && *value.shape() == arg.shape)
                .ok_or(BlockError::BadArgument(ArgId::new(number)))?;
            inputs.push(Some(numbers(value)));
        }
        Ok(Self { program, inputs, outputs, stages: Vec::new(), point: FxHashMap::default() })
    }

    fn finish(self) -> Result<Vec<Tensor>, BlockError> {
        let mut tensors = Vec::new();
        for (number, (stored, before)) in self.outputs.into_iter().zip(self.inputs).enumerate() {
            let Some(mut stored) = stored else { continue };
            if let Some(before) = before {
                stored.iter_mut().zip(before).for_each(|(value, before)| *value = value.or(Some(before)));
            }
            let missing = stored.iter().filter(|value| value.is_none()).count();
            if missing > 0 {
                return Err(BlockError::NotStored { arg: ArgId::new(number), missing });
            }
            let arg = &self.program.args[number];
            let bytes: Vec<u8> = (stored.into_iter().flatten())
                .flat_map(|value| value.to_bits(arg.dtype).to_le_bytes()[..arg.dtype.size_bytes()].to_vec())
                .collect();
            let tensor = Tensor::from_bytes(arg.dtype, arg.shape.clone(), bytes.into());
            tensors.push(tensor.map_err(|error| BlockError::Undefined(error.to_string()))?);
        }
        Ok(tensors)
    }

    fn run(&mut self, stage: &Stage) -> Result<(), BlockError> {
        match stage {
            Stage::Reduce { op, domain, reduced, body, .. } => {
                let extents = self.extents(domain);
                let mut values = Vec::new();
                self.for_each_point(domain, &mut |machine| {
                    values.push(machine.reduce(*op, reduced, *body)?);
                    Ok(())
                })?;
                self.stages.push(StageValues { domain: domain.clone(), extents, values });
                Ok(())
            }
            Stage::Store { arg, index, domain, body } => {
                self.for_each_point(domain, &mut |machine| machine.store(*arg, index, *body))
            }
        }
    }

    fn extents(&self, axes: &[VarId]) -> Vec<usize> {
        axes.iter().map(|&axis| self.program.extent(axis)).collect()
    }

    /// Runs `visit` with the axes bound to each point of their product, row-major.
    fn for_each_point(
        &mut self,
        axes: &[VarId],
        visit: &mut dyn FnMut(&mut Self) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let Some((&axis, rest)) = axes.split_first() else { return visit(self) };
        for value in 0..self.program.extent(axis) {
            self.point.insert(axis, value as i64);
            self.for_each_point(rest, visit)?;
        }
        self.point.remove(&axis);
        Ok(())
    }

    fn reduce(&mut self, op: ReduceOp, reduced: &[VarId], body: ExprId) -> Result<Number, BlockError> {
        let mut line = Vec::new();
        self.for_each_point(reduced, &mut |machine| {
            line.push(machine.eval(body)?);
            Ok(())
        })?;
        let dtype = self.program.exprs.dtype(body);
        combine(op, dtype, &line).ok_or_else(|| BlockError::Undefined(format!("{} of {dtype}", op.name())))
    }

    fn store(&mut self, arg: ArgId, index: &[ExprId], body: ExprId) -> Result<(), BlockError> {
        let index = self.index(index)?;
        let position = self.position(arg, &index)?;
        let value = self.eval(body)?;
        let outputs = self.outputs[arg.index()].as_mut().ok_or(BlockError::BadArgument(arg))?;
        match outputs[position].replace(value) {
            None => Ok(()),
            Some(_) => Err(BlockError::StoredTwice { arg, index }),
        }
    }

    fn index(&self, index: &[ExprId]) -> Result<Vec<i64>, BlockError> {
        index
            .iter()
            .map(|&component| self.eval(component)?.as_i64().ok_or_else(|| self.undefined(component)))
            .collect()
    }

    fn position(&self, arg: ArgId, index: &[i64]) -> Result<usize, BlockError> {
        let shape = &self.program.arg(arg).shape;
        let inside = index.len() == shape.rank()
            && index.iter().zip(shape.iter()).all(|(&at, &extent)| (0..extent as i64).contains(&at));
        if !inside {
            return Err(BlockError::OutOfBounds { arg, index: index.to_vec() });
        }
        Ok(index.iter().zip(shape.strides()).map(|(&at, stride)| at as usize * stride).sum())
    }

    /// The value of an expression at the current point.
    fn eval(&self, root: ExprId) -> Result<Number, BlockError> {
        let mut known: FxHashMap<ExprId, Number> = FxHashMap::default();
        for id in self.program.exprs.reachable(&[root]) {
            let value = self.eval_node(id, &known)?;
            known.insert(id, value);
        }
        Ok(known[&root])
    }

    fn eval_node(&self, id: ExprId, known: &FxHashMap<ExprId, Number>) -> Result<Number, BlockError> {
        let exprs = &self.program.exprs;
        let dtype = exprs.dtype(id);
        let value = match exprs.get(id) {
            Expr::Const(Const { dtype, bits }) => Some(Number::from_bits(*dtype, *bits)),
            Expr::Var(var) => self.point.get(var).map(|&value| Number::Int(value.into())),
            Expr::Unary(f, a) => scalar::unary(*f, dtype, known[a]),
            Expr::Binary(f, a, b) => scalar::binary(*f, dtype, known[a], known[b]),
            Expr::Compare(f, a, b) => Some(Number::bool(scalar::compare(*f, known[a], known[b]))),
            Expr::Select(c, a, b) => Some(known[if known[c].is_true() { a } else { b }]),
            Expr::Cast(to, a) => Some(known[a].cast(*to)),
            Expr::IsNan(a) => float(known[a]).map(|v| Number::bool(v.is_nan())),
            Expr::IsInf(a) => float(known[a]).map(|v| Number::bool(v.is_infinite())),
            Expr::Fma(a, b, c) => scalar::fma(dtype, known[a], known[b], known[c]),
            Expr::FloorDiv(a, b) => divided(known[a], known[b], scalar::floor_div),
            Expr::FloorRem(a, b) => divided(known[a], known[b], |x, y| x - scalar::floor_div(x, y) * y),
            Expr::Read { arg, index, guard } => {
                let is_read = guard.is_none_or(|guard| known[&guard].is_true());
                return if is_read { self.read(*arg, index, known) } else { Ok(zero(dtype)) };
            }
            Expr::Stage(stage) => self.stage_value(*stage),
            Expr::Load { .. }
            | Expr::Splat(..)
            | Expr::Ramp { .. }
            | Expr::ReduceLanes(..)
            | Expr::DotPairs(..)
            | Expr::Interleave(..)
            | Expr::Half(..) => None,
        };
        value.ok_or_else(|| self.undefined(id))
    }

    fn read(
        &self,
        arg: ArgId,
        index: &[ExprId],
        known: &FxHashMap<ExprId, Number>,
    ) -> Result<Number, BlockError> {
        let index: Option<Vec<i64>> = index.iter().map(|component| known[component].as_i64()).collect();
        let index = index.ok_or_else(|| BlockError::Undefined(format!("an index of {arg}")))?;
        let position = self.position(arg, &index)?;
        let values = self.inputs[arg.index()].as_ref().ok_or(BlockError::BadArgument(arg))?;
        Ok(values[position])
    }

    fn stage_value(&self, stage: StageId) -> Option<Number> {
        let StageValues { domain, extents, values } = self.stages.get(stage.index())?;
        let mut position = 0;
        for (axis, &extent) in domain.iter().zip(extents) {
            position = position * extent + *self.point.get(axis)? as usize;
        }
        values.get(position).copied()
    }

    fn undefined(&self, id: ExprId) -> BlockError {
        BlockError::Undefined(crate::expr::text::expr_text(&self.program.exprs, id).text)
    }
}

/// The elements of a tensor.
fn numbers(tensor: &Tensor) -> Vec<Number> {
    let size = tensor.dtype().size_bytes();
    let number = |chunk: &[u8]| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(chunk);
        Number::from_bits(tensor.dtype(), u64::from_le_bytes(bits))
    };
    tensor.bytes().chunks_exact(size).map(number).collect()
}

fn float(value: Number) -> Option<f64> {
    match value {
        Number::Float(v) => Some(v),
        Number::Int(_) => None,
    }
}

fn zero(dtype: DType) -> Number {
    if dtype.is_float() { Number::Float(0.0) } else { Number::Int(0) }
}

fn divided(a: Number, b: Number, f: impl Fn(i128, i128) -> i128) -> Option<Number> {
    match (a, b) {
        (Number::Int(a), Number::Int(b @ 1..)) => Some(Number::Int(f(a, b))),
        _ => None,
    }
}

/// Combines the values of a line.
fn combine(op: ReduceOp, dtype: DType, line: &[Number]) -> Option<Number> {
    use orch_ir::BinaryFn;
    let fold = |f: BinaryFn, start: Number| {
        // Floats accumulate unrounded, integers wrap at every step.
        let step = if dtype.is_float() { DType::F64 } else { dtype };
        let total = line.iter().try_fold(start, |acc, &value| scalar::binary(f, step, acc, value));
        total.map(|total| total.round_to(dtype))
    };
    let one = if dtype.is_float() { Number::Float(1.0) } else { Number::Int(1) };
    match op {
        ReduceOp::Sum => fold(BinaryFn::Add, zero(dtype)),
        ReduceOp::Prod => fold(BinaryFn::Mul, one),
        ReduceOp::Max => fold(BinaryFn::Max, extreme(dtype, false)),
        ReduceOp::Min => fold(BinaryFn::Min, extreme(dtype, true)),
        ReduceOp::ArgMax { last } => Some(Number::Int(arg_extremum(line, true, last) as i128)),
        ReduceOp::ArgMin { last } => Some(Number::Int(arg_extremum(line, false, last) as i128)),
    }
}

/// The highest or lowest value of a type.
fn extreme(dtype: DType, highest: bool) -> Number {
    if dtype.is_float() {
        return Number::Float(if highest { f64::INFINITY } else { f64::NEG_INFINITY });
    }
    let (low, high) = crate::expr::fold::int_range(dtype);
    Number::Int(if highest { high } else { low })
}

/// The position of the largest or smallest value; NaN is more extreme than anything.
fn arg_extremum(line: &[Number], largest: bool, last: bool) -> usize {
    let is_nan = |value: Number| float(value).is_some_and(f64::is_nan);
    let mut best = 0;
    for (position, &new) in line.iter().enumerate().skip(1) {
        let old = line[best];
        let f = if largest { orch_ir::CompareFn::Gt } else { orch_ir::CompareFn::Lt };
        let beats = scalar::compare(f, new, old) || (is_nan(new) && !is_nan(old));
        let ties = scalar::compare(orch_ir::CompareFn::Eq, new, old) || (is_nan(new) && is_nan(old));
        if (beats && !is_nan(old)) || (ties && last) {
            best = position;
        }
    }
    best
}
