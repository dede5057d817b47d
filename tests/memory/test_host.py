"""The memory of hosts: what is offloaded is exact, what loading and saving take is bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memory.test_peaks import facts, memory, plan
from parastrat.assess import plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.memory.host import HostMemory, host_columns, host_floors, host_memory, host_of
from parastrat.plan import Mesh, Offload, Plan, Shard
from parastrat.profiles import load_hardware
from parastrat.search import Constraints
from parastrat.search.obeying import obeying
from parastrat.tables import facts_columns
from parastrat.workload import Precision


def of(job: Facts, chosen: Plan) -> HostMemory:
    found = host_memory(job, chosen)
    assert found is not None
    return found


def test_nothing_is_offloaded_unless_a_plan_says_so() -> None:
    job = facts()
    found = of(job, plan())
    assert (found.ranks, found.offloaded, found.rounding) == (8, 0, 0)
    assert found.processes == 8 * job.stack.host_process_bytes == found.least
    assert found.capacity == job.hardware.host.memory_bytes
    assert found.total == found.processes + max(found.loading, found.checkpointing)


@pytest.mark.parametrize(
    ("offload", "parts"),
    [
        (Offload.OPTIMIZER, ("optimizer",)),
        (Offload.PARAMETERS, ("parameters", "gradients", "optimizer")),
    ],
)
def test_what_leaves_the_devices_is_on_the_host(offload: Offload, parts: tuple[str, ...]) -> None:
    job, chosen = facts(), plan(gradient_accumulation_steps=2)
    here = of(job, replace(chosen, offload=offload))
    states = memory(job, replace(chosen, mesh=Mesh(dp_shard=64))).parts
    # gradients are the size of the parameters: of a step's peak they are not always a part
    states["gradients"] = states["parameters"]
    assert here.offloaded == pytest.approx(8 * sum(states[part] for part in parts), rel=1e-6)
    pinned = [part for part in parts if part != "optimizer"]
    assert here.rounding == pytest.approx(8 * sum(states[part] for part in pinned), rel=1e-6)


def test_whole_models_are_as_many_as_there_are_processes_of_a_host() -> None:
    job = facts()
    assert of(job, plan()).whole_models == 8 * 4 * job.model.parameters
    assert of(facts(precision=Precision.BF16), plan(precision=Precision.BF16)).whole_models == (
        8 * 2 * job.model.parameters
    )
    alone = plan(mesh=Mesh(), shard=Shard.NONE)
    assert of(job, alone).whole_models == 4 * job.model.parameters


def test_loading_and_saving_take_a_tensor_of_each_process() -> None:
    job = facts()
    embedding = 4 * 128_256 * 4096
    found = of(job, plan())
    assert found.loading == 8 * embedding
    assert found.checkpointing == 8 * (embedding / 64 + 10_000_000)
    split = of(job, plan(mesh=Mesh(dp_shard=8, tp=8)))
    assert split.checkpointing == found.checkpointing
    whole = of(job, plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE))
    assert whole.checkpointing == 8 * (embedding + 10_000_000)


def test_a_staged_checkpoint_is_what_all_ranks_of_the_host_save() -> None:
    job = facts()
    parts = memory(job, plan()).parts
    staged = of(job, plan()).staged_checkpoint
    assert staged == pytest.approx(8 * (parts["parameters"] + parts["optimizer"]), rel=1e-6)


def test_the_memory_of_cpu_hosts_is_their_devices() -> None:
    job = replace(facts("gpt2"), hardware=load_hardware("cpu:4"))
    assert host_memory(job, plan(mesh=Mesh(dp_shard=4))) is None


def test_rules_read_what_a_host_has_and_needs() -> None:
    job, offloading = facts("gpt2", on="dgx-h100:1"), plan(offload=Offload.PARAMETERS)
    found, own = of(job, offloading), host_of(job, offloading)
    assert own == {"host_needed": found.least, "host_capacity": found.capacity}
    table = Columns({**facts_columns(job), **plans_table([offloading, plan()])})
    several = host_columns(job, table)
    assert several["host_capacity"] == found.capacity
    needed = [host_of(job, each)["host_needed"] for each in (offloading, plan())]
    assert np.ceil(several["host_needed"]).tolist() == needed
    assert needed[0] > needed[1] > 0


def test_a_host_of_unknown_memory_is_not_judged() -> None:
    job = facts(on="h100-sxm5x8:8")
    assert of(job, plan(offload=Offload.PARAMETERS)).capacity is None
    assert host_of(job, plan(offload=Offload.PARAMETERS)) == {}


@pytest.mark.parametrize("offload", Offload)
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "t5-3b"])
def test_no_plan_needs_less_of_its_hosts_than_its_mesh(model: str, offload: Offload) -> None:
    job = facts(model, on="dgx-h100:4")
    columns = obeying(job, Constraints(offload=offload)).columns
    floors, needed = (find(job, columns)["host_needed"] for find in (host_floors, host_columns))
    exact = np.broadcast_to(columns.pp == 1, columns.pp.shape)
    assert np.all(floors <= needed * (1 + 1e-12))
    assert np.any(exact)
    # without stages all ranks hold as much
    assert np.broadcast_to(floors, exact.shape)[exact] == pytest.approx(
        np.broadcast_to(needed, exact.shape)[exact]
    )
