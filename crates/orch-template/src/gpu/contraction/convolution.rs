//! Contractions that are convolutions of images whose channels are neighbours in memory: libraries compute them, too.
//!
//! `result[image, y, x, map] = sum over r, s, c of input[image, y * stride + r * dilation - padding, .., c] *
//! filter[map, r, s, c]`, where what is outside of the input is zero, plus `bias[map]` and plus `addend[image, y, x, map]`
//! where there are such, and no less than zero where that is asked for. Sums are f32, bias and addend are added in f32, and
//! what is stored is rounded once, as by the template's own kernels: results differ in the order of additions only, and in
//! that a library's rectifier may make zero of what is no number. Everything else - groups, padding that differs between
//! the sides, weights in another order, factors that are computed on the way, an addend or a rectifier without a bias, any
//! other epilogue - is no such convolution.
//!
//! Products of pixels by a matrix are convolutions with a window of one pixel.

use super::array::linear_places;
use super::lower::Lowering;
use super::operand::Side;
use super::product::{ANY_SCHEDULE, added};
use super::schedule::Engine;
use crate::contraction::ContractionForm;
use crate::gpu::cta::{Lowers, stores_of};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_ir::{BinaryFn, DType};
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;
use orch_thread::kernel::Binding;
use std::collections::BTreeSet;

/// A convolution of images that are in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Convolution {
    /// What is passed for each buffer, as for a kernel.
    pub bindings: Vec<Binding>,
    /// Element type of everything that is read and stored.
    pub dtype: DType,
    /// Whether factors of f32 may be multiplied with 10 bits of their fraction.
    pub is_tf32: bool,
    /// Images.
    pub images: usize,
    /// Channels of the input.
    pub channels: usize,
    /// Channels of the result.
    pub maps: usize,
    /// From rows of the input to rows of the result.
    pub vertical: Sliding,
    /// The same for the pixels of a row.
    pub horizontal: Sliding,
    /// The input.
    pub input: Pixels,
    /// `[map][window row][window column][channel]`, one after the other: its buffer and its first element.
    pub filter: (BufferId, usize),
    /// The result.
    pub result: Pixels,
    /// What is added to each map, one after the other: its buffer and its first element.
    pub bias: Option<(BufferId, usize)>,
    /// What is added to each element.
    pub addend: Option<Pixels>,
    /// Whether negative results become zero.
    pub is_rectified: bool,
}

/// How a window moves along one direction of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sliding {
    /// Pixels of the input.
    pub input: usize,
    /// Pixels of the result.
    pub result: usize,
    /// Pixels of the window.
    pub window: usize,
    /// Pixels of the input between places of the window.
    pub stride: usize,
    /// Pixels of the input between pixels of the window.
    pub dilation: usize,
    /// Zeros before the input, and as many after it.
    pub padding: usize,
}

/// Where pixels are, in elements; their channels are neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pixels {
    /// The buffer.
    pub buffer: BufferId,
    /// The first element.
    pub offset: usize,
    /// From one image to the next.
    pub image: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one pixel to the next.
    pub pixel: usize,
}

/// Most places of a window's row or column that conditions of reading are tried for.
const MAX_POINTS: usize = 1 << 16;

