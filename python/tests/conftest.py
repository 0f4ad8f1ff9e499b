"""Small models for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import orchestrion as orc


def value(name: str, shape: list[int | str], elem: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


WEIGHT = (np.arange(24, dtype=np.float32).reshape(6, 4) - 12) / 16


def layer(rows: int | str = 5) -> onnx.ModelProto:
    """`y = relu(x @ w)`, `s = sum(x, axis=1)`."""
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Relu", ["p"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
        ],
        [value("x", [rows, 6])],
        [value("y", [rows, 4]), value("s", [rows])],
        {"w": WEIGHT, "axes": np.array([1], dtype=np.int64)},
    )


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `layer` computes."""
    return np.maximum(x @ WEIGHT, 0), x.sum(axis=1)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache that only this run of the tests uses."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return str(folder)


@pytest.fixture
def fresh_dynamo(cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch without compiled graphs, before and after, and random numbers of a fixed seed."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("ORCHESTRION_CACHE", cache)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def exe(cache: str) -> orc.Executable:
    executable = orc.compile(layer(), cache_dir=cache, calibrate=False, threads=2, progress=False)
    assert isinstance(executable, orc.Executable)
    return executable
