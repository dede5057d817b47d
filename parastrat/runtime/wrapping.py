"""What ``auto_parallelize`` did to a model, remembered for the functions that serve it later."""

from __future__ import annotations

import weakref
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
    from parastrat.runtime.context_parallel.stream import Division
    from parastrat.runtime.expert_parallel.choice import Experts
    from parastrat.runtime.mesh import RankMesh
    from parastrat.runtime.origin import Origin
    from parastrat.runtime.pipeline.mixing import Mixing
    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.precision import LossScale
    from parastrat.runtime.tensor_parallel.alike import Alike
    from parastrat.runtime.tensor_parallel.layout import Layout
    from parastrat.runtime.tensor_parallel.own_values import Leaves
    from parastrat.runtime.tensor_parallel.sums import Sums
    from parastrat.runtime.training.reached import Reached
    from parastrat.runtime.training.replicas import Replicas
    from parastrat.runtime.training.scalars import Scalars
    from parastrat.runtime.training.unused import Unused


@dataclass(slots=True, kw_only=True, eq=False)
class Wrapping:
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
    #: with such roots only
    unused: Unused | None = None
    #: with FSDP2, where parameters have no dimension
    scalars: Scalars | None = None
    #: with DDP only: what a step reaches
    reached: Reached | None = None
    #: with pp only: what a script may have worked out of a stage's weights
    mixing: Mixing | None = None
    #: with other ranks only: what is the same on them
    replicas: Replicas | None = None
    #: with tp or cp only: what the ranks of a sample take, draw and return
    alike: Alike | None = None
    #: fp16 only
    loss_scale: LossScale | None = None
    #: names of parameters that were brought into the plan's number format
    cast: tuple[str, ...] = ()
    #: what its parts were before, of which copies are made
    origin: Origin | None = None
    #: lines of plain torch, in the order in which they ran
    calls: list[str] = field(default_factory=list)
    #: None without pipeline stages
    pipeline: Pipeline | None = None
    #: code of loss functions that were tried for sums
    tried: set[Any] = field(default_factory=set)
    #: ``forward_backward`` is running; outside of it, every backward reduces
    stepping: bool = False


#: the model that was wrapped last, if it still lives: what data loaders are sharded for
_latest: list[weakref.ref[nn.Module]] = []
#: the module's attribute that holds its note
_NOTE = "_parastrat"


class _Note:
    """What a wrapped module holds: a wrapping names its module, so that both live and go together.

    Copies of the module, as for averages of weights, hold an empty one: nobody wrapped them.
    """

    def __init__(self, wrapping: Wrapping | None = None) -> None:
        self.wrapping = wrapping

    def __reduce__(self) -> tuple[type[_Note], tuple[()]]:
        return (_Note, ())


def remember(model: nn.Module, wrapping: Wrapping) -> None:
    """Note how the model was wrapped, for as long as it lives."""
    setattr(model, _NOTE, _Note(wrapping))


def note_latest(model: nn.Module) -> None:
    """Let data loaders be sharded for this model; copies of it are for no other data."""
    _latest[:] = [weakref.ref(model)]


def is_wrapped(model: nn.Module) -> bool:
    """Return whether ``auto_parallelize`` returned this model."""
    return _noted(model) is not None


def wrapping_of(model: nn.Module) -> Wrapping:
    """Return what is known of a wrapped model.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    wrapping = _noted(model)
    if wrapping is None:
        raise UsageError(
            f"this {type(model).__name__} was not wrapped by auto_parallelize",
            hint="pass the module that auto_parallelize returned, not the one that it was given",
        )
    return wrapping


def _noted(model: nn.Module) -> Wrapping | None:
    note = vars(model).get(_NOTE)
    return note.wrapping if isinstance(note, _Note) else None


def latest_wrapping() -> Wrapping:
    """Return the wrapping of the last ``auto_parallelize``.

    Raises:
        UsageError: if there was none.
    """
    model = _latest[0]() if _latest else None
    if model is None:
        raise UsageError(
            "there is no wrapped model, and so no plan to shard for",
            hint="call auto_parallelize before shard_dataloader, and keep the model",
        )
    return wrapping_of(model)


def inner(model: nn.Module) -> nn.Module:
    """Return the user's module: what DDP wraps, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def explain_wrapping(model: nn.Module) -> None:
    """Print the plain torch calls that ``auto_parallelize`` made for this model.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    print("\n".join(wrapping_of(model).calls))  # noqa: T201  (printing is what it is for)
