"""All shipped profiles, for whoever wants to look through them; planning reads one file for each name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from parastrat.profiles.files import profiles_root, read_profile

_ALIASES = "aliases"
_LEFT_OUT = "left_out"
#: what stands between the words of a name
_BETWEEN = re.compile(r"[-_ ()]+")


class ProfileKind(StrEnum):
    """What a profile describes; the folder that it is in."""

    NODES = "nodes"
    DEVICES = "devices"
    MODELS = "models"
    STACKS = "stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One profile as its file states it."""

    kind: ProfileKind
    name: str
    aliases: tuple[str, ...]
    table: Mapping[str, Any]


def profile_names(kind: ProfileKind) -> tuple[str, ...]:
    """Return the names of the profiles of one kind, without aliases, in order; no file is read."""
    paths = (profiles_root() / kind).glob("*.toml")
    return tuple(sorted(path.stem for path in paths if path.stem != _ALIASES))


def aliases_of(kind: ProfileKind) -> Mapping[str, str]:
    """Return the other names of one kind, each with the name that it stands for.

    Raises:
        ProfileError: for a file of them that cannot be read.
    """
    file = read_profile(kind, _ALIASES)
    return file.table if file else {}


def preset_meant(name: str) -> str | None:
    """Return the model preset that another spelling of its name or of an alias means; None without one.

    Case and what stands between words make no difference, except between two digits: ``Llama_3.1 8B`` is
    ``llama-3.1-8b``, and ``llama-38b`` is not ``llama-3-8b``.

    Raises:
        ProfileError: for a file of aliases that cannot be read.
    """
    aliases = aliases_of(ProfileKind.MODELS)
    known = {_folded(each): each for each in (*aliases, *profile_names(ProfileKind.MODELS))}
    found = known.get(_folded(name))
    return None if found is None else str(aliases.get(found, found))


def why_left_out(name: str) -> str | None:
    """Return why a model that published tables name has no preset; None where nothing is known of it.

    Raises:
        ProfileError: for a file of the reasons that cannot be read.
    """
    file = read_profile(".", _LEFT_OUT)
    reasons = {_folded(each): str(reason) for each, reason in file.table.items()} if file else {}
    return reasons.get(_folded(name))


@cache
def _folded(name: str) -> str:
    words = _BETWEEN.sub(" ", name.lower()).strip()
    return re.sub(r"(?<!\d) | (?!\d)", "", words)


def entry_of(kind: ProfileKind, name: str) -> Entry | None:
    """Return a profile by its name or an alias, a model's in any spelling; None where there is none.

    Raises:
        ProfileError: for a profile that cannot be read.
    """
    own = aliases_of(kind)
    found = str(own.get(name, name))
    file = None if found == _ALIASES else read_profile(kind, found)
    if file is None and kind is ProfileKind.MODELS:
        found = preset_meant(name) or name
        file = read_profile(kind, found) if found != name else None
    if file is None:
        return None
    others = tuple(sorted(alias for alias, meant in own.items() if meant == found))
    return Entry(kind=kind, name=found, aliases=others, table=file.table)


def entries_of(kind: ProfileKind) -> tuple[Entry, ...]:
    """Return every profile of one kind.

    Raises:
        ProfileError: for a profile that cannot be read.
    """
    found = (entry_of(kind, name) for name in profile_names(kind))
    return tuple(entry for entry in found if entry is not None)


def all_names(kinds: Iterable[ProfileKind] = ProfileKind) -> tuple[str, ...]:
    """Return every name and alias of some kinds."""
    return tuple({name for kind in kinds for name in (*profile_names(kind), *aliases_of(kind))})
