"""Minimal models: what exports of torchvision, timm and transformers hold that has left the fast path once, or could.

Each pattern is a function that builds one graph, with the most kernels that its plans may have: on a CPU, and on a GPU in f16.
"""

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "i64": TensorProto.INT64, "bool": TensorProto.BOOL}

#: (name, build, most kernels on a CPU, most kernels on a GPU, operator set)
PATTERNS = []


def pattern(cpu, gpu, opset=18, **variants):
    """Registers a pattern under its function's name; `variants` are lists of keyword arguments, all combined."""

    def register(build):
        names = list(variants)
        for values in itertools.product(*variants.values()):
            chosen = dict(zip(names, values))
            suffix = "".join(f"_{value}" for value in chosen.values()).replace(" ", "").replace(",", "x")
            name = build.__name__ + suffix.replace("(", "").replace(")", "")
            PATTERNS.append((name, lambda graph, build=build, chosen=chosen: build(graph, **chosen), cpu, gpu, opset))
        return build

    return register


class Graph:
    """Builds an ONNX model; operators are methods of any name, tensors are names."""

    def __init__(self, opset):
        self.opset = opset
        self.nodes, self.inputs, self.outputs, self.constants = [], [], [], []
        self.random = np.random.default_rng(0)

    def input(self, *shape, dtype="f32", high=None):
        name = f"x{len(self.inputs)}"
        # Indices are generated below `high`: the runner reads it from the name.
        name += "" if high is None else f"_below{high}"
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape, scale=None):
        scale = (np.prod(shape[1:]) if len(shape) > 1 else 1.0) ** -0.5 if scale is None else scale
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def output(self, name, dtype="f32"):
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], None))

    def __getattr__(self, op):
        def add(*inputs, outputs=1, **attributes):
            names = [f"t{len(self.nodes)}_{number}" for number in range(outputs)]
            given = [self.constant(value) if isinstance(value, np.ndarray) else value for value in inputs]
            self.nodes.append(helper.make_node(op, [value or "" for value in given], names, **attributes))
            return names[0] if outputs == 1 else names

        return add

    def scalar(self, value):
        return self.constant(np.float32(value))

    def linear(self, x, columns_in, columns_out, bias=True):
        y = self.MatMul(x, self.weight(columns_in, columns_out))
        return self.Add(y, self.weight(columns_out)) if bias else y

    def model(self, name):
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


# Positions that are known when compiling.


@pattern(1, 1)
def gather_permuted_channels(g):
    g.output(g.Relu(g.Gather(g.input(1, 64, 14, 14), g.random.permutation(64), axis=1)))


@pattern(1, 1)
def gather_every_other_twice(g):
    g.output(g.Relu(g.Gather(g.input(1, 32, 16), np.array([0, 0, 2, 2, 4, 4, 6, 6]), axis=1)))


def relative_positions(n):
    at = np.stack(np.meshgrid(np.arange(n), np.arange(n), indexing="ij")).reshape(2, -1)
    apart = at[:, :, None] - at[:, None, :] + n - 1
    return apart[0] * (2 * n - 1) + apart[1]


@pattern(2, 1, side=[7, 14])
def relative_bias_of_a_learnt_table(g, side):
    heads, tokens = 4, side * side
    bias = g.Gather(g.weight((2 * side - 1) ** 2, heads), relative_positions(side), axis=0)
    bias = g.Unsqueeze(g.Transpose(bias, perm=[2, 0, 1]), g.ints(0))
    g.output(g.Softmax(g.Add(g.input(2, heads, tokens, tokens), bias), axis=-1))


@pattern(3, 2)
def relative_bias_of_a_computed_table(g):
    # SwinV2: the table is the result of a small network on constants.
    table = g.linear(g.Relu(g.linear(g.constant(g.random.standard_normal((169, 2)).astype(np.float32)), 2, 64)), 64, 4)
    table = g.Mul(g.Sigmoid(table), g.scalar(16))
    bias = g.Gather(table, relative_positions(7).reshape(-1), axis=0)
    bias = g.Transpose(g.Reshape(bias, g.ints(49, 49, 4)), perm=[2, 0, 1])
    g.output(g.Softmax(g.Add(g.input(8, 4, 49, 49), g.Unsqueeze(bias, g.ints(0))), axis=-1))


@pattern(2, 1)
def relative_bias_of_live_data(g):
    g.output(g.Softmax(g.Gather(g.input(169, 4), relative_positions(7), axis=0), axis=1))


@pattern(2, 2)
def relative_buckets(g):
    # T5: a table by the logarithm of the distance.
    apart = np.arange(64)[None, :] - np.arange(64)[:, None]
    near = np.maximum(np.abs(apart), 1)
    far = np.minimum(8 + (np.log(near / 8) / np.log(16) * 8).astype(np.int64), 15)
    buckets = np.where(near < 8, np.abs(apart), far) + 16 * (apart > 0)
    bias = g.Unsqueeze(g.Transpose(g.Gather(g.weight(32, 8), buckets), perm=[2, 0, 1]), g.ints(0))
    g.output(g.Softmax(g.Add(g.input(1, 8, 64, 64), bias), axis=-1))


