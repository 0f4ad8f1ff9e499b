"""Integers that stand for floats."""

import numpy as np

from ..graph import Value
from .registry import operator


def scale(b, shape=(), dtype="float32"):
    return b.constant(np.asarray(b.rng.uniform(0.02, 0.3, shape)).astype(dtype))


def zero_point(b, dtype, shape=()):
    low, high = (0, 40) if dtype.startswith("uint") else (-20, 20)
    return b.constant(np.asarray(b.rng.integers(low, high, shape)).astype(dtype))


@operator("QuantizeLinear", weight=1.5)
def quantise(b, op):
    x = b.tensor(("float32",), (0, 4), -1e3, 1e3, where=lambda v: not np.isnan(v.array).any())
    dtype = b.choice(["int8", "uint8"])
    axis = b.axis(x.rank) if x.rank and b.chance(0.5) else None
    shape = () if axis is None else (x.shape[axis],)
    b.node(op, [x, scale(b, shape), zero_point(b, dtype, shape)], axis=axis)


@operator("DequantizeLinear", weight=1.5)
def dequantise(b, op):
    x = b.tensor(("int8", "uint8"), (0, 4))
    axis = b.axis(x.rank) if x.rank and b.chance(0.5) else None
    shape = () if axis is None else (x.shape[axis],)
    b.node(op, [x, scale(b, shape), zero_point(b, x.dtype, shape) if b.chance(0.7) else None], axis=axis)


@operator("DynamicQuantizeLinear")
def dynamic_quantise(b, op):
    """Of finite elements: the integer of infinity over infinity is not defined."""
    b.node(op, [b.tensor(("float32",), (1, 4), nonempty=True, where=Value.finite)], outputs=3)


@operator("MatMulInteger")
def matmul_integer(b, op):
    x = b.tensor(("uint8", "int8"), (2, 3))
    y = b.new((x.shape[-1], b.choice([1, 3, 8, 17])), b.choice(["int8", "uint8"]))
    zeros = [zero_point(b, v.dtype) if b.chance(0.6) else None for v in (x, y)]
    b.node(op, [x, y, *zeros])


@operator("QLinearMatMul")
def qlinear_matmul(b, op):
    x = b.tensor(("uint8", "int8"), (2, 3))
    y = b.new((x.shape[-1], b.choice([1, 3, 8, 17])), x.dtype)
    b.node(
        op, [x, scale(b), zero_point(b, x.dtype), y, scale(b), zero_point(b, y.dtype), scale(b), zero_point(b, x.dtype)]
    )


def small_image(b):
    return b.tensor(
        ("uint8", "int8"),
        4,
        nonempty=True,
        where=lambda v: v.shape[1] <= 8,
        new_shape=(1, b.int(1, 4), b.int(3, 7), b.int(3, 7)),
    )


@operator("ConvInteger", "QLinearConv")
def conv_integer(b, op):
    x = small_image(b)
    kernel = [b.int(1, min(3, s)) for s in x.shape[2:]]
    weight = b.new((b.int(1, 4), x.shape[1], *kernel), b.choice(["int8", "uint8"]) if op == "ConvInteger" else x.dtype)
    more = {"strides": b.choice([None, [2, 1]]), "pads": b.choice([None, [k - 1 for k in kernel] * 2])}
    if op == "ConvInteger":
        b.node(
            op,
            [
                x,
                weight,
                zero_point(b, x.dtype) if b.chance(0.6) else None,
                zero_point(b, weight.dtype) if b.chance(0.4) else None,
            ],
            **more
        )
    else:
        per_channel = (weight.shape[0],) if b.chance(0.4) else ()
        bias = b.constant(b.rng.integers(-50, 50, weight.shape[0]).astype(np.int32)) if b.chance(0.5) else None
        b.node(
            op,
            [
                x,
                scale(b),
                zero_point(b, x.dtype),
                weight,
                scale(b, per_channel),
                b.constant(np.zeros(per_channel, weight.dtype)),
                scale(b),
                zero_point(b, x.dtype),
                bias,
            ],
            **more
        )
