//! Random valid thread programs, for tests of everything that reads them.
//!
//! A program made here stays in bounds, writes every output element before it reads it, and its tasks write apart;
//! it uses only functions whose results are exactly defined, so that two executions must agree bit for bit (NaN
//! payloads and signs of zero from a maximum excepted: no constant operand of a maximum or minimum is zero).

use crate::interp::BufferData;
use crate::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_compute::expr::{BufferId, Expr, ExprId, LaneGroup, LaneHalf, Type, VarId, VarInfo};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

/// A small generator of pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of the elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Elements of every output that belong to one task.
const OWN_ELEMS: usize = 37;
/// Lanes that programs use; beyond the registers of every target too.
const LANES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// How deep expressions nest.
const DEPTH: usize = 3;

/// A random program and the contents of its global buffers.
pub fn random_program(name: &str, seed: u64) -> (ThreadProgram, Vec<BufferData>) {
    let mut random = Random::new(seed);
    let tasks = 1 + random.below(3);
    let mut generator =
        Generator { program: ThreadProgram::new(name, tasks), random, indices: vec![], values: vec![] };
    generator.indices.push(generator.program.task);
    generator.buffers();
    let mut body = generator.initialisation();
    let count = 2 + generator.random.below(5);
    body.extend(generator.list(count, 2));
    let mut program = generator.program;
    program.body = body;
    let data = (program.buffers.iter().filter(|buffer| buffer.scope != Scope::Scratch))
        .map(|buffer| random_data(buffer.dtype, buffer.elems, &mut generator.random))
        .collect();
    (program, data)
}

/// Random elements, among them the special values of floats.
pub fn random_data(dtype: DType, elems: usize, random: &mut Random) -> BufferData {
    let special =
        [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, -1.0, 1e-40, 70000.0, 3e9, -3e9, 1e19];
    let mut bytes = Vec::new();
    for _ in 0..elems {
        let bits = match dtype {
            DType::Bool => random.bits() & 1,
            DType::F32 if random.one_in(6) => u64::from((random.pick(&special) as f32).to_bits()),
            DType::F32 => u64::from((random.below(4001) as f32 / 16.0 - 125.0).to_bits()),
            DType::F64 if random.one_in(6) => random.pick(&special).to_bits(),
            DType::F64 => (random.below(4001) as f64 / 16.0 - 125.0).to_bits(),
            _ if dtype.is_int() && random.one_in(2) => (random.below(9) as i64 - 4) as u64,
            _ => random.bits(),
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size_bytes()]);
    }
    BufferData { dtype, bytes }
}

struct Generator {
    program: ThreadProgram,
    random: Random,
    /// Index variables in scope.
    indices: Vec<VarId>,
    /// Other variables in scope, with whether they may be assigned.
    values: Vec<(VarId, bool)>,
}

impl Generator {
    fn buffers(&mut self) {
        let tasks = self.program.tasks;
        let scopes = [Scope::Input, Scope::Constant, Scope::Output, Scope::Output, Scope::Scratch];
        for (number, scope) in scopes.into_iter().enumerate() {
            let elems = match scope {
                Scope::Input | Scope::Constant => 40 + self.random.below(30),
                Scope::Output | Scope::Updated => OWN_ELEMS * tasks,
                Scope::Shared | Scope::ReusedShared | Scope::Scratch => OWN_ELEMS,
            };
            let dtype = self.random.pick(&DType::ALL);
            self.program.add_buffer(Buffer { name: format!("b{number}"), dtype, elems, scope });
        }
    }

