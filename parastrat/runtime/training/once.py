"""A model is wrapped once: accelerate, Lightning and transformers' Trainer wrap what they are given."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import WrapError
from parastrat.runtime.wrapped import is_wrapped
from parastrat.runtime.wrapping import wrapping_of

if TYPE_CHECKING:
    from torch import nn


def refuse_again() -> None:
    """Let ``DistributedDataParallel`` refuse what is wrapped already.

    Around DDP it would reduce every gradient twice, around divided weights fail with torch's message.
    """
    kind: Any = DistributedDataParallel
    kind.__init__ = _checked


_init = DistributedDataParallel.__init__


@wraps(_init)
def _checked(self: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any) -> None:
    wrapped = next((part for part in module.modules() if is_wrapped(part)), None)
    if wrapped is not None and wrapping_of(wrapped).plan.mesh.world_size > 1:
        raise WrapError(
            f"the model is wrapped already, as {wrapping_of(wrapped).plan.strategy}, and "
            "DistributedDataParallel would wrap it once more",
            hint="leave that out. accelerate's prepare does it: hand it the rest alone. "
            "transformers' Trainer and Lightning wrap models themselves: leave auto_parallelize out "
            "there, and parastrat emit plan.toml --to accelerate says the plan in Trainer's words",
        )
    _init(self, module, *args, **kwargs)
