//! Prelude functions that are not one instruction: on halves of wide vectors, lane by lane, and reductions.

use super::super::parens::strip_parens;
use super::super::types::CType;
use super::{CFile, Helper, Op, PARAMS, Param, returns};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp};

impl CFile {
    /// The text of the lower or upper half of a value.
    fn half(&mut self, ty: CType, text: &str, upper: bool) -> String {
        let op = if upper { Op::High } else { Op::Low };
        match ty {
            CType::Mask(lanes) => {
                let half = CType::Mask(lanes / 2).name();
                let shifted = if upper { format!("({text} >> {})", lanes / 2) } else { text.to_owned() };
                format!("(({half})({shifted} & {}))", mask_of(lanes / 2))
            }
            CType::Num(dtype, lanes) => self.apply(op, dtype, lanes, &[text]),
            CType::Flags { .. } => {
                let (dtype, lanes) = ty.as_vector().expect("flags are vectors");
                self.apply(op, dtype, lanes, &[text])
            }
            CType::Bool => text.to_owned(),
        }
    }

    /// The text of a value made of two halves.
    fn join(&mut self, ty: CType, low: &str, high: &str) -> String {
        match ty.as_vector() {
            Some((dtype, lanes)) => self.apply(Op::Join, dtype, lanes, &[low, high]),
            None => {
                let (name, half) = (ty.name(), ty.lanes() / 2);
                format!("(({name})({low} | ({name}){high} << {half}))")
            }
        }
    }

    /// Applies the operation to each half.
    pub(super) fn split_body(&mut self, helper: Helper, params: &[Param], result: Option<CType>) -> String {
        let half = helper.lanes / 2;
        // Elements of a gather are addressed from the same base; other pointers advance.
        let advance = match helper.op {
            Op::Gather(_) | Op::GatherMasked(_) | Op::Scatter(_) | Op::ScatterMasked(_) => 0,
            Op::LoadEvery(stride) => half as i64 * i64::from(stride),
            _ => half as i64,
        };
        let halves: Vec<String> = [false, true]
            .into_iter()
            .map(|upper| {
                let args: Vec<String> = (params.iter().zip(PARAMS))
                    .map(|(param, name)| match *param {
                        Param::Source(_) | Param::Target(_) if upper && advance != 0 => {
                            format!("({name} + {advance})")
                        }
                        Param::Count if upper => format!("{name} - {half}"),
                        Param::Value(ty) if ty.lanes() > 1 => self.half(ty, name, upper),
                        Param::Source(_) | Param::Target(_) | Param::Count | Param::Value(_) => {
                            name.to_owned()
                        }
                    })
                    .collect();
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                match helper.op {
                    Op::Store => self.store(helper.dtype, half, args[0], args[1]),
                    op => self.apply(op, helper.dtype, half, &args),
                }
            })
            .collect();
        match result {
            None => format!("    {};\n    {};\n", halves[0], halves[1]),
            Some(ty) => returns(self.join(ty, &halves[0], &halves[1])),
        }
    }

