"""Compiled graphs of ATen calls, and how they are called."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import torch
from torch.fx import GraphModule

from orchestrion import _native
from orchestrion.torch._document import DTYPES, DocumentError, document
from orchestrion.torch._placement import memory_of
from orchestrion.torch._saved import opened
from orchestrion.torch._strides import dense_order

_LOG = logging.getLogger("orchestrion.torch")

Tensors = Sequence[Any]
#: Called at each tick of a compilation; raises to stop it.
Watch = Callable[[str, int, int], None]


#: An output in the memory of an input: the input's number, shape, strides, elements from its start, whether it is all of it.
_Alias = tuple[int, list[int], list[int], int, bool]
#: An output in memory of its own: shape, strides, element type, and the order of dimensions in which it lies without gaps, if there is
#: one but row-major.
_Made = tuple[list[int], list[int], str, list[int] | None]
#: An output; a number: it is the output of that position; None: it is none.
_Output = Union[_Alias, _Made, int, None]
#: A slab: element type, elements, and its parts with the elements before each.
_SlabOutput = tuple[str, int, list[tuple[_Made, int]]]


class Unit:
    """A graph of ATen calls that is compiled as a whole: a callable over its tensors.

    Outputs have the strides that the graph was traced with. Outputs that are views of inputs are made as such, inputs that the graph
    changes are changed, and an index out of range is an `IndexError`. Random numbers come from a seed that each run draws from PyTorch's
    generator.
    """

    def __init__(
        self,
        gm: GraphModule,
        options: Mapping[str, Any],
        fixed: Mapping[str, torch.Tensor] | None = None,
        watch: Watch | None = None,
        images: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """
        :param images: outputs that have the strides of these tensors, not those of the graph, by position.
        """
        open_graph = opened(gm)
        gm = open_graph.gm
        doc: dict[str, Any] = document(gm)
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        inputs = [node.meta["val"] for node in placeholders]
        sources = list(open_graph.inputs)
        #: Where each run draws the seed of its random numbers, if it has any: in a capture as eager's calls do.
        self._seed_device: str | None = None
        if len(doc["inputs"]) > len(inputs):
            self._seed_device = options.get("target", "cpu")
            inputs.append(torch.empty(1, dtype=torch.int64))
            sources.append((open_graph.given, None))
        [output] = [node for node in gm.graph.nodes if node.op == "output"]
        results = output.args[0]
        values = [results] if isinstance(results, torch.fx.Node) else list(results)
        metas = [None if value is None else value.meta["val"] for value in values]
        for position, image in {**(images or {}), **open_graph.images}.items():
            metas[position] = image
        changed = {row["input"] for row in doc["mutations"]}
        plain = [row["name"] for row in doc["inputs"]]
        orders = _enter_dense(doc, inputs)
        shown = {
            node: position for position, node in enumerate(placeholders) if position not in changed and sources[position][1] is None
        }
        outputs = _plan_outputs(values, metas, inputs, sources, shown, doc)
        self._repeated = outputs.repeated
        written = [row["input"] for row in doc["mutations"]]
        #: Inputs that each call changes.
        self._mutations = [sources[position][0] for position in written]
        first = len(outputs.kept) - len(written)
        changes = [_change(doc, outputs.kept, first + number, inputs[position], orders[position]) for number, position in enumerate(written)]
        fixed = fixed or {}
        given = [(position, order, start) for name, order, (position, start) in zip(plain, orders, sources) if name not in fixed]
        entered = {
            row["name"]: fixed[name].cpu() if order is None else fixed[name].cpu().permute(*order)
            for row, name, order in zip(doc["inputs"], plain, orders)
            if name in fixed
        }
        doc["outputs"] = outputs.kept
        doc["mutations"] = [
            {"output": first + number, "input": position} for number, position in enumerate(written)
        ]
        #: What is compiled: data that can be stored and compiled again without the model.
        self.document = json.dumps(doc).encode()
        #: Keeps the executable for other units of the same graph.
        self._held = _compiled(self.document, dict(options), entered, watch)
        checks_indices = doc.get("index_check") is not None
        plan = _in_slabs(outputs.plan, open_graph.slabs)
        graph = _native.Graph(self._held.native, given, plan, changes, checks_indices)
        self._graph, self._run = graph, graph.run
        #: Inputs that each call changes, and those of them that kernels update where they are.
        self.changed, self.in_place = len(changes), graph.in_place

    @property
    def launches(self) -> str | None:
        """How kernels reach the GPU, and what runs took in each mode; None until it was chosen, and on a CPU."""
        return self._graph.launches

    def __call__(self, tensors: list[Any]) -> list[Any]:
        """Runs on the graph's inputs, in order."""
        if self._seed_device is not None:
            seed = torch.randint(-(1 << 63), (1 << 63) - 1, (1,), dtype=torch.int64, device=self._seed_device)
            tensors = [*tensors, seed]
        results, copies = self._run(tensors)
        for position, (shape, strides) in self._repeated.items():
            results[position] = results[position].as_strided(shape, strides)
        if copies:
            self._finish(tensors, copies)
        return results

    def _finish(self, tensors: list[Any], copies: list[Any]) -> None:
        """Copies what was not changed in place, and tells autograd of what was."""
        in_place = []
        with torch.no_grad():
            for position, copy in zip(self._mutations, copies, strict=True):
                if copy is not None:
                    tensors[position].copy_(copy)
                elif not tensors[position].is_inference():
                    in_place.append(tensors[position])
        # One call, as statistics of a network are hundreds of tensors.
        torch.autograd.graph.increment_version(in_place)


