//! Operations on C values, and the prelude functions that some of them call.
//!
//! [`CFile::apply`] turns an operation on operand texts into C text: an operator where C has one that means the
//! same, otherwise a call of a function named after the operation and its type (`orc_max_f32x16`). The functions
//! that are called, and the vector types they need, are what the prelude of the emitted file consists of.
//!
//! A function is defined in the first of these ways that applies: on halves, for vectors wider than a register;
//! with the target's intrinsics; with GCC's vector operators; lane by lane.

mod convert;
mod lanes;
pub use lanes::mask_of;
pub mod math;
mod memory;
mod neon;
mod op;
pub use op::{Helper, Op};
mod operator;
mod pairs;
mod scalar;
mod vector;
mod x86;

use super::parens::strip_parens;
use super::types::{CType, Isa, scalar_name, signed_of};
use orch_ir::DType;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::fmt::Write;

/// A parameter of a prelude function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Param {
    /// A pointer to elements that are read.
    Source(DType),
    /// A pointer to elements that are written.
    Target(DType),
    /// An element count.
    Count,
    /// A value.
    Value(CType),
}

/// Names of the parameters, in order.
const PARAMS: [&str; 4] = ["a", "b", "c", "d"];

/// One C file under construction: what its text needs from the prelude.
pub struct CFile {
    isa: Isa,
    vectors: BTreeSet<(DType, usize)>,
    memory_vectors: BTreeSet<(DType, usize)>,
    known: FxHashSet<Helper>,
    definitions: Vec<String>,
}

impl CFile {
    /// An empty file.
    pub fn new(isa: Isa) -> Self {
        Self {
            isa,
            vectors: BTreeSet::new(),
            memory_vectors: BTreeSet::new(),
            known: FxHashSet::default(),
            definitions: Vec::new(),
        }
    }

    /// The target's facts.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The name of a type, which is declared if it is a vector.
    pub fn type_name(&mut self, ty: CType) -> String {
        if let Some((dtype, lanes)) = ty.as_vector() {
            self.declare_vector(dtype, lanes);
        }
        ty.name()
    }

    fn declare_vector(&mut self, dtype: DType, lanes: usize) {
        if self.isa.is_pair(dtype, lanes) {
            self.declare_vector(dtype, lanes / 2);
        }
        self.vectors.insert((dtype, lanes));
    }

    /// The name of the type through which a vector is accessed in memory: aligned like one element.
    pub fn memory_type(&mut self, dtype: DType, lanes: usize) -> String {
        self.memory_vectors.insert((dtype, lanes));
        format!("{}_mem", CType::Num(dtype, lanes).name())
    }

    /// Vector types, then functions, each after what it uses.
    pub fn prelude(&self) -> String {
        let mut text = String::new();
        for &(dtype, lanes) in &self.vectors {
            let (element, name) = (scalar_name(dtype), CType::Num(dtype, lanes).name());
            if self.isa.is_pair(dtype, lanes) {
                let half = CType::Num(dtype, lanes / 2).name();
                writeln!(text, "typedef struct {{ {half} lo, hi; }} {name};").expect("writes to a string");
                continue;
            }
            let bytes = dtype.size_bytes() * lanes;
            writeln!(text, "typedef {element} {name} __attribute__((vector_size({bytes})));")
                .expect("writes to a string");
        }
        for &(dtype, lanes) in &self.memory_vectors {
            let (element, name) = (scalar_name(dtype), CType::Num(dtype, lanes).name());
            let (bytes, align) = (dtype.size_bytes() * lanes, dtype.size_bytes());
            writeln!(
                text,
                "typedef {element} {name}_mem __attribute__((vector_size({bytes}), aligned({align}), may_alias));"
            )
            .expect("writes to a string");
        }
        for definition in &self.definitions {
            text.push('\n');
            text.push_str(definition);
        }
        text
    }

    /// C text for an operation on operand texts; composite texts are in parentheses.
    pub fn apply(&mut self, op: Op, dtype: DType, lanes: usize, args: &[&str]) -> String {
        if let Some(text) = self.inline(op, dtype, lanes, args) {
            return text;
        }
        let name = self.require(Helper { op, dtype, lanes });
        let args: Vec<&str> = args.iter().map(|arg| strip_parens(arg)).collect();
        format!("{name}({})", args.join(", "))
    }

