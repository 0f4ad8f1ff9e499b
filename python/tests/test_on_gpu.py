"""Tensors, streams, graphs and training on a real GPU: skipped where there is none."""

from __future__ import annotations

import copy
import gc
import json
import math
import operator
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import model, value
from onnx import helper

import orchestrion as orc

torch = pytest.importorskip("torch")
nn = torch.nn
ot = pytest.importorskip("orchestrion.torch")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def _layers(rows: int, width: int = 256, depth: int = 4) -> tuple[Any, list[np.ndarray]]:
    """`y = tanh(.. tanh(x @ w0) .. @ wn) `, and the weights."""
    rng = np.random.default_rng(1)
    weights = [rng.normal(0, width**-0.5, (width, width)).astype(np.float32) for _ in range(depth)]
    nodes, at = [], "x"
    for number in range(depth):
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"p{number}"]))
        nodes.append(helper.make_node("Tanh", [f"p{number}"], [at := f"h{number}"]))
    ports = [value("x", [rows, width])], [value(at, [rows, width])]
    return model(nodes, *ports, {f"w{number}": weight for number, weight in enumerate(weights)}), weights


def _expected(x: Any, weights: list[np.ndarray]) -> Any:
    y = x.double()
    for weight in weights:
        y = torch.tanh(y @ torch.from_numpy(weight).to(x.device).double())
    return y


def _near(given: Any, expected: Any, tolerance: float = 1e-4) -> None:
    assert given.shape == expected.shape
    error = (given.double() - expected.double()).abs().max().item()
    assert error <= tolerance * max(1.0, expected.double().abs().max().item()), error


@pytest.fixture(scope="module")
def layers(cache: str) -> tuple[Any, list[np.ndarray]]:
    """An executable of 64 rows of 256, and its weights."""
    made, weights = _layers(64)
    return orc.compile(made, device="cuda", cache_dir=cache, progress=False), weights


def _rows(seed: int, rows: int = 64, width: int = 256) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)).cuda()


