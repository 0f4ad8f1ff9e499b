"""Graphs of ATen calls as documents, which the compiler imports (`crates/orch-aten/src/document.rs` has the format).

A document is plain data: it can be stored, hashed, sent in a bug report, and compiled without PyTorch.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Sequence
from typing import Any, Union

import torch
from torch.fx import GraphModule, Node

FORMAT = "orchestrion-aten"
VERSION = 1

#: The most elements of a constant that is stored in the document.
MAX_CONSTANT_ELEMENTS = 65_536

#: The name of the output that says whether all indices were in range.
INDEX_CHECK = "indices_in_range"

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}

#: Targets whose indices eager checks. A graph with one of them has the output `INDEX_CHECK`.
INDEXED = frozenset({
    "aten.embedding.default",
    "aten.embedding_dense_backward.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten.index_select.default",
    "aten.masked_scatter.default",
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
})

#: Targets that draw random numbers. A graph with one of them has the input `SEED`, the last one.
RANDOM = frozenset({
    "aten.bernoulli.default",
    "aten.bernoulli.p",
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randn.default",
    "aten.randn_like.default",
})

#: Targets that read a tensor's memory, and the position of `storage_offset` among their arguments. In a document it counts from the
#: tensor's first element.
STRIDED = {"aten.as_strided.default": 3, "aten.as_strided_scatter.default": 4}

#: The name of the input i64[1] that random numbers come from: each run is to have another one. No node has such a name.
SEED = "random seed"


class DocumentError(ValueError):
    """A graph holds what documents do not."""


def document(
    gm: GraphModule,
    example_inputs: Sequence[object] = (),
    *,
    name: str = "",
    kinds: Sequence[str] | None = None,
    check_indices: bool = True,
) -> dict[str, Json]:
    """The document of a graph of ATen calls.

    Types come from `meta["val"]` of the nodes. All sizes have to be concrete. `kinds` says what each input is
    (`"input"`, `"parameter"`, `"buffer"`); without it, parameters among `example_inputs` are taken as such.

    Calls of `aten.copy_` into inputs become mutations: outputs after those of the graph, with the input that each is to be
    copied into. With `check_indices`, a graph that reads or writes by index has one more output at the end,
    `INDEX_CHECK`: false if an index was out of range. A graph that draws random numbers has one more input at the end, `SEED`, and
    each call that draws them has a number of its own.

    Raises `DocumentError` for what documents do not hold.
    """
    return _Writer(gm, example_inputs, kinds).write(name, check_indices)


def target_name(node: Node) -> str:
    """The overload that a node calls, as `aten.add.Tensor`."""
    return str(node.target)


def source_line(node: Node) -> str:
    """The line of the user's program that a node was traced from, as `file.py:7: code`; empty if it is not known."""
    trace = node.meta.get("stack_trace")
    if not isinstance(trace, str):
        return ""
    frames = re.findall(r'File "([^"]*)", line (\d+), in [^\n]*(?:\n\s*([^\n]*))?', trace)
    if not frames:
        return ""
    path, line, code = frames[-1]
    return f"{os.path.basename(path)}:{line}: {code.strip()}"[:200]


def first_strided(source: object, storage_offset: object) -> int:
    """How many elements of a tensor lie before what `as_strided` reads of it, whose offset counts from the start of the memory."""
    tensor = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(tensor, torch.Tensor):
        raise DocumentError("strides of what is no tensor")
    what = "the start of a tensor in its memory"
    return 0 if storage_offset is None else concrete(storage_offset, what) - concrete(tensor.storage_offset(), what)


