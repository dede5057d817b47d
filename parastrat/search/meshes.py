"""The meshes of a space as columns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.columns import Columns
from parastrat.distinct import NUMBERED, distinct
from parastrat.rules.divisors import divisors
from parastrat.search.rows import rungs_of, settled_columns, shape_columns, strategies_of
from parastrat.tables import facts_columns

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.search.rows import Constraints

#: a job is searched on some numbers of devices, with a model at some sequence lengths
_KEPT = 64


class _Choices(NamedTuple):
    """What meshes are made of: the degrees that each axis may have."""

    devices: int
    pp: tuple[int, ...]
    cp: tuple[int, ...]
    tp: tuple[int, ...]
    dp_shard: tuple[int, ...]
    ep: tuple[int, ...]
    dp_replicate: int | None
    #: a degree of ep that was asked for stays where it does not divide the ranks
    asks_ep: bool


def meshes_of(facts: Facts, fixed: Constraints) -> Columns:
    """Return the meshes that the constraints allow, one row each, of whatever strategy."""
    settled = settled_columns(facts, fixed)
    return Columns({**facts_columns(facts), **settled, **_told_apart(_choices(facts, fixed))})


@lru_cache(_KEPT)
def _told_apart(choices: _Choices) -> dict[str, Any]:
    """Return every mesh over all devices, with what tells some of them apart.

    Changed jobs mostly have those of the job itself.
    """
    table = _every(choices)
    table |= shape_columns(table)
    meshes = Columns(table)
    shards = meshes.joined({"dp_shard": meshes.dp_shard * meshes.cp})
    table |= {
        "strategy": strategies_of(meshes),
        "rung": rungs_of(meshes),
        "width": distinct(meshes, NUMBERED["width"])[1],
        "layout": distinct(meshes, NUMBERED["layout"])[1],
        # replicas follow from the others
        "sharding": distinct(shards, ("pp", "dp_shard", "tp", "ep"))[1],
    }
    for column in table.values():
        column.flags.writeable = False
    return table


def _every(choices: _Choices) -> dict[str, Any]:
    """Return the degrees of every mesh."""
    rows = np.ones((1, 0), dtype=np.int64)
    for degrees in (choices.pp, choices.cp, choices.tp, choices.dp_shard):
        left = np.repeat(rows, len(degrees), axis=0)
        rows = np.column_stack([left, np.tile(np.array(degrees, dtype=np.int64), len(rows))])
        rows = rows[choices.devices % np.prod(rows, axis=1) == 0]
    pp, cp, tp, dp_shard = rows.T
    table = {
        "pp": pp,
        "cp": cp,
        "tp": tp,
        "dp_shard": dp_shard,
        "dp_replicate": choices.devices // np.prod(rows, axis=1),
    }
    if choices.dp_replicate is not None:
        kept = table["dp_replicate"] == choices.dp_replicate
        table = {name: column[kept] for name, column in table.items()}
    return _with_experts(choices, table)


def _with_experts(choices: _Choices, table: dict[str, Any]) -> dict[str, Any]:
    count = len(table["pp"])
    widened = {name: np.tile(column, len(choices.ep)) for name, column in table.items()}
    widened["ep"] = np.repeat(np.array(choices.ep, dtype=np.int64), count)
    inner = widened["dp_shard"] * widened["cp"] * widened["tp"]
    kept = (inner % widened["ep"] == 0) | choices.asks_ep
    return {name: column[kept] for name, column in widened.items()}


def _choices(facts: Facts, fixed: Constraints) -> _Choices:
    """Return the degrees that a job and its constraints allow."""
    model, degrees = facts.model, divisors(facts.hardware.world_size)
    # the sequence is cut in 2 cp chunks, so that causal work is even; attention must be known
    longest = (model.sequence_length or 2) // 2 if model.heads else 1

    def chosen(axis: str, most: int | None = None) -> tuple[int, ...]:
        value = getattr(fixed, axis)
        if value is not None:
            return (value,)
        if fixed.plain_loop and axis != "dp_shard":
            return degrees[:1]
        return degrees if most is None else tuple(degree for degree in degrees if degree <= most)

    stages = chosen("pp", sum(block.repeat for block in model.blocks))
    experts = (1,) if fixed.plain_loop else divisors(model.experts or 1)
    return _Choices(
        devices=facts.hardware.world_size,
        pp=tuple(pp for pp in stages if pp > 1) if fixed.has_stages else stages,
        cp=chosen("cp", max(longest, 1)),
        # a model without heads has no tensor-parallel plan, but one whose data flow was followed
        tp=chosen("tp", model.heads or model.divisible or 1),
        dp_shard=chosen("dp_shard"),
        ep=experts if fixed.ep is None else (fixed.ep,),
        dp_replicate=fixed.dp_replicate,
        asks_ep=fixed.ep is not None,
    )
