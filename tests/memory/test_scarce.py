"""Which memory a plan lacks, and how far it is from fitting: GPUs of 78 GiB, hosts of some size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import case

from parastrat.case import Case
from parastrat.memory.host import host_of
from parastrat.memory.scarce import excess, scarcest
from parastrat.units import GIB


def needing(gib: int, host_share: float | None) -> Case:
    """Return a plan that needs so much of a GPU, and such a share of a host's memory; None: unknown."""
    made = case(dp_shard=16)
    host = replace(made.hardware.host, memory_bytes=1)
    made = replace(made, hardware=replace(made.hardware, host=host))
    needed = host_of(made.facts, made.plan)["host_needed"]
    host = replace(host, memory_bytes=None if host_share is None else round(needed / host_share))
    memory = replace(
        made.estimate.memory,
        **dict.fromkeys(made.estimate.memory.parts, 0) | {"optimizer": gib * GIB},
        capacity=100 * GIB,
    )
    return replace(
        made,
        hardware=replace(made.hardware, host=host),
        estimate=replace(made.estimate, memory=memory),
    )


@pytest.mark.parametrize(
    ("gib", "host", "of_host", "share", "factor"),
    [
        (50, None, False, 0.5, 1.0),
        (150, None, False, 1.5, 1.5),
        (50, 0.8, True, 0.8, 1.0),
        (150, 0.8, False, 1.5, 1.5),
        (50, 2.0, True, 2.0, 2.0),
        (150, 2.0, True, 2.0, 3.0),
    ],
)
def test_the_memory_of_which_most_is_needed(
    gib: int, host: float | None, of_host: bool, share: float, factor: float
) -> None:
    made = needing(gib, host)
    assert scarcest(made).of_host == of_host
    assert scarcest(made).share == pytest.approx(share)
    assert excess(made) == pytest.approx(factor)
