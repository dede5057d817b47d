"""A wrapped model: its plan, where it lives and how it is divided, noted in its module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import UsageError

if TYPE_CHECKING:
    import torch

    from parastrat.plan import Plan
    from parastrat.runtime.blocks import Blocks
    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.context_parallel.stream import Division
    from parastrat.runtime.expert_parallel.choice import Experts
    from parastrat.runtime.origin import Origin
    from parastrat.runtime.precision import LossScale
    from parastrat.runtime.tensor_parallel.layout import Layout
    from parastrat.runtime.tensor_parallel.own_values import Leaves
    from parastrat.runtime.tensor_parallel.sums import Sums


@dataclass(slots=True, kw_only=True, eq=False)
class Wrapped:
    """One wrapped model: its plan, where it lives, and the calls that made it."""

    plan: Plan
    device: torch.device
    mesh: RankMesh
    blocks: Blocks
    #: of ``auto_parallelize``; ``forward_backward`` uses it where it is given none
    loss_fn: Callable[..., torch.Tensor] | None = None
    #: with tp only: what became of each module, and what stays whole, with the reasons
    layout: Layout | None = None
    #: with cp only: how positions are divided
    division: Division | None = None
    #: with ep only: which experts are divided
    experts: Experts | None = None
    #: with tp or cp only: what draws in its forwards begin with; None: the ranks agree on it
    seed: int | None = None
    #: with tp only, and no data axis: gradients that a step adds up at its end
    sums: Sums | None = None
    #: with tp alone: what stands for its parameters while a step runs
    leaves: Leaves | None = None
    #: roots of FSDP2 that reduce zeros for what a rank did not use
    reduce_unused: list[nn.Module] = field(default_factory=list)
    #: fp16 only
    loss_scale: LossScale | None = None
    #: names of parameters that were brought into the plan's number format
    cast: tuple[str, ...] = ()
    #: what its parts were before, of which copies are made
    origin: Origin | None = None
    #: by ``copy.deepcopy``: a script may write its buffers, as those of an average of weights
    copied: bool = False
    #: lines of plain torch, in the order in which they ran
    calls: list[str] = field(default_factory=list)
    #: code of loss functions that were tried for sums
    tried: set[Any] = field(default_factory=set)
    #: ``forward_backward`` is running; outside of it, every backward reduces
    stepping: bool = False


#: the module's attribute that holds its note
_NOTE = "_parastrat"


class _Note:
    """What a wrapped module holds: a wrapping names its module, so that both live and go together.

    Copies of the module, as for averages of weights, hold an empty one: nobody wrapped them.
    """

    def __init__(self, wrapped: Wrapped | None = None) -> None:
        self.wrapped = wrapped

    def __reduce__(self) -> tuple[type[_Note], tuple[()]]:
        return (_Note, ())


def remember(model: nn.Module, wrapped: Wrapped) -> None:
    """Note how the model was wrapped, for as long as it lives."""
    setattr(model, _NOTE, _Note(wrapped))


def is_wrapped(model: nn.Module) -> bool:
    """Return whether ``auto_parallelize`` returned this model."""
    return _noted(model) is not None


def wrapped_of(model: nn.Module) -> Wrapped:
    """Return what is known of a wrapped model.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    wrapped = _noted(model)
    if wrapped is None:
        raise UsageError(
            f"this {type(model).__name__} was not wrapped by auto_parallelize",
            hint="pass the module that auto_parallelize returned, not the one that it was given",
        )
    return wrapped


def _noted(model: nn.Module) -> Wrapped | None:
    note = vars(model).get(_NOTE)
    return note.wrapped if isinstance(note, _Note) else None


def inner(model: nn.Module) -> nn.Module:
    """Return the user's module: what DDP wraps, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model
