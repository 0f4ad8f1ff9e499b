"""Compiling models and loading executables."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrion import _native
from orchestrion._cache import default_cache_folder
from orchestrion._cuda import cuda_files
from orchestrion._errors import MachineError, UsageError
from orchestrion._executable import Executable, loaded
from orchestrion._progress import Progress, is_interactive

_LOG = logging.getLogger("orchestrion")

#: A model: the path of an ONNX file, its content, or an `onnx.ModelProto`.
Model = Any


def compile(  # noqa: A001 - the name that users expect
    model: Model,
    *,
    device: str | None = None,
    precision: str = "f32",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    threads: int = 0,
    tune: bool = False,
    budget: float | None = None,
    superoptimize: bool = True,
    calibrate: bool = True,
    jobs: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    cc: str | os.PathLike[str] | None = None,
    external_data_roots: Sequence[str | os.PathLike[str]] = (),
    updatable: Sequence[str] = (),
    max_sizes: int = 16,
    progress: bool | None = None,
) -> Executable | DynamicExecutable:
    """Compiles a model.

    :param model: path of an ONNX file, its content as bytes, or an `onnx.ModelProto`.
    :param device: `cpu` (default), a CPU by name (`x86-64-v3`, ..), `cuda`, `cuda:1` for the second GPU, or a GPU that need not be here
        (`cuda:sm_90`).
    :param precision: `f32` (default); `bf16` with sums in f32 where the CPU multiplies it; on GPUs also `f16` and `tf32`.
    :param shapes: shapes of inputs by name, as elements along each dimension, which fix symbolic dimensions.
    :param dims: sizes of symbolic dimensions by name.
    :param threads: threads that work on one run, the caller's included; 0 means one per core.
    :param tune: measures kernels where candidates are close; takes up to half a minute more the first time.
    :param budget: seconds that `tune` may add to the compilation; the best plan so far is taken, never one slower than without `tune`.
    :param superoptimize: adds kernels that are searched for and proved.
    :param calibrate: plans by figures measured on this machine (once), not by those usual for such processors.
    :param jobs: threads that compile; 0 means one per CPU.
    :param cache_dir: folder of compiled kernels (by default `$ORCHESTRION_CACHE`, else `orchestrion` in `$XDG_CACHE_HOME` or `~/.cache`).
    :param cc: C compiler (by default `$ORCHESTRION_CC`, `cc`, `gcc`, `clang`, or that of the extra `orchestrion[cc]`).
    :param external_data_roots: folders in which external data may lie besides the model's own.
    :param updatable: names of initializers that `set_constants` can replace later; nothing of them is folded or packed, which costs time
        at each call where they are large.
    :param max_sizes: of a model whose sizes are left open, how many sizes are kept compiled.
    :param progress: shows a bar (by default in terminals and notebooks, if `tqdm` is installed).
    :return: an :class:`Executable`; a :class:`DynamicExecutable` if symbolic dimensions are left open, which compiles for each size
        at its first call.
    :raises FileError: the model cannot be read.
    :raises ModelError: it is wrong.
    :raises Unsupported: it needs what is not supported.
    :raises UsageError: an option is unknown or out of range.
    :raises MachineError: there is no C compiler, or not enough memory.
    """
    options = native_options(
        cache_dir=cache_dir,
        cc=cc,
        precision=precision,
        threads=threads,
        tune=tune,
        budget=budget,
        superoptimize=superoptimize,
        calibrate=calibrate,
        jobs=jobs,
        external_data_roots=[os.fspath(root) for root in external_data_roots],
        updatable=list(updatable),
    )
    if device is not None:
        options["target"] = device
    source = source_of(model)
    given = {name: tuple(int(size) for size in shape) for name, shape in (shapes or {}).items()}
    dims = dict(dims or {})
    declared, _ = _native.declaration(source)
    open_dims = _open_dims(declared, given, dims)
    shown = is_interactive() if progress is None else progress
    if not open_dims:
        return _compiled(source, {**options, "input_shapes": given, "dims": dims}, shown)
    if max_sizes < 1:
        raise UsageError(f"max_sizes is {max_sizes}; at least 1 is expected")
    names = [name for name, _, _ in declared]
    return DynamicExecutable(source, {**options, "dims": dims}, names, given, open_dims, max_sizes, shown)


def load(source: str | os.PathLike[str] | bytes, *, threads: int = 0, device: int = 0) -> Executable:
    """Loads an `.orc` file, or its content; needs no compiler. It holds native code, which runs with your rights: take it only from
    people whose programs you would run.

    :param source: the file's path, or its content as bytes.
    :param threads: threads that work on one run, the caller's included; 0 means one per core.
    :param device: the number of the GPU, for files that were compiled for GPUs.
    :raises FileError: it cannot be read.
    :raises ModelError: it is damaged.
    :raises MachineError: it was compiled for another machine, or there is no such GPU.
    """
    return loaded(source, threads, device)


class DynamicExecutable:
    """A model whose sizes are known when it is called: each size is compiled at its first call and kept, the last used ones first.

    Made by :func:`orchestrion.compile`. Its kernels are found in the cache again when the program runs the next time.
    """

    def __init__(
        self,
        source: bytes | str,
        options: dict[str, Any],
        names: Sequence[str],
        shapes: Mapping[str, tuple[int, ...]],
        open_dims: Sequence[str],
        max_sizes: int,
        shown: bool,
    ) -> None:
        self._source = source
        self._options = options
        self._shapes = dict(shapes)
        self._max_sizes = max_sizes
        self._shown = shown
        #: The inputs, in the model's order.
        self._names = list(names)
        self._sizes: OrderedDict[tuple[tuple[int, ...], ...], Executable] = OrderedDict()
        self._lock = threading.Lock()
        #: Constants that were replaced.
        self._constants: dict[str, Any] = {}
        self.open_dims = tuple(open_dims)
        """The names of the symbolic dimensions that calls decide."""

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs; the first call with inputs of new shapes compiles for them.

        `tensors`, `named`, `out` and results are those of :meth:`Executable.__call__`, with the shapes of this call.

        :raises Error: what :meth:`Executable.__call__` and :func:`orchestrion.compile` raise.
        """
        names = self._names
        given = dict(zip(names, tensors))
        given.update(named)
        missing = [name for name in names if name not in given]
        if missing or len(tensors) > len(names):
            raise UsageError(f"the model takes {', '.join(names)}; {len(tensors)} tensors and {', '.join(named) or 'no names'} are given")
        return self.for_shapes({name: _shape(given[name]) for name in names})(*tensors, out=out, **named)

    def for_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Executable:
        """The executable for inputs of these shapes, compiled now if it is not kept.

        :param shapes: elements along each dimension, by name of input.
        :raises Error: what :func:`orchestrion.compile` raises.
        """
        key = tuple(tuple(shapes[name]) for name in self._names)
        # One compilation at a time: it uses all CPUs.
        with self._lock:
            found = self._sizes.get(key)
            if found is None:
                shapes = {**self._shapes, **{name: tuple(shape) for name, shape in shapes.items()}}
                found = _compiled(self._source, {**self._options, "input_shapes": shapes}, self._shown)
                found.set_constants(self._constants)
                self._sizes[key] = found
                while len(self._sizes) > self._max_sizes:
                    self._sizes.popitem(last=False)
            self._sizes.move_to_end(key)
            return found

    def set_constants(self, values: Mapping[str, Any]) -> None:
        """Replaces constants of all sizes, those compiled already and those to come.

        Types and shapes are checked where a size is compiled: of a model that was not called yet, by the first call.

        :param values: as of :meth:`Executable.set_constants`.
        :raises InputError: a constant has another type or shape than the model's.
        :raises UsageError: a name is not one of those given as `updatable` to :func:`orchestrion.compile`.
        """
        unknown = [name for name in values if name not in self._options["updatable"]]
        if unknown:
            raise UsageError(f"`{unknown[0]}` is not updatable: name it when compiling (updatable=)")
        # Copies, since sizes to come are given them later.
        copies = {name: _copied(value) for name, value in values.items()}
        with self._lock:
            for found in self._sizes.values():
                found.set_constants(copies)
            self._constants.update(copies)

    def __repr__(self) -> str:
        dims = ", ".join(self.open_dims)
        return f"<orchestrion.DynamicExecutable of {dims}: {len(self._sizes)} sizes compiled>"


