"""`torch.compile(backend="orchestrion")`: results, gradients, and what users of backends stumble over."""

from __future__ import annotations

import copy
import json
import operator
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import orchestrion.torch as ot  # noqa: E402
from torch import nn  # noqa: E402


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(model, **options):
    return torch.compile(model, backend="orchestrion", options={"superoptimize": False, **options})


def check(model, *args, **options) -> None:
    """A model whole, against eager."""
    with torch.no_grad():
        want = model(*args)
        fast = compiled(model, strict=True, **options)
        for _ in range(2):
            assert_equal(fast(*args), want)


def assert_equal(got, want) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if isinstance(want, torch.Tensor):
        assert got.stride() == want.stride()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.linear(nn.functional.max_pool2d(x, 2).mean((2, 3)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).reshape(2, 7, 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(2, 7, 16))


def test_the_backend_is_found_without_import() -> None:
    program = "import torch; assert 'orchestrion' in torch._dynamo.list_backends()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_inference() -> None:
    check(Net().eval(), torch.randn(2, 3, 8, 8))
    check(Block().eval(), torch.randn(2, 7, 16))
    [report] = ot.reports()[-1:]
    assert report.coverage == 1 and report.partitions == 1 and "compiled in 1 partition" in ot.report()


def test_outputs_whose_elements_repeat() -> None:
    class Repeats(nn.Module):
        def forward(self, x):
            return (x + 1).unsqueeze(1).expand(3, 4, 5), (x * 2).T[:, None].expand(5, 2, 3)

    check(Repeats(), torch.randn(3, 5))


def test_frozen_weights_are_constants() -> None:
    model = Net().eval()
    x = torch.randn(2, 3, 8, 8)
    check(model, x, freeze=True)
    before = model(x)
    with torch.no_grad():
        fast = compiled(model, freeze=True)
        fast(x)
        for weight in model.parameters():
            weight.mul_(2)
        torch.testing.assert_close(fast(x), before, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(model(x), before)


def test_frozen_models_change_their_buffers() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return self.linear(x) * self.calls

    model, x = Counts(), torch.randn(3, 4)
    with torch.no_grad():
        fast = compiled(model, freeze=True)
        for calls in range(1, 4):
            torch.testing.assert_close(fast(x), model.linear(x) * calls)
        assert model.calls.item() == 3


@pytest.mark.parametrize("activation, norm_first", [("relu", False), ("gelu", True)])
@pytest.mark.parametrize("masks", ["none", "keys", "pairs", "both"])
def test_encoder_layers_of_inference_are_compiled(activation: str, norm_first: bool, masks: str) -> None:
    """PyTorch calls them whole where nothing needs a gradient."""
    layer = nn.TransformerEncoderLayer(16, 4, 24, activation=activation, norm_first=norm_first, batch_first=True).eval()
    keys = torch.arange(7) > torch.tensor([[4], [6]])
    pairs = torch.ones(7, 7, dtype=torch.bool).triu(1)
    given = {"none": {}, "keys": {"src_key_padding_mask": keys}, "pairs": {"src_mask": pairs}}
    given["both"] = given["keys"] | given["pairs"]
    check(lambda x: layer(x, **given[masks]), torch.randn(2, 7, 16))
    assert all(report.coverage == 1.0 for report in ot.reports())


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
def test_attention_layers_of_inference_are_compiled(is_own: bool, has_mask: bool) -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    hidden = torch.arange(7) > torch.tensor([[4], [6]]) if has_mask else None
    projection = attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias

    def function(x, y):
        key = x if is_own else y
        return torch._native_multi_head_attention(x, key, key, 16, 4, *projection, hidden, False, True, 1 if has_mask else None)[0]

    check(function, torch.randn(2, 7, 16), torch.randn(2, 7, 16))
    assert all(report.coverage == 1.0 for report in ot.reports())


def test_calls_that_pytorch_does_not_decompose() -> None:
    numbers = torch.tensor([0.0, -0.0, 1.5, -2.0, torch.inf, -torch.inf, 1e-30])
    for function in (torch.atan2, torch.copysign, torch.fmax, torch.fmin):
        check(function, *torch.cartesian_prod(numbers, numbers).unbind(1))
    for function in (torch.fmax, torch.fmin):
        assert compiled(function)(torch.tensor([torch.nan, 1.0]), torch.tensor([2.0, torch.nan])).tolist() == [2.0, 1.0]
    check(torch.exp2, torch.tensor([-torch.inf, -140.0, -3.5, 0.0, 7.0, 127.9, 128.0, torch.inf]))
    check(torch.atan2, torch.randn(50).half(), torch.randn(50).half())
    assert compiled(torch.atan2)(torch.tensor([torch.nan, 1.0]), torch.tensor([1.0, torch.nan])).isnan().all()
    for out in (3, (2, 3), (6, 1)):
        check(lambda x: nn.functional.adaptive_max_pool2d(x, out, return_indices=True), torch.randn(2, 3, 6, 9))
    assert all(report.coverage == 1.0 for report in ot.reports())


@pytest.mark.parametrize("make, shape", [
    (lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3), dim=2), (2, 4, 9)),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), (2, 4)),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveMaxPool2d((2, 4))), (2, 3, 6, 8)),
])
def test_gradients_of_calls_that_pytorch_does_not_decompose(make, shape) -> None:
    own = make()
    fast = compiled(copy.deepcopy(own), strict=True)
    x = torch.randn(shape)
    results = []
    for model in (own, fast):
        given = x.clone().requires_grad_()
        model(given).square().sum().backward()
        results.append([given.grad, *(parameter.grad for parameter in model.parameters())])
    for want, got in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert all(report.coverage == 1.0 for report in ot.reports())


