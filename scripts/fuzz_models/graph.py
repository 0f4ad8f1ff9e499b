"""A graph under construction, whose every value is known as an array.

Each added node is run by ONNX Runtime at once. So recipes see shapes, types and ranges of what they build on, and a
node whose result would be of no use (too large, overflowing, not to be computed) is taken back.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import oracle

MOST_ELEMENTS = 6000
# Results of plain graphs stay below these.
LARGEST = {"float16": 2e2, "float32": 1e4, "float64": 1e4}
LARGEST_INTEGER = 1 << 22
DIMS = [1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 19, 31, 33]
FLOATS = ("float32", "float16", "float64")
INTS = ("int64", "int32")
SMALL_INTS = ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
SPECIAL_VALUES = [np.nan, np.inf, -np.inf, -0.0, 0.0]


class Reject(Exception):
    """A recipe cannot go on; what it has added is taken back."""


class Value:
    """A tensor of the graph and what it is for the drawn inputs."""

    def __init__(self, name, array, constant=False):
        self.name = name
        self.array = array
        self.constant = constant

    shape = property(lambda self: self.array.shape)
    rank = property(lambda self: self.array.ndim)
    dtype = property(lambda self: self.array.dtype.name)

    def finite(self):
        """Whether there is neither NaN nor infinity."""
        return bool(np.isfinite(self.array).all())

    def within(self, low, high):
        """Whether all elements are in [low, high]; NaN counts as inside."""
        with np.errstate(all="ignore"):
            return not np.any(self.array < low) and not np.any(self.array > high)


class Builder:
    """Nodes, inputs and constants so far, and how recipes find and add more."""

    def __init__(self, rng, opset, special):
        self.rng = rng
        self.opset = opset
        self.special = special
        self.main_float = self.choice(["float32"] * 17 + ["float16", "float16", "float64"])
        self.values, self.nodes, self.inputs, self.constants = [], [], {}, {}
        self.refused_by_onnxruntime = False
        self.numbered = 0

    # Random choices.
    def chance(self, probability):
        return self.rng.random() < probability

    def choice(self, options):
        return options[int(self.rng.integers(len(options)))]

    def int(self, low, high):
        """A whole number in [low, high]."""
        return int(self.rng.integers(low, high + 1))

    def uniform(self, low, high):
        return round(float(self.rng.uniform(low, high)), 3)

    def axis(self, rank, least=0):
        """An axis, sometimes counted from the end."""
        axis = self.int(least, rank - 1)
        return axis - rank if self.chance(0.3) else axis

    def axes(self, rank, least=1):
        """Distinct axes, sometimes counted from the end."""
        if not rank:
            return []
        chosen = self.rng.permutation(rank)[: self.int(min(least, rank), rank)]
        return [int(a) - rank if self.chance(0.2) else int(a) for a in sorted(chosen)]

    def name(self, prefix):
        self.numbered += 1
        return f"{prefix}{self.numbered}"

    def snapshot(self):
        return len(self.values), len(self.nodes), dict(self.inputs), dict(self.constants), self.refused_by_onnxruntime

    def restore(self, snapshot):
        values, nodes, self.inputs, self.constants, self.refused_by_onnxruntime = snapshot
        del self.values[values:]
        del self.nodes[nodes:]

    # Shapes and new tensors.
    def shape(self, rank=None, most=1500):
        """Dimensions with 1s, primes and, in special graphs, 0s."""
        rank = self.choice([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5]) if rank is None else rank
        dims = [self.choice(DIMS) for _ in range(rank)]
        while int(np.prod(dims)) > most:
            dims[int(np.argmax(dims))] = self.choice([1, 2, 3, 5])
        if self.special and rank and self.chance(0.1):
            dims[self.int(0, rank - 1)] = 0
        return tuple(dims)

    def _array(self, shape, dtype, low, high):
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype not in FLOATS:
            info = np.iinfo(dtype)
            low, high = max(np.ceil(-9 if low is None else low), info.min), min(
                np.floor(9 if high is None else high), info.max
            )
            return self.rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        style = self.int(0, 9)
        unbounded = low is None and high is None
        low = (-3.0 if high is None else high - 6.0) if low is None else low
        high = low + 6.0 if high is None else high
        array = self.rng.uniform(low, high, shape)
        if style == 0 and unbounded:
            array = np.round(array)
        elif style == 1 and unbounded:
            array = self.rng.standard_normal(shape)
        elif style == 2 and unbounded and np.size(array):
            array = np.where(self.rng.random(shape) < 0.3, 0.0, array)
        array = np.asarray(array)
        if self.special and array.size and self.chance(0.35):
            array = array.copy()
            for _ in range(self.int(1, 3)):
                array.flat[self.int(0, array.size - 1)] = self.choice(SPECIAL_VALUES)
        return array.astype(dtype)

    def new(self, shape, dtype, low=None, high=None, constant=None):
        """A new input or constant."""
        array = np.asarray(self._array(tuple(shape), dtype, low, high))
        if constant or (constant is None and self.chance(0.35)):
            return self.constant(array)
        value = Value(self.name("x"), array)
        self.inputs[value.name] = array
        self.values.append(value)
        return value

    def constant(self, array, dtype=None):
        """An initialiser, or sometimes a Constant node; not offered to later recipes unless it is a float tensor."""
        array = np.asarray(array, dtype=dtype)
        value = Value(self.name("c"), array, constant=True)
        if self.chance(0.15):
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=numpy_helper.from_array(array)))
        self.constants[value.name] = array
        return value

    def ints(self, items):
        """A constant 1-D i64 tensor: axes, sizes, a shape."""
        return self.constant(np.array(items, np.int64).reshape(-1))

    # Finding inputs.
    def matching(self, dtypes, rank, low, high, shape, nonempty, where):
        least, most = (0, 9) if rank is None else (rank, rank) if isinstance(rank, int) else rank
        low_, high_ = -np.inf if low is None else low, np.inf if high is None else high
        return [
            v
            for v in self.values
            if v.dtype in dtypes
            and least <= v.rank <= most
            and (shape is None or v.shape == tuple(shape))
            and (not nonempty or v.array.size)
            and (where is None or where(v))
            and v.within(low_, high_)
        ]

    def tensor(self, dtypes, rank=None, low=None, high=None, shape=None, nonempty=False, where=None, new_shape=None):
        """An existing value that fits, mostly a late one, or a new one."""
        fitting = self.matching(dtypes, rank, low, high, shape, nonempty, where)
        if fitting and self.chance(0.85):
            back = min(int(self.rng.geometric(0.25)), len(fitting))
            return fitting[-back]
        dtype = self.choice(dtypes)
        if isinstance(rank, tuple):
            rank = self.int(*rank)
        if shape is None:
            shape = new_shape if new_shape is not None else self.shape(rank)
        if nonempty:
            shape = tuple(d or 1 for d in shape)
        if dtype in FLOATS and (low is not None or high is not None) and self.chance(0.5):
            loose = self.matching(
                (dtype,), len(shape), None, None, None if new_shape is None else shape, nonempty, where
            )
            if loose:
                return self.clipped(loose[-1], low, high)
        value = self.adapted(shape, dtype, low, high) or self.new(shape, dtype, low, high)
        if where is not None and not where(value):
            raise Reject
        return value

    def adapted(self, shape, dtype, low, high):
        """Elements of an existing value in another shape, so that graphs hang together; or None."""
        count = int(np.prod(shape))
        large = [v for v in self.matching((dtype,), None, None, None, None, True, None) if v.array.size >= count]
        if not large or not count or self.chance(0.4):
            return None
        value = large[-min(int(self.rng.geometric(0.3)), len(large))]
        if value.array.size > count:
            flat = self.node("Reshape", [value, self.ints([-1])])
            value = self.node("Slice", [flat, self.ints([0]), self.ints([count])])
        value = self.node("Reshape", [value, self.ints(shape)])
        low_, high_ = -np.inf if low is None else low, np.inf if high is None else high
        if value.within(low_, high_):
            return value
        return self.clipped(value, low, high) if dtype in FLOATS else None

    def clipped(self, value, low, high):
        """A value in [low, high] made of another one."""
        low = -1e3 if low is None else low
        high = 1e3 if high is None else high
        bounds = [self.constant(np.array(b, value.dtype)) for b in (low, high)]
        return self.node("Clip", [value, *bounds])

    def float(self, rank=None, low=None, high=None, **more):
        """A tensor of the graph's main float type, or seldom of another one."""
        dtypes = FLOATS if self.chance(0.05) else (self.main_float,)
        return self.tensor(dtypes, rank, low, high, **more)

    def like(self, value, low=None, high=None, dtype=None):
        """A tensor that broadcasts with `value`, of the same type."""
        dtype = dtype or value.dtype

        def fits(other):
            return all(a == b or 1 in (a, b) for a, b in zip(other.shape[::-1], value.shape[::-1]))

        fitting = [v for v in self.matching((dtype,), None, low, high, None, False, fits)]
        if fitting and self.chance(0.7):
            return fitting[-min(int(self.rng.geometric(0.25)), len(fitting))]
        shape = [d if self.chance(0.75) else 1 for d in value.shape]
        if shape and self.chance(0.3):
            shape = shape[self.int(1, len(shape)) :]
        if self.chance(0.05) and value.array.size < 200:
            shape = [self.choice([2, 3])] * 1 + list(value.shape) if len(shape) < 5 else shape
        return self.new(shape, dtype, low, high)

    # Adding nodes.
    def emit(self, nodes, inputs, outputs):
        """Adds nodes that read `inputs` and returns the values of `outputs`; raises Reject if they are of no use."""
        arrays = {v.name: v.array for v in inputs if v is not None and not v.constant}
        constants = {v.name: v.array for v in inputs if v is not None and v.constant}
        model = oracle.small_model(nodes, arrays, constants, outputs, self.opset)
        try:
            results = oracle.onnxruntime_answer(model, arrays)
        except oracle.Refused:
            if not self.chance(0.02):
                raise Reject from None
            try:
                results = oracle.reference_answer(model, arrays)
            except oracle.Refused:
                raise Reject from None
            self.refused_by_onnxruntime = True
        results = [np.asarray(r) for r in results]
        for result in results:
            self._check(result)
        self.nodes.extend(nodes)
        values = [Value(name, result) for name, result in zip(outputs, results)]
        self.values.extend(values)
        return values

    def _check(self, array):
        if array.size > MOST_ELEMENTS or array.dtype.name not in FLOATS + INTS + SMALL_INTS + ("bool",):
            raise Reject
        if not array.size:
            if not self.special:
                raise Reject
            return
        if array.dtype.name in FLOATS:
            finite = np.isfinite(array)
            if not self.special and not finite.all():
                raise Reject
            if np.any(np.abs(array[finite]) > LARGEST[array.dtype.name]):
                raise Reject
        elif array.dtype.name in ("int64", "int32", "uint32", "uint64"):
            if array.min() < -LARGEST_INTEGER or array.max() > LARGEST_INTEGER:
                raise Reject

    def node(self, operator, inputs, outputs=1, captured=(), **attributes):
        """Adds one node; `inputs` may have None. Returns its value, or a list if there are several outputs."""
        names = [self.name("t") for _ in range(outputs)]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        inputs = list(inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = helper.make_node(operator, ["" if v is None else v.name for v in inputs], names, **attributes)
        values = self.emit([node], [*inputs, *captured], names)
        return values[0] if outputs == 1 else values

    # The whole.
    def model(self, outputs):
        """The model with these outputs and what they need, its inputs, and all values by name."""
        producers = {name: node for node in self.nodes for name in node.output if name}
        needed, waiting = set(), list(outputs)
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            if name in producers:
                waiting.extend(names_read(producers[name]))
        nodes = [n for n in self.nodes if any(name in needed for name in n.output)]
        made = {name for n in nodes for name in n.output}
        arrays = {v.name: v.array for v in self.values}
        graph = helper.make_graph(
            nodes,
            "random",
            [oracle.value_info(n, a) for n, a in self.inputs.items() if n in needed],
            [oracle.value_info(n, arrays[n]) for n in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in needed and n not in made],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=oracle.IR_VERSION,
            producer_name="fuzz-models",
        )
        return model, {n: a for n, a in self.inputs.items() if n in needed}


def names_read(node):
    """Names of outer values that a node reads, those of its subgraphs included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)):
            inner = {i.name for i in graph.input} | {i.name for i in graph.initializer}
            for body_node in graph.node:
                names.extend(name for name in names_read(body_node) if name not in inner)
                inner.update(body_node.output)
            names.extend(o.name for o in graph.output if o.name not in inner)
    return names
