"""What is known when a model is wrapped, beside the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from parastrat.runtime.replay import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the first weights come from, and what the forward takes."""

    #: how a callable built its module on the meta device; None for a module that was given
    record: Record | None
    checkpoint: str | Path | None
    sample_inputs: Any = None
    #: tokens of a sample, where no inputs tell; None: not known
    sequence_length: int | None = None
    #: gives meta tensors memory instead of values, where nobody computes with them; None: they get values
    give_memory: Callable[[nn.Module], None] | None = None
