"""Weights of several products that tp divides product by product, and not as they are stored."""

from __future__ import annotations

from typing import NamedTuple

from parastrat.saved import Saved
from parastrat.sources.layers import Part, Setting


class Stretches(NamedTuple):
    """What a layer's fused weights come to, as the fields of ``Block`` that have these names."""

    stretched: int = 0
    regathered: int = 0
    behind: Saved = Saved()
    unshared: int = 0


def stretches(setting: Setting, attended: Part) -> Stretches:
    """Return what a layer's fused weights come to, of which each rank takes its stretches.

    GPT-2's are stored by input features: their columns are gathered as they come, and put together, and
    so is their gradient, when what attention kept is gone. Phi-3's are stored by outputs: their
    gradient is one tensor. That of the gate and the product beside it is the larger; as it comes the
    stretches of the weight are gone, and the rank's share of the gradient is not there yet.
    """
    a = setting.architecture
    if not a.fused_qkv or setting.kernels.fused:
        return Stretches()
    fused = a.hidden * (a.heads + 2 * a.kv_heads) * a.head_dim
    if a.positions:
        output = Saved(tensor=setting.element * setting.tokens * a.heads * a.head_dim)
        return Stretches(fused, 2 * fused, attended.saved + output)
    if a.values_in_projection and a.gated:
        gated = 2 * a.hidden * a.ffn
        return Stretches(fused + gated, gated, Saved(), 2 * gated)
    return Stretches()
