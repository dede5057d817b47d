"""Memory that an allocator holds and nothing uses: torch's caches blocks by the stream that made them.

FSDP2 gathers in a stream of its own, and its reduced gradients come from another; what is freed there does
not serve the activations. Nor do they fill what one weight's gradient was copied to. Sources:
https://docs.pytorch.org/docs/stable/notes/cuda.html (memory management);
torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (``foreach_all_gather``, ``foreach_reduce``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.hardware import DeviceType
from parastrat.memory.activations import activation_table
from parastrat.memory.gathered import gathers, unit_parameters
from parastrat.ranks import block_kinds
from parastrat.ranks.states import element_bytes, local_total, root_totals

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import RankLoad
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.states import ElementBytes
    from parastrat.units import Bytes


def pooled(facts: Facts) -> bool:
    """Return whether what is freed stays with the stream that made it, as in torch on accelerators.

    A stack that gathers and reduces in the stream that computes leaves nothing behind.
    """
    return not facts.stack.gathers_in_graph and facts.hardware.device.type is not DeviceType.CPU


def idle_pool(facts: Facts, load: RankLoad, c: Columns) -> Bytes:
    """Return what an allocator holds between the moments of a step at which it is used."""
    kinds, element = block_kinds(facts.model), element_bytes(facts)
    way = _pool_apart if facts.stack.ends_apart else gathering_pool
    gathering = way(kinds, load, c, element) * pooled(facts)
    if facts.stack.casts_gradients_aside:
        gathering = gathering + _casting_pool(kinds, load, c, element) * pooled(facts)
    return gathering + (_copying_pool(facts, load, c) if element.copied else 0.0)


def _copying_pool(facts: Facts, load: RankLoad, c: Columns) -> Bytes:
    """Return the copy of a rank's largest gradient, which no tensor of activations is as large as.

    Source: DeepSpeed runtime/bf16_optimizer.py @56c5223, update_hp_grads.
    """
    kinds = block_kinds(facts.model)
    weights = local_total(activation_table(kinds.blocks).added, c)
    return element_bytes(facts).copied * _largest(weights, load)


def _largest(each: Any, load: RankLoad) -> Any:
    """Return the largest of what each kind of block has, of those that a rank has."""
    own = each.reshape(len(each), *[1] * (np.ndim(load.rank) - 1), -1)
    return np.where(np.asarray(load.repeats) > 0, own, 0.0).max(axis=0)


def _casting_pool(kinds: Kinds, load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return the gradients of the largest unit in the format that they are reduced in, as FSDP1 casts them.

    Source: torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook.
    """
    largest = np.maximum(_largest(unit_parameters(kinds, c), load), local_total(load.root, c))
    return np.where(gathers(c), element.reduce * largest, 0.0)


def _pool_apart(kinds: Kinds, load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return the same where no block belongs to a root: two that follow each other are on their way."""
    each = unit_parameters(kinds, c) + local_total(root_totals(kinds), c)
    present = [own * (count > 0) for own, count in zip(each, load.repeats, strict=True)]
    pairs = [present[first] + present[second] for first, second in pairwise(kinds.of)]
    pairs += [2 * own * (count > 1) for own, count in zip(present, load.repeats, strict=True)]
    return np.where(gathers(c), element.compute * np.maximum.reduce([*present, *pairs]), 0.0)


def gathering_pool(kinds: Kinds, load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return the buffers that all-gathers fill before parameters are copied out of them.

    Two units are on their way at once, the running one's and the prefetched next; the root goes alone.

    Args:
        kinds: the model's kinds of block.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
    """
    largest = _largest(unit_parameters(kinds, c), load)
    root = local_total(load.root, c)
    return np.where(gathers(c), element.compute * np.maximum(root, 2 * largest), 0.0)
