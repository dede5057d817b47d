"""Numbers of heads and features that a module's own code counts by, in its attributes and its config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from parastrat.runtime.tensor_parallel.layout import Group

#: before the names of those that a config holds
_OF_CONFIG = "config."


def counts_of(
    module: nn.Module, layers: frozenset[str], numbers: frozenset[int]
) -> dict[str, tuple[str, ...]]:
    """Return the attributes beside the layers that hold one of the numbers; not sizes of one head."""
    found = {}
    for home in sorted({path.rpartition(".")[0] for path in layers}):
        held = [name for name, value in _counts(module.get_submodule(home)) if value in numbers]
        if held:
            found[home] = tuple(held)
    return found


def _counts(home: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the numbers that a module's code may count heads or features by, with their names.

    Of its config those of heads alone: it speaks of the whole model.
    """
    config: Any = vars(home).get("config")
    for start, held in (("", home), (_OF_CONFIG, config)):
        for name, value in getattr(held, "__dict__", {}).items():
            of_one = re.search(r"head_(dim|size)|per_head", name)
            if type(value) is int and not of_one and (not start or "head" in name):
                yield start + name, value


def divide_counts(module: nn.Module, group: Group, degree: int) -> None:
    """Let the modules between columns and rows count this rank's heads and features."""
    for path, names in group.sizes.items():
        part = module.get_submodule(path)
        of_config = [name.removeprefix(_OF_CONFIG) for name in names if name.startswith(_OF_CONFIG)]
        if of_config:
            vars(part)["config"] = Counting(part.config, of_config, degree)
        for name in names:
            if not name.startswith(_OF_CONFIG):
                setattr(part, name, getattr(part, name) // degree)


class Counting:
    """A config that counts this rank's heads, and is the one that it stands for in all else.

    What is set of that later, such as another attention, is read here too.
    """

    def __init__(self, config: Any, names: Iterable[str], degree: int) -> None:
        self._of = config
        self._counts = {name: getattr(config, name) // degree for name in names}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in {"_of", "_counts"}:  # while it is copied, nothing is here yet
            raise AttributeError(name)
        held = self._counts
        return held[name] if name in held else getattr(self._of, name)
