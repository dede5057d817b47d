"""Cells of the parity table: a model under a strategy, run on its ranks, and judged."""

from __future__ import annotations

import functools
import json
import math
import os
import queue
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from parity_libraries import is_of_library
from parity_libraries import recipe_of as recipe_in_library
from parity_models import GRADIENT_TOLERANCE, LOSS_TOLERANCE, SUBJECTS
from parity_ranks import (
    STRATEGIES,
    Answer,
    Job,
    Reference,
    in_double,
    not_less,
    reference,
    serve,
    subject_of,
)
from parity_recipes import Recipe
from parity_transformers import OWN, recipe_of, said

#: a rank that takes so much processor time, and so many times the run on one device, hangs
DEADLINE_S = 180.0
#: ranks that take no processor time for so long wait for each other; a busy machine lets them have some
_STILL_S = 120.0
_A_TICK_S = 0.25
#: gradients so many times as far apart as allowed may be so by rounding: a maximum that it moves to
#: another element
_NEAR = 10
_PATIENCE = 40
#: what every rank imports: half a cell's processor time if each did it by itself
_PRELOADED = (
    "parity_ranks",
    "parastrat.runtime.apply",
    "torch.export._trace",
    "transformers.models.llama.modeling_llama",
)
VERDICTS = ("works", "refused", "crashed", "wrong", "untried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A model under a strategy, and what became of it."""

    model: str
    strategy: str
    verdict: str
    #: why it was refused, crashed or not tried, or what is wrong
    reason: str = ""
    loss_apart: float = 0.0
    gradient_apart: float = 0.0
    seconds: float = 0.0

    @property
    def drifted(self) -> bool:
        """Whether gradients of the first step agree, and only losses of later ones do not."""
        return self.verdict == "wrong" and self.gradient_apart <= GRADIENT_TOLERANCE

    @property
    def near(self) -> bool:
        """Whether losses agree, and gradients of the first step are little further apart than allowed."""
        apart = self.loss_apart <= LOSS_TOLERANCE and self.gradient_apart <= _NEAR * GRADIENT_TOLERANCE
        return self.verdict == "wrong" and apart


class Ranks:
    """Starts a strategy's ranks for each cell anew: what a cell leaves behind goes with its processes.

    They are forked from one process that has imported torch and started no thread.
    """

    def __init__(self, folder: Path) -> None:
        self._context = torch.multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        self._folder = folder

    def run(self, job: Job, deadline_s: float) -> list[Answer] | str:
        """Return every rank's answer, or how the cell crashed."""
        count = STRATEGIES[job.strategy].mesh.world_size
        answers = self._context.Queue()
        # its own folder: a store's file must not be there before
        with tempfile.TemporaryDirectory(dir=self._folder) as store:
            processes = [
                self._context.Process(target=serve, args=(rank, job, self._folder, Path(store), answers))
                for rank in range(count)
            ]
            for process in processes:
                process.start()
            try:
                return _answers(processes, answers, deadline_s)
            finally:
                for process in processes:
                    process.kill()
                for process in processes:
                    process.join()


def _answers(processes: list[Any], answers: Any, deadline_s: float) -> list[Answer] | str:
    found: dict[int, Answer] = {}
    moved_at, moved_by = time.monotonic(), 0.0
    while len(found) < len(processes):
        dead = [rank for rank, process in enumerate(processes) if not process.is_alive()]
        crash = _taken(found, answers)
        # what a process that is dead had put is there to be taken
        while not crash and not set(dead) <= found.keys() and not answers.empty():
            crash = _taken(found, answers)
        lost = [rank for rank in dead if rank not in found]
        if not crash and lost:
            crash = f"rank {lost[0]} died with {processes[lost[0]].exitcode}"
        spent = max(_spent_s(process.pid) for process in processes)
        if spent > moved_by + _A_TICK_S:
            moved_at, moved_by = time.monotonic(), spent
        if not crash and spent > deadline_s:
            crash = f"no answer in {deadline_s:.0f} s of processor time"
        elif not crash and time.monotonic() > moved_at + _STILL_S:
            crash = f"the ranks wait for each other, {_STILL_S:.0f} s by now"
        if crash:
            return crash
    return [found[rank] for rank in range(len(processes))]


def _spent_s(process: int) -> float:
    """Return the processor time that a process has taken; none where it is gone.

    Source: proc(5): fields 14 and 15 of stat; what stands before them may hold blanks, in brackets.
    """
    try:
        said = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = said.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _taken(found: dict[int, Answer], answers: Any) -> str:
    """Take one rank's answer, if there is one; return how it crashed, if it did."""
    try:
        rank, text = answers.get(timeout=0.1)
    except queue.Empty:
        return ""
    found[rank] = Answer(**json.loads(text))
    return found[rank].crashed


def outcomes(wanted: Iterable[Job]) -> Iterator[Cell]:
    """Run the cells one after the other."""
    torch.set_num_threads(1)  # as the ranks: sums in another order are other sums
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = Ranks(folder)
        before = ""
        for job in wanted:
            if job.model != before and before.endswith(OWN):
                _forget(folder)
            before = job.model
            start = time.monotonic()
            cell = _outcome(job, ranks, folder)
            if not job.broken and (cell.drifted or cell.near):
                cell = _judged_again(job, cell, _outcome(replace(job, double=True), ranks, folder))
            yield replace(cell, seconds=round(time.monotonic() - start, 2))


def _forget(folder: Path) -> None:
    """Remove the runs on one device, whose gradients are as large as the models."""
    _alone.cache_clear()
    for known in folder.glob("*.pt"):
        known.unlink()


def _outcome(job: Job, ranks: Ranks, folder: Path) -> Cell:
    alone = _alone(replace(job, strategy=""), folder)
    if isinstance(alone, str):
        return Cell(model=job.model, strategy=job.strategy, verdict="untried", reason=alone)
    return judged(job, ranks.run(job, max(DEADLINE_S, _PATIENCE * alone.seconds)), alone)


def _judged_again(job: Job, single: Cell, double: Cell) -> Cell:
    """Return what a cell is that drifted, or is near: wrong, unless it works where rounding moves nothing.

    Where it was a gradient of the first step that rounding moved, fp32 tells nothing, for or against it.
    What does not run in fp64 cannot be judged if gradients that differ as much as its own of the first step
    did, on one device, let losses drift as far.
    """
    if double.verdict == "works":
        again = replace(double, reason=f"in fp64; in fp32 {single.reason}")
        return again if single.drifted else replace(again, verdict="untried")
    if not single.drifted:
        return single
    if double.verdict == "untried" and _is_moved_by(job, single.gradient_apart):
        reason = f"gradients {single.gradient_apart:.1e} apart move its losses by more than is allowed"
        return replace(single, verdict="untried", reason=reason)
    return single


def _recipe(model: str) -> Recipe | str | None:
    """Return how a model that nobody chose is built, or why it is not."""
    if model in SUBJECTS:
        return None
    return recipe_in_library(model) if is_of_library(model) else recipe_of(model)


def _is_moved_by(job: Job, noise: float) -> bool:
    recipe = _recipe(job.model)
    if isinstance(recipe, str):
        return False
    subject = subject_of(job.model, recipe)
    steps = subject.steps if job.steps is None else job.steps
    return _moved(reference(subject, steps), reference(subject, steps, noise=noise))


def judged(job: Job, answers: list[Answer] | str, known: Reference) -> Cell:
    """Return the verdict on one cell."""
    model, strategy = job.model, job.strategy
    if isinstance(answers, str):
        return Cell(model=model, strategy=strategy, verdict="crashed", reason=answers)
    refused = [answer.refused for answer in answers if answer.refused]
    if refused:
        verdict = "refused" if len(refused) == len(answers) else "crashed"
        return Cell(model=model, strategy=strategy, verdict=verdict, reason=refused[0])
    apart = max(
        not_less(abs(loss - expected))
        for answer in answers
        for loss, expected in zip(answer.losses, known.losses, strict=True)
    )
    missing = set(known.gradients) - {name for answer in answers for name in answer.compared}
    worst = max(answers, key=lambda answer: not_less(answer.apart))
    reason = ""
    if not apart <= LOSS_TOLERANCE:
        reason = f"losses are {apart:.1e} apart"
    elif not worst.apart <= GRADIENT_TOLERANCE:
        reason = f"gradient of {worst.worst} is {worst.apart:.1e} apart"
    elif missing:
        reason = f"no gradient of {', '.join(sorted(missing)[:3])}"
    return Cell(
        model=model,
        strategy=strategy,
        verdict="wrong" if reason else "works",
        reason=reason,
        loss_apart=apart,
        gradient_apart=worst.apart,
    )


def _moved(run: Reference, beside: Reference) -> bool:
    """Return whether two runs of one device are further apart than a cell may be."""
    apart = (not_less(abs(a - b)) for a, b in zip(run.losses, beside.losses, strict=True))
    return max(apart) > LOSS_TOLERANCE


@functools.lru_cache(maxsize=64)
def _alone(job: Job, folder: Path) -> Reference | str:
    """Return the model's run on one device, kept for the ranks; or why there is none."""
    recipe = _recipe(job.model)
    if isinstance(recipe, str):
        return recipe
    subject = subject_of(job.model, recipe)
    if job.double:
        subject = in_double(subject)
    try:
        run = reference(subject, subject.steps if job.steps is None else job.steps)
    except Exception as error:  # models that nobody chose may raise anything
        if recipe is None:
            raise
        return said(error)
    if not all(math.isfinite(loss) for loss in run.losses):
        return "its loss is not finite on one device"
    if (
        recipe is not None
        and not job.double
        and _moved(run, reference(subject, len(run.losses), beside=True))
    ):
        return "the last bit of its weights moves its losses by more than is allowed"
    replace(run, recipe=recipe).save(folder / job.known)
    # the ranks compare values; here their names do
    return replace(run, gradients=dict.fromkeys(run.gradients, torch.empty(0)))
