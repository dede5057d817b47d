"""Which schedules torch builds, and whether a rule says so of the others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule
from parastrat.rules.runtime_support import refusals_of
from parastrat.runtime.pipeline.schedule import Run
from parastrat.schedules import SINGLE, stages_of_rank


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def built(chosen: object) -> bool:
    modules = {stage: nn.Identity() for stage in stages_of_rank(chosen, 0)}
    try:
        Run(chosen, modules, None, dist.group.WORLD, torch.device("cpu"))
    except WrapError:
        return False
    return True


@pytest.mark.parametrize("schedule", [*PipelineSchedule, None])
def test_rules_refuse_the_micro_batches_that_torch_refuses(
    ranks: int, schedule: PipelineSchedule | None
) -> None:
    kinds = set()
    for chunks, count in product((1, 2, 3), range(1, 3 * ranks + 2)):
        chosen = plan(
            pp=ranks, virtual_stages=chunks, pp_schedule=schedule, gradient_accumulation_steps=count
        )
        refused = [finding.code for finding in refusals_of(chosen)]
        if refused in (["PS708"], ["PS704"], ["PS701", "PS704"], ["PS701", "PS708"]):
            # torch would be handed other stages than the plan has
            assert chunks != (1 if schedule in SINGLE else 2)
            continue
        assert built(chosen) == (not refused), (chosen, refused)
        kinds.add(tuple(refused))
    assert () in kinds