@pytest.mark.parametrize("make, shape", [(Net, (2, 3, 8, 8)), (Block, (2, 7, 16))])
def test_training(make, shape) -> None:
    eager = make()
    fast_model = copy.deepcopy(eager)
    fast = compiled(fast_model, strict=True)
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (eager, fast_model)]
    x = torch.randn(shape)
    for _ in range(5):
        losses = [model(x).square().mean() for model in (eager, fast)]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)
        for loss, optimizer in zip(losses, optimizers):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for mine, theirs in zip(fast_model.parameters(), eager.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    assert {report.kind for report in ot.reports()} >= {"forward", "backward"}


def test_weights_are_read_at_each_call() -> None:
    model = nn.Linear(4, 3)
    fast = compiled(model, strict=True)
    x = torch.randn(2, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
    for _ in range(3):
        fast(x).sum().backward()
        optimizer.step()
        assert_equal(fast(x).detach(), model(x).detach())
    with torch.no_grad():
        model.weight.data.mul_(2)
        assert_equal(fast(x), model(x))
        other = nn.Linear(4, 3)
        model.load_state_dict(other.state_dict(), assign=True)
        assert_equal(fast(x), other(x))


def test_views_as_inputs() -> None:
    def double(x):
        return x * 2

    fast = compiled(double, strict=False)
    z = torch.randn(4, 6, dtype=torch.complex64)
    x = torch.randn(25)
    with torch.no_grad():
        assert_equal(fast(z.conj().imag), double(z.conj().imag))
        assert_equal(fast(x[:24].reshape(4, 6)), double(x[:24].reshape(4, 6)))
        assert_equal(fast(x[1:].reshape(4, 6)), double(x[1:].reshape(4, 6)))
        assert_equal(fast(x[:24].reshape(6, 4).T), double(x[:24].reshape(6, 4).T))


def test_strides_and_aliases_of_outputs() -> None:
    def views(x, y):
        return x, x.T, x[1:], (x + y).T, (x * y).permute(1, 0), y.contiguous()

    x, y = torch.randn(3, 5), torch.randn(3, 5)
    fast = compiled(views, strict=True)
    with torch.no_grad():
        results = fast(x, y)
    for got, want in zip(results, views(x, y)):
        assert_equal(got, want)
    assert [result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for result in results[:3]] == [True] * 3
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    model = Net().eval().conv.to(memory_format=torch.channels_last)
    with torch.no_grad():
        got, want = compiled(model, strict=True)(images), model(images)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_views_of_parts_of_what_another_part_computes() -> None:
    # In the trace the halves have one memory, in a run two: the first part of the graph makes them, `cummax` stays with eager between.
    def halves(x):
        left, right = (x.relu() + 1).chunk(2, 1)
        middle = torch.cummax((left + right).sin(), 0)[0]
        return (middle + left).exp(), (middle * right).exp(), left.T[1:], right.T[2:]

    x = torch.randn(4, 8)
    with torch.no_grad():
        for got, want in zip(compiled(halves, min_partition=2)(x), halves(x), strict=True):
            assert_equal(got, want)


def test_outputs_of_repeated_elements() -> None:
    def function(x):
        total = x.sum(0, keepdim=True) * 2
        return total.expand(3, 5), total[:, :1].expand(3, 5), x.amax(1, keepdim=True).expand(3, 5).T

    x = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        for got, want in zip(compiled(function, strict=True)(x), function(x)):
            assert_equal(got, want)
    # The gradient of a sum.
    compiled(lambda x: (x.sum() * 3).square(), strict=True)(x).backward()
    torch.testing.assert_close(x.grad, (18 * x.sum()).expand(3, 5), rtol=1e-4, atol=1e-5)


def test_inputs_that_change() -> None:
    def accumulate(total, x):
        total.add_(x)
        return total * 2

    mine, theirs, x = torch.zeros(3, 4), torch.zeros(3, 4), torch.randn(3, 4)
    fast = compiled(accumulate, strict=True)
    with torch.no_grad():
        for _ in range(3):
            assert_equal(fast(mine, x), accumulate(theirs, x))
            assert_equal(mine, theirs)
    model, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    fast = compiled(model, strict=True)
    for _ in range(2):
        assert_equal(fast(x).detach(), reference(x).detach())
    assert_equal(model.running_mean, reference.running_mean)
    assert model.num_batches_tracked == 2


def test_indices_out_of_range_raise() -> None:
    model = nn.Embedding(10, 4)
    fast = compiled(model, strict=True)
    with torch.no_grad():
        assert_equal(fast(torch.tensor([1, 9])), model(torch.tensor([1, 9])))
        with pytest.raises(IndexError):
            fast(torch.tensor([1, 10]))
        with pytest.raises(IndexError):
            fast(torch.tensor([-1, 3]))
        assert_equal(fast(torch.tensor([0, 2])), model(torch.tensor([0, 2])))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: torch.gather(x, 1, i[:, None]) * 2,
        lambda x, i: x[i] * 2,
        lambda x, i: x.index_select(0, i) * 2,
        lambda x, i: torch.index_put(x, (i,), x[:2]) * 2,
        lambda x, i: torch.scatter(x, 0, i[:, None], x[:2]) * 2,
        lambda x, i: torch.scatter_add(x, 0, i[:, None], x[:2]) * 2,
    ],
    ids=["gather", "index", "index_select", "index_put", "scatter", "scatter_add"],
)
def test_other_indices_out_of_range_raise(function) -> None:
    x, fast = torch.randn(5, 5), compiled(function, strict=True)
    with torch.no_grad():
        assert_equal(fast(x, torch.tensor([3, 0])), function(x, torch.tensor([3, 0])))
        for wrong in ([0, 5], [1 << 40, 0], [-6, 1]):
            with pytest.raises(IndexError):
                fast(x, torch.tensor(wrong))
        assert_equal(fast(x, torch.tensor([1, 4])), function(x, torch.tensor([1, 4])))


