"""Two watched steps of a module as the chain of blocks that estimates read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import nn

from parastrat.errors import ModelError
from parastrat.model import Block, Operator, OperatorKind, Parameters
from parastrat.runtime.tracing.lifetimes import Measured, measured
from parastrat.runtime.tracing.merging import merged
from parastrat.runtime.tracing.moments import busy_moments
from parastrat.runtime.tracing.operators import Call
from parastrat.runtime.tracing.samples import SAMPLES, for_one, line
from parastrat.runtime.tracing.tracker import Tracker
from parastrat.saved import Activations

#: kinds whose calls become one operator of a mean size
_MERGED = (OperatorKind.ELEMENTWISE, OperatorKind.EMBEDDING)
#: deviations from a straight line below this share of the whole are not worth a sentence
_NEGLIGIBLE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The blocks, and what holds for all of them."""

    blocks: tuple[Block, ...]
    causal: bool
    caveats: tuple[str, ...]


def chain_of(module: nn.Module, small: Tracker, large: Tracker, weights: torch.dtype) -> Chain:
    """Return the chain of a module from traces of ``SAMPLES``.

    Args:
        module: as it was traced.
        small: the trace of fewer samples.
        large: that of more.
        weights: the format that the plan brings floating-point parameters into.

    Raises:
        ModelError: if the forward runs other operators for more samples.
    """
    _check_same_path(small, large)
    pairs = list(zip(measured(small), measured(large), strict=True))
    named = dict(module.named_parameters())
    counts = {name: _elements(parameter, weights) for name, parameter in named.items()}
    users, idle = _users(named, small)
    trained = {name for name, parameter in named.items() if parameter.requires_grad} - set(idle)
    drafts = [
        _block(
            segment.block,
            [_for_one(a, b) for a, b in zip(segment.calls, other.calls, strict=True)],
            pairs[index],
            _groups(counts, users, trained, index),
            _largest(counts, users, trained, index),
        )
        for index, (segment, other) in enumerate(zip(small.segments, large.segments, strict=True))
    ]
    calls = [call for segment in small.segments for call in segment.calls]
    return Chain(
        blocks=merged(drafts),
        causal=any(call.causal for call in calls),
        caveats=(*_linearity(pairs), *_recompute_caveats(calls), *_idle_caveats(named, idle)),
    )


def _check_same_path(small: Tracker, large: Tracker) -> None:
    """Refuse a forward that depends on the number of samples.

    Raises:
        ModelError: naming the first block that differs.
    """
    paths = [
        [(segment.block, [call.kind for call in segment.calls]) for segment in tracker.segments]
        for tracker in (small, large)
    ]
    if paths[0] != paths[1]:
        pairs = zip(*paths, strict=False)
        block = next((one[0] for one, other in pairs if one != other), "") or "what runs between blocks"
        raise ModelError(
            f"{block} runs other operators for {SAMPLES[1]} samples than for {SAMPLES[0]}",
            hint="memory and time for other micro-batches cannot be told; let the forward do the same for "
            "any batch size",
        )


def _for_one(small: Call, large: Call) -> Call:
    return replace(
        small,
        flops=for_one(small.flops, large.flops),
        bytes=for_one(small.bytes, large.bytes),
        m=round(for_one(small.m, large.m)),
    )


def _linearity(pairs: list[tuple[Measured, Measured]]) -> list[str]:
    """Return what is to be said where activations grow faster than the micro-batch."""
    small, large = (sum(side.kept for side in sides) for sides in zip(*pairs, strict=True))
    if large / SAMPLES[1] <= (1 + _NEGLIGIBLE) * small / SAMPLES[0]:
        return []
    grown = (
        f"activations grow faster than the micro-batch ({small / 2**20:,.0f} MiB for {SAMPLES[0]} "
        f"samples, {large / 2**20:,.0f} for {SAMPLES[1]}): larger ones are estimated too low"
    )
    return [grown]


def _recompute_caveats(calls: list[Call]) -> list[str]:
    kinds = {call.kind for call in calls}
    caveats = []
    if OperatorKind.ATTENTION not in kinds:
        caveats.append("no scaled_dot_product_attention in the forward: recompute attention saves nothing")
    if OperatorKind.RECURRENT in kinds:
        caveats.append("what recurrent kernels keep for backward is that of CPUs; cuDNN's keep less")
    return caveats


