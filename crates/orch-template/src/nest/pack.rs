//! Constants laid out for the vector axis: a depthwise convolution's weights `[c, 1, kh, kw]` are read in vectors along
//! `c`, so they are packed as `[kh, kw, c]` at compile time.

use super::flat::Nest;
use orch_compute::block::Axis;
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, VarId};
use orch_thread::kernel::{Binding, PackedConstant};
use orch_thread::program::{Buffer, Scope};

/// Largest ratio of a packed constant's elements to its source's.
const MAX_GROWTH: usize = 2;

/// The offset at which a constant is read: `first + sum of stride * axis`.
struct Access {
    /// Element offset where all axes are 0.
    first: usize,
    /// Axes other than the vector axis, with their strides.
    others: Vec<(Axis, usize)>,
    /// The stride of the vector axis, more than 1.
    stride: usize,
}

/// Replaces strided loads of constants along the vector axis by contiguous loads of packed ones.
pub(crate) fn pack_constants(nest: &mut Nest, vector: &Axis) {
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(super::flat::NestStage::roots).collect();
    for id in nest.program.exprs.reachable(&roots) {
        let Expr::Load { buffer, offset, mask: None, .. } = *nest.program.exprs.get(id) else { continue };
        if !nest.constants.contains(&buffer) {
            continue;
        }
        let Some(access) = access(nest, buffer, offset, vector) else { continue };
        let packed = pack(nest, buffer, &access, vector);
        let mut stages = std::mem::take(&mut nest.stages);
        for stage in &mut stages {
            stage.map_roots(|root| nest.replace(root, &[(id, packed)]));
        }
        nest.stages = stages;
    }
}

/// The access at an offset, if packing makes it contiguous: the offset is linear in the axes with non-negative strides,
/// that of the vector axis is more than 1, and the packed constant is within [`MAX_GROWTH`].
fn access(nest: &mut Nest, buffer: BufferId, offset: ExprId, vector: &Axis) -> Option<Access> {
    let axes = nest.axes.clone();
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let form = simplifier.linear(exprs, offset);
    let mut access =
        Access { first: usize::try_from(form.constant_term()).ok()?, others: Vec::new(), stride: 0 };
    for &(atom, coefficient) in form.terms() {
        let Expr::Var(var) = *exprs.get(atom) else { return None };
        let axis = axes.iter().find(|axis| axis.var == var)?;
        let stride = usize::try_from(coefficient).ok()?;
        if axis == vector {
            access.stride = stride;
        } else {
            access.others.push((axis.clone(), stride));
        }
    }
    let elems: usize = access.others.iter().map(|(axis, _)| axis.extent).product::<usize>() * vector.extent;
    let fits = elems <= MAX_GROWTH * nest.program.buffer(buffer).elems;
    (access.stride > 1 && fits).then_some(access)
}

/// Adds the packed constant `[others, vector]`, unless the nest has it already, and returns the load from it.
fn pack(nest: &mut Nest, buffer: BufferId, access: &Access, vector: &Axis) -> ExprId {
    let mut k_offsets = vec![access.first];
    for (axis, stride) in &access.others {
        let along = |first: usize| (0..axis.extent).map(move |value| first + value * stride);
        k_offsets = k_offsets.into_iter().flat_map(along).collect();
    }
    let dtype = nest.program.buffer(buffer).dtype;
    let constant = PackedConstant {
        arg: ArgId::new(buffer.index()),
        dtype,
        width: vector.extent,
        group: 1,
        k_extent: k_offsets.len(),
        batch_offsets: vec![0],
        k_offsets,
        column_offsets: (0..vector.extent).map(|value| value * access.stride).collect(),
    };
    let known = nest.bindings.iter().position(|binding| *binding == Binding::Packed(constant.clone()));
    let packed = known.map_or_else(
        || {
            let name = format!("packed{}", buffer.index());
            let elems = constant.elems();
            nest.bindings.push(Binding::Packed(constant));
            nest.program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Constant })
        },
        BufferId::new,
    );
    // [others, vector]
    let mut offset = nest.program.exprs.index(0);
    let others = access.others.iter().map(|(axis, _)| (axis.var, axis.extent));
    for (var, extent) in others.chain([(vector.var, vector.extent)]).collect::<Vec<(VarId, usize)>>() {
        let exprs = &mut nest.program.exprs;
        let value = exprs.var(var);
        let scaled = exprs.mul_const(offset, extent as i64);
        offset = exprs.add2(scaled, value);
    }
    let offset = nest.simplify(offset);
    nest.program.exprs.load(packed, offset, 1, None)
}