/// A block program as a convolution; `None` if it is not exactly that.
pub fn convolution(block: &BlockProgram, factors: OperandPrecision) -> Option<Convolution> {
    let form = ContractionForm::of(block).ok()?;
    let engine = Engine::of(block, &form, factors)?;
    let is_multiplied = matches!(engine, Engine::Matrix(_) | Engine::Scalar(DType::F32));
    let axes = form.m.iter().chain(&form.n).chain(&form.k);
    if !is_multiplied || !form.batch.is_empty() || axes.clone().any(|&axis| block.extent(axis) == 0) {
        return None;
    }
    let mut lowering = Lowering::new(block, form, engine, ANY_SCHEDULE);
    lowering.place_task(&mut Vec::new());
    let (sides, bindings) = lowering.declare_arguments();
    let dtype = engine.factor_type();
    let image = Image::of(&mut lowering, dtype)?;
    let maps = only(lowering.form.n.iter().copied().filter(|&axis| block.extent(axis) > 1))?;
    let axes = Axes::new(&mut lowering, &image, maps);
    let buffer = lowering.arg_buffers[image.arg.index()]?;
    let input = Pixels { buffer, ..image.pixels };
    let filter = axes.filter(&mut lowering, &sides[1], dtype)?;
    let Stored { result, bias, addend, is_rectified } = axes.stored(&mut lowering, dtype)?;
    // Libraries do more than the sum only where there is a bias.
    if bias.is_none() && (addend.is_some() || is_rectified) {
        return None;
    }
    Some(Convolution {
        bindings,
        dtype,
        is_tf32: engine == Engine::Matrix(MmaType::Tf32),
        images: axes.extent(block, axes.image),
        channels: axes.extent(block, axes.channel),
        maps: axes.extent(block, axes.map),
        vertical: image.vertical.sliding,
        horizontal: image.horizontal.sliding,
        input,
        filter,
        result,
        bias,
        addend,
        is_rectified,
    })
}

/// The single one, or none, of at most one.
fn only<T>(mut found: impl Iterator<Item = T>) -> Option<Option<T>> {
    let first = found.next();
    found.next().is_none().then_some(first)
}

/// A factor that windows of an image are.
struct Image {
    arg: ArgId,
    /// Where it is; the buffer is not known yet.
    pixels: Pixels,
    image: Option<VarId>,
    channel: Option<VarId>,
    vertical: Direction,
    horizontal: Direction,
}

/// One direction of an image.
struct Direction {
    /// The axis of the result; `None` if it has a single pixel.
    place: Option<VarId>,
    /// The axis of the window, likewise.
    window: Option<VarId>,
    sliding: Sliding,
}

/// An index as axes with factors, and a constant.
struct Steps {
    axes: Vec<(VarId, i64)>,
    first: i64,
}

impl Steps {
    fn of(lowering: &mut Lowering<'_>, index: ExprId) -> Option<Self> {
        // The lowering's simplifier knows the program's expressions.
        let form = Simplifier::new().linear(&mut lowering.source, index);
        let axis = |&(atom, factor): &(ExprId, i64)| match *lowering.source.get(atom) {
            Expr::Var(var) => Some((var, factor)),
            _ => None,
        };
        let axes = form.terms().iter().map(axis).collect::<Option<_>>()?;
        Some(Self { axes, first: form.constant_term() })
    }

    /// The only axis of these, if each place of it is one further.
    fn single(&self, of: &[VarId]) -> Option<Option<VarId>> {
        let axis = only(self.axes.iter().copied())?;
        match axis {
            None => Some(None),
            Some((axis, 1)) if of.contains(&axis) => Some(Some(axis)),
            Some(_) => None,
        }
    }
}

