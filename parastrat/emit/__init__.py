"""Cases to text: the plan file, launchers' scripts, plain torch code. Nothing is written or asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from parastrat.emit import accelerate, kubernetes, mpirun, python, slurm, torchrun, torchtitan
from parastrat.emit.kubernetes import Container
from parastrat.emit.plan_file import plan_table, plan_toml
from parastrat.emit.text_file import EmitError, TextFile

if TYPE_CHECKING:
    from parastrat.case import Case

__all__ = [
    "BRING_THE_PLAN",
    "EMITTERS",
    "READ_THE_MODEL",
    "READ_THE_PLAN",
    "Container",
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
    MPIRUN = "mpirun"
    KUBERNETES = "kubernetes"
    PYTHON = "python"
    TORCHTITAN = "torchtitan"
    ACCELERATE = "accelerate"


EMITTERS: Mapping[Target, Emitter] = {
    Target.TORCHRUN: torchrun.emit,
    Target.SLURM: slurm.emit,
    Target.MPIRUN: mpirun.emit,
    Target.KUBERNETES: kubernetes.emit,
    Target.PYTHON: python.emit,
    Target.TORCHTITAN: torchtitan.emit,
    Target.ACCELERATE: accelerate.emit,
}

#: targets that cut the model themselves: a plan file's fingerprint of it is not enough
READ_THE_MODEL = frozenset({Target.TORCHTITAN})

#: targets whose files expect ``plan.toml`` beside them
READ_THE_PLAN = frozenset({Target.TORCHRUN, Target.SLURM, Target.MPIRUN})

#: targets that bring the plan along, in their files or beside them
BRING_THE_PLAN = READ_THE_PLAN | {Target.KUBERNETES}


def emitted(
    target: Target, case: Case, *, stored_ref: str | None = None, container: Container | None = None
) -> tuple[TextFile, ...]:
    """Return a target's files, and with them the ``plan.toml`` that their scripts read, if they do.

    ``stored_ref`` is MODEL as the plan shall store it. The model may be a ``FingerprintedModel``.
    ``container`` is what runs in pods.

    Raises:
        EmitError: the target cannot express this plan.
    """
    if target is Target.KUBERNETES:
        return kubernetes.emit(case, container, stored_ref=stored_ref)
    files = EMITTERS[target](case)
    if target not in READ_THE_PLAN:
        return files
    return (*files, TextFile(path="plan.toml", text=plan_toml(case, stored_ref=stored_ref)))
