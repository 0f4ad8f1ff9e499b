"""Attention with dropout as GPUs call it, compiled for the CPU: forward and backward have one mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ot = pytest.importorskip("orchestrion.torch")

aten = torch.ops.aten
P = 0.3


@pytest.fixture(autouse=True)
def _fresh(fresh_dynamo: None) -> Iterator[None]:
    yield


def _efficient(bias: bool, causal: bool) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, b: Any) -> Any:
        found = aten._scaled_dot_product_efficient_attention(q, k, v, b if bias else None, True, P, causal)
        return found[0].transpose(1, 2).flatten(2)

    return run


def _flash(causal: bool) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, b: Any) -> Any:
        return aten._scaled_dot_product_flash_attention(q, k, v, P, causal)[0].transpose(1, 2).flatten(2)

    return run


CALLS = {
    "efficient": (_efficient(False, False), False, False),
    "efficient, bias": (_efficient(True, False), True, False),
    "efficient, causal": (_efficient(False, True), False, True),
    "flash": (_flash(False), False, False),
    "flash, causal": (_flash(True), False, True),
}


def _math(q: Any, k: Any, v: Any, b: Any, causal: bool, mask: Any) -> Any:
    """Attention with this mask, as PyTorch's own path of single calls computes it."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if b is not None:
        scores = scores + b
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return ((torch.softmax(scores, -1) * mask / (1 - P)) @ v).transpose(1, 2).flatten(2)


def _tensors(length: int, width: int) -> list[Any]:
    q, k = (torch.randn(2, 3, length, width) for _ in range(2))
    # Values are unit vectors, so that results show the mask.
    v = torch.eye(length).expand(2, 3, length, width).clone()
    return [tensor.requires_grad_() for tensor in (q, k, v, torch.randn(2, 3, length, length))]


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward_have_one_mask(name: str) -> None:
    call, has_bias, causal = CALLS[name]
    length = 12
    given = _tensors(length, length)
    fast = torch.compile(call, backend="orchestrion", options={"strict": True, "superoptimize": False})
    result = fast(*given)
    # The probabilities that were kept are not zero.
    mask = (result.detach().unflatten(2, (3, length)).transpose(1, 2) != 0).float()
    reference = [tensor.detach().clone().requires_grad_() for tensor in given]
    expected = _math(*reference[:3], reference[3] if has_bias else None, causal, mask)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    allowed = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    share = mask.sum() / (allowed.sum() * 6)
    assert abs(share - (1 - P)) < 0.08
    weights = torch.randn_like(result)
    (result * weights).sum().backward()
    (expected * weights).sum().backward()
    for tensor, wanted in zip(given[: 4 if has_bias else 3], reference):
        torch.testing.assert_close(tensor.grad, wanted.grad, rtol=1e-3, atol=1e-5)
    assert all(report.coverage == 1.0 for report in ot.reports())


def test_each_run_draws_anew_and_a_seed_repeats_it() -> None:
    call = CALLS["flash"][0]
    given = [tensor.detach() for tensor in _tensors(12, 12)]
    fast = torch.compile(call, backend="orchestrion", options={"strict": True, "superoptimize": False})
    torch.manual_seed(5)
    first, second = fast(*given), fast(*given)
    torch.manual_seed(5)
    assert torch.equal(first, fast(*given)) and not torch.equal(first, second)


def test_calls_without_dropout_or_of_too_many_scores_stay_whole() -> None:
    from orchestrion.torch._backend import decompositions
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def targets(length: int, p: float, drops_attention: bool = True, scale: float | None = None) -> set[str]:
        def run(q: Any, k: Any, v: Any) -> Any:
            return aten._scaled_dot_product_flash_attention(q, k, v, p, False, scale=scale)[0]

        with FakeTensorMode():
            given = [torch.empty(1, 4, length, 64) for _ in range(3)]
            gm = make_fx(run, decomposition_table=decompositions(drops_attention=drops_attention))(*given)
        return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}

    whole = "aten._scaled_dot_product_flash_attention.default"
    assert whole not in targets(64, 0.1) and "aten.native_dropout.default" in targets(64, 0.1)
    assert whole in targets(64, 0.0)
    assert whole in targets(2048, 0.1)
    assert whole in targets(64, 0.1, drops_attention=False)
    assert whole in targets(64, 0.1, scale=-0.5) and whole not in targets(64, 0.1, scale=0.5)


def test_queries_that_attend_to_no_key_get_zeros_and_no_gradient() -> None:
    given = _tensors(12, 12)
    bias = torch.zeros(2, 3, 12, 12)
    bias[:, :, 4] = -math.inf
    fast = torch.compile(_efficient(True, False), backend="orchestrion", options={"strict": True, "superoptimize": False})
    result = fast(*given[:3], bias)
    assert not result[:, 4].any() and result.isfinite().all()
    result.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in given[:3])
    assert not given[0].grad[:, :, 4].any()
