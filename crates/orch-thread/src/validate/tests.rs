//! Tests of the validator.

use super::*;
use crate::program::Buffer;
use crate::random::random_program;
use orch_ir::{BinaryFn, UnaryFn};

/// A program with an f32 input, an i32 output and nothing to do.
fn empty() -> (ThreadProgram, BufferId, BufferId) {
    let mut p = ThreadProgram::new("k", 1);
    let buffer = |name: &str, dtype, scope| Buffer { name: name.into(), dtype, elems: 8, scope };
    let x = p.add_buffer(buffer("x", DType::F32, Scope::Input));
    let y = p.add_buffer(buffer("y", DType::I32, Scope::Output));
    (p, x, y)
}

#[track_caller]
fn violations(program: &ThreadProgram, expected: &[&str]) {
    assert_eq!(validate_thread(program), expected);
}

#[test]
fn random_programs_are_valid() {
    for seed in 0..100 {
        assert_eq!(validate_thread(&random_program("k", seed).0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn stores_match_their_buffer() {
    let (mut p, x, y) = empty();
    let zero = p.exprs.index(0);
    let value = p.exprs.load(x, zero, 4, None);
    let flag = p.exprs.bool(true);
    p.body = vec![
        Stmt::Store { buffer: y, offset: zero, value, mask: Some(flag) },
        Stmt::Store { buffer: x, offset: zero, value, mask: None },
    ];
    violations(
        &p,
        &[
            "body.0: the mask of 4 elements of b1 is bool",
            "body.0: f32 is stored to b1 (y), which holds i32",
            "body.1: the input b0 is stored to",
        ],
    );
}

#[test]
fn variables_have_scopes() {
    let (mut p, _, _) = empty();
    let a = p.exprs.declare_register("a", Type::INDEX);
    let i = p.exprs.declare_index("i", 4);
    let (zero, four) = (p.exprs.index(0), p.exprs.index(4));
    let (a_value, i_value) = (p.exprs.var(a), p.exprs.var(i));
    p.body = vec![
        Stmt::Let(a, i_value),
        Stmt::Assign(a, zero),
        Stmt::For { var: i, start: zero, end: a_value, step: 0, kind: LoopKind::Unroll, body: vec![] },
        Stmt::For { var: i, start: zero, end: four, step: 1, kind: LoopKind::Serial, body: vec![] },
        Stmt::Let(a, zero),
        Stmt::Prefetch { buffer: BufferId::new(7), offset: i_value },
    ];
    violations(
        &p,
        &[
            "body.0: x2 (i) is used before it is declared",
            "body.1: x1 (a) is assigned, but is not a register",
            "body.2: the step is 0",
            "body.2: a bound of an unrolled loop is not constant",
            "body.4: x1 (a) is declared where it is in scope already",
            "body.5: x2 (i) is used out of its scope",
            "body.5: there is no buffer b7",
        ],
    );
}

#[test]
fn functions_accept_their_operands() {
    let (mut p, _, _) = empty();
    let one = p.exprs.index(1);
    let flag = p.exprs.bool(true);
    let nodes = [
        p.exprs.add(Expr::Unary(UnaryFn::Exp, one)),
        p.exprs.add(Expr::Binary(BinaryFn::Add, flag, flag)),
        p.exprs.add(Expr::Splat(one, 3)),
    ];
    for (number, value) in nodes.into_iter().enumerate() {
        let ty = p.exprs.ty(value);
        let var = p.exprs.declare_register(format!("v{number}"), ty);
        p.body.push(Stmt::Let(var, value));
    }
    violations(
        &p,
        &[
            "body.0: e2 = Unary(Exp, e0) is not defined for this type",
            "body.1: e3 = Binary(Add, e1, e1) is not defined for this type",
            "body.2: e4 has 3 lanes",
        ],
    );
}

#[test]
fn headers_are_checked() {
    let (mut p, _, _) = empty();
    p.name = "no name".into();
    p.add_buffer(Buffer { name: "s".into(), dtype: DType::F32, elems: 1, scope: Scope::Scratch });
    p.add_buffer(Buffer { name: "z".into(), dtype: DType::F32, elems: 1, scope: Scope::Output });
    violations(&p, &["the name \"no name\" is not a C identifier", "b3 is global, but stands after scratch"]);
}

#[test]
fn ctas_are_checked() {
    let program = |header: &str, body: &str| {
        let text = format!("program k, 3 tasks task: i64 [0..=2]\n{header}{{\n{body}}}\n");
        crate::parse_thread(&text).unwrap_or_else(|error| panic!("{error}"))
    };
    let cta = "  cta 48 threads thread: i64 [0..=47], clusters of 2\n";
    violations(&program(cta, ""), &["a cta has 48 threads", "3 tasks in clusters of 2"]);
    let groups = |clusters: usize, ctas: usize| {
        format!(
            "  cta 32 threads thread: i64 [0..=31], clusters of {clusters}, barrier groups of {ctas}\n  output y: f32[8]\n  \
             updated n: i32[1]\n"
        )
    };
    violations(&program(&groups(1, 2), ""), &["3 tasks in barrier groups of 2, clusters of 1"]);
    violations(&program(&groups(3, 3), ""), &["3 tasks in barrier groups of 3, clusters of 3"]);
    let phases = |count: usize, more: &str| format!("  phases {count}\n{more}  output y: f32[8]\n");
    violations(&program(&phases(3, ""), ""), &[]);
    let apart = "phases of a program with a cta or groups";
    violations(&program(&phases(2, ""), ""), &[&format!("3 tasks in 2 phases, or {apart}")]);
    violations(&program(&phases(0, ""), ""), &[&format!("3 tasks in 0 phases, or {apart}")]);
    let cta = "  cta 32 threads thread: i64 [0..=31], clusters of 1\n";
    violations(&program(&phases(3, cta), ""), &[&format!("3 tasks in 3 phases, or {apart}")]);
    let groups_of_one = "  groups of 1 first: i64 [0..=1]\n";
    violations(&program(&phases(3, groups_of_one), ""), &[&format!("3 tasks in 3 phases, or {apart}")]);
    let counter = "body.0: barrier groups, and a counter in an updated buffer of i32, are expected";
    let updated = "body.1: barrier groups, and an updated buffer of the variable's type, of 2 bytes or more, are expected";
    let meet = "grid_barrier n[0]\nload_relaxed v: i32 = n[0]\n";
    violations(&program(&groups(1, 3), meet), &[]);
    violations(&program(&groups(1, 1), meet), &[counter, updated]);
    violations(
        &program(&groups(1, 3), "grid_barrier y[0]\nload_relaxed v: f32 = y[0]\n"),
        &[counter, updated],
    );
    violations(
        &program("  shared s: f32[8]\n", "barrier\n"),
        &["shared memory without a cta", "body.0: there is no cta"],
    );
    let header = "  cta 128 threads thread: i64 [0..=127], clusters of 1\n  input x: f16[8192]\n  \
                  shared s: f16[8192]\n  shared t: f32[8]\n  scratch f: f16[8]\n  scratch acc: f32[64]\n";
    let body = "cp_async s[0], x[0], 1\ncp_async t[0], x[0], 4\ncp_async s[0], x[0], 4, if thread\n\
                shuffle v: f16 = x[0], 32\nload_dsmem w: f16 = t[0], 0\nload_dsmem v: f16 = x[0], 0\n\
                ldmatrix acc[0], t[0], 1\nldmatrix f[0], s[0], 3\n\
                mma bf16, acc[0], f[0], f[0]\nmma f16, f[0], f[0], f[0]\n\
                wgmma tf32, acc[0], t[0], t[0], 8, 64\nwgmma f16, f[0], s[0], s[0], 8, 64\n\
                wgmma f16, acc[0], x[0], s[0], 8, 64\nwgmma f16, acc[0], s[0], f[0], 8, 64\n\
                wgmma f16, acc[0], s[0], s[4096], 12, 64\n\
                wgmma f16, acc[0], s[0], s[4096], 264, 64\n\
                wgmma f16, acc[0], f[0], s[0], 8, 16\n\
                wgmma f16, acc[0], f[0], s[0], 8, 16, transposed_b\n\
                wgmma f16, acc[0], s[0], s[0], 64, 16, transposed_b\n\
                wgmma f16, acc[0], f[0], s[0], 64, 16, transposed_b\ncp_async s[0], x[0], 8\n\
                store_dsmem s[0], 0 = s[0]\nstore_dsmem t[0], 0 = 1.0_f64\nif (thread < 1) {\ncluster_arrive\n}\ncompute_first s[0]\n\
                wgmma f16, acc[0], f[0], s[0], 64, 16, transposed_a\n";
    let copies = "a copy of 4, 8 or 16 bytes from an input to shared memory of its type is expected";
    let matrices = "1, 2 or 4 matrices of 16-bit elements, from shared memory to scratch, are expected";
    let fragments = "fragments are in scratch: operands of the type of the mma, accumulators of f32";
    let tiles = "wgmma accumulates in scratch of f32; its operands are tiles of 16-bit elements of its type";
    let sizes = "there is no wgmma of this shape";
    let dsmem_store = "elements of 4 bytes or more, in shared memory of their type, are expected";
    let dsmem_load = "the variable is loaded from shared memory of another type";
    let expected = [
        (0, copies),
        (1, copies),
        (2, "the mask is i64, not a boolean scalar"),
        (3, "the lane is outside of the warp"),
        (4, dsmem_load),
        (5, dsmem_load),
        (5, "x2 (v) is declared where it is in scope already"),
        (6, matrices),
        (7, matrices),
        (8, fragments),
        (9, fragments),
        (10, tiles),
        (11, tiles),
        (12, tiles),
        (13, tiles),
        (14, sizes),
        (15, sizes),
        (16, sizes),
        (17, sizes),
        (18, sizes),
        (21, dsmem_store),
        (22, dsmem_store),
    ]
    .map(|(at, problem)| format!("body.{at}: {problem}"));
    let split = "body.23.then.0: the cluster barrier is split inside of a loop or branch".to_owned();
    let fragments_of_f16 = "body.24: a number of f32 is expected".to_owned();
    let transposed_fragments = format!("body.25: {tiles}");
    assert_eq!(
        validate_thread(&program(header, body)),
        expected.into_iter().chain([split, fragments_of_f16, transposed_fragments]).collect::<Vec<_>>()
    );
    let twice = "if (thread < 1) {\nreuse_shared\n}\nreuse_shared\n";
    violations(&program(header, twice), &["body.1: shared memory is reused a second time"]);
}
