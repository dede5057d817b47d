"""The stream of positions through the blocks: each rank has its share of it, and of what goes with it.

The first block's input is divided, the last one's output is made whole again, or that of a head behind it.
What else a block is given for each position, such as rotary tables, positions' numbers and the rows of
masks, is divided too; which dimension tells positions was seen as their number changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_unflatten

from parastrat.errors import WrapError
from parastrat.runtime.backward import in_backward
from parastrat.runtime.context_parallel.by_positions import by_positions
from parastrat.runtime.context_parallel.inside import Inside
from parastrat.runtime.context_parallel.positions import (
    Positions,
    divide_while_running,
    gathered,
    taken,
    used,
)
from parastrat.runtime.logits import in_whole
from parastrat.runtime.tensor_parallel.styles import change_input, change_output, first_changed

if TYPE_CHECKING:
    from parastrat.runtime.context_parallel.attention import Attention
    from parastrat.runtime.context_parallel.counting import Call

#: of the stream: samples come first, features last
SEQUENCE = 1
STREAM_DIMS = 3
_MASK_DIMS = 4

#: by where a tensor stands in a block's arguments, the dimension of its positions; None: it has none
Given = Mapping[str, int | None]


class NotDividedError(Exception):
    """What a block is given cannot be divided along positions; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a model's positions are divided; proven on a small copy."""

    #: the list of blocks that positions pass through
    container: str
    #: what its blocks are given
    given: Given
    #: their own code's calls that count positions
    counts: tuple[Call, ...] = ()
    #: a causal model's ranks have pieces of both ends
    balanced: bool
    #: the head that reads shares, and whose output is made whole; "": the last block's is
    head: str = ""
    #: what lies between the blocks and the head works on all positions, as where code counts them
    whole_between: bool = False
    #: the head's output stays divided up to the loss
    loss: bool = False
    #: the head is in a pipeline's stage behind that of the last block
    apart: bool = False

    def has(self, name: str) -> bool:
        """Return whether positions pass through a part as one of the blocks."""
        return name.rpartition(".")[0] == self.container

    @property
    def joined_behind_blocks(self) -> bool:
        """Whether the last block's output is made whole."""
        return not self.head or self.whole_between


def given_of(short: Mapping[str, torch.Size], long: Mapping[str, torch.Size]) -> dict[str, int | None]:
    """Return which dimension of each tensor in a block's arguments are positions.

    Args:
        short: their shapes, by where they stand.
        long: the same with more positions.

    Raises:
        NotDividedError: if there is nothing of positions among them.
    """
    found: dict[str, int | None] = {}
    for place, shape in short.items():
        other = long.get(place)
        if other is None or len(other) != len(shape):
            raise NotDividedError(f"what blocks are given at {place} comes and goes with the positions")
        dims = [dim for dim, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b]
        # of a mask the rows are queries; one row for all of them tells of keys, which are gathered
        found[place] = None if not dims or _is_of_keys(shape, dims) else dims[0]
    return found


def _is_of_keys(shape: torch.Size, dims: list[int]) -> bool:
    return len(shape) == _MASK_DIMS and dims == [_MASK_DIMS - 1] and shape[-2] == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Blocks that run one after the other on this rank: all of the model's, or those of a stage."""

    blocks: list[nn.Module]
    #: the first is given all positions; not where an earlier stage has begun
    first: bool = True
    #: the last gives all positions, unless a head behind it takes shares
    last: bool = True


