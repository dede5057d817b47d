"""What a plan needs at least, before its resharding is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parastrat.columns import code_of
from parastrat.distinct import NUMBERED, distinct
from parastrat.memory.gathered import shards_parameters
from parastrat.memory.plans import job_of
from parastrat.memory.several import peaks_of, told_apart
from parastrat.ranks import mean_ranks
from parastrat.ranks.division import division, local_total
from parastrat.ranks.states import of_elements, state_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Recompute
    from parastrat.units import Bytes


def memory_floor(facts: Facts, columns: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what the plans of a row need at least under each policy, whatever resharding they have.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the foremost ranks' peaks as blocks start backward, with the lesser of the gathered parameters.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    codes = np.array([[code_of(policy)] for policy in policies])
    floors = np.empty((len(policies), len(columns.pp)))
    for rows, plans in told_apart(job_of(facts), columns, codes):
        found = peaks_of(plans)
        floors[:, rows] = np.maximum(found.stepping, found.backward)
    return floors


def mesh_floor(facts: Facts, columns: Columns) -> Bytes:
    """Return what the plans of a mesh need at least, whatever their micro-batch, schedule and options.

    That is of the rank with the mean load what steps and, under a pipeline, what backward leaves gathered
    and unreduced: both are linear in what a rank holds, so that some rank needs as much.
    """
    c, at = distinct(columns, NUMBERED["sharding"])
    job, load = job_of(facts), mean_ranks(facts.model, c)
    states = state_bytes(load, division(c), c.shard, of_elements(c.offload, job.element), job.matrices)
    everything = local_total(load.trainable, c) + local_total(load.frozen, c)
    gathered = job.share * (job.element.compute + job.element.reduce) * everything
    piped = (c.pp > 1) & shards_parameters(c)
    kept = states.parameters + states.optimizer + job.flags.pooled * states.gradients
    backward = np.where(piped, kept + gathered, 0.0)
    least = np.maximum(states.kept + states.stepping, backward) + job.context + job.buffers
    return least.take(at)
