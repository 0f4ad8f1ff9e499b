//! Contractions that are convolutions of images with consecutive channels (NHWC), which libraries (cuDNN) compute, too.
//!
//! ```text
//! result[n, y, x, f] = relu?(  sum over r, s, c of input[n, y * stride + r * dilation - padding, .., c] * filter[f, r, s, c]
//!                            + bias[f] + addend[n, y, x, f])
//! ```
//!
//! where the input is zero outside of its extents, and bias, addend and ReLU may be missing. Libraries accumulate in f32, add bias
//! and addend in f32 and round once, as the template's own kernels do: results differ in the order of additions only, and in
//! that a library's ReLU may make zero of NaN. Everything else - groups, padding that differs between the sides, filters in another
//! order, operands that are computed, an addend or a ReLU without a bias, any other epilogue - is no such convolution.
//!
//! Products of pixels by a matrix are convolutions with a kernel of 1 x 1.

use super::array::linear_strides;
use super::choose::form_of;
use super::emitter::GemmEmitter;
use super::image::{ConvInput, SpatialDim, StridedImage, at_most_one};
use super::operand::{GemmOperand, declare_arguments};
use super::product::added;
use super::schedule::GpuContractionSchedule;
use super::unit::MathUnit;
use crate::gpu::cta::{CtaEmitter, stores_of};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::simplify;
use orch_ir::{BinaryFn, DType};
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;
use orch_thread::kernel::Binding;

/// A block program seen as a convolution of images in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct ConvolutionForm {
    /// What is passed for each buffer, as for a kernel.
    pub bindings: Vec<Binding>,
    /// Element type of everything that is read and stored.
    pub dtype: DType,
    /// Whether f32 operands may be multiplied as tf32.
    pub is_tf32: bool,
    /// Images.
    pub images: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Rows.
    pub height: SpatialDim,
    /// Pixels of a row.
    pub width: SpatialDim,
    /// `[image, row, pixel, input channel]`.
    pub input: StridedImage,
    /// `[output channel, kernel row, kernel column, input channel]`, contiguous: its buffer and its first element.
    pub filter: (BufferId, usize),
    /// `[image, row, pixel, output channel]`.
    pub result: StridedImage,
    /// A consecutive vector `[output channel]` that is added: its buffer and its first element.
    pub bias: Option<(BufferId, usize)>,
    /// `[image, row, pixel, output channel]`, added element by element.
    pub addend: Option<StridedImage>,
    /// Whether negative results become zero.
    pub has_relu: bool,
}

impl ConvolutionForm {
    /// A block program as a convolution; `None` if it is not exactly that.
    pub fn of(block: &BlockProgram, precision: OperandPrecision) -> Option<Self> {
        let form = form_of(block).ok()?;
        let unit = MathUnit::of(block, &form, precision)?;
        let is_multiplied = matches!(unit, MathUnit::TensorCore(_) | MathUnit::Fma(DType::F32));
        let axes = form.m.iter().chain(&form.n).chain(&form.k);
        if !is_multiplied || !form.batch.is_empty() || axes.clone().any(|&axis| block.extent(axis) == 0) {
            return None;
        }
        let mut emitter = GemmEmitter::new(block, form, unit, GpuContractionSchedule::EXAMINE);
        emitter.place_cta(&mut Vec::new());
        let (operands, bindings) = declare_arguments(&mut emitter);
        let dtype = unit.operand_type();
        let input = ConvInput::of(&mut emitter, dtype)?;
        let out_channel = at_most_one(emitter.form.n.iter().copied().filter(|&axis| block.extent(axis) > 1))?;
        let axes = ConvAxes::new(&mut emitter, &input, out_channel);
        let buffer = emitter.arg_buffers[input.arg.index()]?;
        let filter = axes.filter(&mut emitter, &operands[1], dtype)?;
        let ConvEpilogue { result, bias, addend, has_relu } = axes.epilogue(&mut emitter, dtype)?;
        // Libraries fuse an addend and a ReLU only with a bias.
        if bias.is_none() && (addend.is_some() || has_relu) {
            return None;
        }
        Some(Self {
            bindings,
            dtype,
            is_tf32: unit == MathUnit::TensorCore(MmaType::Tf32),
            images: axes.extent(block, axes.image),
            in_channels: axes.extent(block, axes.in_channel),
            out_channels: axes.extent(block, axes.out_channel),
            height: input.height.dim,
            width: input.width.dim,
            input: StridedImage { buffer, ..input.image },
            filter,
            result,
            bias,
            addend,
            has_relu,
        })
    }
}

/// The axes of a convolution, each `None` if its extent is 1.
struct ConvAxes {
    image: Option<VarId>,
    row: Option<VarId>,
    pixel: Option<VarId>,
    out_channel: Option<VarId>,
    kernel_row: Option<VarId>,
    kernel_column: Option<VarId>,
    in_channel: Option<VarId>,
    /// Pixels of a row, and rows, of the result.
    result: [usize; 2],
    /// Free variables of the thread program that stand for the axes, in which offsets are examined for strides.
    symbols: Vec<(VarId, ExprId)>,
}

/// What is stored.
struct ConvEpilogue {
    result: StridedImage,
    bias: Option<(BufferId, usize)>,
    addend: Option<StridedImage>,
    has_relu: bool,
}