impl Image {
    /// The first factor as windows of an image that has this element type.
    fn of(lowering: &mut Lowering<'_>, dtype: DType) -> Option<Self> {
        let block = lowering.block;
        let typed = lowering.source.cast(dtype, lowering.form.a);
        let value = simplify(&mut lowering.source, typed);
        let Expr::Read { arg, index, guard } = lowering.source.get(value).clone() else { return None };
        let meta = block.arg(arg);
        let &[image_dim, row_dim, pixel_dim, channel_dim] = meta.layout.order() else { return None };
        if meta.dtype != dtype {
            return None;
        }
        let strides = meta.layout.strides(&meta.shape);
        let (image_at, channel_at) =
            (Steps::of(lowering, index[image_dim])?, Steps::of(lowering, index[channel_dim])?);
        let (m, k) = (lowering.form.m.clone(), lowering.form.k.clone());
        let (image, channel) = (image_at.single(&m)?, channel_at.single(&k)?);
        let conditions = guard.map_or_else(Vec::new, |guard| parts(&lowering.source, guard));
        let mut direction = |dim: usize| Direction::of(lowering, (index[dim], meta.shape[dim]), &conditions);
        let (vertical, horizontal) = (direction(row_dim)?, direction(pixel_dim)?);
        let used = [image, vertical.place, horizontal.place, channel, vertical.window, horizontal.window];
        let is_used = |axis: &&VarId| block.extent(**axis) == 1 || used.contains(&Some(**axis));
        let distinct: BTreeSet<VarId> = used.into_iter().flatten().collect();
        let is_whole =
            distinct.len() == used.iter().flatten().count() && m.iter().chain(&k).all(|axis| is_used(&axis));
        // Each condition is about one direction.
        let is_about_one = |&condition: &ExprId| {
            [&vertical, &horizontal].iter().any(|direction| direction.is_about(&lowering.source, condition))
        };
        if !is_whole || !conditions.iter().all(is_about_one) {
            return None;
        }
        let first = |at: &Steps, dim: usize| usize::try_from(at.first).ok().map(|first| first * strides[dim]);
        let offset = first(&image_at, image_dim)? + first(&channel_at, channel_dim)?;
        let pixels = Pixels {
            buffer: BufferId::new(0),
            offset,
            image: strides[image_dim],
            row: strides[row_dim],
            pixel: strides[pixel_dim],
        };
        Some(Self { arg, pixels, image, channel, vertical, horizontal })
    }
}

impl Direction {
    /// The direction of an index into a dimension of this extent, which is read where the conditions hold.
    fn of(
        lowering: &mut Lowering<'_>,
        (index, input): (ExprId, usize),
        conditions: &[ExprId],
    ) -> Option<Self> {
        let block = lowering.block;
        let steps = Steps::of(lowering, index)?;
        let among = |axes: &[VarId]| only(steps.axes.iter().copied().filter(|(axis, _)| axes.contains(axis)));
        let (place, window) = (among(&lowering.form.m)?, among(&lowering.form.k)?);
        let is_all = steps.axes.len() == usize::from(place.is_some()) + usize::from(window.is_some());
        let extent = |axis: Option<(VarId, i64)>| axis.map_or(1, |(axis, _)| block.extent(axis));
        let step = |axis: Option<(VarId, i64)>| axis.map_or(Some(1), |(_, step)| usize::try_from(step).ok());
        let padding = usize::try_from(-steps.first).ok()?;
        let (result, window_extent, dilation) = (extent(place), extent(window), step(window)?);
        let reach = dilation.checked_mul(window_extent - 1)?;
        // A window that has a single place may go on as far as its input ends.
        let last_place = (input + 2 * padding).checked_sub(reach + 1)?;
        let stride = if place.is_some() { step(place)? } else { last_place + 1 };
        let is_whole = stride > 0 && dilation > 0 && last_place / stride + 1 == result;
        let sliding = Sliding { input, result, window: window_extent, stride, dilation, padding };
        let direction =
            Self { place: place.map(|(axis, _)| axis), window: window.map(|(axis, _)| axis), sliding };
        let is_inside = is_all && is_whole && direction.reads_all_inside(&lowering.source, conditions);
        is_inside.then_some(direction)
    }

    /// True if a condition is about this direction alone.
    fn is_about(&self, exprs: &Exprs, condition: ExprId) -> bool {
        let own = [self.place, self.window];
        exprs.free_vars(condition).iter().all(|&axis| own.contains(&Some(axis)))
    }

