"""The layout that a model gets: planned, fitted to its sizes, and proven on a small copy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.communication.agreement import together
from parastrat.runtime.in_step import in_step
from parastrat.runtime.tensor_parallel.bench import Bench, Groups, bench_of
from parastrat.runtime.tensor_parallel.carrying import carried, expanded, fitted
from parastrat.runtime.tensor_parallel.copied_heads import with_copied_heads
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.runtime.tensor_parallel.dtensors import forget_plain_tensors, plain_tensors_known
from parastrat.runtime.tensor_parallel.ends import suggested_ends
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Ends, Inside, Layout, Left
from parastrat.runtime.tensor_parallel.loss import unproven_loss
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.sequence import (
    NoStreamError,
    check_shares_differ,
    extended,
    streamed,
)
from parastrat.runtime.tensor_parallel.settle import settled
from parastrat.runtime.tensor_parallel.stream_values import check_no_values
from parastrat.runtime.tensor_parallel.styles import feature_dims
from parastrat.runtime.tensor_parallel.tags import NotFollowedError
from parastrat.runtime.tensor_parallel.vocabulary import vocabulary_groups

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.copies import Source


def chosen_layout(source: Source, mesh: DeviceMesh) -> Layout:
    """Return a layout that was proven; all ranks of the job call it.

    Raises:
        WrapError: if nothing of the model can be divided.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    return layout_on(source, together(lambda: bench_of(source, mesh)))


def layout_on(source: Source, bench: Bench) -> Layout:
    """Return a layout that was proven on this bench; all ranks of the job call it.

    The model's own plan comes first, then what its data flow suggests for the rest; last what the plan
    gathers again at once, so that the work in between is every rank's.

    Raises:
        WrapError: if nothing of the model can be divided.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    return in_step(lambda: _layout_on(source, bench), bench.mesh)


def _layout_on(source: Source, bench: Bench) -> Layout:
    known, mesh = plain_tensors_known(), bench.mesh
    good: Groups = ()
    left: list[Left] = []
    for suggest in (planned, partial(_derived, bench=bench), gathered):
        if covered(source.module, good):
            break
        layout = with_copied_heads(suggest(source.module), source.module, mesh.size())
        fitting = settled(Layout(groups=(*good, *beside(good, layout.groups))), source.module, mesh.size())
        good, refused = _proven(bench, good, fitting.groups[len(good) :])
        left += [*layout.left, *fitting.left, *refused]
    if not good:
        said = "; ".join(map(str, dict.fromkeys(left))) or "no linear layer was found to divide"
        raise WrapError(
            f"nothing of this {type(source.module).__name__} can be divided by tp {mesh.size()} ({said})",
            hint="plan without tp: parastrat recommend --tp 1, such as fsdp2 over all ranks",
        )
    if not known and all(group.inside is not Inside.DTENSORS for group in good):
        forget_plain_tensors()
    divided = {group.kind for group in good} | {kind for group in good for kind in group.kinds}
    rest = tuple(each for each in dict.fromkeys(left) if each.kind not in divided)
    layout = Layout(groups=good, left=rest)
    chosen = _with_sequence(source, bench, layout) if source.sequence else layout
    chosen = _with_loss(bench, chosen) if source.loss else chosen
    return replace(chosen, steps={where: frozenset(steps) for where, steps in bench.steps.items()})


def _with_sequence(source: Source, bench: Bench, layout: Layout) -> Layout:
    """Return the layout with the sequence divided too, or with the reason why it is not."""
    reason = "dropout would have to differ along the sequence" if drops(source.module) else ""
    if not reason:
        try:
            stream = streamed(source.module, layout)
            small = streamed(bench.copy, Layout(groups=_on(bench, layout.groups)))
            check_shares_differ(bench.copy, bench.task.inputs, bench.mesh.size())
            check_no_values(bench.copy, bench.task.inputs, small, Extent.of(bench.copy))
        except NoStreamError as error:
            reason = str(error)
        else:
            is_cut = source.stages or source.positions  # at the first block and the last
            further = () if is_cut else suggested_ends(bench.copy, bench.task.inputs, small)
            for ends in (*further, Ends()):
                verdict = bench.holds(extended(small, ends))
                if verdict and source.stages:  # a stage may begin and end with any block
                    verdict = bench.holds(small, Extent.of_single_blocks(bench.copy))
                if verdict:
                    return extended(stream, ends)
            reason = f"not proven: {verdict}"
    return replace(layout, left=(*layout.left, Left(kind="sequence parallelism", reason=reason)))


def _with_loss(bench: Bench, layout: Layout) -> Layout:
    """Return the layout with logits divided up to the loss, or with the reason why they are gathered."""
    small = on_copy(bench, layout)
    reason = unproven_loss(bench.copy, bench.task.inputs, small, bench.mesh)
    if not reason:
        return replace(layout, loss=True)
    return replace(layout, left=(*layout.left, Left(kind="loss parallelism", reason=reason)))


def on_copy(bench: Bench, layout: Layout) -> Layout:
    """Return the layout that a bench's copy has, of that of the whole model."""
    added = layout.sequence + bool(layout.ends.between)
    divided = layout.groups[: len(layout.groups) - added]
    small = Layout(groups=_on(bench, divided))
    return extended(streamed(bench.copy, small), layout.ends) if layout.sequence else small


