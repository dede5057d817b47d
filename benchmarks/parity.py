"""Small models under every strategy against one device: losses of 20 steps, gradients of the first.

Usage: python benchmarks/parity.py [--state FILE] [--minutes N] [--only TEXT] [--broken] [--write]
                                  [--transformers [--draw N] [--seed N]]

Results are kept in FILE (parity.jsonl), and cells in it are not run again. ``--only`` takes cells whose
name ("llama, pp 1f1b") has the text. ``--broken`` gives the last rank wrong weights: every cell must come
out wrong. ``--write`` writes docs/parity.md. ``--transformers`` takes model classes of the installed
transformers instead, all or N drawn ones, built from shrunk configs, under FSDP2 and TP; what cannot be
built so small, or called with tokens or an image alone, is counted as untried.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import queue
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from parity_models import SUBJECTS
from parity_ranks import STRATEGIES, Answer, Reference, reference, serve, subject_of
from parity_transformers import names as names_in_transformers

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
#: a cell that answers nothing for so long, and so many times the run on one device, hangs
DEADLINE_S = 120.0
_PATIENCE = 40
PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
_HEAD = """\
# Parity

Small models trained for 20 steps in fp32 on CPU ranks (Gloo), every micro-batch with another number of
targets, against one process in plain torch: losses within {loss:.0e}, gradients of the first step within
{gradient:.0e} of each parameter's largest. Written by `python benchmarks/parity.py --write`.
"""
VERDICTS = ("works", "refused", "crashed", "wrong", "untried")
#: of classes of transformers
_OFTEN = ("fsdp2", "tp")
#: eight ranks hold a copy each
_LARGEST = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A model under a strategy, and what became of it."""

    model: str
    strategy: str
    verdict: str
    #: why it was refused or crashed, or what is wrong
    reason: str = ""
    loss_apart: float = 0.0
    gradient_apart: float = 0.0
    seconds: float = 0.0


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

    def run(self, model: str, strategy: str, deadline_s: float, *, broken: bool) -> list[Answer] | str:
        """Return every rank's answer, or how the cell crashed."""
        self._cells += 1
        ranks = STRATEGIES[strategy].mesh.world_size
        for commands in self._commands[:ranks]:
            commands.put((self._cells, model, strategy, broken))
        found: dict[int, Answer] = {}
        end = time.monotonic() + deadline_s
        while len(found) < ranks:
            dead = [rank for rank in range(ranks) if not self._processes[rank].is_alive()]
            if dead or time.monotonic() > end:
                self.stop()
                self._start()
                return f"rank {dead[0]} died" if dead else f"no answer in {deadline_s:.0f} s"
            try:
                number, rank, text = self._answers.get(timeout=0.5)
            except queue.Empty:
                continue
            if number == self._cells:
                found[rank] = Answer(**json.loads(text))
        return [found[rank] for rank in range(ranks)]

    def stop(self) -> None:
        """End all processes at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def judged(model: str, strategy: str, answers: list[Answer] | str, known: Reference) -> Cell:
    """Return the verdict on one cell."""
    cell = {"model": model, "strategy": strategy}
    if isinstance(answers, str):
        return Cell(**cell, verdict="crashed", reason=answers)
    refused = [answer.refused for answer in answers if answer.refused]
    if refused:
        every = len(refused) == len(answers)
        return Cell(**cell, verdict="refused" if every else "crashed", reason=refused[0])
    apart = max(
        abs(loss - expected)
        for answer in answers
        for loss, expected in zip(answer.losses, known.losses, strict=True)
    )
    missing = set(known.gradients) - {name for answer in answers for name in answer.compared}
    worst = max(answers, key=lambda answer: answer.apart)
    reason = ""
    if not apart <= LOSS_TOLERANCE:
        reason = f"losses are {apart:.1e} apart"
    elif not worst.apart <= GRADIENT_TOLERANCE:
        reason = f"gradient of {worst.worst} is {worst.apart:.1e} apart"
    elif missing:
        reason = f"no gradient of {', '.join(sorted(missing)[:3])}"
    verdict = "wrong" if reason else "works"
    return Cell(**cell, verdict=verdict, reason=reason, loss_apart=apart, gradient_apart=worst.apart)


def table(cells: Iterable[Cell]) -> str:
    """Return the page: strategies down, models across, and what stands behind each verdict."""
    found = {(cell.model, cell.strategy): cell for cell in cells}
    models = [model for model in SUBJECTS if any(key[0] == model for key in found)]
    signs = {"works": "✓", "refused": "no", "crashed": "**crash**", "wrong": "**wrong**"}
    counts = Counter(cell.verdict for cell in found.values())
    lines = [
        _HEAD.format(loss=LOSS_TOLERANCE, gradient=GRADIENT_TOLERANCE),
        "; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + f" of {len(found)} cells.",
        "",
        "| | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    for strategy in STRATEGIES:
        row = [found.get((model, strategy)) for model in models]
        if any(row):
            shown = (signs[cell.verdict] if cell else "" for cell in row)
            lines.append(f"| {strategy} | " + " | ".join(shown) + " |")
    lines += ["", "## Refused, and why", ""]
    reasons: dict[str, list[str]] = {}
    for cell in found.values():
        if cell.verdict != "works":
            reasons.setdefault(f"{cell.verdict}: {cell.reason}", []).append(
                f"{cell.model}, {cell.strategy}"
            )
    for reason, names in sorted(reasons.items()):
        lines.append(f"- {reason} ({'; '.join(names)})")
    worst = max(
        (cell for cell in found.values() if cell.verdict == "works"),
        key=lambda cell: cell.loss_apart,
        default=None,
    )
    if worst is not None:
        lines += [
            "",
            f"Furthest apart of those that work: {worst.model}, {worst.strategy}: {worst.loss_apart:.1e}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is not known yet; exit 1 if a cell is wrong or crashed (or, broken, is not wrong)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--state", type=Path, default=Path("parity.jsonl"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the ranks: sums in another order are other sums
    cells = _known(given.state)
    wanted = [
        (model, strategy)
        for model, strategy in _named(given)
        if given.only in f"{model}, {strategy}" and (model, strategy) not in cells
    ]
    _fill(wanted, cells, given)
    chosen = [cell for cell in cells.values() if given.only in f"{cell.model}, {cell.strategy}"]
    counts = Counter(cell.verdict for cell in chosen)
    print("; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS), f"of {len(chosen)} cells")
    if given.write:
        PAGE.write_text(table(cells.values()), encoding="utf-8")
    bad = counts["works"] if given.broken else counts["wrong"] + counts["crashed"]
    sys.exit(1 if bad else 0)


def _named(given: Any) -> list[tuple[str, str]]:
    if not given.transformers:
        return [(model, strategy) for strategy in STRATEGIES for model in SUBJECTS]
    models = names_in_transformers()
    if given.draw is not None:
        models = random.Random(given.seed).sample(models, given.draw)  # noqa: S311
    return [(model, strategy) for model in models for strategy in _OFTEN]


def _known(state: Path) -> dict[tuple[str, str], Cell]:
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    cells = [Cell(**json.loads(line)) for line in lines]
    return {(cell.model, cell.strategy): cell for cell in cells}


def _fill(wanted: list[tuple[str, str]], cells: dict[tuple[str, str], Cell], given: Any) -> None:
    if not wanted:
        return
    end = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = max(STRATEGIES[strategy].mesh.world_size for _, strategy in wanted)
        workers = Workers(folder, count)
        for model, strategy in wanted:
            if time.monotonic() > end:
                print("out of time; run again to go on")
                break
            start = time.monotonic()
            alone = _alone(model, folder)
            if isinstance(alone, str):
                cell = Cell(model=model, strategy=strategy, verdict="untried", reason=alone)
            else:
                deadline = max(DEADLINE_S, _PATIENCE * alone.seconds)
                answers = workers.run(model, strategy, deadline, broken=given.broken)
                cell = judged(model, strategy, answers, alone)
            cell = Cell(**{**asdict(cell), "seconds": round(time.monotonic() - start, 2)})
            cells[model, strategy] = cell
            print(f"{model}, {strategy}: {cell.verdict} {cell.reason} ({cell.seconds:.1f} s)", flush=True)
            with given.state.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(cell)) + "\n")
        workers.stop()


@functools.lru_cache(maxsize=64)
def _alone(model: str, folder: Path) -> Reference | str:
    """Return the model's run on one device, kept for the ranks; or why there is none."""
    subject = subject_of(model)
    try:
        module = subject.build()
        if (size := sum(parameter.numel() for parameter in module.parameters())) > _LARGEST:
            return f"has {size:,} parameters"
        run = reference(subject)
    except Exception as error:  # models that nobody chose may raise anything
        if model in SUBJECTS:
            raise
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if not all(math.isfinite(loss) for loss in run.losses):
        return "its loss is not finite on one device"
    run.save(folder / f"{model}.pt")
    return run


if __name__ == "__main__":
    main()
