"""Python's collector of cycles: kept out of bursts of work that make none, and asked what it knows."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def tracked() -> list[Any]:
    """Return all objects that the collector looks after.

    Objects that a script set aside by ``gc.freeze()`` are not told by ``gc.get_objects()``; they are given
    back to the collector here, which costs its next full collection some time.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    return gc.get_objects()
