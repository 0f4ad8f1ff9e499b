"""Fourier transforms, of finite elements as infinities reach others than their own sums in fast ones, and windows."""

import numpy as np

from ..graph import Value
from .registry import operator


@operator("DFT", since=17)
def fourier(b, op):
    complex_input = b.chance(0.4)
    shape = (b.int(1, 2), b.choice([2, 3, 5, 8, 12, 17]), *([b.int(1, 4)] if b.chance(0.4) else []))
    x = b.tensor(("float32",), None, -20, 20, where=Value.finite, shape=(*shape, 2 if complex_input else 1))
    axis = b.int(1, len(shape) - 1)
    onesided, inverse = (b.choice([None, 1]), None) if not complex_input else (None, b.choice([None, 1]))
    length = b.constant(np.array(b.int(1, shape[axis] + 3), np.int64)) if b.chance(0.3) else None
    if b.opset >= 20:
        b.node(op, [x, length, b.constant(np.array(axis, np.int64))], onesided=onesided, inverse=inverse)
    else:
        b.node(op, [x, length], axis=axis, onesided=onesided, inverse=inverse)


@operator("STFT", since=17)
def short_time_fourier(b, op):
    length, frame, step = b.int(12, 40), b.choice([4, 5, 8]), b.int(1, 6)
    x = b.tensor(("float32",), None, -20, 20, where=Value.finite, shape=(b.int(1, 2), length, 1))
    window = b.new((frame,), "float32", 0, 1, constant=True) if b.chance(0.6) else None
    b.node(
        op,
        [x, b.constant(np.array(step, np.int64)), window, b.constant(np.array(frame, np.int64))],
        onesided=b.choice([None, 0, 1]),
    )


@operator("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(b, op):
    size = b.int(3, 20)
    w = b.node(op, [b.constant(np.array(size, b.choice(["int64", "int32"])))], periodic=b.choice([None, 0, 1]))
    x = b.tensor(("float32",), (1, 3), -50, 50, where=lambda v: v.shape[-1] in (1, size), new_shape=(b.int(1, 3), size))
    b.node("Mul", [x, w])


@operator("MelWeightMatrix", since=17)
def mel(b, op):
    x = [b.constant(np.array(v, np.int64)) for v in (b.int(2, 8), b.choice([8, 16]), b.choice([8000, 16000]))]
    edges = [b.constant(np.array(v, np.float32)) for v in (b.choice([0.0, 100.0]), b.choice([2000.0, 4000.0]))]
    b.node(op, [*x, *edges])
