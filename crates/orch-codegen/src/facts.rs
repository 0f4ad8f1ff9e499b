//! What the emitter needs to know of each expression before it writes text: what is evaluated to compute it, how
//! often it is used, and whether it may move.

use orch_compute::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_ir::CompareFn;
use orch_thread::{AmxStmt, CtaStmt, Stmt, ThreadProgram};

/// How the lanes of an access are addressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// Consecutive elements from this one.
    Contiguous(ExprId),
    /// Elements at a constant distance: first element, distance.
    Strided(ExprId, i64),
    /// Element offsets in a vector.
    Scattered(ExprId),
}

/// How an access at `offset` is addressed.
pub fn address(exprs: &Exprs, offset: ExprId) -> Address {
    match exprs.get(offset) {
        Expr::Ramp { base, stride: 1, .. } => Address::Contiguous(*base),
        Expr::Ramp { base, stride, .. } => Address::Strided(*base, *stride),
        _ if exprs.lanes(offset) == 1 => Address::Contiguous(offset),
        _ => Address::Scattered(offset),
    }
}

impl Address {
    /// The expression that is evaluated.
    pub fn operand(self) -> ExprId {
        match self {
            Address::Contiguous(id) | Address::Strided(id, _) | Address::Scattered(id) => id,
        }
    }
}

/// Which lanes of an access take part, by booleans: expressions or their texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask<T> {
    /// All of them.
    All,
    /// All of them or none.
    Uniform(T),
    /// Each by itself.
    Each(T),
}

/// How an access under a mask is guarded.
pub fn mask(exprs: &Exprs, mask: Option<ExprId>) -> Mask<ExprId> {
    match mask {
        None => Mask::All,
        Some(mask) => exprs.uniform(mask).map_or(Mask::Each(mask), Mask::Uniform),
    }
}

impl<T> Mask<T> {
    /// The boolean or booleans, if there are any.
    pub fn operand(self) -> Option<T> {
        match self {
            Mask::All => None,
            Mask::Uniform(operand) | Mask::Each(operand) => Some(operand),
        }
    }

    /// The mask with another form of its booleans.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Mask<U> {
        match self {
            Mask::All => Mask::All,
            Mask::Uniform(operand) => Mask::Uniform(form(operand)),
            Mask::Each(operand) => Mask::Each(form(operand)),
        }
    }
}

/// What is evaluated for the condition of a choice: a scalar if it is the same in all lanes.
pub fn condition(exprs: &Exprs, condition: ExprId) -> ExprId {
    exprs.uniform(condition).unwrap_or(condition)
}

/// Flags that are true for the first lanes: those below `end - base`, or up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The number in lane 0.
    pub base: ExprId,
    /// What the lanes' numbers are compared with.
    pub end: ExprId,
    /// Whether `end` itself is in.
    pub inclusive: bool,
}

/// A comparison of consecutive numbers with a bound, if the expression is one.
pub fn prefix(exprs: &Exprs, id: ExprId) -> Option<Prefix> {
    let Expr::Compare(f, a, b) = exprs.get(id) else { return None };
    let (numbers, bound, inclusive) = match f {
        CompareFn::Lt => (a, b, false),
        CompareFn::Le => (a, b, true),
        CompareFn::Gt => (b, a, false),
        CompareFn::Ge => (b, a, true),
        CompareFn::Eq | CompareFn::Ne => return None,
    };
    match (exprs.get(*numbers), exprs.get(*bound)) {
        (Expr::Ramp { base, stride: 1, .. }, Expr::Splat(end, _))
            if exprs.ty(*end) == orch_compute::Type::INDEX =>
        {
            Some(Prefix { base: *base, end: *end, inclusive })
        }
        _ => None,
    }
}

/// What is evaluated for an access.
fn access(exprs: &Exprs, offset: ExprId, mask: Option<ExprId>) -> impl Iterator<Item = ExprId> + use<> {
    std::iter::once(address(exprs, offset).operand()).chain(self::mask(exprs, mask).operand())
}

/// The expressions whose values are needed to compute `id` in the form that it is emitted in.
pub fn operands(exprs: &Exprs, id: ExprId) -> Vec<ExprId> {
    if let Some(prefix) = prefix(exprs, id) {
        return vec![prefix.base, prefix.end];
    }
    let node = exprs.get(id);
    match *node {
        Expr::Load { offset, mask, .. } => return access(exprs, offset, mask).collect(),
        Expr::Select(condition, a, b) => return vec![self::condition(exprs, condition), a, b],
        _ => {}
    }
    let mut operands = Vec::new();
    node.for_each_operand(|operand| operands.push(operand));
    operands
}

