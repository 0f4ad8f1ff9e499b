#!/usr/bin/env python3
"""Samples of PyTorch's own operator tests (OpInfo), compiled whole, against eager.

    opinfo.py [--ops WORD ...] [--dtypes NAME ...] [--samples N] [--seed S] [--gradients] [--limit N] [--verbose]

A sample is traced to core ATen; if the backend takes all of its calls, it is compiled and run. Floats pass if their error against f64 is
at most 1.5 times eager's and two units in the last place of the largest magnitude, with NaN and infinities in the same places; all
else must be equal. Where the traced graph itself, run eagerly, differs from the operator, the graph is what is compared with. The exit code is 1 if a sample fails. What is not taken is counted by target.
"""

import argparse
import collections
import hashlib
import random
import sys
import warnings

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from orchestrion.torch._backend import Options, compiled_graph, decompositions
from orchestrion.torch._support import is_supported

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32,
          "u8": torch.uint8, "bool": torch.bool}


def options():
    return Options(strict=True, superoptimize=False)


def tensors_of(values):
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def function_of(op, sample, gradients):
    """A function of the sample's tensors, and these."""
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
        tensors = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        outputs = [output for output in forward(*tensors) if output.requires_grad]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        if not outputs or not wanted:
            return ()
        found = torch.autograd.grad(outputs, wanted, [torch.ones_like(output) for output in outputs], allow_unused=True)
        return tuple(gradient for gradient in found if gradient is not None)

    return (with_gradients if gradients else forward), given


def traced(function, given):
    """The graph of a function in core ATen, without mutations."""
    functional = torch.func.functionalize(function, remove="mutations")
    gm = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")(*given)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def wide(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def steps(tensor):
    """The strides that matter: of dimensions with more than one element, of tensors that are not empty."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1] if tensor.numel() else []


def differences(got, want, exact):
    """What is wrong with an output, or None; `exact` is the result of the same in f64."""
    if got.shape != want.shape or got.dtype != want.dtype or steps(got) != steps(want):
        return f"is {got.dtype}{list(got.shape)} {got.stride()} instead of {want.dtype}{list(want.shape)} {want.stride()}"
    if not want.is_floating_point():
        return None if torch.equal(got, want) else "differs"
    if want.numel() == 0:
        return None
    got, want = got.double(), want.double()
    for what, test in [("NaN", torch.isnan), ("infinity", torch.isinf)]:
        if not torch.equal(test(got), test(want)):
            return f"has {what} elsewhere"
    finite = torch.isfinite(want)
    if exact is None or exact.shape != want.shape:
        exact = want
    finite &= torch.isfinite(exact)
    if not finite.any():
        return None
    error, eager = (got - exact)[finite].abs().max().item(), (want - exact)[finite].abs().max().item()
    return error, eager, want[finite].abs().max().item()


EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 2.0**-52}


def check(function, given, gm):
    """What is wrong with a sample, or None."""
    run = compiled_graph(gm, "inference", options())
    want, graph = function(*given), gm(*given)
    got = run(list(given))
    # Of integers, too, floats are made in f64.
    torch.set_default_dtype(torch.float64)
    try:
        exact = function(*(wide(tensor) for tensor in given))
    except RuntimeError:
        exact = [None] * len(want)
    finally:
        torch.set_default_dtype(torch.float32)
    if len(exact) != len(want):
        exact = [None] * len(want)
    for number, (mine, theirs, traced_result, reference) in enumerate(zip(got, want, graph, exact, strict=True)):
        # A decomposition that is not exactly the operator.
        if not torch.equal(torch.isfinite(theirs), torch.isfinite(traced_result)) or (
            not theirs.is_floating_point() and not torch.equal(theirs, traced_result)
        ):
            theirs, reference = traced_result, None
        found = differences(mine, theirs.detach(), None if reference is None else wide(reference.detach()))
        if isinstance(found, tuple):
            error, eager, magnitude = found
            allowed = 1.5 * eager + 2 * EPSILON[theirs.dtype] * magnitude
            found = None if error <= allowed else f"is off by {error:.3g}, eager by {eager:.3g}, largest magnitude {magnitude:.3g}"
        if found:
            return f"output {number} {found}"
    return None


def samples_of(op, dtype, count, seed, requires_grad):
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except Exception:  # noqa: BLE001 - samples that PyTorch itself cannot make
        return []
    random.Random(f"{seed} {op.name} {op.variant_test_name} {dtype}").shuffle(found)
    return found[:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", help="operators whose name contains one of these")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--samples", type=int, default=40, help="at most, per operator and type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--limit", type=int, help="samples that are run, drawn from all")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    ops = [op for op in op_db if not args.ops or any(word in op.name for word in args.ops)]
    pairs = [(op, name) for op in ops for name in args.dtypes]
    random.Random(args.seed).shuffle(pairs)
    counts, missing, failures, packets, seen = collections.Counter(), collections.Counter(), [], set(), set()
    for op, name in pairs:
        if args.limit and counts["run"] >= args.limit:
            break
        dtype = DTYPES[name]
        if dtype not in op.supported_dtypes("cpu") or (args.gradients and not op.supports_autograd):
            continue
        for sample in samples_of(op, dtype, args.samples, args.seed, args.gradients):
            function, given = function_of(op.op, sample, args.gradients)
            label = f"{op.name} {op.variant_test_name} {name}"
            try:
                gm = traced(function, given)
            except Exception as error:  # noqa: BLE001 - what PyTorch cannot trace
                counts["not traced"] += 1
                if args.verbose:
                    print(f"not traced: {label}: {type(error).__name__}")
                continue
            calls = [node for node in gm.graph.nodes if node.op == "call_function"]
            unsupported = {str(node.target) for node in calls if not is_supported(node)}
            if unsupported or not calls or any(tensor.is_complex() for tensor in given):
                missing.update(unsupported)
                counts["not taken"] += 1
                continue
            text = hashlib.sha256(repr((str(gm.graph), [(t.shape, t.dtype, t.stride()) for t in given])).encode()).digest()
            if text in seen:
                continue
            seen.add(text)
            counts["run"] += 1
            packets |= {str(node.target).rsplit(".", 1)[0] for node in calls}
            try:
                wrong = check(function, given, gm)
            except Exception as error:  # noqa: BLE001 - reported as a failure
                wrong = f"{type(error).__name__}: {str(error)[:300]}"
            if wrong:
                failures.append((label, wrong))
                shapes = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in given]
                print(f"FAIL {label} {shapes}: {wrong}\n     {sorted({str(node.target) for node in calls})}", flush=True)
    print(f"{counts['run']} samples run, {len(failures)} failed; {counts['not taken']} with calls that stay with eager, "
          f"{counts['not traced']} not traced; {len(packets)} packets executed")
    if args.verbose:
        for target, count in missing.most_common():
            print(f"{count:6} {target}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
