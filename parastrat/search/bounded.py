"""What is searched, with floors: what no plan of a mesh, or of a row, falls below."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.cost import least_weights_s, time_floor, weights_floor
from parastrat.distinct import first_places, places_of
from parastrat.memory import memory_margin
from parastrat.memory.crossing import fixed_of
from parastrat.memory.floors import memory_floor, mesh_floor
from parastrat.memory.quick import quick_floor
from parastrat.rules import rejection_masks
from parastrat.rules.split_backward import split_backward_repeats_recompute
from parastrat.schedules import SPLITS
from parastrat.search.obeying import Obeying, Rejected, attributed
from parastrat.search.rows import Constraints
from parastrat.search.space import option_counts, policies
from parastrat.search.work import Work

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.rules import PlanRule
    from parastrat.units import Mask

#: rows that are judged sooner than bounded
_FEW = 600

#: seconds that no step takes, which are finite for what waits for nothing
_ENDLESS = 1e30

#: bytes that no device has
NEVER = 2.0**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A space that is searched."""

    facts: Facts
    fixed: Constraints
    allowed: Obeying
    work: Work
    #: whether memory is a limit
    limited: bool = True

    @property
    def few(self) -> bool:
        """Whether its rows are judged sooner than bounded."""
        return int(self.allowed.counts.sum()) <= _FEW

    def may_fit(self, memory: Any, *, roomy: bool) -> Any:
        """Return which floors of memory leave a chance, with the margin or without."""
        if not self.limited:
            return np.ones(memory.shape, dtype=bool)
        margin = memory_margin(self.facts, memory) if roomy else 0
        return memory + margin <= self.facts.hardware.device.usable_memory_bytes

    def memory_of_meshes(self) -> Any:
        """Return for each recompute policy floors of what the plans of each mesh need."""
        meshes = self.allowed.meshes
        if not self.limited:
            floors = np.zeros(len(meshes.pp))
        else:
            floors = meshes.mesh_floor if meshes.has("mesh_floor") else mesh_floor(self.facts, meshes)
        return np.tile(floors, (len(policies(self.fixed)), 1))

    def steps_of_meshes(self, chosen: Any) -> Any:
        """Return floors of the steps of chosen meshes, the least over micro-batches and schedules."""
        meshes, c = self.allowed.meshes.at(chosen), self.allowed.batches.columns
        sizes = self.work.sizes
        size = np.searchsorted(sizes, c.micro_batch_size)
        shape = len(sizes), len(self.allowed.batches.counts)
        steps = np.ones(shape)
        steps[size, c.share] = c.gradient_accumulation_steps
        # what does not run, or no schedule runs with, never ends
        runs, waits = np.full(shape, np.inf), np.full((2, *shape), _ENDLESS)
        runs[size, c.share] = c.gradient_accumulation_steps
        split = is_any_of(c.pp_schedule, SPLITS).astype(np.int64)
        np.minimum.at(waits, (split, size, c.share), 1 / c.virtual_stages)
        # of meshes that differ in how they shard alone blocks and bubble take as long
        _, place = places_of(meshes.share * (int(meshes.width.max(initial=0)) + 1) + meshes.width)
        alike = first_places(place)
        share = meshes.share.take(alike)
        micro_batches = self.work.micro_batches(meshes.at(alike), policies(self.fixed)[0])
        weights, floors = self._weights_of(chosen), np.full(len(place), np.inf)
        # one size after the other: arrays of all would leave the processor's cache
        for own, (whole, others, apart) in enumerate(micro_batches):
            # ranks wait for the others' whole micro-batches, or for forwards or inputs' gradients at least
            wait = np.minimum(others * waits[0, own].take(share), apart * waits[1, own].take(share))
            work = (whole * runs[own].take(share) + wait).take(place)
            several = steps[own].take(meshes.share)
            np.minimum(floors, weights_floor(self.facts, meshes, work, several, weights), out=floors)
        return floors

    def steps(self, rows: Columns, recompute: Any) -> Any:
        """Return floors of the steps of rows with a recompute policy each, by its code."""
        known = self.work.of(rows), self.work.heaviest(self.facts), self._weights_of(rows.mesh)
        return time_floor(self.facts, rows.joined({"recompute": recompute}), known)

    def _weights_of(self, chosen: Any) -> dict[str, Any]:
        """Return the least seconds of the weights of chosen meshes: all have them found, or some alone."""
        meshes, heaviest = self.allowed.meshes, self.work.heaviest(self.facts)
        if self.work.partial:
            found, chosen = places_of(chosen)
            meshes = meshes.at(found)
        every = least_weights_s(heaviest, meshes)
        return {part: seconds.take(chosen) for part, seconds in every.items()}

    def with_floors(self, columns: Columns) -> Bounded:
        """Return rows with floors of their memory."""
        if not self.limited:
            return self.without_floors(columns)
        memory = memory_floor(self.facts, columns, policies(self.fixed))
        return Bounded(space=self, columns=columns, memory=self._of_able(columns, memory))

    def without_floors(self, columns: Columns) -> Bounded:
        """Return rows that are judged whatever they need."""
        memory = np.zeros((len(policies(self.fixed)), len(columns.pp)))
        return Bounded(space=self, columns=columns, memory=self._of_able(columns, memory))

    def with_quick_floors(self, columns: Columns, least: Any = 0.0, *, closer: bool = True) -> Bounded:
        """Return rows with floors of their memory that are found sooner, none below those of a mesh.

        ``closer`` as of ``quick_floor``.
        """
        if not self.limited:
            return self.without_floors(columns)
        widths = self.work.widths(columns)
        floors = quick_floor(self.facts, columns, policies(self.fixed), widths, closer=closer)
        memory = np.maximum(floors, least)
        return Bounded(space=self, columns=columns, memory=self._of_able(columns, memory))

    def _of_able(self, columns: Columns, memory: Any) -> Any:
        """Return floors that no device can hold where a row's schedule does not go with a policy."""
        if not is_any_of(columns.pp_schedule, SPLITS).any():
            return memory
        codes = np.array([code_of(policy) for policy in policies(self.fixed)])
        never = split_backward_repeats_recompute.mask(columns.joined({"recompute": codes[:, None]}))
        return np.where(never, NEVER, memory)

    def least_rows(self, chosen: Any) -> Bounded:
        """Return rows of chosen meshes of which one needs the least of its mesh, with quick floors."""
        batches = self.allowed.batches.least(crosses_once=any(fixed_of(self.facts.model)))
        return self.with_quick_floors(batches.of(self.allowed.meshes, chosen))

    def misfits(self, chosen: Any, memory: Any) -> tuple[Rejected, ...]:
        """Return which of chosen meshes rules reject by floors of their memory, each with all its plans."""
        meshes = self.allowed.meshes.at(chosen)
        plans = option_counts(self.fixed, meshes) * self.allowed.counts[chosen]
        # rules that read batches as well wait
        masks = self.masks(meshes, memory)
        return attributed(self.allowed.batches.first_of(meshes), masks, plans)[1]

    def masks(self, columns: Columns, memory: Any) -> dict[PlanRule, Mask]:
        """Return what rules forbid that read memory, where floors stand for it, and were not asked before.

        One that fires on a floor fires on every plan above it.
        """
        capacity = self.facts.hardware.device.usable_memory_bytes
        judged = columns.joined({"memory_total": memory, "memory_capacity": capacity})
        return dict(rejection_masks(judged, self.allowed.judged))


