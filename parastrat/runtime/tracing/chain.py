"""Two watched steps of a module as the chain of blocks that estimates read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, gcd

import torch
from torch import nn

from parastrat.errors import ModelError
from parastrat.model import Block, Operator, OperatorKind, Parameters, Split
from parastrat.runtime.tracing.casting import Casting
from parastrat.runtime.tracing.merging import merged
from parastrat.runtime.tracing.moments import busy_moments
from parastrat.runtime.tracing.operators import Call
from parastrat.runtime.tracing.paired import LIGHT, calls_for_one
from parastrat.runtime.tracing.recorded import Segment
from parastrat.runtime.tracing.samples import SAMPLES, for_one
from parastrat.runtime.tracing.traced import Traced, traced_segments
from parastrat.runtime.tracing.tracker import Tracker
from parastrat.runtime.tracing.use import use_of

#: deviations from a straight line below this share of the whole are not worth a sentence, at so many
#: samples, more than which a micro-batch hardly has
_NEGLIGIBLE, _MANY = 0.02, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The blocks, and what holds for all of them."""

    blocks: tuple[Block, ...]
    causal: bool
    #: of every attention that tensor parallelism divides a multiple of these; 0 where it divides none
    heads: int
    #: of a sample between the blocks, where tensor parallelism divides along these; 0: it does not
    positions: int
    #: bytes of what it makes once and holds
    tables: int
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """One parameter."""

    elements: int
    split: Split
    trained: bool
    #: the segments that make autocast's copy, which others read: one or none; None: all that use it
    cast: Collection[int] | None

    def parameters(self, index: int) -> Parameters:
        """Return it as a segment holds it."""
        several = self.elements, 0
        trainable, frozen = several if self.trained else reversed(several)
        cast = self.cast is None or index in self.cast
        return Parameters(trainable=trainable, frozen=frozen, split=self.split, cast=cast)


def chain_of(
    module: nn.Module,
    small: Tracker,
    large: Tracker,
    weights: torch.dtype,
    casting: Casting | None = None,
) -> Chain:
    """Return the chain of a module from traces of ``SAMPLES``.

    Args:
        module: as it was traced.
        small: the trace of fewer samples.
        large: that of more.
        weights: the format that the plan brings floating-point parameters into.
        casting: the same steps under autocast, where a plan may run it so.

    Raises:
        ModelError: if the forward runs other operators for more samples.
    """
    ran = _calls_for_one(small, large)
    traced = list(traced_segments(small, large))
    named = dict(module.named_parameters())
    counts = {
        name: _Count(
            elements=_elements(parameter, weights),
            split=small.dividing.of_parameter(name),
            trained=parameter.requires_grad,
            cast=None if casting is None else casting.of(name),
        )
        for name, parameter in named.items()
    }
    use = use_of(named, small)
    counts |= {name: replace(counts[name], trained=False) for name in (*use.idle, *use.unreached)}
    drafts = [
        _block(
            pair,
            ran[index],
            traced[index],
            _groups(counts, use.segments, index),
            _largest(counts, use.segments, index),
        )
        for index, pair in enumerate(zip(small.segments, large.segments, strict=True))
    ]
    if casting is not None:
        drafts = [replace(draft, autocast=way) for draft, way in zip(drafts, casting.ways, strict=True)]
    calls = [call for segment in small.segments for call in segment.calls]
    return Chain(
        blocks=merged(drafts),
        causal=any(call.causal for call in calls),
        heads=gcd(*map(_heads, calls)),
        positions=small.dividing.positions // SAMPLES[0],
        tables=small.behind.tables,
        caveats=(*_linearity(traced), *_recompute_caveats(calls), *use.caveats),
    )


def _heads(call: Call) -> int:
    """Return the heads of a divided attention; of products of activations those that each sample has."""
    if call.split is not Split.TENSOR:
        return 0
    if call.kind is OperatorKind.ATTENTION:
        return call.heads
    several, rest = divmod(call.heads, SAMPLES[0])
    return several if several > 1 and not rest else 0


def _calls_for_one(small: Tracker, large: Tracker) -> list[list[Call]]:
    """Return what each segment runs for one sample.

    Raises:
        ModelError: naming the first block that depends on the number of samples.
    """
    found = []
    for one, other in zip_longest(small.segments, large.segments):
        calls = None
        if one is not None and other is not None and one.block == other.block:
            calls = calls_for_one(one.calls, other.calls)
        if calls is None:
            named = one.block if one is not None else ""
            raise ModelError(
                f"{named or 'what runs between blocks'} runs other operators for {SAMPLES[1]} samples than "
                f"for {SAMPLES[0]}",
                hint="memory and time for other micro-batches cannot be told; let the forward do the same "
                "for any batch size",
            )
        found.append(calls)
    return found