@pattern(1, 1)
def channel_shuffle(g):
    y = g.Transpose(g.Reshape(g.input(1, 64, 14, 14), g.ints(1, 4, 16, 14, 14)), perm=[0, 2, 1, 3, 4])
    g.output(g.Relu(g.Reshape(y, g.ints(1, 64, 14, 14))))


@pattern(1, 1, shift=[3, -2])
def roll(g, shift):
    x, at = g.input(1, 14, 14, 32), shift % 14
    parts = [g.Slice(x, g.ints(at), g.ints(14), g.ints(1)), g.Slice(x, g.ints(0), g.ints(at), g.ints(1))]
    g.output(g.Relu(g.Concat(*parts, axis=1)))


@pattern(1, 1)
def roll_by_two_axes(g):
    x = g.input(1, 14, 14, 32)
    for axis in (1, 2):
        parts = [g.Slice(x, g.ints(3), g.ints(14), g.ints(axis)), g.Slice(x, g.ints(0), g.ints(3), g.ints(axis))]
        x = g.Concat(*parts, axis=axis)
    g.output(g.Relu(x))


@pattern(1, 1)
def unfold_by_gathers(g):
    # torch's script exporter on nn.Unfold.
    x = g.Pad(g.input(1, 8, 14, 14), g.ints(0, 0, 1, 1, 0, 0, 1, 1))
    at = np.arange(14)[None, :] + np.arange(3)[:, None]
    y = g.Gather(g.Gather(x, at, axis=2), at, axis=4)
    g.output(g.Reshape(g.Transpose(y, perm=[0, 1, 2, 4, 3, 5]), g.ints(1, 72, 196)))


@pattern(1, 1)
def unfold_with_holes(g):
    x = g.Pad(g.input(1, 8, 16, 16), g.ints(0, 0, 2, 2, 0, 0, 2, 2))
    at = 2 * np.arange(8)[None, :] + 2 * np.arange(3)[:, None]
    y = g.Gather(g.Gather(x, at, axis=2), at, axis=4)
    g.output(g.Reshape(g.Transpose(y, perm=[0, 1, 2, 4, 3, 5]), g.ints(1, 72, 64)))


@pattern(1, 1)
def fold_side_by_side(g):
    g.output(g.Col2Im(g.input(1, 64 * 4, 196), g.ints(28, 28), g.ints(2, 2), strides=[2, 2]))


@pattern(2, 2, kernel=[3, 5])
def fold_overlapping(g, kernel):
    area, pad = kernel * kernel, kernel // 2
    g.output(g.Col2Im(g.input(1, 8 * area, 196), g.ints(14, 14), g.ints(kernel, kernel), pads=[pad] * 4))


# Resizing.


@pattern(2, 2, mode=["linear", "cubic"], sizes=[(33, 513), (14, 16), (7, 12), (64, 48)])
def resize_aligned(g, mode, sizes):
    scale = np.array([1, 1, sizes[1] / sizes[0], sizes[1] / sizes[0]], np.float32)
    x = g.input(1, 4, sizes[0], sizes[0])
    g.output(g.Resize(x, None, scale, mode=mode, coordinate_transformation_mode="align_corners"))


@pattern(2, 2, mode=["nearest", "linear", "cubic"])
def resize_by_two(g, mode):
    scale = np.array([1, 1, 2, 2], np.float32)
    g.output(g.Relu(g.Resize(g.input(1, 16, 14, 14), None, scale, mode=mode)))


@pattern(5, 1, mode=["nearest", "linear", "cubic"])
def samples_of_a_grid(g, mode):
    # Of two images, as optical flow samples them, with the activation behind. Weights of a cubic are computed once for all channels.
    grid = g.input(2, 10, 12, 2)
    g.output(g.Relu(g.GridSample(g.input(2, 8, 14, 14), grid, mode=mode, padding_mode="border")))


@pattern(2, 2)
def resize_nearest_by_an_odd_factor(g):
    g.output(g.Relu(g.Resize(g.input(1, 8, 7, 7), None, None, g.ints(1, 8, 100, 100), mode="nearest")))


@pattern(2, 2)
def resize_of_position_embeddings(g):
    # A constant of 14 x 14, added to tokens of 16 x 16.
    grid = g.Resize(g.weight(1, 32, 14, 14), None, None, g.ints(1, 32, 16, 16), mode="cubic", cubic_coeff_a=-0.75)
    rows = g.Transpose(g.Reshape(grid, g.ints(1, 32, 256)), perm=[0, 2, 1])
    g.output(g.Relu(g.Add(g.input(2, 256, 32), rows)))


# Writing to positions.


@pattern(1, 1)
def assign_to_a_slice(g):
    at = np.stack(np.meshgrid(np.arange(2), np.arange(1, 17), indexing="ij"), -1)
    g.output(g.Relu(g.ScatterND(g.input(2, 17, 64), at, g.input(2, 16, 64))))


