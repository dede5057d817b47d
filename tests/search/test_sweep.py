"""Jobs drawn from all presets on all nodes: an answer to each, and nothing wrong with it."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

SWEEP = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "sweep.py"))
DRAWN = random.Random(0).sample(SWEEP["jobs"](), 200)  # noqa: S311 - the same draw each time


@pytest.mark.slow
def test_every_answer_obeys_its_rules_and_adds_up() -> None:
    answers = [SWEEP["answered"](model, on) for model, on in DRAWN]
    assert [(each.model, each.on, each.faults) for each in answers if each.faults] == []
    small = [each for each in answers if SWEEP["is_small"](each)]
    assert [SWEEP["beaten"](each) for each in small[:4]] == [[]] * 4
