"""`InferenceSession`: executables under the names of ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrion import _native
from orchestrion._compile import DynamicExecutable, compile, load, source_of
from orchestrion._errors import UsageError
from orchestrion._executable import Executable
from orchestrion._tensors import NAMES

#: Element types in the notation of ONNX, which has names of its own for two of NumPy's.
_TYPES = {**NAMES, "bf16": "bfloat16", "f32": "float", "f64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session."""

    name: str
    """Its name in the model."""
    type: str
    """Element type in ONNX Runtime's notation: `tensor(float)`, `tensor(int64)`, .."""
    shape: list[int | str]
    """Elements along each dimension; symbolic dimensions by name."""


class SessionOptions:
    """Options of a session. Only `intra_op_num_threads` has an effect; others may be set, as programs do, and change nothing."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        """Threads that work on one run, the caller's included; 0 means one per core."""


class InferenceSession:
    """A model under the interface of `onnxruntime.InferenceSession`: for programs that are to change one line.

    Symbolic dimensions are taken from the inputs of each run.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Any]] | None = None,
        provider_options: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        """Compiles or loads a model.

        :param path_or_bytes: path or content of an ONNX model, or path of an `.orc` file.
        :param sess_options: its `intra_op_num_threads` counts.
        :param providers: `CUDAExecutionProvider` first means the GPU, anything else the CPU.
        :param provider_options: has no effect.
        :param options: options of :func:`orchestrion.compile`.
        :raises Error: what :func:`orchestrion.compile` and :func:`orchestrion.load` raise.
        """
        del provider_options
        threads = int(getattr(sess_options, "intra_op_num_threads", 0) or 0)
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers or ()]
        self._device = "cuda" if names and names[0] == "CUDAExecutionProvider" else None
        self._executable: Executable | DynamicExecutable
        if isinstance(path_or_bytes, (str, os.PathLike)) and os.fspath(path_or_bytes).endswith(".orc"):
            self._executable = load(path_or_bytes, threads=threads)
            self._inputs = [_node_arg(*port) for port in self._executable.inputs]
            self._outputs = [_node_arg(*port) for port in self._executable.outputs]
        else:
            inputs, outputs = _native.declaration(source_of(path_or_bytes))
            self._inputs = [_node_arg(*port) for port in inputs]
            self._outputs = [_node_arg(*port) for port in outputs]
            self._executable = compile(path_or_bytes, device=self._device, threads=threads, **options)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[np.ndarray[Any, Any]]:
        """Computes outputs.

        :param output_names: which, in which order; None or empty means all, in the model's order.
        :param input_feed: arrays, or what NumPy converts to such, by name of input.
        :param run_options: has no effect.
        :return: arrays of NumPy, of the shapes that the model gives for these inputs.
        :raises InputError: an array does not fit its input.
        :raises UsageError: an input is missing, or there is no such output.
        """
        del run_options
        executable = self._executable
        if isinstance(executable, DynamicExecutable):
            missing = [port.name for port in self._inputs if port.name not in input_feed]
            if missing:
                raise UsageError(f"no tensor is given for input {', '.join(missing)}")
            executable = executable.for_shapes({name: np.shape(value) for name, value in input_feed.items()})
        feed = {name: np.asarray(value) for name, value in input_feed.items()}
        results = executable(**feed)
        names = [output.name for output in executable.outputs]
        results = results if isinstance(results, tuple) else (results,)
        by_name = dict(zip(names, results))
        wanted = list(output_names or names)
        unknown = [name for name in wanted if name not in by_name]
        if unknown:
            raise UsageError(f"the model has no output {', '.join(unknown)}; it has {', '.join(names)}")
        return [by_name[name] for name in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the model's order: names, element types, shapes."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order: names, element types, shapes."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """The device, under ONNX Runtime's name."""
        return ["CUDAExecutionProvider" if self._device == "cuda" else "CPUExecutionProvider"]


def _node_arg(name: str, dtype: str | None, shape: Sequence[int | str]) -> NodeArg:
    return NodeArg(name, f"tensor({_TYPES.get(dtype or '', 'undefined')})", list(shape))
