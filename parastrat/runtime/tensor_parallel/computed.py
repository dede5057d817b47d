"""What a copy of a model computes, forward and backward, as proofs of layouts compare it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from parastrat.runtime.communication.messages import average_gradients
from parastrat.runtime.tensors.batches import IGNORED, called
from parastrat.runtime.tensors.kept import kept_in
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh


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
    #: by how much rounding moves gradients, once somebody asked (``moved_by_rounding``)
    moved: dict[str, float] = field(default_factory=dict)

    @property
    def is_finite(self) -> bool:
        """Whether anything else can be compared with it."""
        return all(bool(torch.isfinite(each).all()) for each in (*self.outputs, *self.gradients.values()))


def task_of(module: nn.Module, inputs: Any) -> Task:
    """Return what a copy is asked for; evaluation as well, where a module that trains runs in that mode."""
    if not module.training:
        return Task(inputs=inputs)
    try:
        evaluated(copy.deepcopy(module), inputs)
    except Exception:  # noqa: BLE001  (the module's code may raise anything)
        return Task(inputs=inputs)
    return Task(inputs=inputs, evaluates=True)


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


def _differentiable(leaf: torch.Tensor) -> bool:
    return leaf.is_floating_point() and leaf.requires_grad


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a DTensor, or the tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def moved_by_rounding(plain: nn.Module, task: Task, expected: Results) -> Mapping[str, float]:
    """Return by how much the last bit of its weights moves each gradient of a module that nothing divides.

    It is found once, and kept with what was ``expected`` of the module.
    """
    if not expected.moved:
        alone = replace(task, averages=None, apart=None, copies=None)
        as_is, beside = copy.deepcopy(plain), copy.deepcopy(plain)
        move_the_last_bit(beside)
        first, second = (results(each, alone).gradients for each in (as_is, beside))
        held = {name: gradient for name, gradient in first.items() if name in second and gradient.numel()}
        expected.moved.update((name, float((g - second[name]).abs().max())) for name, g in held.items())
    return expected.moved


def move_the_last_bit(module: nn.Module) -> None:
    """Change weights as little as another order of sums changes what is made of them."""
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                signs = 2 * torch.randint(2, parameter.shape, generator=drawn) - 1
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * signs.to(parameter.device))
