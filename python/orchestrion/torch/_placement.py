"""Which device a graph computes on, and which of its calls the host needs the results of.

A graph for a GPU may have tensors of the CPU: numbers and small tensors that it copies to the GPU, or makes for it. Compiled parts make
these where they are used; inputs among them are sent when they change. Calls whose results leave the graph on the CPU, or that eager
calls use there, are left to eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.fx import GraphModule, Node

from orchestrion.torch._document import DocumentError

CPU = torch.device("cpu")


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The tensors among the results of a node."""
    value = node.meta.get("val")
    for item in value if isinstance(value, (tuple, list)) else [value]:
        if isinstance(item, torch.Tensor):
            yield item


def memory_of(node: Node) -> set[int]:
    """What memory the results of a node have in the trace: views of one tensor share theirs."""
    return {tensor.untyped_storage()._cdata for tensor in tensors_of(node)}


def graph_device(gm: GraphModule) -> torch.device:
    """The device that a graph computes on: the CPU, or the GPU of its tensors.

    :raises DocumentError: they are on several GPUs, or on another kind of device.
    """
    devices = {tensor.device for node in gm.graph.nodes for tensor in tensors_of(node)} - {CPU}
    if not devices:
        return CPU
    names = ", ".join(sorted(map(str, devices)))
    if any(device.type != "cuda" for device in devices):
        raise DocumentError(f"tensors are on {names}; the backend takes graphs of the CPU and of NVIDIA GPUs")
    if len(devices) > 1:
        raise DocumentError(f"tensors are on {names}; the backend takes graphs of one GPU")
    return devices.pop()


def host_calls(gm: GraphModule, is_taken: Callable[[Node], bool]) -> frozenset[Node]:
    """Calls of a graph for a GPU whose results on the CPU are needed there: by the graph's outputs, by calls that are not taken, or by
    other calls of this kind."""
    needed: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        if node.op == "call_function" and _is_on_cpu(node) and any(_needs(user, needed, is_taken) for user in node.users):
            needed.add(node)
        # What is copied into an input of the CPU is needed there.
        elif node.target is torch.ops.aten.copy_.default and _is_on_cpu(node):
            needed.add(node)
    return frozenset(needed)


def _needs(user: Node, needed: set[Node], is_taken: Callable[[Node], bool]) -> bool:
    return user.op != "call_function" or user in needed or not is_taken(user)


def _is_on_cpu(node: Node) -> bool:
    tensors = list(tensors_of(node))
    return bool(tensors) and all(tensor.device == CPU for tensor in tensors)
