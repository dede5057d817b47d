"""A plan's dry run beside its estimate, as text and as a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.finding import Severity
from parastrat.records import plain
from parastrat.report.advice import finding_lines
from parastrat.report.dry_run import memory_lines, traffic_lines
from parastrat.report.numbers import gib, size
from parastrat.report.text import Paper, Tone, line, rendered, wrapped
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.dry_run import DryRun
    from parastrat.finding import Finding

SCHEMA = "parastrat.verification/1"

#: what a dry run itself answers, where the estimate says no
_FIT = "PS101"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a dry run found, and what was estimated."""

    case: Case
    #: one rank of each kind
    found: tuple[DryRun, ...]
    #: what the rules say of the plan
    findings: tuple[Finding, ...] = ()
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

    @property
    def breaks(self) -> bool:
        """Whether the plan breaks a rule by which it cannot run, whatever memory it needs."""
        return any(each.code != _FIT for each in broken(self.findings))


def broken(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings of severity error."""
    return tuple(each for each in findings if each.severity is Severity.ERROR)


def broken_text(findings: tuple[Finding, ...], paper: Paper) -> str:
    """Return which rules of severity error a plan breaks, above its dry run; else nothing."""
    errors = broken(findings)
    if not errors:
        return ""
    rows = [line(f"The plan breaks {counted(len(errors), 'rule')} of severity error.", Tone.BAD)]
    return rendered([*rows, *finding_lines(errors, paper), line()], paper)


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
        "findings": plain(verification.findings),
    }


def verification_text(verification: Verification, paper: Paper) -> str:
    """Return memory by phase beside the estimate, what is sent, and whether it fits."""
    case, worst = verification.case, verification.worst
    mesh = case.plan.mesh
    ranks = ", ".join(str(each.rank) for each in verification.found)
    told = (
        f"Dry run of {case.plan.strategy} for {case.model.ref}: rank{'s' * (len(verification.found) > 1)} "
        f"{ranks} of {mesh.world_size}{f' ({mesh})' if mesh.world_size > 1 else ''}, one step on "
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
    good = verification.fits and not verification.breaks
    rows += wrapped(_verdict(verification), paper, tone=Tone.GOOD if good else Tone.BAD)
    return rendered(rows, paper)


def _verdict(verification: Verification) -> str:
    memory = verification.case.estimate.memory
    told = (
        f"{gib(verification.needed)} of {gib(memory.capacity)} GiB, of them {gib(memory.overhead)} context "
        "and allocator, which a dry run cannot see (estimated)"
    )
    fits = "fits" if verification.fits else "does not fit"
    return f"{fits}{', but breaks the rules above' if verification.breaks else ''}: {told}"
