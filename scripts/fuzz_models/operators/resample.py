"""Operators that read between elements: of finite ones, as zero weights times infinity are evaluated or left out."""

import numpy as np

from ..graph import Reject, Value
from .registry import operator


@operator("Resize", weight=2)
def resize(b, op):
    x = b.tensor(
        ("float32",),
        (3, 4),
        -50,
        50,
        nonempty=True,
        where=Value.finite,
        new_shape=(1, b.int(1, 3), b.int(2, 7), b.int(2, 7)),
    )
    mode = b.choice(["nearest", "nearest", "linear", "cubic"])
    spatial = 2 if x.rank == 4 else 1
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    coordinates += ["half_pixel_symmetric"] if b.opset >= 19 else []
    attributes = {"mode": mode, "coordinate_transformation_mode": b.choice(coordinates)}
    if mode == "nearest":
        attributes["nearest_mode"] = b.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes["cubic_coeff_a"] = b.choice([None, -0.5])
        attributes["exclude_outside"] = b.choice([None, 1]) if spatial == 2 else None
    if b.opset >= 18 and mode in ("linear", "cubic") and b.chance(0.25):
        attributes["antialias"] = 1
    sizes = [b.int(1, 2 * d + 1) for d in x.shape[-spatial:]]
    if attributes["coordinate_transformation_mode"] != "align_corners" and b.chance(0.5):
        scales = [b.choice([0.5, 1.0, 1.5, 2.0, 3.0, 0.75]) for _ in range(spatial)]
        scales = [s if int(d * s) >= 1 else 1.0 for s, d in zip(scales, x.shape[-spatial:])]
        b.node(op, [x, None, b.constant(np.array([1.0] * (x.rank - spatial) + scales, np.float32))], **attributes)
    elif b.opset >= 18 and b.chance(0.4):
        axes = list(range(x.rank - spatial, x.rank))
        b.node(op, [x, None, None, b.ints(sizes)], axes=axes, **attributes)
    else:
        b.node(op, [x, None, None, b.ints([*x.shape[: x.rank - spatial], *sizes])], **attributes)


@operator("GridSample", since=16, weight=1.5)
def grid_sample(b, op):
    dims = 2 if b.opset < 20 or b.chance(0.7) else 3
    size = [b.int(2, 6) for _ in range(dims)]
    x = b.tensor(("float32",), dims + 2, nonempty=True, where=Value.finite, new_shape=(b.int(1, 2), b.int(1, 3), *size))
    grid = b.new((x.shape[0], *[b.int(1, 5) for _ in range(dims)], dims), "float32", -1.3, 1.3)
    modes = ["bilinear", "nearest", "bicubic"] if b.opset < 20 else ["linear", "nearest", "cubic"]
    mode = b.choice(modes[:2] if dims == 3 else modes)
    padding = b.choice([None, "zeros", "border", "reflection"])
    # NaN is no place, and nothing says where the reflection of infinity lies.
    if np.isnan(grid.array).any() or padding == "reflection" and not grid.finite():
        raise Reject
    b.node(
        op,
        [x, grid],
        mode=mode,
        padding_mode=padding,
        align_corners=b.choice([None, 0, 1]),
    )


@operator("AffineGrid", since=20)
def affine_grid(b, op):
    dims, batch = b.int(2, 3), b.int(1, 2)
    theta = b.tensor(("float32",), 3, -2, 2, shape=(batch, dims, dims + 1))
    b.node(
        op,
        [theta, b.ints([batch, b.int(1, 3)] + [b.int(2, 5) for _ in range(dims)])],
        align_corners=b.choice([None, 0, 1]),
    )


@operator("Col2Im", since=18)
def columns_to_image(b, op):
    block = [b.int(1, 3), b.int(1, 3)]
    image = [k + b.int(0, 4) for k in block]
    places = (image[0] - block[0] + 1) * (image[1] - block[1] + 1)
    x = b.tensor(("float32",), 3, shape=(b.int(1, 2), b.int(1, 3) * block[0] * block[1], places))
    b.node(op, [x, b.ints(image), b.ints(block)])
