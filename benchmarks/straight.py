"""How straight step times lie over the batch: a machine's scatter, sums of a simulator do not.

Runs that differ in their global batch alone take a constant and a time for each sample. What a table states
of them is held against the line that fits best.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from residuals import line

from parastrat.measured import compared
from parastrat.measured.comparison import step_time
from parastrat.measured.rows import NOT_SETTINGS
from parastrat.report.validation import ranking_told

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from parastrat.measured.fitting import Run
    from parastrat.measured.rows import MeasuredRow, Table

#: what runs of a group may differ in: the batch, what was measured, and what says nothing of what ran
_ASIDE = NOT_SETTINGS | {"global_batch"}
#: two runs are always on a line
_FEWEST = 3
#: share within which no machine repeats itself
_STRAIGHT = 1e-4


def deviations(rows: Iterable[MeasuredRow]) -> dict[str, list[float]]:
    """Return by table how far the furthest run of each group lies from the group's line, as a share."""
    groups: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    for row in rows:
        time = None if row.global_batch is None else step_time(row, row.global_batch)
        if row.global_batch is not None and time is not None:
            told = (getattr(row, each.name) for each in fields(row) if each.name not in _ASIDE)
            groups[row.origin, *told][row.global_batch] = time
    found: dict[str, list[float]] = defaultdict(list)
    for (table, *_), times in groups.items():
        if len(times) >= _FEWEST:
            found[str(table)].append(_furthest(times))
    return found


def _furthest(times: dict[int, float]) -> float:
    batches, seconds = np.array(list(times)), np.array(list(times.values()))
    # each run's deviation counts as a share of its own time
    sides = np.stack([batches / seconds, 1 / seconds], axis=-1)
    best = np.linalg.lstsq(sides, np.ones(len(seconds)), rcond=None)[0]
    return float(np.abs(sides @ best - 1).max())


def lines(table: Table, dense: Mapping[str, tuple[Sequence[Run], Sequence[float]]]) -> Iterator[str]:
    """Yield the section of held_out.md on it.

    Args:
        table: the runs.
        dense: of each way to leave runs out, the dense runs with their errors, which are logarithms.
    """
    found = {name: each for name, each in deviations(table.rows).items() if max(each) < _STRAIGHT}
    if not found:
        return
    yield from ("## Times as of a simulator", "")
    for name, off in sorted(found.items()):
        yield (
            f"- {name}: {len(off)} groups of three or more runs that differ in their batch alone lie on "
            f"straight lines within {100 * max(off):.1g} % (median {100 * median(off):.1g} %)"
        )
    yield from ("", "Runs of a machine scatter by some percent (accuracy.md): these look like sums.")
    yield from ("They count above as all others do. Without them:", "")
    yield from ("| dense | mean over sources | median | 90th percentile |", "|---|---:|---:|---:|")
    for way, (runs, errors) in dense.items():
        kept = [(run, error) for run, error in zip(runs, errors, strict=True) if run.table not in found]
        yield line(way, [run for run, _ in kept], [error for _, error in kept])
    others = tuple(row for row in table.rows if row.origin not in found)
    ranking = compared(replace(table, rows=others)).ranking
    if ranking is not None:
        yield from ("", f"{ranking_told(ranking)}.", "")
