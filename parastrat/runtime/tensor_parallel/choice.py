"""The layout that a model gets: planned, fitted to its sizes, and proven on a small copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.copies import Source, batch_for, small_copy
from parastrat.runtime.tensor_parallel.layout import Layout, Left
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.proof import Results, Verdict, proven, results
from parastrat.runtime.tensor_parallel.settle import settled

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The small copy, its batch, and what it computes alone."""

    copy: nn.Module
    inputs: Any
    expected: Results
    mesh: DeviceMesh

    def judged(self, layout: Layout) -> Verdict:
        return proven(self.copy, self.expected, self.inputs, layout, self.mesh)


def chosen_layout(source: Source, mesh: DeviceMesh) -> Layout:
    """Return a layout that was proven; all ranks of the tensor-parallel group call it.

    Raises:
        WrapError: if nothing of the model can be divided.
    """
    whole = _planned(source.module, mesh.size())
    few = small_copy(source)
    inputs = batch_for(source, few, mesh.size())
    bench = Bench(copy=few, inputs=inputs, expected=results(few, inputs), mesh=mesh)
    few.zero_grad(set_to_none=True)
    planned = _planned(few, mesh.size())
    shared = {group.kind for group in whole.groups} & {group.kind for group in planned.groups}
    good, bad = _proven_kinds(bench, _only(planned, shared))
    layout = _only(whole, good)
    if not layout.groups:
        said = "; ".join(map(str, [*whole.left, *bad])) or "no linear layer was found to divide"
        raise WrapError(
            f"nothing of this {type(source.module).__name__} can be divided by tp {mesh.size()} ({said})",
            hint="plan without tp: parastrat recommend --tp 1, such as fsdp2 over all ranks",
        )
    return replace(layout, left=(*whole.left, *bad))


def _planned(module: nn.Module, degree: int) -> Layout:
    return settled(own_layout(module) or Layout(groups=()), module, degree)


def _only(layout: Layout, kinds: Iterable[str]) -> Layout:
    kept = set(kinds)
    return replace(layout, groups=tuple(group for group in layout.groups if group.kind in kept))


def _proven_kinds(bench: Bench, layout: Layout) -> tuple[list[str], list[Left]]:
    """Return the kinds of groups that hold, alone and together, and those that do not."""
    kinds = list(dict.fromkeys(group.kind for group in layout.groups))
    if not kinds or bench.judged(layout):
        return kinds, []
    good: list[str] = []
    bad: list[Left] = []
    for kind in kinds:  # each on top of those that held
        verdict = bench.judged(_only(layout, [*good, kind]))
        if verdict:
            good.append(kind)
        else:
            bad.append(Left(kind=kind, reason=f"not proven: {verdict}"))
    return good, bad
