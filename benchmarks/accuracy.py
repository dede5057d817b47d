"""Estimates beside published measurements: the errors, the worst rows and what was left out.

Usage: python benchmarks/accuracy.py [--write]

Prints docs/accuracy.md, or writes it. The rows are those of benchmarks/data; why the worst are off stands
in benchmarks/data/explained.toml.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

from parastrat.comparison import Comparison, Quantity, Summary, summary_of, verdicts_told
from parastrat.measured import compared, read_rows
from parastrat.report.validation import ranking_told, spread_told
from parastrat.units import GIB

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
DATA = ROOT / "benchmarks" / "data"
TABLES = {Quantity.PEAK_MEMORY: "peak_memory.csv", Quantity.STEP_TIME: "published.csv"}

_HEAD = """# How far off the estimates are

Made by `python benchmarks/accuracy.py --write` from measurements of others (`benchmarks/data`), which
`parastrat validate` predicts row by row. No prediction reads what was measured. What a source leaves out is
one default of its stack (`profiles/stacks`), never what fits. An error is predicted / measured - 1.
"""
_TITLES = {Quantity.PEAK_MEMORY: "Peak memory", Quantity.STEP_TIME: "Step time"}


def comparisons() -> dict[Quantity, Comparison]:
    """Return each table compared."""
    return {quantity: compared(read_rows(DATA / name)) for quantity, name in TABLES.items()}


def page(found: dict[Quantity, Comparison]) -> str:
    """Return docs/accuracy.md."""
    explained: dict[str, str] = tomllib.loads((DATA / "explained.toml").read_text(encoding="utf-8"))
    lines = [_HEAD]
    for quantity, comparison in found.items():
        lines += [f"## {_TITLES[quantity]}", "", *_errors(comparison, quantity), ""]
        lines += [*_worst(comparison, quantity, explained), ""]
        if quantity is Quantity.PEAK_MEMORY:
            lines += [*_verdicts(comparison, explained), ""]
        lines += [*_coverage(comparison), ""]
    return "\n".join(lines).rstrip() + "\n"


def _errors(comparison: Comparison, quantity: Quantity) -> list[str]:
    groups = comparison.groups(quantity)
    lines = [
        "| table | stack | rows | median | mean | 90th percentile | bias | within the interval |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        *(error_line(*group, summary_of(own)) for group, own in groups.items()),
        error_line("**all**", "", comparison.summaries[quantity]),
    ]
    spreads = comparison.noise[quantity]
    if spreads:
        told = spread_told(spreads)
        lines += ["", f"{told[0].upper()}{told[1:]}."]
    if quantity is Quantity.STEP_TIME and comparison.ranking is not None:
        lines += ["", f"{ranking_told(comparison.ranking)}."]
    return lines


def error_line(table: str, stack: str, summary: Summary) -> str:
    """Return a table's line of errors, of rows that one or two words tell."""
    shares = (summary.median, summary.mape, summary.p90)
    return (
        f"| {table} | {stack} | {summary.n} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} | "
        f"{100 * summary.bias:+.1f} % | {100 * summary.inside:.0f} % |"
    )


def _worst(comparison: Comparison, quantity: Quantity, explained: dict[str, str]) -> list[str]:
    one, unit = (GIB, "GiB") if quantity is Quantity.PEAK_MEMORY else (1.0, "s")
    lines = [
        f"| worst rows | measured {unit} | predicted {unit} | error | why |",
        "|---|---:|---:|---:|---|",
    ]
    for row, error in comparison.worst(quantity):
        values = f"{(row.measured or 0) / one:.3g} | {row.predicted / one:.3g} | {100 * error:+.1f} %"
        lines.append(f"| {row.id} | {values} | {explained.get(row.id, 'not explained yet')} |")
    return lines


def _verdicts(comparison: Comparison, explained: dict[str, str]) -> list[str]:
    lines = []
    for out_of_memory, title in ((False, "ran"), (True, "ran out of memory")):
        own = comparison.fates(out_of_memory=out_of_memory)
        told = verdicts_told(own)
        wrong = [
            f"{row.id} ({explained.get(row.id, 'not explained yet')})" for row in own if row.is_misjudged
        ]
        lines.append(
            f"- {len(own)} {title}: {told}" + (f"; wrong: {', '.join(wrong)}" if wrong else "") + "."
        )
    return lines


def _coverage(comparison: Comparison) -> list[str]:
    predicted = len({row.id for row in comparison.rows})
    reasons = Counter(each.reason for each in comparison.skipped)
    return [
        f"{predicted} runs predicted, {len(comparison.skipped)} not:",
        "",
        *(f"- {count}: {reason}" for reason, count in reasons.most_common()),
    ]


def main() -> None:
    """Print the page, or write it with ``--write``."""
    text = page(comparisons())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
