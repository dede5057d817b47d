"""Weights from a file or folder into a module, whole or sharded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError
from parastrat.runtime.safe_tensors import SUFFIX, SafeTensors, files_of
from parastrat.runtime.slots import Slot, clean_name, slots_of
from parastrat.runtime.training.checkpoints import quiet_alone


def load_weights(module: nn.Module, path: Path, elsewhere: frozenset[str] = frozenset()) -> None:
    """Fill all parameters and persistent buffers.

    ``elsewhere`` names what the checkpoint may have besides: the weights of other pipeline stages.

    ``path`` is a file of ``torch.save`` (a state_dict, or one under the key ``model``), a folder of
    ``torch.distributed.checkpoint`` (likewise), or safetensors: a file, or a model's folder as Hugging Face
    has it, by the names of the module. DDP's ``module.`` is ignored.

    Raises:
        UsageError: safetensors is not installed.
        WrapError: if there is nothing to read, or names or shapes differ.
    """
    slots = [slot for slot in slots_of(module) if slot.persistent]
    elsewhere |= _further_names(module, {name for slot in slots for name in slot.names} | elsewhere)
    safe = files_of(path) if path.is_dir() else [path] if path.suffix == SUFFIX and path.is_file() else []
    if safe:
        tensors, called = SafeTensors(safe), _names_in(module, slots)
        names = {own: name for name in tensors if (own := called(name)) is not None}
        shapes = {own: tensors.shape(name) for own, name in names.items()}
        chosen = _matched(slots, shapes, path, elsewhere)
        _fill(tensors, [(slot, names[own]) for slot, own in chosen])
    elif path.is_dir():
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
    _fill(state, _matched(slots, shapes, path, elsewhere))


def _fill(state: Mapping[str, torch.Tensor], chosen: list[tuple[Slot, str]]) -> None:
    with torch.no_grad():
        for slot, name in chosen:  # one tensor at a time leaves the file: it is mapped, not read
            held, given = slot.current(), slot.placed(state[name].to(slot.tensor.dtype))
            _local(held).copy_(_local(given))


def _names_in(module: nn.Module, slots: list[Slot]) -> Callable[[str], str | None]:
    """Return what a stored name is in a module, None for what it passes over.

    Those of transformers say what earlier versions kept, and under which name they hold the body that a
    checkpoint may be of alone, without its head.
    """
    ignored = [
        re.compile(each) for each in getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    ]
    body = getattr(module, "base_model_prefix", "")
    known = {name for slot in slots for name in slot.names}

    def called(name: str) -> str | None:
        within = name if name in known else f"{body}.{name}"
        if within in known:
            return within
        return None if any(pattern.search(name) for pattern in ignored) else name

    return called


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
    stored: Mapping[str, tuple[int, ...] | None],
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
        raise WrapError(
            f"checkpoint {path} {said}",
            hint="pass the checkpoint of this very model, by its names; what from_pretrained renames or "
            "joins as it loads, such as experts, takes the built module",
        )
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