@pattern(1, 1)
def assign_to_every_other(g):
    g.output(g.ScatterND(g.input(32, 64), np.arange(0, 32, 2)[:, None], g.input(16, 64)))


@pattern(1, 1)
def assign_to_a_box(g):
    at = np.stack(np.meshgrid(np.arange(1), np.arange(2, 6), np.arange(3, 9), indexing="ij"), -1)
    g.output(g.Relu(g.ScatterND(g.input(1, 8, 12, 16), at, g.input(1, 4, 6, 16))))


@pattern(1, 1)
def assign_to_columns(g):
    at = np.broadcast_to(np.array([5, 2, 7])[None, :], (16, 3)).copy()
    g.output(g.ScatterElements(g.input(16, 8), at, g.input(16, 3), axis=1))


@pattern(1, 1, rows=[1, 4, 16])
def cache_rows_are_put(g, rows):
    g.output(g.ScatterND(g.input(256, 64), g.input(rows, 1, dtype="i64", high=256), g.input(rows, 64)))


@pattern(2, 2, opset=24)
def cache_is_scattered(g):
    g.output(g.TensorScatter(g.input(2, 4, 64, 32), g.input(2, 4, 3, 32), g.input(2, dtype="i64", high=60), axis=2))


# On a CPU the indices are a kernel of their own: both together take 1.2 us, comparing all pairs in one kernel 4.7 us.
@pattern(2, 1, reduction=["add", "max"])
def rows_are_combined(g, reduction):
    at = g.input(64, 1, dtype="i64", high=32)
    g.output(g.ScatterND(g.input(32, 64), at, g.input(64, 64), reduction=reduction))


@pattern(2, 2)
def elements_are_scattered(g):
    at = g.input(16, 12, dtype="i64", high=40)
    g.output(g.ScatterElements(g.input(16, 40), at, g.input(16, 12), axis=1))


@pattern(2, 2)
def experts_are_marked(g):
    # One-hot of the experts of each token.
    _, best = g.TopK(g.input(32, 8), g.ints(2), outputs=2)
    one_hot = g.OneHot(best, g.ints(8), np.array([0, 1], np.float32), axis=-1)
    g.output(g.ReduceSum(one_hot, g.ints(1), keepdims=0))


# Sorting and running sums.


@pattern(3, 3)
def router(g):
    values, index = g.TopK(g.input(128, 8), g.ints(2), outputs=2)
    g.output(g.Softmax(values, axis=-1))
    g.output(index, "i64")


@pattern(3, 3, largest=[0, 1])
def sorted_rows(g, largest):
    values, index = g.TopK(g.input(8, 64), g.ints(64), outputs=2, largest=largest)
    g.output(values)
    g.output(index, "i64")


@pattern(3, 3)
def best_queries(g):
    # RT-DETR: the best of many boxes, then those boxes.
    _, best = g.TopK(g.ReduceMax(g.input(1, 400, 16), g.ints(2), keepdims=0), g.ints(20), outputs=2)
    g.output(g.GatherND(g.input(400, 4), g.Unsqueeze(g.Reshape(best, g.ints(20)), g.ints(1))))


@pattern(1, 4, shape=[(1, 32000), (2, 20000)])
def best_of_a_vocabulary(g, shape):
    values, index = g.TopK(g.input(*shape), g.ints(50), outputs=2)
    g.output(values)
    g.output(index, "i64")


def sorted_lines(g, extent, largest):
    values, index = g.TopK(g.input(2, extent), g.ints(extent), outputs=2, largest=largest)
    g.output(values)
    g.output(index, "i64")


@pattern(1, 1, largest=[0, 1])
def sorted_lines_1000(g, largest):
    sorted_lines(g, 1000, largest)


# On a GPU padded, sorted in parts and merged, which is modelled at a third of the time that one CTA takes for each line.
@pattern(1, 4, largest=[0, 1])
def sorted_lines_8400(g, largest):
    sorted_lines(g, 8400, largest)


@pattern(1, 1)
def best_of_a_middle_axis(g):
    values, index = g.TopK(g.input(2, 600, 12), g.ints(100), outputs=2, axis=1)
    g.output(values)
    g.output(index, "i64")


@pattern(1, 1)
def arg_max(g):
    g.output(g.ArgMax(g.input(16, 1000), axis=1, keepdims=0), "i64")


@pattern(3, 2)
def position_ids(g):
    # RoBERTa: positions count what is no padding. On CPUs the sum is a kernel by itself, three take 0.4 us where one of masked sums took 1.2.
    ids = g.input(1, 128, dtype="i64", high=50)
    mask = g.Cast(g.Not(g.Equal(ids, g.constant(np.int64(1)))), to=TYPES["i64"])
    at = g.Add(g.Mul(g.CumSum(mask, g.constant(np.int64(1))), mask), g.constant(np.int64(1)))
    g.output(g.Gather(g.weight(200, 32), at))


