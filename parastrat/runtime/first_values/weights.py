"""Weights from a file or folder into a module, whole or sharded."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from parastrat.errors import WrapError
from parastrat.runtime.first_values.adapters import adapted
from parastrat.runtime.first_values.safe_tensors import SafeTensors, files_of
from parastrat.runtime.silence import quiet_alone
from parastrat.runtime.tensors.shares import share_of
from parastrat.runtime.tensors.slots import Slot, clean_name, slots_of

#: slots, each with the name of what it is filled with
_Pairs = list[tuple[Slot, str]]
#: what torch raises of files that are none of its own, or parts of some
_UNREADABLE = (RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError)
#: stands before the weights in what ``save_checkpoint`` writes
_MODEL = "model."


class StoredWeights:
    """What a file or folder holds.

    Args:
        path: a file of ``torch.save`` (a state_dict, or one under the key ``model``), a folder of
            ``torch.distributed.checkpoint`` (likewise), or safetensors: a file, or a model's folder as
            Hugging Face has it, by the names of the module. DDP's ``module.`` is ignored.

    Raises:
        UsageError: safetensors is not installed.
        WrapError: there is nothing to read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: of each name; None for what is no tensor
        self._shapes: Mapping[str, tuple[int, ...] | None]
        self._fill: Callable[[_Pairs], None]
        if safe := files_of(path):
            tensors = SafeTensors(safe)
            self._shapes = {name: tensors.shape(name) for name in tensors}
            self._fill = lambda chosen: _from_tensors(tensors, chosen)
        elif path.is_dir():
            if not (path / ".metadata").is_file():
                raise WrapError(
                    f"{path} has no safetensors, and is no folder of torch.distributed.checkpoint",
                    hint="pass what save_checkpoint wrote, a model's folder with safetensors, or a file",
                )
            entries = FileSystemReader(path).read_metadata().state_dict_metadata
            self._shapes = {name: _shape(entry) for name, entry in entries.items()}
            self._fill = lambda chosen: _from_folder(path, chosen)
        elif path.is_file():
            state = _file(path)
            self._shapes = {name: _shape(value) for name, value in state.items()}
            self._fill = lambda chosen: _from_tensors(state, chosen)
        else:
            raise WrapError(
                f"no checkpoint at {path}", hint="check checkpoint=; every rank must see the path"
            )

    def lacks_adapters(self, module: nn.Module) -> frozenset[str]:
        """Return the weights of a module's adapters, where what is stored is the model without them."""
        around = adapted(module)
        if around is None:
            return frozenset()
        own = [slot for slot in slots_of(module) if slot.persistent and around.is_own(slot.name)]
        names = {name for slot in own for name in slot.names}
        return frozenset() if names & set(self._names(module, own)) else frozenset(names)

    def load(self, module: nn.Module, *, anew: frozenset[str], elsewhere: frozenset[str]) -> None:
        """Fill all parameters and persistent buffers, but for adapters that are not stored.

        Args:
            module: whole or sharded, with memory.
            anew: what ``lacks_adapters`` said of it.
            elsewhere: what may be stored besides: the weights of other pipeline stages.

        Raises:
            WrapError: names or shapes differ.
        """
        if (around := adapted(module)) is not None:
            elsewhere |= {around.inside(name) for name in elsewhere}
        slots = [slot for slot in slots_of(module) if slot.persistent and slot.name not in anew]
        elsewhere |= _further_names(module, {name for slot in slots for name in slot.names} | elsewhere)
        names = self._names(module, slots)
        chosen = self._matched(slots, names, elsewhere)
        self._fill([(slot, names[own]) for slot, own in chosen])

    def _names(self, module: nn.Module, slots: list[Slot]) -> dict[str, str]:
        """Return what is stored by the name that a module has for it; of what it has not, its own."""
        called, known = _names_in(module, slots), {name for slot in slots for name in slot.names}
        there = {own: name for name in self._shapes for own in called(name)}
        if not known.isdisjoint(there) or not any(name.startswith(_MODEL) for name in self._shapes):
            return there
        inside = [name for name in self._shapes if name.startswith(_MODEL)]
        return {own: name for name in inside for own in called(name.removeprefix(_MODEL))}

    def _matched(self, slots: list[Slot], names: Mapping[str, str], elsewhere: frozenset[str]) -> _Pairs:
        """Pair every slot with one of its names that is stored."""
        found = [next((name for name in slot.names if name in names), None) for slot in slots]
        chosen = [(slot, name) for slot, name in zip(slots, found, strict=True) if name is not None]
        known = {name for slot in slots for name in slot.names} | elsewhere
        stored = {own: self._shapes[name] for own, name in names.items()}
        wrong = [
            f"{name} {stored[name]} for {tuple(slot.tensor.shape)}"
            for slot, name in chosen
            if stored[name] != tuple(slot.tensor.shape)
        ]
        faults = {
            "lacks": [slot.name for slot, name in zip(slots, found, strict=True) if name is None],
            "has besides": [
                name for name, shape in stored.items() if name not in known and shape is not None
            ],
            "has other shapes:": wrong,
        }
        said = "; ".join(f"{what} {_few(which)}" for what, which in faults.items() if which)
        if said:
            raise WrapError(
                f"checkpoint {self._path} {said}",
                hint="pass the checkpoint of this very model, by its names; what from_pretrained renames "
                "or joins as it loads, such as experts, takes the built module",
            )
        return chosen


