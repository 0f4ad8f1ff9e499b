//! Loads and stores as C text.

use super::emitter::{CValue, FunctionEmitter};
use super::helper::Op;
use super::parens::{parens, strip_parens};
use super::types::{CType, Family, in_memory};
use crate::facts::{self, Address, Mask};
use orch_compute::{BufferId, ExprId};
use orch_ir::DType;
use orch_thread::target::is_short_stride;

/// Where a load or store takes place.
pub struct MemoryAccess {
    /// The buffer.
    pub buffer: BufferId,
    /// How its elements are addressed.
    pub address: Address,
    /// Which lanes take part.
    pub mask: Mask<ExprId>,
}

impl FunctionEmitter<'_> {
    /// C text of a pointer to the first element that an access touches.
    fn pointer(&mut self, place: &MemoryAccess) -> String {
        let name = self.buffers[place.buffer.index()].clone();
        match place.address {
            Address::Contiguous(base) | Address::Strided(base, _) => {
                let base = self.value_of(base);
                format!("&{name}[{}]", strip_parens(&base.text))
            }
            Address::Scattered(_) => name,
        }
    }

    /// Offsets from the pointer and their type, if they are not consecutive.
    fn offsets(&mut self, place: &MemoryAccess, lanes: usize) -> Option<(String, DType)> {
        match place.address {
            Address::Contiguous(_) => None,
            Address::Strided(_, stride) => {
                let is_short = stride.unsigned_abs() as u128 * (lanes as u128) < 1 << 31;
                let dtype = if is_short { DType::I32 } else { DType::I64 };
                Some((self.steps(dtype, lanes, stride), dtype))
            }
            Address::Scattered(offsets) => {
                let from = self.program.exprs.dtype(offsets);
                let value = self.value_of(offsets);
                // 64 bits also hold offsets of other types than those two.
                let to = if from == DType::I32 { DType::I32 } else { DType::I64 };
                Some((self.unit.apply(Op::Cast(from), to, lanes, &[&value.text]), to))
            }
        }
    }

    /// The stride of a load of all lanes from few vectors.
    fn short_stride(place: &MemoryAccess) -> Option<i32> {
        match place.address {
            Address::Strided(_, stride) if !matches!(place.mask, Mask::Each(_)) => {
                i32::try_from(stride).ok().filter(|_| is_short_stride(stride))
            }
            Address::Contiguous(_) | Address::Strided(..) | Address::Scattered(_) => None,
        }
    }

    /// A load of `lanes` elements.
    pub(super) fn load(&mut self, place: &MemoryAccess, lanes: usize) -> CValue {
        let stored = self.program.buffer(place.buffer).dtype;
        let dtype = in_memory(stored);
        let pointer = self.pointer(place);
        let text = if lanes == 1 {
            pointer.strip_prefix('&').expect("a scalar access names an element").to_owned()
        } else if let Some(stride) = Self::short_stride(place) {
            self.unit.apply(Op::LoadEvery(stride), dtype, lanes, &[&pointer])
        } else {
            let offsets = self.offsets(place, lanes);
            let mask = self.flags_of_each(place.mask, dtype);
            let mut args = vec![pointer.as_str()];
            args.extend(offsets.as_ref().map(|(text, _)| text.as_str()));
            args.extend(mask.as_deref());
            let op = match (&offsets, &mask) {
                (None, None) => Op::Load,
                (None, Some(_)) => Op::LoadMasked,
                (Some((_, by)), None) => Op::Gather(*by),
                (Some((_, by)), Some(_)) => Op::GatherMasked(*by),
            };
            self.unit.apply(op, dtype, lanes, &args)
        };
        let value = self.number(dtype, lanes, text);
        let value = match place.mask {
            // Not by masked instructions: where all lanes are masked and the address is outside of what is mapped they take
            // a hundred times as long.
            Mask::Uniform(condition) => {
                let zero = self.unit.apply(Op::Splat, dtype, lanes, &["0"]);
                self.either(condition, &value, &zero)
            }
            Mask::All | Mask::Each(_) => value,
        };
        if stored == DType::Bool { self.cast(value, DType::Bool) } else { value }
    }

    /// The statement that stores a value, without the semicolon.
    pub(super) fn store(&mut self, place: &MemoryAccess, value: CValue) -> String {
        let dtype = in_memory(self.program.buffer(place.buffer).dtype);
        let lanes = value.ty.lanes();
        let value = if matches!(value.ty, CType::Num(..)) { value } else { self.cast(value, DType::U8) };
        let pointer = self.pointer(place);
        let guard = match place.mask {
            Mask::Uniform(condition) => format!("if {} ", parens(&self.value_of(condition).text)),
            Mask::All | Mask::Each(_) => String::new(),
        };
        if lanes == 1 {
            let element = pointer.strip_prefix('&').expect("a scalar access names an element");
            return format!("{guard}{element} = {}", strip_parens(&value.text));
        }
        if let Some(count) = self.first_lanes(place) {
            return self.unit.apply(Op::StorePrefix, dtype, lanes, &[&pointer, &value.text, &count]);
        }
        let offsets = self.offsets(place, lanes);
        let mask = self.flags_of_each(place.mask, dtype);
        let mut args = vec![pointer.as_str(), value.text.as_str()];
        args.extend(offsets.as_ref().map(|(text, _)| text.as_str()));
        args.extend(mask.as_deref());
        let op = match (&offsets, &mask) {
            (None, None) => None,
            (None, Some(_)) => Some(Op::StoreMasked),
            (Some((_, by)), None) => Some(Op::Scatter(*by)),
            (Some((_, by)), Some(_)) => Some(Op::ScatterMasked(*by)),
        };
        let text = match op {
            None => self.unit.store(dtype, lanes, &pointer, &value.text),
            Some(op) => self.unit.apply(op, dtype, lanes, &args),
        };
        format!("{guard}{text}")
    }

    /// The number of lanes that a store has, if they are the first ones, side by side, and its target has no masks in registers.
    fn first_lanes(&mut self, place: &MemoryAccess) -> Option<String> {
        let (Mask::Each(mask), Address::Contiguous(_)) = (place.mask, place.address) else { return None };
        let prefix = facts::prefix(&self.program.exprs, mask)?;
        (self.unit.isa().family != Family::Avx512).then(|| self.count(prefix))
    }

    /// The flags of lanes that differ, as an operation on elements of `dtype` takes them.
    fn flags_of_each(&mut self, mask: Mask<ExprId>, dtype: DType) -> Option<String> {
        let Mask::Each(mask) = mask else { return None };
        let flags = self.value_of(mask);
        Some(self.flags_for(flags, dtype))
    }
}
