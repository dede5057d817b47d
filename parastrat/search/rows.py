"""Rows of a space as the columns that rules and estimators read, and as plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.plan import (
    Backend,
    Compile,
    ContextMethod,
    Mesh,
    Offload,
    PipelineSchedule,
    Plan,
    Recompute,
    Shard,
)
from parastrat.rules.axes import are_shared
from parastrat.rules.backend import decide_backend
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from parastrat.case import Facts
    from parastrat.rules import PlanRule
    from parastrat.units import Mask

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")

#: what makes of a column's number what a plan has; choices are told by the positions of their members
_MADE: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(AXES, int),
    **dict.fromkeys(("micro_batch_size", "gradient_accumulation_steps", "virtual_stages"), int),
    **dict.fromkeys(("reshard_after_forward", "sequence_parallel", "loss_parallel", "async_tp"), bool),
    "precision": tuple(Precision).__getitem__,
    "backend": tuple(Backend).__getitem__,
    "shard": tuple(Shard).__getitem__,
    "cp_method": tuple(ContextMethod).__getitem__,
    "recompute": tuple(Recompute).__getitem__,
    "offload": tuple(Offload).__getitem__,
    "compile": tuple(Compile).__getitem__,
    # -1 is none of them
    "pp_schedule": (*PipelineSchedule, None).__getitem__,
}
_read = attrgetter(*_MADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the user fixed; None is free."""

    pp: int | None = None
    dp_replicate: int | None = None
    dp_shard: int | None = None
    cp: int | None = None
    tp: int | None = None
    ep: int | None = None
    micro_batch_size: int | None = None
    recompute: Recompute | None = None
    #: plans of these are pipelines
    pp_schedule: PipelineSchedule | None = None
    virtual_stages: int | None = None
    #: a plan's ``strategy``, such as ``fsdp2`` or ``hsdp+tp``
    strategy: str | None = None
    offload: Offload = Offload.NONE
    #: only what ``auto_parallelize`` applies in a loop that it does not know: data axes, no accumulation
    plain_loop: bool = False
    #: only what ``auto_parallelize`` applies
    applied: bool = False

    @property
    def has_stages(self) -> bool:
        """Whether only pipelines are meant."""
        return self.pp_schedule is not None or (self.virtual_stages or 1) > 1


def shape_columns(table: dict[str, Any], positions: int | None) -> dict[str, Any]:
    """Return the columns that follow from the mesh, and from positions that are no tokens."""
    dp = table["dp_replicate"] * table["dp_shard"]
    shares = table["tp"] > 1
    if positions is not None:
        shares &= are_shared(positions, table["cp"] * table["tp"])
    return {
        "dp": dp,
        "world_size": table["pp"] * dp * table["cp"] * table["tp"],
        # ranks that share a sequence shard the parameters too, as torchtitan's fsdp mesh does
        "shard": np.where(
            table["dp_shard"] * table["cp"] > 1, code_of(Shard.PARAMETERS), code_of(Shard.NONE)
        ),
        "sequence_parallel": shares,
        "loss_parallel": table["tp"] > 1,
    }


def settled_columns(facts: Facts, fixed: Constraints) -> dict[str, Any]:
    """Return the columns that are one choice for the whole search."""
    decision = decide_backend(facts.hardware)
    compiled = facts.stack.kernels.compiled
    return {
        "async_tp": False,
        "cp_method": code_of(ContextMethod.ALL_GATHER),
        "offload": code_of(fixed.offload),
        "precision": code_of(facts.workload.precision),
        "compile": code_of(Compile.BLOCK if compiled else Compile.NONE),
        "backend": code_of(decision.backend or Backend.GLOO),
        "applied_alone": True if fixed.applied else None,
    }


def rungs_of(columns: Columns) -> Any:
    """Return each row's rung of the ladder; ``Plan.rung`` for columns."""
    model_axes = (columns.cp > 1).astype(int) + (columns.tp > 1) + (columns.ep > 1)
    data = np.where(columns.shard == code_of(Shard.PARAMETERS), 2, np.where(columns.dp > 1, 1, 0))
    return np.where(columns.pp > 1, 5, np.where(model_axes > 0, np.where(model_axes == 1, 3, 4), data))


def strategies_of(columns: Columns) -> Any:
    """Return a number per row that is equal where ``Plan.strategy`` is."""
    fsdp = columns.shard == code_of(Shard.PARAMETERS)
    data = np.where(fsdp, np.where(columns.dp_replicate > 1, 3, 2), np.where(columns.dp > 1, 1, 0))
    code = data
    for degree in (columns.cp, columns.tp, columns.ep, columns.pp):
        code = 2 * code + (degree > 1)
    return code


def plan_at(columns: Columns, row: int) -> Plan:
    """Return one row as a plan; what is read of the columns is kept there for other rows."""
    every = _read(columns)
    return _plan_of([each.item(row) if getattr(each, "shape", ()) else each for each in every])


def plan_of_row(columns: Columns, row: int) -> Plan:
    """Return one row as a plan, where no other one is asked for."""
    return _plan_of(columns.of_row(row, _MADE))


def _plan_of(numbers: Iterable[Any]) -> Plan:
    """Return a plan by what its columns hold, in the order of ``_MADE``."""
    known = {name: made(number) for (name, made), number in zip(_MADE.items(), numbers, strict=True)}
    return Plan(mesh=Mesh(**{axis: known.pop(axis) for axis in AXES}), **known)


def unnamed(masks: Mapping[PlanRule, Mask], rows: int) -> Any:
    """Return which of so many rows no mask names."""
    alive = np.ones(rows, dtype=bool)
    for mask in masks.values():
        alive &= np.logical_not(mask)
    return alive


class _Stacked(Mapping[str, Any]):
    """Columns of several parts below each other, each of which is made as it is read."""

    def __init__(self, parts: Sequence[Columns]) -> None:
        self._parts = parts
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        made = self.get(name)
        if made is None:
            raise KeyError(name)
        return made

    def get(self, name: str, default: Any = None) -> Any:
        """Return a column; ``Mapping`` would find by an error that there is none."""
        if name not in self._made:
            self._made[name] = self._together(name)
        made = self._made[name]
        return default if made is None else made

    def _together(self, name: str) -> Any:
        """Return one column of all parts, or the number that it is; None where only some have it."""
        if not all(part.has(name) for part in self._parts):
            return None
        own = [getattr(part, name) for part in self._parts]
        if not getattr(own[0], "shape", ()):
            return own[0]
        return np.concatenate(own) if all(getattr(each, "shape", ()) for each in own) else None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._parts[0].known() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def stacked(parts: Sequence[Columns]) -> Columns:
    """Return the rows of several columns below each other; those that only some have are left out."""
    return Columns(_Stacked(parts))
