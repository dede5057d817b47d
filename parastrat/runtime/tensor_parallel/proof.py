"""The numerical proof of a layout: a small copy computes on all ranks what it computes on one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from parastrat.errors import OutOfStepError
from parastrat.runtime.agreement import named
from parastrat.runtime.in_step import meet, steps
from parastrat.runtime.kept import kept_in
from parastrat.runtime.leaves import tensors_in
from parastrat.runtime.silence import FAKE_TENSORS, silenced
from parastrat.runtime.tensor_parallel.attending import NoEmptyAttention
from parastrat.runtime.tensor_parallel.comparison import TOLERANCE, compared
from parastrat.runtime.tensor_parallel.wrap import apply_layout
from parastrat.runtime.training.batches import IGNORED, called
from parastrat.runtime.training.messages import average_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.extent import Extent
    from parastrat.runtime.tensor_parallel.layout import Layout, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the copy and its divided copies are asked for."""

    inputs: Any
    #: the losses of outputs that predict so many classes; 0: the outputs themselves
    classes: int = 0
    #: and its outputs in evaluation mode, which may be computed otherwise
    evaluates: bool = False
    #: over whose ranks gradients are averaged, as those of copies; None: over nobody's
    averages: DeviceMesh | None = None
    #: what these ranks divide has another part on each, and is not averaged; None: those that average
    apart: DeviceMesh | None = None
    #: over whose ranks it is averaged instead, as they hold the same parts; None: over nobody's
    copies: DeviceMesh | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What one forward and backward gave."""

    outputs: list[torch.Tensor]
    #: by parameter name
    gradients: dict[str, torch.Tensor]
    #: what is returned in evaluation mode, if the task asks for it
    evaluated: tuple[torch.Tensor, ...] = ()
    #: what modules keep for a loss that reads it, by where it is
    kept: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_finite(self) -> bool:
        """Whether anything else can be compared with it."""
        return all(bool(torch.isfinite(each).all()) for each in (*self.outputs, *self.gradients.values()))


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


def task_of(module: nn.Module, inputs: Any) -> Task:
    """Return what a copy is asked for; evaluation as well, where a module that trains runs in that mode."""
    if not module.training:
        return Task(inputs=inputs)
    try:
        evaluated(copy.deepcopy(module), inputs)
    except Exception:  # noqa: BLE001  (the module's code may raise anything)
        return Task(inputs=inputs)
    return Task(inputs=inputs, evaluates=True)


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
            differences = compared(expected, got)
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


def results(
    model: nn.Module,
    task: Task,
    known: Collection[str] | None = None,
) -> Results:
    """Run forward and backward from fixed random gradients of what a loss may read; return whole tensors.

    Of what modules keep, only ``known`` counts where it is given: what dividing adds is nobody's.
    """
    torch.manual_seed(0)
    before = set(kept_in(model))
    outputs = [leaf for leaf in tensors_in(called(model, task.inputs)) if _differentiable(leaf)]
    kept = {
        name: leaf
        for name, leaf in kept_in(model).items()
        if name not in before and (known is None or name in known)
    }
    if task.classes:
        outputs = [_loss(leaf, task.classes) for leaf in outputs if leaf.shape[-1:] == (task.classes,)]
    drawn = torch.Generator().manual_seed(1)
    if not outputs:
        raise ValueError("no output has a gradient")
    weighted = [
        (_in_fp32(whole(leaf)) * torch.randn(leaf.shape, generator=drawn).to(leaf.device)).sum()
        for leaf in (*outputs, *kept.values())
    ]
    torch.stack(weighted).sum().backward()  # type: ignore[no-untyped-call]
    if task.averages is not None:
        apart = task.apart or task.averages
        alike = (each for each in model.parameters() if not _is_divided(each, apart))
        average_gradients(alike, task.averages.get_group())
    if task.copies is not None and task.apart is not None:
        same = (each for each in model.parameters() if _is_divided(each, task.apart))
        average_gradients(same, task.copies.get_group())
    gradients = {
        name: whole(parameter.grad).detach()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return Results(
        outputs=[whole(leaf).detach() for leaf in outputs],
        gradients=gradients,
        evaluated=evaluated(model, task.inputs) if task.evaluates else (),
        kept={name: leaf.detach() for name, leaf in kept.items()},
    )


def evaluated(model: nn.Module, inputs: Any) -> tuple[torch.Tensor, ...]:
    """Run a forward in evaluation mode; return whole tensors, with what it keeps for a next call."""
    modes = {part: part.training for part in model.modules()}
    torch.manual_seed(0)  # training may have drawn otherwise in divided regions
    try:
        model.eval()
        with torch.no_grad():
            outputs = [leaf for leaf in tensors_in(called(model, inputs)) if leaf.is_floating_point()]
    finally:
        for part, training in modes.items():
            part.training = training
    return tuple(whole(leaf) for leaf in outputs)


def _is_divided(parameter: torch.Tensor, mesh: DeviceMesh) -> bool:
    return isinstance(parameter, DTensor) and parameter.device_mesh == mesh


def _loss(output: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the cross entropy with targets at random, some of which do not count."""
    rows = _in_fp32(output).flatten(0, -2)
    targets = torch.randint(classes, rows.shape[:1], generator=torch.Generator().manual_seed(3))
    targets[::3] = IGNORED
    return functional.cross_entropy(rows, targets.to(rows.device))


def _in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in fp32 at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _widened(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _differentiable(leaf: torch.Tensor) -> bool:
    return leaf.is_floating_point() and leaf.requires_grad


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a DTensor, or the tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
