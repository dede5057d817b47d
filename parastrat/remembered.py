"""What was made of values, so that it is not made again for the same one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")

#: a job has one model, at most at several sequence lengths; a process that plans many has all presets
_MOST = 64


def remembered(make: Callable[[Key], Made]) -> Callable[[Key], Made]:
    """Let a function of one value return what it made of that very object before, of the last few hundred.

    Values are told apart by identity: to compare or hash a model takes as long as what is saved.
    """
    # the value is kept with what was made of it, so that no other can have its identity
    known: dict[int, tuple[Key, Made]] = {}

    @wraps(make)
    def found(value: Key) -> Made:
        entry = known.get(id(value))
        if entry is not None:
            return entry[1]
        made = make(value)
        if len(known) >= _MOST:
            del known[next(iter(known))]
        known[id(value)] = value, made
        return made

    return found
