"""Parameters that FSDP2 has gathered while blocks run backward, and gradients that it has not reduced yet.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.plan import Shard
from parastrat.ranks.states import block_totals, local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.model import Block
    from parastrat.ranks import RankLoad
    from parastrat.ranks.moments import Moment
    from parastrat.ranks.states import ElementBytes
    from parastrat.units import Bytes

#: what decides the states of a rank and what FSDP2 gathers of them
HELD_BY = (
    "pp",
    "virtual_stages",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "shard",
    "reshard_after_forward",
    "offload",
)


def shards_parameters(c: Columns) -> Any:
    """Return where a plan shards parameters."""
    return c.shard == code_of(Shard.PARAMETERS)


def gathered_bytes(
    blocks: Sequence[Block],
    load: RankLoad,
    c: Columns,
    element: ElementBytes,
    moment: Moment,
    *,
    at_end: bool = False,
) -> Bytes:
    """Return FSDP2's gathered parameters and unsharded gradients while a block runs, or autocast's casts.

    The root unit stays gathered from forward to the end. With resharding two other units are gathered, the
    running one and the prefetched next; the running one's gradients exist in the compute format and,
    copied, in the reduction's. The root's are reduced last, when the first block has run; at the loss
    there are none yet. Under a pipeline torch reduces once a step: gradients stay unsharded, and units stay
    gathered from their backward on (``torch.distributed.pipelining.stage``); with resharding each forward
    ends that, so that all are gathered only at the end of a micro-batch's backward.

    Args:
        blocks: one of each kind that the model has.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
        moment: when a block runs backward.
        at_end: of a micro-batch's backward under a pipeline, instead of when the block first runs in it.
    """
    everything = sum(local(load.trainable, c)) + sum(local(load.frozen, c))
    root = sum(local(load.root, c))
    several = np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1
    resharded = c.reshard_after_forward & ((c.pp == 1) | (not at_end))
    if blocks[moment.kind].unit:
        reduced = unit_parameters(blocks[moment.kind], c)
        ahead = 2 * reduced
    else:
        # the unit that runs backward next is prefetched; the first block has none behind it
        ahead, reduced = _unit_behind(blocks, c, moment), np.where(moment.last, root, 0.0)
    whole = np.where(resharded, ahead, everything - root)
    unreduced = element.reduce * np.where(c.pp > 1, everything, reduced)
    gathered = element.compute * (root + whole + reduced) + unreduced
    return np.where(shards_parameters(c), gathered * several, element.cast * everything)


def unit_parameters(block: Block, c: Columns) -> Any:
    """Return the parameters of one repeat of a block on a rank."""
    return sum(local(block_totals(block), c))


def _unit_behind(blocks: Sequence[Block], c: Columns, moment: Moment) -> Any:
    """Return the parameters of the unit that runs backward next, 0 where there is none."""
    found: Any = 0.0
    for kind, block in enumerate(blocks):
        here = moment.behind == kind
        if here.any():
            found = np.where(here, unit_parameters(block, c), found)
    return found
