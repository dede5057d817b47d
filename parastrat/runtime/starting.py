"""What is known when a model is wrapped, beside the plan."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.runtime.communication.agreement import from_first
from parastrat.runtime.tensors.batches import to_device
from parastrat.runtime.tensors.leaves import as_tree

if TYPE_CHECKING:
    from parastrat.plan import Plan
    from parastrat.runtime.first_values.replay import Record


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


def shared_inputs(sample_inputs: Any, plan: Plan) -> Any:
    """Return rank 0's micro-batch where ranks compute together with it: each may have loaded its own.

    What cannot be sent stays each rank's own; the proof of a layout notices where they differ.
    """
    own = as_tree(sample_inputs)
    if plan.mesh.tp == plan.mesh.pp == 1:
        return own

    def packed() -> bytes | None:
        try:
            return pickle.dumps(to_device(own, torch.device("cpu")))
        except (
            pickle.PicklingError,
            AttributeError,
            TypeError,
            RuntimeError,
        ):  # of a class in a function
            return None

    first = from_first(packed)
    return own if first is None else pickle.loads(first)  # noqa: S301  (what rank 0 of this run sent)
