"""A script's dry run, as text and as a plain table."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.records import plain
from parastrat.report.dry_run import memory_lines, traffic_lines
from parastrat.report.text import Paper, Tone, line, rendered, wrapped
from parastrat.units import GIB

if TYPE_CHECKING:
    from parastrat.dry_run import DryRun

SCHEMA = "parastrat.script_run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What a dry run of a script found, and on what it is to run."""

    #: as it was typed
    command: tuple[str, ...]
    world_size: int
    #: optimizer steps that were run; the figures are the last one's
    steps: int
    #: one for each rank that was asked for
    found: tuple[DryRun, ...]
    #: bytes of a device that tensors can take; None where nobody said which
    capacity: int | None = None

    @property
    def worst(self) -> DryRun:
        """The rank that needs most."""
        return max(self.found, key=lambda each: each.peak)

    @property
    def fits(self) -> bool | None:
        """Whether the tensors do, without what context and allocator take; None where nothing is known."""
        return None if self.capacity is None else self.worst.peak <= self.capacity


def script_json(run: ScriptRun) -> dict[str, Any]:
    """Return the answer of ``verify -- COMMAND``."""
    return {
        "schema": SCHEMA,
        "command": list(run.command),
        "world_size": run.world_size,
        "steps": run.steps,
        "ranks": [{**plain(each), "peak": each.peak} for each in run.found],
        "peak": run.worst.peak,
        "capacity": run.capacity,
        "fits": run.fits,
    }


def script_text(run: ScriptRun, paper: Paper) -> str:
    """Return memory by phase, what is sent, and what was taken for granted."""
    ranks = ", ".join(str(each.rank) for each in run.found)
    told = (
        f"Dry run of {shlex.join(run.command)}: rank{'s' * (len(run.found) > 1)} {ranks} of "
        f"{run.world_size}, up to optimizer step {run.steps} on fake tensors"
    )
    rows = wrapped(told, paper, tone=Tone.STRONG)
    rows += memory_lines(run.found, paper)
    rows += traffic_lines(run.worst, paper)
    rows.append(line())
    for caveat in run.worst.caveats:
        rows += wrapped(caveat, paper, first="  ")
    rows += wrapped(_verdict(run), paper, tone=Tone.BAD if run.fits is False else Tone.GOOD)
    return rendered(rows, paper)


def _verdict(run: ScriptRun) -> str:
    unseen = "context and allocator, which a dry run cannot see, come on top"
    peak = f"{run.worst.peak / GIB:,.2f}"
    if run.capacity is None:
        return f"peak: {peak} GiB of tensors; {unseen} (--on HARDWARE says whether that fits)"
    return f"{'fits' if run.fits else 'does not fit'}: {peak} of {run.capacity / GIB:,.1f} GiB; {unseen}"
