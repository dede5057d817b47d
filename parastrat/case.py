"""One plan with the facts that it was judged on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.errors import UnknownFactError

if TYPE_CHECKING:
    from parastrat.estimate import Estimate
    from parastrat.hardware import Hardware
    from parastrat.launch import Launch
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.stack import Stack
    from parastrat.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is given before a plan is chosen."""

    model: ModelSpec
    hardware: Hardware
    workload: Workload
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What reports, rules and emitters read. A part that nobody stated is an ``Unknown``."""

    model: ModelSpec
    hardware: Hardware
    workload: Workload
    stack: Stack
    plan: Plan
    estimate: Estimate
    launch: Launch

    @property
    def facts(self) -> Facts:
        return Facts(model=self.model, hardware=self.hardware, workload=self.workload, stack=self.stack)


class Unknown:
    """Stands for a part that a config file does not state; reading anything of it raises.

    So a rule needs no guard: one that reads an unknown fact cannot be judged, and is reported so.
    """

    __slots__ = ("_fact",)

    def __init__(self, fact: str) -> None:
        self._fact = fact

    def __reduce__(self) -> tuple[type[Unknown], tuple[str]]:
        """Reach another process, which would read ``_fact`` before it is there."""
        return Unknown, (self._fact,)

    def __getattr__(self, name: str) -> Any:
        raise UnknownFactError(f"{self._fact}.{name}")


def stated(part: object, name: str) -> Any:
    """Return a fact of a part of a case; None where nobody states it."""
    try:
        return getattr(part, name)
    except UnknownFactError:
        return None
