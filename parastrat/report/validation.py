"""Predictions beside measurements, as text and as a plain table."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from parastrat.comparison import Quantity, summary_of, verdicts_told
from parastrat.records import plain
from parastrat.report.correction import correction_json, correction_lines
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, heading, line, rendered, wrapped
from parastrat.units import GIB, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.comparison import Compared, Comparison, Ranking, Summary
    from parastrat.correction import StackFit
    from parastrat.report.text import Paper

SCHEMA = "parastrat.validation/1"

_NUMBER = Fill.NUMBER
#: title, unit, and how many of what is compared make one
_SHOWN = {Quantity.STEP_TIME: ("Step time", "s", 1.0), Quantity.PEAK_MEMORY: ("Peak memory", "GiB", GIB)}


def validation_json(comparison: Comparison, fit: StackFit | None = None) -> dict[str, Any]:
    """Return the answer of ``validate``: every run is among ``rows`` or ``skipped``."""
    return {
        "schema": SCHEMA,
        "rows": [_row_table(row) for row in comparison.rows],
        "summary": {
            quantity.value: {
                **{name: getattr(summary, name) for name in summary.__slots__},
                "noise": _noise_table(comparison.noise[quantity]),
            }
            for quantity, summary in comparison.summaries.items()
        },
        "ranking": plain(comparison.ranking),
        "skipped": [{"id": each.id, "reason": each.reason} for each in comparison.skipped],
        "correction": None if fit is None else correction_json(fit),
    }


def _row_table(row: Compared) -> dict[str, Any]:
    return {
        "id": row.id,
        "quantity": row.quantity.value,
        "measured": row.measured,
        "predicted": row.predicted,
        "error": row.error,
        "low": row.low,
        "high": row.high,
        "verdict": row.verdict.value,
        "out_of_memory": row.out_of_memory,
    }


def _noise_table(spreads: Sequence[float]) -> dict[str, Any]:
    return {"groups": len(spreads), "median_spread": median(spreads) if spreads else None}


def validation_text(comparison: Comparison, paper: Paper, fit: StackFit | None = None) -> str:
    """Return the errors by table and stack, the worst rows, and what was not predicted and why.

    Last comes what the runs correct, where that was asked for.
    """
    rows: list[Line] = []
    for quantity in comparison.summaries:
        rows += _quantity_lines(comparison, quantity, paper)
    rows += _verdict_lines(comparison, paper)
    rows += _skipped_lines(comparison, paper)
    rows += [] if fit is None else correction_lines(fit, paper)
    return rendered(rows, paper)


def _quantity_lines(comparison: Comparison, quantity: Quantity, paper: Paper) -> list[Line]:
    title, _, _ = _SHOWN[quantity]
    measured = comparison.of(quantity)
    groups = comparison.groups(quantity)
    table = [_summary_row(*group, summary_of(own)) for group, own in groups.items()]
    if len(groups) > 1:
        table.append(_summary_row("all", "", summary_of(measured)))
    columns = (
        Column(title="table"),
        Column(title="stack"),
        *(
            Column(title=name, fill=_NUMBER)
            for name in ("rows", "median", "mean", "90 %", "bias", "inside")
        ),
    )
    found = [*heading(f"{title}, error in %", paper), *table_lines(columns, table, paper)]
    spreads = comparison.noise[quantity]
    if spreads:
        found += wrapped(spread_told(spreads), paper, first="  ")
    if quantity is Quantity.STEP_TIME and comparison.ranking is not None:
        found += wrapped(ranking_told(comparison.ranking), paper, first="  ")
    return [*found, line(), *_worst_lines(comparison, quantity, paper)]


def spread_told(spreads: Sequence[float]) -> str:
    """Return how far measurements of the same are apart, in a sentence."""
    return (
        f"runs that no column tells apart differ by {100 * median(spreads):.1f} % among themselves "
        f"(median of {counted(len(spreads), 'group')})"
    )


def ranking_told(ranking: Ranking) -> str:
    """Return how well runs are ordered, in a sentence."""
    regrets = ranking.regret, ranking.regret_of_three, ranking.regret_of_ladder
    first, three, ladder = (100 * regret for regret in regrets)
    return (
        f"Kendall's tau is {ranking.tau:.2f} where runs differ in their parallelism alone "
        f"({counted(ranking.groups, 'group')}), the run predicted fastest is {first:.1f} % slower than "
        f"the fastest, the best of the first three {three:.1f} %, "
        f"the run that the ladder takes {ladder:.1f} % (means)"
    )


def _summary_row(origin: str, stack: str, summary: Summary) -> Row:
    shares = (summary.median, summary.mape, summary.p90)
    return Row(
        cells=(
            origin,
            stack,
            f"{summary.n:,}",
            *(f"{100 * share:.1f}" for share in shares),
            f"{100 * summary.bias:+.1f}",
            f"{100 * summary.inside:.0f} %",
        )
    )


def _worst_lines(comparison: Comparison, quantity: Quantity, paper: Paper) -> list[Line]:
    _, unit, one = _SHOWN[quantity]
    table = [
        Row(
            cells=(
                row.id,
                row.stack,
                f"{(row.measured or 0) / one:.3g}",
                f"{row.predicted / one:.3g}",
                f"{100 * error:+.1f}",
            )
        )
        for row, error in comparison.worst(quantity)
    ]
    columns = (
        Column(title="worst rows"),
        Column(title="stack"),
        *(Column(title=name, fill=_NUMBER) for name in (f"measured {unit}", f"predicted {unit}", "error")),
    )
    return table_lines(columns, table, paper)


def _verdict_lines(comparison: Comparison, paper: Paper) -> list[Line]:
    """Return how the verdicts fare: what ran must not be refused, nor what did not be promised."""
    found: list[Line] = []
    for out_of_memory, title in ((False, "ran"), (True, "ran out of memory")):
        own = comparison.fates(out_of_memory=out_of_memory)
        if not own:
            continue
        found += [] if found else heading("Does it fit", paper)
        found += wrapped(f"{len(own)} {title}: {verdicts_told(own)}", paper, first="  ")
        names = [row.id for row in own if row.is_misjudged]
        if names:
            found += wrapped(f"wrong: {', '.join(names)}", paper, first="    ")
    return found


def _skipped_lines(comparison: Comparison, paper: Paper) -> list[Line]:
    skipped = comparison.skipped
    predicted = {row.id for row in comparison.rows}
    # of one whose time is told the memory alone may not be
    left_out = {each.id for each in skipped} - predicted
    runs = "run" if len(predicted) == 1 else "runs"
    found = heading(f"{len(predicted):,} {runs} predicted, {len(left_out):,} not", paper)
    for reason, count in Counter(each.reason for each in skipped).most_common():
        found += wrapped(f"{count:>5}  {reason}", paper, first="  ", rest=" " * 9)
    return found
