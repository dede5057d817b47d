"""Gradients for which those of weights wait where backward is split in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import Split
from parastrat.saved import Saved
from parastrat.sources.architecture import Norm
from parastrat.sources.layers import FP32_BYTES, OF_COMPOSITE, is_composite

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


def retained(setting: Setting) -> Saved:
    """Return what exists beside all that a layer keeps and awaits, as its first norm runs backward.

    Where a backward of inputs alone leaves the graph as it is, nothing of the layer is gone by then
    (``retain_graph`` in torch/distributed/pipelining/_backward.py). The gradient that its weight waits for
    may be one of the tensors that a norm in several kernels makes; beside these is that of the residual.
    """
    a = setting.architecture
    if not (is_composite(setting) or (setting.kernels.eager and a.norm is Norm.BARE)):
        return Saved()
    awaits = FP32_BYTES if a.norm.weights and a.norm.multiplies_in_fp32 else 0
    return Saved(sequence=(OF_COMPOSITE - awaits + setting.stream) * setting.tokens * a.hidden)
