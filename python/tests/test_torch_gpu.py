"""Graphs of models on a GPU, traced without one: how each is divided, and what stays on the host.

`gpu_traces.txt` has a line for each model and each of its graphs, with calls as a release of PyTorch makes them; `ORCH_BLESS=1` rewrites it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from orchestrion import _native
from orchestrion._compile import native_options
from orchestrion.torch import _backend, _report, reports
from orchestrion.torch._document import document
from orchestrion.torch._placement import tensors_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

EXPECTED = pathlib.Path(__file__).parent / "gpu_traces.txt"

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch traces no graphs of GPUs")


class _NotCompiled:
    """A graph in the place of a compiled one, which takes part in the trace."""

    def __init__(self, gm: torch.fx.GraphModule, options: dict[str, Any], *_: Any) -> None:
        assert options["target"] == "cuda:0"
        # What the compiler would be given.
        doc = document(gm)
        self._gm = gm
        self.changed, self.in_place = len(doc["mutations"]), _in_place(doc)
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        of_host = [tensor for node in inputs for tensor in tensors_of(node) if tensor.device.type == "cpu"]
        _HOST_INPUTS.append(len(of_host))

    def __call__(self, tensors: list[Any]) -> list[Any]:
        results = self._gm(*tensors)
        return list(results) if isinstance(results, (tuple, list)) else [results]


def _in_place(doc: dict[str, Any]) -> int:
    """How many inputs kernels for an H100 update where they are."""
    if not doc["mutations"]:
        return 0
    options = native_options(target="cuda:sm_90", superoptimize=False, calibrate=False)
    return len(_native.updated_inputs(json.dumps(doc).encode(), options))


_HOST_INPUTS: list[int] = []

Model = Callable[[], tuple[nn.Module, list[Any], dict[str, Any]]]


def _described(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each graph of a model."""
    monkeypatch.setattr(_backend, "Unit", _NotCompiled)
    torch._dynamo.reset()
    _report.clear()
    _HOST_INPUTS.clear()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            module, inputs, named = model()
        torch.compile(module.eval(), backend="orchestrion")(*inputs, **named)
    lines = []
    for report in reports():
        assert report.reason is None, report.reason
        eager = "".join(f", eager {count} {target}" for target, (count, _) in sorted(report.eager.items()))
        changed = f", {report.in_place} of {report.changed} changed inputs in place" if report.changed else ""
        lines.append(f"{report.compiled} of {report.calls} calls in {report.partitions} part(s){eager}{changed}")
    return [*lines, f"tensors of the host: {sum(_HOST_INPUTS)}"]


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Makes new tensors of this type: fake ones are not converted in place."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _of_transformers(name: str, **config: Any) -> Model:
    """A small model of a library, of random weights in f16."""

    def make() -> tuple[nn.Module, list[Any], dict[str, Any]]:
        import transformers

        small = {
            "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 128,
        }
        settings = transformers.AutoConfig.for_model(name, **{**small, **config})
        with _default(torch.float16):
            module = transformers.AutoModel.from_config(settings)
        return module, [_ids(1, 16)], {"use_cache": False} if getattr(settings, "use_cache", False) else {}

    return make


MODELS: dict[str, Model] = {name: _of_transformers(name) for name in (
    "bert", "camembert", "electra", "roberta", "mpnet", "layoutlm", "ernie", "albert", "mobilebert", "megatron-bert", "nystromformer",
    "deberta-v2", "fnet", "llama", "phi", "gpt_neox", "olmo", "roformer",
)}
MODELS |= {name: _of_transformers(name, num_key_value_heads=2) for name in ("mistral", "qwen2", "qwen3", "gemma", "stablelm")}
MODELS |= {
    "distilbert": _of_transformers("distilbert", dim=64, n_layers=1, n_heads=4, hidden_dim=128),
    "gpt2": _of_transformers("gpt2", n_embd=64, n_layer=1, n_head=4),
    "opt": _of_transformers("opt", ffn_dim=128, word_embed_proj_dim=64),
}


def _own(module: Callable[[], nn.Module], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> Model:
    def make() -> tuple[nn.Module, list[Any], dict[str, Any]]:
        with _default(dtype):
            return module(), [torch.zeros(shape) for shape in shapes], {}

    return make


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (512, 128, 64, 128, 512)
        layers = [nn.Linear(width, following) for width, following in zip(widths, widths[1:])]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.selu(layer(x))
        return x


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.deep(self.stem(x)).flatten(1))


