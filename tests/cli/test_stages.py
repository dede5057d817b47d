"""A pipeline's schedule and virtual stages as flags fix them."""

from __future__ import annotations

import pytest
from cli.conftest import Typed

JOB = ("megatron-7.5b", "--on", "dgx-a100:8")


@pytest.mark.parametrize(
    ("words", "schedule", "stages"),
    [
        (("--schedule", "1F1B"), "1F1B", 1),
        (("--schedule", "Interleaved1F1B"), "Interleaved1F1B", None),
        (("--schedule", "ZBVZeroBubble"), "ZBVZeroBubble", 2),
        (("--virtual-stages", 3), None, 3),
        (("--schedule", "InterleavedZeroBubble", "--virtual-stages", 2), "InterleavedZeroBubble", 2),
    ],
)
@pytest.mark.parametrize("command", [("recommend",), ("estimate", "--pp", 4)])
def test_plans_have_what_was_asked_for(
    typed: Typed, command: tuple[object, ...], words: tuple[object, ...], schedule: str | None, stages: int
) -> None:
    name, *others = command
    plan = typed(name, *JOB, *others, *words, "--json").answer["plan"]
    assert plan["pp"] > 1
    assert schedule in (None, plan["pp_schedule"])
    assert stages in (None, plan["virtual_stages"])
    assert plan["virtual_stages"] > 1 or schedule == "1F1B"


def test_one_stage_of_a_rank_leaves_plans_without_a_pipeline(typed: Typed) -> None:
    free = typed("recommend", *JOB, "--json").answer
    fixed = typed("recommend", *JOB, "--virtual-stages", 1, "--json").answer
    assert fixed["plan"] == free["plan"]
    shown = [rung["plan"] for rung in (*fixed["rungs"], *fixed["alternatives"]) if rung.get("plan")]
    assert {plan["virtual_stages"] for plan in shown} == {1}
    assert {1} < {plan["pp"] for plan in shown}


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            ("--schedule", "GPipe"),
            "--schedule GPipe is not searched",
            "choose one of 1F1B, Interleaved",
        ),
        (
            ("--schedule", "1F1B", "--virtual-stages", 2),
            "--schedule 1F1B --virtual-stages 2: no such schedule",
            "1F1B goes with --virtual-stages 1",
        ),
        (("--schedule", "ZBVZeroBubble", "--virtual-stages", 4), "no such schedule", "--virtual-stages 2"),
        (("--pp", 1, "--virtual-stages", 2), "is of a pipeline, and the plan has none", "fix --pp"),
        (("--on", "h100-sxm5x1", "--schedule", "1F1B"), "none divides 1 device", "fix --pp"),
    ],
)
def test_what_does_not_go_together_is_refused(
    typed: Typed, words: tuple[object, ...], said: str, hint: str
) -> None:
    done = typed("recommend", *JOB, *words)
    assert done.code == 2
    assert said in done.err
    assert hint in done.err


def test_estimate_needs_a_pipeline_for_a_schedule(typed: Typed) -> None:
    done = typed("estimate", *JOB, "--schedule", "1F1B")
    assert done.code == 2
    assert "--schedule 1F1B is of a pipeline, and the plan has none" in done.err


def test_the_command_that_writes_the_plan_fixes_it_too(typed: Typed) -> None:
    page = " ".join(typed("recommend", *JOB, "--schedule", "Interleaved1F1B").out.split())
    assert "fixed: --schedule Interleaved1F1B" in page
    assert "--schedule Interleaved1F1B -o plan.toml" in page