def searched(
    facts: Facts, fixed: Constraints, allowed: Obeying, *, once: bool = False, beside: Work | None = None
) -> Searched:
    """Return a space, to be searched; ``once``, or several times as it is or changed.

    ``beside`` as of ``Work``.
    """
    meshes, batches = allowed.meshes, allowed.batches.columns
    work = Work(facts=facts, meshes=meshes, batches=batches, once=once, beside=beside)
    return Searched(facts=facts, fixed=fixed, allowed=allowed, work=work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Some rows of a space with floors of their memory."""

    space: Searched
    columns: Columns
    #: for each recompute policy that is searched, a row of bytes; NEVER where it does not go with a plan
    memory: Any

    def may_fit(self, *, roomy: bool) -> Any:
        """Return for each policy which rows may fit under it, with the margin or without."""
        return self.space.may_fit(self.memory, roomy=roomy)

    def misfits(self) -> tuple[Rejected, ...]:
        """Return which rows rules reject by the floors of their memory, each with all its plans."""
        masks = self.space.masks(self.columns, self.memory.min(axis=0))
        return attributed(self.columns, masks, option_counts(self.space.fixed, self.columns))[1]

    def at(self, places: Any) -> Bounded:
        """Return some of the rows."""
        return replace(self, columns=self.columns.at(places), memory=self.memory.take(places, axis=1))

    def with_own_work(self) -> Bounded:
        """Return the rows with what their blocks take alone, if it is not known of the whole space."""
        return replace(self, space=replace(self.space, work=self.space.work.among(self.columns)))
