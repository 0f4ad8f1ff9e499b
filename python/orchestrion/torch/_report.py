"""What the backend did with each graph."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class GraphReport:
    """One graph that `torch.compile` gave to the backend."""

    kind: str
    """`forward`, `backward` or `inference`."""
    calls: int
    """Calls of ATen in the graph."""
    compiled: int
    """Those of them that compiled partitions run."""
    partitions: int
    """Partitions that are compiled; 1 if the whole graph is."""
    eager: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Calls that stay with eager: the target, how often, and a line of the program that makes it."""
    changed: int = 0
    """Inputs that compiled partitions change."""
    in_place: int = 0
    """Those of them that kernels update where they are; the others are computed whole and copied."""
    seconds: float = 0.0
    """How long compilation took, in seconds."""
    reason: str | None = None
    """Why the graph runs eagerly though its calls are supported, if it does."""
    _units: list[weakref.ref[Any]] = field(default_factory=list, repr=False)

    def add_unit(self, unit: Any) -> None:
        """Adds a compiled partition; no errors.

        :param unit: the partition, which the report does not keep alive.
        """
        self._units.append(weakref.ref(unit))

    @property
    def launches(self) -> list[str]:
        """How kernels of each partition reach the GPU, where its first runs have decided that, with the times of these."""
        units = [unit() for unit in self._units]
        return [unit.launches for unit in units if unit is not None and unit.launches]

    @property
    def coverage(self) -> float:
        """The share of calls that compiled partitions run, from 0 to 1."""
        return self.compiled / self.calls if self.calls else 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.compiled} of {self.calls} calls compiled in {self.partitions} partition(s), {self.seconds:.2f} s"
        ]
        if self.changed:
            lines.append(f"  {self.in_place} of {self.changed} changed inputs updated in place")
        lines += [f"  {launches}" for launches in self.launches]
        if self.reason:
            lines.append(f"  runs eagerly: {self.reason}")
        lines += [f"  eager: {line}" for line in self.eager_lines()]
        return "\n".join(lines)

    def eager_lines(self) -> list[str]:
        """The calls that stay with eager, a line for each target."""
        return [f"{count} x {target}  {line}" for target, (count, line) in sorted(self.eager.items())]


_LOCK = threading.Lock()
#: The newest ones: a program may have any number of sizes.
_REPORTS: deque[GraphReport] = deque(maxlen=1000)


def add(graph: GraphReport) -> None:
    """Keeps a report until the next reset."""
    with _LOCK:
        _REPORTS.append(graph)


def clear() -> None:
    """Forgets all reports."""
    with _LOCK:
        _REPORTS.clear()


def reports() -> list[GraphReport]:
    """The graphs that were compiled since the start, or the last `torch._dynamo.reset()`: the last 1,000 of them."""
    with _LOCK:
        return list(_REPORTS)


def report() -> str:
    """The same as text: coverage, partitions, and what stays with eager and why."""
    return "\n".join(str(graph) for graph in reports()) or "no graph was compiled"
