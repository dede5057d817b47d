"""What a compiler follows, looked at as it does: autograd has its nodes then, and not as its graph runs.

A graph names what looks, all that look for the same alike, as equal blocks share one graph.
A compiler takes what is raised for a fault of its own: it is kept, and raised behind the call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn

from parastrat.errors import WrapError


class Looking(Protocol):
    """Looks at what lies between some places and others."""

    def begun(self, output: torch.Tensor) -> None:
        """Note a tensor at a place where it begins."""

    def ended(self, given: torch.Tensor) -> None:
        """Look at what led to a tensor at a place where it ends; refuse what is wrong."""

    def forget(self) -> None:
        """Let go of what was noted."""


#: a graph takes numbers for such as change
_names: dict[Hashable, str] = {}
_looking: dict[str, Looking] = {}
#: those that noted something, and what they refused
_noting: set[str] = set()
_refused: list[WrapError] = []


def name_of_looking(key: Hashable, make: Callable[[], Looking]) -> str:
    """Return by what a graph names what looks for the same; ``make`` makes it, once."""
    if key not in _names:
        _names[key] = name = f"{len(_names)}"
        _looking[name] = make()
    return _names[key]


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def begun_in_graph(output: torch.Tensor, name: str) -> torch.Tensor:
    """Pass on a tensor at a place where something begins."""
    # a graph's inputs have no node of their own
    output = output.view_as(output)
    _noting.add(name)
    _looking[name].begun(output)
    return output


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def ended_in_graph(given: torch.Tensor, name: str) -> torch.Tensor:
    """Pass on a tensor at a place where something ends."""
    try:
        _looking[name].ended(given)
    except WrapError as error:
        _refused.append(error)
    return given.view_as(given)


def compile_forward(module: nn.Module) -> None:
    """Compile a module's forward, without the hooks around its calls.

    Calls of it raise ``WrapError`` where it takes a way that those who look refuse.
    """
    compiled: Any = torch.compile(module.forward)

    @wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        output = compiled(*args, **kwargs)
        if _noting:
            _end()
        return output

    module.forward = forward


def _end() -> None:
    for name in _noting:
        _looking[name].forget()
    _noting.clear()
    if _refused:
        first = _refused[0]
        _refused.clear()
        raise first
