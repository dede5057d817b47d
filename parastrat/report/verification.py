"""A plan's dry run beside its estimate, as text and as a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.records import plain
from parastrat.report.dry_run import memory_lines, traffic_lines
from parastrat.report.numbers import gib, size
from parastrat.report.text import Paper, Tone, line, rendered, wrapped

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.dry_run import DryRun

SCHEMA = "parastrat.verification/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a dry run found, and what was estimated."""

    case: Case
    #: one rank of each kind
    found: tuple[DryRun, ...]
    #: of real tensors; None: they were fake
    device: str | None = None

    @property
    def worst(self) -> DryRun:
        """The rank that needs most."""
        return max(self.found, key=lambda each: each.peak)

    @property
    def estimated(self) -> int:
        """The estimate's tensors: without context, other streams' pools and what the allocator loses."""
        memory = self.case.estimate.memory
        return memory.total - memory.overhead

    @property
    def error(self) -> float:
        """The estimate over the dry run, less 1."""
        return self.estimated / self.worst.peak - 1

    @property
    def needed(self) -> int:
        """The dry run's peak with the estimate's overhead."""
        return self.worst.peak + self.case.estimate.memory.overhead

    @property
    def fits(self) -> bool:
        return self.needed <= self.case.estimate.memory.capacity


def verification_json(verification: Verification) -> dict[str, Any]:
    """Return the answer of ``verify``."""
    memory = verification.case.estimate.memory
    return {
        "schema": SCHEMA,
        "strategy": verification.case.plan.strategy,
        "device": verification.device,
        "ranks": [{**plain(each), "peak": each.peak} for each in verification.found],
        "estimated": verification.estimated,
        "error": verification.error,
        "overhead": memory.overhead,
        "needed": verification.needed,
        "capacity": memory.capacity,
        "fits": verification.fits,
    }


def verification_text(verification: Verification, paper: Paper) -> str:
    """Return memory by phase beside the estimate, what is sent, and whether it fits."""
    case, worst = verification.case, verification.worst
    mesh = case.plan.mesh
    ranks = ", ".join(str(each.rank) for each in verification.found)
    told = (
        f"Dry run of {case.plan.strategy} for {case.model.ref}: rank{'s' * (len(verification.found) > 1)} "
        f"{ranks} of {mesh.world_size} ({mesh}), one step on "
        f"{'fake tensors' if verification.device is None else f'real tensors of {verification.device}'}"
    )
    rows = wrapped(told, paper, tone=Tone.STRONG)
    rows += memory_lines(verification.found, paper)
    estimated = (
        f"the worst rank is estimated at {size(verification.estimated)}, "
        f"{100 * verification.error + 0.0:+.1f} % off".replace("-0.0", "+0.0")
    )
    rows += wrapped(estimated, paper, first="  ")
    rows += traffic_lines(worst, paper)
    rows.append(line())
    for caveat in worst.caveats:
        rows += wrapped(caveat, paper, first="  ")
    rows += wrapped(_verdict(verification), paper, tone=Tone.GOOD if verification.fits else Tone.BAD)
    return rendered(rows, paper)


def _verdict(verification: Verification) -> str:
    memory = verification.case.estimate.memory
    told = (
        f"{gib(verification.needed)} of {gib(memory.capacity)} GiB, of them {gib(memory.overhead)} context "
        "and allocator, which a dry run cannot see (estimated)"
    )
    return f"{'fits' if verification.fits else 'does not fit'}: {told}"
