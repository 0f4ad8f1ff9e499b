"""Layouts of the images that a forward graph saves for its backward graph.

A traced graph has images as eager PyTorch makes them, usually NCHW. Convolutions on tensor cores are fastest in NHWC (channels last).
Only the backward graph sees what is only saved, so that the two graphs may agree on a layout: the forward graph reports the strides to
AOTAutograd, which gives the backward graph's compiler inputs with these strides. Inductor reports its own in the same way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from orchestrion.torch._placement import memory_of

#: An image: batch, channels, height, width.
_RANK = 4


def saved_images(gm: GraphModule, returned: int, is_wanted: Callable[[torch.dtype], bool]) -> dict[int, torch.Tensor]:
    """The outputs of a forward graph that are better saved channels last, as fake tensors of these strides, by position.

    :param returned: how many outputs the caller gets; those after them are only saved.
    :param is_wanted: of which types.
    """
    values = _outputs(gm)
    convolved = set()
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.convolution.default:
            convolved |= {tuple(image.meta["val"].shape) for image in (node, node.args[0])}
    seen = set(values[:returned])
    found = {}
    for position, value in enumerate(values[returned:], returned):
        if not isinstance(value, Node) or value in seen or value.op == "placeholder":
            continue
        seen.add(value)
        image = value.meta["val"]
        if not isinstance(image, torch.Tensor) or image.dim() != _RANK or tuple(image.shape) not in convolved:
            continue
        if is_wanted(image.dtype) and image.is_contiguous() and not _is_view(value):
            found[position] = image.to(memory_format=torch.channels_last)
    return found


def _outputs(gm: GraphModule) -> Sequence[Any]:
    [output] = [node for node in gm.graph.nodes if node.op == "output"]
    values: Sequence[Any] = output.args[0]
    return values


def _is_view(value: Node) -> bool:
    """True if the value may be seen under another name, with strides of its own."""
    own = memory_of(value)
    # One of several results shares memory with what they were computed from, or with another one, if it is a view.
    is_one_of = value.target is operator.getitem
    producer = value.args[0] if is_one_of else value
    assert isinstance(producer, Node)
    others = {*producer.all_input_nodes, *value.users, *(producer.users if is_one_of else ())} - {value}
    return any(memory_of(other) & own for other in others)


def _reported() -> list[Any] | None:
    """Where AOTAutograd expects the strides of a forward graph's outputs; None if it does not ask for them."""
    context = TracingContext.try_get()
    return None if context is None else context.output_strides


def can_report() -> bool:
    """True if AOTAutograd asks for the strides of a forward graph's outputs."""
    return _reported() is not None


def report_saved(gm: GraphModule, images: dict[int, torch.Tensor]) -> None:
    """Tells AOTAutograd the strides of a forward graph's outputs: None where they are those that were traced."""
    reported = _reported()
    if reported is not None:
        reported.extend(images[at].stride() if at in images else None for at in range(len(_outputs(gm))))


def take_saved(gm: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Gives the inputs of a backward graph the strides with which the forward graph saves them."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, given in zip(placeholders, example_inputs, strict=True):
        traced = node.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(given, torch.Tensor) and traced.stride() != given.stride():
            node.meta["val"] = given
