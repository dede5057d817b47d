"""The moments of ranks against a walk through each rank's blocks from the last to the first."""

from __future__ import annotations

import random

import numpy as np

from parastrat.ranks.moments import moments_of

Told = tuple[int, bool, tuple[int, ...], int, bool]


def walked(repeats: list[int], kinds: list[int], units: list[bool]) -> list[Told]:
    """Return what is told of the starts of one rank's blocks, one by one."""
    freed, found, met = [0] * len(units), [], dict[int, bool]()
    held = [place for place, count in enumerate(repeats) if count]
    for place in reversed(held):
        kind, first = kinds[place], not any(freed)
        before = [kinds[other] for other in held if other < place and units[kinds[other]]]
        if met.get(kind, True):
            found.append((kind, first, tuple(freed), before[-1] if before else -1, place == held[0]))
        met[kind] = first
        freed[kind] += repeats[place]
    return found


def test_a_kind_is_told_as_backward_meets_it() -> None:
    draw = random.Random(0)  # noqa: S311 - the same draw each time
    again = 0
    for _ in range(200):
        units = [draw.random() < 0.7 for _ in range(4)]
        kinds = [0, 1, 2, 3] + [kind for kind in draw.choices(range(4), k=5) if units[kind]]
        draw.shuffle(kinds)
        repeats = np.array([[draw.choice((0, 0, 1, 3)) for _ in kinds] for _ in range(3)])
        moments = moments_of(repeats, kinds, units)
        every = list(zip(moments.rank.tolist(), moments.kind.tolist(), strict=True))
        again += len(every) > len(set(every))
        order = {kind: place for place, kind in enumerate(dict.fromkeys(reversed(kinds)))}
        assert every == sorted(every, key=lambda each: (each[0], order[each[1]]))
        told = zip(
            moments.kind.tolist(),
            moments.first.tolist(),
            map(tuple, moments.freed.T.tolist()),
            moments.behind.tolist(),
            moments.last.tolist(),
            strict=True,
        )
        of_ranks: list[list[Told]] = [[] for _ in repeats]
        for rank, each in zip(moments.rank.tolist(), told, strict=True):
            of_ranks[rank].append(each)
        for found, own in zip(of_ranks, repeats.tolist(), strict=True):
            assert sorted(found) == sorted(walked(own, kinds, units))
    assert again > 20
