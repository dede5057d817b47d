"""A stack's constants, corrected by step times that were measured on it.

Constants move away from what they are where runs ask for it: what is minimised is the mean size of the
runs' errors, in logarithms, beside the squares of how far each constant has gone, in units of how well it
was known. Errors of one table go together, because its runs share a recipe, so a table of many runs does
not count as many times as one run. Those of runs that do the same work on more devices, or more often,
share their kernels as well: they count little more than one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.assess import plans_table
from parastrat.columns import Columns
from parastrat.correction import Corrected, StackFit
from parastrat.cost import step_s
from parastrat.errors import ParastratError
from parastrat.measured.comparison import is_timed, ran_out_of_memory, step_time
from parastrat.measured.constants import CONSTANTS, EVERY_CONSTANT, rate_of
from parastrat.measured.jobs import job_of
from parastrat.measured.rates import unknown_rate
from parastrat.measured.skipped import CannotPredictError
from parastrat.tables import facts_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from parastrat.measured.constants import Constant
    from parastrat.measured.jobs import MeasuredJob
    from parastrat.measured.rows import MeasuredRow
    from parastrat.stack import Stack

#: mean size of the error, in logarithms, of a run whose stack is known: runs that no column tells apart
#: differ by 2 to 3 %, and the best fits of single tables are off by 3 to 6 % (docs/accuracy.md)
_SCATTER = 0.06
#: how far errors of one table go together; assumed
_CORRELATION = 0.1
#: how much further those of runs in which a rank does the same work: together dense runs' errors correlate
#: by 0.90 where releases of a source are told apart, 0.79 to 0.92 without one source or another, and
#: by 0.85 where they are not, as here; those of one model by 0.11 (docs/held_out.md)
_SAME_WORK = 0.8
#: of a constant's range 80 % lie within so many sigmas
_WITHIN_80 = 1.2816
#: errors below this count as squares
_SMALL = 0.003
#: derivatives are taken over so many sigmas
_STEP = 0.25
_ROUNDS = 4
_GAIN = 1e-6
_REWEIGHTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job that was measured."""

    #: runs of one table share a recipe
    table: str
    stack: str
    job: MeasuredJob
    seconds: float

    @property
    def work(self) -> tuple[object, ...]:
        """What a rank does with a micro-batch: runs alike differ in data ranks and micro-batches alone."""
        facts, plan = self.job.facts, self.job.plan
        mesh, workload = plan.mesh, facts.workload
        return (
            *(self.table, facts.stack, facts.hardware.device.name),
            *(facts.model.ref, workload.sequence_length, workload.precision),
            *(mesh.pp, plan.virtual_stages, mesh.cp, mesh.tp, mesh.ep, plan.sequence_parallel),
            *(plan.micro_batch_size, plan.recompute),
        )


def runs_of(rows: Iterable[MeasuredRow]) -> tuple[Run, ...]:
    """Return the runs that ended, say how long they took, and can be predicted."""
    return tuple(filter(None, (run_of(row) for row in rows if unknown_rate(row) is None)))


def run_of(row: MeasuredRow) -> Run | None:
    """Return a run as if its device had its profile's rates; None as ``runs_of`` leaves out others."""
    if not is_timed(row) or ran_out_of_memory(row) or row.stack is None:
        return None
    try:
        job = job_of(row)
    except (CannotPredictError, ParastratError):
        return None
    seconds = step_time(row, job.plan.global_batch_size)
    if seconds is None:
        return None
    return Run(table=row.origin, stack=job.facts.stack.name, job=job, seconds=seconds)


def predicted(run: Run, stack: Stack) -> float:
    """Return the seconds of a run's step on a stack; which kernels run, and how, is the run's own."""
    facts, own = run.job.facts, run.job.facts.stack
    stack = replace(
        stack,
        kernels=own.kernels,
        mixed_gradient_bytes=own.mixed_gradient_bytes,
        captured=own.captured,
        exchanges_beside=own.exchanges_beside,
        dispatch_once_per_domain=own.dispatch_once_per_domain,
        permutes_in_exchange=own.permutes_in_exchange,
        casts_four_bits=own.casts_four_bits,
        scales_rows=own.scales_rows,
        gathers_fp8=own.gathers_fp8,
        pads_vocabulary=own.pads_vocabulary,
        attention=own.attention,
    )
    facts = replace(facts, stack=stack)
    columns = Columns({**facts_columns(facts), **plans_table([run.job.plan])})
    return float(step_s(facts, columns)[0])


