"""Inputs that a graph changes, such as caches: changed where they are, without a copy of the whole, and as eager changes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestrion.torch as ot  # noqa: E402
from torch import nn  # noqa: E402


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def copies_of(call: Callable[[], Any]) -> int:
    """How many tensors PyTorch copies in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return sum(event.count for event in profile.key_averages() if event.key == "aten::copy_")


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="orchestrion", options={"superoptimize": False, "strict": True, **options})


def in_place() -> list[tuple[int, int]]:
    """Per graph with changed inputs, how many of these are updated in place, and how many there are."""
    return [(report.in_place, report.changed) for report in ot.reports() if report.changed]


def check(function: Callable[..., Any], *tensors: Any, runs: int = 2, copies: int = 0) -> None:
    """Results and changed inputs of some runs are eager's; PyTorch copies so many tensors in one more."""
    reference = copy.deepcopy(tensors)
    fast = compiled(function)
    with torch.no_grad():
        for _ in range(runs):
            places = [tensor.data_ptr() for tensor in tensors]
            torch.testing.assert_close(fast(*tensors), function(*reference), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(tensors, reference, rtol=1e-4, atol=1e-5)
            assert [tensor.data_ptr() for tensor in tensors] == places
        assert copies_of(lambda: fast(*tensors)) == copies


def attend(keys: Any, values: Any, q: Any, k: Any, v: Any, at: Any) -> Any:
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    scores = q @ keys.transpose(-1, -2)
    seen = torch.arange(keys.shape[2]) <= at[-1]
    return torch.where(seen, scores, float("-inf")).softmax(-1) @ values


def step(tokens: int, *, heads: int = 2, length: int = 64) -> list[Any]:
    caches = [torch.randn(2, heads, length, 16) for _ in range(2)]
    return [*caches, *(torch.randn(2, heads, tokens, 16) for _ in range(3)), torch.arange(7, 7 + tokens)]


@pytest.mark.parametrize("tokens", [1, 3])
def test_caches_of_keys_and_values(tokens: int) -> None:
    check(attend, *step(tokens), runs=3)
    assert in_place() == [(2, 2)]


def test_unchanged_rows_are_not_written() -> None:
    """Other threads may read them during the run: bits that no arithmetic keeps stay."""
    keys, *others = step(1)
    values = others[0]
    keys[:, :, 20:] = float("nan")
    values[:, :, 20:] = float("nan")
    before = keys.clone().view(torch.int32)
    fast = compiled(lambda keys, k, at: keys.index_copy_(2, at, k).sum() * 0)
    with torch.no_grad():
        fast(keys, others[2], others[-1])
    changed = (keys.view(torch.int32) != before).any(-1)
    assert changed[:, :, 7].all() and changed.sum() == changed[:, :, 7].sum()


def test_a_changed_input_may_be_returned() -> None:
    def function(rows: Any, x: Any, at: Any) -> Any:
        rows.index_copy_(0, at, x)
        return rows, rows * 2 + 1

    check(function, torch.randn(32, 8), torch.randn(1, 8), torch.tensor([3]))
    assert in_place() == [(1, 1)]


def test_the_old_value_may_be_read_before_and_the_new_one_after() -> None:
    def function(rows: Any, x: Any, at: Any) -> Any:
        before = rows.sum(-1) @ torch.ones(32)
        rows.index_copy_(0, at, x)
        return before, (rows * rows).sum(0)

    check(function, torch.randn(32, 8), torch.randn(1, 8), torch.tensor([3]))
    assert in_place() == [(1, 1)]


def test_an_old_value_that_is_returned_is_kept() -> None:
    def function(rows: Any, x: Any, at: Any) -> Any:
        before = rows.clone()
        rows.index_copy_(0, at, x)
        return before, rows + 1

    tensors = [torch.randn(32, 8), torch.randn(1, 8), torch.tensor([3])]
    reference = copy.deepcopy(tensors)
    with torch.no_grad():
        found = compiled(function)(*tensors)
        torch.testing.assert_close(found, function(*reference))
    torch.testing.assert_close(tensors, reference)


def test_elementwise_updates() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        a.mul_(0.9).add_(c, alpha=0.1)
        b.addcmul_(a, c)
        return (a - b).tanh()

    check(function, torch.randn(5, 7), torch.randn(5, 7), torch.randn(5, 7), runs=3)


def test_values_that_change_each_other() -> None:
    def function(a: Any, b: Any) -> Any:
        x, y = a + b, a - b
        a.copy_(x)
        b.copy_(y)
        return x * y

    tensors = [torch.randn(5, 7) for _ in range(2)]
    reference = copy.deepcopy(tensors)
    fast = compiled(function)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(*tensors), function(*reference))
            torch.testing.assert_close(tensors, reference)


