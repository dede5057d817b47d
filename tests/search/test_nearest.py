"""Nearest fits: what to change, and what each change costs in speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from search.test_find_plan import facts

from parastrat.assess import Estimated, assess, estimated
from parastrat.case import Facts
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.columns import Columns
from parastrat.estimate import Verdict
from parastrat.hardware import Host
from parastrat.memory.host import host_of
from parastrat.plan import Offload, Recompute
from parastrat.result import NearestFit, SearchResult
from parastrat.search import Constraints, find_plan
from parastrat.search.bounded import searched
from parastrat.search.changes import Changed, halved
from parastrat.search.fastest import fastest_of, fastest_plan
from parastrat.search.obeying import obeying, offloading
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from parastrat.cost import BlockSeconds
    from parastrat.search.changes import ModelAt


def nothing_fits(on: str, fixed: Constraints | None = None, batch: int = 64) -> SearchResult:
    source, job = load_source("gpt2-xl"), facts("gpt2-xl", on, batch, 1024)
    assert source is not None
    result = find_plan(
        job, fixed, model_at=lambda length, precision: source.at(length, precision, job.stack.kernels)
    )
    assert result.chosen is None
    return result


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return nothing_fits("h100-sxm5x1:1", Constraints(micro_batch_size=64))


def named(result: SearchResult, words: str) -> NearestFit:
    (fit,) = [fit for fit in result.nearest_fit if words in fit.changes[0]]
    return fit


def test_the_change_that_costs_least_speed_a_device_comes_first(result: SearchResult) -> None:
    each = [fit.case.estimate.tokens_per_s_per_gpu for fit in result.nearest_fit]
    assert len(each) == 5
    assert each == sorted(each, reverse=True)
    # on the devices as they are that is the order of step times
    here = [fit.case for fit in result.nearest_fit if fit.case.plan.mesh.world_size == 1]
    steps = [case.estimate.time.step for case in here]
    assert len(steps) == 5
    assert steps == sorted(steps)


def test_costs_are_told_against_the_fastest_plan_if_memory_were_no_limit(result: SearchResult) -> None:
    aside = result.memory_aside
    assert aside is not None
    assert not aside.estimate.fits
    assert aside.plan.micro_batch_size == 64
    base = 64 * 1024 / aside.estimate.time.step
    for fit in result.nearest_fit:
        tokens = fit.case.plan.global_batch_size * (fit.case.workload.sequence_length or 0)
        assert tokens == 64 * 1024
        assert fit.speed == pytest.approx(tokens / fit.case.estimate.time.step / base)
        assert fit.speed_each == pytest.approx(fit.speed / fit.case.plan.mesh.world_size)


def test_if_memory_were_no_limit_no_plan_would_be_faster() -> None:
    source, job = load_source("gpt2-xl"), facts("gpt2-xl", "8x-rtx-4090:1", 64, 1024)
    assert source is not None
    short = replace(job.hardware.device, usable_memory_bytes=3 * 2**30)
    job = replace(job, hardware=replace(job.hardware, device=short))
    result = find_plan(
        job, model_at=lambda length, precision: source.at(length, precision, job.stack.kernels)
    )
    assert result.memory_aside is not None
    ample = replace(job, hardware=replace(job.hardware, device=replace(short, usable_memory_bytes=2**60)))
    best = find_plan(ample).fastest
    assert best is not None
    assert result.memory_aside.estimate.time.step <= 1.005 * best.estimate.time.step
    assert result.memory_aside.plan.recompute is Recompute.NONE


def test_states_of_eight_bits_are_tried(result: SearchResult) -> None:
    fit = named(result, "optimizer adamw-8bit instead of adamw")
    assert fit.case.workload.optimizer is Optimizer.ADAMW_8BIT
    assert fit.case.estimate.fits


def test_flags_that_may_go_are_named(result: SearchResult) -> None:
    assert named(result, "drop the fixed flags").case.plan.micro_batch_size < 64


def test_offloading_is_no_way_where_the_host_has_too_little() -> None:
    source, job = load_source("gpt2-xl"), facts("gpt2-xl", "dgx-h100:1", 64, 1024)
    assert source is not None
    device = replace(job.hardware.device, usable_memory_bytes=3 * 2**30)
    ample = replace(job, hardware=replace(job.hardware, device=device))
    small = replace(ample, hardware=replace(ample.hardware, host=Host(memory_bytes=17 * 2**30)))
    ways = [[fit.changes[0] for fit in find_plan(each).nearest_fit] for each in (ample, small)]
    assert [any("offload" in change for change in changes) for changes in ways] == [True, False]


def test_no_plan_is_recommended_of_which_the_host_cannot_hold_what_is_offloaded() -> None:
    job, fixed = facts("gpt2-xl", "dgx-h100:1", 64, 1024), Constraints(offload=Offload.PARAMETERS)
    chosen = find_plan(job, fixed).chosen
    assert chosen is not None
    needed = host_of(job, chosen.plan)["host_needed"]
    steps = []
    for memory in (needed, needed - 1):
        there = replace(
            job, hardware=replace(job.hardware, host=replace(job.hardware.host, memory_bytes=memory))
        )
        result = find_plan(there, fixed)
        assert any(entry.code == "PS106" for entry in result.rejected)
        assert result.chosen is None or host_of(there, result.chosen.plan)["host_needed"] <= memory
        steps.append(None if result.chosen is None else result.chosen.estimate.time.step)
    assert steps[0] == chosen.estimate.time.step != steps[1]


def test_an_optimizer_that_needs_whole_parameters_may_be_changed() -> None:
    job = facts("gpt2-xl", "h100-sxm5x8:1", 64, 1024)
    device = replace(job.hardware.device, usable_memory_bytes=10 * 2**30)
    workload = replace(job.workload, optimizer=Optimizer.ADAFACTOR)
    short = replace(job, hardware=replace(job.hardware, device=device), workload=workload)
    fixed = Constraints(pp=1)
    result = find_plan(short, fixed)
    assert result.chosen is None
    assert any(entry.code == "PS394" for entry in result.rejected)
    fit = named(result, "optimizer adamw instead of adafactor")
    assert fit.case.plan.mesh.dp_shard * fit.case.plan.mesh.tp > 1
    # of other stacks' shards nothing such is known
    other = replace(short, stack=replace(short.stack, dtensors=False))
    assert find_plan(other, fixed).chosen is not None


SHORT_OF_MEMORY = [
    ("gpt2-xl", "8x-rtx-4090:1", 4 * 2**30),
    ("gpt2-xl", "8x-rtx-4090:8", 3 * 2**29),
    ("mixtral-8x7b", "dgx-h100:1", 60 * 2**30),
    ("mixtral-8x7b", "dgx-h100:8", 8 * 2**30),
]


def short_of_memory(model: str, on: str, memory: int) -> Facts:
    job = facts(model, on, 256, 1024)
    device = replace(job.hardware.device, usable_memory_bytes=memory)
    return replace(job, hardware=replace(job.hardware, device=device))


@pytest.mark.parametrize("job", SHORT_OF_MEMORY)
def test_changes_of_memory_alone_find_the_plan_of_their_own_search(
    job: tuple[str, str, int],
) -> None:
    """The rows of the first search serve them."""
    given = short_of_memory(*job)
    allowed = obeying(given, Constraints())
    for offload in (Offload.OPTIMIZER, Offload.PARAMETERS):
        fixed = Constraints(offload=offload)
        plan = fastest_of(searched(given, fixed, offloading(allowed, offload)))
        assert plan == fastest_plan(given, fixed)
        assert plan is None or plan.offload is offload
    small = replace(given, workload=replace(given.workload, optimizer=Optimizer.ADAMW_8BIT))
    assert fastest_of(searched(small, Constraints(), allowed)) == fastest_plan(small, Constraints())


@pytest.mark.parametrize("job", SHORT_OF_MEMORY)
@pytest.mark.parametrize("fixed", [Constraints(), Constraints(recompute=Recompute.FULL, tp=2)])
def test_without_a_limit_the_plan_is_that_of_devices_with_any_memory(
    job: tuple[str, str, int], fixed: Constraints
) -> None:
    given, ample = short_of_memory(*job), short_of_memory(*job[:2], 2**60)
    aside = fastest_of(replace(searched(given, fixed, obeying(given, fixed)), limited=False))
    assert aside == fastest_plan(ample, replace(fixed, recompute=fixed.recompute or Recompute.NONE))


def test_rules_that_read_where_states_are_kept_are_asked_again() -> None:
    given = facts("gpt2-xl", "cpu:1", 64, 1024)
    allowed = obeying(given, Constraints())
    changed = offloading(allowed, Offload.OPTIMIZER)
    assert len(allowed.columns.pp)
    assert not len(changed.columns.pp)
    assert [entry.rule.code for entry in changed.rejected[len(allowed.rejected) :]] == ["PS217"]


#: of a batch that was stated, which is said to change
_SHORTER = "sequences of 256 tokens instead of 1,024, and a global batch of 256 instead of 64"


@pytest.mark.parametrize(
    ("gib", "changes"),
    [
        (20, ("optimizer adamw-8bit instead of adamw",)),
        (19, ("optimizer adamw-8bit instead of adamw", _SHORTER)),
        (18, None),
    ],
)
def test_changes_are_made_together_where_none_alone_is_enough(
    gib: int, changes: tuple[str, ...] | None
) -> None:
    """On one device with neither a network nor a way to its host."""
    source, job = load_source("gpt2-xl"), facts("gpt2-xl", "h100-sxm5x1:1", 64, 1024)
    assert source is not None
    device = replace(job.hardware.device, host_bytes_per_s=None, usable_memory_bytes=gib * 2**30)
    job = replace(job, hardware=replace(job.hardware, scale_out=None, device=device))
    result = find_plan(
        job, model_at=lambda length, precision: source.at(length, precision, job.stack.kernels)
    )
    assert [fit.changes for fit in result.nearest_fit] == ([] if changes is None else [changes])
    for fit in result.nearest_fit:
        assert fit.case.estimate.fits
        assert fit.case.workload.optimizer is Optimizer.ADAMW_8BIT
        assert fit.case.workload.global_batch_size * (fit.case.workload.sequence_length or 0) == 64 * 1024


def test_plans_that_fit_without_the_margin_alone_are_found() -> None:
    """Every policy of many rows, of which none is likely to leave the margin free."""
    job = facts("deepseek-v2", "8x-mi355x:2", 9216, 4096)
    plan, chosen = fastest_plan(job, Constraints()), find_plan(job).chosen
    assert chosen is not None
    assert chosen.estimate.memory.verdict is Verdict.TIGHT
    assert plan == chosen.plan


def answer(model: str, on: str, **flags: Any) -> SearchResult:
    job = resolved(JobFlags(model=model, on=on, **flags))
    return find_plan(job.facts, model_at=job.model_at)


def test_a_format_that_devices_lack_is_changed() -> None:
    result = answer("gpt2-xl", "dgx-a100:1", precision=Precision.FP8)
    assert result.chosen is None
    (fit,) = result.nearest_fit
    assert fit.changes == ("precision bf16-mixed instead of fp8",)
    assert fit.case.plan.precision is Precision.BF16_MIXED
    assert fit.case.estimate.fits


def test_nodes_that_no_batch_divides_by_may_be_too_many() -> None:
    result = answer("llama-3-70b", "dgx-h100:1000", global_batch=256)
    assert result.chosen is None
    assert ("512 nodes instead of 1000",) in [fit.changes for fit in result.nearest_fit]


def test_where_nothing_else_helps_nodes_are_doubled_on() -> None:
    result = answer("megatron-18.4b", "summit:1", global_batch=4096)
    assert [fit.changes for fit in result.nearest_fit] == [("128 nodes instead of 1",)]


@pytest.mark.parametrize("recompute", Recompute)
def test_a_policy_may_be_settled_where_nothing_fits(recompute: Recompute) -> None:
    """Rules that read it beside batches are asked again where states are kept elsewhere."""
    job = resolved(JobFlags(model="llama-3.1-405b", on="dgx-h100:1"))
    result = find_plan(job.facts, Constraints(recompute=recompute), model_at=job.model_at)
    assert result.chosen is None
    assert all(fit.case.estimate.fits for fit in result.nearest_fit)


def test_a_sample_for_each_device_is_a_way_to_fit() -> None:
    fixed = Constraints(tp=1, pp=1, cp=1)
    result = find_plan(facts("llama-3.1-8b", "dgx-h100:1", 2, 4096), fixed)
    changes = [fit.changes for fit in result.nearest_fit]
    assert ("a global batch of 8 instead of 2",) in changes
    # what has a sample for each has nothing to gain by more
    enough = find_plan(facts("llama-3.1-8b", "dgx-h100:1", 8, 65536), fixed)
    assert not any("global batch of" in fit.changes[0] for fit in enough.nearest_fit)


def test_of_plans_that_hosts_cannot_hold_the_nearest_fits_the_devices() -> None:
    """Of 39 GiB that the processes and all states take of one host; one process takes 25."""
    job, fixed = facts("gpt2-xl", "dgx-h100:1", 64, 1024), Constraints(offload=Offload.PARAMETERS)
    small = replace(job, hardware=replace(job.hardware, host=Host(memory_bytes=20 * 2**30)))
    result = find_plan(small, fixed)
    assert result.chosen is None
    sharded = result.rungs[2]
    assert sharded.case is not None
    assert sharded.case.estimate.fits
    assert host_of(small, sharded.case.plan)["host_needed"] == pytest.approx(39 * 2**30, rel=0.01)
    assert sharded.reason.startswith("a host needs ")
    assert sharded.reason.endswith(" of its 20 GiB")
    # two copies of the states need more
    assert sharded.case.plan.mesh.dp_replicate == 1


@pytest.mark.parametrize(
    ("model", "on"),
    [("gpt3-13b", "dgx-1v-16:1"), ("llama-3.1-405b", "dgx-h100:2"), ("mixtral-8x7b", "8x-rtx-4090:1")],
)
def test_plans_of_a_job_and_of_what_would_fit_are_estimated_at_once_as_one_by_one(
    model: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one model, batch and optimizer, on whatever number of nodes."""
    estimates: list[Facts] = []

    def counted(facts: Facts, columns: Columns, blocks: BlockSeconds | None = None) -> Estimated:
        estimates.append(facts)
        return estimated(facts, columns, blocks)

    with monkeypatch.context() as patched:
        patched.setattr("parastrat.search.alone.estimated", counted)
        patched.setattr("parastrat.assess.estimated", counted)
        result = answer(model, on)
    assert result.chosen is None
    kinds = {(id(job.model), job.workload.optimizer) for job in estimates}
    assert len(kinds) == len(estimates)
    shown = [fit.case for fit in result.nearest_fit] + [rung.case for rung in result.rungs if rung.case]
    assert {case.hardware.num_nodes for case in shown} > {result.facts.hardware.num_nodes}
    for case in filter(None, (*shown, result.memory_aside)):
        assert case == assess(case.facts, case.plan)