class _Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(3))
        self.bottom, self.top = nn.Linear(13, 16), nn.Linear(6, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        at = torch.arange(dense.shape[0], device=dense.device) % 50
        rows = torch.stack([torch.relu(self.bottom(dense)), *(table(at) for table in self.tables)], 1)
        products = rows @ rows.transpose(1, 2)
        pairs = [products[:, i, j] for i in range(4) for j in range(i)]
        return torch.sigmoid(self.top(torch.stack(pairs, 1)))


class _Ocean(nn.Module):
    """Elementwise in f64, as in simulations."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(torch.abs(a) + 1e-3)
        return (999.8 + a * (6.79e-2 + a * (-9.09e-3 + a * 1.0e-4)) + b * root) / (1.0 - c / (1965.2 + a * 148.4))


class _NumberOfNumpy(nn.Module):
    """The temperature of attention is a number of NumPy: a tensor of the CPU in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)
        self.temperature = np.power(np.float64(64), 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2) / self.temperature, -1) @ v


class _TensorOfTheHost(nn.Module):
    """Copies to the GPU what it keeps on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.arange(16, device="cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.positions.to(x.device) + torch.tensor([1.0, 2.0], device="cpu").sum().to(x.device)


class _ResultOnTheHost(nn.Module):
    """A result on the CPU stays there, and with it what makes it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x) * 2 + 1
        return y * y - x, (torch.arange(4, device="cpu") + 1) * 2


class _CopyToTheHost(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x) * 2 + 1
        return y * y - x, y.sum().cpu()


class _StaticCache(nn.Module):
    """A step of decoding: keys and values at a position of caches."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, 4, 64, 16))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, -1, 4, 16).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(64, device=x.device) <= at[-1]
        return nn.functional.scaled_dot_product_attention(q, self.keys, self.values, mask)


class _Statistics(nn.Module):
    """Running statistics. What needs both values of one is a kernel that keeps it from being updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("count", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.mean * 2
        self.mean.lerp_(x.mean(0), 0.1)
        self.count += 1
        return (x - self.mean) * before


class _Momentum(nn.Module):
    """A step of Adam, whose parameter needs the new moments."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "first", "second"):
            self.register_buffer(name, torch.zeros(64, 64))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        self.first.mul_(0.9).add_(gradient, alpha=0.1)
        self.second.mul_(0.99).add_(gradient * gradient * 0.01)
        self.weight.sub_(self.first / (self.second.sqrt() + 1e-8) * 1e-3)
        return gradient.norm()


MODELS |= {
    "static cache": lambda: (_StaticCache(), [torch.zeros(2, 1, 64), torch.zeros(1, dtype=torch.long)], {}),
    "static cache, several tokens": lambda: (_StaticCache(), [torch.zeros(2, 5, 64), torch.zeros(5, dtype=torch.long)], {}),
    "statistics": _own(_Statistics, (8, 64), dtype=torch.float32),
    "momentum": _own(_Momentum, (64, 64), dtype=torch.float32),
    "autoencoder": _own(_Autoencoder, (8, 512)),
    "images": _own(_Images, (2, 3, 32, 32)),
    "recommender": _own(_Recommender, (32, 13)),
    "ocean": _own(_Ocean, (64, 64), (64, 64), (64, 64), dtype=torch.float64),
    "number of numpy": _own(_NumberOfNumpy, (2, 16, 64)),
    "tensor of the host": _own(_TensorOfTheHost, (2, 16), dtype=torch.float32),
    "result on the host": _own(_ResultOnTheHost, (2, 16), dtype=torch.float32),
    "copy to the host": _own(_CopyToTheHost, (2, 16), dtype=torch.float32),
}


def _release() -> str:
    return "PyTorch " + ".".join(torch.__version__.split(".")[:2])


def _expected() -> tuple[str, dict[str, list[str]]]:
    """The release that the file was written with, and what it says of each model."""
    release, *blocks = EXPECTED.read_text().split("\n\n")
    lines = (block.strip().splitlines() for block in blocks)
    return release, {name: [line.strip() for line in rest] for name, *rest in lines}


def _without_counts(described: dict[str, list[str]]) -> dict[str, list[str]]:
    """`all calls` where a number of as many are: other releases of PyTorch make other calls of the same models."""
    return {name: [re.sub(r"^(\d+) of \1 calls", "all calls", line) for line in lines] for name, lines in described.items()}


def test_graphs_of_models_are_divided_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: _described(model, monkeypatch) for name, model in MODELS.items()}
    if "ORCH_BLESS" in os.environ:
        blocks = [_release()] + ["\n".join([name, *(f"    {line}" for line in lines)]) for name, lines in found.items()]
        EXPECTED.write_text("\n\n".join(blocks) + "\n")
    release, expected = _expected()
    if release != _release():
        found, expected = _without_counts(found), _without_counts(expected)
    assert found == expected
