"""One search over jobs that differ in nodes and in offload answers as one after the other does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parastrat.case import Facts
from parastrat.plan import Offload
from parastrat.profiles import load_hardware, load_stack
from parastrat.search import Constraints
from parastrat.search.fastest import able_meshes, fastest_plan
from parastrat.search.of_each import fastest_of_each
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

JOBS = [
    ("llama-3.1-8b", "dgx-a100:2", 64),
    ("mixtral-8x7b", "8x-rtx-4090:2", 128),
    ("llama-3.1-70b", "summit:4", 96),
    ("nemotron-h-47b", "8x-v100-pcie-32:2", 64),
]


def on_nodes(model: str, on: str, batch: int, gib: float) -> tuple[Facts, ...]:
    """Return a job on 2, 4, 8 times as many nodes whose devices have so many GiB."""
    source, stack, hardware = load_source(model), load_stack("torch"), load_hardware(on)
    assert source is not None
    device = replace(hardware.device, usable_memory_bytes=int(gib * 2**30))
    job = Facts(
        model=source.at(2048, Precision.BF16_MIXED, stack.kernels),
        hardware=replace(hardware, device=device),
        workload=Workload(
            global_batch_size=batch,
            sequence_length=2048,
            optimizer=Optimizer.ADAMW,
            precision=Precision.BF16_MIXED,
        ),
        stack=stack,
    )
    several = (hardware.num_nodes * times for times in (2, 4, 8))
    return tuple(replace(job, hardware=replace(job.hardware, num_nodes=nodes)) for nodes in several)


of_jobs = pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, _ in JOBS])
at_once_and_in_pieces = pytest.mark.parametrize("pieces", [False, True], ids=["at once", "in pieces"])


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parastrat.search.bounded._FEW", 0)
    monkeypatch.setattr("parastrat.search.visited._HANDFUL", 0)
    monkeypatch.setattr("parastrat.search.visited._MANY", 50)
    monkeypatch.setattr("parastrat.search.best_first._FEW", 0)


OFFLOADING = Constraints(offload=Offload.OPTIMIZER)
#: on twice and on four times as many nodes
TIMES = {"twice": 1, "four times": 2}
GIB = [3.0, 4.5, 8.0, 12.0, 15.0, 24.0]


@pytest.mark.parametrize("gib", GIB)
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@of_jobs
@at_once_and_in_pieces
def test_the_fastest_plan_of_each_is_found_with_states_on_hosts_and_on_more_nodes(
    job: tuple[str, str, int],
    gib: float,
    times: int,
    pieces: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = on_nodes(*job, gib)
    given, widest = several[0], several[times]
    expected = fastest_plan(given, OFFLOADING), fastest_plan(widest, Constraints())
    if pieces:
        in_pieces(monkeypatch)
    meshes = able_meshes(given, OFFLOADING), able_meshes(widest, Constraints())
    assert fastest_of_each(meshes, widest, Constraints()) == expected


def test_what_is_tried_has_plans_of_both_and_of_either_and_of_none() -> None:
    def has(given: Facts, widest: Facts) -> tuple[bool, bool]:
        on_hosts, on_more = fastest_plan(given, OFFLOADING), fastest_plan(widest, Constraints())
        return on_hosts is not None, on_more is not None

    tried = [on_nodes(*job, gib) for job in JOBS for gib in GIB]
    found = {has(several[0], several[times]) for several in tried for times in TIMES.values()}
    assert found == {(False, False), (True, False), (False, True), (True, True)}
