"""Models of PyTorch as executables that need PyTorch no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from orchestrion import _native
from orchestrion._compile import native_options
from orchestrion._errors import Unsupported, UsageError
from orchestrion._executable import Executable
from orchestrion.torch._backend import decompositions
from orchestrion.torch._complex import replace_complex, take_parts
from orchestrion.torch._document import source_line, target_name
from orchestrion.torch._support import is_random, is_supported


def export(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    precision: str = "f32",
    threads: int = 0,
    tune: bool = False,
    budget: float | None = None,
    superoptimize: bool = True,
    cache_dir: str | None = None,
) -> Executable:
    """Compiles a model, with its weights as they are now, to an executable that can be saved and loaded where there is no PyTorch.

    :param model: it is put into evaluation mode.
    :param args: tensors of the shapes and element types that the executable will take.
    :param kwargs: such by name.
    :param precision: `f32` (default); `bf16` with sums in f32 where the CPU multiplies it.
    :param threads: threads that work on one run, the caller's included; 0 means one per core.
    :param tune: measures kernels where candidates are close.
    :param budget: seconds that `tune` may add to the compilation.
    :param superoptimize: adds kernels that are searched for and proved.
    :param cache_dir: folder of compiled kernels; by default that of :func:`orchestrion.compile`.
    :raises Unsupported: the model calls what is not supported; the message lists it with lines of the program.
    :raises UsageError: the model changes its buffers or inputs.
    :raises MachineError: there is no C compiler, or not enough memory.
    """
    doc, tensors = exported(model, args, kwargs)
    options = native_options(
        cache_dir=cache_dir, precision=precision, tune=tune, budget=budget, superoptimize=superoptimize, threads=threads
    )
    return Executable(_native.compile_aten(doc, options, tensors, None), threads)


class _Function(torch.nn.Module):
    """A function as a module, which is what PyTorch exports."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def exported(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[bytes, dict[str, torch.Tensor]]:
    """The document of a module's or function's ATen calls, and its weights by name."""
    import json

    from torch.export import export as export_program

    from orchestrion.torch._document import document

    module = model.eval() if isinstance(model, torch.nn.Module) else _Function(model)
    program = export_program(module, tuple(args), dict(kwargs or {})).run_decompositions(decompositions())
    gm = program.graph_module
    replace_complex(gm)
    fixed = _fixed(program)
    parts = take_parts(gm, fixed)
    unsupported = [node for node in gm.graph.nodes if node.op == "call_function" and (is_random(node) or not is_supported(node))]
    if unsupported:
        lines = sorted({f"  {target_name(node)}  {source_line(node)}" for node in unsupported})
        raise Unsupported("the model calls what is not supported:\n" + "\n".join(lines))
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise UsageError("the model changes its buffers or inputs, which an executable does not")
    tensors = {}
    for name, value in fixed.items():
        value = value.detach()
        tensors[name] = (torch.view_as_real(value.resolve_conj()) if name in parts else value).contiguous()
    return json.dumps(document(gm, check_indices=False)).encode(), tensors


def _fixed(program: Any) -> dict[str, torch.Tensor]:
    """Weights and constants of an exported program, by the names of their inputs."""
    from torch.export.graph_signature import InputKind

    fixed = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            fixed[spec.arg.name] = program.state_dict.get(spec.target, program.constants.get(spec.target))
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            fixed[spec.arg.name] = program.constants[spec.target]
    return {name: value for name, value in fixed.items() if isinstance(value, torch.Tensor)}
