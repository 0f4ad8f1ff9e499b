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
from typing import Any

import torch
from torch.fx import GraphModule

from orchestrion import _native
from orchestrion.torch._document import document

_LOG = logging.getLogger("orchestrion.torch")

Tensors = Sequence[Any]
#: Called at each tick of a compilation; raises to stop it.
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Alias:
    """An output that lies in the memory of an input: what is returned is a view."""

    input: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: Elements from the start of the input.
    offset: int


@dataclass(frozen=True)
class _Made:
    """An output in memory of its own."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    #: The order of dimensions in which it lies without gaps, if there is one: what the kernels write.
    order: tuple[int, ...] | None


class Unit:
    """A graph of ATen calls that is compiled as a whole: a callable over its tensors.

    Outputs have the strides that the graph was traced with. Outputs that are views of inputs are made as such, inputs that the graph
    changes are changed, and an index out of range is an `IndexError`.
    """

    def __init__(
        self,
        gm: GraphModule,
        options: Mapping[str, Any],
        fixed: Mapping[str, torch.Tensor] | None = None,
        watch: Watch | None = None,
    ) -> None:
        doc: dict[str, Any] = document(gm)
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        inputs = [node.meta["val"] for node in placeholders]
        [output] = [node for node in gm.graph.nodes if node.op == "output"]
        results = output.args[0]
        values = [results] if isinstance(results, torch.fx.Node) else list(results)
        metas = [None if value is None else value.meta["val"] for value in values]
        changed = {row["input"] for row in doc["mutations"]}
        self._inputs = _enter_dense(doc, inputs)
        self._plan, kept = _plan_outputs(metas, inputs, changed, doc)
        self._mutations = [row["input"] for row in doc["mutations"]]
        self._checks_indices = doc.get("index_check") is not None
        self._made = [plan for plan in self._plan if isinstance(plan, _Made)]
        self._fixed = frozenset(fixed or ())
        names = [row["name"] for row in doc["inputs"]]
        self._given = [position for position, name in enumerate(names) if name not in self._fixed]
        doc["outputs"] = kept
        doc["mutations"] = [
            {"output": len(kept) - len(self._mutations) + number, "input": position}
            for number, position in enumerate(self._mutations)
        ]
        #: What is compiled: data that can be stored and compiled again without the model.
        self.document = json.dumps(doc).encode()
        self._executable = _compiled(self.document, dict(options), dict(fixed or {}), watch)

    def __call__(self, tensors: Tensors) -> list[Any]:
        """Runs on the graph's inputs, in order."""
        given = []
        for position in self._given:
            tensor, order = tensors[position], self._inputs[position]
            given.append(tensor if order is None else tensor.detach().permute(order))
        made = [_empty(plan) for plan in self._made]
        out = [tensor for _, tensor in made]
        copies = [torch.empty_like(tensors[position], memory_format=torch.contiguous_format) for position in self._mutations]
        out += [copy.detach() for copy in copies]
        if self._checks_indices:
            in_range = torch.empty((), dtype=torch.bool)
            out.append(in_range)
        self._executable.run(tuple(given), {}, out)
        if self._checks_indices and not in_range.item():
            raise IndexError("index out of range in self")
        results: list[Any] = []
        fresh = iter(made)
        for plan in self._plan:
            if isinstance(plan, _Alias):
                source = tensors[plan.input]
                offset = source.storage_offset() + plan.offset
                whole = plan.shape == tuple(source.shape) and plan.strides == source.stride() and plan.offset == 0
                results.append(source if whole else source.as_strided(plan.shape, plan.strides, offset))
            elif plan is None:
                results.append(None)
            else:
                results.append(next(fresh)[0])
        with torch.no_grad():
            for position, copy in zip(self._mutations, copies, strict=True):
                tensors[position].copy_(copy)
        return results


def _empty(plan: _Made) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for an output: as the caller gets it, and as the kernels write it."""
    tensor = torch.empty_strided(plan.shape, plan.strides, dtype=plan.dtype)
    return tensor, tensor if plan.order is None else tensor.permute(plan.order)


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The order of dimensions in which a tensor lies row-major without gaps; None if it lies so already, or in no order."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim)))
    if order == tuple(range(len(shape))) or 0 in shape:
        return None
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != expected:
            return None
        expected *= shape[dim]
    return order


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


def _enter_dense(doc: dict[str, Any], inputs: Tensors) -> list[tuple[int, ...] | None]:
    """Makes the document take inputs that lie in another order of dimensions as they lie: kernels read them so, and nothing is copied.

    Per input the order in which it is to be given.
    """
    orders: list[tuple[int, ...] | None] = []
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


def _plan_outputs(
    metas: Tensors, inputs: Tensors, changed: set[int], doc: dict[str, Any]
) -> tuple[list[_Alias | _Made | None], list[Any]]:
    """How each output is made, and the outputs of the document that are left."""
    storages = {
        value.untyped_storage()._cdata: position
        for position, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and position not in changed
    }
    plan: list[_Alias | _Made | None] = []
    kept = []
    rows = doc["outputs"]
    for meta, row in zip(metas, rows[: len(metas)], strict=True):
        if meta is None:
            plan.append(None)
            continue
        shape, strides = tuple(map(int, meta.shape)), tuple(map(int, meta.stride()))
        source = storages.get(meta.untyped_storage()._cdata)
        if source is not None and meta.dtype == inputs[source].dtype:
            offset = int(meta.storage_offset()) - int(inputs[source].storage_offset())
            plan.append(_Alias(source, shape, strides, offset))
            continue
        order = dense_order(shape, strides)
        plan.append(_Made(shape, strides, meta.dtype, order))
        kept.append(row if order is None else _leave_dense(doc, row, meta, order, len(kept)))
    kept += rows[len(metas) :]
    return plan, kept


def _leave_dense(doc: dict[str, Any], row: dict[str, Any], meta: Any, order: Sequence[int], number: int) -> dict[str, Any]:
    """An output in the order of dimensions in which it is to lie."""
    name = f"output{number}__dense"
    dtype = next(iter(_dtype_names(meta.dtype)))
    shape = [int(meta.shape[dim]) for dim in order]
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


def _dtype_names(dtype: torch.dtype) -> list[str]:
    from orchestrion.torch._document import DTYPES

    return [DTYPES[dtype]]


#: Executables in use, by what was compiled: equal graphs share one.
_EXECUTABLES: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


class _Held:
    """An executable that several units may use."""

    def __init__(self, native: _native.Executable) -> None:
        self.run = native.run


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
