"""Tensors that only the backward graph sees, handed on as parts of few tensors.

A forward graph saves one tensor per activation: 360 in BERT-base. Each costs some microseconds of the host on its way through autograd, made,
kept and shown again, which for small batches is more than the kernels take. So the graphs are changed before they are compiled: the forward
graph returns *slabs*, lines of elements of one type with the saved tensors in them, and the backward graph takes these and says where each
tensor begins. Autograd frees what a graph saved all at once, so that a slab keeps no memory for longer.

In graphs a slab is a call of :func:`pack`, and each part of one that is given is `aten.as_strided`: graphs that are run by eager PyTorch after all
are right, at the price of a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from orchestrion.torch._placement import CPU, memory_of
from orchestrion.torch._strides import is_dense

#: Shape, strides, and elements before a part.
Place = tuple[list[int], list[int], int]

#: The entry of a placeholder's `meta` that says that it is a slab.
_IS_SLAB = "orchestrion_slab"
#: That of a call of `pack` with the parts as fake tensors.
_PARTS = "orchestrion_parts"

#: Where parts begin: what kernels and TMA ask for, and a line of any cache.
_ALIGN_BYTES = 256


@dataclass(frozen=True)
class _Limits:
    """How large slabs are."""

    #: Tensors of more bytes have memory of their own, so that PyTorch's allocator finds room for them.
    part_bytes: int
    #: A slab of as many bytes takes no further tensor.
    slab_bytes: int


#: The C library gives the memory of large blocks back to the system, so that each run would find it page by page.
_ON_HOST = _Limits(1 << 20, 8 << 20)
#: PyTorch's allocator keeps memory. BERT-base saves most tensors of 8 sequences of 128 tokens in 1.5 to 6 MiB each.
_ON_GPU = _Limits(16 << 20, 64 << 20)


def pack(tensors: Sequence[torch.Tensor], places: Sequence[Place], length: int) -> torch.Tensor:
    """A slab of so many elements with tensors of one type at these places."""
    slab = tensors[0].new_empty(length)
    for tensor, (shape, strides, start) in zip(tensors, places, strict=True):
        slab.as_strided(shape, strides, start).copy_(tensor)
    return slab


@dataclass
class _Slab:
    """A slab that is being filled."""

    values: list[Node] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    #: The parts, as fake tensors.
    parts: list[torch.Tensor] = field(default_factory=list)
    length: int = 0


def pack_saved(
    forward: GraphModule, backward: GraphModule, returned: int, device: torch.device, images: Mapping[int, torch.Tensor]
) -> None:
    """Makes a forward graph return slabs in place of the tensors that suit them, and its backward graph take these.

    :param returned: how many outputs the caller gets; those after them are only saved, and the backward graph's first inputs.
    :param device: the device that the graphs compute on.
    :param images: outputs that are saved with the strides of these tensors, by position.
    """
    [output] = [node for node in forward.graph.nodes if node.op == "output"]
    values = list(output.args[0])
    saved = values[returned:]
    given = [node for node in backward.graph.nodes if node.op == "placeholder"]
    # Numbers and objects are saved apart from tensors, and so are tensors that autograd does not watch: their order is AOTAutograd's.
    if not all(_is_watched(value) for value in saved) or [value.name for value in saved] != [node.name for node in given[: len(saved)]]:
        return
    held = {memory for node in forward.graph.nodes if node.op == "placeholder" for memory in memory_of(node)}
    slabs = [slab for slab in _fill(values, returned, device, held, images) if len(slab.values) > 1]
    if not slabs:
        return
    packed = {value for slab in slabs for value in slab.values}
    inputs = dict(zip(saved, given))
    last_given = given[len(saved) - 1]
    first_call = next(node for node in backward.graph.nodes if node.op != "placeholder")
    results = []
    for number, slab in enumerate(slabs):
        with forward.graph.inserting_before(output):
            result = forward.graph.create_node("call_function", pack, (slab.values, slab.places, slab.length), name=f"saved_slab_{number}")
        result.meta.update({"val": _line(slab), _PARTS: slab.parts})
        results.append(result)
        with backward.graph.inserting_after(last_given):
            # AOTAutograd finds what is saved by its name.
            last_given = backward.graph.create_node("placeholder", result.name, name=result.name)
        last_given.meta.update({"val": _line(slab), _IS_SLAB: True})
        for value, (shape, strides, start), part in zip(slab.values, slab.places, slab.parts, strict=True):
            with backward.graph.inserting_before(first_call):
                shown = backward.graph.call_function(torch.ops.aten.as_strided.default, (last_given, shape, strides, start))
            shown.meta["val"] = part
            inputs[value].replace_all_uses_with(shown)
            backward.graph.erase_node(inputs[value])
    output.args = ([*values[:returned], *(value for value in saved if value not in packed), *results],)
    for gm in (forward, backward):
        gm.graph.lint()
        gm.recompile()


def _fill(
    values: Sequence[Node], returned: int, device: torch.device, held: set[int], images: Mapping[int, torch.Tensor]
) -> list[_Slab]:
    """Slabs with the outputs that suit them: made by the graph and only saved, without gaps, not large.

    :param held: the memory of the graph's inputs.
    """
    limits = _ON_HOST if device == CPU else _ON_GPU
    slabs: list[tuple[torch.dtype, _Slab]] = []
    seen = set(values[:returned])
    for position, value in enumerate(values[returned:], returned):
        part = images.get(position, value.meta["val"])
        elem_bytes = part.element_size()
        if (
            value in seen
            or value.op != "call_function"
            or memory_of(value) & held
            or part.device != device
            or not is_dense(part)
            or part.numel() * elem_bytes > limits.part_bytes
        ):
            continue
        seen.add(value)
        open_slabs = (slab for dtype, slab in slabs if dtype == part.dtype and slab.length * elem_bytes < limits.slab_bytes)
        slab = next(open_slabs, None)
        if slab is None:
            slab = _Slab()
            slabs.append((part.dtype, slab))
        slab.values.append(value)
        slab.places.append((list(part.shape), list(part.stride()), slab.length))
        slab.parts.append(part)
        align = _ALIGN_BYTES // elem_bytes
        slab.length += -(-part.numel() // align) * align
    return [slab for _, slab in slabs]


def _is_watched(value: object) -> bool:
    """True of a tensor whose changes autograd notices."""
    if not isinstance(value, Node) or value.meta.get("saved_tensor_with_no_vc_check", False):
        return False
    return isinstance(value.meta.get("val"), torch.Tensor)


def _line(slab: _Slab) -> torch.Tensor:
    """A slab as a fake tensor."""
    return slab.parts[0].new_empty([slab.length])


@dataclass(frozen=True)
class Opened:
    """A graph whose inputs and outputs are the tensors themselves, and where these are."""

    gm: GraphModule
    #: How many tensors are given.
    given: int
    #: Per input the number of the tensor that is given, and the elements before the input where it is a part of that.
    inputs: list[tuple[int, int | None]]
    #: Outputs that are made with the strides of these tensors, by position.
    images: dict[int, torch.Tensor]
    #: Slabs among the outputs that are returned: elements, and how many elements stand before each part. Their parts are the last outputs.
    slabs: list[tuple[int, list[int]]]


def opened(gm: GraphModule) -> Opened:
    """A graph without slabs: a copy, if it has any."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    [output] = [node for node in gm.graph.nodes if node.op == "output"]
    results = output.args[0]
    packs = [value for value in results if _is_pack(value)] if isinstance(results, (list, tuple)) else []
    if not packs and not any(node.meta.get(_IS_SLAB) for node in placeholders):
        return Opened(gm, len(placeholders), [(number, None) for number in range(len(placeholders))], {}, [])
    gm = GraphModule(gm, copy.deepcopy(gm.graph))
    inputs: list[tuple[int, int | None]] = []
    for number, node in enumerate([node for node in gm.graph.nodes if node.op == "placeholder"]):
        if not node.meta.get(_IS_SLAB):
            inputs.append((number, None))
            continue
        for shown in list(node.users):
            with gm.graph.inserting_before(node):
                part = gm.graph.placeholder(shown.name)
            part.meta = dict(shown.meta)
            inputs.append((number, shown.args[3]))
            shown.replace_all_uses_with(part)
            gm.graph.erase_node(shown)
        gm.graph.erase_node(node)
    [output] = [node for node in gm.graph.nodes if node.op == "output"]
    kept = list(output.args[0])
    images: dict[int, torch.Tensor] = {}
    slabs = []
    packs = [value for value in kept if _is_pack(value)]
    kept = [value for value in kept if not _is_pack(value)]
    for packed in packs:
        values, places, length = packed.args
        images.update(enumerate(packed.meta[_PARTS], len(kept)))
        kept.extend(values)
        slabs.append((length, [start for _, _, start in places]))
    output.args = (kept,)
    for packed in packs:
        gm.graph.erase_node(packed)
    gm.recompile()
    return Opened(gm, len(placeholders), inputs, images, slabs)


def _is_pack(value: object) -> bool:
    return isinstance(value, Node) and value.target is pack


def is_of_slab(node: Node) -> bool:
    """True of the calls by which slabs are made and their parts are shown."""
    return node.target is pack or any(given.meta.get(_IS_SLAB) for given in node.all_input_nodes)
