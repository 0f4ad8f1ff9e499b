"""Small modules and functions as AOTAutograd traces them, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from . import writer
from .calls import normal

Run = tuple[str, GraphModule, list[torch.Tensor], list[object]]


class Capture:
    """A backend that runs graphs eagerly and keeps what went in and came out."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        table = dict(core_aten_decompositions())
        whole = torch.ops.aten
        table.pop(whole._scaled_dot_product_flash_attention_for_cpu.default, None)
        self.backend = aot_autograd(
            fw_compiler=lambda gm, _: self.compile("forward", gm),
            bw_compiler=lambda gm, _: self.compile("backward", gm),
            inference_compiler=lambda gm, _: self.compile("inference", gm),
            decompositions=table,
            keep_inference_input_mutations=True,
        )

    def compile(self, name: str, gm: GraphModule) -> Callable[..., object]:
        def run(*inputs: torch.Tensor) -> object:
            before = [value.detach().clone() for value in inputs]
            results = list(gm.forward(*inputs))
            # Copies into inputs are outputs of the document, in the order of the first copies.
            for node in gm.graph.nodes:
                if node.target is torch.ops.aten.copy_.default:
                    names = [place.name for place in gm.graph.nodes if place.op == "placeholder"]
                    results.append(inputs[names.index(node.args[0].name)].clone())
            self.runs.append((name, gm, before, [self.kept(value) for value in results]))
            return results[: len(gm.graph.output_node().args[0])]

        return make_boxed_func(run)

    @staticmethod
    def kept(value: object) -> object:
        return value.detach().clone() if isinstance(value, torch.Tensor) else value


class Counter(nn.Module):
    """Changes its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return x * self.count


def traced(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, grad: bool = True) -> list[dict[str, object]]:
    """The graphs of one function or module."""
    torch._dynamo.reset()
    capture = Capture()
    compiled = torch.compile(function, backend=capture.backend, dynamic=False)
    with torch.set_grad_enabled(grad):
        result = compiled(*inputs)
    if grad and result.requires_grad:
        result.backward(normal(*result.shape).to(result.dtype))
    return [writer.case(name, gm, values, outputs) for name, gm, values, outputs in capture.runs]


def leaf(*shape: int) -> torch.Tensor:
    """A tensor that gets a gradient."""
    return normal(*shape).requires_grad_()


def block() -> nn.Module:
    """A layer of an encoder without dropout."""
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


FUNCTIONS: dict[str, Callable[[], list[dict[str, object]]]] = {
    "mlp": lambda: traced(nn.Sequential(nn.Linear(4, 6), nn.SELU(), nn.Linear(6, 3)), leaf(2, 4)),
    "conv-bn-pool": lambda: traced(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), leaf(2, 2, 6, 6)
    ),
    "conv-transpose": lambda: traced(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), leaf(1, 2, 3, 3)),
    "group-norm": lambda: traced(nn.GroupNorm(2, 4), leaf(2, 4, 3)),
    "instance-norm": lambda: traced(nn.InstanceNorm2d(3, affine=True), leaf(2, 3, 4, 4)),
    "layer-norm": lambda: traced(nn.LayerNorm(6), leaf(2, 3, 6)),
    "gelu": lambda: traced(lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), leaf(5)),
    "activations": lambda: traced(lambda x: F.silu(x) + F.mish(x) + F.softplus(x) + F.hardswish(x) + F.elu(x), leaf(7)),
    "embedding": lambda: traced(nn.Embedding(5, 3, padding_idx=1), torch.tensor([[1, 2], [4, 1]])),
    "cross-entropy": lambda: traced(lambda x: F.cross_entropy(x, torch.tensor([1, 0, -100])), leaf(3, 4)),
    "attention": lambda: traced(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), leaf(1, 2, 3, 4)),
    "encoder": lambda: traced(block(), leaf(1, 3, 8)),
    "interpolate": lambda: traced(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + F.interpolate(x, scale_factor=2), leaf(1, 2, 2, 2)
    ),
    "pad": lambda: traced(
        lambda x: F.pad(x, (1, 1), mode="reflect") + F.pad(x, (1, 1), mode="replicate"), normal(1, 2, 4), grad=False
    ),
    "index": lambda: traced(lambda x: x[:, [0, 2]][..., torch.tensor([1, -1])], leaf(2, 3, 4)),
    "statistics": lambda: traced(lambda x: torch.logsumexp(x, 1) + x.var(1) + x.std(1) + x.norm(dim=1), leaf(2, 5)),
    "triangle": lambda: traced(lambda x: x.tril() + x.triu(1) * 2 + x.roll(1, 1), leaf(4, 4)),
    "adaptive-pool": lambda: traced(nn.AdaptiveAvgPool2d(2), leaf(1, 2, 4, 4)),
    "average-pool": lambda: traced(nn.AvgPool2d(3, 2, 1, ceil_mode=True), leaf(1, 2, 6, 6)),
    "mutation": lambda: traced(Counter(), normal(3), grad=False),
    "as-strided": lambda: traced(lambda x: (x + 1).as_strided((2, 2), (2, 1)), normal(2, 3), grad=False),
    "as-strided-overlap": lambda: traced(lambda x: (x + 1).as_strided((3, 2), (1, 2), 1), normal(2, 3), grad=False),
    "as-strided-permuted": lambda: traced(
        lambda x: (x * 2).permute(1, 2, 0).as_strided((2, 3, 2), (4, 1, 6)) + x[1].T.as_strided((2, 3, 2), (1, 2, 3), 12), normal(2, 3, 4), grad=False
    ),
    "as-strided-scatter-permuted": lambda: traced(
        lambda x: torch.as_strided_scatter((x * 2).T, x[:, 1], (2,), (3,), 2), normal(2, 4), grad=False
    ),
    "as-strided-scatter": lambda: traced(
        lambda x: torch.as_strided_scatter(x + 1, x[:, :2].T, (2, 2), (1, 3), 1), normal(2, 3), grad=False
    ),
    "as-strided-scatter-whole": lambda: traced(
        lambda x: torch.as_strided_scatter(x + 1, x * 2, (2, 3, 1, 1), (3, 1, 3, 3)), normal(2, 3, 1, 1), grad=False
    ),
    "adaptive-pool-overlap": lambda: traced(nn.AdaptiveAvgPool2d((3, 7)), leaf(1, 2, 5, 3)),
}


def cases(only: str) -> dict[str, list[dict[str, object]]]:
    """The cases of each module."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    found = {}
    for name, make in FUNCTIONS.items():
        if not only or only in name:
            found[name] = make()
    return found
