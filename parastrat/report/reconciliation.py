"""A memory snapshot beside the estimate of a plan, as text and as a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.emit.plan_file import plan_table
from parastrat.records import plain
from parastrat.report.numbers import percent, size
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Paper, Tone, rendered, wrapped
from parastrat.report.wording import plan_name
from parastrat.units import GIB

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.memory.reconciled import Held, Line

SCHEMA = "parastrat.diff/1"

#: of the estimate's error; what no stack tells beyond that share makes a comparison by parts doubtful
_MUCH_UNKNOWN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One device of a snapshot, and the plan that it is held against."""

    case: Case
    device: int
    held: Held
    lines: tuple[Line, ...]

    @property
    def error(self) -> float | None:
        """The estimate of what the allocator reserves, over the snapshot's, less 1; None without a peak."""
        if not self.held.at_peak:
            return None
        (whole,) = (line for line in self.lines if line.name == "reserved")
        return (whole.estimated or 0) / max(1, whole.measured or 0) - 1


def reconciliation_json(found: Reconciliation) -> dict[str, Any]:
    """Return the answer of ``diff``."""
    return {
        "schema": SCHEMA,
        "plan": plan_table(found.case.plan),
        "device": found.device,
        "at_peak": found.held.at_peak,
        "events": found.held.events,
        "error": found.error,
        "lines": [plain(line) for line in found.lines],
    }


def reconciliation_text(found: Reconciliation, paper: Paper) -> str:
    """Return the lines with their differences, and what they can and cannot tell."""
    held = found.held
    moment = f"at the peak of its {held.events:,} events" if held.at_peak else "as it was taken"
    head = f"Device {found.device} of the snapshot, {moment}, beside {plan_name(found.case)} at its peak"
    lines = wrapped(head, paper, tone=Tone.STRONG)
    columns = (
        Column(title="GiB", fill=Fill.TEXT, most=40),
        Column(title="estimated", fill=Fill.NUMBER),
        Column(title="snapshot", fill=Fill.NUMBER),
        Column(title="difference", fill=Fill.NUMBER),
    )
    lines += table_lines(columns, [_row(line) for line in found.lines], paper)
    if found.error is not None:
        told = f"the estimate of what is reserved is {100 * found.error:+.1f} % off"
        lines += wrapped(told, paper, first="  ")
    for remark in _remarks(found):
        lines += wrapped(remark, paper, first="  - ")
    return rendered(lines, paper)


def _row(line: Line) -> Row:
    known, seen = line.estimated, line.measured
    both = "" if known is None or seen is None else f"{(known - seen) / GIB:+,.2f}"
    is_sum = line.name in ("allocated", "reserved")
    return Row(cells=(line.name, _gib(known), _gib(seen), both), tone=Tone.STRONG if is_sum else Tone.PLAIN)


def _gib(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / GIB:,.2f}"


def _remarks(found: Reconciliation) -> list[str]:
    held = found.held
    remarks = []
    if not held.at_peak:
        remarks.append(
            "the snapshot has no history, so that its peak is unknown, and differences are those of two "
            "moments: call torch.cuda.memory._record_memory_history() before the model is built, and take "
            "the snapshot after a step"
        )
    unknown = next(line.measured or 0 for line in found.lines if line.name == "unknown")
    if unknown > _MUCH_UNKNOWN * held.allocated:
        remarks.append(
            f"no stack tells what {size(unknown)} are, {percent(unknown / held.allocated)} of what is "
            "allocated; what was allocated before the history began has none"
        )
    if found.case.plan.mesh.pp > 1:
        remarks.append("the estimate is the fullest pipeline rank's; the snapshot may be another's")
    remarks.append("context and communicators lie outside of torch's allocator: no snapshot shows them")
    return remarks
