//! Parts that overlap: windows of an axis, and elements by strides of memory.

use super::index_put::scattered;
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, checked, invalid, unsupported};
use orch_ir::{DType, Shape};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.as_strided.default", "self size stride storage_offset", as_strided)
        .when("of elements of a tensor without gaps"),
    rule("aten.as_strided_scatter.default", "self src size stride storage_offset", as_strided_scatter)
        .when("of elements of a tensor without gaps"),
    rule("aten.unfold.default", "self dimension size step", unfold),
];

/// `start + sum of strides[d] i_d` over a shape, as `i64`.
fn positions(emitter: &mut Emitter, start: i64, dims: &[usize], strides: &[i64]) -> Emitted {
    let mut sum = emitter.scalar_int(DType::I64, start);
    for (dim, (&extent, &stride)) in dims.iter().zip(strides).enumerate() {
        let stride = emitter.scalar_int(DType::I64, stride);
        let counted = emitter.iota(extent);
        let mut shape = vec![1; dims.len()];
        shape[dim] = extent;
        let counted = emitter.reshape(&counted, shape)?;
        let steps = emitter.binary("Mul", &counted, &stride)?;
        sum = emitter.binary("Add", &sum, &steps)?;
    }
    Ok(sum)
}

/// Elements of a tensor by strides of its memory. In a document `storage_offset` counts from the tensor's first element, not from that of
/// its memory.
struct Strided {
    /// The tensor, flat, in the order of its memory.
    flat: Val,
    /// Its shape, and its dimensions in the order of its memory.
    shape: Shape,
    order: Vec<usize>,
    size: Shape,
    strides: Vec<i64>,
    start: usize,
}

impl Strided {
    fn read(emitter: &mut Emitter, call: &Call) -> Result<Self, Refusal> {
        let source = call.source("self")?;
        let x = &source.value;
        let (size, strides) = (call.dims("size")?, call.ints("stride")?);
        let Some(order) = memory_order(&x.shape, &source.strides) else {
            return unsupported("strides of a tensor whose elements have gaps between them, or share memory");
        };
        let start = call.int_or("storage_offset", 0)?;
        let last = size.iter().zip(&strides).try_fold(start, |last, (&extent, &stride)| {
            (stride >= 0).then_some(())?;
            last.checked_add(stride.checked_mul((extent as i64 - 1).max(0))?)
        });
        let count = x.shape.elems();
        let fits = size.elems() == 0 || last.is_some_and(|last| last < count as i64);
        match usize::try_from(start) {
            Ok(start) if fits && strides.len() == size.rank() => {
                let in_memory = emitter.transpose(x, &order)?;
                let flat = emitter.reshape(&in_memory, [count])?;
                Ok(Self { flat, shape: x.shape.clone(), order, size, strides, start })
            }
            _ => invalid(format!("{size} by {strides:?} from {start} in {}", x.describe())),
        }
    }

    fn positions(&self, emitter: &mut Emitter) -> Emitted {
        positions(emitter, self.start as i64, &self.size, &self.strides)
    }

    /// A flat tensor in the order of memory as one of the tensor's shape.
    fn unflatten(&self, emitter: &mut Emitter, flat: &Val) -> Emitted {
        let dims: Vec<usize> = self.order.iter().map(|&dim| self.shape[dim]).collect();
        let in_memory = emitter.reshape(flat, dims)?;
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(at, &dim)| back[dim] = at);
        emitter.transpose(&in_memory, &back)
    }
}

/// The dimensions, outermost first, in whose order elements lie in memory one after the other; `None` if they do in no order.
fn memory_order(shape: &Shape, strides: &[i64]) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    if shape.elems() == 0 {
        return Some(order);
    }
    if strides.len() != shape.rank() {
        return None;
    }
    order.sort_by_key(|&dim| (std::cmp::Reverse(strides[dim]), shape[dim] == 1));
    let mut next = 1;
    for &dim in order.iter().rev().filter(|&&dim| shape[dim] > 1) {
        (strides[dim] == next).then_some(())?;
        next *= shape[dim] as i64;
    }
    Some(order)
}

fn as_strided(emitter: &mut Emitter, call: &Call) -> Applied {
    let strided = Strided::read(emitter, call)?;
    let Strided { flat, size, .. } = &strided;
    if size.elems() == 0 {
        return one(emitter.zeros(flat.dtype, size)?);
    }
    if is_contiguous(size, &strided.strides) {
        let part = emitter.slice(flat, 0, (strided.start, 1, size.elems()))?;
        return one(emitter.reshape(&part, size.to_vec())?);
    }
    let positions = strided.positions(emitter)?;
    one(emitter.gather(flat, &positions, 0)?)
}

fn as_strided_scatter(emitter: &mut Emitter, call: &Call) -> Applied {
    let strided = Strided::read(emitter, call)?;
    let Strided { flat, size, .. } = &strided;
    let src = emitter.cast(call.tensor("src")?, flat.dtype);
    if src.shape != *size {
        return invalid(format!("{} in the place of {size}", src.describe()));
    }
    let is_all = is_contiguous(size, &strided.strides) && size.elems() == flat.shape.elems();
    let result = if is_all {
        src
    } else if size.elems() == 0 {
        flat.clone()
    } else {
        let positions = strided.positions(emitter)?;
        scattered(emitter, flat, &positions, &src, false)?
    };
    one(strided.unflatten(emitter, &result)?)
}

/// True if the elements lie in row-major order without holes.
fn is_contiguous(shape: &Shape, strides: &[i64]) -> bool {
    let dense = shape.strides();
    shape.elems() == 0
        || strides.len() == shape.rank()
            && (0..shape.rank()).all(|dim| shape[dim] == 1 || dense[dim] as i64 == strides[dim])
}

/// The elements of each window become a last dimension.
fn unfold(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dimension", 0, x.rank())?;
    let (size, step) = (call.int("size")?, call.int("step")?);
    let extent = x.shape.get(axis).copied().unwrap_or(1);
    let (Ok(size), true) = (usize::try_from(size), step > 0) else {
        return invalid(format!("windows of {size} elements, {step} apart"));
    };
    if x.rank() == 0 && size <= 1 {
        // A scalar has one window, which has no dimension of its own.
        let row = emitter.reshape(x, [1])?;
        return one(emitter.slice(&row, 0, (0, 1, size))?);
    }
    if size > extent {
        return invalid(format!("windows of {size} of {extent} elements"));
    }
    let count = (extent - size) / step as usize + 1;
    if size == 0 {
        let mut dims = x.shape.to_vec();
        dims[axis] = count;
        dims.push(0);
        return one(emitter.zeros(x.dtype, &checked(dims)?)?);
    }
    let positions = positions(emitter, 0, &[count, size], &[step, 1])?;
    let windows = emitter.gather(x, &positions, axis)?;
    let mut order: Vec<usize> = (0..=x.rank()).filter(|&dim| dim != axis + 1).collect();
    order.push(axis + 1);
    one(emitter.transpose(&windows, &order)?)
}
