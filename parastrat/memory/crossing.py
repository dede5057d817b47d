"""What torch's pipelines hold of the tensors that cross between their stages.

Source: torch/distributed/pipelining/stage.py. A stage makes buffers for what it receives, activations and
gradients, for every micro-batch of a step, once in a training (``_setup_forward_recv_info``,
``_setup_backward_recv_info``); and it holds what it sent until that micro-batch runs backward
(``fwd_cache``). Where backward is split in two, what was received keeps its gradient until the step ends
(torch/distributed/pipelining/_backward.py, ``stage_backward_input``). Other stacks hold less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from parastrat.columns import code_of
from parastrat.elementwise import larger, where
from parastrat.memory.flying import Pipes
from parastrat.plan import Recompute
from parastrat.remembered import remembered
from parastrat.stack import Crossing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.alike import Alike
    from parastrat.memory.plans import Plans
    from parastrat.model import Autocast, Block, ModelSpec
    from parastrat.units import Bytes, Numbers

_NOTHING, _SENT = Crossing.NOTHING, Crossing.SENT
#: from which on a block keeps what it was given
_KEEPING_INPUTS = code_of(Recompute.SELECTIVE)


class Sending(Pipes, Protocol):
    """What of the plans of ranks tells what these send and receive."""

    @property
    def alike(self) -> Alike: ...

    #: what ``widths_of`` tells
    @property
    def width(self) -> Bytes: ...

    @property
    def given(self) -> Bytes: ...


def widths_of(plans: Plans) -> tuple[Bytes, Bytes]:
    """Return what crosses a cut for one micro-batch, and of that what lies in buffers as a block keeps it.

    Tensors cross whole, also where sequence parallelism divides them inside of stages, but for stacks that
    hand on what each rank has (``Stack.crosses_divided``). What there is of this is the stack's
    (``Stack.crossing``).
    """
    stack, alike, c = plans.job.stack, plans.alike, plans.c
    if alike.piped is False or stack.crossing is _NOTHING:
        return 0.0, 0.0
    (width, given), (cast, given_cast) = formats_of(plans.job.model)
    read, read_cast = as_given(plans.job.model)
    if alike.shards is not True:
        width, given = where(alike.shards, width, cast), where(alike.shards, given, given_cast)
    samples = where(alike.piped, plans.shares.replicated, 0.0)
    width, given = width * samples, given * samples
    fixed, fixed_cast = fixed_of(plans.job.model)
    if fixed_cast:
        once = where(alike.shards, fixed, fixed_cast)
        width = width + where(alike.piped, once, 0.0)
    divided = (c.tp > 1) & (c.sequence_parallel == 1)
    if stack.crosses_divided:
        parts = where(divided, c.tp, 1)
        width, given = width / parts, given / parts
    else:
        given = where(divided, 0.0, given)
    keeps = plans.recompute >= _KEEPING_INPUTS
    reads = where(alike.shards, read, read_cast)
    return width, where(keeps | reads, given, 0.0)


def crossing_bytes(crossing: Crossing, c: Sending, rank: Numbers, held: Numbers) -> tuple[Bytes, Bytes]:
    """Return a pipeline rank's buffers, and what it holds of what it sent, less what lies in buffers.

    Args:
        crossing: what the stack's pipelines hold.
        c: the plans of the ranks.
        rank: the place in the pipeline.
        held: micro-batches in flight.
    """
    alike = c.alike
    if alike.piped is False or crossing is _NOTHING:
        return 0.0, 0.0
    stages, width = c.virtual_stages, c.width
    sending = stages - (rank == where(alike.bent, 0, c.pp - 1))
    if crossing is _SENT:
        return 0.0, held * sending * width
    receiving = stages - (rank == 0)
    buffers = c.gradient_accumulation_steps * (receiving + sending) * width
    if alike.splits is not False:
        # a backward of inputs alone leaves their gradients in what was received; where a bent chain turns
        # they are what the stage before is given back
        left = larger(c.gradient_accumulation_steps - held, 0) * receiving
        same = c.gradient_accumulation_steps * (alike.bent & (rank == c.pp - 1))
        buffers = buffers + where(alike.splits, (left - same) * width, 0.0)
    return buffers, held * (sending * width - receiving * c.given)


@remembered
def formats_of(model: ModelSpec) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the bytes of one sample that cross a cut, and of these what a block's checkpoint keeps.

    Of cuts that differ the most, of blocks that differ the least; without and under autocast.
    """
    units = [block for block in model.blocks if block.unit] or list(model.blocks)
    ways: tuple[Sequence[Block | Autocast], ...] = units, [block.autocast or block for block in units]
    plain = max(block.boundary_bytes for block in model.blocks)
    cast = max((block.autocast or block).boundary_bytes for block in model.blocks)
    kept = [min(each.activations.full.total for each in way) for way in ways]
    return (plain, min(kept[0], plain)), (cast, min(kept[1], cast))


@remembered
def as_given(model: ModelSpec) -> tuple[bool, bool]:
    """Return whether blocks keep what they are given as it is; in formats of FSDP, and under autocast.

    Where that is unknown a stream in 16 bits is taken to be copied by norms that compute in fp32, which
    FSDP's formats give.
    """
    units = [block for block in model.distinct_blocks if block.unit]
    copies = [block.copies_input for block in units]
    cast = [(block.autocast or block).copies_input for block in units]
    return all(each is False for each in copies), not any(cast)


@remembered
def fixed_of(model: ModelSpec) -> tuple[float, float]:
    """Return the bytes that cross a cut for any number of samples; without and under autocast."""
    blocks = model.distinct_blocks
    plain = max(block.boundary_fixed for block in blocks)
    return plain, max(plain, *((block.autocast or block).boundary_fixed for block in blocks))
