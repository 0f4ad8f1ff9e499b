//! Masks that are bands, read off the primitives that compute them: comparisons of affine functions of indices.
//!
//! ```text
//! integers (iota, sums, products by constants, constants, casts):   n_row * row + n_column * column + n_0
//! booleans (comparisons of these, `and`, `not`, selections):        -below <= column - row <= above
//! ```
//!
//! Exact: values that may wrap around in their type are not affine. Broadcasts, transpositions, slices and reshapes are followed
//! by the coordinates of the element that is read ([`Affine`] too).

use super::View;
use super::views::unrepeated;
use crate::band::Band;
use orch_ir::{
    BinaryFn, CompareFn, DType, PrimGraph, PrimNode, PrimOp, ScalarFn, Shape, Tensor, TensorId, UnaryFn,
};

/// Primitives that are looked at for a mask.
const MAX_VISITS: usize = 256;
/// Elements of constants whose values are compared with a band or an affine function.
const MAX_ELEMS: usize = 1 << 24;

/// `constant + coefficients[0] * index[0] + ..` over the indices of a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Affine {
    constant: i128,
    coefficients: Vec<i128>,
}

impl Affine {
    /// The same number for all indices.
    fn number(constant: i128, rank: usize) -> Affine {
        Affine { constant, coefficients: vec![0; rank] }
    }

    /// `self + times * other`; `None` where numbers are too large.
    fn plus(&self, other: &Affine, times: i128) -> Option<Affine> {
        let sum = |a: i128, b: i128| a.checked_add(b.checked_mul(times)?);
        let coefficients = self
            .coefficients
            .iter()
            .zip(&other.coefficients)
            .map(|(&a, &b)| sum(a, b))
            .collect::<Option<_>>()?;
        Some(Affine { constant: sum(self.constant, other.constant)?, coefficients })
    }

    /// The number, if it depends on no index.
    fn as_number(&self) -> Option<i128> {
        self.coefficients.iter().all(|&coefficient| coefficient == 0).then_some(self.constant)
    }

    /// The least and the largest value within extents.
    fn bounds(&self, extents: &[usize]) -> Option<(i128, i128)> {
        let (mut low, mut high) = (self.constant, self.constant);
        for (&coefficient, &extent) in self.coefficients.iter().zip(extents) {
            let reach = coefficient.checked_mul(extent.saturating_sub(1) as i128)?;
            (low, high) = (low.checked_add(reach.min(0))?, high.checked_add(reach.max(0))?);
        }
        Some((low, high))
    }
}

/// The band that a boolean tensor is in the last two dimensions of a view of it; `None` if it is none, or is not seen to be one.
pub fn mask_band(graph: &PrimGraph, view: &View, extents: &[usize]) -> Option<Band> {
    if graph.dtype(view.tensor) != DType::Bool || extents.len() < 2 || extents.contains(&0) {
        return None;
    }
    let coefficients = view.strides.iter().map(|&stride| stride as i128).collect();
    let place = Affine { constant: view.offset as i128, coefficients };
    let mut reader = MaskReader { graph, extents, visits: 0 };
    let coords = reader.unflattened(&place, graph.shape(view.tensor))?;
    reader.band(view.tensor, &coords)
}

/// Follows the primitives of a mask from its result to iotas and constants.
struct MaskReader<'a> {
    graph: &'a PrimGraph,
    /// Of the mask's dimensions.
    extents: &'a [usize],
    visits: usize,
}

