//! Type and shape rules of the primitives.

use crate::{Contract, ConvSpec, DType, PadMode, PrimOp, ReduceOp, Shape, Window};

/// Operands that do not suit a primitive. The message says which rule is broken, with the shapes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InferError(pub String);

type Type<'a> = (DType, &'a Shape);
type Inferred = Result<(DType, Shape), InferError>;

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition { return Err(InferError(format!($($message)*))); }
    };
}

/// The result types of `op` for operands of these types.
///
/// # Errors
/// If the operands do not suit the primitive.
pub fn infer(op: &PrimOp, inputs: &[Type<'_>]) -> Result<Vec<(DType, Shape)>, InferError> {
    let arity = arity(op);
    ensure!(
        arity.is_none_or(|n| n == inputs.len()),
        "{} operands expected, {} given",
        arity.unwrap_or(0),
        inputs.len()
    );
    let one = match op {
        PrimOp::Opaque(opaque) => return Ok(opaque.results.clone()),
        PrimOp::Recurrence(recurrence) => return recurrence.infer(inputs),
        PrimOp::Map(f) => {
            let shape = inputs[0].1;
            for (_, other) in inputs {
                ensure!(*other == shape, "elementwise operands have shapes {shape} and {other}");
            }
            let dtypes: Vec<DType> = inputs.iter().map(|(dtype, _)| *dtype).collect();
            let result = f.result(&dtypes);
            ensure!(result.is_some(), "{} is not defined for {dtypes:?}", f.name());
            (result.expect("checked above"), shape.clone())
        }
        PrimOp::Reduce { op, axes } => reduce(*op, axes, inputs[0])?,
        PrimOp::Window { op, window } => windowed(*op, window, inputs[0])?,
        PrimOp::Broadcast { shape, dims } => broadcast(shape, dims, inputs[0])?,
        PrimOp::Transpose { perm } => {
            let (dtype, shape) = inputs[0];
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            ensure!(sorted.iter().copied().eq(0..shape.rank()), "{perm:?} does not permute {shape}");
            (dtype, perm.iter().map(|&dim| shape[dim]).collect::<Vec<_>>().into())
        }
        PrimOp::Reshape { shape } => {
            let (dtype, from) = inputs[0];
            ensure!(shape.elems() == from.elems(), "{from} cannot be reshaped to {shape}");
            (dtype, shape.clone())
        }
        PrimOp::Slice { starts, steps, sizes } => slice(starts, steps, sizes, inputs[0])?,
        PrimOp::Pad { mode, low, high } => pad(*mode, low, high, inputs)?,
        PrimOp::Concat { axis } => concat(*axis, inputs)?,
        PrimOp::Select { positions } => select(positions, inputs[0])?,
        PrimOp::Contract(contract) => contraction(contract, inputs[0], inputs[1])?,
        PrimOp::Conv(spec) => conv(spec, inputs[0], inputs[1])?,
        PrimOp::ConvTranspose { spec, output_padding, .. } => {
            conv_transpose(spec, output_padding, inputs[0], inputs[1])?
        }
        PrimOp::Take { axis } => take(*axis, inputs[0], inputs[1])?,
        PrimOp::TakeAlong { axis } => take_along(*axis, inputs[0], inputs[1])?,
        PrimOp::GatherNd { batch_dims } => gather_nd(*batch_dims, inputs[0], inputs[1])?,
        PrimOp::ScatterAlong { axis, combine } => {
            let (dtype, shape) = inputs[0];
            combinable(*combine, dtype)?;
            ensure!(inputs[1].0.is_int(), "indices are {}, not integers", inputs[1].0);
            ensure!(inputs[1].1 == inputs[2].1, "indices {} and updates {} differ", inputs[1].1, inputs[2].1);
            ensure!(*axis < shape.rank(), "axis {axis} of {shape}");
            ensure!(
                inputs[1].1.rank() == shape.rank(),
                "indices {} and data {shape} differ in rank",
                inputs[1].1
            );
            for dim in (0..shape.rank()).filter(|dim| dim != axis) {
                ensure!(inputs[1].1[dim] <= shape[dim], "indices {} exceed data {shape}", inputs[1].1);
            }
            ensure!(inputs[2].0 == dtype, "updates are {}, data {dtype}", inputs[2].0);
            ensure!(
                shape[*axis] > 0 || inputs[1].1.elems() == 0,
                "updates of the empty axis {axis} of {shape}"
            );
            (dtype, shape.clone())
        }
        PrimOp::ScatterNd { combine } => {
            combinable(*combine, inputs[0].0)?;
            scatter_nd(inputs)?
        }
        PrimOp::Iota { dtype, shape, axis } => {
            ensure!(*axis < shape.rank(), "iota axis {axis} of {shape}");
            ensure!(*dtype != DType::Bool, "iota of bool");
            (*dtype, shape.clone())
        }
    };
    Ok(vec![one])
}

/// The number of operands, or `None` where it varies.
fn arity(op: &PrimOp) -> Option<usize> {
    match op {
        PrimOp::Map(f) => Some(f.arity()),
        PrimOp::Pad { mode: PadMode::Constant, .. }
        | PrimOp::Contract(_)
        | PrimOp::Conv(_)
        | PrimOp::ConvTranspose { .. }
        | PrimOp::Take { .. }
        | PrimOp::TakeAlong { .. }
        | PrimOp::GatherNd { .. } => Some(2),
        PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => Some(3),
        PrimOp::Iota { .. } => Some(0),
        PrimOp::Recurrence(recurrence) => Some(recurrence.arity()),
        PrimOp::Concat { .. } | PrimOp::Opaque(_) => None,
        PrimOp::Reduce { .. }
        | PrimOp::Window { .. }
        | PrimOp::Broadcast { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Slice { .. }
        | PrimOp::Pad { .. }
        | PrimOp::Select { .. } => Some(1),
    }
}

/// A shape from extents computed here, refused when it is absurdly large.
fn sized(dims: Vec<usize>) -> Result<Shape, InferError> {
    let text = format!("{dims:?}");
    Shape::checked(dims).ok_or_else(|| InferError(format!("a tensor of shape {text} is too large")))
}

fn reduce(op: ReduceOp, axes: &[usize], (dtype, shape): Type<'_>) -> Inferred {
    ensure!(axes.is_sorted_by(|a, b| a < b), "reduced axes {axes:?} are not sorted and distinct");
    ensure!(axes.iter().all(|&axis| axis < shape.rank()), "reduced axes {axes:?} of {shape}");
    ensure!(!op.is_arg() || axes.len() == 1, "{} takes one axis, {axes:?} given", op.name());
    ensure!(!op.is_arg() || shape[axes[0]] > 0, "{} of an empty axis of {shape}", op.name());
    ensure!(dtype != DType::Bool || !matches!(op, ReduceOp::Sum | ReduceOp::Prod), "{} of bool", op.name());
    let kept: Vec<usize> =
        (0..shape.rank()).filter(|dim| !axes.contains(dim)).map(|dim| shape[dim]).collect();
    Ok((op.result(dtype), kept.into()))
}

/// Spatial extents of the result of sliding `window` over the trailing dimensions of `shape`.
fn window_extents(window: &Window, shape: &Shape) -> Result<Vec<usize>, InferError> {
    let rank = window.rank();
    ensure!(shape.rank() == rank + 2, "{rank} spatial dimensions expected in {shape}");
    let lengths = [&window.strides, &window.dilations, &window.low, &window.high].map(Vec::len);
    ensure!(lengths.iter().all(|&len| len == rank), "window {window:?} has lists of different lengths");
    ensure!(window.strides.iter().chain(&window.dilations).all(|&v| v > 0), "window step 0 in {window:?}");
    (0..rank)
        .map(|dim| {
            window
                .positions(dim, shape[dim + 2])
                .ok_or_else(|| InferError(format!("window {:?} does not fit into {shape}", window.kernel)))
        })
        .collect()
}

fn windowed(op: ReduceOp, window: &Window, (dtype, shape): Type<'_>) -> Inferred {
    let spatial = window_extents(window, shape)?;
    ensure!(dtype != DType::Bool, "windowed {} of bool", op.name());
    Ok((op.result(dtype), sized([&shape[..2], &spatial].concat())?))
}

fn broadcast(shape: &Shape, dims: &[usize], (dtype, from): Type<'_>) -> Inferred {
    ensure!(dims.len() == from.rank(), "broadcast of {from} names {} dimensions", dims.len());
    ensure!(dims.is_sorted_by(|a, b| a < b), "broadcast dimensions {dims:?} do not increase");
    for (dim, &target) in dims.iter().enumerate() {
        ensure!(target < shape.rank(), "broadcast dimension {target} of {shape}");
        ensure!(from[dim] == shape[target] || from[dim] == 1, "{from} cannot be broadcast to {shape}");
    }
    Ok((dtype, shape.clone()))
}

fn slice(starts: &[i64], steps: &[i64], sizes: &[usize], (dtype, shape): Type<'_>) -> Inferred {
    let rank = shape.rank();
    ensure!(
        starts.len() == rank && steps.len() == rank && sizes.len() == rank,
        "slice of {shape} with {} starts, {} steps, {} sizes",
        starts.len(),
        steps.len(),
        sizes.len()
    );
    let result = sized(sizes.to_vec())?;
    for dim in 0..rank {
        if sizes[dim] == 0 {
            continue;
        }
        let span = (sizes[dim] as i64 - 1).checked_mul(steps[dim]).and_then(|d| d.checked_add(starts[dim]));
        let inside = |at: i64| (0..shape[dim] as i64).contains(&at);
        ensure!(
            inside(starts[dim]) && span.is_some_and(inside),
            "slice start {} step {} size {} leaves dimension {dim} of {shape}",
            starts[dim],
            steps[dim],
            sizes[dim]
        );
    }
    Ok((dtype, result))
}

fn pad(mode: PadMode, low: &[usize], high: &[usize], inputs: &[Type<'_>]) -> Inferred {
    let (dtype, shape) = inputs[0];
    ensure!(low.len() == shape.rank() && high.len() == shape.rank(), "padding lists do not fit {shape}");
    if mode == PadMode::Constant {
        ensure!(inputs[1].0 == dtype && inputs[1].1.rank() == 0, "the padding value is not a scalar {dtype}");
    }
    let mut dims = Vec::with_capacity(shape.rank());
    for dim in 0..shape.rank() {
        let padded = low[dim] > 0 || high[dim] > 0;
        ensure!(
            mode == PadMode::Constant || !padded || shape[dim] > 0,
            "{mode:?} padding of an empty dimension of {shape}"
        );
        dims.push(shape[dim].saturating_add(low[dim]).saturating_add(high[dim]));
    }
    Ok((dtype, sized(dims)?))
}

fn concat(axis: usize, inputs: &[Type<'_>]) -> Inferred {
    ensure!(!inputs.is_empty(), "concat of nothing");
    let (dtype, first) = inputs[0];
    ensure!(axis < first.rank(), "concat axis {axis} of {first}");
    let mut dims = first.to_vec();
    for (other_dtype, other) in &inputs[1..] {
        ensure!(*other_dtype == dtype, "concat of {dtype} and {other_dtype}");
        ensure!(other.rank() == first.rank(), "concat of {first} and {other}");
        for dim in 0..first.rank() {
            ensure!(dim == axis || other[dim] == first[dim], "concat of {first} and {other} along {axis}");
        }
        dims[axis] = dims[axis].saturating_add(other[axis]);
    }
    Ok((dtype, sized(dims)?))
}

fn select(positions: &[Option<Vec<usize>>], (dtype, shape): Type<'_>) -> Inferred {
    ensure!(positions.len() == shape.rank(), "selection of {} dimensions from {shape}", positions.len());
    let mut dims = shape.to_vec();
    for (dim, list) in positions.iter().enumerate() {
        if let Some(list) = list {
            ensure!(list.iter().all(|&at| at < shape[dim]), "selection leaves dimension {dim} of {shape}");
            dims[dim] = list.len();
        }
    }
    Ok((dtype, sized(dims)?))
}

fn contraction(contract: &Contract, lhs: Type<'_>, rhs: Type<'_>) -> Inferred {
    let (dtype, _) = lhs;
    ensure!(rhs.0 == dtype, "contraction of {dtype} and {}", rhs.0);
    ensure!(dtype != DType::Bool, "contraction of bool");
    let mut extents = [None; 256];
    for (labels, shape) in [(&contract.lhs, lhs.1), (&contract.rhs, rhs.1)] {
        ensure!(labels.len() == shape.rank(), "{} labels for {shape}", labels.len());
        for (position, &label) in labels.iter().enumerate() {
            ensure!(!labels[..position].contains(&label), "label {label} occurs twice in one operand");
            let extent = &mut extents[label as usize];
            ensure!(
                extent.is_none_or(|known| known == shape[position]),
                "operands {} and {} disagree on a shared extent",
                lhs.1,
                rhs.1
            );
            *extent = Some(shape[position]);
        }
    }
    let mut dims = Vec::with_capacity(contract.out.len());
    for (position, &label) in contract.out.iter().enumerate() {
        ensure!(!contract.out[..position].contains(&label), "label {label} occurs twice in the result");
        let extent = extents[label as usize];
        ensure!(extent.is_some(), "result label {label} is in no operand");
        dims.extend(extent);
    }
    Ok((dtype, sized(dims)?))
}

fn conv(spec: &ConvSpec, (dtype, x): Type<'_>, (w_dtype, w): Type<'_>) -> Inferred {
    ensure!(w_dtype == dtype && dtype != DType::Bool, "convolution of {dtype} with {w_dtype} weights");
    let spatial = window_extents(&spec.window, x)?;
    ensure!(
        w.rank() == x.rank() && w[2..] == spec.window.kernel[..],
        "weight {w} and kernel {:?}",
        spec.window.kernel
    );
    let groups = spec.groups;
    ensure!(
        groups > 0 && w[1].checked_mul(groups) == Some(x[1]) && w[0].is_multiple_of(groups),
        "input {x} and weight {w} do not agree on channels in {groups} groups"
    );
    Ok((dtype, sized([&[x[0], w[0]], &spatial[..]].concat())?))
}

fn conv_transpose(
    spec: &ConvSpec,
    output_padding: &[usize],
    (dtype, x): Type<'_>,
    (w_dtype, w): Type<'_>,
) -> Inferred {
    ensure!(w_dtype == dtype && dtype != DType::Bool, "convolution of {dtype} with {w_dtype} weights");
    let window = &spec.window;
    let rank = window.rank();
    ensure!(x.rank() == rank + 2 && w.rank() == rank + 2, "{rank} spatial dimensions in {x} and weight {w}");
    ensure!(output_padding.len() == rank, "output padding {output_padding:?}");
    let groups = spec.groups;
    ensure!(
        groups > 0 && x[1] == w[0] && x[1].is_multiple_of(groups),
        "input {x} and weight {w} do not agree on channels in {groups} groups"
    );
    ensure!(w[2..] == window.kernel[..], "weight {w} and kernel {:?}", window.kernel);
    let lengths = [&window.strides, &window.dilations, &window.low, &window.high].map(Vec::len);
    ensure!(lengths.iter().all(|&len| len == rank), "window {window:?} has lists of different lengths");
    let mut dims = vec![x[0], w[1].saturating_mul(groups)];
    for dim in 0..rank {
        ensure!(x[dim + 2] > 0 && window.kernel[dim] > 0, "transposed convolution of an empty dimension");
        let extent = transposed_extent(window, dim, x[dim + 2], output_padding[dim]);
        ensure!(extent.is_some(), "padding {:?}, {:?} crops more than there is", window.low, window.high);
        dims.extend(extent);
    }
    Ok((dtype, sized(dims)?))
}

/// The extent along `dim` that a transposed convolution of `extent` elements yields, or `None` if the padding crops more
/// than there is.
fn transposed_extent(window: &Window, dim: usize, extent: usize, output_padding: usize) -> Option<usize> {
    let steps = (extent - 1).checked_mul(window.strides[dim])?;
    let reach = (window.kernel[dim] - 1).checked_mul(window.dilations[dim])?;
    let full = steps.checked_add(reach)?.checked_add(1)?.checked_add(output_padding)?;
    full.checked_sub(window.low[dim].checked_add(window.high[dim])?)
}

fn take(axis: usize, (dtype, data): Type<'_>, (index_dtype, indices): Type<'_>) -> Inferred {
    ensure!(index_dtype.is_int(), "indices are {index_dtype}, not integers");
    ensure!(axis < data.rank(), "axis {axis} of {data}");
    ensure!(data[axis] > 0 || indices.elems() == 0, "gather from the empty axis {axis} of {data}");
    Ok((dtype, sized([&data[..axis], indices, &data[axis + 1..]].concat())?))
}

fn take_along(axis: usize, (dtype, data): Type<'_>, (index_dtype, indices): Type<'_>) -> Inferred {
    ensure!(index_dtype.is_int(), "indices are {index_dtype}, not integers");
    ensure!(axis < data.rank() && indices.rank() == data.rank(), "indices {indices} and data {data}");
    for dim in 0..data.rank() {
        ensure!(dim == axis || indices[dim] <= data[dim], "indices {indices} exceed data {data}");
    }
    ensure!(data[axis] > 0 || indices.elems() == 0, "gather from the empty axis {axis} of {data}");
    Ok((dtype, indices.clone()))
}

fn gather_nd(batch_dims: usize, (dtype, data): Type<'_>, (index_dtype, indices): Type<'_>) -> Inferred {
    ensure!(index_dtype.is_int(), "indices are {index_dtype}, not integers");
    ensure!(
        indices.rank() > batch_dims && data.rank() >= batch_dims,
        "indices {indices} into {data} with {batch_dims} batch dimensions"
    );
    let depth = indices[indices.rank() - 1];
    ensure!(batch_dims + depth <= data.rank(), "indices {indices} address more dimensions than {data} has");
    ensure!(data[..batch_dims] == indices[..batch_dims], "batch dimensions of {data} and {indices} differ");
    let (rows, addressed) = (&indices[..indices.rank() - 1], &data[batch_dims..batch_dims + depth]);
    ensure!(
        rows.contains(&0) || !addressed.contains(&0),
        "indices {indices} into empty dimensions of {data}"
    );
    Ok((dtype, sized([&indices[..indices.rank() - 1], &data[batch_dims + depth..]].concat())?))
}

/// Refuses reductions that cannot combine an element with an update.
fn combinable(combine: Option<ReduceOp>, dtype: DType) -> Result<(), InferError> {
    let Some(op) = combine else { return Ok(()) };
    let arithmetic = matches!(op, ReduceOp::Sum | ReduceOp::Prod);
    ensure!(
        !op.is_arg() && (dtype != DType::Bool || !arithmetic),
        "{} cannot combine {dtype} updates",
        op.name()
    );
    Ok(())
}

fn scatter_nd(inputs: &[Type<'_>]) -> Inferred {
    let (dtype, data) = inputs[0];
    let (index_dtype, indices) = inputs[1];
    let (update_dtype, updates) = inputs[2];
    ensure!(index_dtype.is_int(), "indices are {index_dtype}, not integers");
    ensure!(update_dtype == dtype, "updates are {update_dtype}, data {dtype}");
    ensure!(indices.rank() > 0, "scalar indices");
    let depth = indices[indices.rank() - 1];
    ensure!(depth <= data.rank(), "indices {indices} address more dimensions than {data} has");
    let expected = [&indices[..indices.rank() - 1], &data[depth..]].concat();
    ensure!(updates[..] == expected[..], "updates are {updates}, expected {expected:?}");
    let rows = &indices[..indices.rank() - 1];
    ensure!(
        rows.contains(&0) || !data[..depth].contains(&0),
        "indices {indices} into empty dimensions of {data}"
    );
    Ok((dtype, data.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer_one(op: &PrimOp, inputs: &[(DType, Shape)]) -> Inferred {
        let types: Vec<Type<'_>> = inputs.iter().map(|(dtype, shape)| (*dtype, shape)).collect();
        infer(op, &types).map(|mut results| results.remove(0))
    }

    fn window(kernel: usize, stride: usize, dilation: usize, pad: usize) -> Window {
        Window {
            kernel: vec![kernel],
            strides: vec![stride],
            dilations: vec![dilation],
            low: vec![pad],
            high: vec![pad],
        }
    }

    #[test]
    fn absurd_windows_are_refused_without_overflow() {
        let huge = usize::MAX / 2;
        let x = (DType::F32, Shape::from([1, 1, 5]));
        for (kernel, stride, dilation, pad) in [(huge, 1, huge, 0), (1, 1, 1, huge), (2, huge, huge, 3)] {
            let window = window(kernel, stride, dilation, pad);
            let pool = PrimOp::Window { op: ReduceOp::Max, window: window.clone() };
            assert!(infer_one(&pool, std::slice::from_ref(&x)).is_err(), "{window:?}");
            let spec = ConvSpec { window, groups: huge };
            let w = (DType::F32, Shape::from([1, 1, 2]));
            let transposed =
                PrimOp::ConvTranspose { spec: spec.clone(), output_padding: vec![huge], may_pad: false };
            assert!(infer_one(&transposed, &[x.clone(), w.clone()]).is_err());
            assert!(infer_one(&PrimOp::Conv(spec), &[x.clone(), w]).is_err());
        }
        let slice = PrimOp::Slice { starts: vec![0], steps: vec![0], sizes: vec![usize::MAX] };
        assert!(infer_one(&slice, &[(DType::F32, [5].into())]).is_err());
    }

    #[test]
    fn indices_into_empty_dimensions_are_refused() {
        let (data, index) = ((DType::F32, Shape::from([0, 3])), (DType::I64, Shape::from([2, 1])));
        let updates = (DType::F32, Shape::from([2, 3]));
        assert!(infer_one(&PrimOp::GatherNd { batch_dims: 0 }, &[data.clone(), index.clone()]).is_err());
        assert!(infer_one(&PrimOp::GatherNd { batch_dims: 3 }, &[data.clone(), index.clone()]).is_err());
        let scatter = PrimOp::ScatterNd { combine: None };
        assert!(infer_one(&scatter, &[data.clone(), index, updates.clone()]).is_err());
        let along = PrimOp::ScatterAlong { axis: 0, combine: None };
        assert!(infer_one(&along, &[data, (DType::I64, [2, 3].into()), updates]).is_err());
    }

    #[test]
    fn updates_are_combined_by_reductions_of_values_only() {
        let types = [(DType::F32, Shape::from([2])), (DType::I64, [1].into()), (DType::F32, [1].into())];
        let along = |op| PrimOp::ScatterAlong { axis: 0, combine: Some(op) };
        assert!(infer_one(&along(ReduceOp::Sum), &types).is_ok());
        assert!(infer_one(&along(ReduceOp::ArgMax { last: false }), &types).is_err());
    }
}
