"""The ladder: every rung's best plan, and the number that took or left it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.estimate import Verdict
from parastrat.memory.scarce import excess
from parastrat.report.headline import VERDICT_WORDS
from parastrat.report.numbers import duration, gib
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Tone, heading, wrapped
from parastrat.result import RungStatus
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.report.text import Paper
    from parastrat.result import Rung, SearchResult

_TONES = {
    RungStatus.TAKEN: Tone.GOOD,
    RungStatus.SLOWER: Tone.PLAIN,
    RungStatus.DOES_NOT_FIT: Tone.PLAIN,
    RungStatus.NOT_APPLICABLE: Tone.FAINT,
}
_MOST_REJECTED = 3
#: ``fsdp2+cp+tp+ep+pp``, which is not broken
_WIDEST = 17
#: rules that a larger batch obeys, which nothing else in the answer tells
_OF_BATCH = ("PS401", "PS701")
#: narrower screens get narrower columns
_ROOMY = 72


def ladder_lines(rungs: tuple[Rung, ...], paper: Paper, forced: str | None = None) -> list[Line]:
    """Return the ladder as a table; under a forced strategy without the rungs that have no such plan."""
    columns = (
        Column(title=""),
        Column(title="strategy", most=_WIDEST if paper.width >= _ROOMY else 12),
        Column(title="verdict", most=12 if paper.width >= _ROOMY else 8),
        Column(title="GiB", fill=Fill.NUMBER),
        Column(title="step", fill=Fill.NUMBER),
        Column(title="why taken or left", fill=Fill.REST, most=90),
    )
    shown = [rung for rung in rungs if rung.case is not None or forced is None]
    lines = heading("Ladder: the best plan of each rung", paper)
    if shown:
        lines += table_lines(columns, [_rung_row(rung) for rung in shown], paper)
    if len(shown) < len(rungs):
        which = "the other rungs have no plan" if shown else "no rung has a plan"
        others = f"{which} that is {forced}, the only strategy asked for"
        lines += wrapped(others, paper, first="  ", tone=Tone.FAINT)
    return lines


def _rung_row(rung: Rung) -> Row:
    taken = rung.status is RungStatus.TAKEN
    reason = f"taken: {rung.reason}" if taken else rung.reason
    verdict, memory, step = _figures(rung.case)
    return Row(
        cells=(f"{rung.rung}{'*' if taken else ''}", rung.strategy, verdict, memory, step, reason),
        tone=_TONES[rung.status],
    )


def _figures(case: Case | None) -> tuple[str, str, str]:
    if case is None:
        return "-", "-", "-"
    estimate = case.estimate
    # a plan that fits the devices alone cannot run either
    verdict = Verdict.DOES_NOT_FIT if excess(case) > 1 else estimate.verdict
    # the time of what cannot run is of no use
    step = "-" if verdict is Verdict.DOES_NOT_FIT else duration(estimate.time.step)
    return VERDICT_WORDS[verdict], gib(estimate.memory.total), step


def rejected_lines(result: SearchResult, paper: Paper) -> list[Line]:
    """Return the rules that left most plans out, each with one example.

    Where the batch is what leaves most out, with the batch that would do.
    """
    rejected = result.rejected
    if not rejected:
        return []
    total = sum(rejection.count for rejection in rejected)
    # of plans that a bound left out nobody asked whether they obey
    least = "at least " if result.bounded else ""
    lines = heading(f"Left out by rules: {least}{total:,} of {counted(result.considered, 'plan')}", paper)
    columns = (
        Column(title="plans", fill=Fill.NUMBER),
        Column(title="rule"),
        Column(title="such as", fill=Fill.REST, most=110),
    )
    rows = [
        Row(cells=(f"{rejection.count:,}", rejection.code, rejection.example))
        for rejection in rejected[:_MOST_REJECTED]
    ]
    lines += table_lines(columns, rows, paper)
    if rejected[0].code not in _OF_BATCH:
        return lines
    for rejection in rejected[:_MOST_REJECTED]:
        if rejection.code in _OF_BATCH:
            lines += wrapped(f"{rejection.code}: {rejection.fix}", paper, first="  ", rest="    ")
    return lines
