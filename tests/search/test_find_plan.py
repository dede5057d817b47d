"""The search against brute force: every plan of small spaces, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.brute_force import brute_force, runnable

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.estimate import Verdict
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.profiles import load_hardware, load_stack
from parastrat.result import RungStatus, SearchResult
from parastrat.search import Constraints, find_plan
from parastrat.search.alone import single_device
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload


def facts(model: str, on: str, batch: int, length: int | None) -> Facts:
    source, stack = load_source(model), load_stack("torch")
    assert source is not None
    precision = Precision.BF16_MIXED
    hardware = load_hardware(on)
    return Facts(
        model=source.at(length, precision, stack.kernels),
        hardware=hardware,
        workload=Workload(
            global_batch_size=batch, sequence_length=length, optimizer=Optimizer.ADAMW, precision=precision
        ),
        stack=stack,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "on", "batch", "length"),
    [
        ("llama-3.1-8b", "dgx-h100:1", 8, 2048),
        ("gpt2-xl", "h100-sxm5x2:2", 4, 1024),
        ("resnet-50", "h100-sxm5x4:1", 32, None),
    ],
)
def test_the_best_of_every_rung_is_brute_forces(
    model: str, on: str, batch: int, length: int | None
) -> None:
    job = facts(model, on, batch, length)
    found = {
        rung.rung: rung.case.estimate.time.step
        for rung in find_plan(job).rungs
        if rung.case is not None and rung.case.estimate.verdict is Verdict.FITS and rung.rung > 0
    }
    expected = {rung: step for rung, step in brute_force(job).items() if rung > 0}
    assert found.keys() == expected.keys()
    for rung, step in expected.items():
        # of plans within 0.5 % the simplest is shown
        assert step <= found[rung] <= 1.005 * step


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return find_plan(facts("llama-3.1-70b", "dgx-h100:8", 128, 8192))


def test_the_chosen_plan_obeys_its_rules_and_fits(result: SearchResult) -> None:
    assert result.chosen is not None
    assert runnable(result.chosen)
    assert result.chosen.plan.mesh.world_size == 64
    assert result.chosen.plan.global_batch_size == 128
    assert [rung.status for rung in result.rungs].count(RungStatus.TAKEN) == 1
    assert [rung.rung for rung in result.rungs] == list(range(6))


def test_every_rejection_names_a_rule_with_this_jobs_numbers(result: SearchResult) -> None:
    assert result.considered > sum(rejection.count for rejection in result.rejected) > 0
    assert {"PS101"} <= {rejection.code for rejection in result.rejected}
    assert all(rejection.example for rejection in result.rejected)


def test_a_forced_strategy_is_kept_and_the_honest_advice_said() -> None:
    job = facts("gpt2", "dgx-h100:1", 64, 1024)
    forced = find_plan(job, Constraints(strategy="fsdp2"))
    assert forced.chosen is not None
    assert forced.unforced is not None
    assert (forced.chosen.plan.strategy, forced.forced_strategy) == ("fsdp2", "fsdp2")
    assert forced.unforced.plan.strategy == "ddp"


def test_fixed_axes_are_kept() -> None:
    fixed = Constraints(tp=4, pp=2, micro_batch_size=2, recompute=Recompute.FULL)
    chosen = find_plan(facts("llama-3.1-8b", "dgx-h100:2", 64, 4096), fixed).chosen
    assert chosen is not None
    plan = chosen.plan
    assert (plan.mesh.tp, plan.mesh.pp, plan.micro_batch_size, plan.recompute) == (4, 2, 2, Recompute.FULL)


def test_a_plain_loop_gets_data_axes_and_no_accumulation() -> None:
    chosen = find_plan(facts("gpt2", "dgx-h100:1", 64, 1024), Constraints(plain_loop=True)).chosen
    assert chosen is not None
    mesh = chosen.plan.mesh
    assert (mesh.pp, mesh.cp, mesh.tp, mesh.ep) == (1, 1, 1, 1)
    assert chosen.plan.gradient_accumulation_steps == 1


def test_when_nothing_fits_the_nearest_fits_say_what_to_change() -> None:
    job = facts("llama-3.1-405b", "dgx-h100:1", 8, 8192)
    source = load_source("llama-3.1-405b")
    assert source is not None
    result = find_plan(
        job, model_at=lambda length, precision: source.at(length, precision, job.stack.kernels)
    )
    assert result.chosen is None
    assert 1 <= len(result.nearest_fit) <= 5
    for fit in result.nearest_fit:
        assert fit.changes
        assert fit.case.estimate.fits
        assert fit.case == assess(fit.case.facts, fit.case.plan)
    assert any("nodes instead of 1" in change for fit in result.nearest_fit for change in fit.changes)


def test_one_device_of_several_is_advised_when_communication_is_slower() -> None:
    job = facts("gpt2", "cpu:1", 4, 64)
    hardware = load_hardware("cpu:1", ranks_per_node=2)
    chosen = find_plan(
        Facts(model=job.model, hardware=hardware, workload=job.workload, stack=job.stack)
    ).chosen
    assert chosen is not None
    assert chosen.plan.strategy == "single"
    # a single process has the cores of both
    assert chosen.hardware.device.sustained.fp32 == pytest.approx(2 * (hardware.device.sustained.fp32 or 0))


@pytest.mark.parametrize(
    ("model", "on", "batch", "length"),
    [
        ("gpt2", "dgx-h100:2", 64, 1024),
        ("llama-3.1-70b", "dgx-h100:1", 16, 4096),
        ("gpt2", "cpu:4", 16, 64),
    ],
)
def test_rung_0_is_what_one_device_would_be_advised(
    model: str, on: str, batch: int, length: int | None
) -> None:
    job = facts(model, on, batch, length)
    hardware = single_device(job.hardware)
    alone = Facts(model=job.model, hardware=hardware, workload=job.workload, stack=job.stack)
    several, one = find_plan(job).rungs[0].case, find_plan(alone).rungs[0].case
    assert one is not None
    assert one.plan.strategy == "single"
    assert several == one == assess(alone, one.plan)


def test_one_process_with_all_cores_has_the_share_that_was_measured() -> None:
    hardware = load_hardware("cpu:1", ranks_per_node=4)
    shares = replace(hardware.device, whole_products=0.9, whole_memory=0.75)
    alone, before = single_device(replace(hardware, device=shares)).device, hardware.device
    assert alone.memory_bytes_per_s == pytest.approx(3 * before.memory_bytes_per_s)
    assert alone.sustained.fp32 == pytest.approx(3.6 * (before.sustained.fp32 or 0))
    # where it was not measured it has all
    assert single_device(hardware).device.memory_bytes_per_s == 4 * before.memory_bytes_per_s


def test_prime_and_odd_worlds_are_searched() -> None:
    for on, world in (("h100-sxm5x7:1", 7), ("h100-sxm5x3:8", 24)):
        chosen = find_plan(facts("llama-3.1-8b", on, world, 2048)).chosen
        assert chosen is not None
        assert chosen.plan.mesh.world_size == world


def test_where_no_plan_exists_the_answer_says_so() -> None:
    """In a loop without accumulation no micro-batch gives one device, or any data axis, such a batch."""
    given = facts("llama-3.1-405b", "dgx-a100:1", 4096, 2048)
    # a model of which nothing was computed yet
    result = find_plan(replace(given, model=replace(given.model)), Constraints(plain_loop=True))
    assert result.chosen is None
    assert result.considered == 0
    assert {rung.status for rung in result.rungs} == {RungStatus.NOT_APPLICABLE}


def test_zero_bubble_schedules_are_searched_where_the_stack_has_them() -> None:
    # four micro-batches on four stages: 1F1B waits for three more
    job = facts("gpt-neox-20b", "8x-h200-nvl:1", 8, 2048)
    four = Constraints(pp=4, dp_replicate=1, dp_shard=2, cp=1, tp=1)
    found = find_plan(job, four).chosen
    assert found is not None
    assert found.plan.pp_schedule is PipelineSchedule.ZBV
    megatron = find_plan(replace(job, stack=load_stack("megatron-core")), four)
    assert megatron.chosen is not None
    assert megatron.chosen.plan.pp_schedule is PipelineSchedule.INTERLEAVED
    assert "PS717" not in {entry.code for entry in megatron.rejected}
    # torch makes a recomputed block again for each of its weights
    again = find_plan(job, replace(four, recompute=Recompute.FULL))
    assert again.chosen is not None
    assert again.chosen.plan.pp_schedule is PipelineSchedule.INTERLEAVED
    assert "PS715" in {entry.code for entry in again.rejected}


@pytest.mark.parametrize(
    ("model", "fixed", "code"),
    [
        ("gpt2", Constraints(ep=2), "PS805"),
        ("convnext-t", Constraints(tp=2), "PS223"),
        ("resnet-50", Constraints(cp=2), "PS813"),
    ],
)
def test_degrees_that_a_model_has_nothing_for_are_no_plan(
    model: str, fixed: Constraints, code: str
) -> None:
    result = find_plan(resolved(JobFlags(model=model, on="dgx-h100:1")).facts, fixed)
    assert result.chosen is None
    assert code in {rejection.code for rejection in result.rejected}


def test_a_sequence_of_one_token_has_plans() -> None:
    chosen = find_plan(resolved(JobFlags(model="gpt2", on="dgx-h100:1", seq_len=1)).facts).chosen
    assert chosen is not None
    assert chosen.plan.mesh.cp == 1
