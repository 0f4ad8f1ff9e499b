//! Accuracy of the mathematical functions of `f32`: compiled programs evaluate them over the whole range of floats,
//! in a vector and scalar by scalar, and a C `main` compares with the C library's `double` functions.

mod support;

use orch_codegen::c;
use orch_ir::{BinaryFn, DType, UnaryFn};
use orch_thread::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use std::fmt::Write as _;
use support::Toolchain;

/// Elements that a program processes at once.
const BLOCK: usize = 1024;

/// Functions of one operand, with the error allowed in units of the last place.
const UNARY: [(UnaryFn, f64); 16] = [
    (UnaryFn::Exp, 1.0),
    (UnaryFn::Expm1, 2.0),
    (UnaryFn::Log, 1.0),
    (UnaryFn::Log1p, 2.0),
    (UnaryFn::Tanh, 2.0),
    (UnaryFn::Erf, 2.0),
    (UnaryFn::Sin, 2.0),
    (UnaryFn::Cos, 2.0),
    (UnaryFn::Tan, 2.0),
    (UnaryFn::Sqrt, 0.5),
    (UnaryFn::Recip, 0.5),
    (UnaryFn::Floor, 0.0),
    (UnaryFn::Ceil, 0.0),
    (UnaryFn::Trunc, 0.0),
    (UnaryFn::RoundEven, 0.0),
    (UnaryFn::Abs, 0.0),
];

/// The C expression in `double` that a function is compared with.
fn reference(f: UnaryFn) -> &'static str {
    match f {
        UnaryFn::Abs => "fabs(x)",
        UnaryFn::Recip => "1 / x",
        UnaryFn::RoundEven => "nearbyint(x)",
        // The argument below which results would be subnormal, and are 0.
        UnaryFn::Exp => "(x < -87.33654022216796875 ? 0 : exp(x))",
        UnaryFn::Expm1 => "expm1(x)",
        UnaryFn::Log => "log(x)",
        UnaryFn::Log1p => "log1p(x)",
        UnaryFn::Tanh => "tanh(x)",
        UnaryFn::Erf => "erf(x)",
        UnaryFn::Sin => "sin(x)",
        UnaryFn::Cos => "cos(x)",
        UnaryFn::Tan => "tan(x)",
        UnaryFn::Sqrt => "sqrt(x)",
        UnaryFn::Floor => "floor(x)",
        UnaryFn::Ceil => "ceil(x)",
        UnaryFn::Trunc => "trunc(x)",
        f => panic!("{f:?} is not tested here"),
    }
}

/// C text that fills `z`, and may change `x`, for functions of two operands: for powers, bases around 1 and exponents of
/// which many are whole.
const POWERS: &str = "for (int i = 0; i < BLOCK; i++) { uint32_t m = (uint32_t)(i * 2654435761u + block * 40503u); x[i] = i % 32 ? ldexpf(1 + (m & 0xffff) / 65536.0f, (int)(m >> 28) - 8) : x[i]; \
     z[i] = i % 7 ? (int32_t)(m * 7919u) / 2.0e8f : rintf((int32_t)(m * 7919u) / 2.0e8f); if (i % 61 == 0) z[i] = x[(i * 31) % BLOCK]; if (i % 5 == 0) x[i] = -x[i]; }";

/// The same: any numbers, whose products are often subnormal.
const ANY: &str = "for (int i = 0; i < BLOCK; i++) { uint32_t b; memcpy(&b, x + i, 4); z[i] = of_bits(b * 2654435761u + 12345u); }";

/// The same: numbers near `-x`. Where `x` is small, it, `z` or their sum is subnormal.
const NEGATED: &str = "for (int i = 0; i < BLOCK; i++) { uint32_t b; memcpy(&b, x + i, 4); z[i] = of_bits(b ^ 0x80000000u ^ (uint32_t)(i * 37)); }";

/// `y[i] = f(x[i], z[i])` over a block, `lanes` at a time.
fn elementwise(
    name: String,
    lanes: usize,
    f: impl Fn(&mut ThreadProgram, orch_compute::ExprId, orch_compute::ExprId) -> orch_compute::ExprId,
) -> ThreadProgram {
    let mut p = ThreadProgram::new(name, 1);
    let buffer = |name: &str, scope| Buffer { name: name.into(), dtype: DType::F32, elems: BLOCK, scope };
    let x = p.add_buffer(buffer("x", Scope::Input));
    let z = p.add_buffer(buffer("z", Scope::Input));
    let y = p.add_buffer(buffer("y", Scope::Output));
    let (i, offset) = p.exprs.fresh_index("i", BLOCK);
    let (a, b) = (p.exprs.load(x, offset, lanes, None), p.exprs.load(z, offset, lanes, None));
    let value = f(&mut p, a, b);
    let (start, end) = (p.exprs.index(0), p.exprs.index(BLOCK as i64));
    let body = vec![Stmt::Store { buffer: y, offset, value, mask: None }];
    p.body = vec![Stmt::For { var: i, start, end, step: lanes as i64, kind: LoopKind::Serial, body }];
    p
}

const HELPERS: &str = r#"
#include <stdio.h>
#include <string.h>
#define BLOCK 1024
static float x[BLOCK], z[BLOCK], v[BLOCK], s[BLOCK];

static float of_bits(uint32_t b) { float f; memcpy(&f, &b, 4); return f; }

