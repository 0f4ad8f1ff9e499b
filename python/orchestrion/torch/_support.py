"""Which ATen calls the compiler takes. What it does not take stays with eager PyTorch.

Names come from `targets.txt`, which a test keeps equal to the compiler's own table. The conditions that depend on
arguments are here.
"""

from __future__ import annotations

import functools
import operator
import pathlib
from collections.abc import Callable

import torch
from torch.fx import Node

from ._document import DTYPES, RANDOM, DocumentError, concrete, first_strided
from ._strides import is_dense

#: The longest axis of `slice_scatter` with a step.
MAX_POSITIONS = 1 << 20

#: The most scores of attention on GPUs that is differentiated. They go through memory, whose cache holds 32 MB of f32; eager's kernels
#: recompute them.
MAX_SCORES = 1 << 23


@functools.cache
def targets() -> frozenset[str]:
    """The names of all targets that the compiler takes."""
    text = (pathlib.Path(__file__).parent / "targets.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return frozenset(line for line in lines if line)


def is_supported(node: Node) -> bool:
    """True if the compiler takes this call."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and is_supported(source)
    name = str(node.target)
    if name not in targets() or not _types_are_known(node):
        return False
    condition = _CONDITIONS.get(name)
    try:
        known = _arguments(node)
        if name in _GPU_ATTENTION and _is_differentiated(node) and _scores(known) > MAX_SCORES:
            return False
        return condition is None or condition(known)
    except (DocumentError, TypeError, AttributeError, KeyError):
        return False


def is_random(node: Node) -> bool:
    """True if a call draws random numbers, and of its results."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and is_random(source)
    return node.op == "call_function" and str(node.target) in RANDOM


def _values(node: Node) -> list[object]:
    value = node.meta.get("val")
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (tuple, list)) else [value]


def _types_are_known(node: Node) -> bool:
    """All tensors are plain, of known types, and with concrete sizes."""
    tensors = [value for value in _values(node) if value is not None]
    for source in node.all_input_nodes:
        tensors.extend(value for value in _values(source) if value is not None)
    for value in tensors:
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES or value.layout != torch.strided:
            return False
        try:
            for size in (*value.shape, *value.stride()):
                concrete(size, node.name)
        except DocumentError:
            return False
    return True


Arguments = dict[str, object]


