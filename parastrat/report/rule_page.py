"""Rules as pages: what ``explain`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Tone, labelled, line, rendered, wrapped

if TYPE_CHECKING:
    from parastrat.finding import Hit
    from parastrat.report.text import Paper
    from parastrat.rules import Rule


def rule_text(rule: Rule, paper: Paper, *, example: tuple[str, Hit] | None = None) -> str:
    """Return one rule's title, rationale, source and the mistakes that it catches.

    Args:
        rule: the rule.
        paper: the screen.
        example: a case in words, and what the rule says of it.
    """
    lines = wrapped(f"{rule.code}: {rule.title}", paper, tone=Tone.STRONG)
    lines.append(line())
    for paragraph in rule.rationale.split("\n\n"):
        lines += wrapped(paragraph, paper)
        lines.append(line())
    lines += labelled("severity", rule.severity.value, paper)
    lines += labelled("source", rule.url, paper)
    if rule.covers:
        lines += labelled("covers", ", ".join(rule.covers), paper)
    if example is not None:
        words, hit = example
        lines += labelled("example", words, paper)
        lines += labelled("says", hit.message, paper)
        lines += labelled("fix", hit.fix, paper)
    return rendered(lines, paper)


def rule_list_text(rules: Sequence[Rule], paper: Paper) -> str:
    """Return every rule on a line."""
    columns = (
        Column(title="code"),
        Column(title="severity"),
        Column(title="what it demands", fill=Fill.REST, most=120),
    )
    rows = [Row(cells=(rule.code, rule.severity.value, rule.title)) for rule in rules]
    return rendered(table_lines(columns, rows, paper), paper)
