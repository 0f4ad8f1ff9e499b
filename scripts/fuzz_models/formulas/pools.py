"""Pools of any rank, dilation and padding."""

import numpy as np
from onnx.reference.op_run import OpRun


def _positions(extent, kernel, stride, dilation, pads, auto_pad, ceil_mode):
    """What each window reads along one dimension, [windows, kernel]; positions outside are padding."""
    reach = (kernel - 1) * dilation + 1
    low, high = pads
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-extent // stride)
        total = max((count - 1) * stride + reach - extent, 0)
        low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    else:
        if auto_pad == "VALID":
            low = high = 0
        spare = extent + low + high - reach
        count = spare // stride + 1
        # A last window that is not whole has to begin before the padding at the end.
        if ceil_mode and spare % stride and count * stride < extent + low:
            count += 1
    return np.arange(count)[:, None] * stride - low + np.arange(kernel) * dilation


def _windows(x, fill, kernel_shape, strides=None, dilations=None, pads=None, auto_pad=None, ceil_mode=None):
    """The elements that each window reads, [n, c, windows .., elements], and their positions in a plane, -1 outside."""
    rank = x.ndim - 2
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    flat, inside = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for d in range(rank):
        at = _positions(
            x.shape[2 + d], kernel_shape[d], strides[d], dilations[d], (pads[d], pads[rank + d]), auto_pad, ceil_mode
        )
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = at.shape
        at = at.reshape(shape)
        flat = flat * x.shape[2 + d] + at
        inside = inside & (at >= 0) & (at < x.shape[2 + d])
    flat = np.where(inside, flat, -1)
    flat = flat.reshape(*flat.shape[:rank], -1)
    planes = np.concatenate([x.reshape(*x.shape[:2], -1), np.full((*x.shape[:2], 1), fill, x.dtype)], axis=2)
    return planes[:, :, flat], flat


def _norm(x, p, axis, keepdims=False):
    x = np.abs(x.astype(np.float64))
    return np.sum(x**p, axis=axis, keepdims=keepdims) ** (1 / p)


class LpPool(OpRun):
    """The p-norm of each window. The evaluator takes no padding that is less than 0."""

    def _run(self, x, p=None, **window):
        return (_norm(_windows(x, 0, **window)[0], p or 2, -1).astype(x.dtype),)


class GlobalLpPool(OpRun):
    """The p-norm of each plane. The evaluator has none."""

    def _run(self, x, p=None):
        return (_norm(x, p or 2, tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype),)


class MaxPool(OpRun):
    """The largest element of each window; NaN if there is one, as in Max. The evaluator leaves out NaN in some cases."""

    def _run(self, x, storage_order=None, **window):
        values, flat = _windows(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min, **window)
        result = values.max(-1)
        if len(self.onnx_node.output) < 2:
            return (result,)
        at = np.take_along_axis(np.broadcast_to(flat, values.shape), values.argmax(-1)[..., None], -1)[..., 0]
        if storage_order:
            at = np.ravel_multi_index(np.unravel_index(at, x.shape[2:]), x.shape[2:], order="F")
        plane = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * (x.ndim - 2))
        return result, plane * int(np.prod(x.shape[2:])) + at
