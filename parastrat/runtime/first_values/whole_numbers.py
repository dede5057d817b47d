"""Whole numbers that a module holds in buffers, such as strides, on which sizes may hang."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn

from parastrat.runtime.first_values.replay import Record
from parastrat.runtime.tensors.slots import slots_of

_HOST = torch.device("cpu")
#: more elements than lengths, strides and grids have are not looked at
_MOST = 2**12
#: what the constructors of modules did that were built on the meta device
_records: WeakKeyDictionary[nn.Module, Record] = WeakKeyDictionary()


def remember(module: nn.Module, record: Record) -> None:
    """Keep what a module's constructor did on the meta device, as long as there is the module."""
    _records[module] = record


def whole_numbers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the values of those buffers that are a few whole numbers, as far as they are known."""
    record = _records.get(module)
    found = {}
    for slot in slots_of(module):
        held = slot.tensor
        if slot.is_parameter or held.is_floating_point() or held.is_complex() or held.numel() > _MOST:
            continue
        if not held.is_meta:
            found[slot.name] = held.detach().cpu()
        elif record is not None and (values := record.made(held, _HOST)) is not None:
            found[slot.name] = values
    return found