    /// The operator that does an operation, if C has one with the same meaning.
    fn inline(&mut self, op: Op, dtype: DType, lanes: usize, args: &[&str]) -> Option<String> {
        if lanes == 1 {
            return operator::scalar(op, dtype, args);
        }
        let pair = self.isa.is_pair(dtype, lanes);
        match op {
            Op::Cast(from) if from == dtype => Some(args[0].to_owned()),
            Op::Low | Op::High if pair => {
                Some(format!("({}).{}", args[0], if op == Op::Low { "lo" } else { "hi" }))
            }
            Op::Join if pair => {
                let name = self.type_name(CType::Num(dtype, lanes));
                Some(format!("(({name}){{{}, {}}})", args[0], args[1]))
            }
            Op::Load if !pair => {
                let name = self.memory_type(dtype, lanes);
                self.type_name(CType::Num(dtype, lanes));
                Some(format!("(*(const {name} *){})", args[0]))
            }
            _ if pair => None,
            _ => operator::vector(op, dtype, args),
        }
    }

    /// The name of a prelude function, which is defined if it is not yet.
    pub fn require(&mut self, helper: Helper) -> String {
        let name = self.function_name(helper);
        if self.known.insert(helper) {
            let definition = self.define(helper, &name);
            self.definitions.push(definition);
        }
        name
    }

    fn function_name(&self, helper: Helper) -> String {
        let ty = CType::Num(helper.dtype, 1);
        let ty = match (ty, helper.lanes) {
            (_, 1) => helper.dtype.name().to_owned(),
            (_, lanes) => CType::Num(helper.dtype, lanes).name(),
        };
        let op = match helper.op {
            Op::Unary(f) => f.name().to_owned(),
            Op::Binary(f) => f.name().to_owned(),
            Op::Compare(f) => f.name().to_owned(),
            Op::Cast(from) => format!("{from}_to"),
            Op::Reduce(op) => format!("reduce_{}", op.name()),
            Op::ReduceNumbers(op) => format!("reduce_{}_of_numbers", op.name()),
            Op::MaxOfNumber => "max_of_number".to_owned(),
            Op::MinOfNumber => "min_of_number".to_owned(),
            Op::Select => "select".to_owned(),
            Op::Fma => "fma".to_owned(),
            Op::DotPairs => "dot_pairs".to_owned(),
            Op::SplatPair => "splat_pair".to_owned(),
            Op::Interleave(group) => group.interleave_name().to_owned(),
            Op::FloorDiv => "floor_div".to_owned(),
            Op::FloorRem => "floor_rem".to_owned(),
            Op::QuotientBy(divisor) => format!("quotient_by_{divisor}"),
            Op::RemainderBy(divisor) => format!("remainder_by_{divisor}"),
            Op::Splat => "splat".to_owned(),
            Op::Low => "low".to_owned(),
            Op::High => "high".to_owned(),
            Op::Join => "join".to_owned(),
            Op::Load => "load".to_owned(),
            Op::LoadMasked => "load_masked".to_owned(),
            Op::LoadEvery(-1) => "load_reverse".to_owned(),
            Op::LoadEvery(stride) => format!("load_every_{stride}"),
            Op::Gather(offsets) => format!("gather_{offsets}"),
            Op::GatherMasked(offsets) => format!("gather_masked_{offsets}"),
            Op::Store => "store".to_owned(),
            Op::StoreMasked => "store_masked".to_owned(),
            Op::StorePrefix => "store_prefix".to_owned(),
            Op::Scatter(offsets) => format!("scatter_{offsets}"),
            Op::ScatterMasked(offsets) => format!("scatter_masked_{offsets}"),
            Op::Prefix => "prefix".to_owned(),
            Op::Scale => "scale".to_owned(),
            Op::PowCore => "pow_core".to_owned(),
            Op::LargeAngle(f) => format!("large_{}", f.name()),
        };
        format!("orc_{op}_{ty}")
    }

    fn define(&mut self, helper: Helper, name: &str) -> String {
        let (params, result) = self.signature(helper);
        let body = self.body(helper, &params, result);
        let result = result.map_or("void".to_owned(), |ty| self.type_name(ty));
        let params: Vec<String> = (params.iter().zip(PARAMS))
            .map(|(param, name)| match *param {
                Param::Source(dtype) => format!("const {} *{name}", scalar_name(dtype)),
                Param::Target(dtype) => format!("{} *{name}", scalar_name(dtype)),
                Param::Count => format!("int64_t {name}"),
                Param::Value(ty) => format!("{} {name}", self.type_name(ty)),
            })
            .collect();
        let qualifiers = match helper.op {
            Op::LargeAngle(_) => "static __attribute__((noinline, cold))",
            _ => "ORC",
        };
        format!("{qualifiers} {result} {name}({}) {{\n{body}}}\n", params.join(", "))
    }

