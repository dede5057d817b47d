"""``parastrat tune``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.flags import PlanFile
from parastrat.cli.run import Arguments, Script, check_script
from parastrat.errors import LaunchError, UsageError
from parastrat.failures import Blames, known_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case, Facts
    from parastrat.cli.plan_case import PlanSource
    from parastrat.trials import Timed, Trial

_Others = Annotated[
    int, typer.Option("--others", min=1, max=50, metavar="N", help="Plans to try beside it.")
]
_Steps = Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps of each that are timed.")]
_WarmUp = Annotated[int, typer.Option("--warm-up", min=0, metavar="N", help="Steps before those.")]
_Limit = Annotated[
    int, typer.Option("--limit", min=1, metavar="SECONDS", help="After these a plan's trial is ended.")
]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="The kept plan [default: plan.tuned.toml]."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

#: how long ranks that are stopped may take to leave
_PATIENCE_S = 20
_NO_MEMORY = "ran out of memory"
_ERROR = re.compile(r"^error: (?P<message>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """What every trial runs."""

    words: tuple[str, ...]
    warm_up: int
    steps: int
    limit_s: int
    #: where trials' plans, findings and output are
    folder: Path


def tune(  # noqa: PLR0913 - a parameter is a flag
    plan: PlanFile,
    script: Script,
    arguments: Arguments = None,
    *,
    others: _Others = 4,
    steps: _Steps = 10,
    warm_up: _WarmUp = 3,
    limit: _Limit = 600,
    output: _Output = None,
    as_json: _AsJson = False,
) -> None:
    """Run a script for a few steps under a plan and others of its job, and keep the fastest.

    The script runs as it is, on this node, and is ended after so many steps: what it writes, it writes.
    The flags of tune stand before plan.toml.
    """
    from parastrat.cli.files import refuse_others
    from parastrat.cli.output import paper, show, show_json, tell, write_plan
    from parastrat.cli.plan_case import PlanSource
    from parastrat.parse import read_plan
    from parastrat.report.tuning import tuning_json, tuning_text
    from parastrat.trials import Tuning, kept_of

    source = PlanSource(path=plan, parsed=read_plan(plan))
    check_script(script)
    facts, target = _facts(source), output or plan.with_name(f"{plan.stem}.tuned.toml")
    refuse_others(target, "parastrat.plan/", "plan file")
    folder = Path(tempfile.mkdtemp(prefix="parastrat-tune-"))
    words = (str(script), *(arguments or ()))
    every = _Script(words=words, warm_up=warm_up, steps=steps, limit_s=limit, folder=folder)
    with _ending_with_this():
        trials = _confirmed(every, _tried(every, facts, source, others))
    tuning = Tuning(trials=trials, kept=kept_of(trials))
    stored = None
    if tuning.kept is not None and (tuning.kept is not tuning.given or output is not None):
        write_plan(tuning.kept.case, target)
        stored = str(target)
    if any(trial.failure for trial in trials):
        tell(f"what the trials printed is in {folder}")
    else:
        shutil.rmtree(folder)
    show_json(tuning_json(tuning, stored)) if as_json else show(tuning_text(tuning, stored, paper()))
    if tuning.kept is None:
        raise typer.Exit(1)


def _facts(source: PlanSource) -> Facts:
    """Return the plan's job.

    Raises:
        UsageError: the file does not say on what or how it runs, or that several nodes do.
    """
    from parastrat.cli.plan_case import facts_for

    launch, hardware = source.parsed.launch, source.parsed.hardware
    if launch is None or hardware is None:
        missing = "[launch]" if launch is None else "[hardware]"
        raise UsageError(
            f"{source.path} has no {missing}",
            hint="write a whole file: parastrat recommend MODEL -o plan.toml, or parastrat estimate ... -o",
        )
    if launch.nodes > 1:
        raise UsageError(
            f"the plan is for {launch.nodes} nodes, and tune runs on one",
            hint="plan for one of them to tune what stays the same: micro-batch, recompute, resharding",
        )
    return facts_for(source, hardware)


def _tried(script: _Script, facts: Facts, source: PlanSource, others: int) -> tuple[Trial, ...]:
    """Return what became of the plan that was given, and of others that the script can run.

    Raises:
        LaunchError: the script does not run under the plan that it was given, for another reason than its
            memory; or trains another batch.
    """
    from parastrat.assess import assess
    from parastrat.search import Constraints
    from parastrat.search.shortlist import shortlist
    from parastrat.trials import Loop

    given = _trial(script, assess(facts, source.plan), 0)
    if given.timed is None and given.failure != _NO_MEMORY:
        raise LaunchError(
            f"{script.words[0]} does not run under the plan that was given: {given.failure}",
            hint=f"what it printed is in {script.folder / 'trial0.log'}",
        )
    if given.timed is not None and given.failure is not None:
        raise LaunchError(
            f"{script.words[0]} does not train as the plan says: {given.failure}",
            hint="train with parastrat.shard_dataloader and parastrat.forward_backward, or plan with "
            f"--global-batch {given.timed.samples[1]}",
        )
    # of a loop that ran out of memory before its first step nothing is known
    plain = given.timed is None or given.timed.loop is Loop.PLAIN
    fixed = Constraints(applied=True, plain_loop=plain)
    found = shortlist(facts, fixed, source.plan, others)
    return (given, *(_trial(script, case, place) for place, case in enumerate(found, 1)))


def _confirmed(script: _Script, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return trials of which the first and the fastest have run once more, one after the other.

    What else the machine did, and what the first run found cold, would choose between them otherwise.
    """
    from parastrat.trials import kept_of

    best = kept_of(trials)
    if best is None or best is trials[0] or trials[0].timed is None:
        return trials
    return tuple(
        _again(script, trial, place) if trial is trials[0] or trial is best else trial
        for place, trial in enumerate(trials)
    )