def with_lengths(model: str, on: str, monkeypatch: pytest.MonkeyPatch) -> tuple[SearchResult, list[int]]:
    """Return an answer, and how often sequences were halved for it, one try after the other."""
    tried: list[int] = []

    def recorded(job: Changed, model_at: ModelAt, times: int) -> Changed:
        tried.append(times)
        return halved(job, model_at, times)

    monkeypatch.setattr("parastrat.search.shorter.halved", recorded)
    return answer(model, on), tried


@pytest.mark.parametrize(
    ("model", "on", "lengths"),
    # of the latter not even the states fit
    [("gpt3-13b", "8x-rtx-5090:1", [1, 6]), ("nemotron-3-ultra", "dgx-1v-16:1", [])],
)
def test_that_no_length_fits_is_told_by_the_shortest_or_by_the_states(
    model: str, on: str, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, tried = with_lengths(model, on, monkeypatch)
    assert result.chosen is None
    assert not any(fit.changes[0].startswith("sequences") for fit in result.nearest_fit)
    assert tried == lengths


@pytest.mark.parametrize(
    ("model", "on", "lengths"),
    [
        ("nemotron-3-super", "g6e.48xlarge:8", [1]),
        ("nemotron-h-56b", "dgx-1v:8", [4, 5]),
        ("nemotron-3.5-lightning", "g5.12xlarge:8", [2, 3]),
    ],
)
def test_what_the_plan_next_to_fitting_needs_tells_which_length_is_the_longest(
    model: str, on: str, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, tried = with_lengths(model, on, monkeypatch)
    assert any(fit.changes[0].startswith("sequences") for fit in result.nearest_fit)
    # the last names the change
    assert tried[:-1] == lengths
