//! Names are declared before they are used, in a block around the use: random nests of loops and conditions with values that are
//! equal to parts of other expressions, some of them named further in. The text for every target is checked by its tokens; C is also
//! compiled and run against the interpreter.

mod support;

use orch_codegen::{c, cuda};
use orch_compute::expr::{Expr, ExprId, Type, VarId, VarInfo};
use orch_ir::{BinaryFn, CompareFn, DType};
use orch_thread::cta::Cta;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::random::Random;
use orch_thread::{BufferData, ExecOptions, interpret, target, validate_thread};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Seeds of the programs that are compiled, in one file.
const COMPILED: std::ops::Range<u64> = 10..18;
/// Tasks of a program, and threads of a CTA.
const TASKS: usize = 3;
/// Elements that a task writes.
const OWN_ELEMS: usize = 64;
/// Elements of the input.
const INPUT_ELEMS: usize = 48;
/// How deep blocks nest.
const DEPTH: usize = 4;

struct Generator {
    program: ThreadProgram,
    random: Random,
    /// Index variables in scope.
    indices: Vec<VarId>,
    /// Registers in scope.
    registers: Vec<VarId>,
    /// Index expressions that have been used; programs draw from them again, as long as their variables are in scope.
    pool: Vec<(ExprId, BTreeSet<VarId>)>,
    /// Stores so far: each has an element of its own.
    stores: usize,
}

impl Generator {
    fn new(name: &str, seed: u64) -> Self {
        let mut program = ThreadProgram::new(name, TASKS);
        for (name, scope, elems) in [
            ("x", Scope::Input, INPUT_ELEMS),
            ("y", Scope::Output, TASKS * OWN_ELEMS),
            ("s", Scope::Scratch, 4),
        ] {
            program.add_buffer(Buffer { name: name.into(), dtype: DType::I64, elems, scope });
        }
        let indices = vec![program.task];
        Self { program, random: Random::new(seed), indices, registers: vec![], pool: vec![], stores: 0 }
    }

    fn add(&mut self, node: Expr) -> ExprId {
        self.program.exprs.add(node)
    }

    /// A scalar: often one that was used before, or one on top of it.
    fn index(&mut self, depth: usize) -> (ExprId, BTreeSet<VarId>) {
        let visible: BTreeSet<VarId> = self.indices.iter().copied().collect();
        let usable: Vec<usize> =
            (0..self.pool.len()).filter(|&at| self.pool[at].1.is_subset(&visible)).collect();
        if !usable.is_empty() && self.random.one_in(2) {
            return self.pool[self.random.pick(&usable)].clone();
        }
        if depth == 0 || self.random.one_in(4) {
            let var = self.random.pick(&self.indices);
            return (self.program.exprs.var(var), BTreeSet::from([var]));
        }
        let (a, vars) = self.index(depth - 1);
        let limit = self.random.pick(&[2, 3, 5, 16]);
        let constant = self.program.exprs.index(limit);
        let (node, vars) = match self.random.below(6) {
            0 => (Expr::Binary(BinaryFn::Mul, a, constant), vars),
            1 => (Expr::FloorDiv(a, constant), vars),
            2 => (Expr::FloorRem(a, constant), vars),
            3 => (Expr::Binary(BinaryFn::Add, a, constant), vars),
            operation => {
                let (b, others) = self.index(depth - 1);
                let f = if operation == 4 { BinaryFn::Sub } else { BinaryFn::Add };
                (Expr::Binary(f, a, b), vars.union(&others).copied().collect())
            }
        };
        let id = self.bounded(node);
        self.pool.push((id, vars.clone()));
        (id, vars)
    }

    /// The node, or what is left of it in a small range: arithmetic must not overflow.
    fn bounded(&mut self, node: Expr) -> ExprId {
        const LIMIT: i64 = 1 << 20;
        let id = self.add(node);
        if orch_compute::Bounds::new().of(&self.program.exprs, id).is_within(-LIMIT, LIMIT) {
            return id;
        }
        let limit = self.program.exprs.index(17);
        self.add(Expr::FloorRem(id, limit))
    }

    /// What is stored: an index, with data and registers added at times.
    fn value(&mut self) -> ExprId {
        let (mut value, _) = self.index(3);
        if self.random.one_in(2) {
            let (index, _) = self.index(2);
            let buffer = self.random.pick(&[0, 2]);
            let elems = self.program.buffers[buffer].elems as i64;
            let limit = self.program.exprs.index(elems);
            let offset = self.add(Expr::FloorRem(index, limit));
            let buffer = orch_compute::BufferId::new(buffer);
            let loaded = self.add(Expr::Load { buffer, offset, lanes: 1, mask: None });
            value = self.add(Expr::Binary(BinaryFn::Xor, value, loaded));
        }
        if !self.registers.is_empty() && self.random.one_in(2) {
            let register = self.random.pick(&self.registers);
            let register = self.program.exprs.var(register);
            value = self.add(Expr::Binary(BinaryFn::Add, register, value));
        }
        value
    }

