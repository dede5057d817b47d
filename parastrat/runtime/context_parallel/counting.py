"""Where a block's own code counts positions: as it makes rotary tables, or takes the rows of one.

It counts this rank's share from zero, so that each rank would begin anew. Which calls these are is seen as
the number of positions changes, by how many calls of the function came before: sizes alone do not tell,
for a head may have as many channels as a share has positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from parastrat.errors import WrapError

if TYPE_CHECKING:
    from parastrat.runtime.context_parallel.positions import Positions

#: a function's name, and how many calls of it came before in the block
Call = tuple[str, int]
#: of the calls of a block, up to where each counts
Ends = dict[Call, tuple[int, ...]]

_COUNTING: dict[Callable[..., Any], str] = {torch.arange: "arange", torch.Tensor.__getitem__: "getitem"}


@dataclass(slots=True)
class Calls:
    """Numbers the calls that may count positions, in one forward of a block."""

    _before: Counter[str] = field(default_factory=Counter)

    def of(self, func: Callable[..., Any]) -> Call | None:
        """Return which call this is; None for what counts nothing."""
        name = _COUNTING.get(func)
        if name is None:
            return None
        self._before[name] += 1
        return name, self._before[name] - 1


class Noting(TorchFunctionMode):
    """Notes up to where the calls of a block's forward count."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: Ends = {}
        self._calls = Calls()

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = self._calls.of(func)
        if call is not None:
            self.ends[call] = _ends(call, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def counting(short: Ends, long: Ends, lengths: tuple[int, int]) -> tuple[Call, ...]:
    """Return the calls that count positions: as many as there are, where there are more as well.

    What counts tokens of all samples, or those of experts, is this rank's own.

    Args:
        short: of a forward.
        long: of another one, with more positions.
        lengths: how many there were in both.
    """
    few, more = lengths
    return tuple(call for call, ends in short.items() if few in ends and more in long.get(call, ()))


def counted(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], positions: Positions, own: int
) -> Any:
    """Return what a call that counts positions returns for those of this rank.

    Args:
        call: which it is.
        args: of it.
        kwargs: of it.
        positions: of each rank.
        own: how many this rank has.

    Raises:
        WrapError: if it counts to another number.
    """
    if set(_ends(call, args, kwargs)) != {own}:
        raise WrapError(
            f"a block's {call[0]} was proven to count this rank's {own} positions, and does not: "
            f"{_said(args, kwargs)}",
            hint="call the model for all positions, or plan without cp: parastrat recommend --cp 1",
        )
    length = own * positions.ranks
    if call[0] == "arange":
        return positions.own(torch.arange(length, **{k: v for k, v in kwargs.items() if k != "end"}), 0)
    table, index = args
    index = index if isinstance(index, tuple) else (index,)
    rows = next(place for place, item in enumerate(index) if _end(item) == own)
    # a second one is of keys, of which all are there
    whole = tuple(slice(0, length) if _end(item) == own else item for item in index)
    dim = _dim_behind(index, rows, table.ndim)
    if table.shape[_dim_of(index, rows, table.ndim)] == own:  # no table: it has this rank's alone
        return table[index]
    found = table[whole]
    if found.shape[dim] != length:
        raise WrapError(
            f"a block takes {length} positions of a table of {tuple(table.shape)}",
            hint="build the model for as many positions as a sequence has",
        )
    return positions.own(found, dim)


def _dim_of(index: tuple[Any, ...], place: int, dims: int) -> int:
    """Return which dimension of a tensor with so many an item of an index is about."""
    before = index[:place]
    behind_dots = (dims - _named(index)) * (Ellipsis in before)
    return _named(before) + behind_dots


def _named(index: tuple[Any, ...]) -> int:
    """Return how many dimensions an index names."""
    return sum(item is not None and item is not Ellipsis for item in index)


def _dim_behind(index: tuple[Any, ...], place: int, dims: int) -> int:
    """Return which dimension of the result that item is about."""
    added = sum(item is None for item in index[:place])
    dropped = sum(isinstance(item, int) for item in index[:place])
    return _dim_of(index, place, dims) + added - dropped


def _ends(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return up to where a call counts from zero, for each dimension in which it does."""
    if call[0] == "arange":
        numbers = [*args, *([kwargs["end"]] if "end" in kwargs else [])]
        if numbers[:1] == [0] and len(numbers) == 2:
            numbers = numbers[1:]
        return tuple(numbers) if len(numbers) == 1 and isinstance(numbers[0], int) else ()
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return tuple(end for item in index if (end := _end(item)) is not None)


def _end(item: Any) -> int | None:
    """Return the end of a slice from zero, if it has one."""
    if not isinstance(item, slice) or item.start not in (None, 0) or item.step not in (None, 1):
        return None
    return item.stop if isinstance(item.stop, int) and item.stop >= 0 else None


def _said(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    named = [f"{name}={value}" for name, value in kwargs.items()]
    return ", ".join([*(str(a) for a in args if not isinstance(a, torch.Tensor)), *named])
