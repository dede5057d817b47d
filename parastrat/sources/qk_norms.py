"""Norms on queries and keys, before attention takes them: their parameters, and what they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.sources.architecture import Architecture, Norm, QkNorm
from parastrat.sources.layers import FP32_BYTES

if TYPE_CHECKING:
    from parastrat.sources.layers import Setting


def qk_norm_parameters(a: Architecture) -> int:
    """Return the parameters of one layer's norms on queries and keys."""
    if a.qk_norm is None:
        return 0
    widths = 2 if a.qk_norm is QkNorm.HEAD else a.heads + a.kv_heads
    return a.norm.weights * widths * a.head_dim


def qk_norm_bytes(setting: Setting, keys: int) -> float:
    """Return what these norms keep of one sample's tokens and keys, in eager mode.

    A composite one reads a copy in fp32, and keeps what its weight multiplies if it has one. A layer norm
    keeps what it reads, which may be a part of a projection that stays anyway, and two statistics a row.
    """
    a, b, tokens = setting.architecture, setting.element, setting.tokens
    if a.qk_norm is None or not setting.kernels.eager:
        return 0.0
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    elements = q * tokens + kv * keys
    rows = tokens + keys if a.qk_norm is QkNorm.WIDTH else a.heads * tokens + a.kv_heads * keys
    if a.norm is Norm.LAYER:
        return (0 if a.values_in_projection else b * elements) + 2 * FP32_BYTES * rows
    normed = FP32_BYTES if a.norm is Norm.RMS_FP32 else b * min(a.norm.weights, 1)
    return (FP32_BYTES + normed) * elements + FP32_BYTES * rows
