"""Seconds that a micro-batch takes in the blocks of a pipeline rank, in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.communication import (
    Group,
    all_to_all_s,
    fabric_of,
    ring_s,
    ring_send_s,
)
from parastrat.cost.compute import block_times
from parastrat.cost.operators import operator_table
from parastrat.cost.splitting import splitting_of
from parastrat.cost.tensor_parallel import each, tensor_parallel_s
from parastrat.distinct import standing
from parastrat.plan import Recompute
from parastrat.ranks import block_kinds, whole_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.cost.compute import BlockTimes
    from parastrat.cost.splitting import Splitting
    from parastrat.model import Block
    from parastrat.units import Seconds

#: collectives on activations, which nothing hides
EXPOSED = ("tp_exposed", "cp_exposed", "ep_exposed")
#: what a micro-batch takes, one after the other
WHOLE = ("compute", *EXPOSED)
#: the share of each that comes in forward, but for what is sent again (``_collectives_s``)
IN_FORWARD = {"tp_exposed": 1 / 2, "cp_exposed": 1 / 3, "ep_exposed": 1 / 2}
#: and what backward sends again with what it computes again, over both: of full recompute all of forward
#: but what a block gives, which nothing waits for (torch.utils.checkpoint, early_stop). The operators that
#: torchtitan's selective policy keeps are reduce-scatters and exchanges of experts, too
#: (torchtitan/distributed/activation_checkpoint.py @b5bcd76), and attention is not run again
_AGAIN = {
    "tp_exposed": {Recompute.SELECTIVE: 1 / 4, Recompute.FULL: 3 / 8},
    "cp_exposed": {Recompute.FULL: 1 / 3},
    "ep_exposed": {Recompute.FULL: 1 / 2},
}
_SENT_AGAIN = {
    part: np.array([1 + shares.get(policy, 0.0) for policy in Recompute]) for part, shares in _AGAIN.items()
}
#: parts of a block's computation, without what is computed again
_ALONE = ("forward", "backward", "weights")

#: those that a backward in two parts makes longer
_SPLIT_PARTS = ("compute", "backward", "weights")

#: what kernels take of so few plans is computed sooner than these are told apart
_FEW = 500

#: what decides the seconds of one micro-batch in a block, but for what is computed again
_BLOCKS_BY = ("micro_batch_size", "cp", "tp", "ep", "sequence_parallel", "async_tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one repeat of each kind of block for one micro-batch.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    #: of each kind: forward, backward and what is computed again, by policy and place in one axis
    compute: Any
    #: of each kind: forward, backward, of that the weights' gradients, and collectives; parts before places
    others: Any
    #: the names of these: collectives that take no time anywhere are left out
    parts: tuple[str, ...]
    #: how many repeats of each kind the model has, and what all of these take together of either
    repeats: Sequence[float]
    compute_of_all: Any
    others_of_all: Any
    #: what backward takes longer where schedules split it; None where the stack's do not
    splitting: Splitting | None
    #: whether what is computed again has its collectives again
    sends_again: bool
    at: Any

    def rows(self, rows: Any) -> BlockSeconds:
        """Return the seconds of chosen rows."""
        return replace(self, at=self.at[rows])

    def of_kinds(self, c: Columns) -> dict[str, Any]:
        """Return each part of one repeat of each kind of block, kinds before rows."""
        others = self.others.take(self.at, axis=-1).swapaxes(0, 1)
        seconds = self._named(c, self.compute.take(self._places(c), axis=-1), others)
        every = self._split(c, seconds, lambda longer: longer)
        return {part: np.broadcast_to(own, others.shape[1:]) for part, own in every.items()}

    def of_model(self, c: Columns) -> dict[str, Any]:
        """Return each part of the model's blocks together."""
        compute = self.compute_of_all.take(self._places(c))
        seconds = self._named(c, compute, self.others_of_all.take(self.at, axis=-1))
        return self._split(c, seconds, lambda longer: _summed(longer, self.repeats))

    def of_ranks(self, c: Columns, repeats: Sequence[Any]) -> dict[str, Any]:
        """Return each part of a rank's blocks together, in arrays with ranks before rows as repeats are."""
        compute, others = self.compute.take(self._places(c), axis=-1), self.others.take(self.at, axis=-1)
        seconds = self._named(c, _summed(compute, repeats), _summed(others[:, :, None], repeats))
        return self._split(c, seconds, lambda longer: _summed(longer, repeats))

    def _named(self, c: Columns, compute: Any, others: Any) -> dict[str, Any]:
        """Return the parts by their names, collectives with those that backward repeats."""
        once = dict.fromkeys(EXPOSED, 0.0) | dict(zip(self.parts, others, strict=True))
        forward = sum(IN_FORWARD[part] * once[part] for part in EXPOSED)
        named = {**once, "compute": compute, "sent_forward": forward}
        if not self.sends_again:
            return named
        return {**named, **{part: once[part] * _SENT_AGAIN[part][c.recompute] for part in EXPOSED}}

    def _split(self, c: Columns, seconds: dict[str, Any], together: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the parts with what a backward in two takes longer, most of it for the weights."""
        longer = None if self.splitting is None else self.splitting.longer_s(c, self.at)
        if longer is None:
            return seconds
        added = together(longer)
        return {**seconds, **{part: seconds[part] + added for part in _SPLIT_PARTS}}

    def _places(self, c: Columns) -> Any:
        return c.recompute * self.others.shape[-1] + self.at


def whole_s(work: Mapping[str, Any]) -> Seconds:
    """Return the seconds of one micro-batch, of parts as ``BlockSeconds`` tells them."""
    seconds: Seconds = sum((work[part] for part in EXPOSED), work["compute"])
    return seconds


def forward_s(work: Mapping[str, Any]) -> Seconds:
    """Return what of ``whole_s`` comes in forward."""
    seconds: Seconds = work["forward"] + work["sent_forward"]
    return seconds


def _summed(kinds: Any, repeats: Sequence[Any]) -> Any:
    # one after the other: sums of arrays would round by how many rows there are
    return sum(seconds * count for seconds, count in zip(kinds, repeats, strict=True))


def block_seconds(facts: Facts, columns: Columns) -> BlockSeconds:
    """Return the seconds of blocks for many plans, whatever they recompute."""
    c, at = standing(columns, _BLOCKS_BY)
    blocks = block_kinds(facts.model).blocks
    computing, place = _computing(facts, blocks, c)
    times = block_times(facts, blocks, computing)
    backward = times.backward + _remade_s(facts, blocks, times)
    plain = times.forward + backward
    kernels = (times.forward, backward, times.weights)
    sent = zip(EXPOSED, _collectives_s(facts, blocks, c), strict=True)
    collectives = {part: seconds for part, seconds in sent if seconds.any()}
    with_policy = (plain + times.recomputed(policy) for policy in Recompute)
    compute = np.concatenate([each.take(place, axis=1) for each in with_policy], axis=1)
    others = np.stack([*(each.take(place, axis=1) for each in kernels), *collectives.values()], axis=1)
    repeats = whole_model(facts.model).repeats
    return BlockSeconds(
        compute=compute,
        others=others,
        parts=(*_ALONE, *collectives),
        repeats=repeats,
        compute_of_all=_summed(compute, repeats),
        others_of_all=_summed(others, repeats),
        splitting=splitting_of(facts, times, place),
        sends_again=facts.stack.sends_again,
        at=at,
    )


def _computing(facts: Facts, blocks: tuple[Block, ...], c: Columns) -> tuple[Columns, Any]:
    """Return the plans that differ in what kernels are given, and for every plan which of them it is.

    Two samples of which a rank has half each are as one, but where scores are kept, whose softmax counts
    whole samples, or images are laid out.
    """
    every = np.arange(len(c.pp))
    laid_out = operator_table(blocks).products.convolution.any()
    if len(every) <= _FEW or facts.stack.kernels.keeps_scores or laid_out:
        return c, every
    _, samples = np.unique(c.micro_batch_size / c.cp, return_inverse=True)
    key = samples
    for column in (c.tp, c.ep, c.sequence_parallel):
        key = key * (int(column.max()) + 1) + column
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return c.at(first), place


def _remade_s(facts: Facts, blocks: Sequence[Block], times: BlockTimes) -> Any:
    """Return what backward takes longer of blocks that make some of their forward again, by block.

    In chunks each one's gradient of the largest weight is added to those of the chunks before: two tensors
    are read and one is written.
    """
    remade, chunks = each(blocks, "remade"), each(blocks, "chunks")
    if not remade.any():
        return 0.0
    weights = np.array([[block.added.trainable if block.added else 0] for block in blocks])
    moved = 3 * (chunks - 1) * weights * facts.workload.precision.compute_bytes
    sums = moved * facts.stack.elementwise_factor / facts.hardware.device.memory_bytes_per_s
    return remade * times.forward + sums


def _collectives_s(facts: Facts, blocks: Sequence[Block], c: Columns) -> list[Any]:
    """Return the seconds of the blocks' collectives on activations, each with blocks before plans."""
    zero = np.zeros((len(blocks), len(c.pp)))
    if facts.hardware.world_size == 1:
        return [zero] * len(EXPOSED)
    fabric = fabric_of(facts)
    ways = tensor_parallel_s, _context_parallel_s, _expert_parallel_s
    return [zero + way(facts, blocks, c, fabric) for way in ways]


def _context_parallel_s(facts: Facts, blocks: Sequence[Block], c: Columns, fabric: Fabric) -> Any:
    size = each(blocks, "context_parallel_bytes")
    if not size.any():
        return 0.0
    gathered = size * (c.micro_batch_size / c.tp)
    group = Group(ranks=c.cp, stride=c.tp)
    ring = ring_s(gathered, group, fabric)
    # forward gathers keys and values; backward gathers them again and reduce-scatters their gradients
    if not facts.stack.passes_gradients:
        return (size > 0) * 3 * ring
    # or passes these on from rank to rank in fp32, until each is where it began
    passed = c.cp * ring_send_s(2 * gathered / c.cp, group, fabric)
    return (size > 0) * (2 * ring + np.where(c.cp > 1, passed, 0.0))


def _expert_parallel_s(facts: Facts, blocks: Sequence[Block], c: Columns, fabric: Fabric) -> Any:
    size = each(blocks, "expert_parallel_bytes")
    if not size.any():
        return 0.0
    # ranks of one tp group send a share of the tokens each, as the experts' compute has it
    sent = size * (c.micro_batch_size / c.cp / c.tp)
    # behind a dispatch tokens are sorted by the expert, before a combine back: read and written once, by
    # the exchange's own kernels or by others
    device, stack = facts.hardware.device, facts.stack
    factor = (1.0 if stack.permutes_in_exchange else stack.routed_traffic_factor) * stack.elementwise_factor
    sorting = 2 * sent * factor / device.memory_bytes_per_s * (c.ep > 1)
    # dispatch and combine, each forward and backward
    once = stack.dispatch_once_per_domain
    copies = np.maximum(each(blocks, "experts_per_token"), 1) if once else 1
    shown = 1 - stack.exchange_overlap * stack.exchanges_beside
    exchange = shown * all_to_all_s(sent, Group(ranks=c.ep, stride=1), fabric, copies)
    return 4 * (sorting + (size > 0) * exchange)
