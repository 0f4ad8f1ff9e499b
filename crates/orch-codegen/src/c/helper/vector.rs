//! Operations in GCC's vector extensions: the same text for every target, for vectors of at most one register.

use super::super::types::{CType, Family, scalar_name, unsigned_of};
use super::scalar::philox_body;
use super::{CFile, Helper, Op, mask_of, returns, signed_like};
use orch_ir::{BinaryFn, DType, UnaryFn};

impl CFile {
    /// The body of a vector function in vector extensions, or `None` if lanes have to be taken apart.
    pub(super) fn vector_body(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        let name = self.type_name(CType::Num(dtype, lanes));
        match op {
            Op::Splat => Some(returns(format!("({name}){{{}}}", vec!["a"; lanes].join(", ")))),
            Op::Low | Op::High => {
                let first = if op == Op::Low { 0 } else { lanes / 2 };
                let picked: Vec<String> = (first..first + lanes / 2).map(|lane| lane.to_string()).collect();
                Some(match lanes {
                    2 => returns(format!("a[{first}]")),
                    _ => returns(format!("__builtin_shufflevector(a, a, {})", picked.join(", "))),
                })
            }
            Op::Join => {
                let picked: Vec<String> = (0..lanes).map(|lane| lane.to_string()).collect();
                Some(match lanes {
                    2 => returns(format!("({name}){{a, b}}")),
                    _ => returns(format!("__builtin_shufflevector(a, b, {})", picked.join(", "))),
                })
            }
            Op::LoadEvery(stride) if lanes > 2 => Some(self.load_every(stride, dtype, lanes)),
            Op::Fma if !dtype.is_float() => {
                let product = self.apply(Op::Binary(BinaryFn::Mul), dtype, lanes, &["a", "b"]);
                Some(returns(self.apply(Op::Binary(BinaryFn::Add), dtype, lanes, &[&product, "c"])))
            }
            // GCC multiplies by the reciprocal of a literal divisor.
            Op::QuotientBy(divisor) => {
                let unsigned = self.type_name(CType::Num(unsigned_of(dtype.size_bytes()), lanes));
                Some(returns(format!("({name})(({unsigned})a / {divisor}u)")))
            }
            Op::RemainderBy(divisor) => {
                let unsigned = self.type_name(CType::Num(unsigned_of(dtype.size_bytes()), lanes));
                Some(returns(format!("a - ({name})(({unsigned})a / {divisor}u * {divisor}u)")))
            }
            Op::Unary(f) => self.vector_unary(f, dtype, lanes),
            Op::Binary(f) => self.vector_binary(f, dtype, lanes),
            Op::Compare(f) => self.vector_compare(helper, f.symbol()),
            Op::Select => self.vector_select(dtype, lanes),
            Op::MaxOfNumber | Op::MinOfNumber => {
                let f = if op == Op::MaxOfNumber { orch_ir::CompareFn::Gt } else { orch_ir::CompareFn::Lt };
                let first = self.apply(Op::Compare(f), dtype, lanes, &["a", "b"]);
                Some(returns(self.apply(Op::Select, dtype, lanes, &[&first, "a", "b"])))
            }
            Op::Cast(from) => self.vector_cast(from, dtype, lanes),
            Op::Prefix => self.vector_prefix(dtype, lanes),
            Op::StorePrefix => Some(self.store_prefix(dtype, lanes)),
            _ => None,
        }
    }

