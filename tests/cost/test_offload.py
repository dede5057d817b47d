"""What lives on the host: copies for each gathering and reduction, and an update in the host's memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from jobs import GB, TERA, block, job, matmul, plan

from parastrat.assess import assess, assess_all
from parastrat.case import Facts
from parastrat.cost.offload import host_rates
from parastrat.estimate import TimeEstimate
from parastrat.hardware import FigureKind, Host, Provenance
from parastrat.model import Parameters, Split
from parastrat.plan import Offload, PipelineSchedule, Shard
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision

#: of a device, one direction, and of the host's memory
LINK, MEMORY = 10 * GB, 80 * GB
#: bytes of a weight as it is kept, and of a gradient; those that AdamW has to move, in bf16-mixed
KEPT, GRADIENT, MOVED = 4, 4, 28
FSDP: dict[str, Any] = {"shard": Shard.PARAMETERS, "offload": Offload.PARAMETERS}
PIPELINE = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}


def offloading(*, compute: float = 0.0, **changes: Any) -> Facts:
    """Return a job of 2 billion parameters in two layers, on a host of 8 devices whose rates are known."""
    parts = (Parameters(trainable=int(GB), split=Split.TENSOR),)
    layer = block(*([matmul(compute)] if compute else []), repeat=2, parameters=parts, unit=True)
    hardware = {"host": Host(memory_bytes_per_s=MEMORY, numa_nodes=2)} | changes.pop("hardware", {})
    device = {"host_bytes_per_s": LINK} | changes.pop("device", {})
    return job(layer, hardware=hardware, device=device, **changes)


def time(facts: Facts, **fields: Any) -> TimeEstimate:
    return assess(facts, plan(**fields)).estimate.time


def copied(facts: Facts, **fields: Any) -> float:
    """Return what data parallelism takes longer with parameters on the host."""
    here = time(facts, **(fields | {"offload": Offload.NONE}))
    return time(facts, **fields).dp_exposed - here.dp_exposed


@pytest.mark.parametrize(
    ("fields", "ups", "downs"),
    [
        # freed after forward, so that backward gathers again
        ({}, 2, 1),
        ({"reshard_after_forward": False}, 1, 1),
        ({"gradient_accumulation_steps": 3}, 6, 3),
        ({"gradient_accumulation_steps": 3, "reshard_after_forward": False}, 3, 3),
    ],
)
def test_each_gathering_copies_a_shard_up_and_each_reduction_its_gradients_down(
    fields: dict[str, Any], ups: int, downs: int
) -> None:
    shard = 2 * GB / 4
    expected = shard * (ups * KEPT + downs * GRADIENT) / LINK
    assert copied(offloading(), dp_shard=4, **FSDP, **fields) == pytest.approx(expected)


def test_a_pipeline_reduces_once_a_step() -> None:
    # each rank of the pipeline has one of the layers
    shard = GB / 2
    fields = {**FSDP, **PIPELINE, "dp_shard": 2, "reshard_after_forward": False}
    expected = shard * (KEPT + GRADIENT) / LINK
    assert copied(offloading(), **fields, gradient_accumulation_steps=4) == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_ranks_of_a_host_share_the_rate_of_its_memory(ranks: int) -> None:
    found = time(offloading(), dp_shard=ranks, **FSDP).optimizer
    assert found == pytest.approx(2 * GB / ranks * MOVED / (MEMORY / ranks))


@pytest.mark.parametrize("axes", [{"dp_shard": 2, "cp": 2}, {"dp_shard": 2, "tp": 2}, {"dp_shard": 4}])
def test_ranks_of_every_axis_share_it(axes: dict[str, int]) -> None:
    assert time(offloading(), **axes, **FSDP).optimizer == pytest.approx(2 * GB * MOVED / MEMORY)


def test_frozen_weights_are_copied_up_too() -> None:
    held = (Parameters(frozen=int(GB), split=Split.TENSOR),)
    facts = job(block(matmul(1.0), repeat=2, parameters=held), device={"host_bytes_per_s": LINK})
    assert copied(facts, offload=Offload.PARAMETERS) == pytest.approx(2 * GB * 2 * KEPT / LINK)


def test_a_process_alone_has_the_memory_of_one_socket() -> None:
    update = 2 * GB * MOVED / (MEMORY / 2)
    assert time(offloading(), offload=Offload.PARAMETERS).optimizer == pytest.approx(update)
    unknown = offloading(hardware={"host": Host(memory_bytes_per_s=MEMORY)})
    assert time(unknown, offload=Offload.PARAMETERS).optimizer == pytest.approx(update / 2)


def test_a_device_alone_has_weights_copied_too() -> None:
    # up for forward and for backward, gradients down
    copies = 2 * GB * (2 * KEPT + GRADIENT) / LINK
    for steps in (1, 3):
        fields = {"offload": Offload.PARAMETERS, "gradient_accumulation_steps": steps}
        assert copied(offloading(), **fields) == pytest.approx(steps * copies)
    busy = offloading(compute=100 * TERA, stack={"fsdp_overlap": 0.75})
    assert copied(busy, offload=Offload.PARAMETERS) == pytest.approx(copies / 4)
    assert copied(offloading(), dp_replicate=4, offload=Offload.PARAMETERS) == pytest.approx(copies)


@pytest.mark.parametrize("kernels", [Kernels.EAGER, Kernels.FUSED])
def test_gradients_of_several_micro_batches_are_added_on_the_host(kernels: Kernels) -> None:
    facts = offloading(stack={"kernels": kernels})
    one, three = (
        time(facts, dp_shard=4, gradient_accumulation_steps=steps, **FSDP).optimizer for steps in (1, 3)
    )
    # two are read and one written, twice
    assert three - one == pytest.approx(2 * 2 * GB / 4 * 3 * GRADIENT / (MEMORY / 4))


def test_updates_operation_by_operation_move_more() -> None:
    apart = offloading(stack={"steps_by_operation": True})
    assert time(apart, dp_shard=4, **FSDP).optimizer == pytest.approx(2 * GB * MOVED * 20 / 7 / MEMORY)
    plain = offloading(optimizer=Optimizer.SGD, precision=Precision.BF16)
    assert time(plain, dp_shard=4, **FSDP).optimizer == pytest.approx(2 * GB * 6 / MEMORY)


def test_an_optimizer_alone_has_one_copy_a_step() -> None:
    fields = {"dp_shard": 4, "shard": Shard.PARAMETERS, "offload": Offload.OPTIMIZER}
    once = 2 * GB * MOVED / MEMORY + 2 * GB / 4 * (KEPT + GRADIENT) / LINK
    for steps in (1, 3):
        found = time(offloading(), **fields, gradient_accumulation_steps=steps)
        # gradients are added on the device: two are read and one written
        added = (steps - 1) * 2 * GB / 4 * 3 * GRADIENT / TERA
        assert found.optimizer == pytest.approx(once + added)
    assert copied(offloading(), **fields) == 0


def test_copies_hide_behind_compute_as_gathering_does() -> None:
    busy = offloading(compute=100 * TERA, stack={"fsdp_overlap": 0.75})
    shard = 2 * GB / 4
    expected = shard * (2 * KEPT + GRADIENT) / LINK / 4
    assert copied(busy, dp_shard=4, **FSDP) == pytest.approx(expected)


def test_unknown_rates_are_assumed_and_widen_the_interval() -> None:
    known = offloading()
    unknown = offloading(hardware={"host": Host()})
    rates = host_rates(unknown)
    assert (rates.link, rates.memory) == (LINK, None)
    assert (rates.link_is_assumed, rates.are_assumed) == (False, True)
    # of the host's memory each process then has what its link carries
    found = time(unknown, dp_shard=4, **FSDP).optimizer
    assert found == pytest.approx(2 * GB / 4 * MOVED / LINK)
    shared = host_rates(offloading(device={"host_bytes_per_s": None}))
    assert (shared.link, shared.link_is_assumed, shared.memory) == (TERA, True, MEMORY)
    entry = Provenance(field="host_bytes_per_s", kind=FigureKind.ASSUMED, source="a guess")
    assert host_rates(offloading(device={"provenance": (entry,)})).link_is_assumed
    assert not host_rates(known).are_assumed

    def spread(facts: Facts, **fields: Any) -> float:
        found = time(facts, dp_shard=4, **fields)
        assert found.step_low * found.step_high == pytest.approx(found.step**2)
        return math.log(found.step_high / found.step)

    own = known.stack.time_spread
    assert spread(known, **FSDP) == pytest.approx(own)
    assert spread(unknown, **FSDP) == pytest.approx(math.hypot(own, math.log(2)))
    assert spread(unknown, shard=Shard.PARAMETERS) == pytest.approx(own)


def test_devices_that_a_plan_leaves_idle_do_not_matter() -> None:
    for host in (Host(), Host(memory_bytes_per_s=MEMORY, numa_nodes=2)):
        many, one = (offloading(hardware={"host": host, "devices_per_node": devices}) for devices in (8, 1))
        alone = {"offload": Offload.PARAMETERS, "gradient_accumulation_steps": 2}
        assert time(many, **alone).parts == pytest.approx(time(one, **alone).parts)


def test_plans_together_are_the_plans_one_by_one() -> None:
    facts = replace(offloading(), hardware=offloading(hardware={"host": Host()}).hardware)
    plans = [
        plan(dp_shard=4, shard=Shard.PARAMETERS, gradient_accumulation_steps=3),
        plan(dp_shard=4, **FSDP, gradient_accumulation_steps=3),
        plan(dp_shard=4, **(FSDP | {"offload": Offload.OPTIMIZER})),
        plan(dp_replicate=4, offload=Offload.PARAMETERS),
        plan(offload=Offload.PARAMETERS, gradient_accumulation_steps=2),
        plan(**PIPELINE, dp_shard=2, **FSDP, gradient_accumulation_steps=4),
    ]
    for together, one in zip(assess_all(facts, plans), plans, strict=True):
        alone = assess(facts, one).estimate.time
        assert together.estimate.time.parts == pytest.approx(alone.parts)
        assert together.estimate.time.step_high == pytest.approx(alone.step_high)
