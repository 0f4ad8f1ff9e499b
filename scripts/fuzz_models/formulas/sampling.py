"""Operators that read at given places, infinitely far ones too."""

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_grid_sample import GridSample as OnnxGridSample

# Further away than any element of a tensor of this fuzzer.
FAR = 1e6


def _near(places):
    return np.clip(places, -FAR, FAR).astype(places.dtype)


class GridSample(OnnxGridSample):
    """With its modes by their names of all operator sets; what lies infinitely far away is outside like what is far away.

    In cubic mode not the place is moved to the border, but what is read around it: as PyTorch and ONNX Runtime do.
    """

    def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        self.keeps_places = (mode, padding_mode) == ("cubic", "border")
        return super()._run(x, _near(grid), mode=mode, padding_mode=padding_mode, align_corners=align_corners)

    def _prepare_border(self, dims, align_corners):
        if self.keeps_places:
            return np.repeat([-np.inf, np.inf], len(dims))
        return super()._prepare_border(dims, align_corners)


class DeformConv(OpRun):
    """Elements between four others, 0 outside, of planes. The evaluator takes no planes of one row or column."""

    def _run(
        self,
        x,
        weight,
        offset,
        bias=None,
        mask=None,
        dilations=None,
        group=None,
        kernel_shape=None,
        offset_group=None,
        pads=None,
        strides=None,
    ):
        group, offset_group = group or 1, offset_group or 1
        dilations, strides, pads = dilations or [1, 1], strides or [1, 1], pads or [0] * 4
        (n, channels, height, width), (features, _, kh, kw) = x.shape, weight.shape
        rows, columns = offset.shape[2:]
        offset = _near(offset).astype(np.float64).reshape(n, offset_group, kh, kw, 2, rows, columns)
        mask = np.ones((n, offset_group, kh, kw, rows, columns)) if mask is None else mask.astype(np.float64)
        mask = mask.reshape(n, offset_group, kh, kw, rows, columns)
        read = np.zeros((n, channels, kh, kw, rows, columns))
        for b, c, i, j, row, column in np.ndindex(read.shape):
            g = c // (channels // offset_group)
            y = row * strides[0] - pads[0] + i * dilations[0] + offset[b, g, i, j, 0, row, column]
            at = column * strides[1] - pads[1] + j * dilations[1] + offset[b, g, i, j, 1, row, column]
            read[b, c, i, j, row, column] = _between(x[b, c], y, at) * mask[b, g, i, j, row, column]
        read = read.reshape(n, group, channels // group, kh, kw, rows, columns)
        weight = weight.astype(np.float64).reshape(group, features // group, *weight.shape[1:])
        result = np.einsum("bgcijyx,gfcij->bgfyx", read, weight).reshape(n, features, rows, columns)
        return ((result if bias is None else result + bias.reshape(-1, 1, 1)).astype(x.dtype),)


def _between(plane, y, x):
    """The element of a plane at a place between four others, those outside being 0."""
    row, column, total = int(np.floor(y)), int(np.floor(x)), 0.0
    for i, row_weight in ((row, row + 1 - y), (row + 1, y - row)):
        for j, column_weight in ((column, column + 1 - x), (column + 1, x - column)):
            if 0 <= i < plane.shape[0] and 0 <= j < plane.shape[1]:
                total += row_weight * column_weight * float(plane[i, j])
    return total
