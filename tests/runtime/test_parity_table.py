"""The cells of docs/parity.md: cheap models under half of the strategies, and some that the commit draws.

Drawn are which of two models it is, a part of the table's cells, from those of other models, and some
classes of transformers, each under three strategies: from the classes that the first way to shrink makes
small, and of these the ones whose losses on one device do not hang on the last bit of a weight. All train
fewer steps than for the page.
Runs where PARASTRAT_TEST_PARITY is set, as it is in CI.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drawn import drawn, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PARASTRAT_TEST_PARITY" not in os.environ, reason="takes minutes"),
]

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from parity_cells import Cell, outcomes  # noqa: E402
from parity_models import SUBJECTS  # noqa: E402
from parity_ranks import STRATEGIES, Job  # noqa: E402
from parity_transformers import names, recipe_of  # noqa: E402

CHEAP = ("sequential", "llama")
#: optimizer steps; the benchmark takes 20
STEPS = 3
#: other cells of the table, one in 64; and classes of transformers
DRAWN, CLASSES = -(-len(SUBJECTS) * len(STRATEGIES) // 64), 2
OFTEN = ("fsdp2", "tp", "pp 1f1b")
#: strategies under which a rank gets wrong weights
BROKEN = drawn(("ddp", "fsdp2", "tp", "pp 1f1b", "pp x fsdp2"), 3)
#: the recipe of the classes that are drawn: others are larger
CHEAPEST = "fixed"


def cheap_cells() -> list[tuple[str, str]]:
    """Return a quarter of the strategies, some with each cheap model; all where all is tested."""
    ways, eighth = list(STRATEGIES), len(STRATEGIES) // 8
    of_first, of_second = drawn(ways, eighth), ways
    if len(of_first) == eighth:
        of_second = drawn([strategy for strategy in ways if strategy not in of_first], eighth)
    pairs = zip(CHEAP, (of_first, of_second), strict=True)
    return [(model, strategy) for model, strategies in pairs for strategy in strategies]


def drawn_cells() -> list[tuple[str, str]]:
    others = [(m, s) for m in SUBJECTS if m not in CHEAP for s in STRATEGIES]
    return drawn(others, DRAWN)


def jobs_of_classes(found: dict[Job, Cell]) -> Iterator[Job]:
    """Ask for classes until enough could be compared; ``found`` has each job's cell before the next."""
    compared = 0
    for name in shuffled(names()):
        if compared == CLASSES:
            return
        if isinstance(recipe_of(name, (CHEAPEST,)), str):
            continue
        first, *others = [Job(model=name, strategy=strategy) for strategy in OFTEN]
        yield first
        if found[first].verdict == "untried":
            del found[first]
            continue
        yield from others
        compared += 1


@pytest.fixture(scope="module")
def cells() -> dict[Job, Cell]:
    table = cheap_cells() + drawn_cells()
    found: dict[Job, Cell] = {}
    asked: list[Job] = []

    def jobs() -> Iterator[Job]:
        yield from (Job(model=model, strategy=strategy, steps=STEPS) for model, strategy in table)
        yield from (Job(model="sequential", strategy=name, steps=STEPS, broken=True) for name in BROKEN)
        yield from jobs_of_classes(found)

    def noted() -> Iterator[Job]:
        for job in jobs():
            asked.append(job)
            yield job

    for cell in outcomes(noted()):
        found[asked[-1]] = cell
    return found


@pytest.fixture(scope="module")
def page() -> dict[tuple[str, str], str]:
    """The table's signs by model and strategy."""
    text = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in lines]
    first, _, *others = rows
    of_models = [row for row in others if len(row) == len(first)]
    return {
        (model, row[0]): sign for row in of_models for model, sign in zip(first[1:], row[1:], strict=True)
    }


@pytest.mark.parametrize(("model", "strategy"), cheap_cells())
def test_cheap_models_train_as_on_one_device(model: str, strategy: str, cells: Any, page: Any) -> None:
    _check(cells[Job(model=model, strategy=strategy, steps=STEPS)], page)


def test_drawn_cells_train_as_on_one_device(cells: Any, page: Any) -> None:
    for model, strategy in drawn_cells():
        _check(cells[Job(model=model, strategy=strategy, steps=STEPS)], page)


def test_classes_that_cannot_be_compared_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "recipe_of", lambda *_: None)
    verdicts = iter(["untried", *["works"] * len(OFTEN) * CLASSES])
    found: dict[Job, Cell] = {}
    for job in jobs_of_classes(found):
        found[job] = Cell(model=job.model, strategy=job.strategy, verdict=next(verdicts))
    assert len(found) == CLASSES * len(OFTEN)


def test_drawn_classes_train_as_on_one_device_or_are_refused(cells: Any) -> None:
    found = [cell for job, cell in cells.items() if job.model not in SUBJECTS]
    assert len(found) == CLASSES * len(OFTEN)
    for cell in found:
        # right in fp64, and moved by rounding in fp32
        moved = cell.verdict == "untried" and cell.reason.startswith("in fp64")
        assert moved or cell.verdict in {"works", "refused"}, cell


def test_a_rank_with_other_weights_is_seen(cells: Any) -> None:
    broken = {job.strategy: cell for job, cell in cells.items() if job.broken}
    assert len(broken) == len(BROKEN)
    # where another rank should hold the same, or compute the same, training stops by itself
    told = {strategy: cell.verdict for strategy, cell in broken.items()}
    assert told == {strategy: "refused" if strategy in {"ddp", "tp"} else "wrong" for strategy in BROKEN}


def _check(cell: Cell, page: dict[tuple[str, str], str]) -> None:
    """What the page says works does; nothing else is wrong or crashes."""
    works = page[cell.model, cell.strategy] == "✓"
    assert cell.verdict in ({"works"} if works else {"works", "refused"}), cell
