//! Stores: statements rather than expressions, because a store to a vector in memory is an assignment.

use super::super::parens::strip_parens;
use super::super::types::CType;
use super::{CFile, Helper, Op};
use orch_ir::DType;

impl CFile {
    /// C text (without the semicolon) that stores consecutive elements at a pointer, a unary expression.
    pub fn store(&mut self, dtype: DType, lanes: usize, pointer: &str, value: &str) -> String {
        if lanes == 1 {
            return format!("*{pointer} = {}", strip_parens(value));
        }
        if self.isa.is_pair(dtype, lanes) {
            let name = self.require(Helper { op: Op::Store, dtype, lanes });
            return format!("{name}({}, {})", strip_parens(pointer), strip_parens(value));
        }
        let name = self.memory_type(dtype, lanes);
        self.type_name(CType::Num(dtype, lanes));
        format!("*({name} *){pointer} = {}", strip_parens(value))
    }
}
