"""Normalisations."""

import numpy as np

from ..graph import Reject
from .registry import operator


def channels_first(b, least=2, most=5):
    return b.float((least, most), nonempty=not b.special)


@operator("LayerNormalization", since=17, weight=2)
def layer(b, op):
    x = b.float((1, 4))
    axis = b.axis(x.rank)
    shape = x.shape[axis:]
    if b.chance(0.2):
        shape = shape[b.int(0, len(shape)) :] or (1,)
    scale = b.new(shape, x.dtype, 0.5, 1.5)
    b.node(
        op,
        [x, scale, b.new(shape, x.dtype, -1, 1) if b.chance(0.6) else None],
        axis=axis,
        epsilon=b.choice([None, 1e-3, 0.1]),
    )


@operator("InstanceNormalization")
def instance(b, op):
    x = channels_first(b, 3)
    # Of no elements in f16 ONNX Runtime's kernel dies by a signal.
    if x.dtype == "float16" and not x.array.size:
        raise Reject
    parameters = [b.new((x.shape[1],), x.dtype, -1.5, 1.5) for _ in range(2)]
    b.node(op, [x, *parameters], epsilon=b.choice([None, 1e-3, 0.1]))


@operator("GroupNormalization", since=21)
def group(b, op):
    x = channels_first(b, 3)
    # Mean and variance are computed in f32 by default (`stash_type`), where Orchestrion computes them in f64.
    if x.dtype == "float64":
        raise Reject
    groups = b.choice([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0] or [1])
    parameters = [b.new((x.shape[1],), x.dtype, -1.5, 1.5) for _ in range(2)]
    b.node(op, [x, *parameters], num_groups=groups, epsilon=b.choice([None, 1e-3, 0.1]))


@operator("BatchNormalization")
def batch(b, op):
    x = channels_first(b)
    shape = (x.shape[1],)
    parameters = [b.new(shape, x.dtype, -1.5, 1.5) for _ in range(3)] + [b.new(shape, x.dtype, 0.2, 2)]
    if b.opset >= 14 and b.chance(0.1):
        b.node(op, [x, *parameters], outputs=3, training_mode=1, momentum=b.uniform(0.5, 0.95))
    else:
        b.node(op, [x, *parameters], epsilon=b.choice([None, 1e-3, 0.1]))


@operator("LRN")
def local_response(b, op):
    x = b.tensor(("float32",), (3, 4))
    b.node(
        op,
        [x],
        size=b.choice([1, 3, 5]),
        alpha=b.uniform(0.001, 0.5),
        beta=b.uniform(0.3, 1.0),
        bias=b.uniform(0.5, 2.0),
    )


@operator("LpNormalization")
def lp(b, op):
    x = b.float((1, 4), 0.05)
    b.node(op, [x], axis=b.axis(x.rank), p=b.choice([None, 1, 2]))


@operator("MeanVarianceNormalization")
def mean_variance(b, op):
    x = b.float((2, 4), nonempty=True)
    axes = b.axes(x.rank)
    if np.prod([x.shape[a] for a in axes]) < 3:
        x = b.new((2, 3, 4, 5), x.dtype)
        axes = [0, 2, 3]
    b.node(op, [x], axes=axes if b.chance(0.7) or x.rank != 4 else None)
