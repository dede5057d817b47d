"""What was found to fit a changed job, told by what it costs.

That is told against the fastest plan of the job as it was asked, if memory were no limit. Compared are
tokens per second of each device: on the same devices that is the order of step times, and more devices
count for what they pay back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.assess import assess_together
from parastrat.result import NearestFit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Case, Facts
    from parastrat.search.changes import Fit
    from parastrat.search.work import Work
    from parastrat.workload import Workload

#: more are not told
_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Plans that fit after a change."""

    #: the job as it was asked, and what was found of its model's blocks
    facts: Facts
    work: Work
    fits: tuple[Fit, ...]
    #: the fastest plan if memory were no limit; None where rules forbid it, or nothing fits
    aside: Fit | None

    @property
    def of_job(self) -> tuple[Fit, ...]:
        """Those that are estimated as plans of the job itself are: what differs are nodes and offload."""
        return tuple(fit for fit in self._every if _kind_of(fit.facts) == _kind_of(self.facts))

    def told(self, of_job: Sequence[Case] = ()) -> tuple[tuple[NearestFit, ...], Case | None]:
        """Return up to five plans, those that cost least speed first, and what this is held against.

        ``of_job`` are the cases of those fits where these were estimated already.
        """
        known = self.of_job[: len(of_job)]
        cases = {fit.changes: case for fit, case in zip(known, of_job, strict=True)}
        cases |= self._assessed([fit for fit in self._every if fit.changes not in cases])
        aside = None if self.aside is None else cases[self.aside.changes]
        found = [_against(aside, fit.changes, cases[fit.changes]) for fit in self.fits]
        found.sort(key=lambda fit: fit.case.estimate.tokens_per_s_per_gpu, reverse=True)
        return tuple(found[:_MOST]), aside

    def _assessed(self, fits: Sequence[Fit]) -> Iterator[tuple[tuple[str, ...], Case]]:
        """Yield the plans as cases by their changes."""
        several: dict[tuple[int, Workload], list[Fit]] = {}
        for fit in fits:
            several.setdefault(_kind_of(fit.facts), []).append(fit)
        for alike in several.values():
            blocks_of = self.work.found if alike[0].facts.model is self.facts.model else None
            cases = assess_together([(fit.facts, fit.plan) for fit in alike], blocks_of)
            yield from zip((fit.changes for fit in alike), cases, strict=True)

    @property
    def _every(self) -> tuple[Fit, ...]:
        return self.fits if self.aside is None else (*self.fits, self.aside)


def _kind_of(facts: Facts) -> tuple[int, Workload]:
    """Return what jobs have in common that differ in nodes alone."""
    return id(facts.model), facts.workload


def _against(aside: Case | None, changes: tuple[str, ...], case: Case) -> NearestFit:
    if aside is None:
        return NearestFit(changes=changes, case=case)
    each = case.estimate.tokens_per_s_per_gpu / aside.estimate.tokens_per_s_per_gpu
    devices = case.plan.mesh.world_size / aside.plan.mesh.world_size
    return NearestFit(changes=changes, case=case, speed=each * devices, speed_each=each)