def fitted(
    runs: Sequence[Run],
    stack: Stack,
    constants: Sequence[Constant] = CONSTANTS,
    *,
    predict: Callable[[Run, Stack], float] = predicted,
) -> StackFit:
    """Return a stack whose constants were corrected by runs; without runs, the stack as it is.

    How errors change with constants is taken at the stack as it is; the least mean size under that is found
    by squares weighed anew, and corrected by the errors that are really there.

    Args:
        runs: of that stack.
        stack: what was known before.
        constants: what may move.
        predict: the seconds of a run on a stack; for whoever asks for the same ones often.
    """

    def at(sigmas: Any) -> Stack:
        moved = stack
        for constant, own in zip(constants, sigmas, strict=True):
            moved = constant.moved(moved, float(own))
        return moved

    def errors_at(sigmas: Any) -> Any:
        own = at(sigmas)
        return np.array([math.log(predict(run, own) / run.seconds) for run in runs])

    weights, best = _weights(runs), np.zeros(len(constants))
    before = errors = errors_at(best)
    known = np.eye(len(constants))
    if runs:
        slopes = _slopes(errors_at, best, errors)
        for _ in range(_ROUNDS):
            tried = _least(errors - slopes @ best, slopes, weights)
            found = errors_at(tried)
            if _loss(found, tried, weights) >= _loss(errors, best, weights) - _GAIN:
                break
            best, errors = tried, found
        known = _covariance(slopes, weights, float(np.abs(errors).mean()))
    return StackFit(
        stack=at(best),
        constants=tuple(
            _corrected(constant, stack, (own, deviation))
            for constant, own, deviation in zip(constants, best, np.sqrt(np.diag(known)), strict=True)
        ),
        fields=tuple(field for constant in constants for field in constant.fields),
        before=tuple(before.tolist()),
        after=tuple(errors.tolist()),
        covariance=tuple(map(tuple, known.tolist())),
    )


def unsureness(run: Run, prior: Stack, fit: StackFit, predict: Callable[[Run, Stack], float]) -> float:
    """Return the standard deviation of the logarithm of a run's seconds that its stack's constants leave.

    Constants that the fit did not move are as unsure as they were. How seconds change with constants is
    taken at the stack as it was before the fit.

    Args:
        run: any run.
        prior: the stack that was fitted.
        fit: what came of it.
        predict: the seconds of a run on a stack.
    """

    def slope(constant: Constant) -> float:
        return (math.log(predict(run, constant.moved(prior, _STEP))) - still) / _STEP

    still = math.log(predict(run, prior))
    device = rate_of(run.job.facts.hardware.device.name)
    slopes = {constant.name: slope(constant) for constant in (*EVERY_CONSTANT, device)}
    # nothing hangs on the rates of other devices
    own = np.array([slopes.pop(each.name, 0.0) for each in fit.constants])
    return math.sqrt(own @ np.array(fit.covariance) @ own + sum(each**2 for each in slopes.values()))


def _weights(runs: Sequence[Run]) -> Any:
    """Return what each run's error counts, in units of the prior: less the more share its table or work.

    As many runs as those whose errors go together so far have a mean that is so much less sure.
    """
    works = [run.work for run in runs]
    of_table, of_work = Counter(run.table for run in runs), Counter(works)
    together = [
        (of_table[run.table] - 1) * _CORRELATION + (of_work[work] - 1) * _SAME_WORK
        for run, work in zip(runs, works, strict=True)
    ]
    return np.array([1 / (1 + more) / _SCATTER for more in together])


def _loss(errors: Any, sigmas: Any, weights: Any) -> float:
    return float(weights @ np.abs(errors) + sigmas @ sigmas / 2)


def _slopes(errors_at: Callable[[Any], Any], sigmas: Any, errors: Any) -> Any:
    """Return by how much each error changes with each constant, a sigma of it."""
    columns = []
    for place in range(len(sigmas)):
        changed = sigmas.copy()
        changed[place] += _STEP
        columns.append((errors_at(changed) - errors) / _STEP)
    return np.stack(columns, axis=1)


def _least(offsets: Any, slopes: Any, weights: Any) -> Any:
    """Return where ``|offsets + slopes x|``, weighed, and half of the square of ``x`` are least together.

    A size is a square over itself: squares are weighed by the sizes of the round before.
    """
    sigmas = np.zeros(slopes.shape[1])
    for _ in range(_REWEIGHTED):
        scale = weights / np.maximum(np.abs(offsets + slopes @ sigmas), _SMALL)
        curvature = slopes.T @ (scale[:, None] * slopes) + np.eye(len(sigmas))
        sigmas = np.linalg.solve(curvature, -slopes.T @ (scale * offsets))
    return sigmas


def _covariance(slopes: Any, weights: Any, scatter: float) -> Any:
    """Return how well constants are known together after the runs, in sigmas of how well they were before.

    Errors that are distributed by exp(-|error| / scatter) tell 1 / scatter^2 each.
    """
    told = weights / max(scatter, _SCATTER)
    return np.linalg.inv(slopes.T @ (told[:, None] * slopes) + np.eye(slopes.shape[1]))


def _corrected(constant: Constant, stack: Stack, found: tuple[float, float]) -> Corrected:
    sigmas, deviation = map(float, found)

    def value(of: float) -> float:
        return constant.value(constant.moved(stack, of))

    within = _WITHIN_80 * deviation
    return Corrected(
        name=constant.name,
        before=constant.value(stack),
        after=value(sigmas),
        low=value(sigmas - within),
        high=value(sigmas + within),
    )
