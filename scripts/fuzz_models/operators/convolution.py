"""Convolutions and pools, in one to three dimensions."""

import numpy as np

from ..graph import Reject, Value
from .registry import operator

SPATIAL = {1: [5, 7, 12, 16, 31], 2: [1, 3, 4, 6, 7, 9, 12], 3: [2, 3, 4, 5]}


def image(b, low=-20, high=20, dtypes=None, channels=(1, 2, 3, 4, 6, 8)):
    """A tensor [batch, channels, ..] of rank 3 to 5."""
    dims = b.choice([1, 2, 2, 2, 2, 3])
    shape = [b.int(1, 2), b.choice(channels)] + [b.choice(SPATIAL[dims]) for _ in range(dims)]
    if b.special and b.chance(0.05):
        shape[0] = 0
    fits = lambda v: 3 <= v.rank <= 5 and v.shape[1] <= 16 and v.dtype != "float16"  # noqa: E731
    return b.tensor(dtypes or (b.main_float,), None, low, high, where=fits, new_shape=shape)


def with_channels(x):
    """The same, rejected if it has no channels: ONNX Runtime convolves nothing for ever."""
    if not x.shape[1]:
        raise Reject
    return x


def window(b, sizes, most=4, dilated=True):
    """Attributes of a window that fits into `sizes` with its padding."""
    count = len(sizes)
    kernel = [b.int(1, most) for _ in range(count)]
    dilations = [b.int(1, 2) if dilated and b.chance(0.3) else 1 for _ in range(count)]
    attributes = {"kernel_shape": kernel}
    if b.chance(0.6):
        attributes["strides"] = [b.int(1, 3) for _ in range(count)]
    if any(d > 1 for d in dilations):
        attributes["dilations"] = dilations
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    mode = b.choice(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    pads = [0] * (2 * count)
    if mode == "pads":
        pads = [b.int(0, k - 1) if k > 1 else 0 for k in kernel * 2]
        attributes["pads"] = pads
    elif mode != "none":
        attributes["auto_pad"] = mode
    if not mode.startswith("SAME"):
        if any(s + p + q < e for s, p, q, e in zip(sizes, pads, pads[count:], extents)):
            raise Reject
    return attributes


@operator("Conv", weight=3)
def conv(b, op):
    x = with_channels(image(b))
    attributes = window(b, x.shape[2:])
    channels = x.shape[1]
    group = b.choice([g for g in (1, 1, channels, 2, 3) if channels % g == 0])
    features = group * b.int(1, 4)
    weight = b.new((features, channels // group, *attributes["kernel_shape"]), x.dtype, -1.5, 1.5)
    # Nothing says whether padding is multiplied by weights: infinity makes it NaN, or meets nothing.
    if not weight.finite() and (any(attributes.get("pads", ())) or "SAME" in attributes.get("auto_pad", "")):
        raise Reject
    bias = b.new((features,), x.dtype) if b.chance(0.5) else None
    if b.chance(0.3):
        del attributes["kernel_shape"]
    b.node(op, [x, weight, bias], group=group if group > 1 else None, **attributes)


@operator("ConvTranspose", weight=2)
def conv_transpose(b, op):
    x = with_channels(image(b, dtypes=("float32",)))
    count, channels = x.rank - 2, x.shape[1]
    group = b.choice([g for g in (1, 1, channels, 2) if channels % g == 0])
    kernel = [b.int(1, 3) for _ in range(count)]
    weight = b.new((channels, b.int(1, 3), *kernel), x.dtype, -1.5, 1.5)
    attributes = {}
    strides = [b.int(1, 3) for _ in range(count)] if b.chance(0.6) else [1] * count
    if strides != [1] * count:
        attributes["strides"] = strides
    if b.chance(0.25):
        attributes["dilations"] = [b.int(1, 2) for _ in range(count)]
    if b.chance(0.4):
        attributes["pads"] = [b.int(0, k - 1) for k in kernel * 2]
    elif b.chance(0.2):
        attributes["auto_pad"] = b.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        # With a kernel smaller than its stride ONNX Runtime makes less than the size that SAME asks for.
        if attributes["auto_pad"] != "VALID" and any(k < s for k, s in zip(kernel, strides)):
            raise Reject
    if b.chance(0.3):
        attributes["output_padding"] = [b.int(0, s - 1) for s in strides]
    bias = b.new((weight.shape[1] * group,), x.dtype) if b.chance(0.5) else None
    b.node(op, [x, weight, bias], group=group if group > 1 else None, **attributes)


@operator("DeformConv", since=19)
def deform_conv(b, op):
    x = b.tensor(
        ("float32",),
        4,
        -10,
        10,
        nonempty=True,
        new_shape=(1, 2, b.int(3, 7), b.int(3, 7)),
        where=lambda v: v.shape[1] <= 8 and v.finite(),
    )
    kernel = [b.int(1, min(3, x.shape[2])), b.int(1, min(3, x.shape[3]))]
    sizes = [s - k + 1 for s, k in zip(x.shape[2:], kernel)]
    points = kernel[0] * kernel[1]
    offset = b.new((x.shape[0], 2 * points, *sizes), x.dtype, -1.4, 1.4)
    # NaN is no place.
    if np.isnan(offset.array).any():
        raise Reject
    weight = b.new((b.int(1, 3), x.shape[1], *kernel), x.dtype)
    mask = b.new((x.shape[0], points, *sizes), x.dtype, 0, 1) if b.chance(0.4) else None
    bias = b.new((weight.shape[0],), x.dtype) if mask is not None or b.chance(0.4) else None
    b.node(op, [x, weight, offset, bias, mask], kernel_shape=kernel)


@operator("MaxPool", weight=1.5)
def max_pool(b, op):
    x = image(b)
    attributes = window(b, x.shape[2:])
    if "auto_pad" not in attributes and b.chance(0.3):
        attributes["ceil_mode"] = 1
    if b.chance(0.2):
        # Nothing says which position NaN has.
        if np.isnan(x.array).any():
            raise Reject
        attributes["storage_order"] = b.int(0, 1)
        b.node(op, [x], outputs=2, **attributes)
    else:
        b.node(op, [x], **attributes)


@operator("AveragePool", "LpPool", weight=1.5)
def average_pool(b, op):
    x = image(b)
    attributes = window(b, x.shape[2:], dilated=b.opset >= (19 if op == "AveragePool" else 18))
    # ONNX Runtime and the reference pad for `auto_pad` as if there were no dilations; the standard's formula has them.
    if op == "AveragePool" and attributes.get("auto_pad", "").startswith("SAME"):
        attributes.pop("dilations", None)
    if "auto_pad" not in attributes and b.chance(0.3) and (op == "AveragePool" or b.opset >= 18):
        attributes["ceil_mode"] = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = b.choice([None, 0, 1])
    else:
        attributes["p"] = b.choice([None, 1, 2, 3])
    b.node(op, [x], **attributes)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b, op):
    b.node(op, [image(b)])


@operator("GlobalLpPool")
def global_lp_pool(b, op):
    b.node(op, [image(b, dtypes=("float32",))], p=b.choice([None, 1, 2, 3]))


@operator("MaxUnpool")
def max_unpool(b, op):
    """A pool whose windows do not overlap, and its inverse."""
    x = b.tensor(
        ("float32",),
        4,
        nonempty=True,
        new_shape=(1, b.int(1, 3), 2 * b.int(1, 4), 2 * b.int(1, 4)),
        where=lambda v: v.shape[2] >= 2 and v.shape[3] >= 2 and v.finite(),
    )
    pooled, indices = b.node("MaxPool", [x], outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    b.node(op, [pooled, indices], kernel_shape=[2, 2], strides=[2, 2])


@operator("MaxRoiPool", "RoiAlign")
def regions(b, op):
    x = b.tensor(
        ("float32",),
        4,
        nonempty=True,
        where=Value.finite,
        new_shape=(b.int(1, 2), b.int(1, 3), b.int(4, 9), b.int(4, 9)),
    )
    count, scale = b.int(1, 4), b.choice([None, 0.5, 1.0])
    corner = b.rng.integers(0, 3, (count, 2))
    boxes = np.concatenate([corner, corner + b.rng.integers(1, 6, (count, 2))], 1).astype(np.float32)
    batch = b.rng.integers(0, x.shape[0], count)
    if op == "MaxRoiPool":
        rois = np.concatenate([batch[:, None], boxes], 1).astype(np.float32)
        b.node(op, [x, b.constant(rois)], pooled_shape=[b.int(1, 3), b.int(1, 3)], spatial_scale=scale)
    else:
        boxes = boxes + b.rng.random((count, 4)).astype(np.float32) * 0.5
        more = (
            {"coordinate_transformation_mode": b.choice(["half_pixel", "output_half_pixel"])} if b.opset >= 16 else {}
        )
        b.node(
            op,
            [x, b.constant(boxes), b.constant(batch.astype(np.int64))],
            mode=b.choice(["avg", "max"]),
            output_height=b.int(1, 3),
            output_width=b.int(1, 3),
            sampling_ratio=b.int(0, 3),
            spatial_scale=scale,
            **more
        )
