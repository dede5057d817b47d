"""How models are usually trained, where nobody says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import Family
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.model import ModelSource


def default_optimizer(source: ModelSource) -> Optimizer:
    """Return the published training's optimizer, else AdamW; for convolutions SGD with momentum."""
    if source.defaults.optimizer is not None:
        return source.defaults.optimizer
    return Optimizer.SGD_MOMENTUM if source.family is Family.CONVOLUTIONAL else Optimizer.ADAMW
