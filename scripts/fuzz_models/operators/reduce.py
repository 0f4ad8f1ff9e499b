"""Reductions, scans along an axis, and the softmax family."""

import numpy as np

from ..graph import INTS
from .registry import operator

REDUCTION_RANGES = {"ReduceLogSum": (0.1, 20), "ReduceProd": (-1.5, 1.5), "ReduceLogSumExp": (-8, 8)}


@operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", weight=2)
@operator("ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduction(b, op):
    ints = op in ("ReduceSum", "ReduceMax", "ReduceMin") and b.chance(0.2)
    x = b.tensor(INTS) if ints else b.float(None, *REDUCTION_RANGES.get(op, (None, None)))
    axes = b.axes(x.rank) if b.chance(0.85) else None
    keep = b.choice([None, 0, 1])
    if op == "ReduceSum" or b.opset >= 18:
        none_means_none = int(axes is None and b.chance(0.3)) or None
        b.node(op, [x, b.ints(axes) if axes else None], keepdims=keep, noop_with_empty_axes=none_means_none)
    else:
        b.node(op, [x], axes=axes or None, keepdims=keep)


@operator("ArgMax", "ArgMin")
def arg(b, op):
    x = b.float((1, 5), nonempty=True)
    b.node(op, [x], axis=b.axis(x.rank), keepdims=b.choice([None, 0, 1]), select_last_index=b.choice([None, 0, 1]))


@operator("TopK")
def top_k(b, op):
    x = b.float((1, 4), nonempty=True) if b.chance(0.8) else b.tensor(INTS, (1, 4), nonempty=True)
    axis = b.axis(x.rank)
    b.node(op, [x, b.ints([b.int(1, x.shape[axis])])], outputs=2, axis=axis, largest=b.choice([None, 0, 1]), sorted=1)


@operator("CumSum")
def cumulative(b, op):
    x = b.float((1, 4)) if b.chance(0.8) else b.tensor(INTS, (1, 4))
    axis = b.constant(np.array(b.axis(x.rank), b.choice(INTS)))
    b.node(op, [x, axis], exclusive=b.choice([None, 0, 1]), reverse=b.choice([None, 0, 1]))


@operator("Softmax", weight=2)
@operator("LogSoftmax", "Hardmax")
def softmax(b, op):
    x = b.float((1, 5), -60, 60)
    b.node(op, [x], axis=b.axis(x.rank) if b.chance(0.8) else None)


@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(b, op):
    x = b.tensor(("float32",), (2, 4), -20, 20, nonempty=True)
    classes = x.shape[1]
    target = b.new((x.shape[0], *x.shape[2:]), b.choice(INTS), 0, classes - 1)
    weight = b.new((classes,), x.dtype, 0.2, 2) if b.chance(0.4) else None
    b.node(
        op,
        [x, target, weight],
        reduction=b.choice(["none", "mean", "sum"]),
        ignore_index=b.int(0, classes) if b.chance(0.3) else None,
    )