def native_options(
    *, cache_dir: str | os.PathLike[str] | None = None, cc: str | os.PathLike[str] | None = None, **options: Any
) -> dict[str, Any]:
    """Options as the native module takes them: with the folder of compiled kernels, the C compiler and where NVIDIA's packages may be."""
    folder = cache_folder(cache_dir)
    return {**options, "cache_dir": folder, "c_compiler": c_compiler(cc, folder), "cuda_files": cuda_files()}


def cache_folder(given: str | os.PathLike[str] | None) -> str:
    """The folder of compiled kernels."""
    folder = default_cache_folder() if given is None else os.fspath(given)
    if folder is not None:
        return folder
    raise MachineError("there is no folder for compiled kernels: set HOME, XDG_CACHE_HOME or ORCHESTRION_CACHE, or give cache_dir")


def c_compiler(given: str | os.PathLike[str] | None, cache_dir: str) -> str | None:
    """The C compiler: the caller's, the environment's, the system's (None), or that of the extra `orchestrion[cc]`."""
    if given is not None:
        return os.fspath(given)
    if chosen := os.environ.get("ORCHESTRION_CC"):
        return chosen
    if any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return None
    return _zig(cache_dir)


def _zig(cache_dir: str) -> str | None:
    """A program that calls the C compiler of the package `ziglang`, if it is installed."""
    try:
        import ziglang
    except ImportError:
        return None
    zig = Path(ziglang.__file__).parent / "zig"
    folder = Path(cache_dir) / "cc"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    script = folder / "zig-cc"
    # Zig keeps what it compiles; without this it needs a home to do so.
    own_cache = shlex.quote(str(folder.absolute() / "zig"))
    text = f'#!/bin/sh\nZIG_GLOBAL_CACHE_DIR={own_cache} exec {shlex.quote(str(zig))} cc "$@"\n'
    if not script.exists() or script.read_text() != text:
        unfinished = folder / f"zig-cc.{os.getpid()}.{threading.get_ident()}"
        unfinished.write_text(text)
        unfinished.chmod(stat.S_IRWXU)
        unfinished.replace(script)
    return str(script)


