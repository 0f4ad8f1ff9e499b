#!/usr/bin/env python3
"""Samples of PyTorch's own operator tests (OpInfo), compiled whole, against eager.

    opinfo.py [--ops WORD ...] [--dtypes NAME ...] [--samples N] [--seed S] [--gradients] [--noncontiguous] [--large]
              [--limit N] [--record PATH] [--write PATH] [--verbose]

A sample is traced to core ATen. If the backend takes all of its calls, it becomes part of a graph of several samples, which is
compiled in strict mode and run; each sample's outputs are judged on their own. `--noncontiguous` adds each sample with its tensors
as strided views, `--gradients` adds gradients of floats, and `--large` adds, per operator, a sample that is enlarged until a
tensor has LARGE elements.

Floats pass if their error against f64 is at most 1.5 times eager's and two units in the last place of the largest magnitude, with
NaN and infinities in the same places; all else must be equal. Where the traced graph itself, run eagerly, differs from the
operator, the graph is what is compared with. The exit code is 1 if a sample fails. `--write` makes a table of what was executed
and of what stays with eager.
"""

import argparse
import collections
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from orchestrion.torch._backend import Options, compiled_graph, decompositions
from orchestrion.torch._complex import replace_complex
from orchestrion.torch._support import is_random, is_supported, targets

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32,
          "u8": torch.uint8, "bool": torch.bool}

#: Elements of the largest tensor of a large sample, at least.
LARGE = 100_000

#: Elements that no tensor of a sample may exceed.
MOST = 40 * LARGE

#: Operators of which only the batch of large samples grows contain one of these.
BATCHED = ("conv", "layer_norm")

#: Operators whose results are not defined.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

#: Calls after which a graph of several samples is full.
GRAPH_CALLS = 80


@dataclasses.dataclass
class Case:
    """A sample that is traced."""

    #: The operator and the element type, and the latter.
    pair: str
    name: str
    kind: str
    function: Callable[..., tuple[torch.Tensor, ...]]
    given: list[torch.Tensor]
    gm: GraphModule

    def calls(self) -> list[torch.fx.Node]:
        return [node for node in self.gm.graph.nodes if node.op == "call_function"]

    def packets(self) -> set[str]:
        return {packet(str(node.target)) for node in self.calls() if str(node.target).startswith(("aten.", "prims."))}

    def describe(self) -> str:
        shapes = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.given]
        return f"{self.pair} {self.kind} {shapes}\n     {sorted({str(node.target) for node in self.calls()})}"


def packet(target: str) -> str:
    return target.rsplit(".", 1)[0]


def elements(node: torch.fx.Node) -> int:
    """The elements of the largest tensor that a call reads or writes."""
    near = [node, *node.all_input_nodes]
    return max((tensor.numel() for value in near for tensor in tensors_of(value.meta.get("val"))), default=0)


def options() -> Options:
    return Options(strict=True, superoptimize=False)


