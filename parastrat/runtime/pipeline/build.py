"""From a whole module to this rank's stages: traced, cut, proven, and rid of what others hold."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.blocks import Blocks
from parastrat.runtime.communication.agreement import together
from parastrat.runtime.pipeline.cut import Cut, Span, owners_of, present_parts, spans_of
from parastrat.runtime.pipeline.example import Example, traced
from parastrat.runtime.pipeline.pipelined import Pipeline
from parastrat.runtime.pipeline.positions import beside_stages
from parastrat.runtime.pipeline.proof import prove
from parastrat.runtime.pipeline.prune import Absent, from_first_stage
from parastrat.runtime.pipeline.route import Route, parts_of
from parastrat.runtime.pipeline.schedule import Run
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.pipeline.ties import equalise, tied
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import divided_between
from parastrat.runtime.tensor_parallel.sequence import unstreamed
from parastrat.runtime.tensors.slots import left_behind, slots_of, without_data
from parastrat.schedules import SPLIT, rank_of_stage, schedule_of, stages_of_rank

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.plan import Plan
    from parastrat.runtime.starting import Start
    from parastrat.runtime.tensor_parallel.layout import Layout
    from parastrat.runtime.wrapping import Wrapping

#: tensors over one cut with which schedules with split backwards have been seen to work
_MOST_CROSSING = 2


def cut_module(module: nn.Module, wrapping: Wrapping, pp: DeviceMesh, start: Start) -> Pipeline:
    """Cut a module in place: afterwards it holds what this rank's stages need.

    Args:
        module: whole, on any device; or on the meta device.
        wrapping: with the plan.
        pp: this rank's pipeline.
        start: with a micro-batch, or what is known of one.

    Raises:
        WrapError: if it cannot be cut into the plan's stages, or they would compute something else.
    """
    plan = wrapping.plan
    setting = Setting(precision=plan.precision, autocast=not plan.shards_parameters)
    skeleton = without_data(module).train()
    example = Example(inputs=start.sample_inputs, sequence_length=start.sequence_length)
    cut = together(lambda: cut_of(skeleton, example, setting, plan, wrapping.layout))
    blocks = wrapping.blocks.names
    divided = _divided_at_cuts(cut, blocks)
    if wrapping.layout is not None and wrapping.layout.sequence and divided:
        wrapping.layout = unstreamed(wrapping.layout, divided)
    if wrapping.division is not None:
        division = wrapping.division
        wrapping.division = together(lambda: beside_stages(division, cut))
    from_first_stage(module, wrapping.device, pp.get_group())
    own = stages_of_rank(plan, pp.get_local_rank())
    names = tuple(parts_of(module))
    absent = _absent(module, names, cut, own)
    wrapping.blocks = _only(wrapping.blocks, absent_parts(names, cut, own))
    for span in cut.spans:
        wrapping.calls.append(_said(cut, span, rank_of_stage(plan, span.stage)))
    return Pipeline(
        wrapping=wrapping,
        pp=pp,
        setting=setting,
        skeleton=skeleton,
        cut=cut,
        absent=absent,
        parts=names,
        extent=Extent(names=blocks, runs=_runs(cut, own, blocks)),
        modules=dict.fromkeys(own, module),
    )


def _runs(cut: Cut, stages: tuple[int, ...], blocks: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the blocks of each of these stages, in the order in which they run."""
    spans = [cut.spans[stage] for stage in stages]
    runs = [
        tuple(event.part for event in cut.route.events[span.begin : span.end] if event.part in blocks)
        for span in spans
    ]
    return tuple(run for run in runs if run)


def _divided_at_cuts(cut: Cut, blocks: tuple[str, ...]) -> str:
    """Return why stages cannot send activations: only what leaves a stage's last block is whole."""
    events = cut.route.events
    inside = [index for index, event in enumerate(events) if event.part in blocks]
    if len({events[index].part for index in inside}) < len(inside):
        return "blocks that run several times are in stages"
    ends = {max(own) for span in cut.spans if (own := [index for index in inside if index in span])}
    for span in cut.spans[1:]:
        for source in cut.route.crossing(span.begin):
            if source.event in inside and (source.event not in ends or source.index):
                name = events[source.event].part
                return f"stage {span.stage} reads what {name} returns, which is divided there"
    return ""


def cut_of(
    skeleton: nn.Module, example: Example, setting: Setting, plan: Plan, layout: Layout | None = None
) -> Cut:
    """Return where a module on the meta device is cut into the plan's stages, proven.

    Raises:
        WrapError: if it cannot be cut, or the stages would compute something else.
    """
    with traced(skeleton, example, setting) as (_, whole):
        route = whole.route
        joined = () if layout is None else tuple(map(divided_between, layout.groups))
        spans = spans_of(skeleton, route, plan.mesh.pp * plan.virtual_stages, joined)
        owners = owners_of(route, spans, slots_of(skeleton))
        _check_crossing(route, spans, plan)
        _check_ties(owners, plan)
        prove(whole, spans, owners)
    return Cut(route=route, spans=spans, owners=owners)


def _check_crossing(route: Route, spans: tuple[Span, ...], plan: Plan) -> None:
    """Refuse several tensors over a cut under schedules with split backwards: T5 under ZBV did not end."""
    most = max(len(route.crossing(span.begin)) for span in spans[1:])
    if schedule_of(plan) in SPLIT and most > _MOST_CROSSING:
        raise WrapError(
            f"{most} tensors pass from stage to stage; under {schedule_of(plan).value} more than "
            f"{_MOST_CROSSING} are not known to work",
            hint="plan pp_schedule = Interleaved1F1B, or 1F1B with virtual_stages = 1",
        )


