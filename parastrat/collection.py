"""Python's collector of cycles: kept out of bursts of work that make none, and asked what it knows."""

from __future__ import annotations

import gc
from contextlib import ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class without_collection(ContextDecorator):  # noqa: N801  (as contextlib names such)
    """Let nobody look for cycles among many new objects, which have none.

    Each look goes over all objects of the process: under a million of them, as a training script has, one
    takes longer than a search. What is due meanwhile is done as the caller next makes objects.
    """

    def __init__(self) -> None:
        # a function that is decorated may call itself
        self._were_on: list[bool] = []

    def __enter__(self) -> None:
        self._were_on.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._were_on.pop():
            gc.enable()


#: what ``instances`` found in ``setting_aside``, by the kinds; none outside of it
_aside: dict[frozenset[type[Any]], list[Any]] | None = None


@contextmanager
def setting_aside() -> Iterator[None]:
    """Let the collector, and ``instances``, go over what is there now once, and then over what is new.

    What is garbage by then is collected afterwards. May be nested; the outermost counts.
    """
    global _aside  # noqa: PLW0603  (as the collector is the process's)
    if _aside is not None:
        yield
        return
    _aside = {}
    gc.freeze()
    try:
        yield
    finally:
        _aside = None
        gc.unfreeze()


def instances(kinds: Collection[type[Any]]) -> list[Any]:
    """Return the objects of just these kinds, not of theirs by inheritance, that the collector looks after.

    Each refers to its kind, so that the collector finds them without a loop here over a million objects.
    Objects that a script set aside by ``gc.freeze()`` it does not tell; they are given back to it here,
    which costs its next full collection some time.
    """
    asked = frozenset(kinds)
    if _aside is None:
        if gc.get_freeze_count():
            gc.unfreeze()
        return _referring(asked)
    if asked not in _aside:
        gc.unfreeze()
        found = _referring(asked)
        # what has come since others were asked for is set aside with the rest
        _aside.clear()
        _aside[asked] = found
        gc.freeze()
        return found
    return [*_aside[asked], *_referring(asked)]


def _referring(kinds: frozenset[type[Any]]) -> list[Any]:
    # type() rather than isinstance: proxies among the objects may run code when asked for their class
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
