"""What ``auto_parallelize`` did to a model, with what serves its steps, for the functions that run them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.errors import UsageError
from parastrat.runtime.wrapped import Wrapped, wrapped_of

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.pipeline.mixing import Mixing
    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.training.reached import Reached
    from parastrat.runtime.training.replicas import Replicas
    from parastrat.runtime.training.scalars import Scalars
    from parastrat.runtime.training.unused import Unused


@dataclass(slots=True, kw_only=True, eq=False)
class Wrapping(Wrapped):
    """One wrapped model, with what serves its steps."""

    #: None without pipeline stages
    pipeline: Pipeline | None = None
    #: with pp only: what a script may have worked out of a stage's weights
    mixing: Mixing | None = None
    #: with DDP only: what a step reaches
    reached: Reached | None = None
    #: with FSDP2, where parameters have no dimension
    scalars: Scalars | None = None
    #: with FSDP2, where zeros are reduced for what a rank did not use
    unused: Unused | None = None
    #: with other ranks only: what is the same on them
    replicas: Replicas | None = None


#: the model that was wrapped last, if it still lives: what data loaders are sharded for
_latest: list[weakref.ref[nn.Module]] = []


def note_latest(model: nn.Module) -> None:
    """Let data loaders be sharded for this model; copies of it are for no other data."""
    _latest[:] = [weakref.ref(model)]


def wrapping_of(model: nn.Module) -> Wrapping:
    """Return what is known of a wrapped model.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    noted: Any = wrapped_of(model)
    wrapping: Wrapping = noted
    return wrapping


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


def explain_wrapping(model: nn.Module) -> None:
    """Print the plain torch calls that ``auto_parallelize`` made for this model.

    Raises:
        UsageError: for a model that ``auto_parallelize`` did not return.
    """
    print("\n".join(wrapping_of(model).calls))  # noqa: T201  (printing is what it is for)
