"""Estimates of traced modules under tensor parallelism beside dry runs of what is really wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime.dry_run.test_ranks import plan, workload

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.plan import Mesh, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.dry_run import run_on_fakes
from parastrat.runtime.tracing.trace import traced_source
from parastrat.workload import Precision

pytestmark = pytest.mark.slow

REF = f"{Path(__file__).parents[1] / 'readers.py'}:wide"
LENGTH = 512


@pytest.mark.parametrize(
    ("mesh", "recompute"),
    [
        (Mesh(dp_shard=4, tp=2), Recompute.FULL),
        (Mesh(dp_shard=2, tp=4), Recompute.NONE),
    ],
)
def test_what_is_divided_is_as_large_as_its_dry_run(mesh: Mesh, recompute: Recompute) -> None:
    own = plan(
        mesh=mesh,
        shard=Shard.PARAMETERS,
        precision=Precision.BF16_MIXED,
        micro_batch_size=4,
        sequence_parallel=True,
        loss_parallel=True,
        recompute=recompute,
    )
    stack = load_stack("torch")
    job = Facts(
        model=traced_source(REF).at(LENGTH, own.precision, stack.kernels),
        hardware=load_hardware("dgx-h100"),
        workload=workload(own, LENGTH),
        stack=stack,
    )
    memory, found = assess(job, own).estimate.memory, run_on_fakes(REF, own, job.workload)
    assert memory.total - memory.overhead == pytest.approx(found.peak, rel=0.03)
