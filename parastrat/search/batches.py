"""What the ranks of a share may run: micro-batches and schedules.

They hang on stages and data ranks alone. Meshes with as many of both have them in common, so that they
stand here once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.plan import PipelineSchedule

if TYPE_CHECKING:
    from parastrat.columns import Columns

#: what a batch adds to the columns of a mesh
OF_BATCH = ("micro_batch_size", "gradient_accumulation_steps", "pp_schedule", "virtual_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Micro-batches with schedules, those of one share after those of another."""

    columns: Columns
    #: of each share, among the columns
    starts: Any
    counts: Any

    def of(self, meshes: Columns, chosen: Any) -> Columns:
        """Return chosen ones of some meshes with all that their shares may run.

        ``mesh`` is each row's place among the meshes. ``place`` orders rows as they are told: by schedule,
        by micro-batch and by mesh.
        """
        own = meshes.share[chosen]
        counts = self.counts[own]
        mesh, before = np.repeat(chosen, counts), np.cumsum(counts) - counts
        batches = self.columns.at(np.arange(len(mesh)) + np.repeat(self.starts[own] - before, counts))
        return meshes.at(mesh).joined(
            {
                "mesh": mesh,
                "place": batches.place - batches.share + mesh,
                **self._own(batches),
            }
        )

    def first_of(self, meshes: Columns) -> Columns:
        """Return meshes with the first that their shares may run."""
        batches = self.columns.at(self.starts[meshes.share])
        return meshes.joined(self._own(batches))

    def _own(self, batches: Columns) -> dict[str, Any]:
        """Return what batches add to meshes; the policy with which to compute again where it is settled."""
        settled = ("recompute",) if batches.has("recompute") else ()
        return {name: getattr(batches, name) for name in (*OF_BATCH, *settled)}

    def least(self, *, crosses_once: bool) -> Batches:
        """Return of each share the batches of which one needs the least memory, whatever its mesh.

        That is the smallest micro-batch of every schedule: a larger one needs more while as many are in
        flight. Where it leaves fewer, or but one in a step, that is not known.

        Args:
            crosses_once: some of what crosses between stages is as large for any number of samples: fewer
                micro-batches have less of it.
        """
        columns = self.columns
        chunks, many = columns.virtual_stages, int(columns.virtual_stages.max(initial=0)) + 1
        # -1 without a pipeline
        schedules = (columns.share * (len(PipelineSchedule) + 1) + columns.pp_schedule + 1) * many + chunks
        order = np.lexsort((columns.micro_batch_size, schedules))
        least = columns.gradient_accumulation_steps < 2 * columns.pp
        if crosses_once:
            least |= columns.pp > 1
        least[order] |= np.diff(schedules[order], prepend=-1) > 0
        return of_shares(columns.at(np.flatnonzero(least)), len(self.counts))


def of_shares(columns: Columns, many: int) -> Batches:
    """Return batches in the order of their shares, of which there are so many."""
    counts = np.bincount(columns.share, minlength=many)
    ordered = columns.at(np.argsort(columns.share, kind="stable"))
    return Batches(columns=ordered, starts=np.cumsum(counts) - counts, counts=counts)
