"""A plan's dry run beside its estimate, as text and as a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.records import plain
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Paper, Tone, heading, line, rendered, wrapped
from parastrat.units import GIB

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.dry_run import DryRun

SCHEMA = "parastrat.verification/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a dry run found, and what was estimated."""

    case: Case
    found: DryRun

    @property
    def estimated(self) -> int:
        """The estimate's tensors: without context, other streams' pools and what the allocator loses."""
        memory = self.case.estimate.memory
        return memory.total - memory.overhead

    @property
    def error(self) -> float:
        """The estimate over the dry run, less 1."""
        return self.estimated / self.found.peak - 1

    @property
    def needed(self) -> int:
        """The dry run's peak with the estimate's overhead."""
        return self.found.peak + self.case.estimate.memory.overhead

    @property
    def fits(self) -> bool:
        return self.needed <= self.case.estimate.memory.capacity


def verification_json(verification: Verification) -> dict[str, Any]:
    """Return the answer of ``verify``."""
    memory = verification.case.estimate.memory
    return {
        "schema": SCHEMA,
        "strategy": verification.case.plan.strategy,
        "ranks": [{**plain(verification.found), "peak": verification.found.peak}],
        "estimated": verification.estimated,
        "error": verification.error,
        "overhead": memory.overhead,
        "needed": verification.needed,
        "capacity": memory.capacity,
        "fits": verification.fits,
    }


def verification_text(verification: Verification, paper: Paper) -> str:
    """Return memory by phase beside the estimate, what is sent, and whether it fits."""
    case, found = verification.case, verification.found
    mesh = case.plan.mesh
    told = (
        f"Dry run of {case.plan.strategy} for {case.model.ref}: rank {found.rank} of {mesh.world_size} "
        f"({mesh}), one step on fake tensors"
    )
    rows = wrapped(told, paper, tone=Tone.STRONG)
    phases = (
        ("parameters and buffers", found.parameters),
        ("after the forward", found.after_forward),
        ("peak of forward and backward", found.forward_backward),
        ("peak of the optimizer step", found.optimizer_step),
        ("peak", found.peak),
        ("estimated", verification.estimated),
    )
    rows += heading("Memory, GiB of tensors", paper)
    columns = (Column(title="when"), Column(title="GiB", fill=Fill.NUMBER))
    rows += table_lines(columns, [Row(cells=(name, f"{size / GIB:,.2f}")) for name, size in phases], paper)
    rows += wrapped(f"the estimate is {100 * verification.error:+.1f} % off", paper, first="  ")
    rows += _traffic_lines(found, paper)
    rows.append(line())
    for caveat in found.caveats:
        rows += wrapped(caveat, paper, first="  ")
    rows += wrapped(_verdict(verification), paper, tone=Tone.GOOD if verification.fits else Tone.BAD)
    return rendered(rows, paper)


def _traffic_lines(found: DryRun, paper: Paper) -> list[Line]:
    if not found.traffic:
        return []
    columns = (
        Column(title="collective"),
        Column(title="ranks", fill=Fill.NUMBER),
        Column(title="times", fill=Fill.NUMBER),
        Column(title="GiB together", fill=Fill.NUMBER),
    )
    table = [
        Row(cells=(each.name, f"{each.ranks:,}", f"{each.count:,}", f"{each.bytes / GIB:,.2f}"))
        for each in found.traffic
    ]
    several = "" if found.micro_batches == 1 else f" of {found.micro_batches} micro-batches"
    return [*heading(f"Sent in a step{several}", paper), *table_lines(columns, table, paper)]


def _verdict(verification: Verification) -> str:
    memory = verification.case.estimate.memory
    told = (
        f"{verification.needed / GIB:.1f} of {memory.capacity / GIB:.1f} GiB, of them "
        f"{memory.overhead / GIB:.1f} context and allocator, which a dry run cannot see (estimated)"
    )
    return f"{'fits' if verification.fits else 'does not fit'}: {told}"
