"""A cut as a few lines of torch can say it, where they can."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.emit.staging import Sent, Staging
from parastrat.runtime.blocks import has_routed_parts, repeated_blocks
from parastrat.runtime.building import class_name
from parastrat.runtime.caches import without_caches
from parastrat.runtime.pipeline.build import cut_of
from parastrat.runtime.pipeline.example import Example, traced
from parastrat.runtime.pipeline.following import followed
from parastrat.runtime.pipeline.passing import (
    NotStagedError,
    Stages,
    alike_between,
    any_inside,
    in_several,
    received_by,
    stages_of,
)
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.runtime.tensors.buffers import has_changing_buffers
from parastrat.runtime.tensors.slots import Slot, slots_of
from parastrat.schedules import rank_of_stage
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.plan import Plan
    from parastrat.runtime.pipeline.cut import Cut

#: names by which forwards are given what they should predict
_TARGETS = ("labels", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What may be emitted, and what it must compute."""

    #: the simplest first
    stagings: tuple[Staging, ...]
    #: whole, on the meta device
    module: nn.Module
    setting: Setting
    #: a micro-batch: a tensor, or several in a tuple or by name
    inputs: Any
    #: of all computations
    numbers: dict[Hashable, int]
    #: of the model's output
    expected: tuple[Hashable, ...]


def staged(module: nn.Module, plan: Plan, example: Example) -> Draft:
    """Return how a module is cut into the plan's stages, as ``auto_parallelize`` cuts it.

    Args:
        module: whole, on the meta device; its caches are turned off.
        plan: with pp.
        example: what is known of a micro-batch.

    Raises:
        WrapError: it cannot be cut.
        NotStagedError: the cut cannot be said in a few lines.
    """
    caches = without_caches(module)
    setting = Setting(precision=plan.precision, autocast=not plan.shards_parameters)
    statistics = has_changing_buffers(module)
    if statistics:
        _check_statistics(plan)
    cut = cut_of(module, example, setting, plan)
    with traced(module, example, setting) as (batch, _):
        inputs, takes = _given(module, batch)
    with followed(module, inputs, setting) as whole:
        output, logits = _logits(whole.output)
        expected = whole.flow.numbers_of(logits)
    slots = slots_of(module)
    stages = stages_of(cut, [name for slot in slots if slot.is_parameter for name in slot.names])
    _check_parameters(module, slots, stages)
    alike = alike_between(cut, stages, inputs)
    received = _received(cut, stages, needed=alike is None)
    general = Staging(
        blocks=repeated_blocks(module).names,
        stages=stages,
        received=received or (),
        writes=any(shape.changed for event in cut.route.events for shape in event.tensors),
        takes=takes,
        output=output,
        drops=drops(module),
        caches=caches,
        statistics=statistics,
        tied=_tied(slots, cut, stages, plan),
        model=class_name(module),
        routed=has_routed_parts(module),
    )
    return Draft(
        stagings=(
            *([] if alike is None else [replace(general, alike=alike)]),
            *([] if received is None else [general]),
        ),
        module=module,
        setting=setting,
        inputs=inputs,
        numbers=whole.numbers,
        expected=expected,
    )


def _received(cut: Cut, stages: Stages, *, needed: bool) -> tuple[tuple[Sent, ...], ...] | None:
    """Return what each stage receives; None where that cannot be said, and need not be."""
    try:
        return received_by(cut, stages)
    except NotStagedError:
        if needed:
            raise
        return None


def _logits(output: Any) -> tuple[str, torch.Tensor]:
    """Return what the loss takes, and its name in the output."""
    if isinstance(output, torch.Tensor):
        return "", output
    logits = getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise NotStagedError(f"it returns {type(output).__name__}, neither a tensor nor with logits")
    return "logits", logits


def _given(module: nn.Module, batch: Any) -> tuple[Any, str]:
    """Return what the model takes, without what it should predict, and how it is called with that."""
    if isinstance(batch, dict):
        given = {name: value for name, value in batch.items() if name not in _TARGETS}
    else:
        given = dict(enumerate(batch if isinstance(batch, tuple | list) else (batch,)))
    values = list(given.values())
    if not all(isinstance(value, torch.Tensor) and value.ndim for value in values):
        raise NotStagedError(f"{type(module).__name__} takes something else than tensors")
    if len({len(value) for value in values}) > 1:
        raise NotStagedError(f"{type(module).__name__} takes tensors of other lengths than its samples")
    if len(values) == 1:
        return values[0], "inputs"
    return (given, "**inputs") if isinstance(batch, dict) else (tuple(values), "*inputs")


def _check_statistics(plan: Plan) -> None:
    """Refuse what would get running statistics wrong."""
    changed = "buffers of its checkpoint may change while it trains"
    if plan.recompute.repeats_modules:
        raise NotStagedError(f"{changed}, and recompute = {plan.recompute} would change them twice")
    if plan.precision is Precision.BF16:
        raise NotStagedError(f"{changed}, which needs fp32 weights: plan with bf16-mixed")


def _check_parameters(module: nn.Module, slots: list[Slot], stages: Stages) -> None:
    """Refuse weights that no stage names, and statistics of what several stages run."""
    every = tuple(name for stage in stages for name in stage)
    for slot in slots:
        if slot.is_parameter and not any(any_inside(slot.names, part) for part in every):
            raise NotStagedError(f"{slot.name} stands beside the parts that stages run")
    for part in in_several(stages):
        if has_changing_buffers(module.get_submodule(part)):
            raise NotStagedError(f"{part}, whose buffers may change, runs in several stages")


def _tied(slots: list[Slot], cut: Cut, stages: Stages, plan: Plan) -> tuple[tuple[int, str], ...]:
    """Return the weight that several ranks hold, by its name in each stage."""
    found = []
    for slot in slots:
        holders = cut.owners.get(slot.name, ())
        ranks = {rank_of_stage(plan, stage) for stage in holders}
        if slot.is_parameter and len(ranks) > 1:
            if len(ranks) < len(holders):
                raise NotStagedError(f"{slot.name} is in several stages of one rank, and of others")
            found.append(tuple((stage, _own_name(slot, stage, stages[stage])) for stage in holders))
    if len(found) > 1:
        raise NotStagedError(f"{len(found)} weights are in several stages, not one")
    return found[0] if found else ()


def _own_name(slot: Slot, stage: int, parts: tuple[str, ...]) -> str:
    own = [name for name in slot.names if any(any_inside([name], part) for part in parts)]
    if not own:
        raise NotStagedError(f"stage {stage} reads {slot.name}, outside of its parts")
    return own[0]