@pattern(1, 3, length=[16, 512, 4096])
def running_sum(g, length):
    g.output(g.CumSum(g.input(4, length), g.constant(np.int64(1))))


@pattern(1, 2)
def running_sum_of_columns_from_the_end(g):
    g.output(g.CumSum(g.input(200, 24), g.constant(np.int64(0)), exclusive=1, reverse=1))


# Masks and attention.


def attention(g, heads=4, tokens=64, dim=32, keys=None, mask=None, scale=None, values=None):
    keys = tokens if keys is None else keys
    q, k = g.input(1, heads, tokens, dim), g.input(1, heads, keys, dim)
    v = g.input(1, heads, keys, dim if values is None else values)
    scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), g.scalar(dim**-0.5 if scale is None else scale))
    if mask is not None:
        scores = mask(scores)
    g.output(g.MatMul(g.Softmax(scores, axis=-1), v))


def order(g, tokens):
    positions = g.Range(g.constant(np.int64(0)), g.constant(np.int64(tokens)), g.constant(np.int64(1)))
    return g.Unsqueeze(positions, g.ints(1)), g.Unsqueeze(positions, g.ints(0))


@pattern(4, 3, tokens=[64, 257])
def attention_plain(g, tokens):
    attention(g, tokens=tokens)


@pattern(2, 2)
def attention_of_other_keys(g):
    attention(g, tokens=32, keys=77, values=48)


@pattern(3, 2, fill=["inf", "min"], side=["true", "false"])
def attention_causal_by_where(g, fill, side):
    query, key = order(g, 64)
    value = g.scalar(-np.inf if fill == "inf" else np.finfo(np.float32).min)
    if side == "true":
        attention(g, mask=lambda s: g.Where(g.LessOrEqual(key, query), s, value))
    else:
        attention(g, mask=lambda s: g.Where(g.Greater(key, query), value, s))


@pattern(3, 2)
def attention_causal_by_trilu(g):
    mask = g.Trilu(g.constant(np.full((64, 64), -1e9, np.float32)), g.constant(np.int64(1)))
    attention(g, mask=lambda s: g.Add(s, mask))


@pattern(4, 2)
def attention_causal_as_torch_exports(g):
    ones = g.Expand(g.scalar(1), g.ints(64, 64))
    is_hidden = g.Equal(g.Trilu(ones, upper=0), g.scalar(0))
    mask = g.Where(is_hidden, g.scalar(-np.inf), g.scalar(0))
    attention(g, mask=lambda s: g.Add(s, mask))


@pattern(4, 2, spelling=["boolean", "product", "filled"])
def attention_causal_by_a_triangle_of_ones(g, spelling):
    tokens = 1024  # of fewer the mask is a constant
    triangle = g.Trilu(g.ConstantOfShape(g.ints(tokens, tokens), value=numpy_helper.from_array(np.float32([1]))), upper=0)
    lowest = g.scalar(np.finfo(np.float32).min)
    if spelling == "boolean":
        mask = g.Where(g.Cast(triangle, to=TensorProto.BOOL), g.scalar(0), g.scalar(-np.inf))
    elif spelling == "product":
        mask = g.Mul(g.Sub(g.scalar(1), triangle), lowest)
    else:
        hidden = g.Sub(g.scalar(1), triangle)
        mask = g.Where(g.Cast(hidden, to=TensorProto.BOOL), lowest, hidden)
    attention(g, mask=lambda s: g.Add(s, mask), tokens=tokens)


@pattern(3, 2)
def attention_in_a_window(g):
    query, key = order(g, 64)
    near = g.And(g.LessOrEqual(key, query), g.Less(g.Sub(query, key), g.constant(np.int64(16))))
    attention(g, mask=lambda s: g.Where(near, s, g.scalar(-np.inf)))


@pattern(3, 2)
def attention_with_linear_biases(g):
    query, key = order(g, 64)
    apart = g.Cast(g.Sub(key, query), to=TYPES["f32"])
    slopes = g.constant((2.0 ** -np.arange(1, 5)).astype(np.float32).reshape(4, 1, 1))
    attention(g, mask=lambda s: g.Add(s, g.Mul(apart, slopes)))


@pattern(4, 3)
def attention_with_a_mask_of_the_input(g):
    mask = g.Unsqueeze(g.input(1, 64, dtype="i64", high=2), g.ints(1, 2))
    attention(g, mask=lambda s: g.Where(g.Cast(mask, to=TYPES["bool"]), s, g.scalar(np.finfo(np.float32).min)))


@pattern(4, 3)
def attention_with_an_added_mask(g):
    kept = g.Cast(g.Unsqueeze(g.input(1, 64, dtype="i64", high=2), g.ints(1, 2)), to=TYPES["f32"])
    added = g.Mul(g.Sub(g.scalar(1), kept), g.scalar(np.finfo(np.float32).min))
    attention(g, mask=lambda s: g.Add(s, added))


