"""What stays with a wrapped model, so that a script that trains it as one does trains it as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.runtime.pipeline.applied import apply_to_all
from parastrat.runtime.pipeline.mixing import Mixing, tell_of_averages
from parastrat.runtime.training.changed_whole import change_whole
from parastrat.runtime.training.draws import draw_whole
from parastrat.runtime.training.gradients import clip_alike
from parastrat.runtime.training.loading import tell_of_whole
from parastrat.runtime.training.once import refuse_again
from parastrat.runtime.training.plain_loop import guard_plain_loop
from parastrat.runtime.training.refused_by_torch import tell_of_refusals
from parastrat.runtime.training.replicas import compare_ranks
from parastrat.runtime.training.saving import tell_of_parts
from parastrat.runtime.training.scaled import scale_alike
from parastrat.runtime.training.unused import leave_unused
from parastrat.runtime.training.whole_values import read_whole
from parastrat.runtime.wrapping import remember

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapping import Wrapping


def guard(model: nn.Module, wrapping: Wrapping) -> None:
    """Note how a model was wrapped, and watch what a script does with it."""
    leave_unused(model, wrapping)
    guard_plain_loop(model, wrapping)
    remember(model, wrapping)
    compare_ranks(model, wrapping)
    scale_alike(model, wrapping)
    clip_alike(model, wrapping)
    read_whole(wrapping)
    tell_of_refusals(wrapping)
    draw_whole(wrapping)
    change_whole(wrapping)
    tell_of_parts(model, wrapping)
    tell_of_whole(model, wrapping)
    refuse_again()
    if wrapping.pipeline is not None:
        wrapping.mixing = Mixing(model)
        tell_of_averages(wrapping.pipeline)
        apply_to_all(wrapping.pipeline.absent, wrapping.device)
        wrapping.pipeline.settle(model)  # behind all that hooks the model
