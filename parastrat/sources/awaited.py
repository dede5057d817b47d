"""Gradients for which those of weights wait where backward is split in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import Split
from parastrat.saved import Saved
from parastrat.sources.layers import FP32_BYTES

if TYPE_CHECKING:
    from parastrat.sources.layers import Part, Setting


def awaited(setting: Setting, part: Part, norms: int) -> Saved:
    """Return the gradients of what products and norms give, which the gradients of weights are made of."""
    sizes = {Split.TENSOR: 0.0, Split.REPLICATED: 0.0, Split.EXPERT: 0.0}
    for each in part.operators:
        if each.n and each.weighted:
            divided = each.split if each.split_side == "n" else Split.REPLICATED
            sizes[divided] += setting.element * each.m * each.n * each.count
    a = setting.architecture
    if a.qk_norm is not None and a.norm.weights:
        sizes[Split.TENSOR] += awaited_norm(setting) * setting.tokens * (a.heads + a.kv_heads) * a.head_dim
    if a.sinks and not setting.kernels.fused:
        # each head's sink stands beside its scores
        of_scores = FP32_BYTES if setting.autocast else setting.element
        sizes[Split.TENSOR] += of_scores * a.heads * setting.tokens**2
    return Saved(
        tensor=sizes[Split.TENSOR],
        replicated=sizes[Split.REPLICATED],
        expert=sizes[Split.EXPERT],
        sequence=norms * awaited_norm(setting) * setting.tokens * a.hidden,
    )


def awaited_norm(setting: Setting) -> int:
    """Return what the gradient that a norm's weight waits for takes of each element, bytes.

    It has the format in which the weight multiplies.
    """
    norm = setting.architecture.norm
    if not norm.weights:
        return 0
    return FP32_BYTES if setting.kernels.eager and norm.multiplies_in_fp32 else setting.stream
