//! The interpreter of thread programs: exact semantics, slowly, with every access checked.
//!
//! Tasks run one after the other, phase by phase; threads of a CTA in lockstep (`interp/cta.rs`). An access out of bounds, a read of scratch that
//! the task has not written, two tasks of a phase that access one element where one of them writes, a loop variable or binding outside its
//! declared range, and a floor division by less than one are errors, so a program that runs here without one is free of them on
//! these inputs. [`ReduceLanes`](orch_compute::Expr::ReduceLanes) is a binary tree: lane `i` combines with lane `i + n / 2`, `n`
//! halves until one lane is left.
//!
//! The program must be valid ([`crate::validate`]); an invalid one gives an error or a panic of the interpreter, never a wrong
//! result.

mod cluster;
mod cta;
mod error;
mod fragment;
mod in_flight;
mod memory;
mod tma;
mod wgmma;

use crate::amx::{AmxStmt, TileId, dot};
use crate::cta::CtaStmt;
pub use crate::interp::error::{AccessProblem, ExecError};
pub use crate::interp::memory::BufferData;
use crate::interp::memory::Memory;
use crate::program::{Stmt, TaskGroups, ThreadProgram};
use orch_compute::expr::scalar::{self, Number};
use orch_compute::expr::{BufferId, Const, Expr, ExprId, VarId};
use orch_ir::{BinaryFn, DType, ReduceOp};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct ExecOptions {
    /// Statements after which the run is stopped.
    pub max_statements: u64,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self { max_statements: 1 << 32 }
    }
}

/// What a run did.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Statements executed.
    pub statements: u64,
    /// Elements loaded.
    pub loads: u64,
    /// Elements stored.
    pub stores: u64,
    /// For each global buffer, how many elements of an output were never written (0 for inputs).
    pub unwritten: Vec<usize>,
    /// Elements whose cache lines were prefetched.
    pub prefetched: BTreeSet<(BufferId, i64)>,
}

/// Runs a program on its global buffers, which are updated in place when it succeeds.
///
/// # Errors
/// At the first violation; `buffers` are then as they were.
pub fn interpret(
    program: &ThreadProgram,
    buffers: &mut [BufferData],
    options: &ExecOptions,
) -> Result<Report, ExecError> {
    let memory = Memory::new(program, buffers)?;
    let mut interpreter = ThreadInterpreter {
        program,
        memory,
        vars: vec![None; program.exprs.vars().len()],
        tiles: vec![None; program.tiles.len()],
        cache: Cache::default(),
        task: 0,
        report: Report::default(),
        options: *options,
    };
    match &program.cta {
        None => (0..program.tasks).try_for_each(|task| {
            if task.is_multiple_of(program.phase_items()) {
                interpreter.memory.start_phase(task);
            }
            interpreter.start(task, 0)?;
            interpreter.run(&program.body)
        })?,
        Some(cta) => interpreter.run_ctas(cta)?,
    }
    let ThreadInterpreter { memory, mut report, .. } = interpreter;
    report.unwritten = memory.unwritten();
    buffers.clone_from_slice(&memory.into_globals());
    Ok(report)
}

/// Whether a task is its worker's first one of a group: here one worker has the first half of a group and another one the rest.
fn is_first_of_group(groups: TaskGroups, task: usize) -> bool {
    let place = task % groups.tasks.max(1);
    place == 0 || place == groups.tasks / 2
}

/// The lanes of a value.
pub(crate) type Value = Rc<[Number]>;

/// Values of the expressions of the current statement.
#[derive(Default)]
struct Cache {
    values: Vec<Option<(u64, Value)>>,
    statement: u64,
}

impl Cache {
    fn get(&self, id: ExprId) -> Option<Value> {
        match self.values.get(id.index())? {
            Some((statement, value)) if *statement == self.statement => Some(Rc::clone(value)),
            _ => None,
        }
    }

