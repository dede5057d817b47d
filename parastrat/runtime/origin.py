"""A wrapped module's parts as they were before: what wrapping put on them is taken off for a while.

Wrapping changes classes, forwards, hooks, sizes and what holds a block. Copies must have none of it: hooks
and groups of theirs would be those of the model. What a script changed since must stay.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.collection import without_collection
from parastrat.errors import WrapError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Entries = Mapping[Any, Any]

#: torch's own dictionaries in a module
_TABLES = {name: table for name, table in vars(nn.Module()).items() if isinstance(table, dict)}
#: those of values, which are whatever they are now
_VALUES = ("_parameters", "_buffers")
_HOOKS = tuple(name for name, table in _TABLES.items() if isinstance(table, OrderedDict))
#: stands where there is nothing
_NOTHING = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Look:
    """What one part was at some time, without its values."""

    part: nn.Module
    kind: type[nn.Module]
    attributes: Entries
    #: those of torch's dictionaries that were not empty
    tables: Mapping[str, Entries]

    @classmethod
    def at(cls, part: nn.Module) -> _Look:
        held = dict(vars(part))
        tables = {name: dict(held[name]) for name in _TABLES if held.get(name) and name not in _VALUES}
        return cls(part=part, kind=type(part), attributes=held, tables=tables)


class Origin:
    """What the parts of a module are before it is wrapped; shallow, so that it costs next to nothing.

    Args:
        module: not yet divided.
    """

    @without_collection()
    def __init__(self, module: nn.Module) -> None:
        self._before = {id(part): _Look.at(part) for part in module.modules()}
        self._wrapped: dict[int, _Look] = {}

    @without_collection()
    def is_wrapped(self, model: nn.Module) -> None:
        """Note what wrapping made of the parts; what changes from here on is the script's."""
        parts = [*(look.part for look in self._before.values()), *model.modules()]
        self._wrapped = {id(part): _Look.at(part) for part in parts}

    @contextmanager
    def back(self) -> Iterator[None]:
        """Let the parts be what they were before, with what a script changed since, but for its hooks.

        Raises:
            WrapError: a part has another class than wrapping gave it.
        """
        kept = [(look.part, type(look.part), vars(look.part)) for look in self._before.values()]
        for part, kind, _ in kept:
            if kind is not self._wrapped[id(part)].kind:
                raise WrapError(
                    f"a {kind.__name__} got another class after auto_parallelize, and copies of the model "
                    "cannot follow that",
                    hint="change it, as torch.nn.utils.parametrize does, before auto_parallelize",
                )
        try:
            for part, _, held in kept:
                before = self._before[id(part)]
                # past the part's own, which may do more
                object.__setattr__(part, "__dict__", self._attributes(held, before))
                object.__setattr__(part, "__class__", before.kind)
            yield
        finally:
            for part, kind, held in kept:
                object.__setattr__(part, "__class__", kind)
                object.__setattr__(part, "__dict__", held)

    def _attributes(self, now: Entries, before: _Look) -> dict[str, Any]:
        wrapped = self._wrapped[id(before.part)]
        found = _without_wrapping(now, before.attributes, wrapped.attributes)
        for name, empty in _TABLES.items():
            if name in _VALUES or name not in now:
                continue
            earlier, made = before.tables.get(name, {}), wrapped.tables.get(name, {})
            if not now[name] and not earlier:
                continue
            if name in _HOOKS:
                entries = {key: earlier[key] for key in earlier if key in now[name]}
            else:
                entries = _without_wrapping(now[name], earlier, made)
            found[name] = type(empty)(entries)
        return found

    def later(self, part: nn.Module) -> tuple[Entries, Mapping[str, Entries]]:
        """Return what a script has set on a part since, and its hooks, all of them where some are later.

        Args:
            part: of the wrapped model. Attributes are told of parts that wrapping made: those of others
                are copied with them.
        """
        wrapped = self._wrapped.get(id(part))
        if wrapped is None:  # a script's own, which was copied with its hooks
            return {}, {}
        held = vars(part)
        hooks = {
            name: held[name]
            for name in _HOOKS
            if held.get(name) and not held[name].keys() <= wrapped.tables.get(name, {}).keys()
        }
        if id(part) in self._before:
            return {}, hooks
        known = wrapped.attributes
        return {
            name: value
            for name, value in held.items()
            if name not in _TABLES and value is not known.get(name, _NOTHING)
        }, hooks

    def is_ours(self, part: nn.Module, table: str, key: Any) -> bool:
        """Return whether a part had an entry in a table of hooks when it was wrapped."""
        return key in self._wrapped[id(part)].tables.get(table, {})


def _without_wrapping(now: Entries, before: Entries, wrapped: Entries) -> dict[Any, Any]:
    """Return entries as they were before where wrapping changed them and nobody since, else as they are."""
    found = {}
    for key in dict.fromkeys((*before, *now)):
        current = now.get(key, _NOTHING)
        entry = before.get(key, _NOTHING) if current is wrapped.get(key, _NOTHING) else current
        if entry is not _NOTHING:
            found[key] = entry
    return found
