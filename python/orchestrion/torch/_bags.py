"""Bags of embeddings, as calls that are compiled.

PyTorch's kernel takes bags of any lengths, and its gradient what that kernel saved. Bags that are rows of a matrix of indices have one length:
they are a lookup and a sum or mean, forward and backward. So they are replaced before gradients are traced.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.fx import GraphModule, Node

_SIGNATURE = inspect.signature(torch.nn.functional.embedding_bag)


def replace_regular_bags(gm: GraphModule) -> None:
    """Replaces each bag of embeddings that can be a lookup and a sum or mean, in a graph as Dynamo traced it."""
    bags = [node for node in gm.graph.nodes if node.target is torch.nn.functional.embedding_bag]
    found = [(node, known) for node in bags if (known := _regular(node)) is not None]
    for node, known in found:
        with gm.graph.inserting_before(node):
            rows = gm.graph.call_function(torch.nn.functional.embedding, (known["input"], known["weight"]))
            if known["per_sample_weights"] is not None:
                weights = gm.graph.call_function(torch.unsqueeze, (known["per_sample_weights"], -1))
                rows = gm.graph.call_function(torch.mul, (rows, weights))
            combine = torch.sum if known["mode"] == "sum" else torch.mean
            combined = gm.graph.call_function(combine, (rows, 1))
        node.replace_all_uses_with(combined)
        gm.graph.erase_node(node)
    if found:
        gm.recompile()


def _regular(node: Node) -> dict[str, Any] | None:
    """The arguments of a call whose bags have one length and no element that is left out."""
    known = _SIGNATURE.bind(*node.args, **node.kwargs)
    known.apply_defaults()
    given = known.arguments
    indices = given["input"].meta.get("example_value") if isinstance(given["input"], Node) else None
    # The mean of no rows is zero there, and not a number of `torch.mean`.
    holds_rows = isinstance(indices, torch.Tensor) and indices.dim() == 2 and _is_positive(indices.shape[1])
    is_plain = given["offsets"] is None and given["max_norm"] is None and given["padding_idx"] is None
    of_other_gradient = given["scale_grad_by_freq"] or given["sparse"]
    suits = holds_rows and is_plain and not of_other_gradient and given["mode"] in ("sum", "mean")
    return given if suits else None


def _is_positive(size: int | torch.SymInt) -> bool:
    """Whether a size is known, and not zero."""
    return isinstance(size, int) and size > 0
