"""What a forward graph saves for its backward graph: what is saved, and in which memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
ot = pytest.importorskip("orchestrion.torch")


@pytest.fixture(autouse=True)
def _fresh(fresh_dynamo: None) -> Iterator[None]:
    yield


class _Layers(nn.Module):
    def __init__(self, width: int, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms):
            x = x + torch.tanh(layer(norm(x)))
        return torch.tanh(x)


def _saved(module: Any, x: Any) -> tuple[Any, list[Any]]:
    """What a module gives, and the tensors that it saves."""
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(x)
    return result, saved


def _compiled(module: Any) -> Any:
    return torch.compile(module, backend="orchestrion", options={"strict": True})


def _storages(tensors: Any) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


def _check_gradients(module: Any, reference: Any, result: Any, x: Any, atol: float = 1e-5) -> None:
    """Compares a result, and the gradients that it gives, with those in f64."""
    expected = reference.double()(x.double())
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, result.numel()).view_as(result) / result.shape[0]
    for output in (result, expected):
        (output * weights).sum().backward()
    for given, wanted in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(given.grad, wanted.grad.float(), rtol=1e-4, atol=atol)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled, without slabs, and what is known of these."""
    from orchestrion.torch import _unit

    kept: list[Any] = []
    open_slabs = _unit.opened

    def watched(gm: Any) -> Any:
        kept.append(open_slabs(gm))
        return kept[-1]

    monkeypatch.setattr(_unit, "opened", watched)
    return kept


def _own(saved: list[Any], *others: Any) -> list[Any]:
    """The saved tensors that have none of the others' memory."""
    given = set(_storages(others))
    return [tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in given]


def test_small_saved_tensors_are_parts_of_one_and_results_are_not(graphs: list[Any]) -> None:
    module = _Layers(32)
    reference = copy.deepcopy(module)
    x = torch.randn(6, 32)
    result, saved = _saved(_compiled(module), x)
    [slab] = _own(saved, x, result, *module.parameters())
    assert slab.dim() == 1
    [(length, starts)] = graphs[0].slabs
    assert length == slab.numel() and len(starts) >= 8
    assert all(start * slab.element_size() % 256 == 0 for start in starts)
    # What the caller holds keeps no saved tensor in memory.
    assert result.untyped_storage().nbytes() == result.numel() * result.element_size()
    _check_gradients(module, reference, result, x)


def test_backward_runs_again_and_after_another_forward() -> None:
    module = _Layers(32)
    reference = copy.deepcopy(module)
    compiled = _compiled(module)
    inputs = [torch.randn(6, 32) for _ in range(2)]
    for results in ([compiled(x) for x in inputs], [reference(x) for x in inputs]):
        results[0].square().mean().backward(retain_graph=True)
        results[1].square().mean().backward()
        results[0].sum().backward()
    for given, wanted in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(given.grad, wanted.grad, rtol=1e-4, atol=1e-5)


def test_hooks_may_move_what_is_saved() -> None:
    module = _Layers(32)
    reference = copy.deepcopy(module)
    x = torch.randn(6, 32)
    # Other memory, behind elements that are not of it.
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: torch.cat([tensor[:1], tensor]), lambda kept: kept[1:]):
        result = _compiled(module)(x)
    _check_gradients(module, reference, result, x)


@pytest.mark.parametrize("change", [lambda slab: slab.half(), lambda slab: slab[:-200], lambda slab: slab[::2], lambda slab: slab.view(2, -1)])
def test_a_slab_that_hooks_changed_is_refused(change: Any) -> None:
    module = _Layers(32)
    weights = {tuple(parameter.shape) for parameter in module.parameters()}
    x = torch.randn(6, 32)

    def unpack(tensor: Any) -> Any:
        return tensor if tuple(tensor.shape) in weights | {tuple(x.shape)} else change(tensor)

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        result = _compiled(module)(x)
    with pytest.raises(Exception, match="hooks of saved tensors must give back what they were given"):
        result.sum().backward()


def test_what_is_checkpointed_is_computed_again() -> None:
    from torch.utils.checkpoint import checkpoint

    module = _Layers(32)
    reference = copy.deepcopy(module)
    x = torch.randn(6, 32)
    _check_gradients(module, reference, checkpoint(_compiled(module), x, use_reentrant=False), x)


def _divided(run: Any, x: Any) -> tuple[Any, Any, int]:
    """Forward and backward graph of a function, and how many outputs the caller gets."""
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

    kept: list[Any] = []

    def divide(joint: Any, inputs: Any, *, num_fwd_outputs: int, **how: Any) -> Any:
        graphs = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **how)
        kept.append((*graphs, num_fwd_outputs))
        return graphs

    aot_function(run, nop, partition_fn=divide)(x.requires_grad_())
    return kept[0]