def _change(doc: dict[str, Any], kept: list[Any], number: int, value: torch.Tensor, order: list[int] | None) -> _Made:
    """How the new value of an input is made where the input is not changed in place: in the order of dimensions in which that lies."""
    shape = list(map(int, value.shape))
    dtype = DTYPES[value.dtype]
    if order is None:
        return shape, _row_major(shape), dtype, None
    kept[number] = _leave_dense(doc, kept[number], shape, dtype, order, number)
    return shape, list(map(int, value.stride())), dtype, order


def _inverse(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[dim] = position
    return inverse


def _permuted(row: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A type with its dimensions in another order, row-major."""
    shape = [row["shape"][dim] for dim in order]
    return {"dtype": row["dtype"], "shape": shape, "strides": _row_major(shape)}


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def _enter_dense(doc: dict[str, Any], inputs: Tensors) -> list[list[int] | None]:
    """Makes the document take inputs that lie in another order of dimensions as they lie: kernels read them so, and nothing is copied.

    Per input the order in which it is to be given.
    """
    orders: list[list[int] | None] = []
    entering = []
    for row, value in zip(doc["inputs"], inputs, strict=True):
        order = dense_order(value.shape, value.stride())
        orders.append(order)
        if order is None:
            continue
        logical = dict(row)
        name = row["name"]
        row.update(_permuted(row, order))
        row["name"] = f"{name}__dense"
        entering.append({
            "name": name,
            "target": "aten.permute.default",
            "args": [{"value": row["name"]}, _inverse(order)],
            "kwargs": {},
            "results": [{"dtype": logical["dtype"], "shape": logical["shape"], "strides": logical["strides"]}],
            "where": "",
        })
    doc["nodes"][:0] = entering
    return orders


@dataclass(frozen=True)
class _Outputs:
    """How the outputs of a graph are made."""

    #: How each is made; None: it is none; a number: it is the output of that position.
    plan: list[_Output]
    #: The outputs of the document that are left.
    kept: list[Any]
    #: Those whose elements repeat along dimensions, by position: they are made once, and shown with these shapes and strides.
    repeated: dict[int, tuple[list[int], list[int]]]


def _in_slabs(plan: Sequence[_Output], slabs: Sequence[tuple[int, list[int]]]) -> list[_Output | _SlabOutput]:
    """How outputs are made, the last ones as parts of slabs: elements of each slab, and how many stand before each part."""
    apart = len(plan) - sum(len(starts) for _, starts in slabs)
    given, rest = list(plan[:apart]), iter(plan[apart:])
    packed: list[_Output | _SlabOutput] = []
    for length, starts in slabs:
        parts = []
        for start in starts:
            made = next(rest)
            assert isinstance(made, tuple) and len(made) == 4, "parts of slabs are made"
            parts.append((made, start))
        packed.append((parts[0][0][2], length, parts))
    return [*given, *packed]


def _plan_outputs(
    values: Sequence[torch.fx.Node | None],
    metas: Tensors,
    inputs: Tensors,
    sources: Sequence[tuple[int, int | None]],
    shown: Mapping[torch.fx.Node, int],
    doc: dict[str, Any],
) -> _Outputs:
    """
    :param sources: per input the number of the graph's tensor, and where it begins if it is a part of that.
    :param shown: the inputs whose views are made as such, with their positions.
    """
    plan: list[_Output] = []
    kept: list[Any] = []
    made: dict[torch.fx.Node, int] = {}
    repeated: dict[int, tuple[list[int], list[int]]] = {}
    rows = doc["outputs"]
    for value, meta, row in zip(values, metas, rows[: len(metas)], strict=True):
        if value is None:
            plan.append(None)
            continue
        shape, strides = list(map(int, meta.shape)), list(map(int, meta.stride()))
        source = shown.get(_viewed(value)) if meta is value.meta["val"] else None
        if source is not None and meta.dtype == inputs[source].dtype:
            of = inputs[source]
            offset = int(meta.storage_offset()) - int(of.storage_offset())
            whole = offset == 0 and shape == list(of.shape) and strides == list(of.stride())
            plan.append((sources[source][0], shape, strides, offset, whole))
            continue
        first = made.setdefault(value, len(plan))
        if first < len(plan):
            if first in repeated:
                repeated[len(plan)] = repeated[first]
            plan.append(first)
            continue
        dtype = DTYPES[meta.dtype]
        if any(stride == 0 and size > 1 for size, stride in zip(shape, strides)):
            repeated[len(plan)] = (shape, strides)
            row, shape, strides = _once(doc, row, shape, strides, dtype, len(kept))
        if _overlaps(shape, strides):
            raise DocumentError(f"elements of an output share memory: strides {strides} of shape {shape}")
        order = dense_order(shape, strides)
        plan.append((shape, strides, dtype, order))
        kept.append(row if order is None else _leave_dense(doc, row, shape, dtype, order, len(kept)))
    kept += rows[len(metas) :]
    return _Outputs(plan, kept, repeated)


def _viewed(value: torch.fx.Node) -> torch.fx.Node:
    """The tensor that a value is a view of, itself if it is none.

    It is found along the views: several inputs may have one memory in the trace and not in a run, as halves of a result that another graph
    hands on.
    """
    own = memory_of(value)
    while value.op == "call_function":
        of = next((given for given in value.all_input_nodes if memory_of(given) & own), None)
        if of is None:
            break
        value = of
    return value


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if elements may share memory."""
    span = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides) if size > 1):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