    /// Writes everything that the task may read back.
    fn initialisation(&mut self) -> Vec<Stmt> {
        let mut body = vec![Stmt::Comment("everything is written once".into())];
        for number in 0..self.program.buffers.len() {
            let id = BufferId::new(number);
            let buffer = self.program.buffer(id);
            if buffer.scope.is_read_only() {
                continue;
            }
            let dtype = buffer.dtype;
            let (var, index) = self.program.exprs.fresh_index("i", OWN_ELEMS);
            let offset = self.own(id, index);
            let value = self.constant(dtype);
            let store = Stmt::Store { buffer: id, offset, value, mask: None };
            let (start, end) = self.range(0, OWN_ELEMS as i64);
            body.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body: vec![store] });
        }
        body
    }

    fn range(&mut self, start: i64, end: i64) -> (ExprId, ExprId) {
        (self.program.exprs.index(start), self.program.exprs.index(end))
    }

    /// The offset of an element of the task's own part of an output, or of scratch.
    fn own(&mut self, buffer: BufferId, index: ExprId) -> ExprId {
        if self.program.buffer(buffer).scope == Scope::Scratch {
            return index;
        }
        let task = self.program.exprs.var(self.program.task);
        let size = self.program.exprs.index(OWN_ELEMS as i64);
        let base = self.program.exprs.add(Expr::Binary(BinaryFn::Mul, task, size));
        self.program.exprs.add(Expr::Binary(BinaryFn::Add, base, index))
    }

    fn list(&mut self, count: usize, depth: usize) -> Vec<Stmt> {
        let (indices, values) = (self.indices.len(), self.values.len());
        let mut body = Vec::new();
        for _ in 0..count {
            self.stmt(depth, &mut body);
        }
        self.indices.truncate(indices);
        self.values.truncate(values);
        body
    }

    fn stmt(&mut self, depth: usize, body: &mut Vec<Stmt>) {
        match self.random.below(if depth > 0 { 10 } else { 7 }) {
            0 | 1 => self.declaration(body),
            2 => self.assignment(body),
            3 if self.random.one_in(4) => {
                let buffer = BufferId::new(0);
                let offset = self.bounded(self.program.buffer(buffer).elems);
                body.push(Stmt::Prefetch { buffer, offset });
            }
            3..=6 => self.store(body),
            7 | 8 => self.for_loop(depth, body),
            _ => {
                let condition = self.expr(Type::scalar(DType::Bool), DEPTH);
                let then = self.list(2, depth - 1);
                let otherwise = if self.random.one_in(2) { self.list(1, depth - 1) } else { vec![] };
                body.push(Stmt::If { condition, then, otherwise });
            }
        }
    }

    fn any_type(&mut self) -> Type {
        Type { dtype: self.random.pick(&DType::ALL), lanes: self.random.pick(&LANES) }
    }

    fn declaration(&mut self, body: &mut Vec<Stmt>) {
        let ty = self.any_type();
        let value = self.expr(ty, DEPTH);
        let is_register = self.random.one_in(2);
        let var = self.program.exprs.declare_register(if is_register { "r" } else { "v" }, ty);
        body.push(if is_register { Stmt::Register(var, value) } else { Stmt::Let(var, value) });
        self.values.push((var, is_register));
    }

    fn assignment(&mut self, body: &mut Vec<Stmt>) {
        let registers: Vec<VarId> =
            self.values.iter().filter(|(_, assignable)| *assignable).map(|(var, _)| *var).collect();
        if registers.is_empty() {
            return self.declaration(body);
        }
        let var = self.random.pick(&registers);
        let value = self.expr(self.program.var_type(var), DEPTH);
        body.push(Stmt::Assign(var, value));
    }

    fn store(&mut self, body: &mut Vec<Stmt>) {
        let buffer = BufferId::new(2 + self.random.below(3));
        let lanes = self.random.pick(&LANES);
        let value = self.expr(Type { dtype: self.program.buffer(buffer).dtype, lanes }, DEPTH);
        let (index, mask) = self.place(OWN_ELEMS, lanes);
        let offset = if self.program.exprs.lanes(index) == 1 {
            self.own(buffer, index)
        } else {
            let zero = self.program.exprs.index(0);
            let base = self.own(buffer, zero);
            let base = self.program.exprs.add(Expr::Splat(base, lanes));
            self.program.exprs.add(Expr::Binary(BinaryFn::Add, base, index))
        };
        body.push(Stmt::Store { buffer, offset, value, mask });
    }

    fn for_loop(&mut self, depth: usize, body: &mut Vec<Stmt>) {
        let kind = match self.random.below(4) {
            0 => LoopKind::Unroll,
            1 => LoopKind::UnrollBy(2),
            _ => LoopKind::Serial,
        };
        let (first, trips, step) =
            (self.random.below(3) as i64, self.random.below(4) as i64, 1 + self.random.below(3) as i64);
        let last = first + trips * step;
        let var = self.program.exprs.declare(VarInfo {
            name: "k".into(),
            ty: Type::INDEX,
            range: Some((first, last)),
            multiple_of: 1,
        });
        let (start, end) = self.range(first, last);
        self.indices.push(var);
        let inner = self.list(2, depth - 1);
        self.indices.pop();
        body.push(Stmt::For { var, start, end, step, kind, body: inner });
    }

    /// An in-bounds place for `lanes` elements of a part of `elems`: a scalar offset of consecutive elements, or a
    /// vector of offsets; and a mask, sometimes.
    fn place(&mut self, elems: usize, lanes: usize) -> (ExprId, Option<ExprId>) {
        let flags = Type { dtype: DType::Bool, lanes };
        let mask = self.random.one_in(3).then(|| self.expr(flags, 2));
        if lanes > 1 && self.random.one_in(4) {
            let offsets = self.expr(Type::vector(DType::I64, lanes), 2);
            let limit = self.program.exprs.index(elems as i64);
            let limit = self.program.exprs.add(Expr::Splat(limit, lanes));
            return (self.program.exprs.add(Expr::FloorRem(offsets, limit)), mask);
        }
        let stride: i64 = if lanes <= 8 && self.random.one_in(5) { self.random.pick(&[2, 3, -1]) } else { 1 };
        let reach = (lanes - 1) * stride.unsigned_abs() as usize;
        let mut base = self.bounded(elems - reach);
        if stride < 0 {
            let reach = self.program.exprs.index(reach as i64);
            base = self.program.exprs.add(Expr::Binary(BinaryFn::Add, base, reach));
        }
        if lanes > 1 && (stride != 1 || self.random.one_in(4)) {
            base = self.program.exprs.add(Expr::Ramp { base, stride, lanes });
        }
        if lanes > 1 && stride == 1 && self.random.one_in(4) {
            return self.tail(elems, lanes);
        }
        (base, mask)
    }

    /// A place that runs over the end, with the mask that keeps it inside.
    fn tail(&mut self, elems: usize, lanes: usize) -> (ExprId, Option<ExprId>) {
        let base = self.bounded(elems);
        let exprs = &mut self.program.exprs;
        let lane_offsets = exprs.add(Expr::Ramp { base, stride: 1, lanes });
        let end = exprs.index(elems as i64);
        let end = exprs.add(Expr::Splat(end, lanes));
        (base, Some(exprs.add(Expr::Compare(CompareFn::Lt, lane_offsets, end))))
    }

    /// A scalar in `0..n`.
    fn bounded(&mut self, n: usize) -> ExprId {
        let index = self.index(2);
        let limit = self.program.exprs.index(n as i64);
        self.program.exprs.add(Expr::FloorRem(index, limit))
    }

    /// Index arithmetic on variables in scope.
    fn index(&mut self, depth: usize) -> ExprId {
        if depth == 0 || self.random.one_in(3) {
            return if self.random.one_in(3) {
                let value = self.random.below(20) as i64 - 5;
                self.program.exprs.index(value)
            } else {
                let var = self.random.pick(&self.indices);
                self.program.exprs.var(var)
            };
        }
        let (a, b) = (self.index(depth - 1), self.index(depth - 1));
        let limit = self.program.exprs.index(1 + self.random.below(9) as i64);
        let exprs = &mut self.program.exprs;
        match self.random.below(5) {
            0 => exprs.add(Expr::Binary(BinaryFn::Mul, a, b)),
            1 => exprs.add(Expr::Binary(BinaryFn::Sub, a, b)),
            2 => exprs.add(Expr::FloorDiv(a, limit)),
            3 => exprs.add(Expr::FloorRem(a, limit)),
            _ => exprs.add(Expr::Binary(BinaryFn::Add, a, b)),
        }
    }

    /// A constant other than zero (`false` is possible).
    fn constant(&mut self, dtype: DType) -> ExprId {
        match dtype {
            DType::Bool => {
                let value = self.random.one_in(2);
                self.program.exprs.bool(value)
            }
            _ if dtype.is_float() => {
                let value = self.random.pick(&[1.0, -1.5, 0.25, 3.0, 100.0, f64::INFINITY]);
                self.program.exprs.constant(dtype, value)
            }
            _ => {
                let value = self.random.pick(&[1, 2, 3, 7, 100, -1]);
                self.program.exprs.int(dtype, value)
            }
        }
    }

    /// An expression of a type.
    fn expr(&mut self, ty: Type, depth: usize) -> ExprId {
        if depth == 0 || self.random.one_in(6) {
            return self.leaf(ty);
        }
        let Type { dtype, lanes } = ty;
        let node = match self.random.below(12) {
            0 if lanes > 1 => Expr::Splat(self.expr(Type::scalar(dtype), depth - 1), lanes),
            0 => {
                let wide = Type { dtype, lanes: self.random.pick(&LANES[1..]) };
                let op = self.random.pick(&[ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min]);
                Expr::ReduceLanes(op, self.expr(wide, depth - 1))
            }
            1 => {
                let from = self.random.pick(&DType::ALL);
                Expr::Cast(dtype, self.expr(Type { dtype: from, lanes }, depth - 1))
            }
            2 => Expr::Select(
                self.expr(Type { dtype: DType::Bool, lanes }, depth - 1),
                self.expr(ty, depth - 1),
                self.expr(ty, depth - 1),
            ),
            3 if dtype != DType::Bool => {
                Expr::Fma(self.expr(ty, depth - 1), self.expr(ty, depth - 1), self.expr(ty, depth - 1))
            }
            4 if dtype.is_int() => {
                let divisor = self.random.pick(&[1, 2, 3, 10]);
                let divisor = self.program.exprs.int(dtype, divisor);
                let divisor = self.program.exprs.splat(divisor, lanes);
                let dividend = self.expr(ty, depth - 1);
                if self.random.one_in(2) {
                    Expr::FloorDiv(dividend, divisor)
                } else {
                    Expr::FloorRem(dividend, divisor)
                }
            }
            5 | 6 => return self.unary(ty, depth),
            7 if dtype != DType::Bool => {
                let (half, wide) = (self.random.pick(&LaneHalf::BOTH), Type { dtype, lanes: 2 * lanes });
                return if lanes > 1 && self.random.one_in(2) {
                    let half = Type { dtype, lanes: lanes / 2 };
                    let (a, b) = (self.expr(half, depth - 1), self.expr(half, depth - 1));
                    let is_paired = lanes > 2 && self.random.one_in(2);
                    let group = if is_paired { LaneGroup::Pair } else { LaneGroup::One };
                    self.program.exprs.interleave_groups(group, a, b)
                } else if lanes < LANES[LANES.len() - 1] {
                    let a = self.expr(wide, depth - 1);
                    self.program.exprs.half(half, a)
                } else {
                    self.binary(ty, depth)
                };
            }
            _ if dtype == DType::Bool && self.random.one_in(2) => return self.predicate(lanes, depth),
            _ => return self.binary(ty, depth),
        };
        self.program.exprs.add(node)
    }

    fn unary(&mut self, ty: Type, depth: usize) -> ExprId {
        let exact = [
            UnaryFn::Neg,
            UnaryFn::Abs,
            UnaryFn::Sign,
            UnaryFn::Ceil,
            UnaryFn::Floor,
            UnaryFn::RoundEven,
            UnaryFn::Trunc,
            UnaryFn::Sqrt,
            UnaryFn::Recip,
            UnaryFn::Not,
        ];
        let defined: Vec<UnaryFn> = exact.into_iter().filter(|f| f.accepts(ty.dtype)).collect();
        let f = self.random.pick(&defined);
        let operand = self.expr(ty, depth - 1);
        self.program.exprs.add(Expr::Unary(f, operand))
    }

    fn binary(&mut self, ty: Type, depth: usize) -> ExprId {
        let is_float = ty.dtype.is_float();
        let is_exact = |f: BinaryFn| match f {
            BinaryFn::Atan2 => false,
            BinaryFn::Pow => !is_float,
            _ => true,
        };
        let defined: Vec<BinaryFn> =
            BinaryFn::ALL.iter().copied().filter(|&f| f.accepts(ty.dtype) && is_exact(f)).collect();
        let f = self.random.pick(&defined);
        let (a, b) = (self.expr(ty, depth - 1), self.expr(ty, depth - 1));
        self.program.exprs.add(Expr::Binary(f, a, b))
    }

    fn predicate(&mut self, lanes: usize, depth: usize) -> ExprId {
        let dtype = self.random.pick(&DType::ALL);
        let ty = Type { dtype, lanes };
        let a = self.expr(ty, depth - 1);
        let node = match self.random.below(6) {
            0 if dtype.is_float() => Expr::IsNan(a),
            1 if dtype.is_float() => Expr::IsInf(a),
            _ => Expr::Compare(self.random.pick(CompareFn::ALL), a, self.expr(ty, depth - 1)),
        };
        self.program.exprs.add(node)
    }

    fn leaf(&mut self, ty: Type) -> ExprId {
        let Type { dtype, lanes } = ty;
        let vars: Vec<VarId> =
            self.values.iter().map(|(var, _)| *var).filter(|&var| self.program.var_type(var) == ty).collect();
        if !vars.is_empty() && !self.random.one_in(3) {
            let var = self.random.pick(&vars);
            return self.program.exprs.var(var);
        }
        let buffers: Vec<BufferId> = (0..self.program.buffers.len())
            .map(BufferId::new)
            .filter(|&id| self.program.buffer(id).dtype == dtype)
            .collect();
        if !buffers.is_empty() && !self.random.one_in(3) {
            let buffer = self.random.pick(&buffers);
            return self.load(buffer, lanes);
        }
        if dtype == DType::I64 && self.random.one_in(2) {
            let base = self.index(1);
            let stride = self.random.below(7) as i64 - 3;
            return if lanes == 1 {
                base
            } else {
                self.program.exprs.add(Expr::Ramp { base, stride, lanes })
            };
        }
        if self.random.one_in(3) {
            let from = self.program.buffer(BufferId::new(0)).dtype;
            let loaded = self.load(BufferId::new(0), lanes);
            return if from == dtype { loaded } else { self.program.exprs.add(Expr::Cast(dtype, loaded)) };
        }
        let value = self.constant(dtype);
        self.program.exprs.splat(value, lanes)
    }

    fn load(&mut self, buffer: BufferId, lanes: usize) -> ExprId {
        let Buffer { elems, scope, .. } = *self.program.buffer(buffer);
        let (index, mask) = match scope {
            // Only the task's own part has been written.
            Scope::Output | Scope::Updated => {
                let index = self.bounded(OWN_ELEMS - (lanes - 1));
                (self.own(buffer, index), None)
            }
            Scope::Input | Scope::Constant | Scope::Shared | Scope::ReusedShared | Scope::Scratch => {
                self.place(elems, lanes)
            }
        };
        self.program.exprs.add(Expr::Load { buffer, offset: index, lanes, mask })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::{ExecOptions, interpret};

    #[test]
    fn random_programs_run_without_violations() {
        for seed in 0..150 {
            let (program, mut data) = random_program("random", seed);
            let report = interpret(&program, &mut data, &ExecOptions::default());
            let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(report.unwritten.iter().all(|&elems| elems == 0), "seed {seed}");
        }
    }
}