def planned(module: nn.Module) -> Layout:
    """Return the model's own plan, with the embedding and head that it leaves out, as GPT-NeoX's does."""
    layout = own_layout(module)
    if layout is None:
        return Layout(groups=())
    groups = tuple(group for group in layout.groups if not group.gathers)
    return replace(layout, groups=(*groups, *vocabulary_groups(module, set(layout.parts))))


def gathered(module: nn.Module) -> Layout:
    """Return what the model's own plan divides and gathers again."""
    layout = own_layout(module)
    groups = () if layout is None else layout.groups
    return Layout(groups=tuple(group for group in groups if group.gathers))


def _derived(module: nn.Module, bench: Bench) -> Layout:
    try:
        layout = derived_layout(bench.copy, bench.task.inputs, bench.mesh.size())
    except NotFollowedError as error:
        return Layout(groups=(), left=(Left(kind="the rest", reason=str(error)),))
    return expanded(carried(layout, bench.copy, module), module)


def covered(module: nn.Module, groups: Groups) -> bool:
    """Return whether every linear layer has a role, so that nothing is left to look for."""
    known = {name for group in groups for name in group.parts}
    return all(name in known for name, part in module.named_modules() if feature_dims(part) is not None)


def beside(known: Groups, groups: Groups) -> Groups:
    """Return the groups none of whose modules has a role already."""
    taken = {name for group in known for name in group.parts}
    return tuple(group for group in groups if taken.isdisjoint(group.parts))


def _proven(bench: Bench, known: Groups, more: Groups) -> tuple[Groups, list[Left]]:
    """Return ``known`` and those of ``more`` that hold, together; and why the others do not."""
    if not more:
        return known, []
    if bench.judged(_on(bench, (*known, *more))):
        return (*known, *more), []
    good, left = known, []
    for kind in dict.fromkeys(group.kind for group in more):
        same = tuple(group for group in more if group.kind == kind)
        verdicts = []
        for inside in Inside:
            tried = tuple(replace(group, inside=inside) for group in same)
            verdicts.append(bench.judged(_on(bench, (*good, *tried))))
            if verdicts[-1]:
                good = (*good, *tried)
                break
        else:
            left.append(Left(kind=kind, reason=f"not proven: {verdicts[0]}"))
    return good, left


def _on(bench: Bench, groups: Groups) -> Groups:
    """Return the groups that the copy has too."""
    places = {name for name, _ in bench.copy.named_modules()}
    held = (group for group in groups if places.issuperset(group.parts))
    return bench.settled(tuple(fitted(group, bench.copy) for group in held))