@pattern(5, 4)
def attention_without_nan(g):
    # torch's sdpa: rows that are masked whole become zeros.
    mask = g.Cast(g.input(1, 1, 64, 64, dtype="i64", high=2), to=TYPES["bool"])
    q, k, v = (g.input(1, 4, 64, 32) for _ in range(3))
    scores = g.Where(mask, g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), g.scalar(-np.inf))
    weights = g.Softmax(scores, axis=-1)
    g.output(g.MatMul(g.Where(g.IsNaN(weights), g.scalar(0), weights), v))


@pattern(5, 5)
def attention_by_a_global_query(g):
    # SwiftFormer: tokens are normed, and added up by weights of their own. The sums along tokens and along channels have no axis in
    # common: one kernel for both would be a single CTA.
    tokens, channels = 1024, 64
    query, key = (g.Div(x, g.Clip(g.ReduceL2(x, g.ints(-1), keepdims=1), g.scalar(1e-12))) for x in
                  (g.input(1, tokens, channels), g.input(1, tokens, channels)))
    weights = g.Softmax(g.Mul(g.MatMul(query, g.weight(channels, 1)), g.scalar(channels**-0.5)), axis=1)
    total = g.ReduceSum(g.Mul(weights, query), g.ints(1), keepdims=1)
    g.output(g.Mul(g.Tile(total, g.ints(1, tokens, 1)), key))


@pattern(4, 3)
def convolution_of_heads(g):
    # LowFormer: what attention computes by heads is the image of a convolution.
    q, k, v = (g.input(1, 4, 196, 32) for _ in range(3))
    heads = g.MatMul(g.Softmax(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), axis=-1), v)
    image = g.Reshape(g.Transpose(heads, perm=[0, 1, 3, 2]), g.ints(1, 128, 14, 14))
    g.output(g.Conv(image, g.weight(64, 128, 3, 3), pads=[1, 1, 1, 1]))


@pattern(4, 2)
def attention_capped(g):
    # Gemma 2: scores are limited softly.
    attention(g, mask=lambda s: g.Mul(g.Tanh(g.Div(s, g.scalar(50))), g.scalar(50)))


@pattern(5, 4)
def attention_by_cosines(g):
    # SwinV2.
    q, k, v = (g.input(1, 4, 49, 32) for _ in range(3))

    def unit(x):
        length = g.ReduceL2(x, g.ints(-1), keepdims=1)
        return g.Div(x, g.Max(length, g.scalar(1e-12)))

    scores = g.Mul(g.MatMul(unit(q), g.Transpose(unit(k), perm=[0, 1, 3, 2])), g.weight(4, 1, 1))
    g.output(g.MatMul(g.Softmax(scores, axis=-1), v))


@pattern(4, 2)
def attention_in_five_dimensions(g):
    q, k, v = (g.input(1, 16, 4, 49, 32) for _ in range(3))
    scores = g.Add(g.MatMul(q, g.Transpose(k, perm=[0, 1, 2, 4, 3])), g.weight(1, 1, 4, 49, 49))
    scores = g.Add(scores, g.Unsqueeze(g.weight(16, 49, 49), g.ints(0, 2)))
    g.output(g.MatMul(g.Softmax(scores, axis=-1), v))


# On CPUs products beside a softmax of two kernels are as fast as one kernel that reads copied heads: 6 % slower on one thread of an
# AMD EPYC, 8 % faster on two.
@pattern(4, 2, by=["expand", "gather"])
def attention_of_grouped_heads(g, by):
    q, k, v = g.input(1, 8, 64, 32), g.input(1, 2, 64, 32), g.input(1, 2, 64, 32)

    def repeated(x):
        if by == "gather":
            return g.Gather(x, np.repeat(np.arange(2), 4), axis=1)
        wide = g.Expand(g.Unsqueeze(x, g.ints(2)), g.ints(1, 2, 4, 64, 32))
        return g.Reshape(wide, g.ints(1, 8, 64, 32))

    scores = g.MatMul(q, g.Transpose(repeated(k), perm=[0, 1, 3, 2]))
    g.output(g.MatMul(g.Softmax(scores, axis=-1), repeated(v)))


# On a CPU of AVX2 the division in the second product and the sum before it are modelled at 23.88 ms, one kernel for the softmax at 23.89.
@pattern(4, 2)
def attention_scaled_by_roots(g):
    # As torch exports it: queries and keys times the root of the scale, which is no power of two here; a causal mask that is added, and
    # grouped heads of tokens enough for what the mask hides to matter.
    q, k, v = g.input(2, 8, 512, 128), g.input(2, 2, 512, 128), g.input(2, 2, 512, 128)

    def repeated(x):
        wide = g.Expand(g.Unsqueeze(x, g.ints(2)), g.ints(2, 2, 4, 512, 128))
        return g.Reshape(wide, g.ints(2, 8, 512, 128))

    root = g.scalar(128.0**-0.25)
    scores = g.MatMul(g.Mul(q, root), g.Mul(g.Transpose(repeated(k), perm=[0, 1, 3, 2]), root))
    hidden = np.triu(np.full((512, 512), -np.inf, np.float32), 1)
    g.output(g.MatMul(g.Softmax(g.Add(scores, g.constant(hidden)), axis=-1), repeated(v)))


