"""A decoder of a few numbers, whose closed form is worked out by hand."""

from __future__ import annotations

from parastrat.model import Family
from parastrat.sources.architecture import Architecture, Norm

SMALL = Architecture(
    name="small",
    family=Family.DECODER,
    layers=3,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=3,
    ffn=20,
    vocab=100,
    norm=Norm.RMS,
    gated=True,
    tied=False,
)
