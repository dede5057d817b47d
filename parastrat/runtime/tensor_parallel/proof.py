"""The numerical proof of a layout: a small copy computes on all ranks what it computes on one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

from parastrat.errors import OutOfStepError
from parastrat.runtime.communication.agreement import named
from parastrat.runtime.in_step import meet, steps
from parastrat.runtime.silence import FAKE_TENSORS, silenced
from parastrat.runtime.tensor_parallel.attending import NoEmptyAttention
from parastrat.runtime.tensor_parallel.comparison import TOLERANCE, compared
from parastrat.runtime.tensor_parallel.computed import Results, Task, moved_by_rounding, results
from parastrat.runtime.tensor_parallel.wrap import apply_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.extent import Extent
    from parastrat.runtime.tensor_parallel.layout import Layout, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a proof found; no fault: proven."""

    #: what raised, in a line
    failure: str = ""
    #: names of outputs and gradients that differ, with the share by which they do
    differences: tuple[tuple[str, float], ...] = ()
    #: only gradients differ, and by so little of the largest of all that it may be rounding
    near: bool = False
    #: by where something is divided, the steps of the forward on it
    steps: Mapping[str, Collection[Step]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not self.failure and not self.differences

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        name, share = max(self.differences, key=lambda pair: pair[1], default=("", 0.0))
        return f"{name} differs by {share:.2g} of its size" if name else "proven"


def proven(
    plain: nn.Module,
    expected: Results,
    task: Task,
    layout: Layout,
    mesh: DeviceMesh,
    extent: Extent | None = None,
) -> Verdict:
    """Compare a copy of ``plain`` under the layout with what ``plain`` gave; all ranks call it.

    Raises:
        OutOfStepError: if another rank has failed since the last trial, or tries another layout.
    """
    noted: dict[str, set[Step]] = {}

    def divide(copied: nn.Module) -> None:
        apply_layout(copied, layout, mesh, extent, noted)

    return replace(judged(plain, expected, task, Trial(str(layout), mesh, divide)), steps=noted)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way of dividing a model, as ranks try it together."""

    #: what is tried, which all must agree on
    said: str
    mesh: DeviceMesh
    #: divides a copy in place
    divide: Callable[[nn.Module], object]


def judged(plain: nn.Module, expected: Results, task: Task, trial: Trial) -> Verdict:
    """Compare a divided copy of ``plain`` with what ``plain`` gave; all ranks call it.

    What may differ by rounding alone is computed again in fp64, where it is not seen: the gradient of a
    bias before a batch norm is zero, but for rounding that grows with the samples.

    Raises:
        OutOfStepError: if another rank has failed since the last trial, or tries something else.
    """
    meet(trial.said, trial.mesh)
    verdict = tried(plain, expected, task, trial.mesh, trial.divide)
    if not verdict.near:
        return verdict
    try:
        precise, wide = copy.deepcopy(plain).double(), replace(task, inputs=tree_map(_widened, task.inputs))
        exact = results(copy.deepcopy(precise), wide)
    except Exception:  # noqa: BLE001  (the module's code may raise anything; not all of it runs in fp64)
        return verdict
    meet(f"{trial.said} in fp64", trial.mesh)
    return tried(precise, exact, wide, trial.mesh, trial.divide)


def tried(
    plain: nn.Module,
    expected: Results,
    task: Task,
    mesh: DeviceMesh,
    divide: Callable[[nn.Module], object],
) -> Verdict:
    """Compare a copy of ``plain`` that is divided in place with what ``plain`` gave; all ranks call it.

    Where it raises on one rank, all hear of it before their next collective.
    """
    differences: dict[str, float] = {}
    near = True
    failure = stopped = ""
    try:
        with silenced(FAKE_TENSORS), steps(mesh), NoEmptyAttention():
            parallel = copy.deepcopy(plain)
            divide(parallel)
            got = results(parallel, task, expected.kept)
            differences = compared(expected, got, moved=partial(moved_by_rounding, plain, task, expected))
            near = not differences or not compared(expected, got, floor=TOLERANCE)
    except OutOfStepError as error:
        stopped = error.message
    except Exception as error:  # noqa: BLE001  (the module's code may raise anything; the verdict quotes it)
        failure = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    verdicts: list[Any] = [None] * mesh.size()
    dist.all_gather_object(verdicts, (failure, stopped, differences, near), group=mesh.get_group())
    worst: dict[str, float] = {}
    for _, _, found, _ in verdicts:
        for name, share in found.items():
            worst[name] = max(share, worst.get(name, 0.0))
    failures = {rank: said for rank, (said, *_) in zip(mesh.mesh.tolist(), verdicts, strict=True) if said}
    failed = _said(failures, mesh.size()) or next((said for _, said, *_ in verdicts if said), "")
    return Verdict(
        failure=failed,
        differences=tuple(worst.items()),
        near=bool(worst) and not failed and all(each for *_, each in verdicts),
    )


def _said(failures: dict[int, str], ranks: int) -> str:
    """Return the first failure, with the ranks that failed where others did not."""
    if not failures:
        return ""
    first = next(iter(failures.values()))
    return first if len(failures) == ranks else f"{named(list(failures))}: {first}"


def _widened(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
