"""What is left of step times' errors: how far those of alike runs go together, and what neighbours tell.

For docs/held_out.md, which ``python benchmarks/held_out.py --write`` makes.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from parastrat.assess import plans_table
from parastrat.columns import Columns
from parastrat.cost.step import PARTS, time_columns
from parastrat.measured.fitting import Run
from parastrat.tables import facts_columns

#: how many neighbours tell, and which share of their mean error is believed
_NEIGHBOURS = 5, 15
_BELIEVED = 0.5

_OF_NEIGHBOURS = """\
What a source's other runs tell beyond constants: of each run of a *known stack* half of the mean error of
its nearest neighbours is taken off. Near are sizes of model, plan and batch, device, number format and what
a step spends its time on. Where neighbours of other models take nothing off, nothing that these coordinates
tell goes from one model of a source to another.
"""

Label = Callable[[Run], Hashable]
#: what runs may share, beside the table that they are of
TOGETHER: dict[str, Label] = {
    "model": lambda run: run.job.facts.model.ref,
    "model, device and number format": lambda run: (
        run.job.facts.model.ref,
        run.job.facts.hardware.device.name,
        run.job.facts.workload.precision,
    ),
    "work of a rank for a micro-batch": lambda run: run.work,
}


def correlation(runs: Sequence[Run], errors: Sequence[float], label: Label) -> float:
    """Return how far errors of runs that share a label correlate, around the mean of their table and stack.

    Args:
        runs: what ran.
        errors: the logarithms of predicted over measured seconds.
        label: what tells groups of runs apart.
    """
    tables, groups = _grouped(runs), _grouped(runs, label)
    own = np.array(errors)
    for rows in tables:
        own[rows] -= own[rows].mean()
    products = [(own[rows].sum() ** 2 - (own[rows] ** 2).sum()) / len(rows) for rows in groups]
    # of pairs, each group counting as many as it has runs beyond its first
    pairs = sum(len(rows) - 1 for rows in groups)
    return float(sum(products) / pairs / (own**2).mean())


def beside_neighbours(
    runs: Sequence[Run], errors: Sequence[float], label: Label | None, count: int
) -> list[float]:
    """Return errors less half of the mean one of their nearest neighbours of the same table and stack.

    Args:
        runs: what ran.
        errors: the logarithms of predicted over measured seconds.
        label: what no neighbour may share; None: any other run is one.
        count: of neighbours.
    """
    places, own = _places(runs), np.array(errors)
    left = own.copy()
    for rows in _grouped(runs):
        names: list[Hashable] = [row if label is None else label(runs[row]) for row in rows]
        for row, name in zip(rows, names, strict=True):
            others = np.array([at for at, of in zip(rows, names, strict=True) if of != name], dtype=int)
            far = np.linalg.norm(places[others] - places[row], axis=1)
            nearest = others[np.argsort(far, kind="stable")[:count]]
            if len(nearest):
                left[row] -= _BELIEVED * own[nearest].mean()
    return list(map(float, left))


def _grouped(runs: Sequence[Run], label: Label | None = None) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row, run in enumerate(runs):
        groups[run.table, run.stack, label and label(run)].append(row)
    return list(groups.values())


def _places(runs: Sequence[Run]) -> Any:
    """Return runs before coordinates: sizes as logarithms, a step's parts as shares, names as 0 and 1."""
    sizes = np.log2([_sizes(run) for run in runs])
    names = [_names(run) for run in runs]
    every = sorted({name for own in names for name in own})
    named = np.array([[name in own for name in every] for own in names], dtype=float)
    found = np.concatenate([sizes, np.array([_shares(run) for run in runs]), named], axis=1)
    spread = found.std(axis=0)
    return found / np.where(spread > 0, spread, 1.0)


def _sizes(run: Run) -> list[float]:
    facts, plan = run.job.facts, run.job.plan
    mesh, model = plan.mesh, facts.model
    degrees = (mesh.pp, mesh.dp, mesh.cp, mesh.tp, mesh.ep, plan.virtual_stages)
    steps = (plan.micro_batch_size, plan.gradient_accumulation_steps, facts.workload.sequence_length or 1)
    return [*degrees, *steps, model.layers, model.hidden or 1, model.vocab or 1, model.parameters]


def _names(run: Run) -> set[str]:
    facts, plan = run.job.facts, run.job.plan
    return {facts.hardware.device.name, facts.workload.precision, plan.recompute, plan.shard, plan.compile}


def _shares(run: Run) -> list[float]:
    facts = run.job.facts
    found = time_columns(facts, Columns({**facts_columns(facts), **plans_table([run.job.plan])}))
    return [float(found[part][0] / found["step"][0]) for part in PARTS]


def lines(
    left_out: tuple[Sequence[Run], Sequence[float]], known: tuple[Sequence[Run], Sequence[float]]
) -> Iterator[str]:
    """Yield what is left of dense runs' errors, by constants of other sources and of a known stack."""
    runs, errors = left_out
    yield from ("## What is left of dense errors", "")
    yield "Errors of one source, left out, go together where its runs share more than their stack:"
    yield ""
    for name, label in TOGETHER.items():
        many = len({(run.table, run.stack, label(run)) for run in runs})
        yield f"- {name}: correlated by {correlation(runs, errors, label):.2f} ({many} groups)"
    runs, errors = known
    yield ""
    yield _OF_NEIGHBOURS
    yield "| neighbours | mean over sources | median | 90th percentile |"
    yield "|---|---:|---:|---:|"
    yield line("none", runs, errors)
    apart: dict[str, Label | None] = {
        "of other models": TOGETHER["model"],
        "of other work, the same model too": TOGETHER["work of a rank for a micro-batch"],
        "any": None,
    }
    for name, unshared in apart.items():
        for count in _NEIGHBOURS:
            yield line(f"{count}, {name}", runs, beside_neighbours(runs, errors, unshared, count))
    yield ""


def line(name: str, runs: Sequence[Run], errors: Sequence[float]) -> str:
    """Return a table's line of the errors of some runs, which are logarithms."""
    of_sources: dict[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        of_sources[run.table].append(abs(math.expm1(error)))
    sizes = sorted(size for own in of_sources.values() for size in own)
    mean = statistics.fmean(map(statistics.fmean, of_sources.values()))
    figures = mean, statistics.median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]
    return f"| {name} | {' | '.join(f'{100 * share:.1f} %' for share in figures)} |"
