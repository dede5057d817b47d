"""Seconds that backward takes longer in two parts: gradients of inputs, and later those of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.compute import joined
from parastrat.schedules import splits

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.compute import BlockTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """What the backward of one repeat of each kind of block consists of, for one micro-batch.

    Kernels are the same in two parts. The host has more to do: it walks the stage's graph to tell the parts
    apart, and the part of each weight looks through all of it, so that its work on a stage grows with the
    square of the stage's blocks (torch/distributed/pipelining/_backward.py, ``get_param_groups`` and
    ``stage_backward_weight``; measured by benchmarks/split_backward.py).
    """

    #: seconds, kinds before places
    kernels: Any
    launches: Any
    #: repeated ones of the whole chain
    blocks: int
    #: launches over those of a whole backward, and further ones for each block of a stage
    ratio: float
    ratio_per_block: float

    def longer_s(self, c: Columns, at: Any) -> Any:
        """Return the seconds more, kinds before rows; None where no row's schedule splits."""
        if not c.has("pp_schedule"):
            return None
        split = splits(c)
        rows = split.nonzero()[0]
        if not len(rows):
            return None
        kernels, launches = (each.take(at[rows], axis=-1) for each in (self.kernels, self.launches))
        # ranks with more blocks than others have as many more seconds for each
        stages = (c.pp * c.virtual_stages)[rows]
        ratio = self.ratio + self.ratio_per_block * self.blocks / stages
        longer = np.zeros((len(kernels), len(split)))
        longer[:, rows] = joined(kernels, ratio * launches) - joined(kernels, launches)
        return longer


def splitting_of(facts: Facts, times: BlockTimes, place: Any) -> Splitting | None:
    """Return what backward consists of; None of stacks whose schedules do not split it.

    Args:
        facts: the job.
        times: of some plans.
        place: which of these every plan is, as far as kernels see.
    """
    if not facts.stack.splits_backward:
        return None
    return Splitting(
        kernels=times.backward_kernels.take(place, axis=1),
        launches=np.broadcast_to(times.launch_backward, times.backward_kernels.shape).take(place, axis=1),
        blocks=sum(block.repeat for block in facts.model.blocks if block.unit),
        ratio=facts.stack.split_launches,
        ratio_per_block=facts.stack.split_launches_per_block,
    )
