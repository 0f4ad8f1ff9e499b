//! Loads and stores.

use super::emitter::Emitter;
use super::types::CppType;
use crate::facts::{self, Address, Mask};
use orch_compute::{BufferId, Expr, ExprId, LaneGroup};
use orch_ir::{BinaryFn, DType};
use orch_thread::Scope;

/// Bytes of the widest access.
const WIDEST_BYTES: usize = 16;

impl Emitter<'_> {
    /// The text of a load whose operands are known.
    pub(super) fn load(
        &mut self,
        buffer: BufferId,
        offset: ExprId,
        lanes: usize,
        mask: Option<ExprId>,
    ) -> String {
        let address = facts::address(&self.program.exprs, offset);
        let mask = facts::mask(&self.program.exprs, mask).map(|id| self.operand(id).text);
        let info = self.program.buffer(buffer);
        let (name, scope, dtype) = (self.buffers[buffer.index()].clone(), info.scope, info.dtype);
        let is_fragment = self.fragments.contains(&buffer);
        let or_zero = |mask: String, value: String| {
            format!("({mask} ? {value} : o_zero<{}>())", CppType::of(dtype, lanes).text())
        };
        match address {
            Address::Contiguous(offset) => {
                let width = self.aligned(offset, lanes, dtype);
                let offset = self.known(offset).expect("evaluated").text;
                let plain = match (scope, lanes) {
                    (_, 1) if is_fragment => {
                        format!("o_fragment_element<{}>({name}, {offset})", CppType::of(dtype, 1).element)
                    }
                    _ if is_fragment => {
                        let element = CppType::of(dtype, 1).element;
                        format!("o_unpack_fragment<{lanes}, {element}>({name} + ({offset}) / 2)")
                    }
                    (_, 1) => format!("{name}[{offset}]"),
                    (Scope::Scratch, _) => format!("o_load_local<{lanes}>({name} + {offset})"),
                    _ => format!(
                        "o_load{}<{lanes}, {width}>({name} + {offset})",
                        self.evict_first_suffix(buffer)
                    ),
                };
                match mask {
                    Mask::All => plain,
                    Mask::Uniform(mask) => or_zero(mask, plain),
                    Mask::Each(mask) => format!("o_load_masked<{lanes}, {width}>({name} + {offset}, {mask})"),
                }
            }
            Address::Strided(..) | Address::Scattered(_) => {
                let offsets = self.scattered(address, lanes);
                let plain = format!("o_gather<{lanes}>({name}, {offsets})");
                match mask {
                    Mask::All => plain,
                    Mask::Uniform(mask) => or_zero(mask, plain),
                    Mask::Each(mask) => format!("o_gather_masked<{lanes}>({name}, {offsets}, {mask})"),
                }
            }
        }
    }

    /// Suffix of the load functions that mark their data evict-first: for arguments that are read once.
    pub(super) fn evict_first_suffix(&self, buffer: BufferId) -> &'static str {
        if self.program.evict_first.contains(&buffer) { "_evict_first" } else { "" }
    }

    /// Writes a store.
    pub(super) fn store(&mut self, buffer: BufferId, offset: ExprId, value: ExprId, mask: Option<ExprId>) {
        if self.fragments.contains(&buffer) && mask.is_none() && self.store_packed(buffer, offset, value) {
            return;
        }
        let lanes = self.program.exprs.lanes(value);
        let address = facts::address(&self.program.exprs, offset);
        let mask = facts::mask(&self.program.exprs, mask);
        for id in [address.operand(), value].into_iter().chain(mask.operand()) {
            self.eval(id);
        }
        let mask = mask.map(|id| self.operand(id).text);
        let info = self.program.buffer(buffer);
        let (name, scope, dtype) = (self.buffers[buffer.index()].clone(), info.scope, info.dtype);
        let ty = CppType::of(dtype, lanes);
        let value = self.operand_as(value, ty);
        let (guard, each) = match mask {
            Mask::All => (String::new(), None),
            Mask::Uniform(mask) => (format!("if ({mask}) "), None),
            Mask::Each(mask) => (String::new(), Some(mask)),
        };
        let text = match address {
            Address::Contiguous(offset) => {
                let width = self.aligned(offset, lanes, dtype);
                let offset = self.known(offset).expect("evaluated").text;
                match (each, lanes) {
                    (Some(mask), _) => {
                        format!("o_store_masked<{lanes}, {width}>({name} + {offset}, {value}, {mask})")
                    }
                    (None, _) if self.fragments.contains(&buffer) => {
                        format!("o_pack_fragment<{lanes}>({name} + ({offset}) / 2, {value})")
                    }
                    (None, 1) => format!("{name}[{offset}] = {value}"),
                    (None, _) if scope == Scope::Scratch => {
                        format!("o_store_local<{lanes}>({name} + {offset}, {value})")
                    }
                    (None, _) => format!("o_store<{lanes}, {width}>({name} + {offset}, {value})"),
                }
            }
            Address::Strided(..) | Address::Scattered(_) => {
                let offsets = self.scattered(address, lanes);
                match each {
                    Some(mask) => format!("o_scatter_masked<{lanes}>({name}, {offsets}, {value}, {mask})"),
                    None => format!("o_scatter<{lanes}>({name}, {offsets}, {value})"),
                }
            }
        };
        self.line(&format!("{guard}{text};"));
    }

    /// Writes a store to packed scratch in one instruction, if there is one: a vector load from an input, or a byte permutation
    /// (`prmt`) of the 16-bit halves of two packed registers.
    fn store_packed(&mut self, buffer: BufferId, offset: ExprId, value: ExprId) -> bool {
        let exprs = &self.program.exprs;
        let Address::Contiguous(to) = facts::address(exprs, offset) else { return false };
        let text = match *exprs.get(value) {
            Expr::Load { buffer: from, offset, lanes, mask } => {
                let info = self.program.buffer(from);
                let bytes = lanes * info.dtype.size_bytes();
                let (scope, dtype, name) = (info.scope, info.dtype, self.buffers[from.index()].clone());
                let Address::Contiguous(first) = facts::address(exprs, offset) else { return false };
                let is_one_access = matches!(bytes, 8 | 16) && self.aligned(first, lanes, dtype) == lanes;
                if !scope.is_read_only() || !is_one_access {
                    return false;
                }
                let mask = match mask.map(|mask| self.program.exprs.get(mask)) {
                    None => "true".to_owned(),
                    Some(&Expr::Splat(condition, _)) => self.eval(condition).text,
                    Some(_) => return false,
                };
                self.eval(to);
                let first = self.eval(first).text;
                let hint = self.evict_first_suffix(from);
                format!("o_load_no_l1{hint}<{bytes}>({{}}, {name} + {first}, {mask})")
            }
            Expr::Interleave(LaneGroup::One, left, right) => {
                let halves = [left, right].map(|half| match *self.program.exprs.get(half) {
                    Expr::Load { buffer, offset, lanes: 1, mask: None }
                        if self.fragments.contains(&buffer) =>
                    {
                        Some((buffer, offset, self.parity(offset)?))
                    }
                    _ => None,
                });
                let [Some(left), Some(right)] = halves else { return false };
                self.eval(to);
                let mut word = |(buffer, offset, _): (BufferId, ExprId, i64)| {
                    let offset = self.eval(offset).text;
                    format!("{}[{offset} / 2]", self.buffers[buffer.index()])
                };
                let words = (word(left), word(right));
                format!("o_pack_selected<{}, {}>({{}}, {}, {})", left.2, right.2, words.0, words.1)
            }
            _ => return false,
        };
        let to = self.operand(to).text;
        let place = format!("{} + ({to}) / 2", self.buffers[buffer.index()]);
        self.line(&format!("{};", text.replace("{}", &place)));
        true
    }

    /// An index modulo 2, if it is known.
    fn parity(&mut self, index: ExprId) -> Option<i64> {
        let exprs = &self.program.exprs;
        let (even, odd) = match *exprs.get(index) {
            Expr::Binary(BinaryFn::Add, first, second) => match exprs.as_int(second) {
                Some(second) => (first, second),
                None => (index, 0),
            },
            _ => (index, 0),
        };
        match exprs.as_int(index) {
            Some(index) => Some(index.rem_euclid(2)),
            None => self.bounds.of(exprs, even).is_multiple_of(2).then(|| odd.rem_euclid(2)),
        }
    }

    /// The offsets of elements that are not neighbours.
    fn scattered(&mut self, address: Address, lanes: usize) -> String {
        let first = self.known(address.operand()).expect("evaluated").text;
        match address {
            Address::Strided(_, stride) => format!("o_ramp<{lanes}>({first}, {stride})"),
            Address::Contiguous(_) | Address::Scattered(_) => first,
        }
    }

    /// The most elements that one access may take: a power of two that divides the offset.
    pub(super) fn aligned(&mut self, offset: ExprId, lanes: usize, dtype: DType) -> usize {
        let range = self.bounds.of(&self.program.exprs, offset);
        let mut width = 1;
        while 2 * width <= lanes
            && 2 * width * dtype.size_bytes() <= WIDEST_BYTES
            && range.is_multiple_of(2 * width as i64)
        {
            width *= 2;
        }
        width
    }
}
