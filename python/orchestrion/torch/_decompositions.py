"""Calls that PyTorch does not decompose, as the calls that they consist of.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` are one call each where nothing needs a gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from orchestrion.torch._strides import memory_order


def _heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """`[batch, length, heads * width]` as `[batch, heads, length, width]`."""
    return tensor.view(*tensor.shape[:-1], heads, tensor.shape[-1] // heads).transpose(1, 2)


def _hidden(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """What the mask hides of `[batch, heads, queries, keys]`, where anything but zero does: 0 is one of queries and keys, 1 of a batch's keys."""
    hidden = mask.to(torch.bool)
    return hidden[:, None, None, :] if mask_type == 1 else hidden


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    if need_weights or any(tensor.is_nested for tensor in (query, key, value)):
        return NotImplemented
    if query is key and key is value:
        parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, dim=-1)
    else:
        weights = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
        parts = tuple(F.linear(tensor, weight, bias) for tensor, weight, bias in weights)
    q, k, v = (_heads(part, num_head) for part in parts)
    # A row of which everything is hidden is 0; PyTorch's kernels for CPUs give NaN.
    shown = None if mask is None else _hidden(mask, mask_type).logical_not()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
    return F.linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias), None


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if src.is_nested:
        return NotImplemented

    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, is_here: bool) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps) if is_here else x

    x = normed(src, norm_weight_1, norm_bias_1, norm_first)
    attended = _attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights=False, mask_type=mask_type
    )[0]
    x = normed(src + attended, norm_weight_1, norm_bias_1, not norm_first)
    inner = F.linear(normed(x, norm_weight_2, norm_bias_2, norm_first), ffn_weight_1, ffn_bias_1)
    inner = F.gelu(inner) if use_gelu else F.relu(inner)
    return normed(x + F.linear(inner, ffn_weight_2, ffn_bias_2), norm_weight_2, norm_bias_2, not norm_first)


def _weight_norm_backward(
    grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `v` and `g` in `v * (g / norms)`, of which each slice along `dim` has a norm."""
    others = [axis for axis in range(saved_v.dim()) if axis != dim]
    along = (grad_w * saved_v).sum(others, keepdim=True) / saved_norms
    of_v = saved_g / saved_norms * (grad_w - saved_v * (along / saved_norms))
    return of_v.to(saved_v.dtype), along.to(saved_g.dtype)


def _window(x: torch.Tensor, output_size: Any) -> list[int] | None:
    """The size of all windows of an adaptive pooling, if they are equal and do not overlap."""
    sizes = list(zip(x.shape[-2:], output_size))
    if x.dim() not in (3, 4) or any(not isinstance(size, int) or out == 0 or size == 0 or size % out for size, out in sizes):
        return None
    return [size // out for size, out in sizes]


def _adaptive_max_pool2d(x: torch.Tensor, output_size: Any) -> Any:
    window = _window(x, output_size)
    return NotImplemented if window is None else torch.ops.aten.max_pool2d_with_indices.default(x, window, window)


def _adaptive_max_pool2d_backward(grad_output: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> Any:
    window = _window(x, grad_output.shape[-2:])
    if window is None:
        return NotImplemented
    return torch.ops.aten.max_pool2d_with_indices_backward.default(grad_output, x, window, window, [0, 0], [1, 1], False, indices)


def _in_f32(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """A function of two tensors of floats that computes in f32 at least; other tensors stay as they are."""

    def called(a: torch.Tensor, b: torch.Tensor) -> Any:
        if not (a.is_floating_point() and b.is_floating_point()):
            return NotImplemented
        dtype = torch.promote_types(a.dtype, b.dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return function(a.to(wide), b.to(wide)).to(dtype)

    return called


def _is_negative(tensor: torch.Tensor) -> torch.Tensor:
    # The reciprocal shows the sign of a zero.
    return (tensor < 0) | (tensor.reciprocal() < 0)


def _atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The arctangent of an angle in the first eighth of the circle, turned to where the point is."""
    smaller, larger = torch.minimum(y.abs(), x.abs()), torch.maximum(y.abs(), x.abs())
    angle = torch.atan(torch.where(larger == 0, larger, torch.where(smaller == math.inf, 1.0, smaller / larger)))
    angle = torch.where(y.abs() > x.abs(), math.pi / 2 - angle, angle)
    angle = torch.where(_is_negative(x), math.pi - angle, angle)
    return torch.where(_is_negative(y), -angle, angle)


def _copysign(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(_is_negative(b), -a.abs(), a.abs())


def _fmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.maximum(a, b)))


def _fmin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.minimum(a, b)))


def _exp2(x: torch.Tensor) -> Any:
    return torch.pow(2.0, x) if x.is_floating_point() else NotImplemented


def _new_empty_strided(
    x: torch.Tensor, size: Any, stride: Any, dtype: torch.dtype | None = None, layout: object = None, device: Any = None, pin_memory: object = None
) -> Any:
    """Memory for a gradient: of one that was changed in place, autograd makes a copy with strides."""
    order = memory_order(size, stride)
    if order is None:
        return NotImplemented
    made = torch.empty([size[dim] for dim in order], dtype=dtype or x.dtype, device=device or x.device)
    return made.permute([order.index(dim) for dim in range(len(order))])


def by_overload(found: dict[str, Any]) -> dict[Any, Any]:
    """Functions by the calls' overloads in place of their names; those that this release of PyTorch does not have are left out."""
    made = {}
    for name, function in found.items():
        packet, overload = name.split(".")
        if hasattr(torch.ops.aten, packet):
            made[getattr(getattr(torch.ops.aten, packet), overload)] = function
    return made


@functools.cache
def decompositions() -> dict[Any, Any]:
    """What calls become, by overload."""
    return by_overload({
        "_transformer_encoder_layer_fwd.default": _encoder_layer,
        "_native_multi_head_attention.default": _attention,
        "_weight_norm_interface_backward.default": _weight_norm_backward,
        "adaptive_max_pool2d.default": _adaptive_max_pool2d,
        "adaptive_max_pool2d_backward.default": _adaptive_max_pool2d_backward,
        "atan2.default": _in_f32(_atan2),
        "copysign.Tensor": _in_f32(_copysign),
        "fmax.default": _in_f32(_fmax),
        "fmin.default": _in_f32(_fmin),
        "exp2.default": _exp2,
        "new_empty_strided.default": _new_empty_strided,
    })