/// The roots of a statement, not of those nested in it.
pub fn roots(exprs: &Exprs, stmt: &Stmt) -> Vec<ExprId> {
    match stmt {
        Stmt::Comment(_) => Vec::new(),
        Stmt::Let(_, value) | Stmt::Register(_, value) | Stmt::Assign(_, value) => vec![*value],
        Stmt::Store { offset, value, mask, .. } => {
            let mut roots: Vec<ExprId> = access(exprs, *offset, *mask).collect();
            roots.insert(1, *value);
            roots
        }
        Stmt::For { start, end, .. } => vec![*start, *end],
        Stmt::If { condition, .. } => vec![*condition],
        Stmt::Prefetch { offset, .. } => vec![*offset],
        Stmt::Amx(stmt) => stmt.offset().into_iter().collect(),
        Stmt::Cta(stmt) => stmt.operands(),
    }
}

/// The statements of a list, inner ones included.
pub fn stmts(list: &[Stmt]) -> Box<dyn Iterator<Item = &Stmt> + '_> {
    Box::new(list.iter().flat_map(|stmt| std::iter::once(stmt).chain(stmt.bodies().flat_map(stmts))))
}

/// The statements of the CTA, inner ones included.
pub fn cta_stmts(list: &[Stmt]) -> impl Iterator<Item = &CtaStmt> {
    stmts(list).filter_map(|stmt| if let Stmt::Cta(stmt) = stmt { Some(stmt) } else { None })
}

/// Side tables over the expressions of a program.
pub struct ExprFacts {
    /// Number of places that need the value.
    uses: Vec<u32>,
    /// True if the value depends on a register or on memory, and so on when it is computed.
    volatile: Vec<bool>,
    /// True if it is data rather than index arithmetic, which is known not to overflow.
    data: Vec<bool>,
}

impl ExprFacts {
    /// Computes the tables in two passes over the program and one over the arena.
    pub fn new(program: &ThreadProgram) -> Self {
        let exprs = &program.exprs;
        let mut is_register = vec![false; exprs.vars().len()];
        mark_registers(&program.body, &mut is_register);

        let mut all_roots = Vec::new();
        collect_roots(exprs, &program.body, &mut all_roots);
        let reachable = exprs.reachable(&all_roots);
        let len = reachable.last().map_or(0, |id| id.index() + 1);
        let mut facts = Self { uses: vec![0; len], volatile: vec![false; len], data: vec![false; len] };
        facts.count(exprs, all_roots);
        for &id in &reachable {
            facts.derive(exprs, id, &is_register);
        }
        // Registers with a declared range, within which they stay, are indices.
        let is_bounded = exprs.vars().iter().map(|var| var.range.is_some());
        let mut data_var: Vec<bool> = is_register
            .iter()
            .zip(is_bounded)
            .map(|(&is_register, bounded)| is_register && !bounded)
            .collect();
        mark_data_vars(exprs, &program.body, &mut data_var);
        for &id in &reachable {
            facts.data[id.index()] = is_data(exprs, id, &data_var, |operand| facts.data[operand.index()]);
        }
        facts
    }

    /// Number of places that need the value.
    pub fn uses(&self, id: ExprId) -> u32 {
        self.uses[id.index()]
    }

    /// True if the value depends on when it is computed.
    pub fn is_volatile(&self, id: ExprId) -> bool {
        self.volatile[id.index()]
    }

    /// True if the value comes from registers without a declared range or from memory, so that arithmetic on it may wrap.
    pub fn is_data(&self, id: ExprId) -> bool {
        self.data[id.index()]
    }

    /// Counts each root, and each operand of each distinct expression.
    fn count(&mut self, exprs: &Exprs, mut pending: Vec<ExprId>) {
        while let Some(id) = pending.pop() {
            self.uses[id.index()] += 1;
            if self.uses[id.index()] == 1 {
                pending.extend(operands(exprs, id));
            }
        }
    }