def test_graphs_with_slabs_are_right_in_eager() -> None:
    from orchestrion.torch import _saved

    x = torch.randn(12, 32)
    forward, backward, returned = _divided(lambda x: torch.tanh(torch.sin(x).t().exp()) * x.t().double(), x)
    wanted, plain_forward, plain_backward = x.detach(), copy.deepcopy(forward), copy.deepcopy(backward)
    _saved.pack_saved(forward, backward, returned, torch.device("cpu"), {})
    counts = [sum(node.op == "placeholder" for node in gm.graph.nodes) for gm in (plain_backward, backward)]
    assert counts[1] < counts[0]
    tangent = torch.randn(32, 12, dtype=torch.float64)
    results = []
    for ahead, back in ((plain_forward, plain_backward), (forward, backward)):
        outputs = ahead(wanted)
        results.append([*outputs[:returned], *back(*outputs[returned:], tangent)])
    for given, expected in zip(*results, strict=True):
        assert torch.equal(given, expected)


def test_large_saved_tensors_have_memory_of_their_own() -> None:
    module = _Layers(32, depth=2)
    reference = copy.deepcopy(module)
    x = torch.randn(1 << 14, 32)
    result, saved = _saved(_compiled(module), x)
    large = [tensor for tensor in saved if tensor.numel() * tensor.element_size() > 1 << 20]
    assert len(large) >= 2
    assert len(set(_storages(large))) == len(large)
    _check_gradients(module, reference, result, x)


def test_weights_are_saved_and_not_views_of_them() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    _, saved = _saved(_compiled(module), torch.randn(4, 8, requires_grad=True))
    pointers = {parameter.data_ptr(): parameter for parameter in module.parameters()}
    weights = [tensor for tensor in saved if tensor.data_ptr() in pointers]
    assert weights
    for tensor in weights:
        assert tensor.stride() == pointers[tensor.data_ptr()].stride()


def test_a_weight_that_changed_between_forward_and_backward_is_refused() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    loss = _compiled(module)(torch.randn(4, 8, requires_grad=True)).sum()
    with torch.no_grad():
        module[2].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_that_is_returned_and_saved_is_made_once() -> None:
    def run(x: Any) -> tuple[Any, Any]:
        y = torch.tanh(x)
        return y, y * y

    x = torch.randn(5, 7, requires_grad=True)
    (y, z), saved = _saved(_compiled(run), x)
    assert y.untyped_storage().data_ptr() in _storages(saved)
    (y.sum() + z.sum()).backward()
    wanted = x.detach().clone().requires_grad_()
    a, b = run(wanted)
    (a.sum() + b.sum()).backward()
    torch.testing.assert_close(x.grad, wanted.grad)


# Large images have memory of their own. Gradients are sums of up to as many products as an image has pixels.
@pytest.mark.parametrize(("height", "width", "apart", "atol"), [(12, 10, 0, 1e-5), (200, 180, 1, 1e-3)])
def test_images_are_saved_channels_last_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, graphs: list[Any], height: int, width: int, apart: int, atol: float
) -> None:
    from orchestrion.torch import _backend

    # As on a GPU with tensor cores.
    monkeypatch.setattr(_backend._Compiler, "_is_for_tensor_cores", lambda *_: True)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    )
    reference = copy.deepcopy(module)
    x = torch.randn(2, 3, height, width)
    result, saved = _saved(_compiled(module), x)
    made = [tensor for tensor in saved if tensor.dim() == 4 and tensor.shape[1] in (4, 8) and tensor.shape[2] > 3]
    parts = [image for image in graphs[0].images.values() if image.dim() == 4]
    assert len(made) >= apart and len(made) + len(parts) >= 5
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in [*made, *parts])
    _check_gradients(module, reference, result, x, atol)


def test_images_that_the_caller_gets_keep_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrion.torch import _backend

    monkeypatch.setattr(_backend._Compiler, "_is_for_tensor_cores", lambda *_: True)
    conv = nn.Conv2d(3, 8, 3)

    def run(x: Any) -> tuple[Any, Any]:
        y = conv(x).relu()
        return y, (y * y).sum()

    x = torch.randn(2, 3, 12, 10, requires_grad=True)
    y, z = _compiled(run)(x)
    assert y.is_contiguous()
    (y.sum() + z).backward()
    wanted = x.detach().clone().requires_grad_()
    a, b = run(wanted)
    (a.sum() + b).backward()
    torch.testing.assert_close(x.grad, wanted.grad, rtol=1e-4, atol=1e-5)


def test_several_types_are_saved() -> None:
    def run(x: Any) -> Any:
        y = torch.where(x > 0, x.double().tanh().float(), x.to(torch.bfloat16).sigmoid().float())
        return nn.functional.dropout(y, 0.5, training=True) * x.exp().sum()

    x = torch.randn(64, requires_grad=True)
    result = _compiled(run)(x)
    result.sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()
    kept = result.detach() != 0
    assert 0 < int(kept.sum()) < 64


def test_a_launch_mode_is_known() -> None:
    module = nn.Linear(4, 4)
    with torch.no_grad():
        # Of a CPU there is nothing to choose.
        options = {"strict": True, "launches": "line"}
        torch.compile(module, backend="orchestrion", options=options)(torch.randn(2, 4))
        assert ot.reports()[-1].launches == []
        torch._dynamo.reset()
        with pytest.raises(Exception, match="launches are `sideways`; known are direct, line, branched"):
            torch.compile(module, backend="orchestrion", options={"strict": True, "launches": "sideways"})(torch.randn(2, 4))
