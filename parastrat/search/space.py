"""The space of plans as columns: meshes, micro-batches, and the options on top of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of, facts_columns
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
from parastrat.rules.backend import decide_backend
from parastrat.stack import Kernels
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")

#: micro-batches beyond this change kernels' efficiency by less than their curves' error
_LARGEST_MICRO_BATCH = 64

#: attention's own recompute is left to the user: with flash attention it frees next to nothing
_RECOMPUTES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)

_SCHEDULES = (
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.INTERLEAVED, 4),
)


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
    #: a plan's ``strategy``, such as ``fsdp2`` or ``hsdp+tp``
    strategy: str | None = None
    offload: Offload = Offload.NONE
    #: only what ``auto_parallelize`` applies in a loop that it does not know: data axes, no accumulation
    plain_loop: bool = False


def mesh_columns(facts: Facts, fixed: Constraints) -> dict[str, Any]:
    """Return every mesh over all devices that the constraints allow, one row each."""
    world = facts.hardware.world_size
    divisors = np.array([d for d in range(1, world + 1) if world % d == 0])
    rows = np.ones((1, 0), dtype=np.int64)
    for axis in ("pp", "cp", "tp", "dp_shard"):
        choices = _choices(facts, fixed, axis, divisors)
        left = np.repeat(rows, len(choices), axis=0)
        rows = np.column_stack([left, np.tile(choices, len(rows))])
        rows = rows[world % np.prod(rows, axis=1) == 0]
    pp, cp, tp, dp_shard = rows.T
    table = {
        "pp": pp,
        "cp": cp,
        "tp": tp,
        "dp_shard": dp_shard,
        "dp_replicate": world // np.prod(rows, axis=1),
    }
    if fixed.dp_replicate is not None:
        kept = table["dp_replicate"] == fixed.dp_replicate
        table = {name: column[kept] for name, column in table.items()}
    return _with_experts(facts, fixed, table)


def _choices(facts: Facts, fixed: Constraints, axis: str, divisors: Any) -> Any:
    value = getattr(fixed, axis)
    if value is not None:
        return np.array([value])
    if fixed.plain_loop and axis != "dp_shard":
        return divisors[:1]
    if axis == "pp":
        return divisors[divisors <= sum(block.repeat for block in facts.model.blocks)]
    if axis == "cp":
        # the sequence is cut in 2 cp chunks, so that causal work is even; attention must be known
        longest = (facts.model.sequence_length or 2) // 2 if facts.model.heads else 1
        return divisors[divisors <= longest]
    if axis == "tp":
        # a model without heads has no tensor-parallel plan
        return divisors[divisors <= (facts.model.heads or 1)]
    return divisors


def _with_experts(facts: Facts, fixed: Constraints, table: dict[str, Any]) -> dict[str, Any]:
    experts = facts.model.experts or 1
    degrees = [d for d in range(1, experts + 1) if experts % d == 0]
    if fixed.ep is not None:
        degrees = [fixed.ep]
    elif fixed.plain_loop:
        degrees = [1]
    count = len(table["pp"])
    widened = {name: np.tile(column, len(degrees)) for name, column in table.items()}
    widened["ep"] = np.repeat(np.array(degrees), count)
    inner = widened["dp_shard"] * widened["cp"] * widened["tp"]
    kept = (inner % widened["ep"] == 0) | (fixed.ep is not None)
    return {name: column[kept] for name, column in widened.items()}


def batch_columns(facts: Facts, fixed: Constraints, table: dict[str, Any]) -> dict[str, Any]:
    """Return the meshes joined with every micro-batch that divides a rank's share of the batch.

    Micro-batches are powers of two. A batch that the data axes do not divide keeps one row, so that the
    rule which says so rejects it by name.
    """
    dp = table["dp_replicate"] * table["dp_shard"]
    share = facts.workload.global_batch_size // dp
    whole = facts.workload.global_batch_size % dp == 0
    if fixed.micro_batch_size is not None:
        sizes = [fixed.micro_batch_size]
    else:
        sizes = [2**power for power in range(_LARGEST_MICRO_BATCH.bit_length())]
    parts = []
    for size in sizes:
        divides = whole & (share >= size) & (share % size == 0)
        # what cannot be split is kept once, to be rejected by its rule
        kept = divides | ((size == sizes[0]) & ~divides)
        if fixed.plain_loop:
            kept &= (share == size) | ~whole
        accumulation = np.where(divides, share // size, np.maximum(share // size, 1))
        chosen = {name: column[kept] for name, column in table.items()}
        chosen["micro_batch_size"] = np.full(int(kept.sum()), size)
        chosen["gradient_accumulation_steps"] = accumulation[kept]
        parts.append(chosen)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def option_columns(fixed: Constraints, table: dict[str, Any]) -> dict[str, Any]:
    """Return the rows joined with recompute policies, resharding and pipeline schedules.

    Rows that differ in recompute alone are of one ``family``.
    """
    policies = (fixed.recompute,) if fixed.recompute is not None else _RECOMPUTES
    others = tuple(product((True, False), _SCHEDULES))
    parts = []
    for policy, (number, (reshard, (schedule, chunks))) in product(policies, enumerate(others)):
        kept = _option_rows(table, reshard=reshard, schedule=schedule, chunks=chunks)
        part = {name: column[kept] for name, column in table.items()}
        count = int(kept.sum())
        part["recompute"] = np.full(count, code_of(policy))
        part["reshard_after_forward"] = np.full(count, reshard)
        part["pp_schedule"] = np.where(part["pp"] > 1, code_of(schedule), -1)
        part["virtual_stages"] = np.full(count, chunks)
        part["family"] = np.flatnonzero(kept) * len(others) + number
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _option_rows(table: dict[str, Any], *, reshard: bool, schedule: PipelineSchedule, chunks: int) -> Any:
    """Return which rows an option changes anything for.

    Resharding matters to sharded parameters; torch keeps them gathered under a pipeline. Interleaving
    needs a pipeline, and micro-batches in whole rounds.
    """
    pipelined, sharded = table["pp"] > 1, table["dp_shard"] * table["cp"] > 1
    kept = np.where(sharded & ~pipelined, True, not reshard)
    if schedule is PipelineSchedule.ONE_F_ONE_B:
        return kept
    return kept & pipelined & (table["gradient_accumulation_steps"] % table["pp"] == 0) & (chunks > 1)


def plain_options(table: dict[str, Any]) -> dict[str, Any]:
    """Return the rows with each option at its simplest, to judge meshes before options multiply them."""
    count = len(table["pp"])
    return table | {
        "recompute": np.zeros(count, dtype=np.int64),
        "reshard_after_forward": np.zeros(count, dtype=bool),
        "pp_schedule": np.where(table["pp"] > 1, code_of(PipelineSchedule.ONE_F_ONE_B), -1),
        "virtual_stages": np.ones(count, dtype=np.int64),
    }


def shape_columns(table: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that follow from the mesh."""
    dp = table["dp_replicate"] * table["dp_shard"]
    return {
        "dp": dp,
        "world_size": table["pp"] * dp * table["cp"] * table["tp"],
        # ranks that share a sequence shard the parameters too, as torchtitan's fsdp mesh does
        "shard": np.where(
            table["dp_shard"] * table["cp"] > 1, code_of(Shard.PARAMETERS), code_of(Shard.NONE)
        ),
        "sequence_parallel": table["tp"] > 1,
        "loss_parallel": table["tp"] > 1,
    }


