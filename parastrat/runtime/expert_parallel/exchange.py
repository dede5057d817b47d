"""Tokens travel to the ranks that hold the experts that they chose, and what these make of them comes back.

Each choice of a token is sent by itself, with its weight (the all-to-all of arXiv 2006.16668, section 3.2).
The experts' own code then has tokens of one choice each, numbered within this rank's experts.

Parameters average their gradients over the ranks with other samples. What an expert computes for another
rank's tokens is of that rank's loss: gradients add up over the ranks of one set of experts by themselves,
and are divided by the number of those with other samples as they come back; what goes on to the tokens is
multiplied by it again. Ranks of tp have one loss together, and other positions of one sample, or are all
given the same tokens, of which each sends a share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parastrat.errors import WrapError
from parastrat.runtime.communication.flow import enter, exchanged, leave, ranks_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The ranks that hold all experts of a part together."""

    #: of them, in order
    mesh: DeviceMesh
    #: how many experts each of them holds
    held: int
    #: how many of them see other samples, or positions of them; less than one where all are of one tp
    #: group, of which other ranks hold the same
    samples: float
    #: of the ranks that are given the same tokens; None: each has its own
    alike: DeviceMesh | None = None


# how many tokens go where no compiler knows: its graph breaks here, as it would at FSDP2's hooks on experts
@torch.compiler.disable  # type: ignore[untyped-decorator]
def over_ranks(
    experts: Callable[..., torch.Tensor],
    holders: Holders,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Return what all ranks' experts make of this rank's tokens; all ranks of the mesh call it.

    Args:
        experts: the forward of those that this rank holds.
        holders: the ranks that hold all of them.
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
    tokens, weights = chosen.tokens.flatten(0, -2), chosen.weights.flatten()
    numbers, each = chosen.choices.flatten(), chosen.choices.shape[-1]
    owner = torch.div(numbers, holders.held, rounding_mode="floor").clamp_(max=holders.mesh.size())
    if holders.alike is not None:
        tokens, weights = enter(tokens, holders.alike), enter(weights, holders.alike)
        owner = _of_a_share(owner, each, holders)
    order = owner.argsort(stable=True)
    sent, received = counts_of(owner, holders)
    order = order[: sum(sent)]
    of_token = torch.div(order, each, rounding_mode="floor")
    ways = _Ways(holders, sent, received)
    own = (
        ways.there(tokens[of_token]),
        ways.there(weights[order]),
        ways.moved(numbers[order] % holders.held, sent, received),
    )
    made = ways.back(_of_own(experts, chosen, own, args, kwargs))
    found = _added_up(made, of_token, tokens.shape[0])
    if holders.alike is not None:
        found = leave(found, holders.alike)
    # no view where none is needed: code behind may write to it
    return found if chosen.tokens.ndim == _ROWS else found.view(*chosen.tokens.shape[:-1], -1)


def _of_a_share(owner: torch.Tensor, each: int, holders: Holders) -> torch.Tensor:
    """Return the owners of the choices of this rank's share of tokens that others are given too; else none.

    Args:
        owner: the rank that each choice goes to.
        each: how many choices a token has.
        holders: as many as there are of these means none.
    """
    ranks = ranks_of(holders.alike)  # type: ignore[arg-type]
    tokens = owner.shape[0] // each
    share = -(-tokens // ranks.size) * each
    places = torch.arange(owner.shape[0], device=owner.device)
    is_own = torch.div(places, share, rounding_mode="floor") == ranks.rank
    return torch.where(is_own, owner, holders.mesh.size())


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


def counts_of(owner: torch.Tensor, holders: Holders) -> tuple[list[int], list[int]]:
    """Return how many choices go to each rank, and come from each; all of them call it.

    Args:
        owner: the rank that each choice goes to; as many as there are ranks: to none.
        holders: the ranks.
    """
    ranks = ranks_of(holders.mesh)
    sent = torch.bincount(owner, minlength=ranks.size + 1)[: ranks.size]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return sent.tolist(), received.tolist()


@dataclass(frozen=True, slots=True)
class _Ways:
    """How rows travel to the experts' ranks and back."""

    holders: Holders
    sent: list[int]
    received: list[int]

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Send this rank's rows to those of the experts."""
        samples = self.holders.samples
        return exchanged(
            rows,
            lambda own: self.moved(own, self.sent, self.received),
            lambda gradient: self.moved(gradient * samples, self.received, self.sent),
        )

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Send what was made of the rows to those that they came from."""
        samples = self.holders.samples
        return exchanged(
            rows,
            lambda made: self.moved(made, self.received, self.sent),
            lambda gradient: self.moved(gradient / samples, self.sent, self.received),
        )

    def moved(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """Send so many rows to each rank, one after the other; no gradient passes."""
        found = rows.new_empty(sum(received), *rows.shape[1:])
        group = ranks_of(self.holders.mesh).group
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found