def tensor_type(value: object, what: str) -> dict[str, Json]:
    """Element type, shape and strides of a tensor."""
    if not isinstance(value, torch.Tensor):
        raise DocumentError(f"{what} is {type(value).__name__}, a tensor is expected")
    if value.layout != torch.strided or value.is_quantized:
        raise DocumentError(f"{what} is not a plain tensor ({value.layout})")
    if value.is_conj() or value.is_neg():
        raise DocumentError(f"{what} is a conjugated or negated view")
    return {
        "dtype": dtype_name(value.dtype, what),
        "shape": [concrete(size, what) for size in value.shape],
        "strides": [concrete(stride, what) for stride in value.stride()],
    }


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """The name of an element type."""
    if dtype not in DTYPES:
        raise DocumentError(f"{what} has elements of type {dtype}")
    return DTYPES[dtype]


def concrete(size: object, what: str) -> int:
    """A size that is known."""
    if isinstance(size, torch.SymInt):
        known = size.node.maybe_as_int()
        if known is None:
            raise DocumentError(f"{what} has the symbolic size {size}")
        return int(known)
    if not isinstance(size, int):
        raise DocumentError(f"{what} has the size {size!r}")
    return size


class _Writer:
    """Walks one graph."""

    def __init__(self, gm: GraphModule, example_inputs: Sequence[object], kinds: Sequence[str] | None) -> None:
        self.gm = gm
        self.example_inputs = example_inputs
        self.kinds = kinds
        self.inputs: list[Json] = []
        self.constants: list[Json] = []
        self.nodes: list[Json] = []
        #: What each node of the graph is in the document.
        self.references: dict[Node, dict[str, Json]] = {}
        self.positions: dict[Node, int] = {}
        #: Values to be copied into inputs, with the positions of the inputs.
        self.copies: dict[int, Node] = {}
        self.indexed = False
        #: Calls that draw random numbers.
        self.random = 0

    def write(self, name: str, check_indices: bool) -> dict[str, Json]:
        outputs: list[Json] = []
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "get_attr":
                self.constant(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                outputs = self.outputs(node)
            else:
                raise DocumentError(f"node `{node.name}` is a {node.op}")
        if self.random:
            self.inputs.append({"name": SEED, "dtype": "i64", "shape": [1], "strides": [1], "kind": "input"})
        mutations: list[Json] = []
        for position, value in self.copies.items():
            mutations.append({"output": len(outputs), "input": position})
            outputs.append(self.output(value))
        result: dict[str, Json] = {
            "format": FORMAT,
            "version": VERSION,
            "name": name,
            "producer": f"torch {torch.__version__}",
            "inputs": self.inputs,
            "constants": self.constants,
            "nodes": self.nodes,
            "outputs": outputs,
            "mutations": mutations,
        }
        if check_indices and self.indexed:
            result["index_check"] = INDEX_CHECK
        return result

    def placeholder(self, node: Node) -> None:
        position = len(self.inputs)
        kind = "input"
        if self.kinds is not None:
            kind = self.kinds[position]
        elif position < len(self.example_inputs):
            if isinstance(self.example_inputs[position], torch.nn.Parameter):
                kind = "parameter"
        known = tensor_type(node.meta.get("val"), f"input `{node.name}`")
        self.inputs.append({"name": node.name, **known, "kind": kind})
        self.references[node] = {"value": node.name}
        self.positions[node] = position

    def constant(self, node: Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
            raise DocumentError(f"attribute `{node.target}` is {type(value).__name__}, a constant tensor is expected")
        known = tensor_type(value, f"constant `{node.name}`")
        if value.numel() > MAX_CONSTANT_ELEMENTS:
            raise DocumentError(f"constant `{node.name}` has {value.numel()} elements")
        self.constants.append({
            "name": node.name,
            "dtype": known["dtype"],
            "shape": known["shape"],
            "values": elements(value),
        })
        self.references[node] = {"value": node.name}

    def call(self, node: Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, Node) and isinstance(index, int)
            reference = self.references[source]
            if "index" in reference:
                raise DocumentError(f"node `{node.name}` is an element of an element")
            # Only the results of calls are taken apart.
            self.references[node] = {**reference, "index": index}
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise DocumentError(f"node `{node.name}` calls {node.target}")
        if node.target is torch.ops.aten.copy_.default:
            self.mutation(node)
            return
        if node.target._schema.is_mutable:
            raise DocumentError(f"node `{node.name}` ({node.target}) changes an argument")
        target = target_name(node)
        self.indexed = self.indexed or target in INDEXED
        kwargs = {key: self.argument(argument, node) for key, argument in node.kwargs.items()}
        args = [self.argument(argument, node) for argument in node.args]
        if target in STRIDED:
            at = STRIDED[target]
            given = node.args[at] if len(node.args) > at else node.kwargs.get("storage_offset")
            args, kwargs = args[:at], {**kwargs, "storage_offset": first_strided(node.args[0], given)}
        if target in RANDOM:
            kwargs |= {"seed": {"value": SEED}, "stream": self.random}
            self.random += 1
        self.nodes.append({
            "name": node.name,
            "target": target,
            "args": args,
            "kwargs": kwargs,
            "results": self.results(node),
            "where": source_line(node),
        })
        self.references[node] = {"value": node.name}

    def mutation(self, node: Node) -> None:
        target, value = node.args[0], node.args[1]
        if not isinstance(target, Node) or not isinstance(value, Node) or target not in self.positions:
            raise DocumentError(f"node `{node.name}` copies into what is no input")
        mine, other = target.meta.get("val"), value.meta.get("val")
        assert isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor)
        if mine.shape != other.shape or mine.dtype != other.dtype:
            raise DocumentError(f"node `{node.name}` copies a tensor of another type")
        self.copies[self.positions[target]] = value
        self.references[node] = self.references[value]

    def results(self, node: Node) -> list[Json]:
        value = node.meta.get("val")
        what = f"result of `{node.name}`"
        if isinstance(value, (tuple, list)):
            # Attention on GPUs has numbers among its results.
            return [tensor_type(item, what) if isinstance(item, torch.Tensor) else None for item in value]
        return [tensor_type(value, what)]

    def outputs(self, node: Node) -> list[Json]:
        values = node.args[0]
        if isinstance(values, Node):
            values = (values,)
        if not isinstance(values, (tuple, list)):
            raise DocumentError(f"the outputs are {type(values).__name__}")
        return [None if value is None else self.output(value) for value in values]

    def output(self, value: object) -> dict[str, Json]:
        if not isinstance(value, Node):
            raise DocumentError(f"an output is {value!r}")
        known = tensor_type(value.meta.get("val"), f"output `{value.name}`")
        return {**self.references[value], "strides": known["strides"]}

    def argument(self, argument: object, node: Node) -> Json:
        if isinstance(argument, Node):
            value = argument.meta.get("val")
            # Attention on GPUs has numbers and nothing among its results.
            if argument.target is operator.getitem and not isinstance(value, torch.Tensor) and "val" in argument.meta:
                return self.argument(value, node)
            return dict(self.references[argument])
        if isinstance(argument, (tuple, list)):
            return [self.argument(item, node) for item in argument]
        if argument is None or isinstance(argument, (bool, str)):
            return argument
        if isinstance(argument, torch.SymInt):
            return concrete(argument, f"an argument of `{node.name}`")
        if isinstance(argument, int):
            return argument
        if isinstance(argument, float):
            return {"float": float_name(argument)} if not math.isfinite(argument) else argument
        if isinstance(argument, torch.dtype):
            return {"dtype": dtype_name(argument, f"an argument of `{node.name}`")}
        if isinstance(argument, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise DocumentError(f"an argument of `{node.name}` ({node.target}) is {argument!r}")


def float_name(value: float) -> str:
    """A number that JSON has no literal for."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def elements(value: torch.Tensor) -> list[Json]:
    """The elements of a tensor in row-major order; those that JSON has no literal for as texts."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    if value.dtype == torch.bool:
        return [int(item) for item in flat.tolist()]
    if not value.dtype.is_floating_point:
        return [int(item) for item in flat.tolist()]
    return [item if math.isfinite(item) else float_name(item) for item in flat.to(torch.float64).tolist()]
