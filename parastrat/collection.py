"""Python's collector of cycles, left out of bursts of work that make none."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
