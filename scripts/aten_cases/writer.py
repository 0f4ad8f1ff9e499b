"""Cases as files: documents, and tensors by value."""

from __future__ import annotations

import importlib
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType

import numpy
import torch

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python/orchestrion/torch"


def _load(name: str) -> ModuleType:
    """A module of the package, without the rest of it (which needs the compiler)."""
    if "orchestrion_torch" not in sys.modules:
        package = ModuleType("orchestrion_torch")
        package.__path__ = [str(PACKAGE)]
        sys.modules["orchestrion_torch"] = package
    return importlib.import_module(f"orchestrion_torch.{name}")


documents = _load("_document")
support = _load("_support")
# Defines `orchestrion::dft`.
_load("_complex")


def values(tensor: torch.Tensor) -> list[object]:
    """The elements in row-major order, each in the shortest form that is read back as the same."""
    tensor = tensor.detach().contiguous()
    if not tensor.dtype.is_floating_point:
        return documents.elements(tensor)
    if tensor.dtype == torch.bfloat16:
        array = tensor.float().numpy()
    else:
        array = tensor.numpy()
    found: list[object] = []
    for item in array.reshape(-1):
        number = float(item)
        found.append(float(str(item)) if math.isfinite(number) else documents.float_name(number))
    return found


def case(
    name: str, gm: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], outputs: Sequence[object]
) -> dict[str, object]:
    """One case. Inputs are given as they were before the graph ran."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and str(node.target) != "aten.copy_.default" and not support.is_supported(node):
            raise ValueError(f"{name}: {node.target} is not supported")
    document = documents.document(gm, inputs, name=name)
    for node in document["nodes"]:
        node["where"] = ""
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
    return {
        "name": name,
        "document": document,
        "inputs": [values(tensor) for tensor in inputs],
        "outputs": [values(tensor) for tensor in tensors],
    }


def write(path: pathlib.Path, cases: list[dict[str, object]]) -> None:
    """Writes the cases of one file, a line for each part."""
    lines = []
    for item in cases:
        parts = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in item.items())
        lines.append(f" {{{parts}}}")
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
