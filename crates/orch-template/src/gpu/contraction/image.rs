//! Images in memory, channels last, and the operand of a contraction that is windows of one (im2col).

use super::emitter::GemmEmitter;
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_ir::DType;
use std::collections::BTreeSet;

/// One spatial dimension of a convolution: `input index = output index * stride + kernel index * dilation - padding`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpatialDim {
    /// Extent of the input.
    pub input: usize,
    /// Extent of the output.
    pub output: usize,
    /// Extent of the kernel.
    pub kernel: usize,
    /// Input elements from one window to the next.
    pub stride: usize,
    /// Input elements from one kernel element to the next.
    pub dilation: usize,
    /// Zeros before the input, and as many after it.
    pub padding: usize,
}

/// Images `[image, row, pixel, channel]` with consecutive channels. Offset and strides are in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StridedImage {
    /// The buffer.
    pub buffer: BufferId,
    /// The first element.
    pub offset: usize,
    /// Stride from one image to the next.
    pub image: usize,
    /// Stride from one row to the next.
    pub row: usize,
    /// Stride from one pixel to the next.
    pub pixel: usize,
}

/// Most pairs of output and kernel indices of a dimension for which the conditions of reading are evaluated.
const MAX_POINTS: usize = 1 << 16;

/// The operand `a` of a convolution: windows of an image.
pub(super) struct ConvInput {
    /// The argument that is read.
    pub arg: ArgId,
    /// How it lies in memory; the buffer is not known yet.
    pub image: StridedImage,
    /// The axis of images; `None` if there is a single one.
    pub image_axis: Option<VarId>,
    /// The axis of input channels, likewise.
    pub channel_axis: Option<VarId>,
    pub height: SpatialAxes,
    pub width: SpatialAxes,
}

/// One spatial dimension with its axes of the contraction.
pub(super) struct SpatialAxes {
    /// The axis of the output; `None` if its extent is 1.
    pub output: Option<VarId>,
    /// The axis of the kernel, likewise.
    pub kernel: Option<VarId>,
    pub dim: SpatialDim,
}

/// An index that is linear in axes: `first + sum of axis * coefficient`.
struct LinearIndex {
    axes: Vec<(VarId, i64)>,
    first: i64,
}

/// The single element of an iterator, or none; `None` if there are several.
pub(super) fn at_most_one<T>(mut found: impl Iterator<Item = T>) -> Option<Option<T>> {
    let first = found.next();
    found.next().is_none().then_some(first)
}

impl LinearIndex {
    fn of(emitter: &mut GemmEmitter<'_>, index: ExprId) -> Option<Self> {
        // The emitter's own simplifier is for expressions of the thread program.
        let form = Simplifier::new().linear(&mut emitter.source, index);
        let axis = |&(atom, coefficient): &(ExprId, i64)| match *emitter.source.get(atom) {
            Expr::Var(var) => Some((var, coefficient)),
            _ => None,
        };
        let axes = form.terms().iter().map(axis).collect::<Option<_>>()?;
        Some(Self { axes, first: form.constant_term() })
    }

    /// The only axis, if it is one of these with coefficient 1; none for a constant index.
    fn single(&self, of: &[VarId]) -> Option<Option<VarId>> {
        let axis = at_most_one(self.axes.iter().copied())?;
        match axis {
            None => Some(None),
            Some((axis, 1)) if of.contains(&axis) => Some(Some(axis)),
            Some(_) => None,
        }
    }
}

