"""Sums over channels and axes, normalisations, and determinants."""

import numpy as np
from onnx.reference.op_run import OpRun


class LRN(OpRun):
    """The evaluator takes batches for channels."""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        squares, before = x.astype(np.float64) ** 2, (size - 1) // 2
        channels = range(x.shape[1])
        sums = [squares[:, max(0, c - before) : c + size - before].sum(1, keepdims=True) for c in channels]
        sums = np.concatenate(sums, 1) if sums else squares
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


class BatchNormalization(OpRun):
    """The evaluator trains in operator sets before 14."""

    def _run(self, x, scale, bias, mean, variance, epsilon=None, momentum=None, training_mode=None, **_):
        channels = lambda array: array.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))  # noqa: E731
        wide, axes = x.astype(np.float64), tuple(a for a in range(x.ndim) if a != 1)
        running = (mean, variance)
        if training_mode:
            mean, variance = wide.mean(axes), wide.var(axes)
            running = [
                (old * momentum + new * (1 - momentum)).astype(old.dtype)
                for old, new in zip(running, (mean, variance))
            ]
        normal = (wide - channels(mean)) / np.sqrt(channels(variance) + epsilon)
        y = (normal * channels(scale) + channels(bias)).astype(x.dtype)
        return (y, *running)[: len(self.onnx_node.output)]


class Det(OpRun):
    """The evaluator's result has the type of a scalar."""

    def _run(self, x):
        return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)


class ReduceLogSumExp(OpRun):
    """The evaluator's result of a scalar is none of its arrays."""

    def _run(self, x, axes=None, keepdims=1, noop_with_empty_axes=0):
        if axes is None or not np.size(axes):
            if noop_with_empty_axes:
                return (x,)
            axes = range(x.ndim)
        axes, keepdims = tuple(int(a) for a in axes), bool(keepdims)
        wide = x.astype(np.float64)
        largest = wide.max(axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, 0)
        result = np.log(np.exp(wide - shift).sum(axis=axes, keepdims=True)) + shift
        return (np.asarray(result if keepdims else np.squeeze(result, axes)).astype(x.dtype),)
