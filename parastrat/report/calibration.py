"""What was measured here, as text and as a plain table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.calibration import Operation
from parastrat.records import plain
from parastrat.report.numbers import duration, percent, rate, size
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Paper, Tone, heading, line, rendered, wrapped
from parastrat.units import GB, MICRO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.calibration import Calibration, Fit, Timing

SCHEMA = "parastrat.calibration/1"

#: how figures are told: in words, with their unit, and what one of that is
_TOLD = {
    "device.sustained.fp32": ("fp32 products", "GFLOP/s", GB),
    "device.sustained.bf16": ("bf16 products", "GFLOP/s", GB),
    "device.memory_bytes_per_s": ("memory, read and written", "GB/s", GB),
    "device.fresh_bytes_per_s": ("memory that the system gives anew", "GB/s", GB),
    "device.launch_s": ("launch of one operator", "us", MICRO),
    "device.attention_efficiency": ("attention over products", "%", 0.01),
    "device.whole_products": ("products of one process alone", "%", 0.01),
    "device.whole_memory": ("memory of one process alone", "%", 0.01),
    "device.host_bytes_per_s": ("host memory to device", "GB/s", GB),
    "scale_up.bytes_per_s": ("link, all-gather", "GB/s", GB),
    "scale_up.latency_s": ("link, one hop", "us", MICRO),
    "scale_up.all_reduce_gain": ("all-reduce over two of those", "", 1.0),
}


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return the answer of ``calibrate``."""
    return {
        "schema": SCHEMA,
        "machinery": plain(calibration.machinery),
        "figures": [plain(fit) for fit in calibration.fits],
        "timings": [plain(timing) for timing in calibration.timings],
        "hardware": plain(calibration.hardware),
    }


def calibration_text(calibration: Calibration, next_commands: Sequence[str], paper: Paper) -> str:
    """Return each figure before and after, the collectives by size, and how to go on."""
    machinery = calibration.machinery
    told = f"Measured on {machinery.date}: {machinery}"
    rows = wrapped(told, paper, tone=Tone.STRONG)
    rows += heading("Figures", paper)
    columns = (
        Column(title=""),
        Column(title="before", fill=Fill.NUMBER),
        Column(title="known as"),
        Column(title="here", fill=Fill.NUMBER),
        Column(title="unit"),
        Column(title="error", fill=Fill.NUMBER),
    )
    rows += table_lines(columns, [_row(fit) for fit in calibration.fits], paper)
    rows += wrapped(
        "error: mean of the times that the figure explains; of one time the middle half of its repeats",
        paper,
        first="  ",
        tone=Tone.FAINT,
    )
    rows += _collectives(calibration.timings, paper)
    rows.append(line())
    for command in next_commands:
        rows += wrapped(f"next: {command}", paper)
    return rendered(rows, paper)


def _row(fit: Fit) -> Row:
    name, unit, one = _TOLD[fit.field]
    before = "-" if fit.before is None else rate(fit.before / one)
    known = "-" if fit.kind is None else str(fit.kind)
    return Row(cells=(name, before, known, rate(fit.after / one), unit, percent(fit.error)))


def _collectives(timings: Sequence[Timing], paper: Paper) -> list[Line]:
    """Return how long collectives take, a line a size of the whole buffer."""
    several = {
        (each.wanted.bytes, each.wanted.operation): each.seconds
        for each in timings
        if each.wanted.operation.is_collective
    }
    if not several:
        return []
    operations = [each for each in Operation if each.is_collective]
    columns = [Column(title="buffer", fill=Fill.NUMBER)]
    columns += [Column(title=str(each), fill=Fill.NUMBER) for each in operations]
    rows = [
        Row(cells=(_buffer(bytes_), *(duration(several[bytes_, each]) for each in operations)))
        for bytes_ in sorted({bytes_ for bytes_, _ in several})
    ]
    return [*heading("Collectives", paper), *table_lines(columns, rows, paper)]


def _buffer(bytes_: int) -> str:
    return size(bytes_) if bytes_ >= 1024 * 1024 else f"{bytes_ / 1024:.0f} KiB"
