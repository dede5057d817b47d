"""The report of ``tune``: plans that ran for a few steps, beside what was predicted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.emit.plan_file import plan_table
from parastrat.plan import Shard
from parastrat.report.numbers import duration, percent
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Tone, rendered, wrapped
from parastrat.report.wording import plan_name
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.plan import Plan
    from parastrat.report.text import Line, Paper
    from parastrat.trials import Trial, Tuning

SCHEMA = "parastrat.tune/1"


def tuning_json(tuning: Tuning, kept_in: str | None) -> dict[str, Any]:
    """Return the answer of ``tune``; ``kept_in`` is the plan file of the kept plan."""
    return {
        "schema": SCHEMA,
        "trials": [_record(trial) for trial in tuning.trials],
        "kept": next((place for place, trial in enumerate(tuning.trials) if trial is tuning.kept), None),
        "kept_in": kept_in,
    }


def _record(trial: Trial) -> dict[str, Any]:
    timed = trial.timed
    return {
        "plan": plan_table(trial.case.plan),
        "predicted_s": trial.case.estimate.time.step,
        "measured_s": trial.seconds,
        "spread": None if timed is None else timed.spread,
        "seconds": [] if timed is None else list(timed.seconds),
        "peak_bytes": None if timed is None else timed.peak_bytes,
        "failure": trial.failure,
    }


def tuning_text(tuning: Tuning, kept_in: str | None, paper: Paper) -> str:
    """Return what was tried, as a table, under a sentence that says what to keep."""
    lines = wrapped(_sentence(tuning, kept_in), paper, tone=Tone.STRONG if tuning.kept else Tone.BAD)
    columns = (
        Column(title=""),
        Column(title="plan", most=40),
        Column(title="batch"),
        Column(title="predicted", fill=Fill.NUMBER),
        Column(title="measured", fill=Fill.NUMBER),
        Column(title="options, or what failed", fill=Fill.REST),
    )
    lines += [(), *table_lines(columns, [_row(tuning, trial) for trial in tuning.trials], paper)]
    lines += _errors(tuning, paper)
    return rendered(lines, paper)


def _sentence(tuning: Tuning, kept_in: str | None) -> str:
    given, kept = tuning.given, tuning.kept
    if kept is None:
        return "No plan ran: nothing is kept."
    others = counted(len(tuning.trials) - 1, "other")
    if kept is given:
        name = plan_name(kept.case)
        return f"Keep the plan that was given, {name}: of {others} none is faster by more than steps vary."
    name = f"{plan_name(kept.case)}, micro-batch {kept.case.plan.micro_batch_size}"
    stored = "" if kept_in is None else f"; it is in {kept_in}"
    if given.seconds is None or kept.seconds is None:
        return f"Keep {name}: the plan that was given does not run{stored}."
    gain = given.seconds / kept.seconds - 1
    return f"Keep {name}: {percent(gain)} faster than the plan that was given{stored}."


def _row(tuning: Tuning, trial: Trial) -> Row:
    plan, seconds = trial.case.plan, trial.seconds
    mark = "*" if trial is tuning.kept else ""
    what = trial.failure or ", ".join(_options(plan))
    if trial is tuning.given:
        what = f"given; {what}"
    measured = "-" if seconds is None else f"{duration(seconds)} ±{percent(trial.spread)}"
    batch = f"{plan.micro_batch_size} x {plan.gradient_accumulation_steps} x {plan.mesh.dp}"
    return Row(
        cells=(mark, plan_name(trial.case), batch, duration(trial.case.estimate.time.step), measured, what),
        tone=Tone.STRONG if mark else Tone.PLAIN,
    )


def _options(plan: Plan) -> Iterator[str]:
    """Yield what tells plans of one mesh and batch apart."""
    yield f"recompute {plan.recompute.value}"
    if plan.shard is Shard.PARAMETERS and plan.mesh.pp == 1:
        yield "reshards" if plan.reshard_after_forward else "keeps gathered"
    if plan.pp_schedule is not None:
        yield plan.pp_schedule.value
    if plan.virtual_stages > 1:
        yield f"{plan.virtual_stages} stages a rank"


def _errors(tuning: Tuning, paper: Paper) -> list[Line]:
    """Return how far off the predictions are, where something ran."""
    errors = [trial.case.estimate.time.step / trial.seconds - 1 for trial in tuning.trials if trial.seconds]
    if not errors:
        return []
    low, high = min(errors), max(errors)
    told = f"between {100 * low:+.0f} and {100 * high:+.0f} %" if len(errors) > 1 else f"{100 * low:+.0f} %"
    text = f"Predictions are off by {told}; batch is micro-batch x accumulation x data-parallel ranks."
    return [(), *wrapped(text, paper, tone=Tone.FAINT)]
