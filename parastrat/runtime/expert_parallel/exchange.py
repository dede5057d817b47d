"""Tokens travel to the ranks that hold the experts that they chose, and what these make of them comes back.

Each choice of a token is sent by itself, with its weight (the all-to-all of arXiv 2006.16668, section 3.2).
The experts' own code then has tokens of one choice each, numbered within this rank's experts.

Parameters average their gradients over the ranks with other samples. What an expert computes for another
rank's tokens is of that rank's loss: gradients add up over the ranks of one set of experts by themselves,
and are divided by their number as they come back; what goes on to the tokens is multiplied by it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.flow import exchanged, ranks_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


#: tokens, and features
_ROWS = 2


@dataclass(frozen=True, slots=True)
class Chosen:
    """What experts are called with.

    Args:
        tokens: (..., features).
        choices: the numbers of the experts that each token chose, (..., choices); of as many as there are
            and more: none.
        weights: of each choice.
    """

    tokens: torch.Tensor
    choices: torch.Tensor
    weights: torch.Tensor


def chosen_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Chosen | None:
    """Return what a call gives experts; None where it is of another kind."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    floating = [each for each in given if each.is_floating_point()]
    choices = [each for each in given if not each.is_floating_point() and not each.is_complex()]
    if len(floating) != 2 or len(choices) != 1 or floating[0] is not given[0]:
        return None
    (tokens, weights), (numbers,) = floating, choices
    same = numbers.shape == weights.shape and numbers.shape[:-1] == tokens.shape[:-1]
    return Chosen(tokens, numbers, weights) if same and tokens.ndim > 1 else None


def over_ranks(
    experts: Callable[..., torch.Tensor],
    held: int,
    mesh: DeviceMesh,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Return what all ranks' experts make of this rank's tokens; all ranks of the mesh call it.

    Args:
        experts: the forward of those that this rank holds.
        held: how many these are.
        mesh: of the ranks that hold all of them together, in order.
        args: of the forward of all experts.
        kwargs: of it.

    Raises:
        WrapError: for a call of another kind than was proven.
    """
    chosen = chosen_in(args, kwargs)
    if chosen is None:
        raise WrapError(
            "experts are called with something else than tokens, their choices, and a weight for each",
            hint="plan without ep: parastrat recommend --ep 1",
        )
    tokens = chosen.tokens.flatten(0, -2)
    numbers = chosen.choices.flatten()
    ranks = mesh.size()
    owner = torch.div(numbers, held, rounding_mode="floor").clamp_(max=ranks)
    order = owner.argsort(stable=True)
    sent, received = counts_of(owner, mesh)
    order = order[: sum(sent)]
    of_token = torch.div(order, chosen.choices.shape[-1], rounding_mode="floor")
    ways = _Ways(mesh, sent, received)
    rows = ways.there(tokens[of_token])
    weights = ways.there(chosen.weights.flatten()[order])
    own = ways.moved(numbers[order] % held, sent, received)
    made = ways.back(_of_own(experts, chosen, (rows, weights, own), args, kwargs))
    found = _added_up(made, of_token, tokens.shape[0])
    # no view where none is needed: code behind may write to it
    return found if chosen.tokens.ndim == _ROWS else found.view(*chosen.tokens.shape[:-1], -1)


def _added_up(rows: torch.Tensor, of_token: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the sum of each token's rows, and keep none of them for backward, as torch's own does."""
    return exchanged(
        rows,
        lambda made: made.new_zeros(tokens, made.shape[-1]).index_add(0, of_token, made),
        lambda gradient: gradient[of_token],
    )


def _of_own(
    experts: Callable[..., torch.Tensor],
    chosen: Chosen,
    own: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Return what this rank's experts make of the tokens that came, of one choice each."""
    rows, weights, numbers = own
    count = rows.shape[0]
    if not count:
        # their weights have gradients all the same, zeros; joined, so that backward comes to where the rows
        # would have come from, as on the other ranks
        rows, weights, numbers = (torch.cat((each, each.new_zeros(1, *each.shape[1:]))) for each in own)
    instead = {
        id(chosen.tokens): rows,
        id(chosen.choices): numbers.unsqueeze(-1),
        id(chosen.weights): weights.unsqueeze(-1),
    }
    made = experts(
        *(instead.get(id(each), each) for each in args),
        **{name: instead.get(id(each), each) for name, each in kwargs.items()},
    )
    return made[:count]


def counts_of(owner: torch.Tensor, mesh: DeviceMesh) -> tuple[list[int], list[int]]:
    """Return how many choices go to each rank, and come from each; all of them call it.

    Args:
        owner: the rank that each choice goes to; as many as there are ranks: to none.
        mesh: of the ranks.
    """
    ranks = ranks_of(mesh)
    sent = torch.bincount(owner, minlength=ranks.size + 1)[: ranks.size]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return sent.tolist(), received.tolist()


@dataclass(frozen=True, slots=True)
class _Ways:
    """How rows travel to the experts' ranks and back."""

    mesh: DeviceMesh
    sent: list[int]
    received: list[int]

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Send this rank's rows to those of the experts."""
        ranks = self.mesh.size()
        return exchanged(
            rows,
            lambda own: self.moved(own, self.sent, self.received),
            lambda gradient: self.moved(gradient * ranks, self.received, self.sent),
        )

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Send what was made of the rows to those that they came from."""
        ranks = self.mesh.size()
        return exchanged(
            rows,
            lambda made: self.moved(made, self.received, self.sent),
            lambda gradient: self.moved(gradient / ranks, self.sent, self.received),
        )

    def moved(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """Send so many rows to each rank, one after the other; no gradient passes."""
        found = rows.new_empty(sum(received), *rows.shape[1:])
        group = ranks_of(self.mesh).group
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found