def _check_ties(owners: dict[str, tuple[int, ...]], plan: Plan) -> None:
    """Refuse what FSDP2 cannot shard: a parameter in two stages of a rank, each with a root of its own."""
    if not plan.shards_parameters:
        return
    for name, stages in owners.items():
        if len({rank_of_stage(plan, stage) for stage in stages}) < len(stages):
            raise WrapError(
                f"{name} is in several stages of one rank under {schedule_of(plan).value}, and FSDP2 would "
                "shard it twice",
                hint="plan pp_schedule = Interleaved1F1B, which has the first and the last stage on two "
                "ranks, or replicas: shard = none over dp_replicate",
            )


def absent_parts(names: tuple[str, ...], cut: Cut, stages: tuple[int, ...]) -> frozenset[str]:
    """Return the parts that run on none of these stages."""
    present = frozenset[str]().union(*(present_parts(cut.route, cut.spans[stage]) for stage in stages))
    called = {name for name, _ in cut.route.calls}
    return frozenset(name for name in names if name in called and name not in present)


def _absent(module: nn.Module, names: tuple[str, ...], cut: Cut, stages: tuple[int, ...]) -> Absent:
    kept = frozenset(name for name, held in cut.owners.items() if not set(held).isdisjoint(stages))
    return Absent(module, kept, absent_parts(names, cut, stages))


def _only(blocks: Blocks, absent: frozenset[str]) -> Blocks:
    kept = [
        (name, block)
        for name, block in zip(blocks.names, blocks.modules, strict=True)
        if name not in absent
    ]
    return replace(blocks, names=tuple(name for name, _ in kept), modules=tuple(block for _, block in kept))


def _said(cut: Cut, span: Span, rank: int) -> str:
    events = cut.route.events
    return (
        f"# stage {span.stage} on pp rank {rank}: {events[span.begin].part} to {events[span.end - 1].part}"
    )


def split(pipeline: Pipeline, module: nn.Module) -> None:
    """Give each stage of this rank a module of its own, where there are several.

    They share the parts and all tensors with ``module``, which stays the one that the caller trains, saves
    and loads. What is around the parts is copied, since a stage's FSDP2 root must not see other stages.
    """
    if len(pipeline.modules) == 1:
        return
    parts = {name: module.get_submodule(name) for name in pipeline.parts}
    with pipeline.absent.back():
        for stage in pipeline.modules:
            absent = absent_parts(pipeline.parts, pipeline.cut, (stage,)) | _idle_elsewhere(pipeline, stage)
            memo: dict[int, Any] = {id(tensor): tensor for tensor in left_behind(module)}
            memo |= {id(slot.tensor): slot.tensor for slot in slots_of(module)}
            memo |= {id(part): part for name, part in parts.items() if name not in absent}
            pipeline.modules[stage] = copy.deepcopy(module, memo)
    for stage, chunk in pipeline.modules.items():
        pipeline.others[stage] = _absent(chunk, pipeline.parts, pipeline.cut, (stage,))


def _idle_elsewhere(pipeline: Pipeline, stage: int) -> frozenset[str]:
    """Return the parts that nothing calls and other stages hold: shared, they would lose their weights."""
    called = {name for name, _ in pipeline.cut.route.calls}
    holders = {
        name: [stages for held, stages in pipeline.cut.owners.items() if held.startswith(f"{name}.")]
        for name in pipeline.parts
        if name not in called
    }
    return frozenset(
        name for name, held in holders.items() if held and all(stage not in stages for stages in held)
    )


def adopt(source: nn.Module, target: nn.Module) -> None:
    """Let one module hold the tensors of another, as far as it has such."""
    for name, part in target.named_modules():
        other = source.get_submodule(name)
        for held, given in (
            (part._parameters, other._parameters),  # noqa: SLF001  (setattr has side effects)
            (part._buffers, other._buffers),  # noqa: SLF001
        ):
            held.update({key: given[key] for key in held if key in given})


def finish(pipeline: Pipeline, model: nn.Module) -> None:
    """Let the wrapped modules run as stages; all ranks call it."""
    plan, whole = pipeline.wrapping.plan, pipeline.wrapping.mesh.whole or pipeline.pp
    for absent in (pipeline.absent, *pipeline.others.values()):
        absent.stand_in(pipeline.wrapping.device)
    holders = {
        name: tuple(sorted({rank_of_stage(plan, stage) for stage in stages}))
        for name, stages in pipeline.cut.owners.items()
    }
    pipeline.ties = tied(model, holders, whole, pipeline.pp)
    equalise(pipeline.ties)
    pipeline.install(model)
    together(lambda: Run(plan, pipeline.modules, None, pipeline.group, pipeline.wrapping.device))
    pipeline.wrapping.calls.append(
        f"# {schedule_of(plan).value} over {len(pipeline.cut.spans)} stages, "
        f"{plan.gradient_accumulation_steps} micro-batches a step (torch.distributed.pipelining)"
    )
    if pipeline.ties:
        pipeline.wrapping.calls.append(
            f"# gradients of {len(pipeline.ties)} parameters that several stages hold are summed"
        )