def settled_columns(facts: Facts, fixed: Constraints) -> dict[str, Any]:
    """Return the columns that are one choice for the whole search."""
    decision = decide_backend(facts.hardware)
    compiled = facts.stack.kernels is Kernels.COMPILED
    return {
        "async_tp": False,
        "cp_method": code_of(ContextMethod.ALL_GATHER),
        "offload": code_of(fixed.offload),
        "precision": code_of(facts.workload.precision),
        "compile": code_of(Compile.BLOCK if compiled else Compile.NONE),
        "backend": code_of(decision.backend or Backend.GLOO),
    }


def with_facts(facts: Facts, fixed: Constraints, table: dict[str, Any]) -> Columns:
    """Return a table as the columns that rules and estimators read."""
    return Columns(
        {**facts_columns(facts), **settled_columns(facts, fixed), **table, **shape_columns(table)}
    )


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
    """Return one row as a plan."""

    def number(name: str) -> int:
        column = getattr(columns, name)
        return int(column[row]) if getattr(column, "shape", ()) else int(column)

    def choice(kind: Any, name: str) -> Any:
        return list(kind)[number(name)]

    schedule = number("pp_schedule")
    return Plan(
        mesh=Mesh(**{axis: number(axis) for axis in AXES}),
        micro_batch_size=number("micro_batch_size"),
        gradient_accumulation_steps=number("gradient_accumulation_steps"),
        precision=choice(Precision, "precision"),
        backend=choice(Backend, "backend"),
        shard=choice(Shard, "shard"),
        reshard_after_forward=bool(number("reshard_after_forward")),
        sequence_parallel=bool(number("sequence_parallel")),
        loss_parallel=bool(number("loss_parallel")),
        async_tp=bool(number("async_tp")),
        cp_method=choice(ContextMethod, "cp_method"),
        recompute=choice(Recompute, "recompute"),
        offload=choice(Offload, "offload"),
        compile=choice(Compile, "compile"),
        pp_schedule=None if schedule < 0 else list(PipelineSchedule)[schedule],
        virtual_stages=number("virtual_stages"),
    )
