"""Which of a model's parts hold experts that ranks divide: found, and proven on a small copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from parastrat.errors import WrapError
from parastrat.runtime.blocks import holds_experts, repeated_blocks
from parastrat.runtime.communication.agreement import together
from parastrat.runtime.expert_parallel.exchange import Holders, chosen_in, over_ranks
from parastrat.runtime.in_step import in_step, steps
from parastrat.runtime.tensor_parallel.access import local_inside, use_as
from parastrat.runtime.tensor_parallel.bench import Bench, bench_of
from parastrat.runtime.tensor_parallel.choice import on_copy
from parastrat.runtime.tensor_parallel.computed import results
from parastrat.runtime.tensor_parallel.layout import Role, kind_of
from parastrat.runtime.tensor_parallel.own_values import own_values
from parastrat.runtime.tensor_parallel.proof import tried
from parastrat.runtime.tensor_parallel.styles import distributed
from parastrat.runtime.tensor_parallel.wrap import apply_layout
from parastrat.runtime.tensors.batches import called

if TYPE_CHECKING:
    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.tensor_parallel.copies import Source
    from parastrat.runtime.tensor_parallel.layout import Layout, Step

#: of a stack of all experts' weights: one matrix each, or one row
_STACKED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The parts of a model that hold experts which ranks divide."""

    #: of their names, with ``*`` for the number of a layer
    kinds: tuple[str, ...]
    #: of these, those that are given the same tokens on all tp ranks
    alike: tuple[str, ...] = ()

    def of(self, module: nn.Module) -> dict[str, nn.Module]:
        """Return them by name."""
        return {name: part for name, part in module.named_modules() if kind_of(name) in self.kinds}


def stacked_in(part: nn.Module) -> int:
    """Return how many experts a part's own parameters are stacks of; 0 where they are no stacks."""
    counts = {each.shape[0] if each.ndim >= _STACKED else 0 for each in part.parameters(recurse=False)}
    return counts.pop() if len(counts) == 1 else 0


def chosen_experts(
    source: Source, mesh: RankMesh, layout: Layout | None = None
) -> tuple[Experts, Layout | None]:
    """Return which experts are divided, as was proven, and how layers are; all ranks of the job call it.

    Args:
        source: the model.
        mesh: the ranks of the plan.
        layout: how its layers are divided over tp; of experts nothing is.

    Raises:
        WrapError: if none can be.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    ranks: Any = mesh.ep if mesh.ep_copies is None else mesh.tp
    degree = None if mesh.tp is None else mesh.tp.size()
    bench = together(lambda: bench_of(source, ranks, degree=degree))
    return in_step(lambda: _proven(source, bench, mesh, layout), ranks)


def _proven(
    source: Source, bench: Bench, mesh: RankMesh, layout: Layout | None
) -> tuple[Experts, Layout | None]:
    degree = 1 if mesh.ep is None else mesh.ep.size()
    stacks = {
        name: count
        for name, part in source.module.named_modules()
        if holds_experts(name, part) and (count := stacked_in(part))
    }
    if not stacks:
        raise _refused(source.module, degree, "no part of it holds the stacked weights of experts")
    kinds = tuple(dict.fromkeys(map(kind_of, stacks)))
    called_so, otherwise = _calls(bench, Experts(kinds=kinds))
    # others, as those that see all tokens, stay whole
    kinds = tuple(kind for kind in kinds if kind in called_so and kind not in otherwise)
    if not kinds:
        raise _refused(
            source.module,
            degree,
            f"{next(iter(stacks))} is not called with tokens, their choices, and a weight for each",
        )
    for name, count in stacks.items():
        if kind_of(name) in kinds and count % degree:
            raise _refused(source.module, degree, f"{name} has {count} experts")
    experts = Experts(kinds=kinds, alike=_alike(kinds, mesh, layout))
    samples = mesh.ep if mesh.tp is None else mesh.ep_samples
    places = 0 if samples is None else samples.get_local_rank()
    inputs = _rolled(bench.task.inputs, places)
    task = replace(bench.task, inputs=inputs, averages=samples, apart=mesh.ep, copies=mesh.ep_copies)
    with steps(bench.mesh):
        expected = results(copy.deepcopy(bench.copy), task)
    noted: dict[str, set[Step]] = {}

    def divided(copied: nn.Module) -> None:
        divide(copied, experts, mesh)
        if layout is not None:
            small = replace(on_copy(bench, layout), loss=False).without(experts.of(copied))
            tp: Any = mesh.tp
            apply_layout(copied, small, tp, noted=noted)

    verdict = tried(bench.copy, expected, task, bench.mesh, divided)
    if not verdict:
        raise _refused(source.module, degree, f"not proven: {verdict}")
    return experts, layout and layout.without(experts.of(source.module)).also(noted)


def _alike(kinds: tuple[str, ...], mesh: RankMesh, layout: Layout | None) -> tuple[str, ...]:
    """Return the kinds of experts that tp ranks give the same tokens: where these are no shares of them."""
    if mesh.tp is None or layout is None:
        return ()
    shares = {kind_of(name) for name, part in layout.parts.items() if part.role is Role.SUMMED}
    return tuple(kind for kind in kinds if kind not in shares)


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


def _refused(module: nn.Module, degree: int, reason: str) -> WrapError:
    return WrapError(
        f"the experts of this {type(module).__name__} cannot be divided by ep {degree} ({reason})",
        hint="plan without ep: parastrat recommend --ep 1",
    )


def divide(
    module: nn.Module,
    experts: Experts,
    mesh: RankMesh,
    prepare: Callable[[nn.Module], None] = lambda _part: None,
) -> dict[str, nn.Module]:
    """Let each rank hold its share of the experts, in place; their parameters become DTensors.

    Args:
        module: with all of them, or those of a pipeline's stages.
        experts: that were chosen.
        mesh: the ranks of the plan.
        prepare: called with each part before it is divided, one after the other: all may be too large.

    Returns:
        The parts that hold experts, by name.
    """
    # none of those whose weights other stages have
    parts = {name: part for name, part in experts.of(module).items() if stacked_in(part)}
    for name, part in parts.items():
        prepare(part)
        _divide(part, mesh, alike=kind_of(name) in experts.alike)
    for part in (module, *repeated_blocks(module).modules):
        local_inside(part)
    return parts


def _divide(part: nn.Module, mesh: RankMesh, *, alike: bool) -> None:
    count, ranks = stacked_in(part), mesh.ep
    if ranks is None:
        return
    held = count // ranks.size()
    samples = ranks.size() / (1 if mesh.tp is None else mesh.tp.size())
    holders = Holders(mesh=ranks, held=held, samples=samples, alike=mesh.tp if alike else None)
    own = dict(part.named_parameters(recurse=False))
    for name, parameter in own.items():
        part._parameters[name] = distributed(parameter, ranks, 0)  # noqa: SLF001  (nn.Module's setattr has side effects)
    use_as(part, dict.fromkeys(own, own_values))
    for name, value in list(vars(part).items()):
        if "expert" in name and type(value) is int and value == count:
            setattr(part, name, held)
    forward = part.forward

    @wraps(forward)
    def of_all(*args: Any, **kwargs: Any) -> Any:
        return over_ranks(forward, holders, args, kwargs)

    part.forward = of_all
