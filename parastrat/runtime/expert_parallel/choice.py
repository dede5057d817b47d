"""Which of a model's parts hold experts that ranks divide: found, and proven on a small copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from parastrat.errors import WrapError
from parastrat.runtime.agreement import together
from parastrat.runtime.blocks import holds_experts, repeated_blocks
from parastrat.runtime.expert_parallel.exchange import chosen_in, over_ranks
from parastrat.runtime.in_step import in_step, steps
from parastrat.runtime.tensor_parallel.access import local_inside, use_as
from parastrat.runtime.tensor_parallel.bench import Bench, bench_of
from parastrat.runtime.tensor_parallel.layout import kind_of
from parastrat.runtime.tensor_parallel.own_values import own_values
from parastrat.runtime.tensor_parallel.proof import results, tried
from parastrat.runtime.tensor_parallel.styles import distributed
from parastrat.runtime.training.batches import called

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.copies import Source

#: of a stack of all experts' weights: one matrix each, or one row
_STACKED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The parts of a model that hold experts which ranks divide."""

    #: of their names, with ``*`` for the number of a layer
    kinds: tuple[str, ...]

    def of(self, module: nn.Module) -> dict[str, nn.Module]:
        """Return them by name."""
        return {name: part for name, part in module.named_modules() if kind_of(name) in self.kinds}


def stacked_in(part: nn.Module) -> int:
    """Return how many experts a part's own parameters are stacks of; 0 where they are no stacks."""
    counts = {each.shape[0] if each.ndim >= _STACKED else 0 for each in part.parameters(recurse=False)}
    return counts.pop() if len(counts) == 1 else 0


def chosen_experts(source: Source, mesh: DeviceMesh) -> Experts:
    """Return which experts are divided, as was proven; all ranks of the job call it.

    Raises:
        WrapError: if none can be.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    bench = together(lambda: bench_of(source, mesh))
    return in_step(lambda: _proven(source, bench), mesh)


def _proven(source: Source, bench: Bench) -> Experts:
    stacks = {
        name: count
        for name, part in source.module.named_modules()
        if holds_experts(name, part) and (count := stacked_in(part))
    }
    if not stacks:
        raise _refused(source.module, bench.mesh, "no part of it holds the stacked weights of experts")
    kinds = tuple(dict.fromkeys(map(kind_of, stacks)))
    called_so, otherwise = _calls(bench, Experts(kinds=kinds))
    # others, as those that see all tokens, stay whole
    kinds = tuple(kind for kind in kinds if kind in called_so and kind not in otherwise)
    if not kinds:
        raise _refused(
            source.module,
            bench.mesh,
            f"{next(iter(stacks))} is not called with tokens, their choices, and a weight for each",
        )
    for name, count in stacks.items():
        if kind_of(name) in kinds and count % bench.mesh.size():
            raise _refused(source.module, bench.mesh, f"{name} has {count} experts")
    experts = Experts(kinds=kinds)
    own = replace(bench.task, inputs=_rolled(bench.task.inputs, bench.mesh.get_local_rank()))
    with steps(bench.mesh):
        expected = results(copy.deepcopy(bench.copy), own, averaged_over=bench.mesh)
    task = replace(own, averages=bench.mesh)
    verdict = tried(
        bench.copy, expected, task, bench.mesh, partial(divide, experts=experts, mesh=bench.mesh)
    )
    if not verdict:
        raise _refused(source.module, bench.mesh, f"not proven: {verdict}")
    return experts


def _calls(bench: Bench, experts: Experts) -> tuple[set[str], set[str]]:
    """Return the kinds of parts that are called with tokens, choices and weights, and otherwise."""
    trial, so, otherwise = copy.deepcopy(bench.copy), set[str](), set[str]()

    def noted(kind: str) -> Callable[..., None]:
        return lambda _, args, kwargs: (so if chosen_in(args, kwargs) else otherwise).add(kind)

    for name, part in experts.of(trial).items():
        part.register_forward_pre_hook(noted(kind_of(name)), with_kwargs=True)
    with torch.no_grad():
        called(trial, bench.task.inputs)
    return so, otherwise


def _rolled(inputs: Any, places: int) -> Any:
    """Return a batch whose positions are moved: ranks have other samples, so that lost tokens show."""

    def moved(leaf: Any) -> Any:
        return leaf.roll(places, 1) if isinstance(leaf, torch.Tensor) and leaf.ndim > 1 else leaf

    return tree_map(moved, inputs)


def _refused(module: nn.Module, mesh: DeviceMesh, reason: str) -> WrapError:
    return WrapError(
        f"the experts of this {type(module).__name__} cannot be divided by ep {mesh.size()} ({reason})",
        hint="plan without ep: parastrat recommend --ep 1",
    )


def divide(
    module: nn.Module,
    experts: Experts,
    mesh: DeviceMesh,
    prepare: Callable[[nn.Module], None] = lambda _part: None,
) -> dict[str, nn.Module]:
    """Let each rank hold its share of the experts, in place; their parameters become DTensors.

    Args:
        module: with all of them.
        experts: that were chosen.
        mesh: of the ranks that hold one set together.
        prepare: called with each part before it is divided, one after the other: all may be too large.

    Returns:
        The parts that hold experts, by name.
    """
    parts = experts.of(module)
    for part in parts.values():
        prepare(part)
        _divide(part, mesh)
    for part in (module, *repeated_blocks(module).modules):
        local_inside(part)
    return parts


def _divide(part: nn.Module, mesh: DeviceMesh) -> None:
    count = stacked_in(part)
    held = count // mesh.size()
    own = dict(part.named_parameters(recurse=False))
    for name, parameter in own.items():
        part._parameters[name] = distributed(parameter, mesh, 0)  # noqa: SLF001  (nn.Module's setattr has side effects)
    use_as(part, dict.fromkeys(own, own_values))
    for name, value in list(vars(part).items()):
        if "expert" in name and type(value) is int and value == count:
            setattr(part, name, held)
    forward = part.forward

    @wraps(forward)
    def of_all(*args: Any, **kwargs: Any) -> Any:
        return over_ranks(forward, held, mesh, args, kwargs)

    part.forward = of_all
