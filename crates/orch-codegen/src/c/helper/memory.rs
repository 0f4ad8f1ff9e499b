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

    /// The body of a store of the first lanes: by halves, each of which is stored whole or cut again. With a constant number at
    /// most three plain stores are left for eight lanes; AMD's processors with AVX2 take some twenty cycles for a masked one.
    pub(super) fn store_prefix(&mut self, dtype: DType, lanes: usize) -> String {
        let half = lanes / 2;
        let [low, high] = [Op::Low, Op::High].map(|op| self.apply(op, dtype, lanes, &["b"]));
        let [all, first] =
            [(lanes, "b"), (half, low.as_str())].map(|(n, value)| self.store(dtype, n, "a", value));
        let of_low = self.apply(Op::StorePrefix, dtype, half, &["a", &low, "c"]);
        let (next, above) = (format!("a + {half}"), format!("c - {half}"));
        let of_high = self.apply(Op::StorePrefix, dtype, half, &[&next, &high, &above]);
        format!(
            "    if (c >= {lanes}) {{\n        {all};\n    }} else if (c >= {half}) {{\n        {first};\n        {of_high};\n    }} else {{\n        {of_low};\n    }}\n"
        )
    }
}