def _linearity(traced: list[Traced]) -> list[str]:
    """Return what is to be said where activations grow faster than the micro-batch.

    As masks do of samples that attend in one sequence: what they are beyond the line through the larger
    micro-batch grows with its square, and is little of two samples, and much of many.
    """
    (few, several), own = SAMPLES, [(each.small.kept, each.large.kept) for each in traced]
    # bytes for each pair of samples
    grown = sum(max(0.0, large / several - small / few) for small, large in own) / (several - few)
    beyond = grown * (_MANY - several)
    share = beyond / max(sum(large for _, large in own) / several, 1.0)
    if share <= _NEGLIGIBLE:
        return []
    more = f"{_MANY} samples take {share:.0%} more than estimated"
    return [f"activations grow faster than the micro-batch: {more}"]


def _recompute_caveats(calls: list[Call]) -> list[str]:
    kinds = {call.kind for call in calls}
    caveats = []
    if OperatorKind.ATTENTION not in kinds:
        caveats.append("no scaled_dot_product_attention in the forward: recompute attention saves nothing")
    if OperatorKind.RECURRENT in kinds:
        caveats.append("what recurrent kernels keep for backward is that of CPUs; cuDNN's keep less")
    return caveats


def _elements(parameter: torch.Tensor, weights: torch.dtype) -> int:
    """Return a parameter's elements; of one that keeps its own format, as many as its bytes are worth.

    Complex numbers are two real ones each; a short integer is part of one.
    """
    if parameter.is_floating_point():
        return parameter.numel()
    return ceil(parameter.numel() * parameter.itemsize / weights.itemsize)


def _groups(
    counts: Mapping[str, _Count], users: Mapping[str, list[int]], index: int
) -> tuple[Parameters, ...]:
    """Return a segment's parameters; what takes no part has no gradient, and counts as frozen."""
    own: dict[tuple[Split, bool], Parameters] = {}
    tied = []
    for name, indices in users.items():
        if index not in indices:
            continue
        here = counts[name].parameters(index)
        if len(indices) > 1:
            tied.append(replace(here, tie_group=name))
        elif here.count:
            before = own.get((here.split, here.cast), Parameters())
            own[here.split, here.cast] = replace(
                here, trainable=before.trainable + here.trainable, frozen=before.frozen + here.frozen
            )
    return (*own.values(), *tied)


def _largest(counts: Mapping[str, _Count], users: Mapping[str, list[int]], index: int) -> Parameters:
    """Return a segment's largest weight that is trained: its gradients weigh most as they are added up."""
    own = [
        replace(counts[name].parameters(index), tie_group=name if len(indices) > 1 else None)
        for name, indices in users.items()
        if index in indices and counts[name].trained
    ]
    return max(own, key=lambda weight: weight.trainable, default=Parameters())


def _block(
    pair: tuple[Segment, Segment],
    calls: list[Call],
    traced: Traced,
    parameters: tuple[Parameters, ...],
    largest: Parameters,
) -> Block:
    """Return the block of one segment in both traces."""
    (small, large), added_up = pair, pair[0].added_up
    return Block(
        name=small.block,
        repeat=1,
        parameters=parameters,
        operators=_operators(calls),
        activations=traced.activations,
        working=traced.bytes_of(lambda own: own.working),
        boundary_bytes=traced.crossing.replicated,
        boundary_fixed=traced.crossing.fixed,
        output=traced.bytes_of(lambda own: own.output),
        awaited=traced.bytes_of(lambda own: own.awaited),
        meanwhile=traced.large.meanwhile,
        busy=busy_moments(traced),
        added=largest,
        remade=_share(small.again, small.calls),
        loss_parallel_bytes=for_one(small.of_loss, large.of_loss),
        tensor_parallel_collectives=len(added_up),
        tensor_parallel_bytes=sum(added_up) / len(added_up) / SAMPLES[0] if added_up else 0,
        unit=bool(small.block),
    )


def _share(again: list[Call], calls: list[Call]) -> float:
    """Return how much of some calls ran again, by FLOPs."""
    whole = sum(call.flops for call in calls)
    return min(sum(call.flops for call in again) / whole, 1.0) if whole else 0.0


def _operators(calls: list[Call]) -> tuple[Operator, ...]:
    """Return equal calls as one operator with a count, and all light ones as one of their mean size."""
    light = [
        Operator(
            kind=kind,
            flops=0,
            bytes=sum(call.bytes for call in chosen) / len(chosen),
            split=split,
            count=len(chosen),
            weighted=False,
        )
        for kind in LIGHT
        for split in Split
        if (chosen := [call for call in calls if (call.kind, call.split) == (kind, split)])
    ]
    heavy = Counter(call for call in calls if call.kind not in LIGHT)
    return (
        *(
            Operator(
                kind=call.kind,
                flops=call.flops,
                bytes=call.bytes,
                m=call.m,
                n=call.n,
                k=call.k,
                reuse=call.reuse,
                split=call.split,
                split_side=call.split_side,
                count=count,
                weighted=call.weighted,
            )
            for call, count in heavy.items()
        ),
        *light,
    )