def tensors_of(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def function_of(op, sample, gradients: bool):
    """A function of the sample's tensors, and these. For gradients those of the outputs follow."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given = [leaves[number].detach() for number in positions]

    def forward(*tensors):
        mine = list(leaves)
        for number, tensor in zip(positions, tensors):
            mine[number] = tensor
        first, args, kwargs = pytree.tree_unflatten(mine, spec)
        return tuple(tensors_of(op(first, *args, **kwargs)))

    def with_gradients(*tensors):
        places = [number for number, tensor in enumerate(given) if tensor.is_floating_point()]

        def of_floats(*floats):
            mine = list(tensors[: len(given)])
            for number, tensor in zip(places, floats):
                mine[number] = tensor
            return floats_of(forward(*mine))

        outputs, backward = torch.func.vjp(of_floats, *(tensors[number] for number in places))
        return backward(tuple(cotangent.to(output.dtype) for cotangent, output in zip(tensors[len(given) :], outputs, strict=True)))

    if not gradients:
        return forward, given
    with FakeTensorMode() as mode:
        outputs = floats_of(forward(*(mode.from_tensor(tensor) for tensor in given)))
    if sum(output.numel() for output in outputs) > MOST:
        raise ValueError("the outputs are too large")
    # Of ones, many gradients cancel to nothing but rounding.
    return with_gradients, given + [torch.rand(output.shape, dtype=output.dtype) - 0.25 for output in outputs]


def floats_of(tensors) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor.is_floating_point())


def traced(function, given) -> GraphModule:
    """The graph of a function in core ATen, without mutations."""
    functional = torch.func.functionalize(function, remove="mutations")
    gm = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")(*given)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    replace_complex(gm)
    return gm


def enlarged(op, sample):
    """The sample with its tensors repeated along each dimension until the largest has LARGE elements; None if that makes no sense.

    Dimensions of one element stay as they are, so that what is broadcast still is. Indices stay in range. Floats are scaled by
    random factors: repeated values would hide an element that is read at the wrong place, and round alike in sums. Of
    convolutions only the batch grows, since eager takes minutes for large kernels, and of normalisations whose arguments
    hold extents.
    """
    tensors = tensors_of((sample.input, sample.args, sample.kwargs))
    only_batch = any(word in op.name for word in BATCHED)
    largest = sample.input if only_batch else max(tensors, key=torch.Tensor.numel, default=None)
    if not isinstance(largest, torch.Tensor) or largest.numel() == 0 or max(largest.shape, default=1) == 1:
        return None
    dims = 1 if only_batch else sum(size > 1 for size in largest.shape)
    times = math.ceil((LARGE / largest.numel()) ** (1 / dims))
    if any(math.prod(size * times if size > 1 else size for size in tensor.shape) > MOST for tensor in tensors if not only_batch):
        return None

    def repeated(value):
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or (only_batch and value is not sample.input):
            return value
        with torch.no_grad():
            grows = [size > 1 and not only_batch for size in value.shape]
            grows[0] |= only_batch
            result = value.repeat([times if grow else 1 for grow in grows])
            if value.is_floating_point():
                result *= 1 - torch.rand_like(result) / 4
        return result.requires_grad_(value.requires_grad)

    return sample.transform(repeated)


def merged(cases: list[Case]) -> tuple[GraphModule, list[int]]:
    """One graph of all samples, and how many outputs each has."""
    graph, constants, values, outputs, counts, inputs = Graph(), {}, {}, [], [], itertools.count()
    for case in cases:
        for node in case.gm.graph.nodes:
            if node.op == "placeholder":
                values[node] = graph.placeholder(f"input{next(inputs)}")
                values[node].meta = dict(node.meta)
    for case in cases:
        for node in case.gm.graph.nodes:
            if node.op == "get_attr":
                name = f"constant{len(constants)}"
                constants[name] = getattr(case.gm, node.target)
                values[node] = graph.get_attr(name)
                values[node].meta = dict(node.meta)
        results = graph.graph_copy(case.gm.graph, values)
        results = results if isinstance(results, (tuple, list)) else [results]
        outputs.extend(results)
        counts.append(len(results))
    graph.output(tuple(outputs))
    return GraphModule(constants, graph), counts


def run_cases(cases: list[Case]) -> list[list[torch.Tensor]]:
    """The outputs of each sample, compiled as one graph."""
    gm, counts = merged(cases)
    results = iter(compiled_graph(gm, "inference", options())([tensor for case in cases for tensor in case.given]))
    return [[next(results) for _ in range(count)] for count in counts]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: of dimensions with more than one element, of tensors that are not empty."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1] if tensor.numel() else []


def places(tensor: torch.Tensor) -> torch.Tensor:
    """Where NaN and the infinities are."""
    return torch.isnan(tensor) * 3 + torch.isposinf(tensor) * 2 + torch.isneginf(tensor)


def differences(got, want, exact, layout):
    """What is wrong with an output, None, or the errors of both; `exact` is the result of the same in f64, `layout` has the strides."""
    if got.shape != want.shape or got.dtype != want.dtype or steps(got) != steps(layout):
        return f"is {got.dtype}{list(got.shape)} {got.stride()} instead of {want.dtype}{list(want.shape)} {layout.stride()}"
    if not want.is_floating_point():
        return None if torch.equal(got, want) else "differs"
    if want.numel() == 0:
        return None
    if exact is None or exact.shape != want.shape:
        exact = want.double()
    # Between operators that are fused f16 and bf16 are not rounded: what overflows in eager may be finite, as it is in f64.
    odd = places(got)
    if not ((odd == places(want)) | (odd == places(exact.to(want.dtype)))).all():
        return "has NaN or infinity elsewhere"
    got, want = got.double(), want.double()
    mine = torch.isfinite(got) & torch.isfinite(exact)
    theirs = mine & torch.isfinite(want)
    if not theirs.any():
        return None
    error, eager = (got - exact)[mine].abs().max().item(), (want - exact)[theirs].abs().max().item()
    return error, eager, want[theirs].abs().max().item()


EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 2.0**-52}


def wrong_output(case: Case, got: list[torch.Tensor]) -> str | None:
    """What is wrong with a sample's outputs, or None."""
    want, graph = case.function(*case.given), case.gm(*case.given)
    # Of integers, too, floats are made in f64.
    torch.set_default_dtype(torch.float64)
    try:
        exact = case.function(*(wide(tensor) for tensor in case.given))
    except RuntimeError:
        exact = [None] * len(want)
    finally:
        torch.set_default_dtype(torch.float32)
    if len(exact) != len(want):
        exact = [None] * len(want)
    # Strides are those of the trace: a decomposition may have others than the operator.
    layouts = [node.meta["val"] for node in pytree.tree_leaves(case.gm.graph.output_node().args)]
    outputs = zip(got, want, graph, exact, layouts, strict=True)
    for number, (mine, theirs, traced_result, reference, layout) in enumerate(outputs):
        # A decomposition that is not exactly the operator.
        if not torch.equal(torch.isfinite(theirs), torch.isfinite(traced_result)) or (
            not theirs.is_floating_point() and not torch.equal(theirs, traced_result)
        ):
            theirs, reference = traced_result, None
        reference = None if reference is None else wide(reference.detach())
        found = differences(mine, theirs.detach(), reference, layout)
        if isinstance(found, tuple):
            error, eager, magnitude = found
            # What the decompositions lose is lost in eager, too.
            of_graph = differences(traced_result, theirs.detach(), reference, traced_result)
            eager = max(eager, of_graph[0]) if isinstance(of_graph, tuple) else eager
            # Of f64 the reference is no more exact than eager: sums differ by their order.
            units = 64 if theirs.dtype == torch.float64 else 2
            allowed = 1.5 * eager + units * EPSILON[theirs.dtype] * magnitude
            found = None if error <= allowed else f"is off by {error:.3g}, eager by {eager:.3g}, largest magnitude {magnitude:.3g}"
        if found:
            return f"output {number} {found}"
    return None


def failures_of(cases: list[Case]) -> list[tuple[Case, str]]:
    """The samples that fail, with what is wrong. Where a graph of several is not compiled or run, each is for itself."""
    try:
        results = run_cases(cases)
    except Exception as error:  # noqa: BLE001 - reported as a failure
        if len(cases) > 1:
            alone = [failure for case in cases for failure in failures_of([case])]
            return alone or [(cases[0], f"only with the {len(cases) - 1} samples after it: {error}")]
        return [(cases[0], f"{type(error).__name__}: {str(error)[:300]}")]
    found = []
    for case, got in zip(cases, results, strict=True):
        try:
            wrong = wrong_output(case, got)
        except Exception as error:  # noqa: BLE001 - reported as a failure
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        if wrong:
            found.append((case, wrong))
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_complex()


def samples_of(op, dtype: torch.dtype, seed: int, requires_grad: bool) -> list[Any]:
    """Samples of an operator with plain tensors, in an order that is the same at each run."""
    key = f"{seed} {op.name} {op.variant_test_name} {dtype}"
    torch.manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big"))
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except Exception:  # noqa: BLE001 - samples that PyTorch itself cannot make
        return []
    random.Random(key).shuffle(found)
    return [sample for sample in found if all(map(is_plain, tensors_of((sample.input, sample.args, sample.kwargs))))]


@dataclasses.dataclass
class Record:
    """What was found with an operator in one element type, or the sum of several of these."""

    #: Samples that were run, by kind and element type; those with an empty tensor, those that stay with eager, and so on.
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    #: Samples per target that stays with eager, and per packet that was executed.
    missing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    packets: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    #: Samples that failed, and why, by their description.
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    #: The most elements of a tensor that a packet has read or written.
    elements: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def executed(self, case: Case) -> None:
        """Notes a sample that was run."""
        self.counts["run"] += 1
        self.counts["empty"] += any(tensor.numel() == 0 for tensor in case.given)
        self.kinds[f"{case.kind}/{case.name}"] += 1
        self.packets.update(case.packets())
        for node in case.calls():
            name = packet(str(node.target))
            self.elements[name] = max(self.elements[name], elements(node))

    def add(self, other: "Record") -> None:
        """Adds what was found elsewhere."""
        for mine, theirs in [(self.kinds, other.kinds), (self.counts, other.counts), (self.missing, other.missing),
                             (self.packets, other.packets), (self.failures, other.failures)]:
            mine.update(theirs)
        self.elements |= other.elements

    def __str__(self) -> str:
        large = sum(most >= LARGE for most in self.elements.values())
        return (f"{self.counts['run']} samples run ({self.counts['empty']} with an empty tensor), {self.counts['failed']} failed; "
                f"{self.counts['with eager']} with calls that stay with eager, {self.counts['not traced']} not traced; "
                f"{len(self.packets)} packets executed, {large} of them on {LARGE:,} elements or more")

    def table(self) -> str:
        """What was executed and what stays with eager, as Markdown."""
        keys = [key.split("/") for key in self.kinds]
        kinds, names = sorted({kind for kind, _ in keys}), [name for name in DTYPES if name in {name for _, name in keys}]
        lines = [
            "# ATen calls of PyTorch's operator samples",
            "",
            f"Generated by `scripts/opinfo.py --write` with PyTorch {torch.__version__.partition('+')[0]}; not edited by hand. The samples",
            f"are drawn from {self.counts['pairs']:,} pairs of an operator and an element type of `torch.testing`'s OpInfo, and traced to core",
            "ATen. Samples of which the compiler takes all calls are compiled and compared with eager. For the others, each target that",
            "stays with eager is listed with the number of samples that call it.",
            "",
            f"{self}.",
            "",
            "## Samples that were run",
            "",
            "| | " + " | ".join(names) + " |",
            "|---" * (len(names) + 1) + "|",
            *(f"| {kind} | " + " | ".join(str(self.kinds[f"{kind}/{name}"]) for name in names) + " |" for kind in kinds),
            "",
            "## What failed",
            "",
            "Orders of equal elements are not specified by PyTorch: what sorts, and gradients by its indices, may differ there.",
            "PyTorch's CPU adds cumulative sums of f32 in f64; here they are added in f32.",
            "",
            *(f"- {failure}" for failure in sorted(self.failures)),
            "",
            "## What stays with eager",
            "",
            "| target | samples | |",
            "|---|---|---|",
        ]
        for target, count in sorted(self.missing.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"| `{target}` | {count} | {'some arguments or types' if target in targets() else ''} |")
        lines += ["", "## Packets that were executed", "", "| packet | samples | elements of the largest tensor |", "|---|---|---|"]
        lines += [f"| `{name}` | {self.packets[name]} | {self.elements[name]:,} |" for name in sorted(self.packets)]
        return "\n".join(lines) + "\n"


def is_reasonable(case: Case) -> bool:
    """True of an enlarged sample that makes no very large tensor, as outer products do, and that eager takes."""
    if max(map(elements, case.calls())) > MOST:
        return False
    try:
        case.function(*case.given)
    except RuntimeError:
        return False
    return True


class Run:
    """Runs samples of pairs of an operator and an element type."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.waiting: list[Case] = []
        #: Records by pair, and pairs whose samples are not all run.
        self.records: dict[str, Record] = {}
        self.unfinished: list[str] = []
        if args.record and args.record.exists():
            for line in args.record.read_text().splitlines():
                pair, stored = json.loads(line)
                record = Record(**{field: collections.Counter(values) for field, values in stored.items()})
                if not record.counts["failed"]:
                    self.records[pair] = record
        #: Samples that are run or wait.
        self.samples = sum(record.counts["run"] for record in self.records.values())

    def add(self, pair: str, name: str, kind: str, op, sample, gradients: bool, seen: set[str]) -> bool:
        """Adds a sample; false if it is not taken."""
        record, is_large = self.records[pair], kind.endswith("large")
        try:
            function, given = function_of(op, sample, gradients)
            gm = traced(function, given)
        except Exception as error:  # noqa: BLE001 - what PyTorch cannot trace
            record.counts["not traced"] += not is_large
            if self.args.verbose and not is_large:
                print(f"not traced: {pair} {kind}: {type(error).__name__}: {str(error)[:100]}")
            return False
        case = Case(pair, name, kind, function, given, gm)
        key, calls = repr((str(gm.graph), [(t.shape, t.dtype, t.stride()) for t in given])), case.calls()
        if not calls or key in seen:
            return True
        seen.add(key)
        # Random numbers are not eager's.
        unsupported = {str(node.target) for node in calls if is_random(node) or not is_supported(node)}
        if unsupported:
            record.missing.update(target for target in unsupported if target.startswith(("aten.", "prims.")))
            record.counts["with eager"] += 1
            return False
        if is_large and not is_reasonable(case):
            return False
        self.waiting.append(case)
        self.samples += 1
        return True

    def flush(self) -> None:
        """Compiles and runs what waits."""
        cases, self.waiting = self.waiting, []
        for case, wrong in failures_of(cases) if cases else []:
            self.records[case.pair].counts["failed"] += 1
            self.records[case.pair].failures[f"{case.describe().splitlines()[0]}: {wrong}"] += 1
            print(f"FAIL {wrong}: {case.describe()}", flush=True)
        for case in cases:
            self.records[case.pair].executed(case)
        if self.args.record:
            with self.args.record.open("a") as file:
                for pair in self.unfinished:
                    file.write(json.dumps([pair, vars(self.records[pair])]) + "\n")
        self.unfinished = []

    def operator(self, op, name: str) -> None:
        """Runs the samples of an operator in one element type, unless its record is there."""
        dtype, pair, seen = DTYPES[name], f"{op.name} {op.variant_test_name} {name}".replace("  ", " "), set()
        if pair in self.records:
            return
        self.records[pair] = Record()
        # One type is enough for large samples.
        is_first = name == next((name for name, dtype in DTYPES.items() if dtype in op.supported_dtypes("cpu")), None)
        for gradients in [False, True] if self.args.gradients else [False]:
            if gradients and (not op.supports_autograd or dtype not in op.supported_backward_dtypes("cpu")):
                continue
            prefix = "gradient" if gradients else "forward"
            samples = samples_of(op, dtype, self.args.seed, gradients)
            for sample in samples[: self.args.samples]:
                self.add(pair, name, prefix, op.op, sample, gradients, seen)
                if self.args.noncontiguous:
                    self.add(pair, name, f"{prefix}, non-contiguous", op.op, sample.noncontiguous(), gradients, seen)
            if self.args.large and is_first:
                grown = (sample for sample in (enlarged(op, sample) for sample in samples[:10]) if sample)
                any(self.add(pair, name, f"{prefix}, large", op.op, sample, gradients, seen) for sample in grown)
        self.unfinished.append(pair)
        if sum(len(case.calls()) for case in self.waiting) >= GRAPH_CALLS:
            self.flush()

    def total(self) -> Record:
        """The sum of all records."""
        total = Record()
        total.counts["pairs"] = len(self.records)
        for record in self.records.values():
            total.add(record)
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", help="operators whose name contains one of these")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--samples", type=int, default=40, help="at most, per operator and type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true", help="gradients, too")
    parser.add_argument("--noncontiguous", action="store_true", help="tensors that are strided views, too")
    parser.add_argument("--large", action="store_true", help="large tensors, too")
    parser.add_argument("--limit", type=int, help="samples that are run, about, drawn from all")
    parser.add_argument("--record", type=Path, help="results per operator and type; those without failures are not run again")
    parser.add_argument("--write", type=Path, help="a table of what was executed and what stays with eager")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    # What cannot be traced is counted.
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    from torch.testing._internal.common_methods_invocations import op_db

    ops = [op for op in op_db if op.name not in UNDEFINED]
    ops = [op for op in ops if not args.ops or any(word in op.name for word in args.ops)]
    pairs = [(op, name) for op in ops for name in args.dtypes if DTYPES[name] in op.supported_dtypes("cpu")]
    random.Random(args.seed).shuffle(pairs)
    run, start = Run(args), time.monotonic()
    for number, (op, name) in enumerate(pairs, 1):
        if args.limit and run.samples >= args.limit:
            break
        run.operator(op, name)
        if args.verbose:
            print(f"{time.monotonic() - start:6.0f} s, {number} of {len(pairs)}: {op.name} {name}", flush=True)
    run.flush()
    total = run.total()
    print(total)
    if args.write:
        args.write.write_text(total.table())
    sys.exit(1 if total.counts["failed"] else 0)


if __name__ == "__main__":
    main()