    /// Elements at a distance, picked from consecutive vectors. The last of these ends with the last element, so that nothing beyond
    /// it is read. A gather takes the time of an access to each element, and no element is prefetched.
    fn load_every(&mut self, stride: i32, dtype: DType, lanes: usize) -> String {
        let name = self.type_name(CType::Num(dtype, lanes));
        let vectors = stride.unsigned_abs() as usize;
        let last = vectors * (lanes - 1);
        // Offsets from the lowest element, which is the last lane's if the stride is negative.
        let first_of = |vector: usize| if vector + 1 == vectors { last + 1 - lanes } else { vector * lanes };
        let lowest = if stride < 0 { format!("(a - {last})") } else { "a".to_owned() };
        let element_of = |lane: usize| vectors * if stride < 0 { lanes - 1 - lane } else { lane };
        let vector_of = |lane: usize| (element_of(lane) / lanes).min(vectors - 1);
        let mut loads = Vec::new();
        for vector in 0..vectors {
            loads.push(self.apply(Op::Load, dtype, lanes, &[&format!("({lowest} + {})", first_of(vector))]));
        }
        let within = |lane: usize| element_of(lane) - first_of(vector_of(lane));
        let first: Vec<String> = (0..lanes)
            .map(|lane| within(lane) + if vector_of(lane) == 1 { lanes } else { 0 })
            .map(|position| position.to_string())
            .collect();
        let second = loads.get(1).unwrap_or(&loads[0]);
        let mut body = format!(
            "    {name} r = __builtin_shufflevector({}, {second}, {});\n",
            loads[0],
            first.join(", ")
        );
        for (vector, load) in loads.iter().enumerate().skip(2) {
            let picked: Vec<String> = (0..lanes)
                .map(|lane| if vector_of(lane) == vector { lanes + within(lane) } else { lane })
                .map(|position| position.to_string())
                .collect();
            body += &format!("    r = __builtin_shufflevector(r, {load}, {});\n", picked.join(", "));
        }
        body + "    return r;\n"
    }

    fn vector_unary(&mut self, f: UnaryFn, dtype: DType, lanes: usize) -> Option<String> {
        let bits = 8 * dtype.size_bytes();
        let name = self.type_name(CType::Num(dtype, lanes));
        let signed = self.type_name(CType::Num(signed_like(dtype), lanes));
        let unsigned = self.type_name(CType::Num(unsigned_of(dtype.size_bytes()), lanes));
        match f {
            UnaryFn::Abs if dtype.is_float() => {
                let mask = mask_of(bits - 1);
                Some(returns(format!("({name})(({signed})a & {mask})")))
            }
            UnaryFn::Recip => Some(returns("1 / a")),
            UnaryFn::Sign if dtype.is_float() => {
                let zero = self.literal(dtype, lanes, "0");
                let (one, minus_one) = (self.literal(dtype, lanes, "1"), self.literal(dtype, lanes, "-1"));
                let below = self.apply(Op::Compare(orch_ir::CompareFn::Lt), dtype, lanes, &["a", &zero]);
                let above = self.apply(Op::Compare(orch_ir::CompareFn::Gt), dtype, lanes, &["a", &zero]);
                let negative = self.apply(Op::Select, dtype, lanes, &[&below, &minus_one, "a"]);
                Some(returns(self.apply(Op::Select, dtype, lanes, &[&above, &one, &negative])))
            }
            UnaryFn::Neg => Some(returns(format!("({name})(-({unsigned})a)"))),
            UnaryFn::Abs if dtype.is_signed_int() => Some(format!(
                "    const {unsigned} sign = ({unsigned})(a >> {});\n    return ({name})((({unsigned})a ^ sign) - sign);\n",
                bits - 1
            )),
            UnaryFn::Abs => Some(returns("a")),
            UnaryFn::Sign => Some(returns(format!("({name})((a < 0) - (a > 0))"))),
            _ => None,
        }
    }

    fn vector_binary(&mut self, f: BinaryFn, dtype: DType, lanes: usize) -> Option<String> {
        let name = self.type_name(CType::Num(dtype, lanes));
        let compare = |f| Op::Compare(f);
        if dtype.is_float() {
            let (f, f_of_number) = match f {
                BinaryFn::Max => (orch_ir::CompareFn::Ne, Op::MaxOfNumber),
                BinaryFn::Min => (orch_ir::CompareFn::Ne, Op::MinOfNumber),
                _ => return None,
            };
            let is_nan = self.apply(compare(f), dtype, lanes, &["b", "b"]);
            let other = self.apply(f_of_number, dtype, lanes, &["b", "a"]);
            return Some(returns(self.apply(Op::Select, dtype, lanes, &[&is_nan, "b", &other])));
        }
        let unsigned = self.type_name(CType::Num(unsigned_of(dtype.size_bytes()), lanes));
        let last_bit = 8 * dtype.size_bytes() - 1;
        let wrapping = |operator| Some(returns(format!("({name})(({unsigned})a {operator} ({unsigned})b)")));
        match f {
            BinaryFn::Add => wrapping("+"),
            BinaryFn::Sub => wrapping("-"),
            BinaryFn::Mul => wrapping("*"),
            BinaryFn::Max | BinaryFn::Min => {
                let order = if f == BinaryFn::Max { orch_ir::CompareFn::Gt } else { orch_ir::CompareFn::Lt };
                let first = self.apply(compare(order), dtype, lanes, &["a", "b"]);
                Some(returns(self.apply(Op::Select, dtype, lanes, &[&first, "a", "b"])))
            }
            BinaryFn::Shl => Some(format!(
                "    const {unsigned} n = ({unsigned})b;\n    \
                 return ({name})((({unsigned})a << (n & {last_bit})) & ({unsigned})(n <= {last_bit}));\n"
            )),
            BinaryFn::Shr if dtype.is_signed_int() => Some(format!(
                "    const {unsigned} n = ({unsigned})b;\n    \
                 return a >> ({name})((n | ~({unsigned})(n <= {last_bit})) & {last_bit});\n"
            )),
            BinaryFn::Philox => Some(philox_body(&name)),
            BinaryFn::Shr => Some(returns(format!("(a >> (b & {last_bit})) & ({name})(b <= {last_bit})"))),
            _ => None,
        }
    }

