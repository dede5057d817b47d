"""Weights from a file or folder into a module, whole or sharded."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError
from parastrat.runtime.slots import Slot, clean_name, slots_of
from parastrat.runtime.training.checkpoints import quiet_alone


def load_weights(module: nn.Module, path: Path, elsewhere: frozenset[str] = frozenset()) -> None:
    """Fill all parameters and persistent buffers.

    ``elsewhere`` names what the checkpoint may have besides: the weights of other pipeline stages.

    ``path`` is a file of ``torch.save`` (a state_dict, or one under the key ``model``), or a folder of
    ``torch.distributed.checkpoint`` (likewise). DDP's ``module.`` is ignored.

    Raises:
        WrapError: if there is nothing to read, or names or shapes differ.
    """
    slots = [slot for slot in slots_of(module) if slot.persistent]
    elsewhere |= _further_names(module, {name for slot in slots for name in slot.names} | elsewhere)
    if path.is_dir():
        _load_folder(slots, path, elsewhere)
    elif path.is_file():
        _load_file(slots, path, elsewhere)
    else:
        raise WrapError(f"no checkpoint at {path}", hint="check checkpoint=; every rank must see the path")


def _further_names(module: nn.Module, names: set[str]) -> set[str]:
    """Return the names that a state_dict has besides these: of modules that others hold too."""
    places: dict[nn.Module, list[str]] = defaultdict(list)
    for path, part in module.named_modules(remove_duplicate=False):
        places[part].append(clean_name(path))
    further = {first: others for first, *others in places.values() if others}
    owned = [name.rpartition(".") for name in names]
    return {f"{path}.{key}" for home, _, key in owned for path in further.get(home, ())}


def _load_file(slots: list[Slot], path: Path, elsewhere: frozenset[str]) -> None:
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except RuntimeError as error:  # files of torch.save's old format cannot be mapped
        if "mmap" not in str(error):
            raise
        state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state.get("model"), dict):
        state = state["model"]
    state = {name.removeprefix("module."): value for name, value in state.items()}
    shapes = {name: _shape(value) for name, value in state.items()}
    chosen = _matched(slots, shapes, path, elsewhere)
    with torch.no_grad():
        for slot, name in chosen:  # one tensor at a time leaves the file: it is mapped, not read
            held, given = slot.current(), slot.placed(state[name].to(slot.tensor.dtype))
            _local(held).copy_(_local(given))


def _load_folder(slots: list[Slot], path: Path, elsewhere: frozenset[str]) -> None:
    entries = FileSystemReader(path).read_metadata().state_dict_metadata
    shapes = {name: _shape(entry) for name, entry in entries.items()}
    prefix = "" if any(name in shapes for name in slots[0].names) else "model."
    stored = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    chosen = _matched(slots, stored, path, elsewhere)
    with quiet_alone():
        load({prefix + name: slot.current().detach() for slot, name in chosen}, checkpoint_id=path)


def _matched(
    slots: list[Slot],
    stored: dict[str, tuple[int, ...] | None],
    path: Path,
    elsewhere: frozenset[str],
) -> list[tuple[Slot, str]]:
    """Pair every slot with the name that the checkpoint has for it."""
    names = [next((name for name in slot.names if name in stored), None) for slot in slots]
    missing = [slot.name for slot, name in zip(slots, names, strict=True) if name is None]
    known = {name for slot in slots for name in slot.names} | elsewhere
    foreign = [name for name, shape in stored.items() if name not in known and shape is not None]
    wrong = [
        f"{name} {stored[name]} for {tuple(slot.tensor.shape)}"
        for slot, name in zip(slots, names, strict=True)
        if name is not None and stored[name] != tuple(slot.tensor.shape)
    ]
    faults = {"lacks": missing, "has besides": foreign, "has other shapes:": wrong}
    said = "; ".join(f"{what} {_few(which)}" for what, which in faults.items() if which)
    if said:
        raise WrapError(f"checkpoint {path} {said}", hint="pass the checkpoint of this very model")
    return [(slot, name) for slot, name in zip(slots, names, strict=True) if name is not None]


def _shape(entry: Any) -> tuple[int, ...] | None:
    """Return a stored tensor's shape; None for other things."""
    size = getattr(entry, "size", None)
    if size is None:
        return None
    return tuple(size() if callable(size) else size)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
