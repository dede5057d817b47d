"""The command line as the report repeats it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from parastrat.report.commands import Context
from parastrat.rungs import TOLERANCE
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.cli.facts import Job
    from parastrat.cli.flags import FixedFlags, JobFlags, OutputFlags


def report_context(
    job: Job, flags: JobFlags, fixed: FixedFlags, output: OutputFlags, tolerance: float = TOLERANCE
) -> Context:
    """Return what a report knows of the command line that asked for it."""
    assumed = job.facts.workload.assumed
    published = [
        name
        for name in ("sequence_length", "global_batch_size", "optimizer")
        if name in assumed and getattr(job.source.defaults, name) is not None
    ]
    source = job.source.defaults.source if published else ""
    batch = job.source.defaults.global_batch_size
    if "global_batch_size" in published and batch != job.facts.workload.global_batch_size:
        devices = counted(job.facts.hardware.world_size, "device")
        source += f"; {devices} cannot share its {batch:,} evenly"
    return Context(
        arguments=(flags.model, *flag_words(flags)),
        fixed=tuple(flag_words(fixed)),
        deciding=() if tolerance == TOLERANCE else ("--tolerance", f"{tolerance:g}"),
        plan_file=None if output.output is None else str(output.output),
        defaults_source=source,
    )


def flag_words(flags: Any) -> list[str]:
    """Return the flags of a group that differ from their defaults, as they are typed."""
    words: list[str] = []
    for field in fields(flags):
        value = getattr(flags, field.name)
        if field.name != "model" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return words