    fn derive(&mut self, exprs: &Exprs, id: ExprId, is_register: &[bool]) {
        let at = id.index();
        for operand in operands(exprs, id) {
            self.volatile[at] |= self.volatile[operand.index()];
        }
        match exprs.get(id) {
            Expr::Var(var) => self.volatile[at] = is_register[var.index()],
            Expr::Load { .. } => self.volatile[at] = true,
            _ => {}
        }
    }
}

/// The roots of all statements, nested ones included.
fn collect_roots(exprs: &Exprs, stmts: &[Stmt], collected: &mut Vec<ExprId>) {
    for stmt in stmts {
        collected.extend(roots(exprs, stmt));
        match stmt {
            Stmt::For { body, .. } => collect_roots(exprs, body, collected),
            Stmt::If { then, otherwise, .. } => {
                collect_roots(exprs, then, collected);
                collect_roots(exprs, otherwise, collected);
            }
            _ => {}
        }
    }
}

/// True if an expression with these operands is data.
fn is_data(exprs: &Exprs, id: ExprId, data_var: &[bool], operand_is_data: impl Fn(ExprId) -> bool) -> bool {
    match exprs.get(id) {
        Expr::Var(var) => data_var[var.index()],
        Expr::Load { .. } | Expr::ReduceLanes(..) => true,
        _ => operands(exprs, id).into_iter().any(operand_is_data),
    }
}

/// Marks the variables that are bound to data; registers that are data are marked already.
fn mark_data_vars(exprs: &Exprs, stmts: &[Stmt], data_var: &mut [bool]) {
    for stmt in stmts {
        match stmt {
            Stmt::Let(var, value) => {
                let reachable = exprs.reachable(&[*value]);
                data_var[var.index()] =
                    reachable.into_iter().any(|id| is_data(exprs, id, data_var, |_| false));
            }
            Stmt::Cta(stmt) => stmt.declares().into_iter().for_each(|var| data_var[var.index()] = true),
            Stmt::For { body, .. } => mark_data_vars(exprs, body, data_var),
            Stmt::If { then, otherwise, .. } => {
                mark_data_vars(exprs, then, data_var);
                mark_data_vars(exprs, otherwise, data_var);
            }
            _ => {}
        }
    }
}

/// Marks the variables that are assigned.
fn mark_registers(stmts: &[Stmt], is_register: &mut [bool]) {
    for stmt in stmts {
        if let Stmt::Register(var, _) = stmt {
            is_register[var.index()] = true;
        }
        for body in stmt.bodies() {
            mark_registers(body, is_register);
        }
    }
}

/// What a statement list changes: registers assigned and buffers stored to.
#[derive(Default)]
pub struct Changes {
    /// Registers.
    pub registers: Vec<VarId>,
    /// Buffers.
    pub buffers: Vec<BufferId>,
}

impl Changes {
    /// What `stmts` change, nested statements included.
    pub fn of(stmts: &[Stmt]) -> Self {
        let mut changes = Self::default();
        changes.add(stmts);
        changes
    }

    fn add(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            match stmt {
                Stmt::Assign(var, _) => self.registers.push(*var),
                Stmt::Store { buffer, .. } | Stmt::Amx(AmxStmt::Store { buffer, .. }) => {
                    self.buffers.push(*buffer);
                }
                Stmt::For { body, .. } => self.add(body),
                Stmt::If { then, otherwise, .. } => {
                    self.add(then);
                    self.add(otherwise);
                }
                Stmt::Comment(_)
                | Stmt::Let(..)
                | Stmt::Register(..)
                | Stmt::Prefetch { .. }
                | Stmt::Amx(_) => {}
                Stmt::Cta(stmt) => self.buffers.extend(stmt.written()),
            }
        }
    }

    /// What the value of an expression depends on: its registers, and the buffers it loads from that the program
    /// may write.
    pub fn that_affect(program: &ThreadProgram, root: ExprId) -> Self {
        let mut changes = Self::default();
        for id in program.exprs.reachable(&[root]) {
            match program.exprs.get(id) {
                Expr::Var(var) => changes.registers.push(*var),
                Expr::Load { buffer, .. } if !program.buffer(*buffer).scope.is_read_only() => {
                    changes.buffers.push(*buffer);
                }
                _ => {}
            }
        }
        changes
    }

    /// True if the two have something in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.registers.iter().any(|var| other.registers.contains(var))
            || self.buffers.iter().any(|buffer| other.buffers.contains(buffer))
    }
}
