"""Operators that move elements: shapes, orders, pieces and joins."""

import numpy as np
from onnx import helper, numpy_helper

from ..graph import FLOATS, INTS, Reject
from .registry import operator


def anything(b, least=0, most=5, **more):
    return (
        b.float((least, most), **more)
        if b.chance(0.75)
        else b.tensor(INTS + ("bool", "uint8", "int8"), (least, most), **more)
    )


def factors(b, size):
    """A shape of `size` elements."""
    shape = []
    while size > 1 and len(shape) < 4:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(b.choice(divisors))
        size //= shape[-1]
    return shape + [size] if size > 1 or b.chance(0.3) else shape


@operator("Reshape", weight=2)
def reshape(b, op):
    x = anything(b, nonempty=True)
    shape = factors(b, x.array.size)
    if shape and b.chance(0.4):
        shape[b.int(0, len(shape) - 1)] = -1
    b.node(op, [x, b.ints(shape)])


@operator("Transpose", weight=2)
def transpose(b, op):
    x = anything(b)
    b.node(op, [x], perm=b.rng.permutation(x.rank).tolist() if x.rank and b.chance(0.85) else None)


@operator("Flatten")
def flatten(b, op):
    x = anything(b)
    b.node(op, [x], axis=b.int(-x.rank, x.rank))


@operator("Squeeze")
def squeeze(b, op):
    x = anything(b, where=lambda v: 1 in v.shape, new_shape=(1, b.int(1, 7), 1))
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    b.node(op, [x, b.ints(ones[: b.int(1, len(ones))]) if b.chance(0.8) else None])


@operator("Unsqueeze")
def unsqueeze(b, op):
    x = anything(b, 0, 4)
    count = b.int(1, min(2, 5 - x.rank))
    b.node(op, [x, b.ints(b.rng.permutation(x.rank + count)[:count] - (x.rank + count) * b.int(0, 1))])


@operator("Concat", weight=2)
def concat(b, op):
    x = anything(b, 1, 5)
    axis = b.axis(x.rank)
    at = axis % x.rank

    def fits(v):
        return all(a == c for i, (a, c) in enumerate(zip(v.shape, x.shape)) if i != at)

    others = []
    for _ in range(b.int(0, 3)):
        shape = list(x.shape)
        shape[at] = b.int(1, 5)
        others.append(b.tensor((x.dtype,), x.rank, where=fits, new_shape=shape))
    b.node(op, [x, *others], axis=axis)


