"""What was made of the last few values, so that it is not made again for the same one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")

#: a job has one model, at most at several sequence lengths
_MOST = 16


def remembered(make: Callable[[Key], Made]) -> Callable[[Key], Made]:
    """Let a function of one value return what it made of that very object before, the last few times.

    Values are told apart by identity: to compare or hash a model takes as long as what is saved.
    """
    recent: deque[tuple[Key, Made]] = deque(maxlen=_MOST)

    @wraps(make)
    def found(value: Key) -> Made:
        for known, made in recent:
            if known is value:
                return made
        made = make(value)
        recent.appendleft((value, made))
        return made

    return found
