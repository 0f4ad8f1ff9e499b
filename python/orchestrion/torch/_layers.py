"""Layers that PyTorch has as one call for inference, as the calls that they consist of.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` make them where nothing needs a gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional as F


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


@functools.cache
def decompositions() -> dict[Any, Any]:
    """What these layers become, by overload."""
    found = {"_transformer_encoder_layer_fwd": _encoder_layer, "_native_multi_head_attention": _attention}
    packets = {getattr(torch.ops.aten, name, None): function for name, function in found.items()}
    return {packet.default: function for packet, function in packets.items() if packet is not None}
