"""Seconds in which tp ranks add up the gradients of experts that each has whole, for its own tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s
from parastrat.plan import Shard
from parastrat.ranks.division import division, local
from parastrat.ranks.states import element_bytes

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.ranks import RankLoad
    from parastrat.units import Numbers, Seconds


def expert_sum_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> Seconds:
    """Return the seconds of one such sum on a rank, of which a step has ``expert_sums``; 0 where none is.

    Under a pipeline it is of whole gradients, in the format of compute; else of what a rank keeps of them.
    """
    d = division(c)
    element, held = element_bytes(facts), local(load.trainable, c)[1]
    sharded = c.shard == code_of(Shard.PARAMETERS)
    kept: Any = element.gradient * held / np.where(sharded, d.expert_shards, 1)
    size = np.where(c.pp > 1, element.compute * held, kept)
    seconds = all_reduce_s(size, Group(ranks=c.tp, stride=1), fabric)
    return np.where(d.sums_experts & (size > 0), seconds, 0.0)


def expert_sums(c: Columns) -> Numbers:
    """Return how many sums a step has: a pipeline cannot wait with them until it ends."""
    return np.where(c.pp > 1, c.gradient_accumulation_steps, 1)
