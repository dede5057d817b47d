"""Something repeated until its time is known."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

#: what is timed once lasts at least so long, so that the clock's own time does not count; behind computing
#: it is a difference of two times, over several passes
_LEAST_S, _LEAST_BEHIND_S = 2e-3, 2e-2
#: repeats that are made at least, and at most
_FEWEST, _MOST = 7, 60
#: the median is known when its standard error is below this share of it, or after so many seconds
_KNOWN, _PATIENCE_S = 0.01, 1.5
#: of normal values: the range of their middle half over their deviation, and the standard error of a median
#: over that of a mean
_RANGE_TO_DEVIATION, _MEDIAN_TO_MEAN = 1.349, 1.253


def repeated(action: Callable[[], object], device: torch.device) -> tuple[float, float, int]:
    """Return the median seconds, the spread and the number of repeats, the same on all ranks.

    All ranks start each repeat together, and the slowest one's time counts. The spread is half of the range
    in which the middle half of the repeats lie, over the median.
    """

    def seconds(passes: int) -> float:
        return _slowest(_timed(action, passes, device))

    action()
    return _until_known(seconds, max(1, round(_LEAST_S / max(seconds(1), 1e-9))))


def repeated_behind(
    computing: Callable[[], object], action: Callable[[], object], device: torch.device
) -> tuple[float, float, int]:
    """Return the same of an action behind computing, as in a step: by how much longer both take.

    That is what waiting for the slowest rank and waking threads cost as well, which none does that goes on
    with the next action at once.
    """

    def both() -> None:
        computing()
        action()

    both()
    alone = _slowest(_timed(action, _FEWEST, device)) / _FEWEST

    def seconds(passes: int) -> float:
        apart = _slowest(_timed(both, passes, device)) - _slowest(_timed(computing, passes, device))
        return max(apart, passes * alone)

    first = _slowest(_timed(both, 1, device))
    return _until_known(seconds, max(1, round(_LEAST_BEHIND_S / max(first, 1e-9))))


def _until_known(seconds: Callable[[int], float], passes: int) -> tuple[float, float, int]:
    """Return what a pass of so many takes, repeated until it is known or patience ends."""
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < _MOST:
        found.append(seconds(passes) / passes)
        spent = _slowest(time.perf_counter() - begun)
        if len(found) >= _FEWEST and (_is_known(found) or spent > _PATIENCE_S):
            break
    median = statistics.median(found)
    return median, _middle_half(found) / 2 / median, len(found)


def _timed(action: Callable[[], object], passes: int, device: torch.device) -> float:
    _wait(device)
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    for _ in range(passes):
        action()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def _slowest(seconds: float) -> float:
    """Return the longest of all ranks' times."""
    if not dist.is_initialized():
        return seconds
    longest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _middle_half(found: list[float]) -> float:
    lower, _, upper = statistics.quantiles(found, n=4)
    return upper - lower


def _is_known(found: list[float]) -> bool:
    deviation = _middle_half(found) / _RANGE_TO_DEVIATION
    return _MEDIAN_TO_MEAN * deviation / math.sqrt(len(found)) < _KNOWN * statistics.median(found)
