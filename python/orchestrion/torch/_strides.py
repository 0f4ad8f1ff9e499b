"""How the elements of tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The dimensions, outermost first, in whose order elements lie in memory one after the other; None if they do in no order."""
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != expected:
            return None
        expected *= shape[dim]
    return order


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The order of dimensions in which a tensor lies row-major without gaps; None if it lies so already, or in no order."""
    order = None if 0 in shape else memory_order(shape, strides)
    return None if order == list(range(len(shape))) else order


def is_dense(tensor: torch.Tensor) -> bool:
    """True if a tensor has elements, and they lie one after the other in some order of the dimensions."""
    return tensor.numel() > 0 and memory_order(tensor.shape, tensor.stride()) is not None
