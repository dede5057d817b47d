from __future__ import annotations

from builders import case, codes

from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.rules.experts import expert_groups_do_not_tile
from parastrat.search import find_plan


def test_expert_groups_do_not_tile() -> None:
    assert "PS801" in codes(ep=8, dp_shard=4, experts=8)
    assert "PS801" not in codes(ep=8, dp_shard=4, tp=2, experts=8)
    assert "PS801" not in codes(ep=8, dp_shard=4, cp=2, experts=8)


def test_the_fix_names_groups_that_the_experts_divide_over() -> None:
    """Of 24 ranks it named 12 and 24, over which 64 experts do not divide."""
    hit = expert_groups_do_not_tile.hit(case(ep=16, dp_shard=24, experts=64))
    assert hit.fix == "use ep 8 or 4"


def test_experts_do_not_divide() -> None:
    assert "PS802" in codes(ep=8, dp_shard=8, experts=12)
    assert "PS802" not in codes(ep=8, dp_shard=8, experts=16)


def test_experts_want_sequence_parallel() -> None:
    assert "PS803" in codes(tp=2, experts=8)
    assert "PS803" not in codes(tp=2, experts=8, sequence_parallel=True)
    assert "PS803" not in codes(tp=1, experts=8)
    assert "PS803" not in codes(tp=2, experts=1)


def test_experts_leave_the_fast_domain() -> None:
    assert "PS804" in codes(ep=16, dp_shard=16, experts=16)
    assert "PS804" not in codes(ep=8, dp_shard=16, experts=16)


def test_expert_parallel_without_experts() -> None:
    assert "PS805" in codes(ep=2, dp_shard=2)
    assert "PS805" not in codes(ep=2, dp_shard=2, experts=8)
    assert "PS805" not in codes(dp_shard=2)


def test_without_experts_no_other_degree_is_asked_for() -> None:
    assert {"PS801", "PS805"} & codes(ep=8, dp_shard=4) == {"PS805"}


def test_context_chunks_are_uneven() -> None:
    assert "PS811" in codes(cp=4, sequence_length=1020)
    assert "PS811" not in codes(cp=4, sequence_length=1024)
    assert "PS811" not in codes(cp=1, sequence_length=1021)


def test_context_parallel_without_sequence() -> None:
    assert "PS813" in codes(cp=2, sequence_length=None)
    assert "PS813" not in codes(cp=1, sequence_length=None)
    assert "PS813" not in codes(cp=2)


def test_context_parallel_of_several_stacks() -> None:
    assert "PS816" in codes(cp=2, stacks=2)
    assert "PS816" not in codes(cp=1, stacks=2)
    assert "PS816" not in codes(cp=2)


def test_no_encoder_with_its_decoder_is_planned_with_context_parallelism() -> None:
    assert resolved(JobFlags(model="t5-large", on="dgx-h100:1")).facts.model.stacks == 2
    job = resolved(JobFlags(model="whisper-small", on="dgx-2:128"))
    found = find_plan(job.facts, model_at=job.model_at)
    assert found.chosen is not None
    assert all(case.plan.mesh.cp == 1 for case in (found.chosen, *found.alternatives))