def test_what_is_not_supported_stays_with_eager() -> None:
    def mixed(x):
        y = torch.relu(x @ x.T) * 2 + 1
        values = torch.linalg.svdvals(y)
        return torch.tanh(values) * 3 - (values / 100).exp()

    x = torch.randn(6, 4)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        assert_equal(compiled(mixed, min_partition=2)(x), mixed(x))
    messages = [str(warning.message) for warning in caught if "orchestrion leaves" in str(warning.message)]
    assert len(messages) == 1 and "aten._linalg_svd" in messages[0] and "svdvals(y)" in messages[0]
    [report] = ot.reports()[-1:]
    assert report.partitions == 2 and 0 < report.coverage < 1
    torch._dynamo.reset()
    with pytest.raises(Exception, match="strict: a graph stays with eager"), torch.no_grad():
        compiled(mixed, strict=True)(x)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings_are_compiled_with_their_gradient(mode: str) -> None:
    bag = nn.EmbeddingBag(50, 8, mode=mode)
    indices = torch.randint(0, 50, (6, 10))
    check(bag, indices)
    weighted = nn.EmbeddingBag(50, 8, mode="sum")
    check(weighted, indices, None, torch.rand(6, 10))
    gradients = []
    for function in (bag, compiled(bag, strict=True)):
        bag.zero_grad()
        (function(indices) ** 2).sum().backward()
        gradients.append(bag.weight.grad.clone())
    assert_equal(gradients[1], gradients[0])


