"""Cells of the parity table: a model under a strategy, run on processes that are kept, and judged."""

from __future__ import annotations

import functools
import json
import math
import queue
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.multiprocessing
from parity_models import SUBJECTS
from parity_ranks import STRATEGIES, Answer, Reference, not_less, reference, serve, subject_of
from parity_transformers import recipe_of, said

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
#: a cell that answers nothing for so long, and so many times the run on one device, hangs
DEADLINE_S = 180.0
_PATIENCE = 40
#: processes that start on a machine that does other things too
_START_S = 600.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell to run."""

    model: str
    strategy: str
    #: the last rank gets wrong weights
    broken: bool = False
    #: optimizer steps; None takes the model's
    steps: int | None = None


class Workers:
    """As many processes as the largest strategy has ranks; started again after a crash."""

    def __init__(self, folder: Path, count: int) -> None:
        self._context = torch.multiprocessing.get_context("spawn")
        self._folder, self._count = folder, count
        self._cells = 0
        self._start()

    def _start(self) -> None:
        self._commands = [self._context.Queue() for _ in range(self._count)]
        self._answers = self._context.Queue()
        self._processes = [
            self._context.Process(
                target=serve, args=(rank, self._folder, self._commands[rank], self._answers), daemon=True
            )
            for rank in range(self._count)
        ]
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self._answers.get(timeout=_START_S)

    def run(self, job: Job, deadline_s: float) -> list[Answer] | str:
        """Return every rank's answer, or how the cell crashed."""
        self._cells += 1
        ranks = STRATEGIES[job.strategy].mesh.world_size
        for commands in self._commands[:ranks]:
            commands.put((self._cells, job.model, job.strategy, job.broken))
        found: dict[int, Answer] = {}
        end = time.monotonic() + deadline_s
        while len(found) < ranks:
            crash = self._taken(found)
            dead = [rank for rank in range(ranks) if not self._processes[rank].is_alive()]
            if not crash and dead and dead[0] not in found:
                crash = self._taken(found) or f"rank {dead[0]} died"
            if not crash and time.monotonic() > end:
                crash = f"no answer in {deadline_s:.0f} s"
            if crash:
                self.stop()
                self._start()
                return crash
        return [found[rank] for rank in range(ranks)]

    def _taken(self, found: dict[int, Answer]) -> str:
        """Take one rank's answer, if there is one; return how it crashed, if it did."""
        try:
            number, rank, text = self._answers.get(timeout=0.5)
        except queue.Empty:
            return ""
        if number != self._cells:
            return ""
        found[rank] = Answer(**json.loads(text))
        return found[rank].crashed

    def stop(self) -> None:
        """End all processes at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def outcomes(wanted: Iterable[Job]) -> Iterator[Cell]:
    """Run the cells one after the other."""
    wanted = list(wanted)
    if not wanted:
        return
    torch.set_num_threads(1)  # as the ranks: sums in another order are other sums
    count = max(STRATEGIES[job.strategy].mesh.world_size for job in wanted)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = Workers(folder, count)
        stack.callback(workers.stop)
        for job in wanted:
            start = time.monotonic()
            alone = _alone(job.model, folder, job.steps)
            if isinstance(alone, str):
                cell = Cell(model=job.model, strategy=job.strategy, verdict="untried", reason=alone)
            else:
                cell = judged(job, workers.run(job, max(DEADLINE_S, _PATIENCE * alone.seconds)), alone)
            yield replace(cell, seconds=round(time.monotonic() - start, 2))


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


@functools.lru_cache(maxsize=64)
def _alone(model: str, folder: Path, steps: int | None) -> Reference | str:
    """Return the model's run on one device, kept for the ranks; or why there is none."""
    recipe = None if model in SUBJECTS else recipe_of(model)
    if isinstance(recipe, str):
        return recipe
    subject = subject_of(model, recipe)
    try:
        run = reference(subject, subject.steps if steps is None else steps)
    except Exception as error:  # models that nobody chose may raise anything
        if recipe is None:
            raise
        return said(error)
    if not all(math.isfinite(loss) for loss in run.losses):
        return "its loss is not finite on one device"
    replace(run, recipe=recipe).save(folder / f"{model}.pt")
    return run
