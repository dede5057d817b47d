"""What dry runs found, as tables: memory by phase, and what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Paper, heading
from parastrat.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.dry_run import DryRun


def memory_lines(found: tuple[DryRun, ...], paper: Paper) -> list[Line]:
    """Return each rank's memory by phase."""
    phases: tuple[tuple[str, Callable[[DryRun], int | None]], ...] = (
        ("parameters and buffers", lambda each: each.parameters),
        ("after the forward", lambda each: each.after_forward),
        ("peak of forward and backward", lambda each: each.forward_backward),
        ("peak of the optimizer step", lambda each: each.optimizer_step),
        ("peak", lambda each: each.peak),
        ("reserved by the allocator", lambda each: each.reserved),
    )
    unit, name_of_unit = _unit_of(max(each.peak for each in found))
    titles = [f"rank {each.rank}" for each in found] if len(found) > 1 else [name_of_unit]
    columns = (Column(title="when"), *(Column(title=title, fill=Fill.NUMBER) for title in titles))
    rows = []
    for name, size_of in phases:
        sizes = [size_of(each) for each in found]
        if None not in sizes:
            rows.append(Row(cells=(name, *(f"{(size or 0) / unit:,.2f}" for size in sizes))))
    return [*heading(f"Memory, {name_of_unit} of tensors", paper), *table_lines(columns, rows, paper)]


def traffic_lines(found: DryRun, paper: Paper) -> list[Line]:
    """Return what a rank sends in a step."""
    if not found.traffic:
        return []
    unit, name_of_unit = _unit_of(found.peak)
    columns = (
        Column(title="collective"),
        Column(title="ranks", fill=Fill.NUMBER),
        Column(title="times", fill=Fill.NUMBER),
        Column(title=f"{name_of_unit} together", fill=Fill.NUMBER),
    )
    table = [
        Row(cells=(each.name, f"{each.ranks:,}", f"{each.count:,}", f"{each.bytes / unit:,.2f}"))
        for each in found.traffic
    ]
    several = "" if found.micro_batches == 1 else f" of {found.micro_batches} micro-batches"
    return [
        *heading(f"Sent in a step{several}, rank {found.rank}", paper),
        *table_lines(columns, table, paper),
    ]


def _unit_of(peak: int) -> tuple[int, str]:
    """Return the unit in which a rank's bytes are told, of which its peak has some."""
    return (GIB, "GiB") if peak >= GIB else (MIB, "MiB")
