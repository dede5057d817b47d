"""The recommendation at other rates of a network that nobody measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.test_find_plan import facts

from parastrat.case import Facts
from parastrat.hardware import FigureKind, Provenance
from parastrat.result import Doubt, NetworkDoubt
from parastrat.search import Constraints, find_plan
from parastrat.search.otherwise.doubted import network_doubt

TOLERANCE = 0.05


def doubted(job: Facts, fixed: Constraints | None = None) -> NetworkDoubt | None:
    fixed = fixed or Constraints()
    return network_doubt(job, fixed, find_plan(job, fixed, tolerance=TOLERANCE).chosen, TOLERANCE)


def with_rate(job: Facts, factor: float, kind: FigureKind | None = None) -> Facts:
    link = job.hardware.scale_out
    assert link is not None
    kinds = (
        link.provenance if kind is None else (Provenance(field="bytes_per_s", kind=kind, source="here"),)
    )
    moved = replace(link, bytes_per_s=factor * link.bytes_per_s, provenance=kinds)
    return replace(job, hardware=replace(job.hardware, scale_out=moved))


def test_the_search_is_repeated_at_half_and_double_of_a_derived_rate() -> None:
    job = facts("llama-3.1-70b", "dgx-a100:8", 1024, 4096)
    doubt = doubted(job)
    assert doubt is not None
    assert doubt.kind is FigureKind.DERIVED
    assert [each.factor for each in doubt.doubts] == [0.5, 2.0]
    for each in doubt.doubts:
        there = with_rate(job, each.factor)
        expected = find_plan(there, tolerance=TOLERANCE).chosen
        assert expected is not None
        assert (each.other.plan, each.other.estimate) == (expected.plan, expected.estimate)
        # the same plan as here, with the time that it takes there
        assert each.chosen.facts.hardware == there.hardware
    half, double = (each.chosen.estimate.time.step for each in doubt.doubts)
    assert half > double


def test_a_flip_is_a_plan_that_is_slower_there_or_a_simpler_one() -> None:
    slower, stands = _of("qwen3-32b", "dgx-a100:8", 512, 8192)
    assert (slower.flips, slower.simpler) == (True, False)
    assert slower.chosen.estimate.time.step > 1.05 * slower.other.estimate.time.step
    # another mesh, which is about as fast
    assert stands.other.plan.mesh != stands.chosen.plan.mesh
    assert not stands.flips
    same, simpler = _of("mixtral-8x7b", "dgx-a100:8", 128, 4096)
    assert not same.flips
    assert (simpler.flips, simpler.simpler) == (True, True)
    assert simpler.other.plan.rung < simpler.chosen.plan.rung


def _of(model: str, on: str, batch: int, length: int) -> tuple[Doubt, ...]:
    doubt = doubted(facts(model, on, batch, length))
    assert doubt is not None
    return doubt.doubts


def test_where_it_is_no_question_nothing_is_asked() -> None:
    several = facts("llama-3.1-8b", "dgx-h100:2", 64, 4096)
    assert doubted(with_rate(several, 1.0, FigureKind.MEASURED)) is None
    assert doubted(facts("llama-3.1-8b", "dgx-h100:1", 64, 4096)) is None
    # nothing fits
    assert doubted(facts("llama-3.1-405b", "h100-sxm5x1:2", 8, 8192)) is None


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_what_is_fixed_stays(factor: float) -> None:
    doubt = doubted(facts("llama-3.1-8b", "dgx-h100:2", 64, 4096), Constraints(tp=4))
    assert doubt is not None
    (other,) = (each.other.plan for each in doubt.doubts if each.factor == factor)
    assert other.mesh.tp == 4