def _arguments(node: Node) -> Arguments:
    """All arguments by the names of the schema, defaults included."""
    assert isinstance(node.target, torch._ops.OpOverload)
    known: Arguments = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            known[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            known[argument.name] = node.kwargs[argument.name]
        else:
            known[argument.name] = argument.default_value if argument.has_default_value() else None
    return known


def _tensor(argument: object) -> torch.Tensor:
    assert isinstance(argument, Node)
    value = argument.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def _as_strided(known: Arguments) -> bool:
    tensor, start = _tensor(known["self"]), first_strided(known["self"], known["storage_offset"])
    size, stride = known["size"], known["stride"]
    assert isinstance(size, (list, tuple)) and isinstance(stride, (list, tuple))
    last = start + sum((extent - 1) * step for extent, step in zip(size, stride))
    # Other elements of the memory are not the tensor's.
    return is_dense(tensor) and start >= 0 and last < tensor.numel()


def _slice_scatter(known: Arguments) -> bool:
    tensor, dim = _tensor(known["self"]), known["dim"]
    assert isinstance(dim, int)
    return known["step"] == 1 or tensor.shape[dim] <= MAX_POSITIONS


def _power(known: Arguments) -> bool:
    exponent = known["exponent"]
    assert isinstance(exponent, (int, float))
    integers = not _tensor(known["self"]).dtype.is_floating_point and isinstance(exponent, int)
    return not (integers and exponent < 0)


def _convolution(known: Arguments) -> bool:
    return 3 <= _tensor(known["input"]).dim() <= 5


def _integer_indices(known: Arguments) -> bool:
    indices = known["indices"]
    assert isinstance(indices, (list, tuple))
    given = [_tensor(index) for index in indices if index is not None]
    return all(index.dtype != torch.bool and not index.dtype.is_floating_point for index in given)


def _index(known: Arguments) -> bool:
    indices = known["indices"]
    assert isinstance(indices, (list, tuple))
    if not _integer_indices(known):
        return False
    # Eager reads indices of 8 bits without a sign as a mask.
    return all(_tensor(index).dtype != torch.uint8 for index in indices if index is not None)


def _index_put(known: Arguments) -> bool:
    indices = known["indices"]
    assert isinstance(indices, (list, tuple))
    if len(indices) == 1 and indices[0] is not None and _tensor(indices[0]).dtype == torch.bool:
        return _tensor(known["values"]).numel() == 1 and not known["accumulate"]
    # Truths are not added.
    return _index(known) and not (known["accumulate"] and _tensor(known["self"]).dtype == torch.bool)


def _scatter_reduce(known: Arguments) -> bool:
    numbers = _tensor(known["self"]).dtype != torch.bool
    return numbers and bool(known["include_self"]) and known["reduce"] in ("sum", "prod", "amax", "amin")


def _scatter(known: Arguments) -> bool:
    return _tensor(known["self"]).dim() > 0


def _attention(known: Arguments) -> bool:
    query, key = _tensor(known["query"]), _tensor(known["key"])
    no_dropout = known["dropout_p"] == 0.0
    return no_dropout and query.numel() > 0 and key.numel() > 0 and query.shape[1] % key.shape[1] == 0


def _gpu_attention(known: Arguments) -> bool:
    """Causal masks of tensors of unequal lengths begin at the first key here; some kernels let them end at the last."""
    is_square = _tensor(known["query"]).shape[2] == _tensor(known["key"]).shape[2]
    return _attention(known) and (is_square or not known["is_causal"])


def _scores(known: Arguments) -> int:
    return _tensor(known["query"]).shape[:3].numel() * _tensor(known["key"]).shape[2]


def _is_differentiated(node: Node) -> bool:
    """True of the gradient of attention, and where a gradient takes other results than the first."""
    is_backward = "_backward" in str(node.target)
    return is_backward or any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users)


def _efficient_backward(known: Arguments) -> bool:
    """The gradient of a mask that is repeated along a dimension stays with eager."""
    wanted = known["grad_input_mask"]
    assert isinstance(wanted, (list, tuple))
    if not _gpu_attention(known) or known["attn_bias"] is None or not wanted[3]:
        return _gpu_attention(known)
    return _tensor(known["attn_bias"]).numel() == _scores(known)


def _floats(known: Arguments) -> bool:
    return _tensor(known["self"]).dtype.is_floating_point


def _batch_norm(known: Arguments) -> bool:
    return not known["training"] or (known["running_mean"] is None and known["running_var"] is None)


#: Attention that only GPUs have.
_GPU_ATTENTION: dict[str, Callable[[Arguments], bool]] = {
    "aten._scaled_dot_product_flash_attention.default": _gpu_attention,
    "aten._scaled_dot_product_flash_attention_backward.default": _gpu_attention,
    "aten._scaled_dot_product_efficient_attention.default": _gpu_attention,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten._scaled_dot_product_cudnn_attention.default": _gpu_attention,
    "aten._scaled_dot_product_cudnn_attention_backward.default": _gpu_attention,
}

_CONDITIONS: dict[str, Callable[[Arguments], bool]] = {
    "aten.as_strided.default": _as_strided,
    "aten.as_strided_scatter.default": _as_strided,
    "aten.avg_pool1d.default": _floats,
    "aten.avg_pool2d.default": _floats,
    "aten.avg_pool3d.default": _floats,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.pow.Tensor_Scalar": _power,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
    "aten.embedding_dense_backward.default": lambda known: not known["scale_grad_by_freq"],
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.scatter_add.default": lambda known: _scatter(known) and _tensor(known["self"]).dtype != torch.bool,
    "aten.scatter_reduce.two": lambda known: _scatter(known) and _scatter_reduce(known),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention,
    **_GPU_ATTENTION,
    "aten.bernoulli.default": lambda known: known["generator"] is None and _floats(known),
    "aten.bernoulli.p": lambda known: known["generator"] is None,
    "aten._native_batch_norm_legit.no_stats": lambda known: bool(known["training"]),
    "aten.native_batch_norm.default": _batch_norm,
}
