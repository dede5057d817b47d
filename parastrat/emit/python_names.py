"""Names of a model's parts in a few lines of Python: blocks by number, stages by slices of blocks."""

from __future__ import annotations

import json
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH = 104


def blocks_list(blocks: Sequence[str]) -> str:
    """Return a list of all blocks as code, such as ``[f"layers.{index}" for index in range(32)]``."""
    runs = [f"{name} for index in {numbers}" for name, numbers in _runs(blocks)]
    if len(runs) == 1:
        return f"[{runs[0]}]"
    return "[\n" + "".join(f"    *({run}),\n" for run in runs) + "]"


def _runs(blocks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name with a gap, and the numbers that it stands for."""
    keys = [block.rpartition(".") for block in blocks]
    # numbers that follow each other in one list differ from their places by the same
    counted = [
        (head, int(key) - place if key.isdigit() else key) for place, (head, _, key) in enumerate(keys)
    ]
    place = 0
    for (head, _), run in groupby(counted):
        many = len(list(run))
        key, prefix = keys[place][2], f"{head}." if head else ""
        if key.isdigit():
            first = int(key)
            numbers = f"range({f'{first}, ' if first else ''}{first + many})"
            yield f'f"{prefix}{{index}}"', numbers
        else:
            yield json.dumps(f"{prefix}{key}"), "range(1)"
        place += many


def stage_list(parts: Sequence[str], blocks: Sequence[str]) -> str:
    """Return a list of the parts of a stage as code, with slices of ``BLOCKS``."""
    places = {name: place for place, name in enumerate(blocks)}
    items: list[str] = []
    # blocks that follow each other differ from their places in the stage by the same
    steps = (places[name] - index if name in places else None for index, name in enumerate(parts))
    for step, run in groupby(zip(steps, parts, strict=True), lambda item: item[0]):
        own = [name for _, name in run]
        if step is None:
            items += map(json.dumps, own)
            continue
        first = places[own[0]]
        end = first + len(own)
        items.append(f"BLOCKS[{first or ''}:{end if end < len(blocks) else ''}]")
    if len(items) == 1 and items[0].startswith("BLOCKS"):
        return items[0]
    return listed([f"*{item}" if item.startswith("BLOCKS") else item for item in items])


def listed(items: Sequence[str]) -> str:
    """Return a list of some items of code, as an item of another list."""
    together = ", ".join(items)
    if len(together) < _WIDTH - len("    [],"):
        return f"[{together}]"
    lines = textwrap.wrap(together, _WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return "[\n" + "".join(f"        {line}\n" for line in lines).rstrip("\n") + ",\n    ]"