def _once(
    doc: dict[str, Any], row: dict[str, Any], shape: list[int], strides: list[int], dtype: str, number: int
) -> tuple[dict[str, Any], list[int], list[int]]:
    """An output with the first of the elements that repeat, and its shape and strides."""
    reference: dict[str, Any] = {key: row[key] for key in ("value", "index") if key in row}
    shape, strides = list(shape), list(strides)
    for dim in range(len(shape)):
        if strides[dim] == 0 and shape[dim] > 1:
            shape[dim] = strides[dim] = 1
            name = f"output{number}__once{dim}"
            doc["nodes"].append({
                "name": name,
                "target": "aten.slice.Tensor",
                "args": [reference, dim, 0, 1],
                "kwargs": {},
                "results": [{"dtype": dtype, "shape": list(shape), "strides": _row_major(shape)}],
                "where": "",
            })
            reference = {"value": name}
    return {**reference, "strides": strides}, shape, strides


def _leave_dense(
    doc: dict[str, Any], row: dict[str, Any], logical: Sequence[int], dtype: str, order: Sequence[int], number: int
) -> dict[str, Any]:
    """An output in the order of dimensions in which it is to lie."""
    name = f"output{number}__dense"
    shape = [logical[dim] for dim in order]
    reference = {key: row[key] for key in ("value", "index") if key in row}
    doc["nodes"].append({
        "name": name,
        "target": "aten.permute.default",
        "args": [reference, list(order)],
        "kwargs": {},
        "results": [{"dtype": dtype, "shape": shape, "strides": _row_major(shape)}],
        "where": "",
    })
    return {"value": name, "strides": _row_major(shape)}


#: Executables in use, by what was compiled: equal graphs share one.
_EXECUTABLES: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


class _Held:
    """An executable that several units may use."""

    def __init__(self, native: _native.Executable) -> None:
        self.native = native


def _compiled(doc: bytes, options: dict[str, Any], fixed: dict[str, torch.Tensor], watch: Watch | None) -> _Held:
    key = hashlib.sha256(doc + repr(sorted(options.items())).encode()).hexdigest()
    _dump(doc, key)
    if not fixed:
        with _LOCK:
            found = _EXECUTABLES.get(key)
        if found is not None:
            return found
    held = _Held(_native.compile_aten(doc, options, fixed, watch))
    if not fixed:
        with _LOCK:
            held = _EXECUTABLES.setdefault(key, held)
    return held


def _dump(doc: bytes, key: str) -> None:
    """Writes a document to the folder that `ORCHESTRION_DUMP` names."""
    folder = os.environ.get("ORCHESTRION_DUMP")
    if not folder:
        return
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    target = path / f"graph-{key[:16]}.json"
    unfinished = path / f".{target.name}.{os.getpid()}.{threading.get_ident()}"
    unfinished.write_bytes(doc)
    unfinished.replace(target)
    _LOG.info("wrote %s: `orchestrion bench %s` runs it", target, target)
