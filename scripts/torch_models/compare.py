"""A model compiled beside eager: results, coverage, and training."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orchestrion.torch as ot
import torch
from orchestrion.torch import _backend, _support
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

from . import catalog
from .catalog import Built

EPSILON = 2.0**-23
OPTIONS = {"superoptimize": False, "fallback_random": True}


@dataclass
class Row:
    """What became of a model."""

    name: str
    wrong: str | None = None
    error: float = 0.0
    eager_error: float = 0.0
    graphs: int = 0
    partitions: int = 0
    calls: int = 0
    compiled: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def coverage(self) -> float:
        return self.compiled / max(self.calls, 1)

    @property
    def whole(self) -> bool:
        """One graph, one partition, with at least 95 % of the calls."""
        return self.graphs == self.partitions == 1 and self.coverage >= 0.95

    def count(self) -> None:
        """Takes over what the backend reported."""
        for graph in ot.reports():
            self.graphs += 1
            self.partitions += graph.partitions
            self.calls += graph.calls
            self.compiled += graph.compiled
            for target, (count, _) in graph.eager.items():
                self.eager[target] = self.eager.get(target, 0) + count
            if graph.reason:
                self.eager[graph.reason.splitlines()[0][:120]] = graph.calls


def compiled(model: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(model, backend=ot.backend, options=OPTIONS)


def inference(name: str, seconds: float) -> Row:
    """Compares results with eager's; their errors are taken against the same model in f64.

    An error passes if it is at most 1.5 times eager's and `sqrt(calls)` units in the last place of the output's largest
    magnitude: what as many roundings add up to at random.
    """
    row = Row(name)
    built = _within(name, seconds)
    built.model.eval()
    start = time.perf_counter()
    with torch.no_grad():
        want = _floats(built.call(built.model))
        torch.manual_seed(0)
        got = _floats(built.call(compiled(built.model)))
        row.count()
        row.seconds = time.perf_counter() - start
        wide = _wide(built)
        exact = _floats(wide.call(wide.model))
    if [value.shape for value in got] != [value.shape for value in want]:
        row.wrong = "outputs of other shapes"
        return row
    for number, (mine, theirs, reference) in enumerate(zip(got, want, exact, strict=True)):
        if mine.dtype != theirs.dtype or mine.stride() != theirs.stride():
            row.wrong = f"output {number} is {mine.dtype} {mine.stride()} instead of {theirs.dtype} {theirs.stride()}"
            return row
        magnitude = reference.abs().max().item()
        error, eager = ((value.double() - reference).abs().max().item() for value in (mine, theirs))
        row.error, row.eager_error = max(row.error, error / magnitude), max(row.eager_error, eager / magnitude)
        # Also false of NaN.
        if not error <= 1.5 * eager + max(row.calls, 4) ** 0.5 * EPSILON * magnitude:
            row.wrong = f"output {number} is off by {error:.3g}, eager by {eager:.3g}, largest magnitude {magnitude:.3g}"
    return row


def _within(name: str, seconds: float) -> Built:
    """A model that eager runs in this time."""
    built = catalog.build(name)
    built.model.eval()
    with torch.no_grad():
        start = time.process_time()
        built.call(built.model)
        taken = time.process_time() - start
    if taken > seconds:
        raise catalog.Skipped(f"{taken:.1f} s in eager")
    return built


def _floats(outputs: Any) -> list[torch.Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return [leaf.detach() for leaf in found if leaf.is_floating_point() and leaf.numel()]


def _wide(built: Built) -> Built:
    """The same in f64."""
    def widen(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    args, kwargs = pytree.tree_map(widen, (built.args, built.kwargs))
    return Built(copy.deepcopy(built.model).double(), args, kwargs)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Partitions are made and reported, and run eagerly."""
    kept = _backend.Unit
    _backend.Unit = lambda gm, options, fixed, watch: lambda tensors: gm(*tensors)
    try:
        yield
    finally:
        _backend.Unit = kept


@contextmanager
def forced_to_eager(share: float, seed: int) -> Iterator[None]:
    """Each target is taken for unsupported with this probability."""
    kept = _support.is_supported

    def is_supported(node: torch.fx.Node) -> bool:
        if random.Random(f"{seed} {node.target}").random() < share and isinstance(node.target, torch._ops.OpOverload):
            return False
        return kept(node)

    _support.is_supported = _backend.is_supported = is_supported
    try:
        yield
    finally:
        _support.is_supported = _backend.is_supported = kept


