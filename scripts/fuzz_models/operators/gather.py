"""Operators that read or write by index."""

import numpy as np

from ..graph import FLOATS, INTS, Reject
from .registry import operator


def data(b, least=1, most=4):
    return (
        b.float((least, most), nonempty=True)
        if b.chance(0.75)
        else b.tensor(INTS + ("uint8", "bool"), (least, most), nonempty=True)
    )


def indices(b, shape, size, dtypes=("int64", "int64", "int32")):
    """Indices into an axis of `size` elements, sometimes counted from the end."""
    return b.new(shape, b.choice(dtypes), -size if b.chance(0.5) else 0, size - 1)


@operator("Gather", weight=2)
def gather(b, op):
    x = data(b)
    axis = b.axis(x.rank)
    b.node(op, [x, indices(b, b.shape(b.choice([0, 1, 1, 2]), 12), x.shape[axis])], axis=axis)


@operator("GatherElements")
def gather_elements(b, op):
    x = data(b)
    axis = b.axis(x.rank)
    shape = [b.int(1, d) for d in x.shape]
    shape[axis] = b.int(1, 2 * x.shape[axis])
    b.node(op, [x, indices(b, shape, x.shape[axis])], axis=axis)


def tuples(b, sizes, count):
    """`count` tuples of indices, one below each of `sizes`."""
    return np.stack([b.rng.integers(-s if b.chance(0.5) else 0, s, count) for s in sizes], -1).astype(np.int64)


@operator("GatherND")
def gather_nd(b, op):
    x = data(b)
    batch = b.int(0, x.rank - 1) if b.chance(0.3) else 0
    depth = b.int(1, x.rank - batch)
    shape = (*x.shape[:batch], *b.shape(b.int(1, 2), 8))
    index = tuples(b, x.shape[batch : batch + depth], shape)
    b.node(op, [x, b.constant(index)], batch_dims=batch or None)


def reduction(b):
    """How an update joins what is there; from operator sets 16 and 18 on."""
    names = [None, None, "add", "mul"] if b.opset >= 16 else [None]
    return b.choice(names + (["max", "min"] if b.opset >= 18 else []))


def comparable(updates, x, how):
    """The updates; no NaN takes part in a minimum or maximum, which ONNX Runtime would leave out."""
    if how in ("min", "max") and not (updates.finite() and x.finite()):
        raise Reject
    return updates


@operator("ScatterElements")
def scatter_elements(b, op):
    x = b.float((1, 4), nonempty=True)
    axis, how = b.axis(x.rank), reduction(b)
    shape = [b.int(1, d) for d in x.shape]
    index = np.argsort(b.rng.random(x.shape), axis)[tuple(slice(d) for d in shape)].astype(np.int64)
    if how and b.chance(0.7):
        index = b.rng.integers(0, x.shape[axis], shape)
    b.node(op, [x, b.constant(index), comparable(b.new(shape, x.dtype), x, how)], axis=axis, reduction=how)


@operator("ScatterND")
def scatter_nd(b, op):
    x = b.float((1, 4), nonempty=True)
    depth, how = b.int(1, x.rank), reduction(b)
    places = int(np.prod(x.shape[:depth]))
    count = b.int(1, min(places, 6))
    flat = b.rng.permutation(places)[:count] if not how else b.rng.integers(0, places, count)
    index = np.stack(np.unravel_index(flat, x.shape[:depth]), -1).astype(np.int64)
    updates = comparable(b.new((count, *x.shape[depth:]), x.dtype), x, how)
    b.node(op, [x, b.constant(index), updates], reduction=how)


@operator("Compress")
def compress(b, op):
    x = data(b)
    axis = b.axis(x.rank) if b.chance(0.7) else None
    size = x.array.size if axis is None else x.shape[axis]
    condition = b.rng.random(b.int(1, size)) < 0.6
    condition[0] = True
    b.node(op, [x, b.constant(condition)], axis=axis)


@operator("NonZero")
def non_zero(b, op):
    array = b.rng.integers(0, 2, b.shape(b.int(1, 3), 40)).astype(np.float32)
    if not array.any():
        array = np.ones_like(array)
    b.node(op, [b.constant(array)])


@operator("OneHot")
def one_hot(b, op):
    depth = b.int(1, 9)
    index = b.tensor(("int64",), (0, 3), -depth, depth - 1)
    values = b.constant(np.array(b.choice([[0, 1], [-2, 5]]), b.choice(["float32", "int64"])))
    rank = index.rank + 1
    b.node(op, [index, b.constant(np.array(depth, np.int64)), values], axis=b.int(-rank, rank - 1))


@operator("ReverseSequence")
def reverse_sequence(b, op):
    x = b.float((2, 4), nonempty=True)
    time = b.int(0, 1)
    lengths = b.rng.integers(1, x.shape[time] + 1, x.shape[1 - time]).astype(np.int64)
    b.node(op, [x, b.constant(lengths)], time_axis=time, batch_axis=1 - time)


@operator("EyeLike")
def eye_like(b, op):
    x = b.tensor(FLOATS[:1] + INTS, 2)
    b.node(op, [x], k=b.int(-3, 3) if b.chance(0.6) else None, dtype=b.choice([None, 1, 7]))


@operator("Trilu", since=14)
def trilu(b, op):
    x = b.float((2, 4))
    b.node(
        op, [x, b.constant(np.array(b.int(-3, 4), np.int64)) if b.chance(0.6) else None], upper=b.choice([None, 0, 1])
    )