def test_elements_that_others_need_are_not_overwritten() -> None:
    def function(x: Any, y: Any) -> Any:
        x.copy_(x.flip(0) + x.cumsum(0) * y)
        return x.sum()

    check(function, torch.randn(9, 5), torch.randn(9, 5), copies=1)
    assert in_place() == [(0, 1)]


@pytest.mark.parametrize("traced", ["apart", "as they are"])
@pytest.mark.parametrize("starts", [(0, 1), (1, 0), (0, 0), (0, 8)])
def test_views_of_one_memory(starts: tuple[int, int], traced: str) -> None:
    def function(a: Any, b: Any, at: Any) -> Any:
        a.index_copy_(0, at, (b * 2)[:1])
        return (a + b).sum(0)

    memory = torch.randn(16, 6)
    reference = memory.clone()
    fast = compiled(function, strict=False)
    # PyTorch's tracing takes tensors that were apart as such later: what it traced then gives is expected.
    slow = torch.compile(function, backend="aot_eager")
    with torch.no_grad():
        if traced == "apart":
            for traced_function in (fast, slow):
                traced_function(torch.randn(8, 6), torch.randn(8, 6), torch.tensor([4]))
        for place in (0, 1, 4):
            at = torch.tensor([place])
            expected = slow(*(reference[start : start + 8] for start in starts), at)
            torch.testing.assert_close(fast(*(memory[start : start + 8] for start in starts), at), expected)
            torch.testing.assert_close(memory, reference)


def test_inputs_in_another_order_of_dimensions_and_with_gaps() -> None:
    def function(rows: Any, x: Any, at: Any) -> Any:
        rows.index_copy_(1, at, x)
        return rows.sum(0)

    x, at = torch.randn(8, 1), torch.tensor([3])
    check(function, torch.randn(32, 8).T, x, at)
    assert in_place() == [(1, 1)]
    torch._dynamo.reset()
    wide = torch.randn(8, 64)
    reference = wide.clone()
    fast = compiled(function)
    with torch.no_grad():
        torch.testing.assert_close(fast(wide[:, :32], x, at), function(reference[:, :32], x, at))
    torch.testing.assert_close(wide, reference)


def test_memory_that_starts_between_elements_of_others() -> None:
    def function(rows: Any, x: Any, at: Any) -> Any:
        rows.index_copy_(0, at, x)
        return rows.sum(0)

    memory = torch.randn(1 + 32 * 8)
    reference = memory.clone()
    x, at = torch.randn(1, 8), torch.tensor([3])
    fast = compiled(function)
    with torch.no_grad():
        found = fast(memory[1:].view(32, 8), x, at)
        torch.testing.assert_close(found, function(reference[1:].view(32, 8), x, at))
    torch.testing.assert_close(memory, reference)


def test_autograd_notices_changes() -> None:
    rows = torch.randn(32, 8)
    weight = torch.randn(32, 8, requires_grad=True)
    y = (rows * weight).sum()
    fast = compiled(lambda rows, x, at: rows.index_copy_(0, at, x).sum() * 2 + 1)
    before = rows._version
    with torch.no_grad():
        fast(rows, torch.randn(1, 8), torch.tensor([3]))
    assert rows._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_statistics_of_batch_norms_in_training() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).train()
    reference = copy.deepcopy(module)
    fast = compiled(module)
    for _ in range(3):
        x = torch.randn(4, 3, 9, 9)
        torch.testing.assert_close(fast(x), reference(x), rtol=1e-4, atol=1e-5)
        fast(x).square().sum().backward()
        reference(x).square().sum().backward()
    for found, expected in zip(module.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for found, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tokens_of_a_static_cache_are_eagers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "llama":
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64,
        )
    else:
        config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, 64, (2, 5))
    settings = {
        "max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "disable_compile": True, "pad_token_id": 0,
    }
    expected = model.generate(ids, **settings)
    model.forward = torch.compile(model.forward, backend="orchestrion", options={"superoptimize": False})
    assert torch.equal(model.generate(ids, **settings), expected)
    # Keys and values of two layers, and what counts positions.
    assert in_place()[-1] == (6, 6), ot.report()
