"""What flags say of a pipeline's stages, held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.cli.flags import FixedFlags
from parastrat.cli.typed import flag_words
from parastrat.errors import UsageError
from parastrat.search import Constraints
from parastrat.search.meshes import meshes_of
from parastrat.search.space import schedules_of
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Facts


def check_stages(fixed: FixedFlags, facts: Facts) -> None:
    """Check that a schedule and virtual stages that are fixed go together, and with a pipeline.

    Raises:
        UsageError: they do not, or the search compares no such schedule.
    """
    asked = Constraints(pp=fixed.pp, pp_schedule=fixed.schedule, virtual_stages=fixed.virtual_stages)
    if not asked.has_stages:
        return
    words = " ".join(flag_words(FixedFlags(schedule=fixed.schedule, virtual_stages=fixed.virtual_stages)))
    if not schedules_of(asked):
        compared = schedules_of(Constraints(pp_schedule=fixed.schedule))
        if not compared:
            names = dict.fromkeys(str(schedule) for schedule, _ in schedules_of(Constraints()))
            raise UsageError(f"{words} is not searched", hint=f"choose one of {', '.join(names)}")
        stages = " or ".join(dict.fromkeys(str(chunks) for _, chunks in compared))
        raise UsageError(
            f"{words}: no such schedule", hint=f"{fixed.schedule} goes with --virtual-stages {stages}"
        )
    if not len(meshes_of(facts, asked).pp):
        devices = counted(facts.hardware.world_size, "device")
        lacking = "the plan has none" if fixed.pp == 1 else f"none divides {devices}"
        raise UsageError(f"{words} is of a pipeline, and {lacking}", hint="fix --pp, or leave the flag out")
