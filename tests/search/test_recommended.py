"""The recommendation alone is the one of the whole answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.test_find_plan import facts

from parastrat.estimate import Verdict
from parastrat.plan import Offload, Recompute
from parastrat.search import Constraints, find_plan, recommendation

JOBS = {
    "one device": ("gpt2", "g4dn.metal:8", 4, 16),
    "one host": ("llama-3.1-8b", "dgx-h100:1", 8, 4096),
    "many": ("llama-3.1-70b", "dgx-h100:8", 512, 8192),
    "experts": ("mixtral-8x7b", "dgx-h100:4", 256, 4096),
    "lower rungs behind": ("gemma-3-4b", "dgx-a100:8", 128, 32_768),
    "a slow network": ("gpt2-xl", "g4dn.metal:2", 512, 1024),
    "nothing fits": ("gpt-3-175b", "dgx-a100-40:1", 8, 2048),
    "no heads": ("resnet-50", "dgx-h100:2", 512, None),
}


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("job", JOBS)
def test_it_is_what_find_plan_chooses(job: str, tolerance: float) -> None:
    asked = facts(*JOBS[job])
    chosen = find_plan(asked, tolerance=tolerance).chosen
    assert (chosen is None) == (job == "nothing fits")
    assert (chosen is not None and chosen.plan.mesh.world_size == 1) == (job == "one device")
    assert recommendation(asked, Constraints(), tolerance=tolerance) == chosen


@pytest.mark.parametrize(
    "fixed",
    [
        Constraints(strategy="fsdp2"),
        Constraints(strategy="single"),
        Constraints(tp=8),
        Constraints(recompute=Recompute.FULL, micro_batch_size=2),
        Constraints(offload=Offload.OPTIMIZER),
        Constraints(applied=True),
        Constraints(plain_loop=True),
    ],
    ids=repr,
)
def test_it_keeps_to_what_the_user_settled(fixed: Constraints) -> None:
    asked = facts(*JOBS["many"])
    assert recommendation(asked, fixed) == find_plan(asked, fixed).chosen


@pytest.mark.parametrize(
    ("job", "share"), [("many", 0.275), ("many", 0.295), ("hardly", 0.7658443466561248)]
)
def test_a_plan_without_its_margin_is_taken_where_no_other_fits(job: str, share: float) -> None:
    asked = facts(*(JOBS | {"hardly": ("deepseek-v3", "dgx-b300:8", 15_360, 4096)})[job])
    device = asked.hardware.device
    smaller = replace(device, usable_memory_bytes=int(share * device.usable_memory_bytes))
    there = replace(asked, hardware=replace(asked.hardware, device=smaller))
    chosen = find_plan(there).chosen
    assert chosen is not None
    assert chosen.estimate.verdict is Verdict.TIGHT
    assert recommendation(there, Constraints()) == chosen
