"""What a model returns, seen by FSDP2 whatever holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from parastrat.errors import WrapError
from parastrat.runtime.leaves import hides_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def see_outputs(units: Iterable[nn.Module]) -> None:
    """Let FSDP2 hear of the backward of units that return objects: it hooks tensors in torch's trees.

    Without, nothing is gathered for a unit's backward, and the gradients of a root are never reduced.

    Args:
        units: sharded ones, or replicated by what is built on FSDP2.
    """

    def after(unit: Any, _args: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled() or not hides_tensors(output):
            return
        found = tensors_in(output)
        if not found and unit.training:
            raise WrapError(
                f"{_name(unit)} returns {type(output).__name__}, in which no tensor was found: "
                "FSDP2 would never hear of its backward",
                hint="return tensors, alone or in tuples, dicts or dataclasses, or plan ddp: parastrat "
                "recommend --strategy ddp",
            )
        unit._get_fsdp_state()._register_pre_backward_hook(found)  # noqa: SLF001  (there is no public way)

    for unit in units:
        unit.register_forward_hook(after)


def _name(unit: nn.Module) -> str:
    """Return the user's name of a class, before which FSDP2 puts its own."""
    return type(unit).__name__.removeprefix("FSDP")