/* Distance from the exact value in units of the last place of a float near it. */
static double ulps(float got, double want) {
    if (want != want) return got != got ? 0 : 1e9;
    if (got != got) return 1e9;
    if ((double)got == want) return 0;
    float nearest = (float)want;
    if (isinf(nearest) || isinf(got)) return got == nearest ? 0 : 1e9;
    int e; frexp(want, &e);
    if (e < -125) e = -125;
    return fabs((double)got - want) / ldexp(1, e - 24);
}

static int failures;

static void check(const char *name, double limit, double worst, float at, float with, float got, int differ) {
    int ok = worst <= limit && differ == 0;
    printf("%s%-8s %.3f ulp (limit %.1f) at %a %a: %a; vector and scalar differ %d times\n",
           ok ? "" : "FAILED ", name, worst, limit, at, with, got, differ);
    failures += !ok;
}

/* A sweep over all exponents and signs, with every interesting value in front. */
static void fill(float *to, uint32_t *state, int first) {
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1, -1, 0.5f, -0.5f, 2, -2, 3, -3, 1e-40f,
        -1e-40f, 88.7f, -87.4f, -0x1.5d589ep+6f, -0x1.5d58a0p+6f, -103.9f, 1e5f, 1e6f, -1e30f, 3e38f, 0.99999994f, 1.0000001f, 1e-8f, 4, 9.02f};
    int n = first ? sizeof special / sizeof *special : 0;
    for (int i = 0; i < BLOCK; i++) {
        to[i] = i < n ? special[i] : of_bits(*state);
        *state += 20021;
    }
}
"#;

fn check(toolchain: &Toolchain) {
    let target = toolchain.target;
    let lanes = target.vector_bytes / 4;
    let mut programs = Vec::new();
    let mut main = String::from("\nint main(void) {\n    void *to_v[] = {x, z, v}, *to_s[] = {x, z, s};\n");
    let mut sweep = |name: &str, limit: f64, reference: &str, blocks: usize, second: &str| {
        // The sign of a zero that is the larger of two is free.
        let free_zero = i32::from(name == "k_max" || name == "k_relu");
        write!(
            main,
            "    {{\n        uint32_t state = 0; double worst = -1; int differ = 0; float at = 0, with = 0, got = 0;\n        \
             for (uint32_t block = 0; block < {blocks}; block++) {{\n            fill(x, &state, block == 0); {second}\n            \
             {name}_v(to_v, 0, 1, 0, -1); {name}_s(to_s, 0, 1, 0, -1);\n            \
             for (int i = 0; i < BLOCK; i++) {{\n                const double x_ = x[i], z_ = z[i]; (void)z_;\n                \
             const double error = ulps(v[i], {reference});\n                \
             if (error > worst) {{ worst = error; at = x[i]; with = z[i]; got = v[i]; }}\n                \
             differ += memcmp(v + i, s + i, 4) != 0 && !(v[i] != v[i] && s[i] != s[i]) && !({free_zero} && v[i] == s[i]);\n            }}\n        }}\n        \
             check(\"{name}\", {limit:?}, worst, at, with, got, differ);\n    }}\n"
        )
        .unwrap();
    };
    for (f, limit) in UNARY {
        let name = f.name();
        sweep(&format!("k_{name}"), limit, &reference(f).replace("x", "x_").replace("ex_p", "exp"), 420, "");
        for (suffix, lanes) in [("v", lanes), ("s", 1)] {
            let program = elementwise(format!("k_{name}_{suffix}"), lanes, |p, a, _| p.exprs.unary(f, a));
            programs.push(program);
        }
    }
    sweep("k_pow", 1.0, "pow(x_, z_)", 200, POWERS);
    sweep("k_max", 0.0, "x_ != x_ || z_ != z_ ? NAN : fmax(x_, z_)", 20, POWERS);
    sweep("k_relu", 0.0, "x_ != x_ ? NAN : fmax(x_, 0)", 20, POWERS);
    // Subnormal operands and results are not flushed: half a unit in the last place, as IEEE 754 has it.
    sweep("k_mul", 0.5, "x_ * z_", 420, ANY);
    sweep("k_add", 0.5, "x_ + z_", 420, NEGATED);
    for (suffix, lanes) in [("v", lanes), ("s", 1)] {
        programs.push(elementwise(format!("k_pow_{suffix}"), lanes, |p, a, b| {
            p.exprs.binary(BinaryFn::Pow, a, b)
        }));
        for (name, f) in [("max", BinaryFn::Max), ("mul", BinaryFn::Mul), ("add", BinaryFn::Add)] {
            programs
                .push(elementwise(format!("k_{name}_{suffix}"), lanes, |p, a, b| p.exprs.binary(f, a, b)));
        }
        programs.push(elementwise(format!("k_relu_{suffix}"), lanes, |p, a, _| {
            let zero = p.exprs.constant(DType::F32, 0.0);
            p.exprs.binary(BinaryFn::Max, a, zero)
        }));
    }
    main.push_str("    return failures;\n}\n");
    let programs: Vec<ThreadProgram> = programs.iter().map(support::after_passes).collect();
    let text = c::emit(&programs.iter().collect::<Vec<_>>(), target) + HELPERS + &main;
    let directory = support::directory(&format!("math_{}", target.name));
    let binary = toolchain.compile(&text, &directory, &[]);
    let run = toolchain.command(&binary).output().expect("the program was just compiled");
    println!("{}:\n{}", target.name, String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success(), "{} functions are not accurate enough on {}", run.status, target.name);
}

#[test]
fn functions_are_accurate_and_scalars_agree_with_vectors() {
    for toolchain in support::toolchains() {
        check(&toolchain);
    }
}
