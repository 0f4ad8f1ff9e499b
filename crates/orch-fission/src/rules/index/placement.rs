//! Scattering to positions that are known when compiling: each element reads the update that it becomes.
//!
//! ```text
//! updates fill a slice: y = concat(x[..first], updates, x[last..])      per dimension that it does not fill
//! otherwise:            y[i] = is_written[i] ? updates[update_of[i]] : x[i]     with two constants over the positions
//! ```

use crate::{Context, RuleError};
use orch_ir::{DType, PrimOp, ReduceOp, ScalarFn, Tensor, TensorId};

/// Positions of the largest tensor for which constants over the positions are made.
const MAX_POSITIONS: usize = 1 << 22;

/// Which update each position of the leading dimensions becomes.
pub(super) struct Placement<'a> {
    /// The leading dimensions.
    extents: &'a [usize],
    /// How an update and what is there combine; `None` replaces it.
    combine: Option<ReduceOp>,
    form: Form,
}

enum Form {
    /// Updates in row-major order are the slice that starts here and has these extents.
    Slice { starts: Vec<usize>, sizes: Vec<usize> },
    /// The number of the update of each position in row-major order.
    Table(Vec<Option<usize>>),
}

impl<'a> Placement<'a> {
    /// Updates go to `positions` in the leading dimensions of `extents`. `None` if a position is out of range, several updates
    /// combine at one, or there are too many positions.
    pub fn new(extents: &'a [usize], positions: &[Vec<usize>], combine: Option<ReduceOp>) -> Option<Self> {
        let is_inside = |position: &Vec<usize>| position.iter().zip(extents).all(|(at, extent)| at < extent);
        if !positions.iter().all(is_inside) {
            return None;
        }
        if let Some((starts, sizes)) = filled_slice(positions) {
            return Some(Self { extents, combine, form: Form::Slice { starts, sizes } });
        }
        let count = extents.iter().product::<usize>();
        if count > MAX_POSITIONS {
            return None;
        }
        let mut table = vec![None; count];
        for (update, position) in positions.iter().enumerate() {
            let flat = position.iter().zip(extents).fold(0, |flat, (at, extent)| flat * extent + at);
            if table[flat].replace(update).is_some() && combine.is_some() {
                return None;
            }
        }
        Some(Self { extents, combine, form: Form::Table(table) })
    }

    /// `data` with `updates`, `[update, rest..]`, in their places.
    pub fn place(
        &self,
        ctx: &mut Context<'_>,
        data: TensorId,
        updates: TensorId,
    ) -> Result<TensorId, RuleError> {
        let shape = ctx.shape(data).to_vec();
        let rest = &shape[self.extents.len()..];
        match &self.form {
            Form::Slice { starts, sizes } => {
                let updates = ctx.reshape(updates, [sizes, rest].concat())?;
                self.pasted(ctx, data, updates, (starts, sizes), 0)
            }
            Form::Table(table) if table.iter().all(Option::is_none) => Ok(data),
            Form::Table(table) => {
                let rows = table.len();
                let updates_of = table.iter().map(|update| update.unwrap_or(0) as i32).collect();
                let updates_of = ctx.tensor(Tensor::from_vec([rows], updates_of));
                let is_written = table.iter().map(|update| i64::from(update.is_some())).collect::<Vec<_>>();
                let mut is_written = ctx.tensor(Tensor::from_i64(DType::Bool, [rows], &is_written));
                let old = ctx.reshape(data, [&[rows], rest].concat())?;
                let new = ctx.emit(PrimOp::Take { axis: 0 }, &[updates, updates_of])?;
                let new = self.combined(ctx, old, new)?;
                for axis in 1..=rest.len() {
                    is_written = ctx.unsqueeze(is_written, axis)?;
                }
                let placed = ctx.select(is_written, new, old)?;
                ctx.reshape(placed, shape)
            }
        }
    }

    /// `data` with a slice of updates, by dimensions from `dim` on.
    fn pasted(
        &self,
        ctx: &mut Context<'_>,
        data: TensorId,
        updates: TensorId,
        (starts, sizes): (&[usize], &[usize]),
        dim: usize,
    ) -> Result<TensorId, RuleError> {
        if dim == sizes.len() {
            return self.combined(ctx, data, updates);
        }
        let (first, size, extent) = (starts[dim], sizes[dim], self.extents[dim]);
        let inside = ctx.slice_axis(data, dim, first, size)?;
        let pasted = self.pasted(ctx, inside, updates, (starts, sizes), dim + 1)?;
        let mut parts = Vec::with_capacity(3);
        if first > 0 {
            parts.push(ctx.slice_axis(data, dim, 0, first)?);
        }
        parts.push(pasted);
        if first + size < extent {
            parts.push(ctx.slice_axis(data, dim, first + size, extent - first - size)?);
        }
        ctx.concat(&parts, dim)
    }

    fn combined(&self, ctx: &mut Context<'_>, old: TensorId, new: TensorId) -> Result<TensorId, RuleError> {
        let Some(combine) = self.combine else { return Ok(new) };
        let by_position = || RuleError::invalid("updates are not combined by position".to_owned());
        let function = combine.combining().ok_or_else(by_position)?;
        ctx.map(ScalarFn::Binary(function), &[old, new])
    }
}

/// First position and extents of the slice that positions fill in row-major order, each once.
fn filled_slice(positions: &[Vec<usize>]) -> Option<(Vec<usize>, Vec<usize>)> {
    let (first, last) = (positions.first()?, positions.last()?);
    let sizes: Vec<usize> = first
        .iter()
        .zip(last)
        .map(|(first, last)| Some(last.checked_sub(*first)? + 1))
        .collect::<Option<_>>()?;
    if sizes.iter().product::<usize>() != positions.len() {
        return None;
    }
    let is_next = |(number, position): (usize, &Vec<usize>)| {
        let mut left = number;
        (0..sizes.len()).rev().all(|dim| {
            let at = first[dim] + left % sizes[dim];
            left /= sizes[dim];
            position[dim] == at
        })
    };
    positions.iter().enumerate().all(is_next).then(|| (first.clone(), sizes))
}