def test_other_bags_of_embeddings_stay_with_eager() -> None:
    bag = nn.EmbeddingBag(50, 8, mode="max")
    indices, offsets = torch.randint(0, 50, (12,)), torch.tensor([0, 3, 3, 7])
    for function, arguments in [(bag, (indices.view(3, 4),)), (nn.EmbeddingBag(50, 8, padding_idx=2), (indices, offsets))]:
        with torch.no_grad():
            assert_equal(compiled(function)(*arguments), function(*arguments))
    assert "embedding_bag" in ot.report()


def test_random_numbers_may_be_eagers() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 8)).train()
    x = torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = compiled(model, fallback_random=True)
        torch.manual_seed(3)
        got = fast(x)
        got.sum().backward()
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.manual_seed(3)
    want = model(x)
    want.sum().backward()
    assert_equal(got.detach(), want.detach())
    for grad, parameter in zip(mine, model.parameters()):
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-5)


def _dropped(fast, x, seed: int):
    torch.manual_seed(seed)
    return fast(x)


def test_dropout_is_unbiased_and_repeatable() -> None:
    def function(x):
        return nn.functional.dropout(x * 2, 0.3, True), nn.functional.dropout(x * 2, 0.3, True)

    x = torch.ones(1000, 100)
    fast = compiled(function, strict=True)
    with torch.no_grad():
        first, second = _dropped(fast, x, 1)
        state = torch.get_rng_state()
        third, _ = fast(x)
        torch.set_rng_state(state)
        assert torch.equal(fast(x)[0], third)
        assert torch.equal(_dropped(fast, x, 1)[0], first)
        other, _ = _dropped(fast, x, 2)
    masks = [y != 0 for y in (first, second, third, other)]
    for y, mask in zip((first, second, third, other), masks):
        torch.testing.assert_close(y, mask * (2 / 0.7))
        # Five standard deviations of 100,000 draws.
        assert abs(mask.double().mean().item() - 0.7) < 5 * (0.21 / 100_000) ** 0.5
        # Rows and columns are independent.
        for dim in (0, 1):
            near = (mask.narrow(dim, 0, 99) & mask.narrow(dim, 1, 99)).double().mean().item()
            assert abs(near - 0.49) < 0.02
    for number, mask in enumerate(masks):
        for further in masks[number + 1 :]:
            assert abs((mask & further).double().mean().item() - 0.49) < 0.01
    assert all(report.partitions == 1 and not report.eager for report in ot.reports())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gradients_of_dropout_have_its_mask(dtype: torch.dtype) -> None:
    def function(x):
        return nn.functional.dropout(x.sin(), 0.5, True)

    fast = compiled(function, strict=True)
    # No zeros, whose sines do not show the mask.
    inputs = [torch.rand(64, 64).add(0.1).to(dtype).requires_grad_() for _ in range(2)]
    results = [fast(x) for x in inputs]
    # Two forwards before two backwards.
    for x, y in reversed(list(zip(inputs, results))):
        y.sum().backward()
        mask = y != 0
        assert 0.4 < mask.double().mean() < 0.6
        torch.testing.assert_close(y.detach(), (x.sin() * mask * 2).detach())
        torch.testing.assert_close(x.grad, (x.cos() * mask * 2).detach())


