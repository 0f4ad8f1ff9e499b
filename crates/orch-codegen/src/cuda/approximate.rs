//! Which kernels may take functions by the hardware's approximations.

use orch_compute::Expr;
use orch_ir::{BinaryFn, UnaryFn};
use orch_thread::ThreadProgram;

/// True if a program reads or writes 16-bit floats in memory and has no function of floats that jumps.
pub fn may_approximate(program: &ThreadProgram) -> bool {
    let rounds_anyway =
        program.buffers.iter().any(|buffer| buffer.scope.is_global() && buffer.dtype.is_half());
    rounds_anyway && !program.exprs.nodes().any(|expr| jumps(program, expr))
}

/// True of a function of floats whose result may change much where its operand changes little.
fn jumps(program: &ThreadProgram, expr: &Expr) -> bool {
    let is_float = |id| program.exprs.dtype(id).is_float();
    match expr {
        Expr::Unary(UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::RoundEven | UnaryFn::Trunc, x) => is_float(*x),
        Expr::Binary(BinaryFn::FloorMod | BinaryFn::TruncMod, x, _) => is_float(*x),
        Expr::Cast(to, x) => !to.is_float() && is_float(*x),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::may_approximate;
    use orch_thread::parse_thread;

    fn approximates(dtype: &str, value: &str) -> bool {
        let text = format!(
            "program k, 1 tasks task: i64 [0..=0]\n  input x: {dtype}[4]\n  output y: {dtype}[4]\n{{\ny[0] = {value}\n}}\n"
        );
        may_approximate(&parse_thread(&text).unwrap_or_else(|error| panic!("{text}{error}")))
    }

    #[test]
    fn only_what_is_rounded_to_16_bits_and_does_not_jump() {
        assert!(approximates("f16", "exp(x[0])"));
        assert!(approximates("bf16", "div(x[0], x[1])"));
        assert!(!approximates("f32", "exp(x[0])"));
        assert!(!approximates("f16", "floor(div(x[0], x[1]))"));
        assert!(!approximates("f16", "f16(i32(x[0]))"));
    }
}
