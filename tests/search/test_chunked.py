"""What a loss in chunks would give."""

from __future__ import annotations

from dataclasses import replace

from search.test_find_plan import facts

from parastrat.profiles import load_stack
from parastrat.search import Constraints, find_plan
from parastrat.search.changes import Changed, loss_in_chunks
from parastrat.search.otherwise.chunked import chunked_loss

TOLERANCE = 0.05


def test_it_is_told_where_it_is_faster() -> None:
    job = facts("llama-3.2-1b", "rtx-4090x2:1", 512, 8192)
    chosen = find_plan(job, tolerance=TOLERANCE).chosen
    other = chunked_loss(job, Constraints(), chosen, TOLERANCE)
    assert chosen is not None
    assert other is not None
    assert other.workload.loss_chunks == 8
    assert (1 + TOLERANCE) * other.estimate.time.step < chosen.estimate.time.step
    assert other.plan.mesh.tp == other.plan.mesh.pp == 1


def test_it_is_told_where_it_is_simpler() -> None:
    job = facts("llama-3.1-8b", "dgx-a100-40:1", 512, 8192)
    chosen = find_plan(job, tolerance=TOLERANCE).chosen
    other = chunked_loss(job, Constraints(), chosen, TOLERANCE)
    assert chosen is not None
    assert other is not None
    assert (chosen.plan.strategy, other.plan.strategy) == ("fsdp2+tp", "fsdp2")


def test_nothing_is_said_where_it_gains_nothing() -> None:
    small = facts("gpt2", "dgx-h100:1", 512, 1024)
    assert chunked_loss(small, Constraints(), find_plan(small).chosen, TOLERANCE) is None
    assert chunked_loss(small, Constraints(), None, TOLERANCE) is None
    assert chunked_loss(small, Constraints(tp=2), find_plan(small).chosen, TOLERANCE) is None
    images = facts("resnet-50", "dgx-h100:1", 512, None)
    assert chunked_loss(images, Constraints(), find_plan(images).chosen, TOLERANCE) is None


def test_a_stack_with_kernels_of_its_own_has_a_loss_of_its_own() -> None:
    job = replace(facts("llama-3.2-1b", "rtx-4090x2:1", 512, 8192), stack=load_stack("megatron-core"))
    assert loss_in_chunks(Changed(changes=(), facts=job)) is None


def test_it_is_a_way_to_fit() -> None:
    job, fixed = facts("llama-3.1-8b", "dgx-a100-40:1", 512, 8192), Constraints(tp=1, pp=1, cp=1)
    result = find_plan(job, fixed)
    assert result.chosen is None
    (fit,) = (fit for fit in result.nearest_fit if fit.changes == ("the loss in 8 chunks of tokens",))
    assert fit.case.workload.loss_chunks == 8
    there = loss_in_chunks(Changed(changes=(), facts=job))
    assert there is not None
    assert loss_in_chunks(there) is None