def _again(script: _Script, trial: Trial, number: int) -> Trial:
    second = _trial(script, trial.case, number, again=True)
    if trial.timed is None or second.timed is None or second.failure is not None:
        return replace(trial, failure=f"the second time {second.failure}")
    return replace(trial, timed=trial.timed.with_more(second.timed))


def _trial(script: _Script, case: Case, number: int, *, again: bool = False) -> Trial:
    """Run the script under a plan for some steps."""
    from parastrat.cli.output import tell, write_plan
    from parastrat.records import build
    from parastrat.report.numbers import duration
    from parastrat.report.wording import batch_words, option_words, plan_name
    from parastrat.trials import Timed, Trial

    name = f"{number}{'-again' if again else ''}"
    plan, found = script.folder / f"plan{name}.toml", script.folder / f"trial{name}.json"
    log = script.folder / f"trial{name}.log"
    told = ", ".join([plan_name(case), f"batch {batch_words(case.plan)}", *option_words(case.plan)])
    which = f"trial {number}{'' if number else ', the given plan'}"
    tell(f"{which}, once more" if again else f"{which}: {told}")
    write_plan(case, plan)
    ended = _ended(script, plan, found, log)
    words = log.read_text(encoding="utf-8", errors="replace")
    timed = build(Timed, json.loads(found.read_text(encoding="utf-8"))) if found.exists() else None
    failure = _failure(script, case, timed, ended, words)
    trial = Trial(case=case, timed=timed, failure=failure)
    predicted = duration(case.estimate.time.step)
    measured = failure if trial.seconds is None else duration(trial.seconds)
    tell(f"  predicted {predicted}, measured {measured}")
    return trial


def _ended(script: _Script, plan: Path, found: Path, log: Path) -> int | None:
    """Run the script under a plan; return its exit code, None where it took too long."""
    from parastrat.trials import TRIAL_VARIABLE

    asked = json.dumps({"path": str(found), "warm_up": script.warm_up, "steps": script.steps})
    command = [sys.executable, "-m", "parastrat", "run", str(plan), *script.words]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the user's own script
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, TRIAL_VARIABLE: asked},
        )
        try:
            return process.wait(script.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # its agent ends the ranks
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def _ending_with_this() -> Iterator[None]:
    """Let what runs end when this process is asked to: Python ends at once on SIGTERM otherwise."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _failure(script: _Script, case: Case, timed: Timed | None, ended: int | None, words: str) -> str | None:
    """Return why a trial has no time that can be compared; None where it has one."""
    if timed is not None:
        low, high = timed.samples
        batch = case.plan.global_batch_size
        if (low, high) == (batch, batch):
            return None
        trained = f"{low}" if low == high else f"{low} to {high}"
        return f"a step trains {trained} samples, the plan's global batch is {batch}"
    if ended is None:
        return f"took longer than {script.limit_s:,.0f} s"
    known = known_failure(words)
    if known is not None and known.blames is Blames.MEMORY:
        return _NO_MEMORY
    if ended == 0:
        return f"the script ended before {script.warm_up + script.steps + 1} optimizer steps"
    told = _ERROR.findall(words)
    return told[-1] if told else f"exit code {ended}"
