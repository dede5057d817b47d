"""What torch's pipelines hold of the tensors that cross between their stages.

Source: torch/distributed/pipelining/stage.py. A stage makes buffers for what it receives, activations and
gradients, for every micro-batch of a step, once in a training (``_setup_forward_recv_info``,
``_setup_backward_recv_info``); and it holds what it sent until that micro-batch runs backward
(``fwd_cache``). Where backward is split in two, what was received keeps its gradient until the step ends
(torch/distributed/pipelining/_backward.py, ``stage_backward_input``). Other stacks hold less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.memory.activations import autocasts
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.remembered import remembered
from parastrat.schedules import SPLIT_ALWAYS
from parastrat.stack import Crossing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import Autocast, Block, ModelSpec
    from parastrat.units import Bytes, Numbers

#: schedules whose first rank has the last stage as well
_BENT = PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V
#: under which a block keeps what it was given
_KEEPING_INPUTS = Recompute.SELECTIVE, Recompute.FULL


def crossing_bytes(facts: Facts, c: Columns, rank: Numbers, held: Numbers) -> tuple[Bytes, Bytes]:
    """Return a pipeline rank's buffers, and what it holds of what it sent, less what lies in buffers.

    Tensors cross whole, also where sequence parallelism divides them inside of stages, but for stacks that
    hand on what each rank has (``Stack.crosses_divided``). What there is of this is the stack's
    (``Stack.crossing``).

    Args:
        facts: the job.
        c: the plans.
        rank: the place in the pipeline.
        held: micro-batches in flight.
    """
    if facts.stack.crossing is Crossing.NOTHING or not np.any(c.pp > 1):
        return 0.0, 0.0
    width, given = (each * c.micro_batch_size / c.cp * (c.pp > 1) for each in _widths(facts, c))
    divided = (c.tp > 1) & np.equal(c.sequence_parallel, 1)
    if facts.stack.crosses_divided:
        width, given = (each / np.where(divided, c.tp, 1) for each in (width, given))
        divided = np.zeros_like(divided)
    bent = is_any_of(c.pp_schedule, _BENT)
    receiving = c.virtual_stages - (rank == 0)
    sending = c.virtual_stages - (rank == np.where(bent, 0, c.pp - 1))
    if facts.stack.crossing is Crossing.SENT:
        return 0.0, held * sending * width
    buffers = c.gradient_accumulation_steps * (receiving + sending) * width
    # a backward of inputs alone leaves their gradients in what was received; where a bent chain turns they
    # are what the stage before is given back
    split = is_any_of(c.pp_schedule, SPLIT_ALWAYS)
    if split.any():
        left = np.maximum(c.gradient_accumulation_steps - held, 0) * receiving
        same = c.gradient_accumulation_steps * (bent & (rank == c.pp - 1))
        buffers += np.where(split, (left - same) * width, 0.0)
    in_buffers = autocasts(c) | is_any_of(c.recompute, _KEEPING_INPUTS)
    return buffers, held * (sending * width - receiving * (in_buffers & ~divided) * given)


def _widths(facts: Facts, c: Columns) -> tuple[Any, Any]:
    """Return the bytes of one sample that cross a cut, and of these what a block's checkpoint keeps.

    Of cuts that differ the most, of blocks that differ the least.
    """
    widths, given = _of_formats(facts.model)
    cast = autocasts(c).astype(np.int64)
    return widths.take(cast), given.take(cast)


@remembered
def _of_formats(model: ModelSpec) -> tuple[Any, Any]:
    """Return what ``_widths`` does, without and under autocast."""
    units = [block for block in model.blocks if block.unit] or list(model.blocks)
    ways: tuple[Sequence[Block | Autocast], ...] = units, [block.autocast or block for block in units]
    plain = max(block.boundary_bytes for block in model.blocks)
    cast = max((block.autocast or block).boundary_bytes for block in model.blocks)
    kept = [min(each.activations.full.total for each in way) for way in ways]
    widths = np.array([plain, cast])
    return widths, np.minimum(kept, widths)
