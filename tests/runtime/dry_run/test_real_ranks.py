"""What dry runs say is sent, beside what ranks that are there send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.dry_run import models
from runtime.ranks import on_ranks
from runtime.uncompared import uncompared
from versions import sends_no_greeting

from parastrat.dry_run import Traffic
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.runtime.apply import auto_parallelize
from parastrat.runtime.dry_run import run_on_fakes
from parastrat.runtime.dry_run.rank import step_traffic
from parastrat.workload import Optimizer, Precision, Workload

pytestmark = [pytest.mark.slow, sends_no_greeting]

LENGTH = 8
NONE: dict[str, Any] = {"shard": Shard.NONE}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"mesh": Mesh(dp_replicate=2), **NONE},
    "fsdp2": {"mesh": Mesh(dp_shard=2)},
    "fsdp2, recomputing, two micro-batches": {
        "mesh": Mesh(dp_shard=2),
        "recompute": Recompute.FULL,
        "gradient_accumulation_steps": 2,
    },
    "cp": {"mesh": Mesh(cp=2)},
    "cp, recomputing, two micro-batches": {
        "mesh": Mesh(cp=2),
        "recompute": Recompute.FULL,
        "gradient_accumulation_steps": 2,
    },
    "tp": {"mesh": Mesh(tp=2), **NONE},
    "tp, sequence and loss": {
        "mesh": Mesh(tp=2),
        "sequence_parallel": True,
        "loss_parallel": True,
        **NONE,
    },
    "pp": {
        "mesh": Mesh(pp=2),
        "gradient_accumulation_steps": 2,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
        **NONE,
    },
    "pp, two stages a rank, weights apart": {
        "mesh": Mesh(pp=2),
        "gradient_accumulation_steps": 4,
        "pp_schedule": PipelineSchedule.ZBV,
        "virtual_stages": 2,
        **NONE,
    },
}
PIPELINED: dict[str, Any] = {
    "reshard_after_forward": False,
    "gradient_accumulation_steps": 2,
    "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
}
#: on eight ranks
OF_EIGHT: dict[str, dict[str, Any]] = {
    "pp x fsdp2": {"mesh": Mesh(pp=2, dp_shard=4), **PIPELINED},
    "pp x fsdp2, two stages a rank": {
        "mesh": Mesh(pp=2, dp_shard=4),
        **PIPELINED,
        "pp_schedule": PipelineSchedule.INTERLEAVED,
        "virtual_stages": 2,
    },
    "3d": {"mesh": Mesh(pp=2, dp_shard=2, tp=2), **PIPELINED},
    "3d, sequence and loss, recomputing": {
        "mesh": Mesh(pp=2, dp_shard=2, tp=2),
        **PIPELINED,
        "sequence_parallel": True,
        "loss_parallel": True,
        "recompute": Recompute.FULL,
    },
    "fsdp2 x tp, sequence and loss": {
        "mesh": Mesh(dp_shard=4, tp=2),
        "sequence_parallel": True,
        "loss_parallel": True,
    },
    "3d of replicas": {"mesh": Mesh(pp=2, dp_replicate=2, tp=2), **PIPELINED, **NONE},
}


def plan(changes: dict[str, Any]) -> Plan:
    fields: dict[str, Any] = {
        "shard": Shard.PARAMETERS,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "precision": Precision.FP32,
        "backend": Backend.GLOO,
    }
    return Plan(**(fields | changes))


def model_of(changes: dict[str, Any]) -> str:
    """Return the name of a model that a plan divides."""
    return "Attending" if changes["mesh"].cp > 1 else "Fed"


def of_real_rank(cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Train under every plan; return what a step of each sends."""
    batch = models.sample_inputs(2, LENGTH)
    found = {}
    for name, changes in cases.items():
        torch.manual_seed(0)
        # ranks are compared after their first steps, and those of dry runs are not there
        with uncompared():
            module = getattr(models, model_of(changes))()
            model = auto_parallelize(module, plan=plan(changes), sample_inputs=batch)
        found[name] = step_traffic(model, batch)
    return found


def sent_by(rank: int, changes: dict[str, Any]) -> set[Traffic]:
    """Return what a dry run says that a rank sends; of messages of as many bytes either may be first."""
    own = plan(changes)
    workload = Workload(
        global_batch_size=own.global_batch_size,
        sequence_length=LENGTH,
        optimizer=Optimizer.SGD,
        precision=own.precision,
    )
    ref = f"{Path(models.__file__)}:{model_of(changes)}"
    return set(run_on_fakes(ref, own, workload, rank).traffic)


def test_collectives_are_those_of_real_ranks() -> None:
    rank = 1  # a pipeline's last; the others' ranks are alike
    real = on_ranks(2, of_real_rank, CASES)[rank]
    for name, changes in CASES.items():
        assert sent_by(rank, changes) == set(real[name]), name


def test_those_of_axes_beside_each_other_are_too() -> None:
    real = on_ranks(8, of_real_rank, OF_EIGHT)
    for name, changes in OF_EIGHT.items():
        for rank in (0, 7):  # a first and a last stage
            assert sent_by(rank, changes) == set(real[rank][name]), (name, rank)