@pytest.mark.parametrize("function, factor", [
    (lambda x: nn.functional.dropout2d(x.sin(), 0.5, True), 2),
    (lambda x: x.sin() * torch.bernoulli(torch.full_like(x, 0.5)), 1),
    (lambda x: x.sin() * (torch.rand(4, 3, 8, 8) < 0.5), 1),
], ids=["channels", "bernoulli", "rand"])
def test_gradients_have_the_numbers_that_forward_drew(function, factor: int) -> None:
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    y = compiled(function, strict=True)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (x.cos() * (y != 0) * factor).detach())


def test_dropout_of_all_and_of_nothing() -> None:
    x = torch.randn(16, 16)
    with torch.no_grad():
        assert torch.equal(compiled(lambda x: nn.functional.dropout(x + 1, 1.0, True), strict=True)(x), torch.zeros(16, 16))
        assert torch.equal(compiled(lambda x: nn.functional.dropout(x + 1, 0.0, True), strict=True)(x), x + 1)
        assert torch.equal(compiled(lambda x: nn.functional.dropout(x + 1, 0.5, False), strict=True)(x), x + 1)


def test_random_tensors_are_distributed_as_they_say() -> None:
    def function(x):
        return torch.rand_like(x), torch.randn_like(x), torch.rand(300, 300, dtype=torch.float64), torch.bernoulli(x)

    x = torch.full((300, 300), 0.25)
    with torch.no_grad():
        fast = compiled(function, strict=True)
        uniform, normal, wide, truths = _dropped(fast, x, 7)
        assert all(torch.equal(*pair) for pair in zip(_dropped(fast, x, 7), (uniform, normal, wide, truths)))
    for sample in (uniform, wide):
        assert 0 <= sample.min() < 1e-3 and 0.999 < sample.max() < 1
        assert abs(sample.mean() - 0.5) < 5 * (1 / 12 / 90_000) ** 0.5 and abs(sample.var() - 1 / 12) < 0.002
    assert abs(normal.mean()) < 5 / 300 and abs(normal.var() - 1) < 0.03 and abs(normal.pow(4).mean() - 3) < 0.2
    assert set(truths.unique().tolist()) == {0.0, 1.0} and abs(truths.mean() - 0.25) < 0.01


def test_a_checkpoint_of_a_compiled_module_repeats_its_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    fast = compiled(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train(), strict=True)
    x = torch.eye(8, requires_grad=True)
    for reentrant in (True, False):
        x.grad = None
        y = checkpoint(fast, x, use_reentrant=reentrant)
        y.sum().backward()
        weight = fast._orig_mod[0].weight
        torch.testing.assert_close(x.grad, 2.0 * (y != 0).float() @ weight)


def test_sizes_that_vary() -> None:
    model = Block().eval()

    class Any(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.transpose(1, 2), -1) * 2

    model = Any()
    fast = torch.compile(model, backend="orchestrion", dynamic=True, options={"strict": True, "max_sizes": 2})
    with torch.no_grad():
        for rows in [3, 4, 5, 3, 4, 5, 3]:
            x = torch.randn(2, rows, 6)
            assert_equal(fast(x), model(x))


