"""Executables, contexts, and what they say of themselves."""

from __future__ import annotations

import html
import json
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrion import _native
from orchestrion._cache import default_cache_folder
from orchestrion._cuda import cuda_files
from orchestrion._errors import UsageError


class Tensor(NamedTuple):
    """An input or output of a model."""

    name: str
    """Its name in the model."""
    dtype: str
    """Element type: `f32`, `f16`, `bf16`, `f64`, `i8` .. `i64`, `u8` .. `u64`, `bool`."""
    shape: tuple[int, ...]
    """Elements along each dimension; `()` of a scalar."""


@dataclass(frozen=True)
class Report:
    """A page about a plan, which fetches nothing."""

    html: str
    """The page."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to the file `path`.

        :raises OSError: it cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def __repr__(self) -> str:
        return f"<Report of {len(self.html)} characters; save it, or show it in a notebook>"

    def _repr_html_(self) -> str:
        # A frame of its own: styles and scripts of page and notebook do not meet.
        page = html.escape(self.html, quote=True)
        return f'<iframe title="Orchestrion report" style="width:100%;height:800px;border:0" srcdoc="{page}"></iframe>'


@dataclass(frozen=True)
class Timing:
    """Times of whole runs, in microseconds, by the clock of the caller."""

    median_us: float
    """The median of the runs, in microseconds."""
    best_us: float
    """The shortest run, in microseconds."""
    runs: int
    """How many runs were timed."""


@dataclass(frozen=True)
class OutputCheck:
    """One output beside the reference in f64."""

    output: str
    """The output's name."""
    max_abs: float
    """Largest absolute error of finite elements, in the output's unit."""
    max_scaled: float
    """That, relative to the reference's largest finite magnitude."""
    tolerance: float
    """The largest `max_scaled` that passes."""
    mismatched: int
    """Elements that are NaN or infinite in one and not in the other, and integers that differ."""
    passed: bool
    """Whether the error is within the tolerance and no element is mismatched."""
    says_little: str | None
    """Why passing says little, if it does."""


@dataclass(frozen=True)
class Verification:
    """A comparison with the reference interpreter. It is true if it passed."""

    passed: bool
    """Whether all outputs and all proofs passed."""
    outputs: tuple[OutputCheck, ...]
    """One per output, in the model's order."""
    proofs: tuple[str | None, ...]
    """One per kernel that the superoptimizer found: `None` if its proof holds, else why it does not."""

    def __bool__(self) -> bool:
        return self.passed


class Context:
    """Working memory of an executable for runs beside others: one per thread that wants its own.

    Made by :meth:`Executable.context`. It shares code, weights and threads with its executable, and keeps them in memory.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.Context) -> None:
        self._native = native

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs in this working memory; another thread's call in it waits. `tensors`, `named`, `out`, results and errors
        are those of :meth:`Executable.__call__`.
        """
        return self._native.run(tensors, named, out)