def _further_names(module: nn.Module, names: set[str]) -> set[str]:
    """Return the names that a state_dict has besides these: of modules that others hold too."""
    places: dict[nn.Module, list[str]] = defaultdict(list)
    for path, part in module.named_modules(remove_duplicate=False):
        places[part].append(clean_name(path))
    further = {first: others for first, *others in places.values() if others}
    owned = [name.rpartition(".") for name in names]
    return {f"{path}.{key}" for home, _, key in owned for path in further.get(home, ())}


def _names_in(module: nn.Module, slots: list[Slot]) -> Callable[[str], list[str]]:
    """Return by which names a module knows what is stored under one; none for what it passes over.

    Those of transformers say what earlier versions kept, and under which name they hold the body that a
    checkpoint may be of alone, without its head. Adapters hold the model's own layers by longer names, some
    twice.
    """
    ignored = [
        re.compile(each) for each in getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    ]
    body, around = getattr(module, "base_model_prefix", ""), adapted(module)
    own: dict[str, list[str]] = defaultdict(list)
    for name in (name for slot in slots for name in slot.names):
        own[name].append(name)
        if around is not None and around.inside(name) != name:
            own[around.inside(name)].append(name)

    def called(name: str) -> list[str]:
        within = name if name in own else f"{body}.{name}"
        if within in own:
            return own[within]
        return [] if any(pattern.search(name) for pattern in ignored) else [name]

    return called


def _file(path: Path) -> dict[str, Any]:
    try:
        state = _loaded(path)
    except _UNREADABLE as error:
        said = next(iter(str(error).splitlines()), "")
        raise WrapError(
            f"{path} cannot be read as a file of torch.save ({type(error).__name__}: {said})",
            hint="pass what torch.save(model.state_dict(), FILE) wrote, or safetensors, whose names end so",
        ) from error
    if not isinstance(state, dict):
        raise WrapError(
            f"{path} holds a {type(state).__name__}, and no weights by name",
            hint="save model.state_dict()",
        )
    if isinstance(state.get("model"), dict):
        state = state["model"]
    return {name.removeprefix("module."): value for name, value in state.items()}


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except RuntimeError as error:  # files of torch.save's old format cannot be mapped
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def _from_tensors(state: Mapping[str, torch.Tensor], chosen: _Pairs) -> None:
    with torch.no_grad():
        for slot, name in chosen:  # one tensor at a time leaves the file: it is mapped, not read
            held, given = slot.current(), slot.placed(state[name].to(slot.tensor.dtype))
            share_of(held).copy_(share_of(given))


def _from_folder(path: Path, chosen: _Pairs) -> None:
    with quiet_alone():
        load({name: slot.current().detach() for slot, name in chosen}, checkpoint_id=path)


def _shape(entry: Any) -> tuple[int, ...] | None:
    """Return a stored tensor's shape; None for other things."""
    size = getattr(entry, "size", None)
    if size is None:
        return None
    return tuple(size() if callable(size) else size)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