def test_a_size_is_compiled_in_the_background() -> None:
    def function(x):
        return torch.relu(x) * 2 + 1

    fast = torch.compile(function, backend="orchestrion", dynamic=True)
    with torch.no_grad():
        for _ in range(30):
            for rows in [3, 4]:
                x = torch.randn(rows, 5)
                assert_equal(fast(x), function(x))
            if any(report.partitions for report in ot.reports()):
                break
            import time

            time.sleep(0.2)
    assert any(report.partitions for report in ot.reports())


def test_deterministic_results_do_not_change_between_calls() -> None:
    def function(x):
        return torch.softmax(x @ x.T, -1).sum(0) / 3

    fast = torch.compile(function, backend="orchestrion", dynamic=True)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            for rows in [33, 34]:
                x = torch.randn(rows, 65)
                first = fast(x)
                assert all(torch.equal(fast(x), first) for _ in range(4))
    finally:
        torch.use_deterministic_algorithms(False)
    # The sizes of another test may still be compiled.
    assert sum(report.partitions for report in ot.reports()) >= 2


def test_a_fork_during_a_compilation() -> None:
    program = """
import os, torch
torch.set_num_threads(1)
def function(x):
    for _ in range(6):
        x = torch.softmax(x @ x.T, -1) + torch.relu(x)
    return x
fast = torch.compile(function, backend="orchestrion", dynamic=True)
with torch.no_grad():
    x = torch.randn(9, 9)
    for _ in range(2):
        fast(x)
    child = os.fork()
    for rows in [9, 9, 10, 10, 10]:
        x = torch.randn(rows, rows)
        torch.testing.assert_close(fast(x), function(x))
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print("done")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_exit_during_a_compilation() -> None:
    program = """
import torch
def function(x):
    for _ in range(12):
        x = torch.softmax(x @ x.T, -1) + torch.relu(x)
    return x
fast = torch.compile(function, backend="orchestrion", dynamic=True)
with torch.no_grad():
    for _ in range(2):
        fast(torch.randn(33, 33))
print("done")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_documents_are_dumped_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRION_DUMP", str(tmp_path))
    check(Block().eval(), torch.randn(2, 7, 16))
    [file] = tmp_path.glob("graph-*.json")
    document = json.loads(file.read_text())
    assert document["format"] == "orchestrion-aten" and "scaled_dot_product" in file.read_text()
    from orchestrion import _native
    from orchestrion.torch._backend import Options, Work

    executable = _native.compile_aten(file.read_bytes(), Options().native(torch.device("cpu"), Work()), {})
    assert len(executable.inputs) == len(document["inputs"])


def test_export() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    executable = ot.export(model, (x,))
    assert_equal(executable(x), model(x).detach())
    assert [port.shape for port in executable.inputs] == [(2, 3, 8, 8)]
    numpy = executable(x.numpy())
    torch.testing.assert_close(torch.from_numpy(numpy), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_options_and_modes() -> None:
    for mode in ["default", "reduce-overhead"]:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(torch.relu, backend="orchestrion", mode=mode)(torch.randn(3))
    with pytest.raises(Exception, match="there is no option `speed`"):
        torch._dynamo.reset()
        torch.compile(torch.relu, backend="orchestrion", options={"speed": 1})(torch.randn(3))


def test_higher_order_operators_work() -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))

    def function(x):
        return checkpoint(model, x, use_reentrant=False).square().sum()

    x = torch.randn(3, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(function)(x).backward()
    mine = x.grad.clone()
    x.grad = None
    function(x).backward()
    torch.testing.assert_close(mine, x.grad, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_repeats_its_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 4)).train()

    def function(x):
        return checkpoint(model, x, use_reentrant=False).square().sum()

    x, found = torch.randn(3, 4), []
    for run in [function, compiled(function)]:
        model.zero_grad()
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = run(x)
            loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for mine, theirs in zip(found[1], found[0]):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_branches_and_flexible_attention_work() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + 1, (x,)) * 3

    def attention(q):
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j)) * 2

    q = torch.randn(1, 2, 16, 16)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for x in [torch.ones(5), -torch.ones(5)]:
            assert_equal(compiled(branches)(x), branches(x))
        torch.testing.assert_close(compiled(attention)(q), attention(q), rtol=1e-4, atol=1e-5)