    fn condition(&mut self) -> ExprId {
        let ((a, _), (b, _)) = (self.index(2), self.index(2));
        self.add(Expr::Compare(CompareFn::Lt, a, b))
    }

    fn declare(&mut self, name: &str, range: Option<(i64, i64)>) -> VarId {
        let info = VarInfo { name: name.into(), ty: Type::INDEX, range, multiple_of: 1 };
        self.program.exprs.declare(info)
    }

    fn list(&mut self, count: usize, depth: usize) -> Vec<Stmt> {
        let (indices, registers) = (self.indices.len(), self.registers.len());
        let list = (0..count).map(|_| self.stmt(depth)).collect();
        self.indices.truncate(indices);
        self.registers.truncate(registers);
        list
    }

    fn stmt(&mut self, depth: usize) -> Stmt {
        match self.random.below(if depth > 0 { 10 } else { 5 }) {
            0 | 1 => {
                let (value, _) = self.index(2);
                let range = orch_compute::Bounds::new().of(&self.program.exprs, value);
                let var = self.declare("v", Some((range.low, range.high)));
                self.indices.push(var);
                Stmt::Let(var, value)
            }
            2 if self.registers.is_empty() || self.random.one_in(2) => {
                let value = self.value();
                let var = self.program.exprs.declare_register("r", Type::INDEX);
                self.registers.push(var);
                Stmt::Register(var, value)
            }
            2 => Stmt::Assign(self.random.pick(&self.registers), self.value()),
            3 | 4 => self.store(),
            5..=7 => {
                let (low, trips) = (self.random.below(2) as i64, 1 + self.random.below(3) as i64);
                let var = self.declare("k", Some((low, low + trips)));
                let (start, end) = (self.program.exprs.index(low), self.program.exprs.index(low + trips));
                self.indices.push(var);
                let body = self.list(3, depth - 1);
                self.indices.pop();
                let kind = self.random.pick(&[LoopKind::Serial, LoopKind::Serial, LoopKind::UnrollBy(2)]);
                Stmt::For { var, start, end, step: 1, kind, body }
            }
            _ => {
                let condition = self.condition();
                let then = self.list(3, depth - 1);
                let otherwise = if self.random.one_in(2) { self.list(2, depth - 1) } else { vec![] };
                Stmt::If { condition, then, otherwise }
            }
        }
    }

    /// A store to an element of the task's own, or to scratch.
    fn store(&mut self) -> Stmt {
        let value = self.value();
        let slot = self.program.exprs.index((self.stores % OWN_ELEMS) as i64);
        self.stores += 1;
        if self.random.one_in(4) {
            let elems = self.program.exprs.index(4);
            let offset = self.add(Expr::FloorRem(slot, elems));
            return Stmt::Store { buffer: orch_compute::BufferId::new(2), offset, value, mask: None };
        }
        let (task, size) =
            (self.program.exprs.var(self.program.task), self.program.exprs.index(OWN_ELEMS as i64));
        let base = self.add(Expr::Binary(BinaryFn::Mul, task, size));
        let offset = self.add(Expr::Binary(BinaryFn::Add, base, slot));
        Stmt::Store { buffer: orch_compute::BufferId::new(1), offset, value, mask: None }
    }

    /// Writes all of scratch, which programs read.
    fn scratch(&mut self) -> Vec<Stmt> {
        let one = |at: i64| {
            let (offset, value) = (self.program.exprs.index(at), self.program.exprs.index(3 * at));
            Stmt::Store { buffer: orch_compute::BufferId::new(2), offset, value, mask: None }
        };
        (0..4).map(one).collect()
    }
}

/// A random nest of loops.
fn nest(name: &str, seed: u64) -> ThreadProgram {
    let mut generator = Generator::new(name, seed);
    let mut body = generator.scratch();
    body.extend(generator.list(6, DEPTH));
    let mut program = generator.program;
    program.body = body;
    assert_eq!(validate_thread(&program), Vec::<String>::new(), "seed {seed}\n{program}");
    program
}

/// The same statements as a kernel of one thread per CTA.
fn as_kernel(mut program: ThreadProgram) -> ThreadProgram {
    let thread = program.exprs.declare(VarInfo {
        name: "thread".into(),
        ty: Type::INDEX,
        range: Some((0, 31)),
        multiple_of: 1,
    });
    program.cta = Some(Cta { threads: 32, thread, cluster: 1, barrier_group: 1, loads_ahead: false });
    program
}

