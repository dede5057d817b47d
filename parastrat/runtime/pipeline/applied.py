"""``model.apply(initialise)`` where a rank has some stages: weights of the others are there for a moment.

What stands in for them takes no memory, and torch refuses to draw into it ("more than one element of the
written-to tensor refers to a single memory location"). Where they are drawn and forgotten, those of this
rank's stages are the ones that one process draws.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.pipeline.prune import Absent


def apply_to_all(absent: Absent, device: torch.device) -> None:
    """Let functions that a model applies to its parts see parameters where other stages hold them.

    Args:
        absent: with its stand-ins in place.
        device: on which they are for that moment.
    """
    for part, keys in absent.keys.items():
        vars(part)["apply"] = partial(_applied, part, tuple(keys), device)


def _applied(
    part: nn.Module, keys: tuple[str, ...], device: torch.device, function: Callable[[nn.Module], Any]
) -> nn.Module:
    for child in part.children():
        child.apply(function)
    stand_ins = {key: vars(part).pop(key) for key in keys}
    # as the order in which a part has them is that in which some functions draw
    before = dict(part._parameters)  # noqa: SLF001  (setattr would look for the stand-in)
    for key, stand_in in stand_ins.items():
        part._parameters[key] = nn.Parameter(torch.zeros_like(stand_in, device=device).contiguous())  # noqa: SLF001  (as above)
    try:
        function(part)
    finally:
        part._parameters.clear()  # noqa: SLF001  (as above)
        part._parameters.update(before)  # noqa: SLF001  (as above)
        vars(part).update(stand_ins)
    return part
