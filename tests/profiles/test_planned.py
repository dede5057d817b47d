"""Every machine is planned for, and the plans are what such machines can do."""

from __future__ import annotations

from functools import cache

import pytest

from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.profiles import device_names, load_hardware, node_names
from parastrat.result import SearchResult
from parastrat.search import find_plan

DEVICES = tuple(name for name in device_names() if name != "cpu")


@cache
def found(on: str) -> SearchResult:
    return find_plan(resolved(JobFlags(model="llama-3.1-8b", on=on)).facts)


@pytest.mark.parametrize("name", [*node_names(), *(f"{name}x4" for name in DEVICES)])
def test_every_machine_gets_a_plan_or_what_would_fit(name: str) -> None:
    result = found(f"{name}:8")
    case = result.chosen or (result.nearest_fit.case if result.nearest_fit else None)
    assert case is not None
    memory, time = case.estimate.memory, case.estimate.time
    assert 0 < memory.total <= memory.capacity
    assert time.step_low < time.step < time.step_high
    if case.estimate.mfu is not None:
        assert 0 < case.estimate.mfu < 0.85


@pytest.mark.parametrize(
    "generations",
    [
        ("g4dn.metal", "dgx-1v", "dgx-a100", "dgx-h100", "dgx-b200", "gb300-nvl72"),
        ("frontier", "nd96isr-mi300x-v5", "8x-mi325x", "8x-mi355x"),
        ("hls-gaudi2", "hls-gaudi3"),
        ("4x-rtx-3090", "8x-rtx-4090", "8x-rtx-5090"),
        ("gcp-g2", "g6e.48xlarge"),
        ("hgx-h20-roce", "8x-h800-sxm5"),
        ("8x-h100-pcie", "8x-h100-nvl", "dgx-h100"),
        ("lambda-8x-v100", "dgx-1v-16"),
        ("a2-ultragpu-8g", "p4de.24xlarge", "dgx-a100"),
    ],
    ids=lambda names: names[0],
)
def test_better_machines_train_faster(generations: tuple[str, ...]) -> None:
    """By the work of one device, so that nodes of four and of eight compare."""
    cases = [found(f"{name}:8").chosen for name in generations]
    rates = [case.estimate.tokens_per_s_per_gpu for case in cases if case is not None]
    assert len(rates) == len(generations)
    assert rates == sorted(rates)


def test_two_ranks_share_a_card_of_two_tiles() -> None:
    card, tiles = (load_hardware("aurora", ranks_per_node=ranks) for ranks in (6, 12))
    assert tiles.world_size == 2 * card.world_size
    assert tiles.device.memory_bytes * 2 == card.device.memory_bytes
