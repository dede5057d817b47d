"""What torch's own tools and a script's see of a wrapped model is the whole of it, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.runtime.training.gradients import clip_alike
from parastrat.runtime.training.scaled import scale_alike
from parastrat.runtime.training.whole_values import read_whole

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapping import Wrapping


def see_whole(model: nn.Module, wrapping: Wrapping) -> None:
    """Let scalers, norms of gradients and values that are read be those of the whole wrapped model."""
    scale_alike(model, wrapping)
    clip_alike(model, wrapping)
    read_whole(wrapping)