    fn set(&mut self, id: ExprId, value: &Value) {
        if self.values.len() <= id.index() {
            self.values.resize(id.index() + 1, None);
        }
        self.values[id.index()] = Some((self.statement, Rc::clone(value)));
    }
}

pub(crate) struct ThreadInterpreter<'a> {
    pub(crate) program: &'a ThreadProgram,
    pub(crate) memory: Memory<'a>,
    pub(crate) vars: Vec<Option<Value>>,
    /// The elements of each tile in row-major order, once it has some.
    tiles: Vec<Option<Vec<Number>>>,
    cache: Cache,
    task: usize,
    pub(crate) report: Report,
    options: ExecOptions,
}

impl ThreadInterpreter<'_> {
    /// Starts the worker at a place of the cluster that begins with task `first`; place 0 starts the cluster. Places number the
    /// threads of a cluster, CTA by CTA.
    pub(crate) fn start(&mut self, first: usize, place: usize) -> Result<(), ExecError> {
        self.vars.fill(None);
        self.tiles.fill(None);
        let is_first = self.program.groups.is_none_or(|groups| is_first_of_group(groups, first));
        if place == 0 && is_first {
            self.memory.start_cluster();
        }
        if let Some(groups) = self.program.groups {
            self.bind(groups.first, Rc::new([Number::Int(is_first.into())]))?;
        }
        let cta = self.program.cta.as_ref();
        let threads = cta.map_or(1, |cta| cta.threads);
        self.switch_to(first, place);
        self.bind(self.program.task, Rc::new([Number::Int(self.task as i128)]))?;
        match cta {
            Some(cta) => self.bind(cta.thread, Rc::new([Number::Int((place % threads) as i128)])),
            None => Ok(()),
        }
    }

    /// Makes the worker at a place of a cluster the one that runs statements.
    pub(crate) fn switch_to(&mut self, first: usize, place: usize) {
        self.task = first + place / self.program.cta.as_ref().map_or(1, |cta| cta.threads);
        self.memory.switch_to(first, place);
        self.cache.statement += 1;
    }

    pub(crate) fn run(&mut self, body: &[Stmt]) -> Result<(), ExecError> {
        for stmt in body {
            self.step()?;
            self.execute(stmt)?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self) -> Result<(), ExecError> {
        self.cache.statement += 1;
        self.report.statements += 1;
        if self.report.statements > self.options.max_statements {
            return Err(ExecError::Limit { limit: self.options.max_statements });
        }
        Ok(())
    }

    fn execute(&mut self, stmt: &Stmt) -> Result<(), ExecError> {
        match stmt {
            Stmt::Comment(_) => Ok(()),
            Stmt::Let(var, value) | Stmt::Register(var, value) | Stmt::Assign(var, value) => {
                let value = self.eval(*value)?;
                self.bind(*var, value)
            }
            Stmt::Store { buffer, offset, value, mask } => {
                let value = self.eval(*value)?;
                let mask = mask.map(|mask| self.eval(mask)).transpose()?;
                for (lane, offset) in self.active(*offset, value.len(), mask.as_ref())? {
                    self.report.stores += 1;
                    self.memory.store(*buffer, offset, value[lane])?;
                }
                Ok(())
            }
            Stmt::For { var, start, end, step, kind: _, body } => {
                let (start, end) = (self.eval_index(*start)?, self.eval_index(*end)?);
                let mut value = start;
                while value < end {
                    self.bind(*var, Rc::new([Number::Int(value.into())]))?;
                    self.run(body)?;
                    self.step()?;
                    value += step;
                }
                Ok(())
            }
            Stmt::If { condition, then, otherwise } => {
                let taken = self.eval(*condition)?[0].is_true();
                self.run(if taken { then } else { otherwise })
            }
            Stmt::Prefetch { buffer, offset } => {
                let offset = self.eval_index(*offset)?;
                self.memory.position(*buffer, offset)?;
                self.report.prefetched.insert((*buffer, offset));
                Ok(())
            }
            Stmt::Amx(stmt) => self.tile_stmt(stmt),
            Stmt::Cta(CtaStmt::LoadRelaxed { var, from }) => {
                let lanes = self.program.var_type(*var).lanes as i64;
                let offset = self.eval_index(from.offset)?;
                self.report.loads += lanes as u64;
                let values: Result<Value, ExecError> =
                    (offset..offset + lanes).map(|at| self.memory.load_relaxed(from.buffer, at)).collect();
                self.bind(*var, values?)
            }
            Stmt::Cta(stmt) => Err(ExecError::Undefined { node: format!("{stmt:?} without a cta") }),
        }
    }

    fn tile_stmt(&mut self, stmt: &AmxStmt) -> Result<(), ExecError> {
        match stmt {
            AmxStmt::Zero(tile) => {
                let shape = &self.program.tiles[tile.index()];
                self.tiles[tile.index()] = Some(vec![Number::Float(0.0); shape.rows * shape.columns]);
            }
            AmxStmt::Load { tile, buffer, offset, stride } => {
                let mut values = Vec::new();
                for at in self.tile_offsets(*tile, *offset, *stride)? {
                    self.report.loads += 1;
                    values.push(self.memory.load(*buffer, at)?);
                }
                self.tiles[tile.index()] = Some(values);
            }
            AmxStmt::Dot { acc, a, b } => {
                // acc: [rows, n], a: [rows, k]
                let (n, k) = (self.program.tiles[acc.index()].columns, self.program.tiles[a.index()].columns);
                let (accs, a, b) = (self.tile(*acc)?, self.tile(*a)?, self.tile(*b)?);
                let result = dot(accs, a, b, n, k);
                let node = || ExecError::Undefined { node: format!("{stmt:?}") };
                self.tiles[acc.index()] = Some(result.ok_or_else(node)?);
            }
            AmxStmt::Store { tile, buffer, offset, stride } => {
                let values = self.tile(*tile)?.to_vec();
                let offsets = self.tile_offsets(*tile, *offset, *stride)?;
                for (value, at) in values.into_iter().zip(offsets) {
                    self.report.stores += 1;
                    self.memory.store(*buffer, at, value)?;
                }
            }
        }
        Ok(())
    }

    fn tile(&self, tile: TileId) -> Result<&[Number], ExecError> {
        let name = || self.program.tiles[tile.index()].name.clone();
        self.tiles[tile.index()].as_deref().ok_or_else(|| ExecError::Unbound { name: name() })
    }

    /// The element offsets of a tile in memory, row by row.
    fn tile_offsets(&mut self, tile: TileId, offset: ExprId, stride: i64) -> Result<Vec<i64>, ExecError> {
        let first = self.eval_index(offset)?;
        let shape = &self.program.tiles[tile.index()];
        let (rows, columns) = (shape.rows as i64, shape.columns as i64);
        Ok((0..rows).flat_map(|row| (0..columns).map(move |column| first + row * stride + column)).collect())
    }

    /// Binds a variable and checks its declared range and divisor.
    pub(crate) fn bind(&mut self, var: VarId, value: Value) -> Result<(), ExecError> {
        let info = self.program.exprs.var_info(var);
        if let (1, Some(v)) = (info.ty.lanes, value[0].as_i64()) {
            let in_range = info.range.is_none_or(|(low, high)| (low..=high).contains(&v));
            if !in_range || v % info.multiple_of != 0 {
                let range = info.range.map_or(String::new(), |(low, high)| format!("in {low}..={high}, "));
                return Err(ExecError::VarRange {
                    name: info.name.clone(),
                    value: v,
                    declared: format!("{range}a multiple of {}", info.multiple_of),
                    task: self.task,
                });
            }
        }
        self.vars[var.index()] = Some(value);
        Ok(())
    }

    pub(crate) fn eval_index(&mut self, id: ExprId) -> Result<i64, ExecError> {
        let value = self.eval(id)?[0];
        value.as_i64().ok_or_else(|| self.undefined(id))
    }

    /// The lanes of an access that take part, with their element offsets.
    fn active(
        &mut self,
        offset: ExprId,
        lanes: usize,
        mask: Option<&Value>,
    ) -> Result<Vec<(usize, i64)>, ExecError> {
        let offsets = self.eval(offset)?;
        let mut active = Vec::with_capacity(lanes);
        for lane in (0..lanes).filter(|&lane| mask.is_none_or(|mask| mask[lane].is_true())) {
            let position = match &*offsets {
                [first] => first.as_i64().and_then(|first| first.checked_add(lane as i64)),
                each => each[lane].as_i64(),
            };
            active.push((lane, position.ok_or_else(|| self.undefined(offset))?));
        }
        Ok(active)
    }

    pub(crate) fn eval(&mut self, id: ExprId) -> Result<Value, ExecError> {
        if let Some(value) = self.cache.get(id) {
            return Ok(value);
        }
        let value = self.eval_node(id)?;
        debug_assert_eq!(value.len(), self.program.exprs.lanes(id));
        self.cache.set(id, &value);
        Ok(value)
    }

    fn eval_node(&mut self, id: ExprId) -> Result<Value, ExecError> {
        let exprs = &self.program.exprs;
        let dtype = exprs.dtype(id);
        Ok(match exprs.get(id) {
            Expr::Const(Const { dtype, bits }) => Rc::new([Number::from_bits(*dtype, *bits)]),
            Expr::Var(var) => {
                let name = || exprs.var_info(*var).name.clone();
                self.vars[var.index()].clone().ok_or_else(|| ExecError::Unbound { name: name() })?
            }
            Expr::Unary(f, a) => self.lanewise(id, [*a], |[x]| scalar::unary(*f, dtype, x))?,
            Expr::Binary(f, a, b) => self.lanewise(id, [*a, *b], |[x, y]| scalar::binary(*f, dtype, x, y))?,
            Expr::Compare(f, a, b) => {
                self.lanewise(id, [*a, *b], |[x, y]| Some(Number::bool(scalar::compare(*f, x, y))))?
            }
            Expr::Select(condition, a, b) => {
                self.lanewise(id, [*condition, *a, *b], |[c, x, y]| Some(if c.is_true() { x } else { y }))?
            }
            Expr::Cast(to, a) => self.lanewise(id, [*a], |[x]| Some(x.cast(*to)))?,
            Expr::IsNan(a) => self.lanewise(id, [*a], |[x]| match x {
                Number::Float(v) => Some(Number::bool(v.is_nan())),
                Number::Int(_) => None,
            })?,
            Expr::IsInf(a) => self.lanewise(id, [*a], |[x]| match x {
                Number::Float(v) => Some(Number::bool(v.is_infinite())),
                Number::Int(_) => None,
            })?,
            Expr::Fma(a, b, c) => self.lanewise(id, [*a, *b, *c], |[x, y, z]| scalar::fma(dtype, x, y, z))?,
            Expr::DotPairs(a, b, c) => {
                let (a, b, c) = (self.eval(*a)?, self.eval(*b)?, self.eval(*c)?);
                let dot = |(lane, &acc): (usize, &Number)| {
                    (2 * lane..2 * lane + 2)
                        .try_fold(acc, |acc, at| scalar::fma(DType::F32, a[at % a.len()], b[at], acc))
                };
                let accs: Option<Value> = c.iter().enumerate().map(dot).collect();
                accs.ok_or_else(|| self.undefined(id))?
            }
            Expr::Interleave(group, a, b) => {
                let operands = [self.eval(*a)?, self.eval(*b)?];
                let lane = |lane| {
                    let (operand, at) = group.source_of(lane);
                    operands[operand][at]
                };
                (0..2 * operands[0].len()).map(lane).collect()
            }
            Expr::Half(half, a) => {
                let a = self.eval(*a)?;
                a[half.lanes(a.len())].iter().copied().collect()
            }
            Expr::FloorDiv(a, b) => self.floor_division(id, *a, *b, scalar::floor_div)?,
            Expr::FloorRem(a, b) => {
                self.floor_division(id, *a, *b, |x, y| x - scalar::floor_div(x, y) * y)?
            }
            Expr::Load { buffer, offset, lanes, mask } => {
                let mask = mask.map(|mask| self.eval(mask)).transpose()?;
                let zero = if dtype.is_float() { Number::Float(0.0) } else { Number::Int(0) };
                let mut values = vec![zero; *lanes];
                for (lane, offset) in self.active(*offset, *lanes, mask.as_ref())? {
                    self.report.loads += 1;
                    values[lane] = self.memory.load(*buffer, offset)?;
                }
                values.into()
            }
            Expr::Splat(a, lanes) => vec![self.eval(*a)?[0]; *lanes].into(),
            Expr::Ramp { base, stride, lanes } => {
                let Number::Int(base) = self.eval(*base)?[0] else { return Err(self.undefined(id)) };
                (0..*lanes as i128)
                    .map(|lane| Number::Int(base + i128::from(*stride) * lane).round_to(dtype))
                    .collect()
            }
            Expr::ReduceLanes(op, a) => {
                let lanes = self.eval(*a)?;
                let value = reduce_lanes(*op, dtype, &lanes).ok_or_else(|| self.undefined(id))?;
                Rc::new([value])
            }
            Expr::Read { .. } | Expr::Stage(_) => return Err(self.undefined(id)),
        })
    }

    /// Applies `f` lane by lane; `None` from it means that the node is not defined for its type.
    fn lanewise<const N: usize>(
        &mut self,
        id: ExprId,
        operands: [ExprId; N],
        f: impl Fn([Number; N]) -> Option<Number>,
    ) -> Result<Value, ExecError> {
        let mut values: [Value; N] = std::array::from_fn(|_| Rc::from([]));
        for (value, operand) in values.iter_mut().zip(operands) {
            *value = self.eval(operand)?;
        }
        (0..self.program.exprs.lanes(id))
            .map(|lane| f(std::array::from_fn(|n| values[n][lane])).ok_or_else(|| self.undefined(id)))
            .collect()
    }

    fn floor_division(
        &mut self,
        id: ExprId,
        a: ExprId,
        b: ExprId,
        f: impl Fn(i128, i128) -> i128,
    ) -> Result<Value, ExecError> {
        let divisors = self.eval(b)?;
        let dividends = self.eval(a)?;
        for (&dividend, &divisor) in dividends.iter().zip(&*divisors) {
            if let (Number::Int(dividend), Number::Int(divisor @ ..=0)) = (dividend, divisor) {
                return Err(ExecError::FloorDivisor { dividend, divisor });
            }
        }
        self.lanewise(id, [a, b], |[x, y]| match (x, y) {
            (Number::Int(x), Number::Int(y)) => Some(Number::Int(f(x, y))),
            _ => None,
        })
    }

    fn undefined(&self, id: ExprId) -> ExecError {
        ExecError::Undefined { node: format!("{:?}", self.program.exprs.get(id)) }
    }
}

/// Combines lanes as a binary tree; `f16` and `bf16` accumulate in `f32`.
fn reduce_lanes(op: ReduceOp, dtype: DType, lanes: &[Number]) -> Option<Number> {
    let f = match op {
        ReduceOp::Sum if dtype == DType::Bool => BinaryFn::Or,
        ReduceOp::Prod if dtype == DType::Bool => BinaryFn::And,
        _ => op.combining()?,
    };
    let acc = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let mut values = lanes.to_vec();
    while values.len() > 1 {
        let half = values.len() / 2;
        for lane in 0..half {
            values[lane] = scalar::binary(f, acc, values[lane], values[lane + half])?;
        }
        values.truncate(half);
    }
    Some(values.first()?.round_to(dtype))
}

#[cfg(test)]
mod tests;
