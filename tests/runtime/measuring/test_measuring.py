"""Times of real kernels and collectives, on processes of this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch

from parastrat.calibration import Operation, Wanted
from parastrat.errors import LaunchError
from parastrat.probe import probe_hardware
from parastrat.profiles import load_hardware
from parastrat.runtime.measuring import measure, ranks
from parastrat.runtime.measuring.actions import action_of
from parastrat.runtime.measuring.repeats import repeated, repeated_behind
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")


def test_everything_is_timed_in_order_on_two_processes() -> None:
    several = (
        Wanted(operation=Operation.MATMUL, sides=(64, 64, 64)),
        Wanted(operation=Operation.MATMUL, precision=Precision.BF16, sides=(64, 64, 64)),
        Wanted(operation=Operation.COPY, bytes=1 << 20),
        Wanted(operation=Operation.MAKE, bytes=1 << 20),
        Wanted(operation=Operation.LAUNCH),
        Wanted(operation=Operation.ATTENTION, sides=(64,)),
        *(Wanted(operation=each, bytes=4096) for each in Operation if each.is_collective),
    )
    told: list[Wanted] = []
    timings, machinery = measure(probe_hardware(ranks_per_node=2), several, told.append)
    assert tuple(told) == tuple(timing.wanted for timing in timings) == several
    assert all(timing.seconds > 0 and timing.repeats >= 7 for timing in timings)
    assert machinery.ranks == 2
    assert machinery.software == f"torch {torch.__version__}"
    launch = next(timing for timing in timings if timing.wanted.operation is Operation.LAUNCH)
    # of one operator, not of all that were launched
    assert launch.seconds < 1e-3


def test_larger_products_take_longer() -> None:
    small, large = (
        repeated(action_of(Wanted(operation=Operation.MATMUL, sides=(side,) * 3), CPU), CPU)[0]
        for side in (64, 512)
    )
    assert large > 10 * small


def test_what_runs_behind_computing_takes_what_it_adds_and_no_less_than_alone() -> None:
    def idle(seconds: float) -> Callable[[], None]:
        return lambda: time.sleep(seconds)

    seconds, _, repeats = repeated_behind(idle(5e-3), idle(2e-3), CPU)
    assert 2e-3 <= seconds < 5e-3
    assert repeats >= 7


@pytest.mark.parametrize(
    ("operation", "kind", "behind"),
    [
        (Operation.ALL_GATHER, "cpu", True),
        (Operation.SEND, "cpu", True),
        (Operation.COPY, "cpu", False),
        # devices go on by themselves
        (Operation.ALL_GATHER, "meta", False),
    ],
)
def test_collectives_of_processors_are_timed_behind_computing(
    monkeypatch: pytest.MonkeyPatch, operation: Operation, kind: str, behind: bool
) -> None:
    for name in ("repeated", "repeated_behind"):
        monkeypatch.setattr(ranks, name, lambda *_, name=name: name)
    monkeypatch.setattr(ranks, "action_of", lambda *_: None)
    found = ranks.timed(Wanted(operation=operation, bytes=4096), torch.device(kind))
    assert found == ("repeated_behind" if behind else "repeated")


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(LaunchError, match="finds no cuda device here"):
        measure(load_hardware("dgx-h100:1"), (), lambda _: None)


def test_a_process_that_dies_is_told() -> None:
    impossible = (Wanted(operation=Operation.MATMUL, sides=(1 << 40, 1 << 40, 1)),)
    with pytest.raises(LaunchError, match=r"process 0 ended with exit code|the processes ended early"):
        measure(probe_hardware(ranks_per_node=1), impossible, lambda _: None)
