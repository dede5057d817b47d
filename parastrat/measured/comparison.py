"""Measured runs predicted one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from statistics import fmean
from typing import TYPE_CHECKING

from parastrat.assess import assess
from parastrat.comparison import Compared, Comparison, Quantity, Rival, Skipped, ranking_of
from parastrat.errors import ParastratError
from parastrat.measured.jobs import job_of
from parastrat.measured.rates import unknown_rate
from parastrat.measured.rows import NOT_SETTINGS, THROUGHPUT
from parastrat.measured.skipped import CannotPredictError
from parastrat.ranks.states import context_bytes
from parastrat.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from parastrat.case import Case
    from parastrat.measured.rows import MeasuredRow, Table

_OUT_OF_MEMORY = "oom"
#: with what few tables say: by it runs would be told apart as their tables are, and groups be others than
#: before
_NOT_TOLD_APART_BY = NOT_SETTINGS | {
    *("dispatcher", "exchange_overlap", "cuda_graph", "vocab_padding", "loss_format"),
}
#: columns that say how a run was divided among devices and in time
_PARALLELISM = {
    *("tp", "pp", "vpp", "cp", "ep", "dp", "fsdp", "sequence_parallel", "async_tp"),
    *("act_ckpt", "act_ckpt_assumed", "micro_batch"),
}


def compared(table: Table) -> Comparison:
    """Return each run of a table predicted, or why it is not.

    A run's measurements are read after it is predicted, so that they cannot change what is predicted; runs
    without any are predicted all the same.
    """
    rows: list[Compared] = []
    skipped: list[Skipped] = []
    spreads = _Spreads()
    for row in table.rows:
        try:
            job = job_of(row)
            case = assess(job.facts, job.plan)
            found = _times(row, case, table.columns)
            known, unknown = _peaks(row, case)
            if unknown and not any(each.measured for each in found):
                raise unknown
        except CannotPredictError as error:
            skipped.append(Skipped(id=row.id, reason=error.reason))
        except ParastratError as error:
            skipped.append(Skipped(id=row.id, reason=error.message))
        else:
            found += known
            if unknown:
                skipped.append(Skipped(id=row.id, reason=f"peak memory alone: {unknown.reason}"))
            rows += found
            spreads.add(row, found, job.plan.rung)
            if not found:
                reason = unknown_rate(row) if _has_times(table.columns) else None
                skipped.append(Skipped(id=row.id, reason=reason or "what was measured is not stated"))
    return Comparison(
        rows=tuple(rows),
        skipped=tuple(skipped),
        noise=spreads.by_quantity(),
        ranking=ranking_of(spreads.rivals()),
    )


class _Spreads:
    """Measurements of runs that no column tells apart, and of those that only parallelism does."""

    def __init__(self) -> None:
        self._alike: dict[tuple[object, ...], list[float]] = defaultdict(list)
        #: by what was trained on what: by parallelism, predicted step times and rungs of the ladder
        self._rivals: dict[tuple[object, ...], dict[tuple[object, ...], tuple[float, int]]] = defaultdict(
            dict
        )

    def add(self, row: MeasuredRow, found: Iterable[Compared], rung: int) -> None:
        named = {
            field.name: getattr(row, field.name)
            for field in fields(row)
            if field.name not in _NOT_TOLD_APART_BY
        }
        settings = tuple(named.values())
        job = tuple(value for name, value in named.items() if name not in _PARALLELISM)
        for each in found:
            if each.measured is not None:
                own = each.quantity, *settings
                self._alike[own].append(each.measured)
                if each.quantity is Quantity.STEP_TIME:
                    self._rivals[job][own] = each.predicted, rung

    def rivals(self) -> list[list[Rival]]:
        """Return runs that differ in parallelism alone, by job, with their mean measured times."""
        return [
            [
                Rival(predicted=predicted, measured=fmean(self._alike[own]), rung=rung)
                for own, (predicted, rung) in group.items()
            ]
            for group in self._rivals.values()
        ]

    def by_quantity(self) -> dict[Quantity, tuple[float, ...]]:
        return {
            quantity: tuple(
                max(same) / min(same) - 1
                for (own, *_), same in self._alike.items()
                if own is quantity and len(same) > 1
            )
            for quantity in Quantity
        }


def _times(row: MeasuredRow, case: Case, columns: Iterable[str]) -> list[Compared]:
    """Return a run's step time compared; nothing of a table without times, or of an unknown rate."""
    if not _has_times(columns) or unknown_rate(row) is not None:
        return []
    time, out_of_memory = case.estimate.time, ran_out_of_memory(row)
    found = Compared(
        id=row.id,
        stack=case.stack.name,
        quantity=Quantity.STEP_TIME,
        measured=None if out_of_memory else step_time(row, case.plan.global_batch_size),
        predicted=time.step,
        low=time.step_low,
        high=time.step_high,
        verdict=case.estimate.verdict,
        out_of_memory=out_of_memory,
    )
    return [found]


def _peaks(row: MeasuredRow, case: Case) -> tuple[list[Compared], CannotPredictError | None]:
    """Return a run's peak memory compared, or why it is not: that says nothing against its time."""
    if row.mem_metric is None:
        return [], None
    try:
        predicted = _in_metric(case, row.mem_metric)
    except CannotPredictError as error:
        return [], error
    estimate, out_of_memory = case.estimate, ran_out_of_memory(row)
    found = Compared(
        id=row.id,
        stack=case.stack.name,
        quantity=Quantity.PEAK_MEMORY,
        measured=None if out_of_memory or not row.peak_mem_gib else row.peak_mem_gib * GIB,
        predicted=predicted,
        low=predicted - estimate.memory.margin,
        high=predicted + estimate.memory.margin,
        verdict=estimate.verdict,
        out_of_memory=out_of_memory,
    )
    return [found], None


def _has_times(columns: Iterable[str]) -> bool:
    return any(name in columns for name in THROUGHPUT)


def ran_out_of_memory(row: MeasuredRow) -> bool:
    """Return whether a run ended out of memory."""
    return (row.status or "").lower() == _OUT_OF_MEMORY


def step_time(row: MeasuredRow, samples: int | None) -> float | None:
    """Return the seconds of an optimizer step, from throughput where no time is stated.

    ``samples`` are those of the step that is predicted: of a row that states no batch its throughput is
    known, but no step of another size.
    """
    if row.step_time_s:
        return row.step_time_s
    samples = row.global_batch or samples
    if row.tokens_per_s_per_gpu and samples and row.seq_len:
        return samples * row.seq_len / row.gpus / row.tokens_per_s_per_gpu
    if row.samples_per_s and samples:
        return samples / row.samples_per_s
    return None


def is_timed(row: MeasuredRow) -> bool:
    """Return whether a run's source says how fast it was."""
    return any(getattr(row, name) for name in THROUGHPUT)


def _in_metric(case: Case, metric: str) -> float:
    """Return the peak as a source counts it: the whole process, the allocator's reserve, or its tensors."""
    memory = case.estimate.memory
    known = metric.lower()
    if "nvidia-smi" in known:
        return memory.total
    if "reserved" in known:
        return memory.total - context_bytes(case.facts)
    if "allocated" in known:
        return memory.total - memory.overhead
    raise CannotPredictError(f"memory metric {metric!r} is none of reserved, allocated, nvidia-smi")
