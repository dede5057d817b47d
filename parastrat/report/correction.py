"""How far runs corrected a stack's constants, as text and as a plain table."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from parastrat.records import plain
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import heading, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.correction import StackFit
    from parastrat.report.text import Line, Paper

_NUMBER = Fill.NUMBER


def correction_json(fit: StackFit) -> dict[str, Any]:
    """Return the constants before and after, and the runs' median errors."""
    return {
        "stack": fit.stack.name,
        "runs": len(fit.before),
        "constants": [plain(constant) for constant in fit.constants],
        "median_before": _median(fit.before),
        "median_after": _median(fit.after),
    }


def correction_lines(fit: StackFit, paper: Paper) -> list[Line]:
    """Return a line for each constant, and what the runs' errors come to with them."""
    table = [
        Row(
            cells=(
                each.name,
                *(f"{value:.3g}" for value in (each.before, each.after)),
                f"{each.low:.3g} to {each.high:.3g}",
            )
        )
        for each in fit.constants
    ]
    columns = (
        Column(title="constant"),
        *(Column(title=name, fill=_NUMBER) for name in ("before", "after", "80 % between")),
    )
    count = len(fit.before)
    told = (
        f"median error of {count:,} {'run' if count == 1 else 'runs'}: "
        f"{100 * _median(fit.before):.1f} % before, {100 * _median(fit.after):.1f} % after"
    )
    return [
        *heading(f"Stack {fit.stack.name}, corrected by these runs", paper),
        *table_lines(columns, table, paper),
        *wrapped(told, paper, first="  "),
    ]


def _median(errors: Sequence[float]) -> float:
    return median(abs(math.expm1(error)) for error in errors)
