"""What is noted of a wrapped model lives and goes with it."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn

import parastrat
from parastrat.plan import PipelineSchedule
from parastrat.runtime.wrapped import is_wrapped

SAMPLES, WIDTH = 4, 8
SHAPES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2, "micro_batch_size": SAMPLES},
    "pp": {
        "pp": 2,
        "micro_batch_size": SAMPLES // 2,
        "gradient_accumulation_steps": 2,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    },
    "fsdp2": {"dp_shard": 2, "micro_batch_size": SAMPLES},
}


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(4)]
    return nn.Sequential(*blocks)


def mean_square(output: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def stepped(strategy: str, inputs: torch.Tensor, sample_inputs: torch.Tensor) -> Any:
    model = parastrat.auto_parallelize(chain(), plan=plan(**SHAPES[strategy]), sample_inputs=sample_inputs)
    return model, parastrat.forward_backward(model, inputs, torch.zeros(SAMPLES), loss_fn=mean_square)


def is_freed(strategy: str) -> bool:
    inputs = torch.ones(SAMPLES, WIDTH)
    seen = weakref.ref(stepped(strategy, inputs, inputs)[0])
    gc.collect()
    return seen() is None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SHAPES)
def test_a_model_that_nobody_holds_gives_its_memory_back(strategy: str) -> None:
    assert on_ranks(2, is_freed, strategy) == [True, True]


def test_a_copy_was_wrapped_by_nobody() -> None:
    model = parastrat.auto_parallelize(chain(), plan=plan(micro_batch_size=SAMPLES))
    assert is_wrapped(model)
    assert not is_wrapped(copy.deepcopy(model))
    assert is_wrapped(model)


def with_samples_of_its_own(strategy: str) -> float:
    rank = int(os.environ["RANK"])
    mine = torch.randn(SAMPLES + rank, WIDTH, generator=torch.Generator().manual_seed(rank))
    return float(stepped(strategy, torch.ones(SAMPLES, WIDTH), mine)[1])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tp", "pp"])
def test_ranks_may_have_loaded_samples_of_their_own(strategy: str) -> None:
    loss = chain()(torch.ones(SAMPLES, WIDTH)).square().mean().item()
    assert on_ranks(2, with_samples_of_its_own, strategy) == [pytest.approx(loss, abs=1e-6)] * 2