impl ConvAxes {
    fn new(emitter: &mut GemmEmitter<'_>, input: &ConvInput, out_channel: Option<VarId>) -> Self {
        let form = &emitter.form;
        let axes: Vec<VarId> = form.m.iter().chain(&form.n).chain(&form.k).copied().collect();
        let symbols = axes.into_iter().map(|axis| {
            let extent = emitter.block.extent(axis);
            (axis, emitter.program.exprs.fresh_index("any", extent).1)
        });
        let symbols = symbols.collect();
        let ConvInput { height, width, .. } = input;
        Self {
            image: input.image_axis,
            row: height.output,
            pixel: width.output,
            out_channel,
            kernel_row: height.kernel,
            kernel_column: width.kernel,
            in_channel: input.channel_axis,
            result: [width.dim.output, height.dim.output],
            symbols,
        }
    }

    fn extent(&self, block: &BlockProgram, axis: Option<VarId>) -> usize {
        axis.map_or(1, |axis| block.extent(axis))
    }

    /// The first element of an imported offset that is linear in these axes alone, and its stride along each; `None` for
    /// axes of extent 1.
    fn strides<const N: usize>(
        &self,
        emitter: &mut GemmEmitter<'_>,
        offset: ExprId,
        axes: [Option<VarId>; N],
    ) -> Option<(usize, [Option<usize>; N])> {
        let symbol = |axis: VarId| self.symbols.iter().find(|(own, _)| *own == axis).map(|&(_, any)| any);
        let atoms: Vec<ExprId> = axes.into_iter().flatten().map(symbol).collect::<Option<_>>()?;
        let (first, strides) = linear_strides(emitter, offset, &atoms)?;
        let mut strides = strides.into_iter();
        Some((first, axes.map(|axis| axis.and_then(|_| strides.next()))))
    }

    /// The buffer and first element of the operand `b`, if it is `[out channel, kernel row, kernel column, in channel]`, contiguous.
    fn filter(
        &self,
        emitter: &mut GemmEmitter<'_>,
        operand: &GemmOperand,
        dtype: DType,
    ) -> Option<(BufferId, usize)> {
        let block = emitter.block;
        let inner = [self.kernel_row, self.kernel_column, self.in_channel];
        let extents = inner.map(|axis| self.extent(block, axis));
        let contiguous = [extents.iter().product(), extents[1] * extents[2], extents[2], 1];
        if let Some((buffer, k_extent)) = operand.packed {
            let long = |axis: &VarId| block.extent(*axis) > 1;
            let is_ordered =
                emitter.form.k.iter().copied().filter(long).eq(inner.into_iter().flatten().filter(long));
            return (is_ordered && k_extent == contiguous[0]).then_some((buffer, 0));
        }
        let typed = emitter.source.cast(dtype, emitter.form.b);
        let value = simplify(&mut emitter.source, typed);
        let value = emitter.import(value, &self.symbols, None);
        let Expr::Load { buffer, offset, lanes: 1, mask: None } = *emitter.program.exprs.get(value) else {
            return None;
        };
        let axes = [self.out_channel, inner[0], inner[1], inner[2]];
        let (first, strides) = self.strides(emitter, offset, axes)?;
        let is_contiguous =
            strides.iter().zip(contiguous).all(|(stride, expected)| stride.is_none_or(|at| at == expected));
        (is_contiguous && emitter.program.buffer(buffer).dtype == dtype).then_some((buffer, first))
    }

    /// An imported offset as that of an image of the result's extents with consecutive channels.
    fn image(&self, emitter: &mut GemmEmitter<'_>, buffer: BufferId, offset: ExprId) -> Option<StridedImage> {
        let axes = [self.image, self.row, self.pixel, self.out_channel];
        let (offset, [image, row, pixel, channel]) = self.strides(emitter, offset, axes)?;
        let channels = self.extent(emitter.block, self.out_channel);
        // The stride of an extent of 1 is arbitrary: as if contiguous.
        let pixel = pixel.unwrap_or(channels);
        let row = row.unwrap_or(pixel * self.result[0]);
        let image = image.unwrap_or(row * self.result[1]);
        let is_nested = pixel >= channels && row >= pixel * self.result[0] && image >= row * self.result[1];
        let is_channels_last = channel.is_none_or(|stride| stride == 1);
        (is_channels_last && is_nested).then_some(StridedImage { buffer, offset, image, row, pixel })
    }

    fn epilogue(&self, emitter: &mut GemmEmitter<'_>, dtype: DType) -> Option<ConvEpilogue> {
        let stores = stores_of(emitter.block, &mut emitter.source, &[]);
        let &[(arg, offset, body)] = &stores[..] else { return None };
        let (offset, body) =
            (emitter.import(offset, &self.symbols, None), emitter.import(body, &self.symbols, None));
        let buffer = emitter.arg_buffers[arg.index()]?;
        let result = self.image(emitter, buffer, offset)?;
        if emitter.block.arg(arg).dtype != dtype {
            return None;
        }
        let (body, has_relu) = relu_argument(&emitter.program.exprs, body, dtype);
        let (mut bias, mut addend) = (None, None);
        for (buffer, offset) in added(emitter, body, dtype)? {
            let vector = self.strides(emitter, offset, [self.out_channel]);
            let vector = vector.filter(|(_, [stride])| bias.is_none() && stride.is_none_or(|at| at == 1));
            if let Some((first, _)) = vector {
                bias = Some((buffer, first));
            } else {
                let image = self.image(emitter, buffer, offset)?;
                addend.replace(image).is_none().then_some(())?;
            }
        }
        Some(ConvEpilogue { result, bias, addend, has_relu })
    }
}

/// The argument of a ReLU that is applied last, before rounding to the stored type, and true; the whole and false without one.
fn relu_argument(exprs: &Exprs, body: ExprId, stored: DType) -> (ExprId, bool) {
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
