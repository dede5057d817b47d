"""Which positions of a sequence a rank has, and how shares become whole sequences with their gradients.

Under causal attention later positions attend to more of them. So the sequence is cut into twice as many
pieces as there are ranks, and each rank takes one from the front and its counterpart from the back
(arXiv 2407.21783, section 3.3.2): all ranks have as much to do.

Parameters average their gradients over the ranks of a sequence too. What a rank computes on its positions
alone is a part of a sum, and so counts as often as there are ranks: where shares become whole, what comes
back for a share is multiplied by that; where they were taken, it is divided again, and put together.
Before and behind, all is as in one process, on each of the ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from parastrat.errors import WrapError
from parastrat.runtime.communication.flow import (
    all_gather_flat,
    all_reduced,
    exchanged,
    ranks_of,
    reduce_scatter_flat,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

#: pieces of a balanced share: one from the front, one from the back
_PIECES = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """Which positions each of a mesh's ranks has."""

    mesh: DeviceMesh
    #: each rank has a piece from the front and one from the back
    balanced: bool

    @property
    def ranks(self) -> int:
        return ranks_of(self.mesh).size

    @property
    def rank(self) -> int:
        return ranks_of(self.mesh).rank

    @property
    def pieces(self) -> int:
        """Number of pieces that a sequence is cut into."""
        return self.ranks * (_PIECES if self.balanced else 1)

    def check(self, length: int, further: int = 1) -> None:
        """Refuse a sequence that does not divide.

        Args:
            length: of the sequence.
            further: number of ranks that divide the share of each.

        Raises:
            WrapError: naming the length that a multiple of would.
        """
        least = math.lcm(self.pieces, self.ranks * further)
        if length % least:
            beside = f" and tp {further}" if further > 1 else ""
            raise WrapError(
                f"{length} positions do not divide by {least}, for cp {self.ranks}{beside}",
                hint=f"pad sequences to a multiple of {least}, or plan without cp: "
                "parastrat recommend --cp 1",
            )

    def stretches(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return where this rank's pieces begin and end in a sequence of this length."""
        size = length // self.pieces
        return tuple((place * size, (place + 1) * size) for place in self._of_rank(self.rank))

    def own(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's positions of a tensor that has all of them; a copy, which keeps no whole."""
        size = whole.shape[dim] // self.pieces
        parts = [whole.narrow(dim, start, size) for start, _ in self.stretches(whole.shape[dim])]
        if len(parts) > 1:
            return torch.cat(parts, dim)
        return parts[0].clone(memory_format=torch.contiguous_format)

    def _of_rank(self, rank: int) -> tuple[int, ...]:
        return (rank, self.pieces - 1 - rank) if self.balanced else (rank,)

    def joined(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """Return all positions of which each rank has its own; no gradient passes."""
        pieces = _in_pieces(own, dim, self.pieces // self.ranks).contiguous()
        found = all_gather_flat(pieces, self.mesh)
        order = self._order()
        return torch.cat([found[order.index(place)] for place in range(self.pieces)], dim)

    def scattered(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's positions of the sum of the ranks' tensors; no gradient passes."""
        pieces = _in_pieces(whole, dim, self.pieces)
        found = reduce_scatter_flat(torch.stack([pieces[place] for place in self._order()]), self.mesh)
        return torch.cat([*found], dim)

    def _order(self) -> list[int]:
        """Return the pieces as they come from the ranks, one after the other."""
        return [place for rank in range(self.ranks) for place in self._of_rank(rank)]


@dataclass(slots=True)
class _Running:
    """Whose forward runs."""

    positions: Positions | None = None


_running = _Running()


def divided_now() -> Positions | None:
    """Return which positions ranks have in the forward that runs; None where they are not divided."""
    return _running.positions


def divide_while_running(model: nn.Module, positions: Positions) -> None:
    """Let ``divided_now`` tell of these while a forward of the model runs."""

    def began(_model: nn.Module, _args: tuple[Any, ...]) -> None:
        _running.positions = positions

    def ended(_model: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        _running.positions = None

    model.register_forward_pre_hook(began)
    model.register_forward_hook(ended, always_call=True)


def taken(whole: torch.Tensor, positions: Positions, dim: int) -> torch.Tensor:
    """Return this rank's positions of what is the same on all ranks; their gradients are put together."""
    return exchanged(
        whole,
        lambda x: positions.own(x, dim),
        _once(lambda own: positions.joined(own, dim).div_(positions.ranks)),
    )


def used(whole: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Return what is the same on all ranks, for what each makes of its positions: gradients add up."""
    if not (whole.requires_grad and torch.is_grad_enabled()):
        return whole
    return exchanged(
        whole, lambda x: x, _once(lambda part: all_reduced(part, positions.mesh).div_(positions.ranks))
    )


def gathered(own: torch.Tensor, positions: Positions, dim: int) -> torch.Tensor:
    """Return all positions, of which all ranks make the same: a share's gradient is what counts once."""
    return exchanged(
        own,
        lambda x: positions.joined(x, dim),
        _once(lambda whole: positions.own(whole, dim).mul_(positions.ranks)),
    )


def gathered_for_queries(own: torch.Tensor, positions: Positions, dim: int) -> torch.Tensor:
    """Return all positions, for what each rank computes on its own queries: gradients add up."""
    return exchanged(
        own,
        lambda x: positions.joined(x, dim),
        _once(lambda parts: positions.scattered(parts, dim)),
    )


def summed(own: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Return the sum of what each rank has of its positions, of which all ranks make the same."""
    return exchanged(
        own, lambda x: all_reduced(x, positions.mesh), lambda gradient: gradient * positions.ranks
    )


def _once(back: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a way back that refuses to be differentiated itself."""

    def checked(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.requires_grad:
            raise WrapError(
                "gradients of gradients do not pass between the ranks of a sequence",
                hint="plan without cp: parastrat recommend --cp 1",
            )
        return back(gradient)

    return checked


def _in_pieces(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Return a view with so many pieces of a dimension as the first."""
    dim %= tensor.ndim
    pieces: torch.Tensor = tensor.unflatten(dim, (count, -1))  # type: ignore[no-untyped-call]
    return pieces.movedim(dim, 0)