class Executable:
    """A compiled model. Calls from several threads run at the same time.

    Made by :func:`orchestrion.compile` and :func:`orchestrion.load`. It can be pickled: as the content of its `.orc` file.
    """

    __slots__ = ("_device", "_native", "_threads")

    def __init__(self, native: _native.Executable, threads: int = 0, device: int = 0) -> None:
        self._native = native
        self._threads = threads
        self._device = device

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs: one tensor, or a tuple of them in the model's order.

        An executable of a GPU takes tensors in that GPU's memory as well, and then gives such: they are read and written where they
        are, in PyTorch's current stream, and nothing is waited for. Tensors of the host beside them are copied to the GPU. A call within
        `torch.cuda.graph` becomes part of that graph, which must not be replayed after the executable is gone.

        :param tensors: inputs in the model's order, of the shapes and element types of `inputs`. They are arrays of NumPy,
            tensors of PyTorch (results carry no gradient), or of any library with DLPack, with any strides; numbers and lists are
            converted.
        :param named: inputs by name, instead of or after those.
        :param out: memory for the outputs, which is returned. It is a tensor, a sequence of them, or a dict by name, of the shapes and
            element types of `outputs`. It must not overlap the inputs.
        :return: tensors of the first input's library, of the shapes and element types of `outputs`.
        :raises InputError: a tensor has another element type, shape or device than the model was compiled for, or memory overlaps.
        :raises UsageError: tensors are missing or surplus.
        :raises MachineError: there is not enough memory.
        """
        return self._native.run(tensors, named, out)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs, in the model's order: names, element types, shapes."""
        return tuple(Tensor(*port) for port in self._native.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, in the model's order: names, element types, shapes."""
        return tuple(Tensor(*port) for port in self._native.outputs)

    @property
    def updatable(self) -> tuple[Tensor, ...]:
        """The constants that :meth:`set_constants` replaces: those named by `updatable` of :func:`orchestrion.compile`."""
        return tuple(Tensor(*port) for port in self._native.updatable)

    def set_constants(self, values: Mapping[str, Any]) -> None:
        """Replaces constants, for calls that begin afterwards, in all contexts: without compiling. `save` writes the new ones.

        :param values: tensors of any library by name, of the types and shapes of :attr:`updatable`; they are copied.
        :raises InputError: a constant is not one of `updatable`, or has another type or shape; then none is replaced.
        """
        self._native.set_constants(dict(values))

    def context(self) -> Context:
        """Working memory of its own, with the same weights.

        :raises MachineError: there is not enough memory.
        """
        return Context(self._native.context())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an `.orc` file: native code and weights. Load such files only from people whose programs you would run.

        :param path: the file, which is replaced.
        :raises FileError: it cannot be written.
        """
        self._native.save(path)

    def explain(self, *tensors: Any) -> str:
        """What runs, what each kernel fuses, and what it costs by the model of costs, in microseconds.

        :param tensors: inputs as of a call; if they are given, each step is also timed on them.
        :raises InputError: a tensor does not fit its input.
        :raises UsageError: tensors are missing or surplus.
        """
        return self._native.explain(tensors if tensors else None)

    def report(self, *tensors: Any) -> Report:
        """A page about the plan: graph, timeline, roofline, memory, and what was considered. Notebooks show it.

        :param tensors: inputs as of a call; if they are given, the model is timed on them. Times are modelled otherwise.
        :raises InputError: a tensor does not fit its input.
        :raises UsageError: tensors are missing or surplus.
        """
        return Report(self._native.report(tensors if tensors else None))

    def manifest(self) -> dict[str, Any]:
        """All that is known of the plan: what `orchestrion explain --json` prints as `manifest`."""
        manifest: dict[str, Any] = json.loads(self._native.manifest())
        return manifest

    def verify(
        self,
        *tensors: Any,
        model: str | os.PathLike[str] | None = None,
        tolerance: float | None = None,
    ) -> Verification:
        """Compares the outputs on these inputs with the reference interpreter, in f64, and proves found kernels anew.

        :param tensors: inputs in the model's order, as of a call.
        :param model: the file that the executable was compiled from; it is needed if an `.orc` file was loaded.
        :param tolerance: the largest error allowed, relative to an output's largest magnitude (by default that of the element type).
        :raises InputError: a tensor does not fit its input, or `model` is missing.
        :raises UsageError: tensors are missing or surplus.
        """
        found = json.loads(self._native.verify(tensors, model, tolerance))
        outputs = tuple(
            OutputCheck(
                output=row["output"],
                max_abs=row["max_abs"],
                max_scaled=row["max_scaled"],
                tolerance=row["tolerance"],
                mismatched=row["mismatched"],
                passed=row["pass"],
                says_little=row["says_little"],
            )
            for row in found["outputs"]
        )
        proofs = tuple(None if row["pass"] else row["reason"] for row in found["proofs"])
        return Verification(found["pass"], outputs, proofs)

    def bench(self, *tensors: Any, seconds: float = 1.0, min_runs: int = 5) -> Timing:
        """Times whole runs on these inputs, outputs written to the same memory each time.

        :param tensors: inputs in the model's order, as of a call.
        :param seconds: how long to measure, at least.
        :param min_runs: how many runs to time, at least.
        :raises InputError: a tensor does not fit its input.
        :raises UsageError: tensors are missing or surplus, or a number is too small.
        """
        if seconds < 0 or min_runs < 1:
            raise UsageError(f"seconds is {seconds} and min_runs {min_runs}; at least 0 and 1 are expected")
        first = self._native.run(tensors, {}, None)
        out = first if isinstance(first, tuple) else (first,)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < min_runs or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self._native.run(tensors, {}, out)
            times.append((time.perf_counter_ns() - start) / 1e3)
        return Timing(statistics.median(times), min(times), len(times))

    def __reduce__(self) -> tuple[Any, tuple[bytes, int, int]]:
        return loaded, (self._native.to_bytes(), self._threads, self._device)

    def __repr__(self) -> str:
        def ports(tensors: tuple[Tensor, ...]) -> str:
            return ", ".join(f"{tensor.name}: {tensor.dtype}{list(tensor.shape)}" for tensor in tensors)

        return f"<orchestrion.Executable ({ports(self.inputs)}) -> ({ports(self.outputs)})>"


def loaded(source: str | os.PathLike[str] | bytes, threads: int, device: int) -> Executable:
    """An `.orc` file by its path or content. What is found about its runs is kept in the cache, if there is one."""
    return Executable(_native.load(source, threads, device, cuda_files(), default_cache_folder()), threads, device)
