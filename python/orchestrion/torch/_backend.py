"""The backend: graphs of Dynamo to compiled partitions, the rest to eager PyTorch."""

from __future__ import annotations

import functools
import linecache
import logging
import operator
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from orchestrion._compile import native_options
from orchestrion._errors import Error, InternalError, UsageError
from orchestrion.torch import _decompositions, _dropped_attention, _report
from orchestrion.torch._bags import replace_regular_bags
from orchestrion.torch._complex import replace_complex
from orchestrion.torch._document import DocumentError, source_line, target_name
from orchestrion.torch._layouts import can_report, report_saved, saved_images, take_saved
from orchestrion.torch._placement import CPU, graph_device, host_calls, tensors_of
from orchestrion.torch._report import GraphReport
from orchestrion.torch._saved import is_of_slab, pack_saved
from orchestrion.torch._support import is_random, is_supported
from orchestrion.torch._unit import Unit

_LOG = logging.getLogger("orchestrion.torch")


@dataclass(frozen=True)
class Work:
    """How the work of a compilation is done."""

    #: Threads; 0: one per core.
    jobs: int = 0
    #: Called about every 50 ms with the stage, parts done and parts in all; what it raises stops the compilation.
    watch: Callable[[str, int, int], None] | None = None


@dataclass(frozen=True)
class Options:
    """What `torch.compile(model, backend="orchestrion", options={..})` takes, by these names."""

    strict: bool = False
    """Raises where a graph, or a part of it, would stay with eager."""
    freeze: bool = False
    """Weights become constants, folded into what surrounds them: later changes of them have no effect. Inference only."""
    max_sizes: int = 16
    """Sizes of one dynamic graph that are kept compiled."""
    precision: str | None = None
    """`f32`; `bf16` computes products of f32 tensors in bf16 where the CPU does; on GPUs also `tf32` and `f16`. By default `f32`, on GPUs
    `tf32` if PyTorch's own products may be (`torch.set_float32_matmul_precision`)."""
    tune: bool = False
    """Measures kernels where candidates are close."""
    budget: float | None = None
    """Seconds that `tune` may add to a compilation."""
    superoptimize: bool = True
    """Adds kernels that are searched for and proved."""
    min_partition: int = 3
    """Partitions of fewer calls that compute stay with eager, unless the whole graph is one."""
    cache_dir: str | None = None
    """Folder of compiled kernels."""
    launches: str | None = None
    """How kernels reach a GPU: `direct`, one launch each; `line`, a CUDA graph of one after the other; `branched`, one whose branches run at
    the same time. By default what the first runs show to be the fastest."""
    fallback_random: bool = False
    """Calls that draw random numbers stay with eager, so that the numbers are eager's."""

    @classmethod
    def of(cls, mode: str | None, given: dict[str, Any] | None) -> Options:
        """Options by `mode` of `torch.compile` and as `given` by name.

        :raises UsageError: there is no such mode or option.
        """
        modes = {
            None: cls(),
            "default": cls(),
            "reduce-overhead": cls(),
            "max-autotune": cls(tune=True),
            "max-autotune-no-cudagraphs": cls(tune=True),
        }
        if mode not in modes:
            raise UsageError(f"there is no mode `{mode}`; there are {', '.join(name for name in modes if name)}")
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given or {}) - known)
        if unknown:
            raise UsageError(f"there is no option `{unknown[0]}`; there are {', '.join(sorted(known))}")
        return replace(modes[mode], **(given or {}))

    def native(self, device: torch.device, work: Work) -> dict[str, Any]:
        """What the compiler is told.

        :param device: the CPU, or a GPU by its number.
        :param work: threads that compile, and who is told of it.
        :raises MachineError: there is no folder for compiled kernels.
        """
        # Two pools of threads that are each as large as the machine would wait for each other.
        threads = torch.get_num_threads()
        on_gpu = {} if device == CPU else {"target": str(device)}
        return native_options(
            **on_gpu,
            cache_dir=self.cache_dir,
            precision=self.precision or _usual_precision(device),
            tune=self.tune,
            budget=self.budget,
            superoptimize=self.superoptimize,
            threads=threads,
            jobs=work.jobs,
            launches=self.launches,
        )


def _usual_precision(device: torch.device) -> str:
    return "f32" if device == CPU or torch.get_float32_matmul_precision() == "highest" else "tf32"


