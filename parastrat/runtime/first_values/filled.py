"""First values of a wrapped model: those that its builder says, or a checkpoint's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.runtime.first_values.initialise import Recipe, initialise
from parastrat.runtime.first_values.weights import StoredWeights
from parastrat.runtime.tensors.slots import slots_of

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.starting import Start
    from parastrat.runtime.wrapping import Wrapping


def fill(module: nn.Module, wrapping: Wrapping, start: Start) -> None:
    """Give meta tensors their values, and all persistent ones those of the checkpoint.

    Adapters that a checkpoint of the model without them lacks begin as their builder says.

    Raises:
        WrapError: one has none, or the checkpoint is another model's.
    """
    if start.give_memory is not None:
        start.give_memory(module)
        return
    absent = None if wrapping.pipeline is None else wrapping.pipeline.absent
    slots = [slot for slot in slots_of(module) if slot.is_meta]
    stored = None if start.checkpoint is None else StoredWeights(Path(start.checkpoint))
    anew = frozenset() if stored is None else stored.lacks_adapters(module)
    fresh = [slot for slot in slots if stored is None or not slot.persistent or slot.name in anew]
    if stored is not None:
        for slot in [slot for slot in slots if slot.persistent and slot.name not in anew]:
            slot.put(slot.allocated(wrapping.device))
    if fresh:
        recipe = Recipe(
            device=wrapping.device,
            blocks=wrapping.blocks.names if absent is None else absent.blocks,
            record=start.record,
            mesh=wrapping.mesh,
            elsewhere=frozenset() if absent is None or stored is not None else absent.first_names,
        )
        if absent is None or stored is not None:
            initialise(module, fresh, recipe)
        else:
            with absent.back():
                initialise(module, [slot for slot in slots_of(module) if slot.is_meta], recipe)
        wrapping.calls.append(f"# {len(fresh)} tensors initialised on {wrapping.device}, block by block")
    if stored is not None:
        stored.load(module, anew=anew, elsewhere=frozenset() if absent is None else absent.names)
        wrapping.calls.append(f"# weights loaded from {start.checkpoint}")
