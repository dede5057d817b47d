"""What less memory costs in time, a plan a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.report.numbers import duration
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import heading
from parastrat.report.wording import plan_name
from parastrat.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case
    from parastrat.report.text import Line, Paper

_NUMBER = Fill.NUMBER


def front_lines(front: Sequence[Case], paper: Paper) -> list[Line]:
    """Return the plans that no other beats in both memory and time; nothing where there are none."""
    if not front:
        return []
    fastest = front[0].estimate.time.step
    table = [
        Row(
            cells=(
                f"{case.estimate.memory.total / GIB:,.1f}",
                duration(case.estimate.time.step),
                f"{case.estimate.time.step / fastest:.2f}",
                case.plan.recompute.value,
                f"{case.plan.micro_batch_size:,}",
                plan_name(case),
            )
        )
        for case in front
    ]
    columns = (
        Column(title="GiB", fill=_NUMBER),
        Column(title="step", fill=_NUMBER),
        Column(title="times", fill=_NUMBER),
        Column(title="recompute"),
        Column(title="micro-batch", fill=_NUMBER),
        Column(title="plan", fill=Fill.REST),
    )
    return [*heading("Less memory, more time", paper), *table_lines(columns, table, paper)]
