"""What torch's operators fail with in a step, said in terms of what the plan did to the model."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError
from parastrat.failures import MIXTURE
from parastrat.runtime.precision import COMPUTE
from parastrat.schedules import SPLIT, schedule_of

if TYPE_CHECKING:
    from parastrat.plan import Plan
    from parastrat.runtime.wrapping import Wrapping

#: what operators say of operands in several number formats
_OF_FORMATS = ("dtype", "scalar type", "should be the same")
#: what autograd says where saved tensors are gone
_TWICE = "backward through the graph a second time"


@contextmanager
def explained(wrapping: Wrapping) -> Iterator[None]:
    """Say what the plan changed where operators fail of it.

    Raises:
        WrapError: a forward that casts by itself meets other formats, a part of a block runs outside of it,
            a loss adds what is divided to what is whole, or a backward that a schedule splits would run
            parts again.
    """
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if MIXTURE.says.search(said):
            raise _mixed(wrapping.plan, _ungathered(error, wrapping)) from error
        if _TWICE in said and wrapping.plan.mesh.pp > 1 and schedule_of(wrapping.plan) in SPLIT:
            raise _split(wrapping.plan, said) from error
        found = _of_formats(wrapping, said) if any(text in said for text in _OF_FORMATS) else None
        if found is None:
            raise
        raise found from error


def _mixed(plan: Plan, ungathered: str) -> WrapError:
    """Return what brought divided weights and whole values together: a part that is named, or the loss."""
    if ungathered:
        return WrapError(
            f"{ungathered} runs outside of its block's forward, in which alone {plan.strategy} has its "
            "weights whole",
            hint="let the block's forward call it, or give the model a part of its own for it, or plan "
            "ddp: parastrat recommend --strategy ddp",
        )
    return WrapError(
        f"the loss adds values of parameters, which {plan.strategy} divides, to values of samples, which "
        "are whole",
        hint="leave a penalty on weights to the optimizer, as weight_decay, or add up each of its "
        "terms whole: term.full_tensor() if isinstance(term, DTensor) else term",
    )


def _ungathered(error: RuntimeError, wrapping: Wrapping) -> str:
    """Return the name of the part of a block whose forward met weights of which it had its share alone."""
    if not wrapping.plan.shards_parameters:
        return ""  # what tp alone divides is so inside of blocks too
    frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [part for part in frames if isinstance(part, nn.Module)]
    if not modules or not any(isinstance(own, DTensor) for own in modules[-1].parameters(recurse=False)):
        return ""
    for name, block in zip(wrapping.blocks.names, wrapping.blocks.modules, strict=True):
        for path, part in block.named_modules():
            if part is modules[-1]:
                return f"{name}.{path}"
    return ""


def _split(plan: Plan, said: str) -> WrapError:
    """Return what a schedule with split backwards meets: torch cuts the graph at each use of a weight."""
    schedule = schedule_of(plan).value
    return WrapError(
        f"{schedule} splits backwards, which does not work for a weight that a stage uses again behind its "
        f"first use: {said.partition(' (')[0]}",
        hint="give each use a layer of its own, or plan --schedule 1F1B --virtual-stages 1",
    )


def _of_formats(wrapping: Wrapping, said: str) -> WrapError | None:
    """Return what the plan's precision did to operands of several formats, if it did anything."""
    precision = wrapping.plan.precision
    if wrapping.cast:
        return WrapError(
            f"{len(wrapping.cast)} parameters such as {wrapping.cast[0]} were cast to the plan's "
            f"{precision}, and the forward gives them another format: {said}",
            hint="let the forward cast to its weights' dtype, as x.to(self.weight.dtype), or build the "
            "model in one format",
        )
    if not (wrapping.plan.shards_parameters and precision in COMPUTE):
        return None
    return WrapError(
        f"FSDP2 gathers weights in {COMPUTE[precision]} under {precision}, without autocast, and the "
        f"forward makes tensors of another format: {said}",
        hint="let constants follow the activations, as mask.to(x.dtype), or plan ddp, which runs under "
        "autocast: parastrat recommend --strategy ddp",
    )