@dataclass(slots=True, kw_only=True)
class Stream:
    """What passes through the blocks of one model."""

    positions: Positions
    attention: Attention
    division: Division
    #: ranks of tp that divide the positions of each, from inside the first block on to the end of the last
    further: int = 1
    #: around what a block draws at random
    draws: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext()
    #: positions of the sequence that passes, or passed last
    _length: int = 0
    #: while a forward runs: what blocks are given again and again, with this rank's share of it
    _shares: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def work_on_shares(self, rows: list[Row]) -> None:
        """Let the blocks attend to the positions of all ranks.

        Inside of a checkpoint, which computes it again.
        """
        for row in rows:
            for block in row.blocks:
                forward, further = block.forward, 1 if block is row.blocks[0] else self.further
                block.forward = wraps(forward)(partial(self._on_shares, block, forward, further))

    def _on_shares(
        self, block: nn.Module, forward: Callable[..., Any], further: int, *args: Any, **kwargs: Any
    ) -> Any:
        given = next(leaf for leaf in tree_leaves((args, kwargs)) if _is_stream(leaf)).shape[SEQUENCE]
        with self.draws(block), Inside(self.attention, self.division.counts, given * further):
            return forward(*args, **kwargs)

    def give_shares(self, rows: list[Row]) -> None:
        """Divide what the blocks are given; make the last output whole.

        Outside of a checkpoint: what it keeps are shares, which blocks have in common.
        """
        for row in rows:
            for block in row.blocks:
                self._surround(block, row)

    def _surround(self, block: nn.Module, row: Row) -> None:
        forward, begins, ends = block.forward, block is row.blocks[0], block is row.blocks[-1]

        @wraps(forward)
        def with_shares(*args: Any, **kwargs: Any) -> Any:
            if begins:
                self._shares.clear()
            args, kwargs = self._own(args, kwargs, begins=begins, whole=begins and row.first)
            output = forward(*args, **kwargs)
            if ends:
                self._shares.clear()
                if row.last and self.division.joined_behind_blocks:
                    return first_changed(output, self._whole)
            return output

        block.forward = with_shares

    def end(self, module: nn.Module) -> None:
        """Let the head work on shares too, whose output is made whole, or left to the loss.

        Losses that make logits for some tokens at a time divide these themselves.
        """
        divide_while_running(module, self.positions)
        if not self.division.head:
            return
        head = module.get_submodule(self.division.head)
        change_input(head, self._of_whole if self.division.whole_between else self._checked)
        change_output(head, self._of_head)

    def _of_whole(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of the head's input."""
        self.positions.check(x.shape[SEQUENCE] if _is_stream(x) else 1)
        return taken(x, self.positions, SEQUENCE)

    def _of_head(self, own: torch.Tensor) -> torch.Tensor:
        return by_positions(own, self.positions) if self.division.loss else self._whole(in_whole(own))

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input; of some positions only each rank would have taken its own.

        What comes of another stage has the shape that was expected of it.
        """
        if self.division.apart:
            return x
        if not _is_stream(x) or x.shape[SEQUENCE] * self.positions.ranks != self._length:
            raise WrapError(
                f"the head was to get all {self._length // self.positions.ranks} positions of this rank's "
                f"share, and got {tuple(x.shape)}",
                hint="call the model for all positions, or plan without cp: parastrat recommend --cp 1",
            )
        return x

    def _whole(self, own: torch.Tensor) -> torch.Tensor:
        return gathered(own, self.positions, SEQUENCE)

    def _own(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, begins: bool, whole: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a block's arguments for this rank's positions.

        Args:
            args: of the block.
            kwargs: of the block.
            begins: it is the first of its row, whose stream no rank of tp has divided yet.
            whole: nor one of cp.
        """
        leaves, spec = tree_flatten_with_path((args, kwargs))
        stream = next((leaf for _, leaf in leaves if _is_stream(leaf)), None)
        if stream is None:
            raise WrapError(
                "a block gets no activations of samples, positions and features, which cp divides",
                hint="plan without cp: parastrat recommend --cp 1",
            )
        length = stream.shape[SEQUENCE] * (1 if begins else self.further)
        length *= 1 if whole else self.positions.ranks
        if begins:
            self.positions.check(length, self.further)
            self._length = length
        own = [
            leaf
            if not isinstance(leaf, torch.Tensor) or (leaf is stream and not whole)
            else self._share(keystr(path), leaf, length)
            for path, leaf in leaves
        ]
        divided: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(own, spec)
        return divided

    def _share(self, place: str, leaf: torch.Tensor, length: int) -> torch.Tensor:
        dim = self._dim(place, leaf, length)
        if dim is None:
            return used(leaf, self.positions)
        if leaf.shape[dim] != length:
            raise WrapError(
                f"blocks are given {tuple(leaf.shape)} at {place}, whose dimension {dim} was proven to be "
                f"that of positions, of which there are {length}",
                hint="call the model for all positions, or plan without cp: parastrat recommend --cp 1",
            )
        known = self._shares.get(id(leaf))
        if known is not None and known[0] is leaf:
            return known[1]
        share = taken(leaf, self.positions, dim)
        if not in_backward():  # no block comes after that would let go of it
            self._shares[id(leaf)] = leaf, share
        return share

    def _dim(self, place: str, leaf: torch.Tensor, length: int) -> int | None:
        """Return which dimension of a tensor are positions; of masks that come now and then as well."""
        if place in self.division.given:
            return self.division.given[place]
        if length not in leaf.shape:
            return None
        if leaf.ndim == _MASK_DIMS and leaf.shape[-1] == length and leaf.shape[-2] in (1, length):
            return None if leaf.shape[-2] == 1 else _MASK_DIMS - 2
        raise WrapError(
            f"blocks are given {tuple(leaf.shape)} at {place}, which was not there when cp was proven",
            hint="pass sample_inputs= to auto_parallelize as the model is called in training",
        )


def _is_stream(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim == STREAM_DIMS