def _users(named: Mapping[str, torch.Tensor], tracker: Tracker) -> tuple[dict[str, list[int]], list[str]]:
    """Return each parameter's segments, and the names of those that no segment reads."""
    users: dict[str, list[int]] = {name: [] for name in named}
    for index, segment in enumerate(tracker.segments):
        for name in segment.parameters:
            if name in users:
                users[name].append(index)
    idle = [name for name, indices in users.items() if not indices]
    for name in idle:
        users[name] = [_owner(name, tracker)]
    return users, idle


def _idle_caveats(named: Mapping[str, torch.Tensor], idle: list[str]) -> list[str]:
    count = sum(named[name].numel() for name in idle)
    return [f"{count:,} parameters ({idle[0]}, ...) take no part in the forward"] if idle else []


def _owner(name: str, tracker: Tracker) -> int:
    """Return the segment of the block that holds a parameter by name; the first one for others."""
    for index, segment in enumerate(tracker.segments):
        if segment.block and name.startswith(f"{segment.block}."):
            return index
    return 0


def _elements(parameter: torch.Tensor, weights: torch.dtype) -> int:
    """Return a parameter's elements; of one that keeps its own format, as many as its bytes are worth.

    Complex numbers are two real ones each; a short integer is part of one.
    """
    if parameter.is_floating_point():
        return parameter.numel()
    return ceil(parameter.numel() * parameter.itemsize / weights.itemsize)


def _groups(
    counts: Mapping[str, int], users: Mapping[str, list[int]], trained: set[str], index: int
) -> tuple[Parameters, ...]:
    """Return a segment's parameters; what takes no part has no gradient, and counts as frozen."""
    trainable = frozen = 0
    tied = []
    for name, indices in users.items():
        if index not in indices:
            continue
        here = (counts[name], 0) if name in trained else (0, counts[name])
        if len(indices) > 1:
            tied.append(Parameters(trainable=here[0], frozen=here[1], tie_group=name))
        else:
            trainable, frozen = trainable + here[0], frozen + here[1]
    own = [Parameters(trainable=trainable, frozen=frozen)] if trainable or frozen else []
    return (*own, *tied)


def _largest(
    counts: Mapping[str, int], users: Mapping[str, list[int]], trained: set[str], index: int
) -> Parameters:
    """Return a segment's largest weight that is trained: its gradients weigh most as they are added up."""
    own = [
        Parameters(trainable=counts[name], tie_group=name if len(indices) > 1 else None)
        for name, indices in users.items()
        if index in indices and name in trained
    ]
    return max(own, key=lambda weight: weight.trainable, default=Parameters())


def _block(
    name: str,
    calls: list[Call],
    pair: tuple[Measured, Measured],
    parameters: tuple[Parameters, ...],
    largest: Parameters,
) -> Block:
    small, large = pair
    return Block(
        name=name,
        repeat=1,
        parameters=parameters,
        operators=_operators(calls),
        activations=Activations(
            none=line(small.kept, large.kept),
            attention=line(small.kept - small.core, large.kept - large.core),
            selective=line(small.selective, large.selective),
            full=line(small.checkpointed, large.checkpointed),
        ),
        working=line(small.working, large.working),
        boundary_bytes=for_one(small.boundary, large.boundary),
        meanwhile=large.meanwhile,
        busy=busy_moments(small, large),
        added=largest,
        unit=bool(name),
    )


def _operators(calls: list[Call]) -> tuple[Operator, ...]:
    """Return equal calls as one operator with a count, and all light ones as one of their mean size."""
    light = [
        Operator(
            kind=kind,
            flops=0,
            bytes=sum(call.bytes for call in chosen) / len(chosen),
            count=len(chosen),
            weighted=False,
        )
        for kind in _MERGED
        if (chosen := [call for call in calls if call.kind is kind])
    ]
    heavy = Counter(call for call in calls if call.kind not in _MERGED)
    return (
        *(
            Operator(
                kind=call.kind,
                flops=call.flops,
                bytes=call.bytes,
                m=call.m,
                n=call.n,
                k=call.k,
                count=count,
                weighted=call.weighted,
            )
            for call, count in heavy.items()
        ),
        *light,
    )
