"""Kernels that are searched for and proved, as callables with their certificates."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrion import _native
from orchestrion._compile import Model, native_options, source_of
from orchestrion._errors import UsageError
from orchestrion._executable import Executable
from orchestrion._progress import Progress, is_interactive

if TYPE_CHECKING:
    import torch


class Times(NamedTuple):
    """Microseconds of a run, without the superoptimizer's kernels and with them."""

    unfused_us: float
    """Every operator a kernel of its own."""
    templates_us: float
    """By kernels of templates, fused as :func:`orchestrion.compile` does without the superoptimizer."""
    found_us: float
    """With what was found."""

    @property
    def gain(self) -> float:
        """How many times as fast as templates."""
        return self.templates_us / self.found_us


@dataclass(frozen=True)
class Certificate:
    """A proof that a µGraph computes a program."""

    program: str
    """The program, as text."""
    candidate: str
    """The µGraph, as text."""
    log2_bound: float
    """Logarithm of the chance that a wrong µGraph passes."""
    premises: tuple[str, ...]
    """What the proof rests on."""
    text: str
    """The content of a file that `orchestrion verify` and `orchestrion-check` take."""


class Superoptimized(Executable):
    """An executable with kernels that were searched for and proved. Made by :func:`orchestrion.superoptimize`; it is called, saved and
    verified like any other.
    """

    __slots__ = ("_report",)

    def __init__(self, native: _native.Executable, report: dict[str, Any], threads: int, device: int) -> None:
        super().__init__(native, threads, device)
        self._report = report

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The proofs of its kernels: one of a program, of a model one for each distinct part."""
        found = []
        for text in self._report["certificates"]:
            content = json.loads(text)
            fields = {key: content[key] for key in ("program", "candidate", "log2_bound")}
            found.append(Certificate(**fields, premises=tuple(content["premises"]), text=text))
        return tuple(found)

    @property
    def certificate(self) -> Certificate:
        """The first of `certificates`."""
        return self.certificates[0]

    @property
    def proof(self) -> str:
        """The text of `certificate`, as `orchestrion verify` takes it in a file."""
        return self.certificate.text

    @property
    def modelled(self) -> Times:
        """Modelled times, not measured ones, in microseconds."""
        return Times(**self._report["modelled"])

    @property
    def measured(self) -> Times | None:
        """Times on this machine, in microseconds; `None` unless `measure` was set."""
        measured = self._report["measured"]
        return None if measured is None else Times(**measured)

    @property
    def unstable(self) -> tuple[str, ...]:
        """Why exponentials may overflow where the result is finite, for each kernel of which that is so."""
        return tuple(self._report["unstable"])

    @property
    def not_lowered(self) -> tuple[str, ...]:
        """What was found for a program and does not become kernels: the reasons, with the modelled microseconds of the cheapest."""
        rows = (self._report["found"] or {}).get("not_lowered", ())
        return tuple(f"{row['count']} µGraphs, the cheapest modelled {row['cost_us']:.2f} us: {row['reason']}" for row in rows)

    def emit(self, kind: str) -> str | bytes:
        """The code.

        :param kind: `c` for one file of C, whose comment tells the function, its shapes and how to compile it (CPUs); `cuda` for CUDA
            C++ of the kernels, whose comment tells their launches (GPUs); `orc` for the content of an `.orc` file.
        :return: text of `c` and `cuda`, bytes of `orc`.
        :raises UsageError: there is no such kind.
        :raises Unsupported: it does not suit the device, or parts of a model run without a kernel.
        """
        if kind == "orc":
            return self._native.to_bytes()
        if kind not in ("c", "cuda"):
            raise UsageError(f"code is emitted as c, cuda or orc, not as {kind!r}")
        return self._native.emit(kind)


def superoptimize(
    program: Model | Callable[..., Any],
    args: Sequence[Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str = "f32",
    dims: Mapping[str, int] | None = None,
    measure: bool = False,
    threads: int = 0,
    calibrate: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    cc: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Superoptimized:
    """Searches the cheapest kernels of a program, proves them, and compiles them.

    :param program: a program as text (`mugraph "name" { .. }`) or the path of such a file (`.txt`), which becomes the kernels that were
        found for all of it; or an ONNX model (path, bytes, `onnx.ModelProto`), or a function or module of PyTorch, of which all parts are
        taken for which kernels are found, whatever they are modelled to cost.
    :param args: tensors of a function or module of PyTorch: they decide shapes and element types.
    :param kwargs: such by name.
    :param device: as of :func:`orchestrion.compile`.
    :param precision: as of :func:`orchestrion.compile`.
    :param dims: sizes of an ONNX model's symbolic dimensions by name.
    :param measure: times the result on this machine, beside the same without the superoptimizer.
    :param threads: threads that work on one run, the caller's included; 0 means one per CPU.
    :param calibrate: plans by figures measured on this machine (once), not by those usual for such processors.
    :param cache_dir: folder of compiled kernels and of what was found, as of :func:`orchestrion.compile`.
    :param cc: C compiler, as of :func:`orchestrion.compile`.
    :param progress: shows a bar (by default in terminals and notebooks, if `tqdm` is installed).
    :raises Unsupported: nothing is found, or nothing that becomes kernels; the message says why.
    :raises ModelError: the program or model is wrong.
    :raises UsageError: an option is unknown, or `args` are missing or surplus.
    :raises MachineError: there is no C compiler, or the device is not here and times are to be measured.
    """
    options = native_options(cache_dir=cache_dir, cc=cc, precision=precision, threads=threads, calibrate=calibrate)
    if device is not None:
        options["target"] = device
    fixed: dict[str, torch.Tensor] = {}
    source: bytes | str
    if callable(program):
        if args is None:
            raise UsageError("a function or module of PyTorch needs `args`: tensors of the shapes that it will take")
        from orchestrion.torch._export import exported

        kind, (source, fixed) = "aten", exported(program, args, kwargs)
    elif args is not None or kwargs is not None:
        raise UsageError("`args` and `kwargs` are for functions and modules of PyTorch")
    elif (text := _program_text(program)) is not None:
        kind, source = "text", text.encode()
    else:
        kind, source = "onnx", source_of(program)
        options["dims"] = dict(dims or {})
    bar = Progress(is_interactive() if progress is None else progress)
    try:
        native, report = _native.superoptimize(kind, source, options, fixed, measure, bar)
    finally:
        bar.close()
    _, _, number = (device or "").partition(":")
    return Superoptimized(native, json.loads(report), threads, int(number) if number.isdigit() else 0)


def _program_text(program: Model) -> str | None:
    """The text of a program that is given as such or as a file."""
    if isinstance(program, str) and program.lstrip().startswith("mugraph"):
        return program
    if isinstance(program, (str, os.PathLike)) and os.fspath(program).endswith(".txt"):
        return Path(program).read_text()
    return None
