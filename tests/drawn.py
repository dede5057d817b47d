"""A draw of what is too much to test each time; every commit has another."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[1]


def drawn(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``count`` of the items, in their order; all of them where PARASTRAT_TEST_ALL is set."""
    if "PARASTRAT_TEST_ALL" in os.environ or count >= len(items):
        return list(items)
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    # outside of a checkout: always the same
    places = random.Random(done.stdout).sample(range(len(items)), count)  # noqa: S311 - can be repeated
    return [items[place] for place in sorted(places)]
