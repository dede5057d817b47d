"""Python's collector of cycles: kept out of bursts of work that make none, and asked what it knows."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@contextmanager
def without_collection() -> Iterator[None]:
    """Let nobody look for cycles among many new objects, which have none.

    Each look goes over all objects of the process: under a million of them, as a training script has, one
    takes longer than a search.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def instances(kinds: Collection[type[Any]]) -> list[Any]:
    """Return the objects of just these kinds, not of theirs by inheritance, that the collector looks after.

    Each refers to its kind, so that the collector finds them without a loop here over a million objects.
    Objects that a script set aside by ``gc.freeze()`` it does not tell; they are given back to it here,
    which costs its next full collection some time.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    # type() rather than isinstance: proxies among the objects may run code when asked for their class
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
