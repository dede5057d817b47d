"""Which plan to apply: one that was given, or the one in the file that ``$PARASTRAT_PLAN`` names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from parastrat.errors import PlanFileError, UsageError
from parastrat.plan import Backend, Plan

if TYPE_CHECKING:
    from parastrat.launch import Launch
    from parastrat.parse import ModelFingerprint

PLAN_VARIABLE = "PARASTRAT_PLAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan with what its file says beside it."""

    plan: Plan
    #: None: any model will do
    fingerprint: ModelFingerprint | None = None
    launch: Launch | None = None
    #: tokens of a sample; None: not known
    sequence_length: int | None = None


def stated_choice(plan: Plan | str | Path | None) -> Choice | None:
    """Return the plan that was given or that ``$PARASTRAT_PLAN`` names; None to decide.

    Raises:
        PlanFileError: if the file cannot be read or holds no plan.
        UsageError: for something that is neither a plan nor a path.
    """
    if isinstance(plan, Plan):
        return Choice(plan=plan)
    if plan is None:
        plan = os.environ.get(PLAN_VARIABLE) or None
    if plan is None:
        return None
    if not isinstance(plan, str | Path):
        raise UsageError(f"plan is a {type(plan).__name__}", hint="pass a Plan or the path of a plan.toml")
    from parastrat.parse import read_plan  # noqa: PLC0415  (pydantic loads only for files)

    parsed = read_plan(Path(plan))
    if parsed.plan is None:
        raise PlanFileError(
            f"{plan} has no [plan]", hint="make one with `parastrat recommend MODEL -o plan.toml`"
        )
    return Choice(
        plan=parsed.plan,
        fingerprint=parsed.model,
        launch=parsed.launch,
        sequence_length=None if parsed.workload is None else parsed.workload.sequence_length,
    )


def device_type(choice: Choice | None) -> str:
    """Return the torch device type that the plan was made for, or this machine's."""
    if choice is not None and choice.launch is not None:
        return choice.launch.device
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    # one process has no collectives, so that its plan's backend says nothing of devices
    plan = None if choice is None or choice.plan.mesh.world_size == 1 else choice.plan
    if here is None or (plan is not None and plan.backend is Backend.GLOO):
        return "cpu"
    return here.type


def backend(choice: Choice | None, device: str) -> Backend:
    """Return the backend for the device's collectives."""
    if choice is not None:
        return choice.plan.backend
    return {"cuda": Backend.NCCL, "xpu": Backend.XCCL, "hpu": Backend.HCCL}.get(device, Backend.GLOO)