impl ConvInput {
    /// The operand `a` as windows of an image that has this element type.
    pub fn of(emitter: &mut GemmEmitter<'_>, dtype: DType) -> Option<Self> {
        let block = emitter.block;
        let typed = emitter.source.cast(dtype, emitter.form.a);
        let value = simplify(&mut emitter.source, typed);
        let Expr::Read { arg, index, guard } = emitter.source.get(value).clone() else { return None };
        let meta = block.arg(arg);
        let &[image_dim, row_dim, pixel_dim, channel_dim] = meta.layout.order() else { return None };
        if meta.dtype != dtype {
            return None;
        }
        let strides = meta.layout.strides(&meta.shape);
        let (image_at, channel_at) =
            (LinearIndex::of(emitter, index[image_dim])?, LinearIndex::of(emitter, index[channel_dim])?);
        let (m, k) = (emitter.form.m.clone(), emitter.form.k.clone());
        let (image_axis, channel_axis) = (image_at.single(&m)?, channel_at.single(&k)?);
        let conditions = guard.map_or_else(Vec::new, |guard| emitter.source.conjuncts(guard));
        let mut spatial = |dim: usize| SpatialAxes::of(emitter, (index[dim], meta.shape[dim]), &conditions);
        let (height, width) = (spatial(row_dim)?, spatial(pixel_dim)?);
        let used = [image_axis, height.output, width.output, channel_axis, height.kernel, width.kernel];
        let is_used = |axis: &&VarId| block.extent(**axis) == 1 || used.contains(&Some(**axis));
        let distinct: BTreeSet<VarId> = used.into_iter().flatten().collect();
        let is_whole =
            distinct.len() == used.iter().flatten().count() && m.iter().chain(&k).all(|axis| is_used(&axis));
        // Each condition is about one dimension.
        let is_about_one = |&condition: &ExprId| {
            [&height, &width].iter().any(|axes| axes.is_about(&emitter.source, condition))
        };
        if !is_whole || !conditions.iter().all(is_about_one) {
            return None;
        }
        let first =
            |at: &LinearIndex, dim: usize| usize::try_from(at.first).ok().map(|first| first * strides[dim]);
        let offset = first(&image_at, image_dim)? + first(&channel_at, channel_dim)?;
        let image = StridedImage {
            buffer: BufferId::new(0),
            offset,
            image: strides[image_dim],
            row: strides[row_dim],
            pixel: strides[pixel_dim],
        };
        Some(Self { arg, image, image_axis, channel_axis, height, width })
    }
}

impl SpatialAxes {
    /// The axes of an index into a dimension of extent `input`, which is read where the conditions hold.
    fn of(
        emitter: &mut GemmEmitter<'_>,
        (index, input): (ExprId, usize),
        conditions: &[ExprId],
    ) -> Option<Self> {
        let block = emitter.block;
        let index = LinearIndex::of(emitter, index)?;
        let among =
            |axes: &[VarId]| at_most_one(index.axes.iter().copied().filter(|(axis, _)| axes.contains(axis)));
        let (output, kernel) = (among(&emitter.form.m)?, among(&emitter.form.k)?);
        let is_all = index.axes.len() == usize::from(output.is_some()) + usize::from(kernel.is_some());
        let extent = |axis: Option<(VarId, i64)>| axis.map_or(1, |(axis, _)| block.extent(axis));
        let step = |axis: Option<(VarId, i64)>| axis.map_or(Some(1), |(_, step)| usize::try_from(step).ok());
        let padding = usize::try_from(-index.first).ok()?;
        let (output_extent, kernel_extent, dilation) = (extent(output), extent(kernel), step(kernel)?);
        let reach = dilation.checked_mul(kernel_extent - 1)?;
        // With a single output the stride is arbitrary: one that leaves no second output inside.
        let last_first = (input + 2 * padding).checked_sub(reach + 1)?;
        let stride = if output.is_some() { step(output)? } else { last_first + 1 };
        let is_whole = stride > 0 && dilation > 0 && last_first / stride + 1 == output_extent;
        let dim =
            SpatialDim { input, output: output_extent, kernel: kernel_extent, stride, dilation, padding };
        let axes = Self { output: output.map(|(axis, _)| axis), kernel: kernel.map(|(axis, _)| axis), dim };
        let is_conv = is_all && is_whole && axes.reads_all_inside(&emitter.source, conditions);
        is_conv.then_some(axes)
    }

    /// True if a condition is about this dimension alone.
    fn is_about(&self, exprs: &Exprs, condition: ExprId) -> bool {
        let own = [self.output, self.kernel];
        exprs.free_vars(condition).iter().all(|&axis| own.contains(&Some(axis)))
    }

    /// True if the conditions about this dimension hold exactly where the index is in the input.
    fn reads_all_inside(&self, exprs: &Exprs, conditions: &[ExprId]) -> bool {
        let SpatialDim { input, output, kernel, stride, dilation, padding } = self.dim;
        let own: Vec<ExprId> =
            conditions.iter().copied().filter(|&condition| self.is_about(exprs, condition)).collect();
        let holds = |output: usize, kernel: usize| {
            let values = [(self.output, output), (self.kernel, kernel)];
            let values: Vec<(VarId, i64)> =
                values.into_iter().filter_map(|(axis, value)| Some((axis?, value as i64))).collect();
            let at = (output * stride + kernel * dilation) as i64 - padding as i64;
            let is_inside = (0..input as i64).contains(&at);
            let is_read = own.iter().map(|&condition| exprs.evaluate(condition, &values));
            is_read.collect::<Option<Vec<i64>>>().is_some_and(|all| all.iter().all(|&v| v != 0) == is_inside)
        };
        output.saturating_mul(kernel) <= MAX_POINTS
            && (0..output).all(|output| (0..kernel).all(|kernel| holds(output, kernel)))
    }
}
