"""Which modules may take another way through their parts on each rank: read from the source of forwards.

Layers that are left out at random (stochastic depth, LayerDrop) and branches on values run on some ranks
and not on others. DDP must search for what a step used, and FSDP2 cannot gather such a part by itself: the
ranks that run it would wait for the others.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_DRAW = r"\b(?:rand|random|uniform|bernoulli_?)\("
#: a name that a draw is given
_DRAWN = re.compile(rf"^\s*(\w+)\s*=.*{_DRAW}", re.MULTILINE)
_BRANCH = re.compile(r"^.*\b(?:if|while)\b.*$", re.MULTILINE)
#: a number that is read of a tensor
_VALUE = re.compile(r"\.(?:item|sum|mean|norm)\(")
_OWN = re.compile(r"\bself((?:\.\w+)+)(?!\w*\()")


def drawn_ways(module: nn.Module) -> list[str]:
    """Return the names of modules whose forward draws numbers and branches on them; "" is the whole."""
    return [name for name, part in module.named_modules() if _draws(part)]


def chooses_ways(module: nn.Module) -> bool:
    """Return whether some forward of a module branches on numbers that it draws, or on values."""
    return any(_draws(part) or _reads(part) for part in module.modules())


def outside_of(module: nn.Module, units: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the units that no module around them may leave out."""
    choosing = drawn_ways(module)
    return {
        name: unit
        for name, unit in units.items()
        if not any(not way or name.startswith(f"{way}.") for way in choosing)
    }


def _draws(part: nn.Module) -> bool:
    source = _source(part)
    drawn = [_DRAW, *(rf"\b{name}\b" for name in _DRAWN.findall(source))]
    return any(
        re.search("|".join(drawn), line) and not _never(part, line) for line in _BRANCH.findall(source)
    )


def _reads(part: nn.Module) -> bool:
    return any(_VALUE.search(line) for line in _BRANCH.findall(_source(part)))


def _source(part: nn.Module) -> str:
    return _source_of(type(part).forward)  # FSDP2 makes classes of its own, which inherit it


@cache
def _source_of(forward: Callable[..., Any]) -> str:
    """Return a forward's source, which is read once for all modules of a class; empty where it has none."""
    if forward.__module__.startswith("torch."):
        return ""
    try:
        return inspect.getsource(forward)
    except (OSError, TypeError):  # made at run time
        return ""


def _never(part: nn.Module, line: str) -> bool:
    """Return whether a line compares with a probability of the module that is zero."""
    for path in _OWN.findall(line):
        value: Any = part
        for name in path.strip(".").split("."):
            value = getattr(value, name, None)
        if type(value) in {int, float} and value == 0:
            return True
    return False