    fn vector_compare(&mut self, helper: Helper, operator: &str) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        if self.isa.family == Family::Avx512 {
            let wide = self.widened(dtype, lanes)?;
            let (a, b) = (self.converted(wide, lanes, "a"), self.converted(wide, lanes, "b"));
            return Some(returns(self.apply(op, wide, lanes, &[&a, &b])));
        }
        let flags = self.type_name(self.isa.flags(dtype, lanes));
        Some(returns(format!("({flags})(a {operator} b)")))
    }

    fn vector_select(&mut self, dtype: DType, lanes: usize) -> Option<String> {
        let name = self.type_name(CType::Num(dtype, lanes));
        if self.isa.family == Family::Avx512 {
            let wide = self.widened(dtype, lanes)?;
            let (b, c) = (self.converted(wide, lanes, "b"), self.converted(wide, lanes, "c"));
            let selected = self.apply(Op::Select, wide, lanes, &["a", &b, &c]);
            return Some(returns(format!("__builtin_convertvector({selected}, {name})")));
        }
        let flags = self.type_name(self.isa.flags(dtype, lanes));
        Some(returns(format!("({name})((({flags})b & a) | (({flags})c & ~a))")))
    }

    /// Flags of the first lanes, from a constant vector of lane numbers. AVX-512 has its own definition.
    fn vector_prefix(&mut self, dtype: DType, lanes: usize) -> Option<String> {
        if self.isa.family == Family::Avx512 {
            return None;
        }
        let signed = signed_like(dtype);
        let (name, scalar) = (self.type_name(CType::Num(signed, lanes)), scalar_name(signed));
        let numbers: Vec<String> = (0..lanes).map(|lane| lane.to_string()).collect();
        let count = format!("({scalar})(a < 0 ? 0 : a > {lanes} ? {lanes} : a)");
        let count = self.apply(Op::Splat, signed, lanes, &[&count]);
        Some(returns(format!("({name})(({name}){{{}}} < {count})", numbers.join(", "))))
    }

    /// A wider integer type in which a vector smaller than a register becomes one; `None` if there is none.
    fn widened(&self, dtype: DType, lanes: usize) -> Option<DType> {
        let candidates = match dtype {
            DType::I8 | DType::I16 | DType::I32 => [DType::I16, DType::I32, DType::I64],
            DType::U8 | DType::U16 | DType::U32 | DType::Bool | DType::F16 | DType::BF16 => {
                [DType::U16, DType::U32, DType::U64]
            }
            DType::I64 | DType::U64 | DType::F32 | DType::F64 => return None,
        };
        (candidates.into_iter())
            .find(|&wide| wide.size_bytes() > dtype.size_bytes() && self.isa.is_register(wide, lanes))
    }

    fn converted(&mut self, dtype: DType, lanes: usize, text: &str) -> String {
        format!("__builtin_convertvector({text}, {})", self.type_name(CType::Num(dtype, lanes)))
    }

    /// A small number in every lane.
    pub(super) fn literal(&mut self, dtype: DType, lanes: usize, text: &str) -> String {
        self.apply(Op::Splat, dtype, lanes, &[text])
    }
}
