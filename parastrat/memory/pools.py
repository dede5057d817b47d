"""Memory that an allocator holds and nothing uses: torch's caches blocks by the stream that made them.

FSDP2 gathers in a stream of its own, and its reduced gradients come from another; what is freed there does
not serve the activations. Sources: https://docs.pytorch.org/docs/stable/notes/cuda.html (memory
management); torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (``foreach_all_gather``,
``foreach_reduce``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.gathered import shards_parameters, unit_parameters
from parastrat.ranks.states import local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.model import Block
    from parastrat.ranks import RankLoad
    from parastrat.ranks.states import ElementBytes
    from parastrat.units import Bytes


def gathering_pool(blocks: Sequence[Block], load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return the buffers that all-gathers fill before parameters are copied out of them.

    Two units are on their way at once, the running one's and the prefetched next; the root goes alone.

    Args:
        blocks: one of each kind that the model has.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
    """
    largest: Any = 0.0
    for block, count in zip(blocks, load.repeats, strict=True):
        if block.unit:
            largest = np.maximum(largest, np.where(count > 0, unit_parameters(block, c), 0.0))
    root = sum(local(load.root, c))
    gathered = np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1
    return np.where(shards_parameters(c) & gathered, element.compute * np.maximum(root, 2 * largest), 0.0)
