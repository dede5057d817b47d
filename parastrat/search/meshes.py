"""The meshes of a space as columns."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.columns import Columns
from parastrat.distinct import places_of
from parastrat.memory.alike import code_of_meshes
from parastrat.memory.several import keep_freed
from parastrat.rules import rejection_masks
from parastrat.rules.divisors import divisors
from parastrat.search.rows import rungs_of, settled_columns, shape_columns, strategies_of, unnamed
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
    #: what data ranks divide, a divisor of the devices; all of them: whether they do is asked later
    batch: int
    #: of a model whose samples are no tokens
    positions: int | None


#: meshes that were made
_made: dict[_Choices, dict[str, Any]] = {}


def meshes_of(facts: Facts, fixed: Constraints, *, alone: bool = False) -> Columns:
    """Return the meshes that the constraints allow, one row each, of whatever strategy.

    All of them; or where those that rules allow are asked for ``alone``, without some that rules reject:
    those whose data ranks do not divide the batch (PS401, PS402), which are most on many devices, and those
    of a degree that rules reject whatever the others are.
    """
    known, choices = {**facts_columns(facts), **settled_columns(facts, fixed)}, _choices(facts, fixed)
    if alone:
        choices = _obeying(choices, Columns(known))
        if choices not in _made:
            # data ranks divide the devices: of a batch what it has in common with these counts
            choices = choices._replace(batch=gcd(facts.workload.global_batch_size, choices.devices))
    return Columns({**known, **_told_apart(choices)})


def _obeying(choices: _Choices, known: Columns) -> _Choices:
    """Return the degrees without those that rules reject which read no other."""
    cp, tp = (np.array(degrees, dtype=np.int64) for degrees in (choices.cp, choices.tp))
    divides = {"sequence_parallel": tp > 1, "loss_parallel": tp > 1}
    return choices._replace(
        cp=_left(cp, known.joined({"cp": cp})), tp=_left(tp, known.joined({"tp": tp, **divides}))
    )


def _left(degrees: Any, columns: Columns) -> tuple[int, ...]:
    """Return the degrees that no rule rejects by their columns, a row each."""
    return tuple(degrees[unnamed(dict(rejection_masks(columns)), len(degrees))].tolist())


def _told_apart(choices: _Choices) -> dict[str, Any]:
    """Return every mesh over all devices, with what tells some of them apart.

    Changed jobs mostly have those of the job itself.
    """
    found = _made.get(choices)
    if found is None:
        if len(_made) >= _KEPT:
            _made.pop(next(iter(_made)), None)
        found = _made[choices] = _making(choices)
    return found


def _making(choices: _Choices) -> dict[str, Any]:
    # the first arrays of a process are those of meshes
    keep_freed()
    table, places = _every(choices)
    table |= shape_columns(table, choices.positions)
    meshes = Columns(table)
    stages, width = places["pp"], _numbered(places["cp"], places["tp"], places["ep"])
    table |= {
        "strategy": strategies_of(meshes),
        "rung": rungs_of(meshes),
        "alike_meshes": code_of_meshes(meshes),
        "width": width,
        "layout": _numbered(stages, width, meshes.shard),
        # replicas follow from the others
        "sharding": _numbered(stages, _numbered(meshes.dp_shard * meshes.cp), places["tp"], places["ep"]),
    }
    for column in table.values():
        column.flags.writeable = False
    return table


def _numbered(*columns: Any) -> Any:
    """Return a number for each row, counted from 0, that is the same where all columns are."""
    key: Any = 0
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    return places_of(key)[1]


def _every(choices: _Choices) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the degrees of every mesh, and their places among those that each axis may have."""
    left, places = np.array([choices.devices]), dict[str, Any]()
    # an axis may have none, as stages of one device
    degrees = {
        axis: np.array(getattr(choices, axis), dtype=np.int64)
        for axis in ("pp", "cp", "tp", "dp_shard", "ep")
    }
    for axis in ("pp", "cp", "tp", "dp_shard"):
        rows, place = np.nonzero(left[:, None] % degrees[axis] == 0)
        places = {other: own.take(rows) for other, own in places.items()} | {axis: place}
        left = left.take(rows) // degrees[axis].take(place)
        if axis == "tp" and choices.batch < choices.devices:
            # what is left are data ranks
            dividing = np.flatnonzero(choices.batch % left == 0)
            places, left = {other: own.take(dividing) for other, own in places.items()}, left.take(dividing)
    table = {axis: degrees[axis].take(place) for axis, place in places.items()}
    # experts spread over ranks of the other axes
    inner = table["dp_shard"] * table["cp"] * table["tp"]
    divides = (inner % degrees["ep"][:, None] == 0) | choices.asks_ep
    if choices.dp_replicate is not None:
        divides &= left == choices.dp_replicate
    places["ep"], rows = np.nonzero(divides)
    table = {axis: column.take(rows) for axis, column in (table | {"dp_replicate": left}).items()}
    places = {axis: place if axis == "ep" else place.take(rows) for axis, place in places.items()}
    return table | {"ep": degrees["ep"].take(places["ep"])}, places


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
        batch=facts.hardware.world_size,
        positions=model.positions,
    )
