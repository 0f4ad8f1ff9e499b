"""Models whose reports are tested: an encoder with as many operators as BERT, a chain of 2,000 kernels, and one with hostile names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HOSTILE = "</script><script>window.isOwned=true</script><img src=x onerror=window.isOwned=true><!--\0\u2028\u202e&quot;'"
"""A name that is none."""


class Graph:
    """Nodes and constants that are added one by one."""

    def __init__(self, name: str, shape: list[int]) -> None:
        self.rng = np.random.default_rng(0)
        self.name, self.shape = name, shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, *shape: int) -> str:
        """Small random values."""
        name = f"c{len(self.constants)}"
        values = 0.1 * self.rng.standard_normal(shape, dtype=np.float32)
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def node(self, scope: str, kind: str, *inputs: str, **attributes: object) -> str:
        """The result of a node."""
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [result], name=f"{scope}/{kind}_{len(self.nodes)}", **attributes))
        return result

    def ints(self, *values: int) -> str:
        """A list of integers."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, dtype=np.int64), name))
        return name

    def save(self, path: Path, output: str) -> None:
        """Writes the model."""
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape) for name in ("x", output)]
        graph = helper.make_graph(self.nodes, self.name, ends[:1], ends[1:], self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def encoder(path: Path, layers: int = 12, tokens: int = 32, width: int = 96, heads: int = 4) -> None:
    """An encoder of BERT's structure with narrow layers: as many operators, few weights."""
    graph = Graph("encoder", [1, tokens, width])
    x = "x"
    for layer in range(layers):
        scope = f"/encoder/layer.{layer}"

        def linear(part: str, given: str, columns: int, rows: int = width) -> str:
            product = graph.node(f"{scope}/{part}", "MatMul", given, graph.constant(rows, columns))
            return graph.node(f"{scope}/{part}", "Add", product, graph.constant(columns))

        def split(part: str, perm: list[int]) -> str:
            rows = graph.node(f"{scope}/attention/{part}", "Reshape", linear(f"attention/{part}", x, width), graph.ints(1, tokens, heads, -1))
            return graph.node(f"{scope}/attention/{part}", "Transpose", rows, perm=perm)

        query, key, value = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
        scores = graph.node(f"{scope}/attention", "Mul", graph.node(f"{scope}/attention", "MatMul", query, key), graph.constant())
        weights = graph.node(f"{scope}/attention", "Softmax", scores, axis=-1)
        mixed = graph.node(f"{scope}/attention", "Transpose", graph.node(f"{scope}/attention", "MatMul", weights, value), perm=[0, 2, 1, 3])
        mixed = graph.node(f"{scope}/attention", "Reshape", mixed, graph.ints(1, tokens, width))
        x = normed(graph, f"{scope}/attention/output", graph.node(scope, "Add", linear("attention/output", mixed, width), x), width)
        inner = linear("intermediate", x, 4 * width)
        half = graph.node(f"{scope}/intermediate", "Mul", inner, graph.constant())
        gelu = graph.node(f"{scope}/intermediate", "Mul", half, graph.node(f"{scope}/intermediate", "Erf", inner))
        x = normed(graph, f"{scope}/output", graph.node(scope, "Add", linear("output", gelu, width, 4 * width), x), width)
    graph.save(path, x)


def normed(graph: Graph, scope: str, x: str, width: int) -> str:
    """A layer norm."""
    return graph.node(scope, "LayerNormalization", x, graph.constant(width), graph.constant(width), axis=-1)


def chain(path: Path, kernels: int = 2000) -> None:
    """Products, each with a nonlinearity, so that none is merged with the next one."""
    graph = Graph("chain", [16, 16])
    x = "x"
    for kernel in range(kernels):
        scope = f"/stage.{kernel // 100}/layer.{kernel // 10 % 10}"
        x = graph.node(scope, "Tanh", graph.node(scope, "MatMul", x, graph.constant(16, 16)))
    graph.save(path, x)


def hostile(path: Path) -> None:
    """Names with markup, NUL and control characters, and one of a megabyte."""
    graph = Graph(HOSTILE, [4, 4])
    x = "x"
    for name in (HOSTILE, "\0\n\r\t" + "A" * (1 << 20), "../../etc/passwd\0"):
        x = graph.node(name, "Softmax", graph.node(name, "MatMul", x, graph.constant(4, 4)), axis=-1)
    graph.save(path, x)