/// Words and single characters, without comments and lines of the preprocessor.
fn tokens(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', '/'])) {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { 1 };
            found.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// The first use of a name in a function outside the block that declares it. A word is declared by standing after a type and before `=`
/// or `[`; that of a `for` belongs to the block of its body.
fn undeclared(function: &str) -> Result<usize, String> {
    let tokens = tokens(function);
    let is_type = |token: &str| {
        matches!(
            token,
            "int64_t" | "bool" | "int" | "long" | "auto" | "unsigned" | "f16" | "float" | "uint8_t"
        )
    };
    let is_name = |token: &str| token.starts_with(|c: char| c.is_ascii_alphabetic()) && !is_type(token);
    let declares = |at: usize| {
        at > 0
            && is_name(tokens[at])
            && is_type(tokens[at - 1])
            && matches!(tokens.get(at + 1..at + 3), Some(["=", next]) if *next != "=")
    };
    let names: BTreeSet<&str> = (0..tokens.len()).filter(|&at| declares(at)).map(|at| tokens[at]).collect();
    let mut visible: Vec<BTreeMap<&str, ()>> = vec![BTreeMap::new()];
    let mut of_loop = None;
    let mut uses = 0;
    for (at, &token) in tokens.iter().enumerate() {
        match token {
            "{" => visible.push(of_loop.take().into_iter().map(|name| (name, ())).collect()),
            "}" => {
                visible.pop();
            }
            _ if declares(at) && tokens[..at].iter().rev().take(3).any(|&before| before == "for") => {
                of_loop = Some(token);
            }
            _ if declares(at) => {
                visible.last_mut().expect("a block is open").insert(token, ());
            }
            _ if names.contains(token) => {
                let is_visible =
                    of_loop == Some(token) || visible.iter().any(|block| block.contains_key(token));
                if !is_visible {
                    return Err(format!("`{token}` is used outside of its block"));
                }
                uses += 1;
            }
            _ => {}
        }
    }
    Ok(uses)
}

/// The text from the first function that does a program's work on.
fn work(text: &str, start: &str) -> String {
    text[text.find(start).unwrap_or_else(|| panic!("no `{start}` in {text}"))..].to_owned()
}

/// Checks the text for every target.
fn check_text(seed: u64) -> Result<usize, String> {
    let program = support::after_passes(&nest("nest", seed));
    let mut uses = 0;
    let mut check = |target: &str, text: String| {
        uses += undeclared(&text)
            .map_err(|error| format!("seed {seed}, {target}: {error}\n{program}\n{text}"))?;
        Ok::<(), String>(())
    };
    for target in target::CPU_TARGETS {
        check(
            target.name,
            work(&c::emit(&[&program], target), "static __attribute__((noinline)) void nest_tasks"),
        )?;
    }
    for target in target::GPU_TARGETS {
        let kernel = as_kernel(program.clone());
        check(target.name, work(&cuda::emit(&kernel, target), "extern \"C\" __global__"))?;
    }
    Ok(uses)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_are_used_inside_the_block_that_declares_them(seed: u64) {
        if let Err(problem) = check_text(seed) {
            prop_assert!(false, "{}", problem);
        }
    }
}

#[test]
fn the_check_sees_uses_outside_of_blocks() {
    let function = |body: &str| format!("void f(int64_t n) {{\n{body}}}\n");
    let good = "for (int64_t i = 0; i < n; i++) {\nconst int64_t a = i;\nuse(a);\n}\n";
    assert_eq!(undeclared(&function(good)), Ok(4));
    for bad in [
        "for (int64_t i = 0; i < n; i++) {\nconst int64_t a = i;\n}\nuse(a);\n",
        "use(a);\nconst int64_t a = n;\n",
        "for (int64_t i = 0; i < n; i++) {\n}\nuse(i);\n",
        "const int64_t t = a * 4;\nfor (int64_t i = 0; i < n; i++) {\nconst int64_t a = n;\n}\n",
    ] {
        assert!(undeclared(&function(bad)).is_err(), "{bad}");
    }
}

#[test]
fn programs_use_the_names_that_they_declare() {
    let uses: usize =
        (0..20).map(|seed| check_text(seed).unwrap_or_else(|problem| panic!("{problem}"))).sum();
    assert!(uses > 20 * 50, "{uses} uses of names");
}

#[test]
fn nests_compile_and_agree_with_the_interpreter() {
    let programs: Vec<ThreadProgram> = COMPILED.map(|seed| nest(&format!("nest{seed}"), seed)).collect();
    let data = |program: &ThreadProgram, seed: u64| -> Vec<BufferData> {
        let globals = program.buffers.iter().filter(|buffer| buffer.scope.is_global());
        let mut random = Random::new(seed);
        globals
            .map(|buffer| orch_thread::random::random_data(buffer.dtype, buffer.elems, &mut random))
            .collect()
    };
    let inputs: Vec<Vec<BufferData>> =
        COMPILED.zip(&programs).map(|(seed, program)| data(program, seed)).collect();
    let Some(toolchain) = support::toolchains().into_iter().next() else { return };
    let directory = support::directory("scopes");
    let runs: Vec<(&ThreadProgram, &[BufferData])> =
        programs.iter().zip(&inputs).map(|(program, data)| (program, &data[..])).collect();
    let outputs = support::run_compiled(&runs, &toolchain, &directory);
    for ((program, data), got) in runs.iter().zip(&outputs) {
        let mut want = data.to_vec();
        interpret(program, &mut want, &ExecOptions::default())
            .unwrap_or_else(|error| panic!("{error}\n{program}"));
        assert_eq!(got[1].bytes, want[1].bytes, "{program}");
    }
    std::fs::remove_dir_all(directory).expect("the test made it");
}
