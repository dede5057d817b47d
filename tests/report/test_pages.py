"""Whole reports: as they stand in ``golden``, and what holds on every screen.

Renewed by ``PARASTRAT_UPDATE_GOLDENS=1 pytest tests/report``; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import case
from report.answers import (
    CONTEXT,
    HEADS,
    LOGITS,
    OUT_OF_MEMORY,
    ddp,
    five_way,
    forced,
    fsdp2,
    nothing,
    pipelined,
    rooms,
    taken,
    timed,
)

from parastrat.case import Case
from parastrat.dry_run import DryRun
from parastrat.hardware import Host
from parastrat.report.comparison import comparison_text
from parastrat.report.estimation import estimate_text
from parastrat.report.recommendation import recommendation_text
from parastrat.report.text import Paper
from parastrat.report.verification import Verification, verification_text
from parastrat.result import Applied, RungStatus

GOLDEN = Path(__file__).parent / "golden"
ESCAPE = re.compile(r"\033\[[0-9;]*m")

PAGES: dict[str, Callable[[Paper], str]] = {
    "recommend": lambda paper: recommendation_text(taken(), CONTEXT, paper),
    "recommend-front": lambda paper: recommendation_text(
        replace(taken(), front=(pipelined(), fsdp2())), CONTEXT, paper
    ),
    "recommend-nothing-fits": lambda paper: recommendation_text(nothing(), CONTEXT, paper),
    "recommend-forced": lambda paper: recommendation_text(forced(), CONTEXT, paper),
    "estimate-does-not-fit": lambda paper: estimate_text(ddp(), (OUT_OF_MEMORY,), CONTEXT, paper),
    "estimate-broken": lambda paper: estimate_text(five_way(), (HEADS, LOGITS), CONTEXT, paper),
    "estimate-phases": lambda paper: estimate_text(pipelined(), (), CONTEXT, paper, rooms()),
    "why-not": lambda paper: comparison_text((pipelined(), (LOGITS,)), taken(), CONTEXT, paper),
}

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_pages_read_as_reviewed(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = PAGES[name](Paper())
    if os.environ.get("PARASTRAT_UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@every_page
@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_longer_than_the_screen(page: Callable[[Paper], str], width: int) -> None:
    longest = max(page(Paper(width=width)).splitlines(), key=len)
    assert len(longest) <= width, longest


@every_page
def test_colour_changes_nothing_but_colour(page: Callable[[Paper], str]) -> None:
    plain, coloured = page(Paper()), page(Paper(colour=True))
    assert "\033" not in plain
    assert ESCAPE.search(coloured)
    stripped = [row.rstrip() for row in ESCAPE.sub("", coloured).splitlines()]
    assert stripped == plain.splitlines()


@every_page
def test_a_screen_without_blocks_gets_ascii(page: Callable[[Paper], str]) -> None:
    text = page(Paper(blocks=False))
    assert text.isascii()
    assert "?" not in text
    assert "#" in text or "Memory" not in text


def test_what_ascii_lacks_is_replaced() -> None:
    finding = replace(LOGITS, message="9 GiB \u2265 half of the card")
    page = estimate_text(fsdp2(), (finding,), CONTEXT, Paper(blocks=False))
    assert "9 GiB ? half of the card" in page


def test_the_first_line_is_the_verdict() -> None:
    page = recommendation_text(taken(), CONTEXT, Paper(width=200))
    assert page.splitlines()[0] == (
        "Train small with FSDP2 over 16 GPUs: 40.0 of 78.0 GiB a GPU, 1.22 s a step, 50 % MFU."
    )
    assert page.splitlines()[1].startswith("assumed: sequence length 1,024, precision bf16-mixed")
    assert "given: global batch 64 sequences" in page


def test_a_tie_is_said_with_how_to_settle_it() -> None:
    page = recommendation_text(taken(), CONTEXT, Paper(width=200))
    assert "may be a tie" in page
    assert "parastrat estimate small --on cluster:2 --global-batch 64 --pp 4" in page
    apart = replace(taken(), fastest=fsdp2())
    assert "tie" not in recommendation_text(apart, CONTEXT, Paper())


def test_a_forced_strategy_gets_the_honest_advice() -> None:
    page = recommendation_text(forced(), CONTEXT, Paper(width=200))
    assert "Without --strategy fsdp2+tp+pp the advice is FSDP2 (dp_shard 16): 40.0 of 78.0 GiB" in page
    assert "fsdp2+tp+pp is not slower, but stands on a higher rung." in page


def test_a_forced_strategy_that_is_slower_is_told_by_how_much() -> None:
    slow = replace(forced(), chosen=fsdp2(), unforced=pipelined(), forced_strategy="fsdp2")
    assert "fsdp2 takes 1.03 times as long." in recommendation_text(slow, CONTEXT, Paper(width=200))


def test_a_forced_strategy_that_is_the_advice_anyway_is_not_remarked_on() -> None:
    agreed = replace(forced(), chosen=fsdp2(), unforced=fsdp2(), forced_strategy="fsdp2")
    assert "Without --strategy" not in recommendation_text(agreed, CONTEXT, Paper())


def test_a_forced_strategy_that_does_not_fit_still_gets_the_advice() -> None:
    none = replace(nothing(), unforced=fsdp2(), forced_strategy="ddp")
    page = recommendation_text(none, CONTEXT, Paper(width=200))
    assert "No ddp plan for small fits" in page
    assert "Without --strategy ddp the advice is FSDP2" in page


def test_a_forced_ladder_shows_the_rungs_that_have_such_a_plan() -> None:
    page = recommendation_text(forced(), CONTEXT, Paper())
    assert "another plan was asked for" not in page
    assert "the other rungs have no plan that is fsdp2+tp+pp" in page
    assert "another plan was asked for" in recommendation_text(taken(), CONTEXT, Paper())


def test_a_single_device_leaves_the_others_idle() -> None:
    alone = replace(fsdp2(), plan=replace(fsdp2().plan, mesh=type(fsdp2().plan.mesh)()))
    page = recommendation_text(replace(taken(), chosen=alone), CONTEXT, Paper())
    assert page.startswith("Train small on one GPU, leave 15 idle:")


def test_no_is_never_bare() -> None:
    page = recommendation_text(nothing(), CONTEXT, Paper())
    assert page.startswith("No plan for small fits on 16 GPUs: the nearest needs 166 of 78.0 GiB a GPU.")
    assert "4 nodes instead of 2" in page
    without = recommendation_text(replace(nothing(), nearest_fit=()), CONTEXT, Paper())
    assert "No change that was tried makes it fit" in without


def test_what_rules_leave_out_of_all_devices_lacks_no_memory() -> None:
    alone = replace(ddp(), plan=replace(ddp().plan, mesh=type(ddp().plan.mesh)()))
    (lowest,) = nothing().rungs
    page = recommendation_text(replace(nothing(), rungs=(replace(lowest, case=alone),)), CONTEXT, Paper())
    said = "No plan for small can run on 16 GPUs, and one alone needs 166 of 78.0 GiB a GPU."
    assert " ".join(page.split()).startswith(said)


def test_findings_come_errors_first() -> None:
    page = estimate_text(five_way(), (LOGITS, HEADS), CONTEXT, Paper())
    assert page.index("PS201 error") < page.index("PS103 info")
    assert "cannot run, it breaks 1 rule" in page


def beside(other: Case) -> str:
    """Return the page of the recommendation with another plan on the highest rung."""
    result = taken()
    *lower, highest = result.rungs
    rungs = (*lower, replace(highest, case=other))
    page = recommendation_text(replace(result, rungs=rungs, fastest=result.chosen), CONTEXT, Paper())
    return " ".join(page.split())


@pytest.mark.parametrize(("times", "said"), [(1.0001, "as fast"), (1.001, "0.1 % more")])
def test_what_would_be_more_by_nothing_is_as_fast(times: float, said: str) -> None:
    time = pipelined().estimate.time
    other = timed(pipelined(), compute=times * fsdp2().estimate.time.step - (time.step - time.compute))
    assert re.search(rf"the next best rung is [^:]+: [\d.]+ m?s, {said}", beside(other))


def test_a_higher_rung_that_is_less_by_nothing_is_as_fast() -> None:
    result, chosen = taken(), fsdp2()
    for times, said in ((0.9999, "is as fast, on a higher rung"), (0.999, "0.1 % less, on a higher rung")):
        time = pipelined().estimate.time
        other = timed(pipelined(), compute=times * chosen.estimate.time.step - (time.step - time.compute))
        page = recommendation_text(replace(result, chosen=chosen, fastest=other), CONTEXT, Paper())
        assert said in " ".join(page.split())
        # nothing is won by measuring which of two of one pace is faster
        assert ("may be a tie: the 80 %" in " ".join(page.split())) is (times == 0.999)


@pytest.mark.parametrize(("times", "needed"), [(1.074, "--tolerance 0.08"), (1.5, None)])
def test_a_lower_rung_that_may_tie_is_told_with_what_takes_it(times: float, needed: str | None) -> None:
    """A higher rung for 7 %, where the ladder says "maybe a tie" of a lower one."""
    fastest, result = pipelined(), taken()
    time = fsdp2().estimate.time
    lower = timed(fsdp2(), compute=times * fastest.estimate.time.step - (time.step - time.compute))
    rungs = tuple(
        replace(rung, status=RungStatus.TAKEN)
        if rung.rung == 5
        else replace(rung, status=RungStatus.SLOWER, case=lower)
        if rung.rung == 2
        else rung
        for rung in result.rungs
    )
    answer = replace(result, chosen=fastest, fastest=fastest, rungs=rungs, alternatives=())
    page = " ".join(recommendation_text(answer, CONTEXT, Paper()).split())
    assert ("is simpler and may be as fast" in page) is (needed is not None)
    assert needed is None or f"within 5.0 % of the fastest, this one with {needed}" in page


def test_a_plan_that_is_applied_in_the_same_time_is_as_fast() -> None:
    same = replace(taken(), applied=Applied(case=fsdp2()))
    page = " ".join(recommendation_text(same, CONTEXT, Paper()).split())
    assert re.search(r"auto_parallelize itself applies [^:]+: [\d.]+ m?s, as fast \(--applied\)", page)


def test_a_dry_run_of_one_rank_names_no_mesh() -> None:
    def first(made: Case) -> str:
        ran = DryRun(
            rank=0,
            micro_batches=1,
            parameters=1,
            after_forward=1,
            forward_backward=1,
            optimizer_step=1,
            reserved=None,
            traffic=(),
            caveats=(),
            seconds=0.0,
        )
        found = Verification(case=made, found=(ran,), findings=(), device=None)
        return " ".join(verification_text(found, Paper()).split())

    assert "rank 0 of 1, one step" in first(case())
    assert "rank 0 of 2 (dp_replicate 2), one step" in first(case(dp_replicate=2))


def test_what_hosts_cannot_hold_is_no_next_best_rung() -> None:
    slower = timed(pipelined(), compute=2.0)
    assert "next best rung" in beside(slower)
    small = replace(slower.hardware, host=Host(memory_bytes=1))
    assert "next best rung" not in beside(replace(slower, hardware=small))


def test_a_tight_plan_that_is_faster_is_not_said_to_take_more() -> None:
    # the faster one is not among those that may be taken
    passed_over = replace(taken(), fastest=taken().chosen)
    page = " ".join(recommendation_text(passed_over, CONTEXT, Paper()).split())
    assert "less, but is tight: what is spare is less than its margin of error" in page
    assert "next best rung" not in page
