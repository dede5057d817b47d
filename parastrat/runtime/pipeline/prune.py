"""A module without the parameters of other stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensors.slots import Slot, meta_like, slots_of


def from_first_stage(module: nn.Module, device: torch.device, group: dist.ProcessGroup) -> None:
    """Overwrite all real tensors with those of the first rank of a pipeline; its ranks call it."""
    for slot in slots_of(module):
        if not slot.is_meta:
            values = slot.tensor.detach().to(device).contiguous()
            dist.broadcast(values, group_src=0, group=group)
            slot.tensor.data.copy_(values)


class Absent:
    """The parameters that other stages hold: here they are no parameters, and take no memory.

    The forward still reads shapes and formats of them, on its way to this stage's blocks: tensors of zeros
    stand in as plain attributes.

    Args:
        module: changed in place.
        kept: names of the parameters of this stage.
        parts: names of the modules whose buffers belong to other stages. They keep their buffers, since the
            forward may read constants of them, but do not save them.
    """

    def __init__(self, module: nn.Module, kept: frozenset[str], parts: frozenset[str]) -> None:
        self.module = module
        #: names of the repeated blocks of the whole module
        self.blocks = repeated_blocks(module).names
        self.slots = [slot for slot in slots_of(module) if slot.is_parameter and slot.name not in kept]
        for slot in self.slots:
            slot.tensor = slot.standing_for(meta_like(slot.tensor))
        self.first_names = frozenset(slot.name for slot in self.slots)
        self.names = frozenset(name for slot in self.slots for name in slot.names)
        buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
        for name in parts:
            for part in module.get_submodule(name).modules():
                part._non_persistent_buffers_set.update(part._buffers)  # noqa: SLF001  (no public way)
        #: parameters and buffers that other stages save
        self.names |= buffers - {name for name, _ in _persistent_buffers(module)}
        self._take_out()

    def stand_in(self, device: torch.device) -> None:
        """Put zeros where the forward may look for the parameters."""
        for slot in self.slots:
            zeros = torch.zeros((), dtype=slot.tensor.dtype, device=device).expand(slot.tensor.shape)
            for owner, key in slot.owners:
                vars(owner)[key] = zeros

    @property
    def stand_ins(self) -> list[torch.Tensor]:
        """What stands where the parameters were."""
        return [vars(owner)[key] for slot in self.slots for owner, key in slot.owners]

    def answered(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward in which modules without any parameter left show what stands in for theirs.

        Hugging Face's models ask the first parameter of a part for its device and format.
        """
        keys = self.keys
        held = {
            part: [vars(owner)[key] for owner in part.modules() for key in keys.get(owner, ())]
            for part in self.module.modules()
            if next(part.parameters(), None) is None
        }
        bare = {part: stand_ins for part, stand_ins in held.items() if stand_ins}

        @wraps(forward)
        def answering(*args: Any, **kwargs: Any) -> Any:
            for part, stand_ins in bare.items():
                vars(part)["parameters"] = _returning(stand_ins)
            try:
                return forward(*args, **kwargs)
            finally:
                for part in bare:
                    vars(part).pop("parameters", None)

        return answering

    @contextmanager
    def back(self) -> Iterator[list[Slot]]:
        """Put them back for a while, on the meta device: initialisers draw for all, in one order."""
        for slot in self.slots:
            for owner, key in slot.owners:
                vars(owner).pop(key, None)
            slot.put(slot.tensor)
        try:
            yield self.slots
        finally:
            self._take_out()

    @property
    def keys(self) -> dict[nn.Module, list[str]]:
        """The absent parameters of each module that had some."""
        keys: dict[nn.Module, list[str]] = {}
        for slot in self.slots:
            for owner, key in slot.owners:
                keys.setdefault(owner, []).append(key)
        return keys

    def _take_out(self) -> None:
        for slot in self.slots:
            for owner, key in slot.owners:
                del owner._parameters[key]  # noqa: SLF001  (delattr would look for the stand-in)
                vars(owner)[key] = slot.tensor.detach()


def _returning(tensors: list[torch.Tensor]) -> Callable[..., Iterator[torch.Tensor]]:
    return lambda *_args, **_kwargs: iter(tensors)


def _persistent_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        (name, slot.tensor)
        for slot in slots_of(module)
        if slot.persistent and not slot.is_parameter
        for name in slot.names
    ]
