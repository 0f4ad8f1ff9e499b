"""`torch.compile` with sizes that vary: memory, background compilation, what `torch._dynamo.reset()` frees."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.utils import counters  # noqa: E402

from orchestrion.torch import _backend, _unit  # noqa: E402


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(model: Any, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(model, backend="orchestrion", dynamic=dynamic, options={"superoptimize": False, **options})


def resident_mib() -> float:
    """Memory of this process, what is swapped out included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmSwap"))) / 1024


def test_many_sizes_take_the_memory_of_few() -> None:
    fast = compiled(lambda x: torch.softmax(x * 2, -1) + 1, dynamic=True, max_sizes=2)
    background = _backend._background()

    def use(rows: int) -> None:
        x = torch.randn(rows, 8)
        for _ in range(2):
            torch.testing.assert_close(fast(x), torch.softmax(x * 2, -1) + 1)
        # Until that size is compiled.
        background._pool.submit(lambda: None).result()
        background._not_before = 0.0
        fast(x)

    memory = []
    for first in range(2, 122, 30):
        for rows in range(first, first + 30):
            use(rows)
        gc.collect()
        memory.append(resident_mib())
    # The allocator takes memory in steps of 64 MiB; what is kept of each size would grow in every one of these.
    assert min(after - before for before, after in zip(memory, memory[1:])) < 4
    assert len(_unit._EXECUTABLES) <= 3


def test_reset_frees_what_was_compiled() -> None:
    gc.collect()
    before = set(_unit._EXECUTABLES)
    layer = torch.nn.Linear(8, 8)
    fast = compiled(layer)
    loss = fast(torch.randn(3, 8)).sum()
    loss.backward()
    assert set(_unit._EXECUTABLES) - before
    torch._dynamo.reset()
    del fast, layer, loss
    gc.collect()
    assert set(_unit._EXECUTABLES) <= before


def test_compiling_in_the_background_takes_half_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[float, float]] = []
    jobs = []

    def compiling(static: Any, kind: str, options: Any, work: Any) -> None:
        start = time.monotonic()
        time.sleep(0.1)
        jobs.append(work.jobs)
        spans.append((start, time.monotonic()))

    monkeypatch.setattr(_backend, "_compiled_static", compiling)
    background = _backend._Background()
    for future in [background.submit(None, "inference", _backend.Options()) for _ in range(3)]:
        future.result()
    assert jobs == [1, 1, 1]
    for (start, end), (next_start, _) in zip(spans, spans[1:]):
        assert next_start - end >= 0.9 * (end - start)


def test_sizes_and_modes_are_two_graphs() -> None:
    layer = torch.nn.Linear(8, 4).eval()
    fast = compiled(layer)
    counters["stats"].clear()
    with torch.no_grad():
        for rows in (2, 3, 5, 8, 64):
            for _ in range(3):
                fast(torch.randn(rows, 8))
    # One of the first size, one of all.
    assert counters["stats"]["unique_graphs"] == 2