def test_the_memory_of_outputs_is_resizable() -> None:
    with torch.no_grad():
        result = compiled(torch.tanh, strict=True)(torch.randn(6, 4))
        storage = result.untyped_storage()
        size = storage.size()
        storage.resize_(0)
        storage.resize_(size)
        result.fill_(2.0)
    assert torch.equal(result, torch.full((6, 4), 2.0))


def test_autocast_and_half_types() -> None:
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = compiled(model)(x), model(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_threads_are_those_of_torch() -> None:
    program = """
import os, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).eval()
fast = torch.compile(model, backend="orchestrion")
x = torch.randn(64, 512)
with torch.no_grad():
    fast(x); fast(x)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(100): fast(x)
    print((time.process_time() - cpu) / (time.perf_counter() - wall))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert float(result.stdout) <= 1.1


def _kernel_graph(target, tensors, arguments, results):
    """A graph of one call: tensors by name are its inputs, `results` those that are its outputs."""
    graph = torch.fx.Graph()
    nodes = {}
    for name, tensor in tensors.items():
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = tensor
    call = graph.call_function(target, tuple(nodes[item] if isinstance(item, str) else item for item in arguments))
    # GPUs alone have the kernels: types come from the devices without memory.
    found = target(*(tensors[item].to("meta") if isinstance(item, str) else item for item in arguments))
    made = [torch.empty_like(value, device="cpu") if isinstance(value, torch.Tensor) else value for value in found]
    call.meta["val"] = tuple(made)
    outputs = []
    for number in results:
        outputs.append(graph.call_function(operator.getitem, (call, number)))
        outputs[-1].meta["val"] = made[number]
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_of_gpus_and_its_gradient_fit_together(kernel: str) -> None:
    from orchestrion.torch._backend import Options, compiled_graph

    aten = torch.ops.aten
    tensors = {name: torch.randn(2, 3, 20, 8, requires_grad=True) for name in "qkv"}
    y = torch.softmax(tensors["q"].double() @ tensors["k"].double().mT * 8**-0.5, -1) @ tensors["v"].double()
    tensors["g"] = torch.randn(2, 3, 20, 8)
    want = torch.autograd.grad(y, [tensors[name] for name in "qkv"], tensors["g"].double())
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    operands = {name: tensors[name] for name in "qkv"}
    bias = () if kernel == "flash" else (None, True)
    forward = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    saved = [0, 1, 2, 3] if kernel == "efficient" else [0, 1, 6, 7]
    options = Options(strict=True, superoptimize=False)
    gm = _kernel_graph(forward, operands, (*"qkv", *bias, 0.0, False), saved)
    out, log, seed, offset = compiled_graph(gm, "forward", options)(list(operands.values()))
    torch.testing.assert_close(out, y.float(), rtol=1e-4, atol=1e-5)
    assert log.shape == {"flash": (2, 3, 20), "efficient": (2, 3, 32), "cudnn": (2, 3, 20, 1)}[kernel]
    state, lengths = ("seed", "offset"), (None, None, 20, 20)
    arguments = {
        "flash": (*"gqkv", "out", "log", *lengths, 0.0, False, *state),
        "efficient": (*"gqkv", None, "out", "log", *state, 0.0, [True, True, True, False]),
        "cudnn": (*"gqkv", "out", "log", *state, None, *lengths, 0.0, False),
    }[kernel]
    given = {**tensors, "out": out, "log": log, "seed": seed, "offset": offset}
    backward = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    found = compiled_graph(_kernel_graph(backward, given, arguments, [0, 1, 2]), "backward", options)(list(given.values()))
    for mine, gradient in zip(found, want):
        torch.testing.assert_close(mine, gradient.float(), rtol=1e-4, atol=1e-5)