    /// Applies the operation to each lane.
    pub(super) fn lane_body(&mut self, helper: Helper, params: &[Param], result: Option<CType>) -> String {
        let lanes = helper.lanes;
        let args: Vec<String> = (params.iter().zip(PARAMS))
            .map(|(param, name)| match *param {
                Param::Value(CType::Mask(_)) => format!("(({name} >> l) & 1)"),
                Param::Value(CType::Flags { .. }) => format!("({name}[l] != 0)"),
                Param::Value(ty) if ty.lanes() > 1 => format!("{name}[l]"),
                Param::Source(_) | Param::Target(_) | Param::Count | Param::Value(_) => name.to_owned(),
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let statement = match (helper.op, &args[..]) {
            (Op::LoadMasked, [from, flag]) => format!("if ({flag}) r[l] = {from}[l];"),
            (Op::LoadEvery(stride), [from]) => format!("r[l] = {from}[l * {stride}];"),
            (Op::Gather(_), [from, offset]) => format!("r[l] = {from}[{offset}];"),
            (Op::GatherMasked(_), [from, offset, flag]) => format!("if ({flag}) r[l] = {from}[{offset}];"),
            (Op::StoreMasked, [to, value, flag]) => format!("if ({flag}) {to}[l] = {value};"),
            (Op::Scatter(_), [to, value, offset]) => format!("{to}[{offset}] = {value};"),
            (Op::ScatterMasked(_), [to, value, offset, flag]) => {
                format!("if ({flag}) {to}[{offset}] = {value};")
            }
            (op, args) => {
                let lane = match op {
                    Op::Prefix => format!("(l < {})", args[0]),
                    op => self.apply(op, helper.dtype, 1, args),
                };
                match result {
                    Some(CType::Mask(_)) => {
                        let name = CType::Mask(lanes).name();
                        format!("r |= ({name})(({name}){lane} << l);")
                    }
                    Some(CType::Flags { .. }) => format!("r[l] = -{lane};"),
                    _ => format!("r[l] = {};", strip_parens(&lane)),
                }
            }
        };
        let (head, tail) = match result {
            None => (String::new(), ""),
            Some(ty) => {
                let zero = if matches!(ty, CType::Mask(_)) { "0" } else { "{0}" };
                (format!("    {} r = {zero};\n", self.type_name(ty)), "    return r;\n")
            }
        };
        format!(
            "{head}    _Pragma(\"GCC unroll {lanes}\") for (int l = 0; l < {lanes}; l++) {statement}\n{tail}"
        )
    }

    /// Reduces all lanes.
    pub(super) fn reduce_body(&mut self, op: ReduceOp, dtype: DType, lanes: usize) -> String {
        let is_extreme = matches!(op, ReduceOp::Max | ReduceOp::Min);
        if is_extreme && dtype == DType::F32 && self.tests_apart(lanes) {
            // Steps wait for each other: NaNs are looked for once beside them, not in each.
            let flags = self.apply(Op::Compare(CompareFn::Ne), dtype, lanes, &["a", "a"]);
            let has_nan = self.any_flag(lanes, &flags);
            let numbers = self.apply(Op::ReduceNumbers(op), dtype, lanes, &["a"]);
            return returns(format!("{has_nan} ? __builtin_nanf(\"\") : {numbers}"));
        }
        self.halves_body(Helper { op: Op::Reduce(op), dtype, lanes })
    }

    /// Whether the largest of a vector of floats is found faster if NaNs are looked for apart: one register of x86, whose
    /// instruction for the larger of two gives the second one where either is NaN.
    fn tests_apart(&self, lanes: usize) -> bool {
        self.isa.is_x86() && lanes >= 4 && !self.isa.is_pair(DType::F32, lanes)
    }

    /// Combines the halves and reduces the result.
    pub(super) fn halves_body(&mut self, Helper { op, dtype, lanes }: Helper) -> String {
        let f = match op {
            Op::ReduceNumbers(ReduceOp::Min) => Op::MinOfNumber,
            Op::ReduceNumbers(_) => Op::MaxOfNumber,
            Op::Reduce(op) => Op::Binary(reduce_function(op)),
            _ => unreachable!("only reductions have halves"),
        };
        if matches!(op, Op::ReduceNumbers(_)) && lanes == 4 {
            // Pairs are no registers: their lanes would be compared one by one.
            let both = self.apply(f, dtype, lanes, &["a", "__builtin_shufflevector(a, a, 2, 3, 0, 1)"]);
            let ty = self.type_name(CType::Num(dtype, lanes));
            let last = self.apply(f, dtype, 1, &["both[0]", "both[1]"]);
            return format!("    const {ty} both = {both};\n{}", returns(last));
        }
        let ty = CType::Num(dtype, lanes);
        let (low, high) = match lanes {
            2 if !self.isa.is_pair(dtype, lanes) => ("a[0]".to_owned(), "a[1]".to_owned()),
            _ => (self.half(ty, "a", false), self.half(ty, "a", true)),
        };
        let combined = self.apply(f, dtype, lanes / 2, &[&low, &high]);
        match lanes {
            2 => returns(combined),
            _ => returns(self.apply(op, dtype, lanes / 2, &[&combined])),
        }
    }
}

/// A number with the lowest `lanes` bits set, in C.
pub fn mask_of(lanes: usize) -> String {
    format!("{:#x}", if lanes >= 64 { u64::MAX } else { (1u64 << lanes) - 1 })
}

/// The function that a reduction repeats.
fn reduce_function(op: ReduceOp) -> BinaryFn {
    op.combining().unwrap_or_else(|| unreachable!("lanes are not arg-reduced; the validator reports it"))
}
