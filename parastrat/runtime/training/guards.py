"""What stays with a wrapped model, so that a script that trains it as one does trains it as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from parastrat.runtime.pipeline.applied import apply_to_all
from parastrat.runtime.pipeline.mixing import Mixing, tell_of_averages
from parastrat.runtime.training.alike import Alike
from parastrat.runtime.training.changed_whole import change_whole
from parastrat.runtime.training.draws import draw_whole
from parastrat.runtime.training.gradients import clip_alike
from parastrat.runtime.training.loading import tell_of_whole
from parastrat.runtime.training.once import refuse_again
from parastrat.runtime.training.order import gather_alike
from parastrat.runtime.training.plain_loop import guard_plain_loop
from parastrat.runtime.training.refused_by_torch import tell_of_refusals
from parastrat.runtime.training.replicas import Replicas
from parastrat.runtime.training.saving import tell_of_parts
from parastrat.runtime.training.scaled import scale_alike
from parastrat.runtime.training.unused import Unused
from parastrat.runtime.training.whole_values import read_whole
from parastrat.runtime.wrapped import remember

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


def leave_unused(model: nn.Module, wrapping: Wrapping) -> None:
    """Leave what no rank used without gradient, where zeros are reduced; first weights are there."""
    if not wrapping.reduce_unused:
        return
    wrapping.unused = Unused(wrapping.reduce_unused, wrapping.mesh)
    if wrapping.pipeline is None:
        wrapping.unused.follow(model, wrapping)
    wrapping.calls.append("# what no rank used in a backward is left without gradient, as on one device")


def compare_ranks(model: nn.Module, wrapping: Wrapping) -> None:
    """Compare a wrapped model's ranks from now on; those of dry runs are not there."""
    mesh = wrapping.mesh
    if mesh.stage_group is None or dist.get_backend() == "fake":
        return
    replicas = wrapping.replicas = Replicas(model, wrapping)
    gather_alike(model, wrapping)
    if mesh.sample is not None:
        passing = None if mesh.cp is None else wrapping.pipeline
        replicas.alike = Alike(model, wrapping, mesh.sample, passing)
