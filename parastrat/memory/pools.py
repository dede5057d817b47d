"""Memory that an allocator holds and nothing uses: torch's caches blocks by the stream that made them.

FSDP2 gathers in a stream of its own, and its reduced gradients come from another, as FSDP1's casts of them
do; what is freed there does not serve the activations. Nor do they fill what one weight's gradient was
copied to. Sources: https://docs.pytorch.org/docs/stable/notes/cuda.html (memory management);
torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (``foreach_all_gather``, ``foreach_reduce``);
torch/distributed/fsdp/_runtime_utils.py (``_post_backward_hook``).
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from parastrat.elementwise import larger, where

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from parastrat.memory.activations import KindBytes
    from parastrat.memory.plans import Plans
    from parastrat.ranks.spread import Rank
    from parastrat.units import Bytes, Mask, Numbers


def idle_pool(plans: Plans, kinds: KindBytes, rank: Rank, root: Numbers, gathers: Mask) -> Bytes:
    """Return what an allocator holds between the moments of a step at which it is used.

    Args:
        plans: the plans.
        kinds: of one repeat of each kind of block.
        rank: the blocks of the rank, or of all ranks.
        root: the parameters of its root.
        gathers: where parameters are gathered, which leaves most of it.
    """
    job, pool = plans.job, 0.0
    if job.flags.pooled and gathers is not False:
        largest = _largest_present(kinds.unit, rank, job.units)
        if job.stack.ends_apart:
            elements = _apart(plans, kinds, rank)
        else:
            # two units are on their way at once, the running one's and the prefetched next; the root goes
            # alone
            elements = larger(root, _most_of_two(plans, kinds, rank, largest))
        pool = job.element.compute * elements
        if job.stack.casts_gradients_aside:
            pool = pool + job.element.reduce * larger(root, largest)
        if gathers is not True:
            pool = where(gathers, pool, 0.0)
    if job.element.copied:
        # of the largest gradient, which no tensor of activations is as large as (DeepSpeed
        # runtime/bf16_optimizer.py @56c5223, update_hp_grads)
        pool = pool + job.element.copied * _largest_present(kinds.added, rank, job.every_kind)
    return pool


def _most_of_two(plans: Plans, kinds: KindBytes, rank: Rank, largest: Numbers) -> Numbers:
    """Return the elements of two units that follow each other: a block's own two, where it has two."""
    if plans.apart is False:
        return 2 * largest
    units, experts = (_present(each, rank, plans.job.units) for each in (kinds.unit, kinds.experts))
    every = zip(units, experts, strict=True)
    return _largest(where(apart > 0, own, 2 * own) for own, apart in every)


def _apart(plans: Plans, kinds: KindBytes, rank: Rank) -> Numbers:
    """Return the elements that are on their way at once where no block belongs to a root.

    Those of two blocks that follow each other; of one with experts of their own its two units, or the
    larger beside another block's.
    """
    every = plans.job.every_kind
    units, roots, experts = (
        _present(each, rank, every) for each in (kinds.unit, kinds.root, kinds.experts)
    )
    present = [unit + root for unit, root in zip(units, roots, strict=True)]
    largest, counts = present, rank.load.repeats
    several = [own * (1 + (count > 1)) for own, count in zip(present, counts, strict=True)]
    if plans.apart is not False:
        apart = list(experts)
        largest = [larger(own - of, of) for own, of in zip(present, apart, strict=True)]
        several = [where(of > 0, own, both) for of, own, both in zip(apart, present, several, strict=True)]
    pairs = (largest[first] + largest[second] for first, second in pairwise(plans.job.pipelines.kinds.of))
    return _largest((*pairs, *several))


def _largest_present(each: Any, rank: Rank, places: Iterable[int]) -> Numbers:
    """Return the most that a repeat has of any of some kinds of block that a rank has."""
    if rank.rows is None:
        # of kinds that are not meant there is 0
        return _largest([each[kind] for kind, _ in rank.counts])
    return _largest(_present(each, rank, places))


def _present(each: Any, rank: Rank, places: Iterable[int]) -> Iterator[Numbers]:
    """Yield what a repeat of some kinds of block has, 0 of those that a rank has none of."""
    rows, repeats = rank.rows, rank.load.repeats
    for kind in places:
        if rows is None:
            yield each[kind] if repeats[kind] else 0.0
        else:
            yield where(repeats[kind] > 0, each.at(kind, rows), 0.0)


def _largest(several: Iterable[Numbers]) -> Numbers:
    return reduce(larger, several, 0.0)
