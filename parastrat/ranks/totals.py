"""Parameters of blocks by what divides them: all, the trainable, and those that autocast casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parastrat.ranks.chains import COLUMN_OF, DIVIDED
from parastrat.ranks.load import NO_PARAMETERS, ParameterTotals
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.model import Block, Parameters
    from parastrat.ranks.kinds import Kinds

#: the totals that count a group of parameters, by what divides it
_TOTALS_OF = {split: DIVIDED[column] for split, column in COLUMN_OF.items()}


def cast_totals(block: Block, *, trainable: bool = False) -> ParameterTotals:
    """Return one repeat's parameters of which autocast makes short copies, or the trainable alone."""
    return totals_of([group for group in block.parameters if group.cast], trainable=trainable)


def added_totals(block: Block) -> ParameterTotals:
    """Return the weight whose gradients weigh most as they are added up, by what divides it."""
    return totals_of(() if block.added is None else (block.added,))


def block_totals(block: Block, *, trainable: bool = False) -> ParameterTotals:
    """Return one repeat's parameters by what divides them, or the trainable alone."""
    return totals_of(block.parameters, trainable=trainable)


def totals_of(groups: Sequence[Parameters], *, trainable: bool = False) -> ParameterTotals:
    """Return parameters by what divides them, or the trainable alone."""
    counts = dict.fromkeys(DIVIDED, 0)
    for group in groups:
        counts[_TOTALS_OF[group.split]] += group.trainable if trainable else group.count
    return ParameterTotals(**counts) if any(counts.values()) else NO_PARAMETERS


@remembered
def unit_totals(kinds: Kinds) -> ParameterTotals:
    """Return one repeat's parameters of each kind of block, beside plans; none of blocks outside units."""
    return totals_table([block_totals(block) if block.unit else NO_PARAMETERS for block in kinds.blocks])


@remembered
def casts_of_kinds(kinds: Kinds) -> tuple[ParameterTotals, ParameterTotals]:
    """Return what autocast casts of one repeat of each kind of block, beside plans, and what back."""
    forward, backward = (
        totals_table([cast_totals(block, trainable=trainable) for block in kinds.blocks])
        for trainable in (False, True)
    )
    return forward, backward


@remembered
def held_totals(kinds: Kinds) -> ParameterTotals:
    """Return the parameters of one repeat of each kind of block, beside plans."""
    return totals_table([block_totals(block) for block in kinds.blocks])


@remembered
def trainable_totals(kinds: Kinds) -> ParameterTotals:
    """Return the trainable parameters of one repeat of each kind of block, beside plans."""
    return totals_table([block_totals(block, trainable=True) for block in kinds.blocks])


def totals_table(several: Sequence[ParameterTotals]) -> ParameterTotals:
    """Return the parameters of several blocks as columns beside those of plans."""
    table = np.array(
        [(each.replicated, each.tensor, each.expert, each.vocabulary) for each in several], dtype=float
    )
    totals = dict(zip(DIVIDED, table.T[..., None], strict=True))
    # tables have a row for each block, whatever it has
    rarely = {name: 0 for name in ("expert", "vocabulary") if not totals[name].any()}
    return ParameterTotals(**{**totals, **rarely})