impl MaskReader<'_> {
    /// The primitive that computes a tensor, unless too many were looked at.
    fn producer(&mut self, tensor: TensorId) -> Option<&PrimNode> {
        self.visits += 1;
        let node = self.graph.producer(tensor).filter(|_| self.visits <= MAX_VISITS)?;
        Some(self.graph.node(node))
    }

    /// The band of the booleans at some coordinates of a tensor.
    fn band(&mut self, tensor: TensorId, coords: &[Affine]) -> Option<Band> {
        if let Some(value) = self.graph.constant(tensor) {
            return self.constant_band(value, coords);
        }
        let node = self.producer(tensor)?.clone();
        let first = *node.inputs.first()?;
        if let Some(coords) = self.operand_coords(&node, coords) {
            return self.band(first, &coords);
        }
        match node.op {
            PrimOp::Map(ScalarFn::Compare(f)) => {
                let [lhs, rhs] = [self.affine(first, coords)?, self.affine(*node.inputs.get(1)?, coords)?];
                self.compared(f, &lhs, &rhs)
            }
            PrimOp::Map(ScalarFn::Binary(BinaryFn::And)) => {
                let (lhs, rhs) = (self.band(first, coords)?, self.band(*node.inputs.get(1)?, coords)?);
                Some(lhs.intersection(rhs))
            }
            PrimOp::Map(ScalarFn::Unary(UnaryFn::Not)) => inverted(self.band(first, coords)?),
            PrimOp::Map(ScalarFn::Select) => {
                let [condition, then, otherwise] = node.inputs[..] else { return None };
                let (condition, then) = (self.band(condition, coords)?, self.band(then, coords)?);
                let is_false = self.graph.constant(unrepeated(self.graph, otherwise)).is_some_and(is_zero);
                is_false.then(|| condition.intersection(then))
            }
            _ => None,
        }
    }

    /// The integers at some coordinates of a tensor, if no value wraps around.
    fn affine(&mut self, tensor: TensorId, coords: &[Affine]) -> Option<Affine> {
        let dtype = self.graph.dtype(tensor);
        let value = self.unwrapped(tensor, coords).filter(|_| dtype.is_int())?;
        let (low, high) = value.bounds(self.extents)?;
        let bits = 8 * dtype.size_bytes() as u32 - u32::from(dtype.is_signed_int());
        let least = if dtype.is_signed_int() { -(1_i128 << bits) } else { 0 };
        (low >= least && high < 1 << bits).then_some(value)
    }

    /// The same, as if integers had no limits.
    fn unwrapped(&mut self, tensor: TensorId, coords: &[Affine]) -> Option<Affine> {
        if let Some(value) = self.graph.constant(tensor) {
            return self.constant_affine(value, coords);
        }
        let node = self.producer(tensor)?.clone();
        if let PrimOp::Iota { axis, .. } = node.op {
            return coords.get(axis).cloned();
        }
        let first = *node.inputs.first()?;
        if let Some(coords) = self.operand_coords(&node, coords) {
            return self.affine(first, &coords);
        }
        let PrimOp::Map(f) = node.op else { return None };
        let lhs = self.affine(first, coords)?;
        let zero = Affine::number(0, self.extents.len());
        match f {
            ScalarFn::Cast(_) => Some(lhs),
            ScalarFn::Unary(UnaryFn::Neg) => zero.plus(&lhs, -1),
            ScalarFn::Binary(f @ (BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul)) => {
                let rhs = self.affine(*node.inputs.get(1)?, coords)?;
                match (f, lhs.as_number(), rhs.as_number()) {
                    (BinaryFn::Add, ..) => lhs.plus(&rhs, 1),
                    (BinaryFn::Sub, ..) => lhs.plus(&rhs, -1),
                    (_, Some(times), _) => zero.plus(&rhs, times),
                    (_, None, Some(times)) => zero.plus(&lhs, times),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The coordinates that a primitive reads of its operand, if its result is the operand at other coordinates.
    fn operand_coords(&self, node: &PrimNode, coords: &[Affine]) -> Option<Vec<Affine>> {
        let shape = self.graph.shape(*node.inputs.first()?);
        let rank = self.extents.len();
        match &node.op {
            PrimOp::Broadcast { dims, .. } => {
                let coord = |(&dim, &extent): (&usize, &usize)| match extent {
                    1 => Some(Affine::number(0, rank)),
                    _ => coords.get(dim).cloned(),
                };
                dims.iter().zip(shape.dims()).map(coord).collect()
            }
            PrimOp::Transpose { perm } => (0..perm.len())
                .map(|dim| coords.get(perm.iter().position(|&from| from == dim)?).cloned())
                .collect(),
            PrimOp::Slice { starts, steps, .. } => {
                let coord = |((&start, &step), coord): ((&i64, &i64), &Affine)| {
                    Affine::number(start.into(), rank).plus(coord, step.into())
                };
                starts.iter().zip(steps).zip(coords).map(coord).collect()
            }
            PrimOp::Reshape { .. } => {
                let place = flattened(self.graph.shape(node.outputs[0]), coords, rank)?;
                self.unflattened(&place, shape)
            }
            _ => None,
        }
    }

    /// The coordinates of a place in row-major order; `None` if some index of the mask leaves a dimension for the next one.
    fn unflattened(&self, place: &Affine, shape: &Shape) -> Option<Vec<Affine>> {
        let strides = shape.strides();
        let mut rest = place.constant;
        let mut coords = Vec::with_capacity(shape.rank());
        for (&stride, &extent) in strides.iter().zip(shape.dims()) {
            let stride = stride.max(1) as i128;
            let constant = if extent == 1 { 0 } else { rest.div_euclid(stride) };
            rest -= constant * stride;
            coords.push(Affine::number(constant, self.extents.len()));
        }
        for (index, &coefficient) in
            place.coefficients.iter().enumerate().filter(|&(index, _)| self.extents[index] > 1)
        {
            if coefficient == 0 {
                continue;
            }
            let holds = |&dim: &usize| shape.dims()[dim] > 1 && strides[dim] as i128 <= coefficient;
            let dim = (0..shape.rank()).find(holds).filter(|&dim| coefficient % strides[dim] as i128 == 0)?;
            coords[dim].coefficients[index] = coefficient / strides[dim] as i128;
        }
        let is_within = |(coord, &extent): (&Affine, &usize)| {
            coord.bounds(self.extents).is_some_and(|(low, high)| low >= 0 && high < extent as i128)
        };
        (rest == 0 && coords.iter().zip(shape.dims()).all(is_within)).then_some(coords)
    }

    /// The band in which a comparison holds.
    fn compared(&self, f: CompareFn, lhs: &Affine, rhs: &Affine) -> Option<Band> {
        // As `difference <= 0`.
        let (difference, is_strict) = match f {
            CompareFn::Le | CompareFn::Lt => (lhs.plus(rhs, -1)?, f == CompareFn::Lt),
            CompareFn::Ge | CompareFn::Gt => (rhs.plus(lhs, -1)?, f == CompareFn::Gt),
            CompareFn::Eq | CompareFn::Ne => return None,
        };
        let [others @ .., row, column] = &difference.coefficients[..] else { return None };
        let is_of_distance = *column != 0 && row.checked_add(*column) == Some(0);
        if !is_of_distance || others.iter().any(|&coefficient| coefficient != 0) {
            return None;
        }
        // column * (column index - row index) <= -constant
        let bound = difference.constant.checked_add(i128::from(is_strict))?.checked_neg()?;
        let limit = i64::try_from(bound.div_euclid(column.abs())).ok()?;
        Some(match *column > 0 {
            true => Band { above: Some(limit), below: None },
            false => Band { above: None, below: Some(limit) },
        })
    }

    /// The band that stored booleans are at some coordinates, all compared.
    fn constant_band(&self, value: &Tensor, coords: &[Affine]) -> Option<Band> {
        let [others @ .., rows, columns] = self.extents else { return None };
        if value.shape().elems() > MAX_ELEMS || rows.checked_mul(*columns)? > MAX_ELEMS {
            return None;
        }
        let place = flattened(value.shape(), coords, self.extents.len())?;
        let [other_coefficients @ .., row_coefficient, column_coefficient] = &place.coefficients[..] else {
            return None;
        };
        if others.iter().zip(other_coefficients).any(|(&extent, &coefficient)| extent > 1 && coefficient != 0)
        {
            return None;
        }
        let bytes = value.bytes();
        let is_kept = |row: usize, column: usize| {
            let at = place.constant + row as i128 * row_coefficient + column as i128 * column_coefficient;
            usize::try_from(at).ok().and_then(|at| bytes.get(at)).map(|&byte| byte != 0)
        };
        let (last_row, last_column) = (*rows as i64 - 1, *columns as i64 - 1);
        let (mut nearest, mut farthest) = (i64::MAX, i64::MIN);
        for (row, column) in (0..*rows).flat_map(|row| (0..*columns).map(move |column| (row, column))) {
            if is_kept(row, column)? {
                let distance = column as i64 - row as i64;
                (nearest, farthest) = (nearest.min(distance), farthest.max(distance));
            }
        }
        if nearest > farthest {
            return None;
        }
        let band = Band {
            above: (farthest < last_column).then_some(farthest),
            below: (nearest > -last_row).then_some(-nearest),
        };
        let mut all = (0..*rows).flat_map(|row| (0..*columns).map(move |column| (row, column)));
        all.all(|(row, column)| is_kept(row, column) == Some(band.contains(row, column))).then_some(band)
    }

    /// Stored integers as an affine function, all compared.
    fn constant_affine(&self, value: &Tensor, coords: &[Affine]) -> Option<Affine> {
        let shape = value.shape();
        if shape.elems() == 0 || shape.elems() > MAX_ELEMS {
            return None;
        }
        let values = value.to_i64()?;
        let strides = shape.strides();
        let first = i128::from(values[0]);
        let step = |(&extent, &stride): (&usize, &usize)| match extent {
            1 => 0,
            _ => i128::from(values[stride]) - first,
        };
        let steps: Vec<i128> = shape.dims().iter().zip(&strides).map(step).collect();
        let stated = |at: usize| {
            let index = strides
                .iter()
                .zip(shape.dims())
                .map(|(&stride, &extent)| (at / stride.max(1) % extent) as i128);
            first + index.zip(&steps).map(|(index, step)| index * step).sum::<i128>()
        };
        if values.iter().enumerate().any(|(at, &value)| stated(at) != i128::from(value)) {
            return None;
        }
        let mut result = Affine::number(first, self.extents.len());
        for (coord, step) in coords.iter().zip(steps) {
            result = result.plus(coord, step)?;
        }
        Some(result)
    }
}

/// The place in row-major order of an element at some coordinates.
fn flattened(shape: &Shape, coords: &[Affine], rank: usize) -> Option<Affine> {
    let mut place = Affine::number(0, rank);
    for (coord, stride) in coords.iter().zip(shape.strides()) {
        place = place.plus(coord, stride as i128)?;
    }
    Some(place)
}

/// What a band with one limit leaves out.
fn inverted(band: Band) -> Option<Band> {
    match band {
        Band { above: Some(above), below: None } => {
            Some(Band { above: None, below: Some(above.checked_add(1)?.checked_neg()?) })
        }
        Band { above: None, below: Some(below) } => {
            Some(Band { above: Some(below.checked_neg()?.checked_sub(1)?), below: None })
        }
        _ => None,
    }
}

/// Whether all elements of a tensor are zero.
fn is_zero(value: &Tensor) -> bool {
    value.bytes().iter().all(|&byte| byte == 0)
}
