"""When a cell of the parity table is judged again in fp64, and what it is then."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import parity_cells
from parity_cells import Cell
from parity_ranks import Job

WRONG = Cell(model="llama", strategy="tp", verdict="wrong", reason="apart")


@pytest.mark.parametrize(
    ("single", "in_double", "verdict"),
    [
        # losses drift from gradients that agree
        ({"loss_apart": 1e-2}, "works", "works"),
        ({"loss_apart": 1e-2}, "wrong", "wrong"),
        # gradients are little further apart than allowed, which rounding may do
        ({"gradient_apart": 2e-4}, "works", "untried"),
        ({"gradient_apart": 2e-4}, "wrong", "wrong"),
        ({"gradient_apart": 2e-4}, "untried", "wrong"),
        # further than rounding moves them, whatever fp64 has
        ({"gradient_apart": 2e-3}, "works", "wrong"),
        ({"gradient_apart": 2e-4, "loss_apart": 1e-2}, "works", "wrong"),
        ({"gradient_apart": float("nan")}, "works", "wrong"),
    ],
)
def test_what_rounding_moves_is_judged_in_fp64(
    monkeypatch: pytest.MonkeyPatch, single: dict[str, Any], in_double: str, verdict: str
) -> None:
    def outcome(job: Job, *_: Any) -> Cell:
        return replace(WRONG, verdict=in_double) if job.double else replace(WRONG, **single)

    monkeypatch.setattr(parity_cells, "_outcome", outcome)
    (cell,) = parity_cells.outcomes([Job(model="llama", strategy="tp")])
    assert cell.verdict == verdict


def test_ranks_with_other_weights_are_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(job: Job, *_: Any) -> Cell:
        return replace(WRONG, verdict="works" if job.double else "wrong", loss_apart=1e-2)

    monkeypatch.setattr(parity_cells, "_outcome", outcome)
    (cell,) = parity_cells.outcomes([Job(model="llama", strategy="tp", broken=True)])
    assert cell.verdict == "wrong"
