"""Cases to text: the plan file, launchers' scripts, plain torch code. Nothing is written or asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from parastrat.emit import slurm, torchrun
from parastrat.emit.plan_toml import plan_table, plan_toml
from parastrat.emit.text_file import EmitError, TextFile

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.parse import ModelFingerprint

__all__ = [
    "EMITTERS",
    "EmitError",
    "Emitter",
    "Target",
    "TextFile",
    "emitted",
    "plan_table",
    "plan_toml",
]

Emitter: TypeAlias = "Callable[[Case], tuple[TextFile, ...]]"


class Target(StrEnum):
    """What a plan can be written for."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"
    PYTHON = "python"


EMITTERS: Mapping[Target, Emitter] = {
    Target.TORCHRUN: torchrun.emit,
    Target.SLURM: slurm.emit,
}


def emitted(
    target: Target,
    case: Case,
    *,
    stored_ref: str | None = None,
    fingerprint: ModelFingerprint | None = None,
) -> tuple[TextFile, ...]:
    """Return a target's files, and for launchers the ``plan.toml`` that their scripts expect beside them.

    The keywords are those of ``plan_toml``.

    Raises:
        EmitError: the target cannot express this plan.
    """
    files = EMITTERS[target](case)
    if target is Target.PYTHON:
        return files
    text = plan_toml(case, stored_ref=stored_ref, fingerprint=fingerprint)
    return (*files, TextFile(path="plan.toml", text=text))