    /// True if the conditions about this direction hold exactly where the index is in the input.
    fn reads_all_inside(&self, exprs: &Exprs, conditions: &[ExprId]) -> bool {
        let Sliding { input, result, window, stride, dilation, padding } = self.sliding;
        let own: Vec<ExprId> =
            conditions.iter().copied().filter(|&condition| self.is_about(exprs, condition)).collect();
        let holds = |place: usize, offset: usize| {
            let values = [(self.place, place), (self.window, offset)];
            let values: Vec<(VarId, i64)> =
                values.into_iter().filter_map(|(axis, value)| Some((axis?, value as i64))).collect();
            let at = (place * stride + offset * dilation) as i64 - padding as i64;
            let is_inside = (0..input as i64).contains(&at);
            let is_read = own.iter().map(|&condition| exprs.evaluate(condition, &values));
            is_read.collect::<Option<Vec<i64>>>().is_some_and(|all| all.iter().all(|&v| v != 0) == is_inside)
        };
        result.saturating_mul(window) <= MAX_POINTS
            && (0..result).all(|place| (0..window).all(|offset| holds(place, offset)))
    }
}

/// The conditions that together make one.
fn parts(exprs: &Exprs, condition: ExprId) -> Vec<ExprId> {
    match *exprs.get(condition) {
        Expr::Binary(BinaryFn::And, lhs, rhs) => [parts(exprs, lhs), parts(exprs, rhs)].concat(),
        _ => vec![condition],
    }
}

/// The axes of a convolution, as variables that nothing else is known of; an axis that is missing has a single place.
struct Axes {
    image: Option<VarId>,
    row: Option<VarId>,
    pixel: Option<VarId>,
    map: Option<VarId>,
    window_row: Option<VarId>,
    window_column: Option<VarId>,
    channel: Option<VarId>,
    /// Pixels of a row, and rows, of the result.
    result: [usize; 2],
    any: Vec<(VarId, ExprId)>,
}

/// What is stored.
struct Stored {
    result: Pixels,
    bias: Option<(BufferId, usize)>,
    addend: Option<Pixels>,
    is_rectified: bool,
}

impl Axes {
    fn new(lowering: &mut Lowering<'_>, image: &Image, map: Option<VarId>) -> Self {
        let form = &lowering.form;
        let axes: Vec<VarId> = form.m.iter().chain(&form.n).chain(&form.k).copied().collect();
        let any = axes.into_iter().map(|axis| {
            let extent = lowering.block.extent(axis);
            (axis, lowering.program.exprs.fresh_index("any", extent).1)
        });
        let any = any.collect();
        let Image { vertical, horizontal, .. } = image;
        Self {
            image: image.image,
            row: vertical.place,
            pixel: horizontal.place,
            map,
            window_row: vertical.window,
            window_column: horizontal.window,
            channel: image.channel,
            result: [horizontal.sliding.result, vertical.sliding.result],
            any,
        }
    }

    fn extent(&self, block: &BlockProgram, axis: Option<VarId>) -> usize {
        axis.map_or(1, |axis| block.extent(axis))
    }

    /// The first place of an imported offset, and its stride along each of these axes, in which it is linear; `None` for
    /// axes with a single place.
    fn places<const N: usize>(
        &self,
        lowering: &mut Lowering<'_>,
        offset: ExprId,
        axes: [Option<VarId>; N],
    ) -> Option<(usize, [Option<usize>; N])> {
        let atom = |axis: VarId| self.any.iter().find(|(own, _)| *own == axis).map(|&(_, any)| any);
        let atoms: Vec<ExprId> = axes.into_iter().flatten().map(atom).collect::<Option<_>>()?;
        let (first, strides) = linear_places(lowering, offset, &atoms)?;
        let mut strides = strides.into_iter();
        Some((first, axes.map(|axis| axis.and_then(|_| strides.next()))))
    }

