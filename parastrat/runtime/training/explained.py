"""What torch's operators fail with in a step, said in terms of what the plan did to the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from parastrat.errors import WrapError
from parastrat.failures import MIXTURE
from parastrat.runtime.precision import COMPUTE

if TYPE_CHECKING:
    from parastrat.runtime.wrapping import Wrapping

#: what operators say of operands in several number formats
_OF_FORMATS = ("dtype", "scalar type", "should be the same")


@contextmanager
def explained(wrapping: Wrapping) -> Iterator[None]:
    """Say what the plan changed where operators fail of it.

    Raises:
        WrapError: a forward that casts by itself meets other formats, or a loss adds what is divided to
            what is whole.
    """
    try:
        yield
    except RuntimeError as error:
        if MIXTURE.says.search(str(error)):
            raise WrapError(
                f"the loss adds values of parameters, which {wrapping.plan.strategy} divides, to values of "
                "samples, which are whole",
                hint="leave a penalty on weights to the optimizer, as weight_decay, or add up each of its "
                "terms whole: term.full_tensor() if isinstance(term, DTensor) else term",
            ) from error
        precision = wrapping.plan.precision
        gathers_short = wrapping.plan.shards_parameters and precision in COMPUTE
        if not (wrapping.cast or gathers_short) or not any(text in str(error) for text in _OF_FORMATS):
            raise
        if wrapping.cast:
            raise WrapError(
                f"{len(wrapping.cast)} parameters such as {wrapping.cast[0]} were cast to the plan's "
                f"{precision}, and the forward gives them another format: {error}",
                hint="let the forward cast to its weights' dtype, as x.to(self.weight.dtype), or build the "
                "model in one format",
            ) from error
        raise WrapError(
            f"FSDP2 gathers weights in {COMPUTE[precision]} under {precision}, without autocast, and the "
            f"forward makes tensors of another format: {error}",
            hint="let constants follow the activations, as mask.to(x.dtype), or plan ddp, which runs under "
            "autocast: parastrat recommend --strategy ddp",
        ) from error
