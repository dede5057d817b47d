"""What a model returns, seen by FSDP2 whatever holds it, and in backwards that FSDP2 can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from parastrat.errors import WrapError
from parastrat.runtime.tensors.leaves import hides_tensors, tensors_in

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


def refuse_second_gradients(units: Iterable[nn.Module]) -> None:
    """Refuse backwards that are to be differentiated: FSDP2 frees the weights that their graph reads.

    Args:
        units: sharded ones, or replicated by what is built on FSDP2.
    """

    # FSDP2's own hooks are not compiled either
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(_unit: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled():
            for leaf in tensors_in(output):
                if leaf.requires_grad:
                    leaf.register_hook(_once)  # type: ignore[no-untyped-call]

    for unit in units:
        unit.register_forward_hook(after)


def _once(_gradient: torch.Tensor) -> None:
    # autograd computes gradients under this mode only where it is asked for their graph
    if torch.is_grad_enabled():
        raise WrapError(
            "create_graph=True asks for gradients of gradients, and FSDP2 frees the weights that they read "
            "at the end of the first backward",
            hint="leave the penalty out, or plan ddp: parastrat recommend --strategy ddp",
        )


def _name(unit: nn.Module) -> str:
    """Return the user's name of a class, before which FSDP2 puts its own."""
    return type(unit).__name__.removeprefix("FSDP")
