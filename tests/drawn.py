"""A draw of what is too much to test each time; every commit has another."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
ROOT = Path(__file__).resolve().parents[1]


def drawn(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``count`` of the items, in their order; all of them where PARASTRAT_TEST_ALL is set."""
    if "PARASTRAT_TEST_ALL" in os.environ or count >= len(items):
        return list(items)
    return [items[place] for place in sorted(_draw().sample(range(len(items)), count))]


def drawn_of(mapping: Mapping[Item, Value], count: int) -> dict[Item, Value]:
    """Return ``count`` of a mapping's items, as ``drawn`` does."""
    return {key: mapping[key] for key in drawn(list(mapping), count)}


def shuffled(items: Sequence[Item]) -> list[Item]:
    """Return all items in an order that is drawn: to take from it until there are enough of some kind."""
    return _draw().sample(items, len(items))


def _draw() -> random.Random:
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    # outside of a checkout: always the same
    return random.Random(done.stdout)  # noqa: S311 - can be repeated