@pattern(4, 3)
def rotary_embedding(g):
    x = g.input(1, 4, 64, 32)
    angles = np.outer(np.arange(64), 1e4 ** (-np.arange(16) / 16))
    angles = np.concatenate([angles, angles], 1).astype(np.float32)
    low, high = g.Split(x, g.ints(16, 16), outputs=2, axis=3)
    turned = g.Concat(g.Neg(high), low, axis=3)
    g.output(g.Add(g.Mul(x, np.cos(angles)), g.Mul(turned, np.sin(angles))))


@pattern(3, 4)
def projections_with_some_biases(g):
    x = g.input(64, 96)
    for bias in (True, False, True):
        g.output(g.linear(x, 96, 96, bias))


@pattern(3, 4)
def projections_with_several_activations(g):
    x = g.input(64, 96)
    for columns, activation in ((96, g.Relu), (32, g.Tanh), (160, g.Sigmoid)):
        g.output(activation(g.linear(x, 96, columns)))


@pattern(3, 3)
def gated_mlp(g):
    x = g.input(32, 64)
    gate, up = g.linear(x, 64, 128, False), g.linear(x, 64, 128, False)
    g.output(g.linear(g.Mul(g.Mul(gate, g.Sigmoid(gate)), up), 128, 64, False))


# Norms and pools.


@pattern(3, 3)
def layer_norm_of_scalars(g):
    x = g.input(32, 257)
    centred = g.Sub(x, g.ReduceMean(x, g.ints(-1), keepdims=1))
    variance = g.ReduceMean(g.Mul(centred, centred), g.ints(-1), keepdims=1)
    y = g.Div(centred, g.Sqrt(g.Add(variance, g.scalar(1e-5))))
    g.output(g.Add(g.Mul(y, g.weight(257)), g.weight(257)))


@pattern(2, 2)
def root_mean_square_norm(g):
    x = g.input(32, 576)
    mean = g.ReduceMean(g.Pow(x, g.scalar(2)), g.ints(-1), keepdims=1)
    g.output(g.Mul(g.Mul(x, g.Reciprocal(g.Sqrt(g.Add(mean, g.scalar(1e-6))))), g.weight(576)))


@pattern(4, 4)
def pool_and_norm(g):
    # PoolFormer: an average of neighbours, less the element, after a norm.
    x = g.input(1, 32, 14, 14)
    flat = g.Reshape(x, g.ints(1, 1, -1))
    normed = g.InstanceNormalization(flat, np.ones(1, np.float32), np.zeros(1, np.float32))
    normed = g.Reshape(normed, g.ints(1, 32, 14, 14))
    pooled = g.AveragePool(normed, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0)
    g.output(g.Add(x, g.Sub(pooled, normed)))


@pattern(2, 2)
def adaptive_average(g):
    x = g.AveragePool(g.input(1, 32, 14, 14), kernel_shape=[2, 2], strides=[2, 2])
    g.output(g.ReduceMean(x, g.ints(2, 3), keepdims=1))


@pattern(4, 3)
def squeeze_and_excite(g):
    x = g.input(1, 32, 14, 14)
    mean = g.Flatten(g.GlobalAveragePool(x))
    weights = g.Sigmoid(g.linear(g.Relu(g.linear(mean, 32, 8)), 8, 32))
    g.output(g.Mul(x, g.Reshape(weights, g.ints(1, 32, 1, 1))))


@pattern(5, 4)
def selective_kernels(g):
    # SKNet: branches weighted by a softmax over them.
    branches = g.Concat(*(g.Unsqueeze(g.input(1, 16, 8, 8), g.ints(1)) for _ in range(2)), axis=1)
    mean = g.ReduceMean(g.ReduceSum(branches, g.ints(1), keepdims=0), g.ints(2, 3), keepdims=1)
    weights = g.Conv(mean, g.weight(32, 16, 1, 1))
    weights = g.Softmax(g.Reshape(weights, g.ints(1, 2, 16, 1, 1)), axis=1)
    g.output(g.ReduceSum(g.Mul(branches, weights), g.ints(1), keepdims=0))


# Convolutions.


@pattern(2, 3, width=[4, 8, 16])
def convolution_by_groups(g, width):
    g.output(g.Relu(g.Conv(g.input(1, 4 * width, 14, 14), g.weight(4 * width, width, 3, 3), group=4, pads=[1] * 4)))