def backend(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """What `torch.compile(model, backend="orchestrion")` calls for each graph.

    :param gm: the graph, as Dynamo traced it.
    :param example_inputs: tensors of the shapes and element types that it was traced with.
    :param mode: `max-autotune` sets `tune`; `default` and `reduce-overhead` change nothing.
    :param options: fields of :class:`Options` by name.
    :return: a function of the graph's inputs to its outputs.
    :raises UsageError: there is no such mode or option; with `strict`, the graph or a part of it would stay with eager.
    """
    chosen = Options.of(mode, options)
    replace_regular_bags(gm)
    compiler = _Compiler(chosen, _weights(gm, example_inputs) if chosen.freeze else [])
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler.compiling("forward"),
        bw_compiler=compiler.compiling("backward"),
        inference_compiler=compiler.compiling("inference"),
        partition_fn=compiler.divided,
        decompositions=decompositions(drops_attention=not chosen.fallback_random),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _reset() -> None:
    _report.clear()


# `torch._dynamo.reset()` calls it.
backend.reset = _reset  # type: ignore[attr-defined]


@functools.cache
def decompositions(drops_attention: bool = True) -> dict[Any, Any]:
    """The decompositions to core ATen, and of whole layers; attention stays whole. PyTorch takes 0.2 s to make the table.

    :param drops_attention: attention with dropout becomes calls that are compiled.
    """
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"):
        table.pop(getattr(torch.ops.aten, name).default, None)
    table |= _decompositions.decompositions()
    # PyTorch before 2.15 has none for it.
    table.setdefault(torch.ops.aten.linalg_vector_norm.default, torch._refs.linalg.vector_norm)
    return {**table, **_dropped_attention.decompositions()} if drops_attention else table


def _boxed(run: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """A compiled graph as AOTAutograd calls it: with one list, which is emptied.

    A function, since what wraps it copies the attribute of functions only.
    """

    def boxed(args: list[Any]) -> Sequence[Any]:
        tensors = list(args)
        args.clear()
        return run(tensors)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


class _Compiler:
    """Compiles the graphs of one call of the backend."""

    def __init__(self, options: Options, weights: Sequence[torch.Tensor | None]) -> None:
        self._options = options
        self._weights = weights
        #: Outputs of the forward graph that the caller gets; those after them are saved for the backward graph.
        self._returned: int | None = None

    def divided(
        self, joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **how: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Forward and backward graph of a joint one. As Inductor does it: views, and what is cheap, are computed again rather than saved."""
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        self._returned = num_fwd_outputs
        forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **how)
        if self._is_whole(forward) and self._is_whole(backward):
            pack_saved(forward, backward, num_fwd_outputs, graph_device(forward), self._saved_images(forward))
        return forward, backward

    def _is_whole(self, gm: GraphModule) -> bool:
        """True if a graph will be compiled as a whole, as far as can be told before."""
        if _is_dynamic(gm) or any(tensor.is_complex() for node in gm.graph.nodes for tensor in tensors_of(node)):
            return False
        try:
            return not _left(gm, graph_device(gm), self._options).calls and _is_writable(gm)
        except DocumentError:
            return False

    def compiling(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        """A function for graphs of this kind."""

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            if _is_dynamic(gm):
                return _boxed(_Sizes(gm, kind, self._options))
            images = self._saved_images(gm) if kind == "forward" and can_report() else {}
            if kind == "backward":
                take_saved(gm, example_inputs)
            # The tracer's mode would make constants and weights fake.
            with unset_fake_temporarily():
                frozen = _frozen(gm, self._weights) if self._weights and kind == "inference" else {}
                compiled = compiled_graph(gm, kind, self._options, frozen, images=images)
            if images and isinstance(compiled, Unit):
                report_saved(gm, images)
            return _boxed(compiled)

        return compile_graph

    def _saved_images(self, gm: GraphModule) -> dict[int, torch.Tensor]:
        """The images that a forward graph saves channels last: those that tensor cores of a GPU multiply."""
        if self._returned is None:
            return {}
        device = graph_device(gm)
        return saved_images(gm, self._returned, lambda dtype: self._is_for_tensor_cores(device, dtype))

    def _is_for_tensor_cores(self, device: torch.device, dtype: torch.dtype) -> bool:
        precision = self._options.precision or _usual_precision(device)
        return device != CPU and (precision != "f32" or dtype != torch.float32)


def _is_dynamic(gm: GraphModule) -> bool:
    """True if sizes are symbolic."""
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            return True
    return False


def _weights(gm: GraphModule, example_inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    """Parameters and buffers among the inputs of a graph of Dynamo, by position."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [
        value.detach()
        if isinstance(value, torch.Tensor) and node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        else None
        for node, value in zip(placeholders, example_inputs, strict=True)
    ]


def _frozen(gm: GraphModule, weights: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The weights that become constants, by the names of their inputs: those that the graph does not change."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    # AOTAutograd keeps the order of inputs, but where it merges some that overlap.
    if len(placeholders) != len(weights):
        _LOG.warning("inputs of a graph overlap or are more than its program has: its weights are not frozen")
        return {}
    changed = {node.args[0] for node in gm.graph.nodes if node.target is torch.ops.aten.copy_.default}
    frozen = {}
    for node, weight in zip(placeholders, weights, strict=True):
        if weight is None or node in changed:
            continue
        traced = node.meta["val"]
        if (traced.shape, traced.stride(), traced.dtype) != (weight.shape, weight.stride(), weight.dtype):
            raise InternalError(f"input {node.name} of a graph is not the weight that it was traced with")
        frozen[node.name] = weight
    return frozen


def compiled_graph(
    gm: GraphModule,
    kind: str,
    options: Options,
    frozen: dict[str, torch.Tensor] | None = None,
    work: Work = Work(),
    images: Mapping[int, torch.Tensor] | None = None,
) -> Callable[[list[Any]], Sequence[Any]]:
    """A graph of concrete sizes as a function of its inputs; parts that are not supported run eagerly.

    :param images: outputs that are made with other strides than they were traced with, if the whole graph is compiled, by position.
    """
    start = time.perf_counter()
    replace_complex(gm)
    calls = _calls(gm)
    entry = GraphReport(kind, len(calls), 0, 0)
    try:
        if not calls:
            return _eager(gm)
        device = graph_device(gm)
        left = _left(gm, device, options)
        native = options.native(device, work)
        if not left.calls and _is_writable(gm):
            unit = Unit(gm, native, frozen, work.watch, images)
            entry.compiled, entry.partitions = len(calls), 1
            entry.changed, entry.in_place = unit.changed, unit.in_place
            entry.add_unit(unit)
            return unit
        for node in left.calls:
            count, line = entry.eager.get(target_name(node), (0, source_line(node)))
            entry.eager[target_name(node)] = (count + 1, line)
        if options.strict:
            entry.reason = "parts are not supported"
            return _given_up(gm, entry, options)
        _warn(entry)
        return _partitioned(gm, entry, options, left.on_host, native, work)
    except (Error, DocumentError) as error:
        if options.strict or isinstance(error, InternalError):
            raise
        entry.reason = str(error)
        entry.compiled = entry.partitions = 0
        return _given_up(gm, entry, options)
    finally:
        entry.seconds = time.perf_counter() - start
        _report.add(entry)


def _calls(gm: GraphModule) -> list[Node]:
    """The calls that compute."""
    calls = (node for node in gm.graph.nodes if node.op == "call_function" and node.target is not operator.getitem)
    return [node for node in calls if not is_of_slab(node)]


@dataclass(frozen=True)
class _Left:
    """What of a graph is left to eager."""

    #: Calls that are not compiled.
    calls: list[Node]
    #: Those of them whose results the host needs.
    on_host: frozenset[Node]


def _left(gm: GraphModule, device: torch.device, options: Options) -> _Left:
    is_taken = functools.partial(_is_taken, options=options)
    on_host: frozenset[Node] = frozenset() if device == CPU else host_calls(gm, is_taken)
    return _Left([node for node in _calls(gm) if node in on_host or not is_taken(node)], on_host)


def _is_taken(node: Node, options: Options) -> bool:
    """True of calls that compiled graphs make, and of copies into inputs at the end of a graph."""
    return node.target is torch.ops.aten.copy_.default or _is_compiled(node, options)


def _is_compiled(node: Node, options: Options) -> bool:
    return is_supported(node) and not (options.fallback_random and is_random(node))


def _is_writable(gm: GraphModule) -> bool:
    """True if copies go into inputs only."""
    copies = [node for node in gm.graph.nodes if node.target is torch.ops.aten.copy_.default]
    return all(isinstance(node.args[0], Node) and node.args[0].op == "placeholder" for node in copies)


def _eager(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    def run(tensors: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = gm(*tensors)
        return results

    return run


def _given_up(gm: GraphModule, entry: GraphReport, options: Options) -> Callable[[list[Any]], Sequence[Any]]:
    """The graph as it is, or an error if that is not wanted."""
    if options.strict:
        raise UsageError(f"strict: a graph stays with eager\n{entry}")
    _LOG.warning("%s", entry)
    return _eager(gm)


_WARNED: set[str] = set()


def _warn(entry: GraphReport) -> None:
    """One warning per set of targets, with the lines that call them."""
    key = ",".join(sorted(entry.eager))
    if key in _WARNED:
        return
    _WARNED.add(key)
    lines = "\n".join(f"  {line}" for line in entry.eager_lines())
    warnings.warn(f"orchestrion leaves these calls of a graph to eager PyTorch:\n{lines}", stacklevel=2)


class _Support(OperatorSupportBase):
    def __init__(self, on_host: frozenset[Node], options: Options) -> None:
        super().__init__()
        self._on_host = on_host
        self._options = options

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node not in self._on_host and _is_compiled(node, self._options)


def _partitioned(
    gm: GraphModule,
    entry: GraphReport,
    options: Options,
    on_host: frozenset[Node],
    native: dict[str, Any],
    work: Work,
) -> Callable[[list[Any]], Sequence[Any]]:
    """The graph with its supported parts compiled, but for calls that the host needs the results of."""
    partitioner = CapabilityBasedPartitioner(gm, _Support(on_host, options), allows_single_node_partition=True)
    proposed = partitioner.propose_partitions()
    partitioner.remove_bookend_non_compute_ops(proposed)
    kept = [part for part in proposed if _computing(part.nodes) >= options.min_partition]
    fused = partitioner.fuse_partitions(kept, prefix="orchestrion_part")
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith("orchestrion_part"):
            continue
        part = fused.get_submodule(str(node.target))
        assert isinstance(part, GraphModule)
        for inner, outer in zip([n for n in part.graph.nodes if n.op == "placeholder"], node.args):
            inner.meta.setdefault("val", outer.meta.get("val"))
        try:
            unit = Unit(part, native, None, work.watch)
        except (Error, DocumentError) as error:
            if isinstance(error, InternalError):
                raise
            entry.reason = f"a partition: {error}"
            continue
        setattr(fused, str(node.target), _Part(unit, single=_is_single(part)))
        inside = [n for n in part.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        entry.add_unit(unit)
        entry.compiled += len(inside)
        entry.partitions += 1
    fused.recompile()
    return _eager(fused)


def _computing(nodes: Any) -> int:
    """How many of these do more than show a tensor under another shape."""
    views = ("aten.view", "aten.permute", "aten.expand", "aten.unsqueeze", "aten.squeeze", "aten.slice", "aten.select", "aten.alias")
    calls = [node for node in nodes if node.op == "call_function" and node.target is not operator.getitem]
    return sum(not str(node.target).startswith(views) for node in calls)


def _is_single(part: GraphModule) -> bool:
    [output] = [node for node in part.graph.nodes if node.op == "output"]
    return isinstance(output.args[0], Node)


class _Part(torch.nn.Module):
    """A compiled partition in the place of its graph."""

    def __init__(self, unit: Unit, single: bool) -> None:
        super().__init__()
        self._unit = unit
        self._single = single

    def forward(self, *tensors: Any) -> Any:
        results = self._unit(list(tensors))
        return results[0] if self._single else tuple(results)


class _Sizes:
    """A graph of symbolic sizes: each size is compiled at its second call, meanwhile and at first eager runs it."""

    def __init__(self, gm: GraphModule, kind: str, options: Options) -> None:
        self._gm = gm
        self._kind = kind
        self._options = options
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[Any, ...], Callable[[list[Any]], Sequence[Any]] | Future[Any] | None] = OrderedDict()

    def __call__(self, tensors: list[Any]) -> Sequence[Any]:
        key = tuple(_size_key(tensor) for tensor in tensors)
        run = self._find(key, tensors)
        return run(tensors) if run is not None else self._gm(*tensors)

    def _find(self, key: tuple[Any, ...], tensors: list[Any]) -> Callable[[list[Any]], Sequence[Any]] | None:
        with self._lock:
            if key not in self._seen:
                self._seen[key] = None
                # Sizes that were seen once cost nothing but their key.
                while len(self._seen) > 64 * self._options.max_sizes:
                    self._seen.popitem(last=False)
                # Results may not change from one call to the next in the last bit.
                if not torch.are_deterministic_algorithms_enabled():
                    return None
            self._seen.move_to_end(key)
            found = self._seen[key]
            if found is None:
                static = _specialized(self._gm, tensors)
                if static is None:
                    self._seen[key] = found = _eager(self._gm)
                elif torch.are_deterministic_algorithms_enabled() or self._options.strict:
                    self._seen[key] = found = _compiled_static(static, self._kind, self._options)
                else:
                    self._seen[key] = _background().submit(static, self._kind, self._options)
                    self._drop_old()
                    return None
                self._drop_old()
            if isinstance(found, Future):
                if not found.done():
                    return None
                error = found.exception()
                if error is not None:
                    _LOG.warning("a size stays with eager: %s", error)
                self._seen[key] = found = _eager(self._gm) if error is not None else found.result()
            return found

    def _drop_old(self) -> None:
        """Keeps the sizes that were used last."""
        compiled = [key for key, value in self._seen.items() if value is not None]
        for key in compiled[: max(0, len(compiled) - self._options.max_sizes)]:
            dropped = self._seen.pop(key)
            if isinstance(dropped, Future):
                dropped.cancel()


def _size_key(tensor: Any) -> Any:
    return (tuple(tensor.shape), tensor.stride()) if isinstance(tensor, torch.Tensor) else tensor


@dataclass(frozen=True)
class _Static:
    """A graph of symbolic sizes for one choice of them."""

    #: A graph over the tensors among the inputs, whose outputs that are no tensors are None.
    gm: GraphModule
    #: Outputs that are numbers, by position.
    numbers: dict[int, Any]


def _specialized(gm: GraphModule, tensors: Sequence[Any]) -> _Static | None:
    """The graph for these sizes; None if it cannot be traced for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # What it keeps is by size and never dropped.
    mode.cache_enabled = False
    fake = [mode.from_tensor(tensor.detach()) if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    positions = [position for position, value in enumerate(fake) if isinstance(value, torch.Tensor)]

    def run(*values: Any) -> Any:
        given = list(fake)
        for position, value in zip(positions, values, strict=True):
            given[position] = value
        return torch.fx.Interpreter(gm).run(*given)

    try:
        with torch.no_grad(), mode:
            static = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(*(fake[position] for position in positions))
    except Exception as error:  # noqa: BLE001 - whatever tracing cannot do stays with eager
        _LOG.info("a size stays with eager, which traces: %s", error)
        return None
    _forget_source(static)
    placeholders = [node for node in static.graph.nodes if node.op == "placeholder"]
    for node, position in zip(placeholders, positions, strict=True):
        node.meta.setdefault("val", fake[position])
    [output] = [node for node in static.graph.nodes if node.op == "output"]
    values = output.args[0]
    values = list(values) if isinstance(values, (tuple, list)) else [values]
    numbers = {number: value for number, value in enumerate(values) if not isinstance(value, Node) and value is not None}
    output.args = ([None if number in numbers else value for number, value in enumerate(values)],)
    static.recompile()
    _forget_source(static)
    return _Static(static, numbers)


def _forget_source(gm: GraphModule) -> None:
    """Drops the text of a graph's function, which FX keeps for tracebacks as long as the process lives."""
    name = gm.forward.__code__.co_filename
    linecache.cache.pop(name, None)
    getattr(torch.fx.graph_module, "_loader").eval_cache.pop(name, None)


def _compiled_static(
    static: _Static, kind: str, options: Options, work: Work = Work()
) -> Callable[[list[Any]], Sequence[Any]]:
    run = compiled_graph(static.gm, kind, options, None, work)

    def with_numbers(tensors: list[Any]) -> Sequence[Any]:
        results = list(run([tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]))
        for number, value in static.numbers.items():
            results[number] = value
        return results

    return with_numbers


class _Stopped(Exception):
    """The process ends while a graph is compiled."""


class _Background:
    """Compiles while the program goes on: one graph at a time, with one thread, for at most half of the time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="orchestrion-sizes")
        self._stopping = threading.Event()
        self._not_before = 0.0
        threading._register_atexit(self._end)  # type: ignore[attr-defined]

    def submit(self, static: _Static, kind: str, options: Options) -> Future[Any]:
        """Compiles a graph when it is its turn."""
        return self._pool.submit(self._compiled, static, kind, options)

    def _compiled(self, static: _Static, kind: str, options: Options) -> Callable[[list[Any]], Sequence[Any]]:
        self._stopping.wait(self._not_before - time.monotonic())
        start = time.monotonic()
        try:
            return _compiled_static(static, kind, options, Work(jobs=1, watch=self._watch))
        finally:
            end = time.monotonic()
            self._not_before = end + (end - start)

    def _watch(self, stage: str, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _end(self) -> None:
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


@functools.cache
def _background() -> _Background:
    return _Background()


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_background.cache_clear)
