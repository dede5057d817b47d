"""Throughput and utilisation from a step that can be timed by hand; the launch from mesh and host."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import TERA, block, job, matmul, plan

from parastrat.assess import assess, assess_all, columns_of, launch_of, peak_flops_per_s
from parastrat.case import Facts
from parastrat.estimate import Estimate
from parastrat.hardware import DeviceType, Host, Rates
from parastrat.plan import Offload
from parastrat.workload import Precision

#: a forward of 2 x 1 s on each sample
LAYERS = block(matmul(TERA), repeat=2)


def estimate(facts: Facts, **fields: Any) -> Estimate:
    return assess(facts, plan(**fields)).estimate


def test_a_rank_trains_its_samples_tokens_in_a_step() -> None:
    # 3 micro-batches of 5 samples of 1,024 tokens, 6 s each; 4 ranks see samples of their own
    found = estimate(job(LAYERS), dp_replicate=4, micro_batch_size=5, gradient_accumulation_steps=3)
    assert found.time.step == pytest.approx(90)
    assert found.tokens_per_s_per_gpu == pytest.approx(1024 / 6)


def test_ranks_of_one_sample_share_its_tokens() -> None:
    # nothing of the block is divided by tp, so two ranks take the time of one
    assert estimate(job(LAYERS), tp=2).tokens_per_s_per_gpu == pytest.approx(1024 / 6 / 2)


def test_without_tokens_samples_are_counted() -> None:
    images = job(LAYERS, model={"sequence_length": None})
    assert estimate(images).tokens_per_s_per_gpu == pytest.approx(1 / 6)


def test_useful_work_is_three_forwards_whatever_is_recomputed() -> None:
    # the constant makes the step 8 s: 3 x 2 TFLOP of it
    facts = job(LAYERS, stack={"step_constant_s": 2.0}, device={"peak": Rates(bf16=3 * TERA)})
    found = estimate(facts)
    assert found.model_tflops_per_gpu == pytest.approx(3 * 2 / 8)
    assert found.mfu == pytest.approx(3 * 2 / 8 / 3)
    shared = estimate(facts, tp=2)
    assert shared.model_tflops_per_gpu == pytest.approx(3 * 2 / 8 / 2)
    many = estimate(facts, dp_replicate=2, micro_batch_size=5)
    assert many.model_tflops_per_gpu == pytest.approx(3 * 2 * 5 / (6 * 5 + 2))


def test_what_is_computed_and_lost_is_no_useful_work() -> None:
    facts = job(block(matmul(TERA), matmul(TERA, useful=0.25)))
    assert estimate(facts).model_tflops_per_gpu == pytest.approx(3 * 1.25 / 6)


@pytest.mark.parametrize(
    ("precision", "rate"),
    [
        (Precision.FP32, 1),
        (Precision.BF16, 3),
        (Precision.BF16_MIXED, 3),
        (Precision.FP16_MIXED, 4),
        (Precision.FP8, 5),
    ],
)
def test_utilisation_is_of_the_formats_datasheet_rate(precision: Precision, rate: float) -> None:
    device = job(device={"peak": Rates(fp32=1, tf32=2, bf16=3, fp16=4, fp8=5)}).hardware.device
    assert peak_flops_per_s(device, precision) == rate


def test_without_a_datasheet_rate_there_is_no_utilisation() -> None:
    assert estimate(job(LAYERS, device={"peak": Rates(fp32=TERA)})).mfu is None


def test_several_plans_are_told_in_their_order() -> None:
    facts, plans = job(LAYERS), [plan(tp=2), plan(), plan(micro_batch_size=2)]
    cases = assess_all(facts, plans)
    assert [case.plan for case in cases] == plans
    assert [round(case.estimate.time.step) for case in cases] == [6, 6, 12]
    assert assess_all(facts, ()) == ()


def test_a_cases_columns_carry_its_memory() -> None:
    case = assess(job(LAYERS), plan(offload=Offload.OPTIMIZER, tp=2))
    columns, memory = columns_of(case), case.estimate.memory
    assert (columns.memory_total, columns.memory_margin) == (memory.total, memory.margin)
    assert (columns.memory_capacity, columns.tp) == (memory.capacity, 2)


@pytest.mark.parametrize(
    ("mesh", "nodes", "ranks"),
    [
        ({}, 1, 1),
        ({"tp": 4}, 1, 4),
        ({"tp": 8}, 1, 8),
        ({"dp_replicate": 2, "tp": 8}, 2, 8),
        ({"pp": 3, "dp_shard": 4}, 2, 8),
    ],
)
def test_ranks_fill_one_node_before_the_next(mesh: dict[str, int], nodes: int, ranks: int) -> None:
    launch = launch_of(job(num_nodes=2).hardware, plan(**mesh))
    assert (launch.nodes, launch.ranks_per_node) == (nodes, ranks)


@pytest.mark.parametrize(("cores", "threads"), [(96, "12"), (100, "12"), (8, "1"), (4, "1")])
def test_ranks_share_their_hosts_cores(cores: int, threads: str) -> None:
    hardware = job(hardware={"host": Host(cores=cores)}).hardware
    assert launch_of(hardware, plan(tp=2)).env["OMP_NUM_THREADS"] == threads


def test_threads_are_left_alone_where_nothing_is_shared_or_known() -> None:
    assert "OMP_NUM_THREADS" not in launch_of(job(hardware={"host": Host(cores=96)}).hardware, plan()).env
    assert "OMP_NUM_THREADS" not in launch_of(job(hardware={"host": Host()}).hardware, plan(tp=2)).env


def test_processes_that_compute_on_processors_ask_for_huge_pages() -> None:
    """Memory that comes and goes with each step was given page by page: a third of some steps."""
    assert "GLIBC_TUNABLES" not in launch_of(job().hardware, plan()).env
    processors = job(device={"type": DeviceType.CPU}).hardware
    assert launch_of(processors, plan()).env["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_one_process_needs_no_backend() -> None:
    hardware = job().hardware
    assert launch_of(hardware, plan()).backend == ""
    two = launch_of(hardware, plan(tp=2))
    assert (two.backend, two.device) == ("cpu:gloo,cuda:nccl", "cuda")