def branch(g, x, channels_in, channels, kernel):
    w = g.weight(channels, channels_in, kernel, kernel)
    return g.Relu(g.Conv(x, w, g.weight(channels), pads=[kernel // 2] * 4))


@pattern(9, 8)
def branches_of_inception(g):
    x = g.Relu(g.input(1, 192, 28, 28))
    pooled = g.MaxPool(x, kernel_shape=[3, 3], pads=[1] * 4)
    narrow, middle, wide = branch(g, x, 192, 64, 1), branch(g, x, 192, 96, 1), branch(g, x, 192, 16, 1)
    parts = [narrow, branch(g, middle, 96, 128, 3), branch(g, wide, 16, 32, 3), branch(g, pooled, 192, 32, 1)]
    g.output(g.Concat(*parts, axis=1))


# A CPU computes convolutions channels-last. Where a result is row-major, a kernel that turns it while it applies the activation is
# modelled shorter (71.0 + 0.9 us for the first) than storing each element elsewhere (82.5).
@pattern(7, 4)
def convolutions_with_several_activations(g):
    # On CPUs one of the kernels copies the image, which takes a third of the time off.
    x = g.input(1, 64, 14, 14)
    for channels, activation in ((32, g.Relu), (48, g.Sigmoid), (16, g.Tanh)):
        g.output(activation(g.Conv(x, g.weight(channels, 64, 3, 3), pads=[1] * 4)))


# With AVX2 a copy of the image with channels side by side takes almost half of the time off 13 x 13: 203 -> 110 us on one core of a Zen 5.
@pattern(2, 1, kernel=[13])
@pattern(1, 1, kernel=[3, 7])
def convolution_by_channels(g, kernel):
    w = g.weight(32, 1, kernel, kernel)
    g.output(g.Relu(g.Conv(g.input(1, 32, 28, 28), w, group=32, pads=[kernel // 2] * 4)))


@pattern(2, 2, channels=[1, 3])
def stem(g, channels):
    g.output(g.Relu(g.Conv(g.input(1, channels, 64, 64), g.weight(16, channels, 7, 7), strides=[2, 2], pads=[3] * 4)))


@pattern(2, 2)
def convolution_to_few_channels(g):
    g.output(g.Tanh(g.Conv(g.input(1, 32, 32, 32), g.weight(3, 32, 3, 3), pads=[1] * 4)))


# A convolution to a map for each tap, and the sum of shifted images; a GPU copies the input in half precision.
@pattern(2, 3)
def convolution_of_a_large_image_to_few_channels(g):
    g.output(g.Tanh(g.Conv(g.input(1, 32, 192, 192), g.weight(3, 32, 9, 9), pads=[4] * 4)))


@pattern(2, 2, stride=[2, 4])
def transposed_convolution(g, stride):
    w = g.weight(16, 8, stride, stride)
    g.output(g.Relu(g.ConvTranspose(g.input(1, 16, 14, 14), w, g.weight(8), strides=[stride, stride])))


# On a CPU each of the four phases is a convolution: 24 us, 100 us in one kernel that multiplies with zeros between them.
@pattern(5, 3)
def transposed_convolution_overlapping(g):
    w = g.weight(16, 8, 4, 4)
    g.output(g.Relu(g.ConvTranspose(g.input(1, 16, 14, 14), w, strides=[2, 2], pads=[1] * 4)))


@pattern(3, 4)
def concatenation_before_a_convolution(g):
    x = g.Concat(*(g.input(1, 8, 14, 14) for _ in range(5)), axis=1)
    g.output(g.Relu(g.Conv(g.Relu(x), g.weight(16, 40, 3, 3), pads=[1] * 4)))


@pattern(3, 4)
def resize_before_a_convolution(g):
    x = g.Resize(g.input(1, 16, 8, 8), None, np.array([1, 1, 2, 2], np.float32), mode="nearest")
    x = g.Concat(x, g.input(1, 16, 16, 16), axis=1)
    g.output(g.Relu(g.Conv(x, g.weight(16, 32, 3, 3), pads=[1] * 4)))


@pattern(4, 5)
def branches_of_one_convolution_each(g):
    x = g.input(1, 32, 14, 14)
    g.output(g.Concat(*(g.Relu(g.Conv(x, g.weight(16, 32, 1, 1))) for _ in range(3)), axis=1))


# Functions of signals.


@pattern(2, 3, shape=["(1,64,32,1)", "(1,768,16,2)"])
def transform_along_an_axis(g, shape):
    sizes = [int(size) for size in shape.strip("()").split(",")]
    g.output(g.DFT(g.input(*sizes), axis=1))


@pattern(4, 4)
def transform_of_many_elements(g):
    g.output(g.DFT(g.input(1, 4096, 1), axis=1, onesided=1))


@pattern(2, 3)
def short_time_transform(g):
    window = g.constant(np.hanning(64).astype(np.float32))
    g.output(g.STFT(g.input(1, 1024, 1), g.constant(np.int64(16)), window, onesided=1))


@pattern(2, 2)
def positions_of_sines(g):
    # Embeddings of positions that are computed in the model.
    query, _ = order(g, 64)
    steps = g.constant((1e4 ** (-np.arange(16) / 16)).astype(np.float32))
    angles = g.Mul(g.Cast(query, to=TYPES["f32"]), steps)
    g.output(g.Add(g.input(2, 64, 32), g.Concat(g.Sin(angles), g.Cos(angles), axis=1)))


@pattern(2, 2)
def one_hot(g):
    ids = g.input(16, dtype="i64", high=10)
    g.output(g.OneHot(ids, g.ints(10), np.array([0, 1], np.float32)))


@pattern(2, 2)
def embeddings_of_constant_positions(g):
    ids = g.input(1, 64, dtype="i64", high=100)
    at = g.Range(g.constant(np.int64(0)), g.constant(np.int64(64)), g.constant(np.int64(1)))
    g.output(g.Add(g.Gather(g.weight(100, 32), ids), g.Unsqueeze(g.Gather(g.weight(128, 32), at), g.ints(0))))


# Recurrent layers.

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(g, cell, x, sizes, direction="forward", lengths=None, **attributes):
    """One layer as torch's exporters write it: `[time, batch, inputs]` to `[time, batch, directions * hidden]`, and its last states."""
    inputs, hidden = sizes
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[cell] * hidden
    weights = [g.weight(directions, rows, columns, scale=hidden**-0.5) for columns in (inputs, hidden)]
    bias = g.weight(directions, 2 * rows)
    if cell == "GRU":
        attributes.setdefault("linear_before_reset", 1)
    layer = getattr(g, cell)
    results = layer(x, *weights, bias, lengths, outputs=2, hidden_size=hidden, direction=direction, **attributes)
    y = g.Reshape(g.Transpose(results[0], perm=[0, 2, 1, 3]), g.ints(0, 0, -1))
    return y, results[1]


@pattern(6, 7, cell=["RNN", "GRU", "LSTM"], direction=["forward", "bidirectional"])
def recurrent_layers_of_batches_first(g, cell, direction):
    columns = 64 if direction == "bidirectional" else 32
    x = g.Transpose(g.input(3, 12, 24), perm=[1, 0, 2])
    x, first = recurrent(g, cell, x, (24, 32), direction)
    x, second = recurrent(g, cell, x, (columns, 32), direction)
    last = g.Gather(g.Transpose(x, perm=[1, 0, 2]), g.constant(np.int64(-1)), axis=1)
    g.output(g.linear(last, columns, 5))
    g.output(g.Concat(first, second, axis=0))


@pattern(3, 4, cell=["RNN", "GRU", "LSTM"])
def recurrent_layer_from_the_end(g, cell):
    y, _ = recurrent(g, cell, g.input(20, 1, 48), (48, 40), "reverse")
    g.output(y)


@pattern(3, 4)
def recurrent_layer_that_resets_before(g):
    y, _ = recurrent(g, "GRU", g.input(9, 4, 16), (16, 24), linear_before_reset=0)
    g.output(y)


@pattern(4, 5, cell=["GRU", "LSTM"])
def recurrent_layer_of_given_lengths(g, cell):
    lengths = g.Cast(g.input(6, dtype="i64", high=10), to=TensorProto.INT32)
    y, last = recurrent(g, cell, g.input(9, 6, 16), (16, 32), "bidirectional", lengths)
    g.output(y)
    g.output(last)


@pattern(3, 3)
def recurrent_layer_of_a_wide_state(g):
    y, _ = recurrent(g, "LSTM", g.input(4, 2, 64), (64, 512))
    g.output(y)


@pattern(5, 5, written=["at once", "a step at a time"])
def recurrence_that_the_exporter_unrolled(g, written):
    """Averages of values that were weighted by exponentials of keys, as RWKV has them: 16 elementwise operators a step."""
    steps, columns = 40, 64
    keys, values = g.input(1, steps, columns), g.input(1, steps, columns)
    decay, bonus = g.weight(columns), g.weight(columns)
    largest, above, below = g.input(1, columns), g.input(1, columns), g.Exp(g.input(1, columns))
    result, rows = g.constant(np.zeros((1, steps, columns), np.float32)), []
    for step in range(steps):
        at = g.constant(np.int64(step))
        key, value = g.Gather(keys, at, axis=1), g.Gather(values, at, axis=1)

        def averaged(added):
            most = g.Max(largest, added)
            old, new = g.Exp(g.Sub(largest, most)), g.Exp(g.Sub(added, most))
            return most, g.Add(g.Mul(old, above), g.Mul(new, value)), g.Add(g.Mul(old, below), new)

        _, numerator, denominator = averaged(g.Add(key, bonus))
        rows.append(g.Div(numerator, denominator))
        result = g.ScatterND(result, g.constant(np.array([[[0, step]]])), g.Unsqueeze(rows[-1], g.ints(1)))
        largest = g.Add(largest, decay)
        largest, above, below = averaged(key)
    g.output(g.Concat(*rows, axis=0) if written == "at once" else result)
    g.output(above)


def models():
    """Names, models, most kernels on a CPU and on a GPU."""
    for name, build, cpu, gpu, opset in PATTERNS:
        graph = Graph(opset)
        build(graph)
        yield name, graph.model(name), cpu, gpu