    fn signature(&self, helper: Helper) -> (Vec<Param>, Option<CType>) {
        let Helper { op, dtype, lanes } = helper;
        let vector = CType::Num(dtype, lanes);
        let value = Param::Value(vector);
        let flags = Param::Value(self.isa.flags(dtype, lanes));
        let offsets = |dtype| Param::Value(CType::Num(dtype, lanes));
        let (source, target) = (Param::Source(dtype), Param::Target(dtype));
        let half = Param::Value(CType::Num(dtype, lanes / 2));
        let (params, result) = match op {
            Op::Unary(_) | Op::QuotientBy(_) | Op::RemainderBy(_) => (vec![value], Some(vector)),
            Op::Binary(_) | Op::MaxOfNumber | Op::MinOfNumber | Op::FloorDiv | Op::FloorRem => {
                (vec![value, value], Some(vector))
            }
            Op::Scale | Op::PowCore | Op::LargeAngle(_) => (vec![value, value], Some(vector)),
            Op::Compare(_) => (vec![value, value], Some(self.isa.flags(dtype, lanes))),
            Op::Select => (vec![flags, value, value], Some(vector)),
            Op::Fma => (vec![value, value, value], Some(vector)),
            Op::DotPairs => {
                let pairs = Param::Value(CType::Num(DType::BF16, 2 * lanes));
                (vec![pairs, pairs, value], Some(vector))
            }
            Op::SplatPair => (vec![Param::Value(CType::Num(dtype, 2))], Some(vector)),
            Op::Interleave(_) => (vec![half, half], Some(vector)),
            Op::Cast(from) => (vec![Param::Value(CType::Num(from, lanes))], Some(vector)),
            Op::Splat => (vec![Param::Value(CType::Num(dtype, 1))], Some(vector)),
            Op::Low | Op::High => (vec![value], Some(CType::Num(dtype, lanes / 2))),
            Op::Join => (vec![half, half], Some(vector)),
            Op::Reduce(_) | Op::ReduceNumbers(_) => (vec![value], Some(CType::Num(dtype, 1))),
            Op::Load | Op::LoadEvery(_) => (vec![source], Some(vector)),
            Op::LoadMasked => (vec![source, flags], Some(vector)),
            Op::Gather(by) => (vec![source, offsets(by)], Some(vector)),
            Op::GatherMasked(by) => (vec![source, offsets(by), flags], Some(vector)),
            Op::Store => (vec![target, value], None),
            Op::StoreMasked => (vec![target, value, flags], None),
            Op::StorePrefix => (vec![target, value, Param::Count], None),
            Op::Scatter(by) => (vec![target, value, offsets(by)], None),
            Op::ScatterMasked(by) => (vec![target, value, offsets(by), flags], None),
            Op::Prefix => (vec![Param::Count], Some(self.isa.flags(dtype, lanes))),
        };
        (params, result)
    }

    /// The statements of a prelude function.
    fn body(&mut self, helper: Helper, params: &[Param], result: Option<CType>) -> String {
        let lanes = helper.lanes;
        if lanes == 1 {
            return self.scalar_body(helper);
        }
        if let Some(body) = self.pair_body(helper) {
            return body;
        }
        match helper.op {
            Op::Reduce(op) => return self.reduce_body(op, helper.dtype, lanes),
            Op::ReduceNumbers(_) => return self.halves_body(helper),
            _ => {}
        }
        let is_pair = |ty: CType| ty.as_vector().is_some_and(|(d, n)| n == lanes && self.isa.is_pair(d, n));
        let params_pair = params.iter().any(|p| matches!(p, Param::Value(ty) if is_pair(*ty)));
        if params_pair || result.is_some_and(is_pair) {
            return self.split_body(helper, params, result);
        }
        let direct = match self.isa.is_x86() {
            true => self.x86_body(helper),
            false => self.neon_body(helper),
        };
        if let Some(body) = direct.or_else(|| self.math_body(helper)).or_else(|| self.vector_body(helper)) {
            return body;
        }
        self.lane_body(helper, params, result)
    }
}

/// A function body that returns one expression.
fn returns(expression: impl AsRef<str>) -> String {
    format!("    return {};\n", strip_parens(expression.as_ref()))
}

/// The signed integer type as wide as `dtype`.
fn signed_like(dtype: DType) -> DType {
    signed_of(dtype.size_bytes())
}
