"""Failures of jobs that are known, as ``explain`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parastrat.report.text import Tone, labelled, line, rendered, wrapped

if TYPE_CHECKING:
    from parastrat.failures import Told
    from parastrat.report.text import Paper

#: of a line of a log, what is shown
_LONGEST = 300


def failures_text(name: str, told: Sequence[Told], paper: Paper) -> str:
    """Return what a log's failures mean, and what to change.

    Args:
        name: the log's.
        told: what was found in it.
        paper: the screen.
    """
    if not told:
        return rendered(wrapped(f"nothing in {name} is a failure that is known here", paper), paper)
    lines = []
    for each in told:
        text = each.text if len(each.text) <= _LONGEST else each.text[:_LONGEST] + " ..."
        lines += wrapped(f"{name}:{each.line}: {text}", paper, tone=Tone.STRONG)
        lines += labelled("means", each.failure.means, paper)
        lines += labelled("change", each.failure.change, paper)
        lines += labelled("source", each.failure.source, paper)
        lines.append(line())
    return rendered(lines[:-1], paper)
