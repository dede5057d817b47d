"""The same step with real tensors: on the host, where they are counted, they are as many as fake ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.dry_run.test_ranks import HERE, dried, plan, workload
from versions import sends_no_greeting

from parastrat.dry_run import DryRun
from parastrat.errors import UsageError
from parastrat.plan import Mesh, PipelineSchedule, Shard
from parastrat.runtime.dry_run import real_device, run_on_device


def really(name: str = "Chain", rank: int = 0, device: str = "cpu", **changes: Any) -> DryRun:
    own = plan(**changes)
    return run_on_device(f"{HERE}:{name}", own, workload(own), rank, torch.device(device))


PIPELINE: dict[str, Any] = {
    "mesh": Mesh(pp=2, dp_shard=2),
    "reshard_after_forward": False,
    "gradient_accumulation_steps": 4,
    "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Chain", {}),
        ("Wide", {"mesh": Mesh(dp_replicate=4), "shard": Shard.NONE}),
        ("Fed", {"mesh": Mesh(dp_shard=2, tp=2)}),
        pytest.param("Fed", PIPELINE, marks=sends_no_greeting),
    ],
    ids=["fsdp2", "ddp", "fsdp2 x tp", "pp x fsdp2"],
)
def test_real_tensors_take_what_fake_ones_are_said_to(name: str, changes: dict[str, Any]) -> None:
    real, fake = really(name, **changes), dried(name, **changes)
    assert set(real.traffic) == set(fake.traffic)
    assert real.parameters == fake.parameters
    # attention and dropout aside, of which these models have none, the host's kernels are a GPU's
    assert real.forward_backward == pytest.approx(fake.forward_backward, rel=0.001)
    assert real.optimizer_step == pytest.approx(fake.optimizer_step, rel=0.001)
    assert real.reserved is None


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_allocator_holds_what_is_counted() -> None:
    real, fake = really("Wide", device="cuda"), dried("Wide")
    assert real.peak == pytest.approx(fake.peak, rel=0.03)
    assert real.reserved is not None
    assert real.reserved >= real.peak


def test_without_an_accelerator_it_says_so() -> None:
    assert real_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="--device tpu is not known"):
        real_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="here is none") as refused:
            real_device(None)
        assert "--device cpu" in refused.value.hint