    /// Where weights are, if they are `[map][window row][window column][channel]` without gaps.
    fn filter(&self, lowering: &mut Lowering<'_>, side: &Side, dtype: DType) -> Option<(BufferId, usize)> {
        let block = lowering.block;
        let inner = [self.window_row, self.window_column, self.channel];
        let extents = inner.map(|axis| self.extent(block, axis));
        let wanted = [extents.iter().product(), extents[1] * extents[2], extents[2], 1];
        if let Some((buffer, terms)) = side.packed {
            let long = |axis: &VarId| block.extent(*axis) > 1;
            let is_ordered =
                lowering.form.k.iter().copied().filter(long).eq(inner.into_iter().flatten().filter(long));
            return (is_ordered && terms == wanted[0]).then_some((buffer, 0));
        }
        let typed = lowering.source.cast(dtype, lowering.form.b);
        let value = simplify(&mut lowering.source, typed);
        let value = lowering.import(value, &self.any, None);
        let Expr::Load { buffer, offset, lanes: 1, mask: None } = *lowering.program.exprs.get(value) else {
            return None;
        };
        let axes = [self.map, inner[0], inner[1], inner[2]];
        let (first, strides) = self.places(lowering, offset, axes)?;
        let is_right =
            strides.iter().zip(wanted).all(|(stride, wanted)| stride.is_none_or(|at| at == wanted));
        (is_right && lowering.program.buffer(buffer).dtype == dtype).then_some((buffer, first))
    }

    /// Where pixels of as many maps as the result's are, if their channels are neighbours.
    fn pixels(&self, lowering: &mut Lowering<'_>, buffer: BufferId, offset: ExprId) -> Option<Pixels> {
        let axes = [self.image, self.row, self.pixel, self.map];
        let (offset, [image, row, pixel, map]) = self.places(lowering, offset, axes)?;
        let maps = self.extent(lowering.block, self.map);
        // Of what there is one of, the next one would be anywhere.
        let pixel = pixel.unwrap_or(maps);
        let row = row.unwrap_or(pixel * self.result[0]);
        let image = image.unwrap_or(row * self.result[1]);
        let is_nested = pixel >= maps && row >= pixel * self.result[0] && image >= row * self.result[1];
        (map.is_none_or(|map| map == 1) && is_nested).then_some(Pixels { buffer, offset, image, row, pixel })
    }

    fn stored(&self, lowering: &mut Lowering<'_>, dtype: DType) -> Option<Stored> {
        let stores = stores_of(lowering.block, &mut lowering.source, &[]);
        let &[(arg, offset, body)] = &stores[..] else { return None };
        let (offset, body) =
            (lowering.import(offset, &self.any, None), lowering.import(body, &self.any, None));
        let buffer = lowering.arg_buffers[arg.index()]?;
        let result = self.pixels(lowering, buffer, offset)?;
        if lowering.block.arg(arg).dtype != dtype {
            return None;
        }
        let (body, is_rectified) = rectified(&lowering.program.exprs, body, dtype);
        let (mut bias, mut addend) = (None, None);
        for (buffer, offset) in added(lowering, body, dtype)? {
            let vector = self.places(lowering, offset, [self.map]);
            let vector = vector.filter(|(_, [stride])| bias.is_none() && stride.is_none_or(|at| at == 1));
            if let Some((first, _)) = vector {
                bias = Some((buffer, first));
            } else {
                let pixels = self.pixels(lowering, buffer, offset)?;
                addend.replace(pixels).is_none().then_some(())?;
            }
        }
        Some(Stored { result, bias, addend, is_rectified })
    }
}

/// What is rectified before it is rounded to the type that is stored, or the whole if nothing is.
fn rectified(exprs: &Exprs, body: ExprId, stored: DType) -> (ExprId, bool) {
    let inner = match *exprs.get(body) {
        Expr::Cast(dtype, inner) if dtype == stored => inner,
        _ => body,
    };
    let is_zero = |id: ExprId| matches!(exprs.get(id), Expr::Const(c) if c.bits == 0);
    match *exprs.get(inner) {
        Expr::Binary(BinaryFn::Max, value, zero) if is_zero(zero) => (value, true),
        Expr::Binary(BinaryFn::Max, zero, value) if is_zero(zero) => (value, true),
        _ => (body, false),
    }
}