def source_of(model: Model) -> bytes | str:
    """A model as the native module takes it."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        content: bytes = model.SerializeToString()
        return content
    raise UsageError(
        f"the model is a {type(model).__name__}; the path of an ONNX file, its content as bytes, or an onnx.ModelProto is expected"
    )


def _open_dims(
    declared: Sequence[tuple[str, str | None, tuple[int | str, ...]]],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
) -> list[str]:
    """The symbolic dimensions of the declared inputs that neither `shapes` nor `dims` fix."""
    known = set(dims)
    for name, _, sizes in declared:
        if len(shapes.get(name, ())) == len(sizes):
            known.update(size for size in sizes if isinstance(size, str))
    names = [size for _, _, sizes in declared for size in sizes if isinstance(size, str)]
    return list(dict.fromkeys(name for name in names if name not in known))


def _compiled(source: bytes | str, options: dict[str, Any], shown: bool) -> Executable:
    bar = Progress(shown)
    try:
        native = _native.compile(source, options, bar)
    except MachineError as error:
        if "no C compiler found" in str(error):
            text = f"{error}\nOr let pip bring one: `{Path(sys.executable).name} -m pip install 'orchestrion[cc]'`"
            raise MachineError(text) from None
        raise
    finally:
        bar.close()
    _, _, number = (options.get("target") or "").partition(":")
    executable = Executable(native, options["threads"], int(number) if number.isdigit() else 0)
    _LOG.info("compiled %r", executable)
    return executable


def _copied(tensor: Any) -> Any:
    if hasattr(tensor, "clone"):
        return tensor.detach().clone()
    import numpy as np

    return np.array(tensor)


def _shape(tensor: Any) -> tuple[int, ...]:
    shape = getattr(tensor, "shape", None)
    if shape is None:
        import numpy as np

        shape = np.shape(tensor)
    return tuple(int(size) for size in shape)
