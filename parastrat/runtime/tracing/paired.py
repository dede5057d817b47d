"""What a segment runs for one sample, of what it ran for few samples and for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from parastrat.model import OperatorKind, Split
from parastrat.runtime.tracing.operators import Call
from parastrat.runtime.tracing.samples import SAMPLES, for_one

#: kinds whose calls become one operator of a mean size
LIGHT = (OperatorKind.ELEMENTWISE, OperatorKind.EMBEDDING)


def calls_for_one(small: Sequence[Call], large: Sequence[Call]) -> list[Call] | None:
    """Return the calls for one sample; None where those for more samples are others.

    A loop over samples, as over images of several sizes, runs what it does so many times as often, each as
    large as before. What is light around it, such as joining their results, is told by its sum.

    Args:
        small: calls for ``SAMPLES[0]`` samples.
        large: those for ``SAMPLES[1]``.
    """
    if _kinds(small) == _kinds(large):
        return [_for_one(one, other) for one, other in zip(small, large, strict=True)]
    looped, light = _looped(small, large), _light(small, large)
    once, others = ([call for call in _heavy(calls) if call not in looped] for calls in (small, large))
    if light is None or _kinds(once) != _kinds(others):
        return None
    return [
        *(_for_one(one, other) for one, other in zip(once, others, strict=True)),
        *(call for call, count in looped.items() for _ in range(count)),
        *light,
    ]


def _kinds(calls: Sequence[Call]) -> list[str]:
    return [call.kind for call in calls]


def _heavy(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.kind not in LIGHT]


def _looped(small: Sequence[Call], large: Sequence[Call]) -> dict[Call, int]:
    """Return the heavy calls that run for each sample, with how often."""
    (few, more), often = SAMPLES, Counter(large)
    return {
        call: count // few
        for call, count in Counter(_heavy(small)).items()
        if count % few == 0 and often[call] * few == count * more
    }


def _light(small: Sequence[Call], large: Sequence[Call]) -> list[Call] | None:
    """Return the light calls for one sample, those of a kind equally large; None where there is no loop."""
    found: list[Call] = []
    for kind in LIGHT:
        for split in Split:
            few, more = (
                [call.bytes for call in calls if (call.kind, call.split) == (kind, split)]
                for calls in (small, large)
            )
            several = for_one(len(few), len(more))
            if not several.is_integer() or len(more) - len(few) > (SAMPLES[1] - SAMPLES[0]) * _each(
                few, more
            ):
                return None
            count = int(several)
            whole = for_one(sum(few), sum(more))
            found += [Call(kind=kind, flops=0, bytes=whole / max(count, 1), split=split)] * count
    return found


def _each(few: Sequence[float], more: Sequence[float]) -> int:
    """Return how many calls there may be for each sample, by their bytes."""
    often, oftener = Counter(few), Counter(more)
    return sum(min(often[own] // SAMPLES[0], oftener[own] // SAMPLES[1]) for own in often)


def _for_one(small: Call, large: Call) -> Call:
    return replace(
        small,
        flops=for_one(small.flops, large.flops),
        bytes=for_one(small.bytes, large.bytes),
        m=round(for_one(small.m, large.m)),
    )
