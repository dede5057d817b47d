"""Peak memory of the worst rank, from the blocks of a model.

Memory is followed through the moments of a step at which it can peak: the start of the backward of each
kind of block, and the optimizer step. Everything is exact for parameters, gradients and optimizer states;
activations are what the blocks say that backward reads.

Sources: FSDP2's gathering and resharding, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html;
micro-batches in flight, Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.elementwise import smaller
from parastrat.errors import UsageError
from parastrat.estimate import MemoryEstimate
from parastrat.memory.alone import fullest, parts_alone, row_of
from parastrat.memory.parts import PARTS
from parastrat.memory.plans import job_of
from parastrat.memory.several import parts_of, peaks_of, told_apart
from parastrat.memory.shortcuts import parts_of_plan
from parastrat.tables import sized_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan

#: what no rank has; a plan that needs more is told from one that fits, but not what it needs
_MOST_BYTES = 2**58

#: so few rows are looked at one by one
_FEW = 8


def plan_memory(facts: Facts, plan: Plan) -> MemoryEstimate:
    """Return what one plan needs at its peak.

    Raises:
        UsageError: bytes that were not counted, there are too many.
    """
    sizes = list(map(ceil, parts_of_plan(job_of(facts), sized_columns(plan))))
    capacity = facts.hardware.device.usable_memory_bytes
    return _estimate(sizes, capacity, memory_margin(facts, sum(sizes)))


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    job, many = job_of(facts), len(columns.pp)
    parts = np.empty((len(PARTS), many), dtype=np.int64)
    if many <= _FEW:
        for row in range(many):
            # of many kinds that a search meets code would be written, and hardly used again
            parts[:, row] = counted(parts_alone(row_of(job, columns, row)))
    else:
        for rows, plans in told_apart(job, columns):
            for place, own in enumerate(parts_of(plans)):
                parts[place, rows] = counted(own)
    total = parts.sum(axis=0)
    capacity = facts.hardware.device.usable_memory_bytes
    named = dict(zip(PARTS, parts, strict=True))
    return {**named, "margin": memory_margin(facts, total), "capacity": capacity, "total": total}


def memory_totals(facts: Facts, columns: Columns) -> Any:
    """Return ``total`` of ``memory_columns`` for every row, or up to a byte for each part more."""
    job, many = job_of(facts), len(columns.pp)
    total = np.empty(many)
    if many <= _FEW:
        for row in range(many):
            total[row] = fullest(row_of(job, columns, row)).total
    else:
        for rows, plans in told_apart(job, columns):
            found = peaks_of(plans)
            total[rows] = np.maximum(found.stepping, found.backward)
    return counted(total) + len(PARTS)


def counted(amount: Any) -> Any:
    """Return bytes as whole numbers: rounded up, and no more than those that are counted."""
    return np.minimum(np.ceil(amount), _MOST_BYTES).astype(np.int64)


def memory_margin(facts: Facts, total: Any) -> Any:
    """Return the 95th percentile of an estimate's error, bytes."""
    capacity = facts.hardware.device.usable_memory_bytes
    margin = smaller(facts.stack.memory_margin * total, 0.08 * capacity)
    return margin.astype(np.int64) if type(margin) is np.ndarray else int(margin)


def memory_estimate(memory: Mapping[str, Any], row: int) -> MemoryEstimate:
    """Return one row of ``memory_columns`` as a value.

    Raises:
        UsageError: bytes that were not counted, there are too many.
    """
    sizes = [int(memory[part][row]) for part in PARTS]
    return _estimate(sizes, int(memory["capacity"]), int(memory["margin"][row]))


def _estimate(sizes: Sequence[int], capacity: int, margin: int) -> MemoryEstimate:
    """Return the sizes of ``PARTS`` as a value."""
    if max(sizes) >= _MOST_BYTES:
        raise UsageError(
            f"one rank needs more than {_MOST_BYTES // 2**50:,} PiB, which parastrat does not count",
            hint="train on shorter sequences, or on fewer of them at once",
        )
    parameters, gradients, optimizer, activations, transient, overhead = sizes
    return MemoryEstimate(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        transient=transient,
        overhead=overhead,
        capacity=capacity,
        margin=margin,
    )
