from __future__ import annotations

from typing import Any

import pytest

from parastrat.assess import columns_of
from parastrat.case import Case
from parastrat.cli.facts import resolved
from parastrat.cli.flags import FixedFlags, JobFlags
from parastrat.cli.given_plan import given_case
from parastrat.estimate import Verdict
from parastrat.finding import Severity
from parastrat.plan import Recompute, Shard
from parastrat.rules import findings_of
from parastrat.search import find_plan


def given(model: str, on: str, job: dict[str, Any] | None = None, **flags: Any) -> Case:
    return given_case(resolved(JobFlags(model=model, on=on, **(job or {}))).facts, FixedFlags(**flags))


def errors(case: Case) -> set[str]:
    found = findings_of(case, columns_of(case))
    return {finding.code for finding in found if finding.severity is Severity.ERROR}


@pytest.mark.parametrize("model", ["gpt2", "llama-3.1-8b", "llama-3.1-70b"])
def test_the_recommended_mesh_gives_the_recommended_plan(model: str) -> None:
    job = resolved(JobFlags(model=model, on="dgx-h100:8"))
    chosen = find_plan(job.facts, model_at=job.model_at).chosen
    assert chosen is not None
    mesh = chosen.plan.mesh
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
    fixed = FixedFlags(**{axis: getattr(mesh, axis) for axis in axes})
    assert given_case(job.facts, fixed).plan == chosen.plan


def test_what_is_given_is_kept() -> None:
    plan = given("llama-3.1-8b", "dgx-h100", micro_batch=2, recompute=Recompute.ATTENTION).plan
    assert (plan.micro_batch_size, plan.recompute) == (2, Recompute.ATTENTION)
    assert plan.global_batch_size == 512


def test_a_plan_that_does_not_fit_is_the_smallest() -> None:
    case = given("llama-3.1-70b", "dgx-h100", strategy="ddp")
    assert case.estimate.verdict is Verdict.DOES_NOT_FIT
    assert errors(case) == {"PS101"}
    assert case.plan.micro_batch_size == 1
    full = given("llama-3.1-70b", "dgx-h100", strategy="ddp", recompute=Recompute.FULL)
    assert case.estimate.memory.total <= full.estimate.memory.total


def test_a_plan_that_breaks_a_rule_is_estimated() -> None:
    case = given("gpt2", "dgx-h100", tp=8)
    assert "PS201" in errors(case)
    assert case.plan.mesh.tp == 8
    assert case.estimate.fits


def test_a_batch_that_does_not_divide_is_estimated() -> None:
    case = given("gpt2", "dgx-h100", {"global_batch": 12})
    assert errors(case) == {"PS402"}


def test_zero_stages_are_estimated() -> None:
    sizes = {}
    for strategy in ("ddp", "zero1", "zero2", "fsdp2"):
        case = given("llama-3.1-8b", "dgx-h100", strategy=strategy, micro_batch=1, recompute=Recompute.FULL)
        sizes[strategy] = case.estimate.memory.total
    assert sizes["ddp"] > sizes["zero1"] > sizes["zero2"] > sizes["fsdp2"]
    assert given("gpt2", "dgx-h100", strategy="zero1").plan.shard is Shard.OPTIMIZER


def test_one_device_of_several() -> None:
    case = given("gpt2", "dgx-h100:2", strategy="single")
    assert case.plan.mesh.world_size == 1
    assert case.hardware.world_size == 1