@operator("Split", weight=1.5)
def split(b, op):
    x = anything(b, 1, 5, nonempty=True)
    axis = b.axis(x.rank)
    size = x.shape[axis]
    count = b.int(1, min(4, size))
    if b.chance(0.5):
        cuts = sorted(b.rng.permutation(size - 1)[: count - 1] + 1) if size > 1 else []
        parts = np.diff([0, *cuts, size])
        b.node(op, [x, b.ints(parts)], outputs=len(parts), axis=axis)
    elif b.opset >= 18:
        if -(-size // count) * (count - 1) >= size:
            raise Reject
        b.node(op, [x], outputs=count, axis=axis, num_outputs=count)
    else:
        if size % count:
            raise Reject
        b.node(op, [x], outputs=count, axis=axis)


@operator("Slice", weight=2)
def slices(b, op):
    x = anything(b, 1, 5, nonempty=True)
    axes = b.axes(x.rank)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        step = b.choice([1, 1, 1, 2, 3, -1, -2])
        first, last = sorted([b.int(0, size - 1), b.int(0, size - 1)])
        start, end = (first, last + 1) if step > 0 else (last, first - 1)
        if end == -1:
            end = b.choice([-size - 1, np.iinfo(np.int64).min])
        elif step > 0 and b.chance(0.2):
            end = b.choice([size + 3, np.iinfo(np.int64).max])
        starts.append(start - size if b.chance(0.2) else start)
        ends.append(end)
        steps.append(step)
    whole = axes == list(range(x.rank)) and b.chance(0.4)
    unit = all(s == 1 for s in steps) and b.chance(0.5)
    b.node(
        op, [x, b.ints(starts), b.ints(ends), None if whole and unit else b.ints(axes), None if unit else b.ints(steps)]
    )


@operator("Pad", weight=1.5)
def pad(b, op):
    x = b.float((1, 5), nonempty=True) if b.chance(0.85) else b.tensor(INTS, (1, 5), nonempty=True)
    mode = b.choice(["constant", "reflect", "edge"] + ["wrap"] * (b.opset >= 19))
    axes = list(range(x.rank)) if b.opset < 18 or b.chance(0.6) else b.axes(x.rank)
    most = [3 if mode in ("constant", "edge") else x.shape[a] - 1 for a in axes]
    pads = [b.int(0, min(m, 3)) if b.chance(0.6) else 0 for m in most * 2]
    if mode == "constant" and b.chance(0.2):
        at = b.int(0, len(axes) - 1)
        pads[at] = -b.int(0, x.shape[axes[at]] - 1)
    value = b.constant(np.array(b.int(-2, 2), x.dtype)) if mode == "constant" and b.chance(0.6) else None
    whole = axes == list(range(x.rank))
    b.node(
        op,
        [x, b.ints(pads), value, None if whole else b.ints(axes)],
        mode=mode if mode != "constant" or b.chance(0.5) else None,
    )


@operator("Tile")
def tile(b, op):
    x = anything(b, 1, 4)
    b.node(op, [x, b.ints([b.choice([1, 1, 2, 3]) for _ in x.shape])])


@operator("Expand", weight=1.5)
def expand(b, op):
    x = anything(b, 0, 4)
    shape = [b.choice([2, 3, 5]) if d == 1 and b.chance(0.7) else b.choice([d, 1]) for d in x.shape]
    if b.chance(0.4):
        shape = [b.int(1, 4), *shape]
    b.node(op, [x, b.ints(shape)])


@operator("DepthToSpace", "SpaceToDepth")
def blocks(b, op):
    size = b.int(1, 3)
    if op == "DepthToSpace":
        x = b.float(
            4,
            nonempty=True,
            where=lambda v: v.shape[1] % (size * size) == 0,
            new_shape=(b.int(1, 2), size * size * b.int(1, 3), b.int(1, 5), b.int(1, 5)),
        )
        b.node(op, [x], blocksize=size, mode=b.choice([None, "DCR", "CRD"]))
    else:
        x = b.float(
            4,
            nonempty=True,
            where=lambda v: v.shape[2] % size == v.shape[3] % size == 0,
            new_shape=(b.int(1, 2), b.int(1, 4), size * b.int(1, 4), size * b.int(1, 4)),
        )
        b.node(op, [x], blocksize=size)


@operator("CenterCropPad", since=18)
def center_crop_pad(b, op):
    x = b.float((1, 4), nonempty=True)
    axes = b.axes(x.rank)
    whole = len(axes) == x.rank
    b.node(
        op,
        [x, b.ints([b.int(1, x.shape[a] + 3) for a in axes])],
        axes=None if whole and all(a >= 0 for a in axes) else axes,
    )


@operator("Shape")
def shape(b, op):
    x = anything(b, 1, 5)
    more = {}
    if b.opset >= 15 and b.chance(0.5):
        start = b.int(0, x.rank - 1)
        more = {"start": start, "end": b.choice([None, x.rank, start + 1])}
    b.node(op, [x], **more)


@operator("Size")
def size(b, op):
    b.node(op, [anything(b)])


@operator("ConstantOfShape")
def constant_of_shape(b, op):
    value = np.array([b.int(-3, 3)], b.choice(["float32", "int64", "float32"]))
    dims = [b.choice([1, 2, 3, 5, 7]) for _ in range(b.int(0, 3))]
    b.node(op, [b.ints(dims)], value=numpy_helper.from_array(value) if b.chance(0.8) else None)


@operator("ReshapeToShapeOf")
def reshape_to_shape(b, _):
    """`Shape` of one value decides the shape of another one: a chain that has to be folded."""
    x = b.float((1, 4), nonempty=True)
    like = b.node("Shape", [x])
    flat = b.node("Reshape", [x, b.ints([-1])])
    b.node("Reshape", [b.node("Neg", [flat]), like])


@operator("Range")
def arange(b, op):
    dtype = b.choice(["int64", "int32", "float32"])
    start, delta, count = b.int(-5, 5), b.choice([1, 2, 3, -1, -2]), b.int(1, 12)
    b.node(op, [b.constant(np.array(v, dtype)) for v in (start, start + delta * count, delta)])


@operator("SplitToSequence", "SequenceConstruct", "SequenceInsert")
def sequences(b, op):
    """A sequence is made and taken apart again."""
    x = b.float((2, 4), nonempty=True)
    sequence, out = b.name("s"), b.name("t")
    inputs = [x]
    if op == "SplitToSequence":
        axis = b.axis(x.rank)
        nodes = [helper.make_node(op, [x.name], [sequence], axis=axis, keepdims=b.int(0, 1))]
        count = x.shape[axis]
    else:
        y = b.tensor((x.dtype,), x.rank, shape=x.shape)
        inputs.append(y)
        nodes = [helper.make_node("SequenceConstruct", [x.name, y.name], [sequence])]
        count = 2
        if op == "SequenceInsert":
            longer = b.name("s")
            position = b.constant(np.array(b.int(-2, 2), np.int64))
            inputs.append(position)
            nodes.append(helper.make_node(op, [sequence, y.name, position.name], [longer]))
            sequence, count = longer, 3
    if b.chance(0.5):
        nodes.append(
            helper.make_node("ConcatFromSequence", [sequence], [out], axis=b.int(0, x.rank - 2), new_axis=b.int(0, 1))
        )
    else:
        position = b.constant(np.array(b.int(-count, count - 1), np.int64))
        inputs.append(position)
        nodes.append(helper.make_node("SequenceAt", [sequence, position.name], [out]))
    b.emit(nodes, inputs, [out])


@operator("ConcatFromSequence", "SequenceAt")
def more_sequences(b, op):
    sequences(b, b.choice(["SplitToSequence", "SequenceConstruct"]))


@operator("MixedTypes")
def mixed(b, _):
    """One value in two float types, joined again: casts in the middle of a graph."""
    x = b.tensor(FLOATS)
    to = b.choice([1, 10, 11])
    y = b.node("Cast", [x], to=to)
    b.node("Add", [y, b.like(y)])
