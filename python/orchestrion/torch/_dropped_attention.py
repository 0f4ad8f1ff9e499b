"""Attention with dropout, as calls that are compiled.

PyTorch's kernels for it draw their own numbers and save where these begin, from which no other kernel draws them again. So such a call becomes
products, a softmax and a dropout of the probabilities, and the mask of the dropout is what it saves as the state of its generator: its gradient,
which gets that state, has the same mask.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from orchestrion.torch._decompositions import by_overload
from orchestrion.torch._support import MAX_SCORES


def _is_ours(
    query: torch.Tensor, key: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> bool:
    """Whether a call is made so; others stay as they are. PyTorch's kernels do not store scores: they take those with many."""
    sizes = (*query.shape, *key.shape)
    if dropout_p <= 0.0 or dropout_p >= 1.0 or not all(isinstance(size, int) for size in sizes):
        return False
    if scale is not None and scale < 0.0:
        return False
    is_square = query.shape[2] == key.shape[2]
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return 0 < scores <= MAX_SCORES and query.shape[1] == key.shape[1] and (is_square or not is_causal)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """`[batch, heads, queries, keys]` in f32."""
    # Each is multiplied by the root of the scale, so that products of f16 stay in range.
    root = math.sqrt(_scale(query, scale))
    scores = ((query * root) @ (key * root).transpose(-1, -2)).float()
    if bias is not None:
        scores = scores + bias.float()
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result, logsumexp of each row of scores, mask."""
    scores = _scores(query, key, bias, is_causal, scale)
    logsumexp = torch.logsumexp(scores, -1)
    # A row whose keys are all masked has probabilities of 0, as in PyTorch's kernels.
    logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, 0.0)
    dropped, mask = torch.ops.aten.native_dropout.default(torch.exp(scores - logsumexp.unsqueeze(-1)), dropout_p, True)
    # In memory heads follow queries, as PyTorch's kernels have it: programs show the result so.
    out = (dropped.to(value.dtype) @ value).transpose(1, 2).contiguous().transpose(1, 2)
    return out, logsumexp, mask


def _backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    mask: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value and scores."""
    probabilities = torch.exp(_scores(query, key, bias, is_causal, scale) - logsumexp.unsqueeze(-1))
    kept = mask.to(torch.float32) * (1.0 / (1.0 - dropout_p))
    of_value = (probabilities * kept).to(value.dtype).transpose(-1, -2) @ gradient
    of_kept = (gradient @ value.transpose(-1, -2)).float() * kept
    along = (gradient.float() * out.float()).sum(-1, keepdim=True)
    of_scores = probabilities * (of_kept - along)
    scaled = (of_scores * _scale(query, scale)).to(query.dtype)
    return scaled @ key, scaled.transpose(-1, -2) @ query, of_value, of_scores


def _efficient(
    query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None,
) -> Any:
    if not _is_ours(query, key, dropout_p, is_causal, scale):
        return NotImplemented
    out, logsumexp, mask = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return out, logsumexp, mask, torch.empty((), dtype=torch.int64, device=query.device)


def _efficient_backward(
    grad_out_: Any, query: Any, key: Any, value: Any, attn_bias: Any, out: Any, logsumexp: Any, philox_seed: Any, philox_offset: Any,
    dropout_p: float, grad_input_mask: Any, is_causal: bool = False, *, scale: float | None = None,
) -> Any:
    if philox_seed.dtype != torch.bool:
        return NotImplemented
    found = _backward(
        grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, dropout_p, is_causal, scale
    )
    of_bias = None
    if attn_bias is not None and grad_input_mask[3]:
        of_bias = found[3].sum_to_size(attn_bias.shape).to(attn_bias.dtype)
    return tuple(gradient if wanted else None for gradient, wanted in zip((*found[:3], of_bias), grad_input_mask))


def _flash(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> Any:
    if return_debug_mask or not _is_ours(query, key, dropout_p, is_causal, scale):
        return NotImplemented
    out, logsumexp, mask = _forward(query, key, value, None, dropout_p, is_causal, scale)
    none = torch.empty(0, dtype=query.dtype, device=query.device)
    return out, logsumexp, None, None, query.shape[2], key.shape[2], mask, none.to(torch.int64), none


def _flash_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, philox_seed: Any, philox_offset: Any, *, scale: float | None = None,
) -> Any:
    if philox_seed.dtype != torch.bool:
        return NotImplemented
    return _backward(grad_out, query, key, value, None, out, logsumexp, philox_seed, dropout_p, is_causal, scale)[:3]


@functools.cache
def decompositions() -> dict[Any, Any]:
    """What attention with dropout becomes, by overload."""
    return by_overload({
        "_scaled_dot_product_efficient_attention.default": _efficient,
        "_scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
        "_scaled_dot_product_flash_attention.default": _flash,
        "_scaled_dot_product_flash_attention_backward.default": _flash_backward,
    })