def _captured(run: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph that holds the calls of `run`, and what it gave."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


def test_results_are_new_tensors_on_the_gpu(layers: Any) -> None:
    executable, weights = layers
    kept = []
    for seed in range(50):
        x = _rows(seed)
        kept.append((x, executable(x)))
    # All enqueued before one is looked at, and none is overwritten by a later call.
    for x, y in kept:
        assert y.is_cuda
        _near(y, _expected(x, weights))


def test_a_hundred_calls_in_flight_on_tensors_that_die_at_once(layers: Any) -> None:
    executable, weights = layers
    base = _rows(7)
    results = [executable(base + step) for step in range(100)]
    for step, y in enumerate(results):
        _near(y, _expected(base + step, weights))


def test_runs_follow_the_stream(layers: Any) -> None:
    executable, weights = layers
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = _rows(3)
    expected = [_expected(x * step, weights) for step in range(12)]
    torch.cuda.synchronize()
    results = []
    for step in range(12):
        with torch.cuda.stream(streams[step % 3]):
            torch.cuda._sleep(2_000_000)
            scaled = x * step
            results.append(executable(scaled))
    for stream in streams:
        stream.synchronize()
    for y, reference in zip(results, expected):
        _near(y, reference)


def test_a_call_does_not_wait(layers: Any) -> None:
    executable, _ = layers
    x = _rows(4)
    executable(x)
    torch.cuda.synchronize()
    before = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    before.record()
    executable(x)
    assert not before.query()
    torch.cuda.synchronize()


def test_a_graph_of_the_caller_holds_runs(layers: Any) -> None:
    executable, weights = layers
    x = _rows(5)
    executable(x)

    def twice() -> tuple[Any, Any]:
        once = executable(x)
        return once, executable(once)

    graph, (y, z) = _captured(twice)
    for seed in range(5):
        x.copy_(_rows(seed))
        graph.replay()
        other = executable(_rows(100 + seed))
        _near(y, _expected(x, weights))
        _near(z, _expected(_expected(x, weights), weights), 1e-3)
        _near(other, _expected(_rows(100 + seed), weights))


def test_a_graph_may_be_replayed_beside_other_runs(layers: Any) -> None:
    executable, weights = layers
    x = _rows(5)
    executable(x)
    graph, y = _captured(lambda: executable(x))
    others = []
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for seed in range(40):
        graph.replay()
        with torch.cuda.stream(stream):
            others.append((seed, executable(_rows(seed))))
    torch.cuda.synchronize()
    _near(y, _expected(x, weights))
    for seed, other in others:
        _near(other, _expected(_rows(seed), weights))


def test_misaligned_views_and_given_outputs(layers: Any) -> None:
    executable, weights = layers
    x = _rows(6)
    for offset in (0, 1, 2, 3, 4, 0):
        memory = torch.zeros(64 * 256 + 8, device="cuda")
        view = memory[offset : offset + 64 * 256].view(64, 256)
        view.copy_(x)
        written = torch.zeros(64 * 256 + 8, device="cuda")
        out = written[offset : offset + 64 * 256].view(64, 256)
        assert executable(view, out=out) is out
        _near(out, _expected(x, weights))
        assert written[:offset].abs().sum() == 0 and written[offset + 64 * 256 :].abs().sum() == 0


def test_tensors_of_the_host_and_of_the_gpu_in_turns(layers: Any) -> None:
    executable, weights = layers
    for seed in range(6):
        x = _rows(seed)
        given = x.cpu() if seed % 2 else x
        y = executable(given)
        assert y.is_cuda == given.is_cuda
        _near(y.cuda(), _expected(x, weights))


def test_threads_and_contexts(layers: Any) -> None:
    executable, weights = layers
    failures: list[BaseException] = []

    def work(number: int, run: Callable[..., Any]) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for step in range(30):
                    x = _rows(100 * number + step)
                    y = run(x)
                    stream.synchronize()
                    _near(y, _expected(x, weights))
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            failures.append(error)

    runs = [executable, executable, executable.context(), executable.context()]
    threads = [threading.Thread(target=work, args=(number, run)) for number, run in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_an_executable_may_go_while_its_run_is_in_flight(cache: str) -> None:
    made, weights = _layers(64)
    x = _rows(8)
    results = []
    for _ in range(5):
        executable = orc.compile(made, device="cuda", cache_dir=cache, progress=False)
        executable(x)
        torch.cuda._sleep(50_000_000)
        results.append(executable(x))
        del executable
        gc.collect()
    for y in results:
        _near(y, _expected(x, weights))


def test_memory_is_flat(layers: Any) -> None:
    executable, _ = layers

    def calls(count: int) -> None:
        for _ in range(count):
            executable(_rows(1)[torch.randperm(64, device="cuda")].contiguous())
        torch.cuda.synchronize()

    # PyTorch loads its kernels, and takes memory for them, when they are called first.
    calls(20)
    before, _ = torch.cuda.mem_get_info()
    calls(300)
    after, _ = torch.cuda.mem_get_info()
    assert before - after <= 4 << 20


def test_working_memory_is_of_pytorchs_allocator_and_shared(cache: str) -> None:
    made, weights = _layers(512)
    first, second = (orc.compile(made, device="cuda", cache_dir=cache, progress=False) for _ in range(2))
    scratch_bytes = first.manifest()["arena_bytes"]
    assert scratch_bytes > 0
    x = _rows(1, 512)
    granule = 2 << 20
    # PyTorch's first product allocates a workspace for cuBLAS, which stays.
    expected = _expected(x, weights)
    # In a stream of its own, where no executable of another test has working memory.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(stream):
        y = first(x)
        with_scratch = torch.cuda.memory_allocated() - before - y.nbytes
        z = second(x)
    assert scratch_bytes <= with_scratch <= scratch_bytes + granule
    assert torch.cuda.memory_allocated() - before - y.nbytes - z.nbytes == with_scratch
    stream.synchronize()
    for result in (y, z):
        _near(result, expected)
    del first, second, result
    gc.collect()
    assert torch.cuda.memory_allocated() - before == y.nbytes + z.nbytes


def test_large_working_memory_is_pytorchs_again_after_each_run(cache: str) -> None:
    made, weights = _layers(1 << 16)
    executable = orc.compile(made, device="cuda", cache_dir=cache, progress=False)
    scratch_bytes = executable.manifest()["arena_bytes"]
    assert scratch_bytes > 4 << 20
    x = _rows(1, 1 << 16)
    expected = _expected(x, weights)
    before = torch.cuda.memory_allocated()
    kept = []
    for _ in range(100):
        # What others allocate meanwhile moves the working memory.
        torch.cuda.reset_peak_memory_stats()
        y = executable(x)
        kept = [*kept[-3:], (y, torch.full((scratch_bytes,), 255, dtype=torch.uint8, device="cuda"))]
        assert torch.cuda.max_memory_allocated() - before >= scratch_bytes
        held = sum(y.nbytes + filler.nbytes for y, filler in kept)
        assert abs(torch.cuda.memory_allocated() - before - held) <= 4 << 20
    for y, filler in kept:
        _near(y, expected)
        assert int(filler.min()) == 255


def test_executables_share_working_memory_from_several_threads(cache: str) -> None:
    models = [_layers(rows) for rows in (64, 256, 512)]
    executables = [orc.compile(made, device="cuda", cache_dir=cache, progress=False) for made, _ in models]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rows, weights = (64, 256, 512)[number % 3], models[number % 3][1]
            for step in range(40):
                x = _rows(100 * number + step, rows)
                _near(executables[number % 3](x), _expected(x, weights))
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# Of torch.compile


class _Block(nn.Module):
    """A block of a transformer with a mask, and a number of NumPy."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads
        self.temperature = np.power(width // heads, 0.5)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q / self.temperature) @ k.transpose(-1, -2)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        probabilities = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((probabilities @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def _compiled(module: Any, cache: str, **options: Any) -> Any:
    return torch.compile(module, backend="orchestrion", options={"cache_dir": cache, "strict": True, **options})


def test_a_compiled_block_is_eagers(cache: str) -> None:
    block = _Block().cuda().eval()
    fast = _compiled(block, cache)
    with torch.no_grad():
        for seed in range(5):
            torch.manual_seed(seed)
            x = torch.randn(2, 64, 128, device="cuda")
            block.temperature = np.float64(1 + seed)
            _near(fast(x), copy.deepcopy(block).double()(x.double()))


def test_changed_weights_count(cache: str) -> None:
    block = _Block().cuda()
    fast = _compiled(block, cache)
    other = _Block().cuda()
    x = torch.randn(2, 64, 128, device="cuda")

    def check() -> None:
        with torch.no_grad():
            _near(fast(x), copy.deepcopy(block).double()(x.double()))

    check()
    block.load_state_dict(other.state_dict())
    check()
    block.out.weight.data.mul_(3)
    check()
    block.out.weight = nn.Parameter(torch.randn_like(block.out.weight))
    check()
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        block(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        check()


def test_training_steps_are_eagers(cache: str) -> None:
    eager = _Block().cuda()
    trained = copy.deepcopy(eager)
    fast = _compiled(trained, cache)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in (eager, trained)]
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(2, 64, 128, device="cuda")
        losses = [module(x).square().mean() for module in (eager, fast)]
        for loss, optimizer in zip(losses, optimizers):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        _near(losses[1], losses[0])
    for given, expected in zip(trained.parameters(), eager.parameters()):
        _near(given, expected, 1e-3)


def test_two_forwards_before_two_backwards(cache: str) -> None:
    eager = _Block().cuda()
    trained = copy.deepcopy(eager)
    fast = _compiled(trained, cache)
    inputs = [torch.randn(2, 64, 128, device="cuda") for _ in range(2)]
    for module in (eager, fast):
        first, second = (module(x).square().mean() for x in inputs)
        second.backward()
        first.backward()
    for given, expected in zip(trained.parameters(), eager.parameters()):
        _near(given.grad, expected.grad, 1e-3)


def test_changed_inputs_are_the_callers(cache: str) -> None:
    def step(cache_rows: Any, x: Any, at: Any) -> Any:
        cache_rows.index_copy_(0, at, torch.tanh(x) * 2)
        return (cache_rows.relu() + 1).sum(-1)

    fast = _compiled(step, cache)
    rows = torch.randn(128, 64, device="cuda")
    reference = rows.clone()
    for start in (0, 5, 77):
        at = torch.arange(start, start + 4, device="cuda")
        x = torch.randn(4, 64, device="cuda")
        _near(fast(rows, x, at), step(reference, x, at))
        _near(rows, reference)


def test_two_views_of_one_tensor(cache: str) -> None:
    def step(a: Any, b: Any) -> Any:
        a.add_(b.sigmoid())
        return (a * b).tanh()

    fast = _compiled(step, cache)
    for _ in range(3):
        memory = torch.randn(2, 64, 64, device="cuda")
        reference = memory.clone()
        _near(fast(memory[0], memory[1]), step(reference[0], reference[1]))
        _near(memory, reference)


def test_two_instances_share_code(cache: str) -> None:
    blocks = [_Block().cuda().eval() for _ in range(2)]

    @torch.compile(backend="orchestrion", options={"cache_dir": cache, "strict": True})
    def run(block: Any, x: Any) -> Any:
        return block(x) + 1

    with torch.no_grad():
        for _ in range(2):
            for block in blocks:
                x = torch.randn(2, 64, 128, device="cuda")
                _near(run(block, x), copy.deepcopy(block).double()(x.double()) + 1)


def test_a_captured_step_of_torch(cache: str) -> None:
    block = _Block().cuda().eval()
    fast = _compiled(block, cache)
    x = torch.randn(2, 64, 128, device="cuda")
    with torch.no_grad():
        fast(x)
        graph, y = _captured(lambda: fast(x))
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            _near(y, copy.deepcopy(block).double()(x.double()))


def test_record_stream_of_results(cache: str) -> None:
    block = _Block().cuda().eval()
    fast = _compiled(block, cache)
    x = torch.randn(2, 64, 128, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        expected = copy.deepcopy(block).double()(x.double())
        for _ in range(10):
            y = fast(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)
                doubled = y * 2
            y.record_stream(side)
            del y
            torch.randn(2, 64, 128, device="cuda")
            side.synchronize()
            _near(doubled, 2 * expected)


def test_half_precision_and_attention(cache: str) -> None:
    class Attention(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    fast = _compiled(Attention(), cache)
    for dtype in (torch.float16, torch.bfloat16):
        tensors = [torch.randn(2, 4, 128, 64, device="cuda", dtype=dtype) for _ in range(3)]
        with torch.no_grad():
            _near(fast(*tensors), Attention()(*(tensor.double() for tensor in tensors)), 2e-2)


def test_an_index_out_of_range_stops(cache: str) -> None:
    """In a process of its own: the GPU's context is lost."""
    import subprocess
    import sys

    code = f"""
import torch
table = torch.nn.Embedding(8, 64).cuda()
fast = torch.compile(lambda i: table(i).tanh() * 2 + 1, backend="orchestrion", options={{"cache_dir": {cache!r}, "strict": True}})
with torch.no_grad():
    fast(torch.tensor([1, 2], device="cuda"))
    torch.cuda.synchronize()
    try:
        y = fast(torch.tensor([1, 800000000], device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        print("stopped:", type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "stopped:" in done.stdout, done.stdout + done.stderr


# Of training


def _seeded(fast: Callable[..., Any], x: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return fast(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropout_is_unbiased_and_repeatable(dtype: Any, cache: str) -> None:
    def function(x: Any) -> Any:
        return nn.functional.dropout(x * 2, 0.25, True), nn.functional.dropout(x * 2, 0.25, True)

    x = torch.ones(1000, 100, device="cuda", dtype=dtype)
    fast = _compiled(function, cache)
    with torch.no_grad():
        first, second = _seeded(fast, x, 1)
        state = torch.cuda.get_rng_state()
        third, _ = fast(x)
        torch.cuda.set_rng_state(state)
        assert torch.equal(fast(x)[0], third)
        assert torch.equal(_seeded(fast, x, 1)[0], first)
        other, _ = _seeded(fast, x, 2)
    masks = [y != 0 for y in (first, second, third, other)]
    for number, (y, mask) in enumerate(zip((first, second, third, other), masks)):
        torch.testing.assert_close(y, (mask * (2 / 0.75)).to(dtype))
        assert abs(mask.double().mean().item() - 0.75) < 5 * (0.1875 / 100_000) ** 0.5
        for further in masks[number + 1 :]:
            assert abs((mask & further).double().mean().item() - 0.5625) < 0.01


def test_random_numbers_are_those_of_the_cpu_for_a_seed(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        return nn.functional.dropout(x, 0.3, True), torch.rand_like(x), torch.bernoulli(x * 0 + 0.5)

    drawn = torch.randint
    monkeypatch.setattr(torch, "randint", lambda *args, device, **kwargs: drawn(*args, **kwargs).to(device))
    x = torch.randn(300, 70)
    with torch.no_grad():
        on_cpu = _seeded(_compiled(function, cache), x, 3)
        torch._dynamo.reset()
        on_gpu = _seeded(_compiled(function, cache), x.cuda(), 3)
    for mine, other in zip(on_gpu, on_cpu):
        assert torch.equal(mine.cpu() != 0, other != 0)
        torch.testing.assert_close(mine.cpu(), other)


def test_gradients_of_dropout_have_its_mask(cache: str) -> None:
    fast = _compiled(lambda x: nn.functional.dropout(x.sin(), 0.5, True), cache)
    inputs = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2)]
    results = [fast(x) for x in inputs]
    for x, y in reversed(list(zip(inputs, results))):
        y.sum().backward()
        mask = y != 0
        assert 0.4 < mask.double().mean() < 0.6
        _near(x.grad, x.cos() * mask * 2)


def test_a_captured_dropout_draws_anew_at_each_replay(cache: str) -> None:
    fast = _compiled(lambda x: nn.functional.dropout(x + 1, 0.5, True), cache)
    x = torch.zeros(64, 64, device="cuda")
    with torch.no_grad():
        fast(x)
        graph, y = _captured(lambda: fast(x))
        masks = []
        for _ in range(3):
            graph.replay()
            masks.append(y != 0)
    for number, mask in enumerate(masks):
        assert 0.4 < mask.double().mean() < 0.6
        assert all(not torch.equal(mask, other) for other in masks[:number])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_of_compiled_code_repeats_its_dropout(reentrant: bool, cache: str) -> None:
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda().train()
    fast = _compiled(module, cache)
    x = torch.eye(64, device="cuda", requires_grad=True)
    y = checkpoint(fast, x, use_reentrant=reentrant)
    y.sum().backward()
    _near(x.grad, 2.0 * (y != 0).float() @ module[0].weight)


def test_a_compiled_checkpoint_repeats_its_dropout(cache: str) -> None:
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda().train()
    fast = _compiled(lambda x: checkpoint(module, x, use_reentrant=False) * 3, cache, strict=False)
    x = torch.eye(64, device="cuda", requires_grad=True)
    y = fast(x)
    y.sum().backward()
    _near(x.grad, 6.0 * (y != 0).float() @ module[0].weight)


#: Kernels of attention, with the types that each takes.
KERNELS = [
    ("FLASH_ATTENTION", torch.float16), ("FLASH_ATTENTION", torch.bfloat16), ("EFFICIENT_ATTENTION", torch.float32),
    ("EFFICIENT_ATTENTION", torch.float16), ("EFFICIENT_ATTENTION", torch.bfloat16), ("CUDNN_ATTENTION", torch.float16),
    ("CUDNN_ATTENTION", torch.bfloat16),
]


class _Attention(nn.Module):
    """Attention of 50 queries, which no kernel's block divides."""

    def __init__(self, causal: bool, mask: Any) -> None:
        super().__init__()
        self.causal, self.mask = causal, mask

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        y = nn.functional.scaled_dot_product_attention(q * 1.5, k, v, attn_mask=self.mask, is_causal=self.causal)
        return (y * 2).transpose(1, 2)


def _gradients(function: Callable[..., Any], tensors: list[Any], gradient: Any) -> list[Any]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    y.backward(gradient.to(y.dtype))
    return [y, *(leaf.grad for leaf in leaves)]


def _attention_case(kernel: str, dtype: Any, kind: str) -> tuple[_Attention, list[Any], Any, list[Any]]:
    """The module, its operands, the gradient of its result, and results in f64."""
    mask = None
    if kind == "masked":
        if kernel == "FLASH_ATTENTION":
            pytest.skip("flash attention takes no mask")
        mask = torch.zeros(2, 4, 50, 50, device="cuda", dtype=dtype).masked_fill(torch.rand(2, 4, 50, 50, device="cuda") < 0.3, -np.inf)
        mask[..., 0] = 0.0
    module = _Attention(kind == "causal", mask)
    tensors = [torch.randn(2, 4, 50, 64, device="cuda", dtype=dtype) for _ in range(3)]
    gradient = torch.randn(2, 50, 4, 64, device="cuda")
    wide = _Attention(module.causal, None if mask is None else mask.double())
    return module, tensors, gradient, _gradients(wide, [tensor.double() for tensor in tensors], gradient.double())


@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
@pytest.mark.parametrize("kernel, dtype", KERNELS)
def test_gradients_of_attention_are_eagers(kernel: str, dtype: Any, kind: str, cache: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    module, tensors, gradient, exact = _attention_case(kernel, dtype, kind)
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        expected = _gradients(module, tensors, gradient)
        found = _gradients(_compiled(module, cache), tensors, gradient)
    for mine, eager, reference in zip(found, expected, exact):
        assert mine.dtype == eager.dtype and mine.shape == eager.shape
        largest = reference.abs().max()
        mine, eager = ((value.double() - reference).abs().max() / largest for value in (mine, eager))
        assert mine <= (1e-4 if dtype == torch.float32 else 2 * eager + 2e-3), (mine, eager)


@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
@pytest.mark.parametrize("kernel, dtype", KERNELS)
@pytest.mark.parametrize("eager", ["forward", "backward"])
def test_half_of_attention_may_stay_with_eager(eager: str, kernel: str, dtype: Any, kind: str, cache: str, monkeypatch: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from orchestrion.torch import _backend, _support

    kept = _support.is_supported

    def is_supported(node: Any) -> bool:
        source = node.args[0] if node.target is operator.getitem else node
        is_attention = "_scaled_dot_product" in str(source.target)
        return kept(node) and not (is_attention and ("_backward" in str(source.target)) == (eager == "backward"))

    monkeypatch.setattr(_backend, "is_supported", is_supported)
    module, tensors, gradient, exact = _attention_case(kernel, dtype, kind)
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        fast = _compiled(module, cache, strict=False, min_partition=1)
        found = _gradients(fast, tensors, gradient)
    for mine, reference in zip(found, exact):
        _near(mine, reference, 1e-4 if dtype == torch.float32 else 3e-2)


def test_tokens_of_a_static_cache_are_eagers(cache: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    ids = torch.randint(0, 128, (2, 7), device="cuda")
    settings = {
        "max_new_tokens": 24, "do_sample": False, "cache_implementation": "static", "disable_compile": True, "pad_token_id": 0,
    }
    expected = model.generate(ids, **settings)
    model.forward = _compiled(model.forward, cache)
    assert torch.equal(model.generate(ids, **settings), expected)


def _profiled(call: Any, folder: pathlib.Path) -> list[dict[str, Any]]:
    """What a call runs on the GPU: kernels, copies and fills, as the profiler has them."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    trace = folder / "trace.json"
    profile.export_chrome_trace(str(trace))
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") in kinds]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_row_of_a_cache_is_all_that_is_written(dtype: Any, cache: str, tmp_path: pathlib.Path) -> None:
    def step(keys: Any, k: Any, at: Any) -> Any:
        keys.index_copy_(2, at, k)
        return k * 2 + 1

    keys = torch.randn(2, 8, 4096, 64, device="cuda", dtype=dtype)
    reference = keys.clone()
    fast = _compiled(step, cache)
    with torch.no_grad():
        for place in (5, 4095, 0):
            k, at = torch.randn(2, 8, 1, 64, device="cuda", dtype=dtype), torch.tensor([place], device="cuda")
            address, version = keys.data_ptr(), keys._version
            fast(keys, k, at)
            assert keys.data_ptr() == address and keys._version > version
            step(reference, k, at)
            assert torch.equal(keys, reference)
        events = _profiled(lambda: fast(keys, k, at), tmp_path)
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert kernels and len(kernels) == len(events), events
    threads = [math.prod(kernel["args"]["grid"]) * math.prod(kernel["args"]["block"]) for kernel in kernels]
    # A kernel of the whole cache would have at least a thread for 16 bytes.
    assert max(threads) < keys.numel() * keys.element_size() // 16 // 4, kernels


def test_a_cache_that_is_read_too_is_updated_in_place(cache: str, tmp_path: pathlib.Path) -> None:
    def step(keys: Any, values: Any, q: Any, k: Any, v: Any, at: Any) -> Any:
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = (torch.arange(keys.shape[2], device=q.device) <= at[-1])[None, :]
        return nn.functional.scaled_dot_product_attention(q, keys, values, mask)

    caches = [torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.float16) for _ in range(2)]
    references = [tensor.clone() for tensor in caches]
    fast = _compiled(step, cache)
    with torch.no_grad():
        for place in range(3, 9):
            rows = [torch.randn(2, 8, 1, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
            at = torch.tensor([place], device="cuda")
            addresses = [tensor.data_ptr() for tensor in caches]
            _near(fast(*caches, *rows, at), step(*references, *rows, at), 1e-2)
            assert [tensor.data_ptr() for tensor in caches] == addresses
            assert all(torch.equal(found, expected) for found, expected in zip(caches, references))
        events = _profiled(lambda: fast(*caches, *rows, at), tmp_path)
    assert all(event["cat"] == "kernel" for event in events), events
    assert [(report.in_place, report.changed) for report in ot.reports()][-1] == (2, 2)


@pytest.mark.parametrize("starts", [(0, 0), (0, 1), (1, 0)])
def test_views_of_an_updated_tensor(starts: tuple[int, int], cache: str) -> None:
    def step(a: Any, b: Any, at: Any) -> Any:
        a.index_copy_(0, at, (b * 2)[:1])
        return (a + b).sum(0)

    memory = torch.randn(9, 64, device="cuda")
    reference = memory.clone()
    # PyTorch's tracing takes tensors that were apart as such later: what it traced then gives is expected.
    fast, slow = _compiled(step, cache), torch.compile(step, backend="aot_eager")
    with torch.no_grad():
        for traced in (fast, slow):
            traced(torch.randn(8, 64, device="cuda"), torch.randn(8, 64, device="cuda"), torch.tensor([4], device="cuda"))
        for place in (0, 1, 4):
            at = torch.tensor([place], device="cuda")
            expected = slow(*(reference[start : start + 8] for start in starts), at)
            _near(fast(*(memory[start : start + 8] for start in starts), at), expected)
            _near(memory, reference)