def training(name: str, steps: int, optimizer: str) -> Row:
    """Trains without dropout; the losses of eager and ours are compared with those in f64.

    The largest error of a loss passes if it is at most twice eager's and 1e-5 of the largest loss.
    """
    row = Row(name)
    built = catalog.build(name)
    start = time.perf_counter()
    torch._dynamo.reset()
    want = _Training(built).losses(steps, optimizer)
    got = _Training(built, _ours).losses(steps, optimizer)
    row.count()
    row.seconds = time.perf_counter() - start
    exact = _Training(_wide(built)).losses(steps, optimizer)
    largest = max(map(abs, exact))
    row.error, row.eager_error = (max(abs(a - b) for a, b in zip(losses, exact)) / largest for losses in (got, want))
    if not row.error <= 2 * row.eager_error + 1e-5:
        row.wrong = f"losses are off by {row.error:.3g} of the largest, eager's by {row.eager_error:.3g}"
    elif not exact[-1] < exact[0]:
        row.wrong = f"the loss does not fall: {exact[0]:.4g} to {exact[-1]:.4g}"
    return row


#: Seeds of the random numbers that dropout takes.
DROPOUT_SEEDS = range(5)


def dropout_training(name: str, steps: int, optimizer: str) -> Row:
    """Trains with dropout, whose random numbers are eager's here.

    The same graph, run eagerly, draws the same random numbers: losses are equal but for rounding (1e-4 of the largest). Eager's
    own module of dropout draws others: the mean of the last losses differs by at most three standard errors.
    """
    row = Row(name)
    start = time.perf_counter()
    ours, traced, eager = [], [], []
    for function, losses in ((_ours, ours), (_traced, traced), (None, eager)):
        torch._dynamo.reset()
        trained = _Training(catalog.build(name, dropout=True), function)
        for seed in DROPOUT_SEEDS:
            torch.manual_seed(seed)
            losses.append(torch.tensor(trained.losses(steps, optimizer)))
        if function is _ours:
            row.count()
    row.seconds = time.perf_counter() - start
    mine, same, theirs = (torch.stack(losses) for losses in (ours, traced, eager))
    largest = same.abs().max().item()
    row.error = (mine - same).abs().max().item() / largest
    if torch.equal(mine[0], mine[1]):
        row.wrong = "another seed gives the same losses"
    elif not row.error <= 1e-4:
        row.wrong = f"losses are off by {row.error:.3g} of the largest"
    last = [losses[:, -5:].mean(1) for losses in (mine, theirs)]
    bound = 3 * (sum(losses.var() for losses in last) / len(DROPOUT_SEEDS)) ** 0.5
    distance = (last[0].mean() - last[1].mean()).abs()
    row.eager_error = (distance / largest).item()
    if not distance <= bound:
        row.wrong = f"mean of the last losses {last[0].mean():.4f}, eager's {last[1].mean():.4f}, bound {bound:.4f}"
    return row


def _ours(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=ot.backend, options=OPTIONS)


_SAME_GRAPH = aot_autograd(fw_compiler=lambda gm, _: _backend._boxed(_backend._eager(gm)), decompositions=_backend.decompositions())


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=_SAME_GRAPH)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
}


class _Training:
    """A model with its loss: cross entropy of the first output's last dimension and fixed classes."""

    def __init__(self, built: Built, compiling: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None) -> None:
        self.model = copy.deepcopy(built.model).train()
        self.args, self.kwargs = built.args, built.kwargs
        self.start = copy.deepcopy(self.model.state_dict())
        self.classes = torch.randint(0, 1 << 20, (4096,), generator=torch.Generator().manual_seed(1))
        self.run = self.loss if compiling is None else compiling(self.loss)

    def loss(self) -> torch.Tensor:
        outputs = self.model(*self.args, **self.kwargs)
        logits = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).flatten(0, -2)
        return nn.functional.cross_entropy(logits, self.classes[: logits.shape[0]] % logits.shape[1])

    def losses(self, steps: int, optimizer: str) -> list[float]:
        """The loss at each step, from the same weights each time."""
        self.model.load_state_dict(self.start)
        update = OPTIMIZERS[optimizer](self.model.parameters())
        losses = []
        for _ in range(steps):
            update.zero_grad()
            value = self.run()
            value.backward()
            update.step()
            losses.append(value.item())
        return losses
