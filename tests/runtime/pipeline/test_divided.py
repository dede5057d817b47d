"""Stages with tensor-parallel layers train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.pipeline.divided import CELLS, Small, evaluated, on_four, resumed, run
from runtime.ranks import on_ranks
from runtime.training import TOLERANCE

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds what one process saved."""
    folder = tmp_path_factory.mktemp("divided")
    resumed({}, folder, "", "single")
    torch.save(Small().state_dict(), folder / "plain.pt")
    return folder


@pytest.fixture(scope="module")
def four(folder: Path) -> Found:
    return on_ranks(4, on_four, folder)


def same(found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    for (loss, norm), (expected_loss, expected_norm) in zip(found, expected, strict=True):
        assert loss == pytest.approx(expected_loss, abs=TOLERANCE, rel=0)
        assert norm == pytest.approx(expected_norm, rel=1e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_losses_and_gradient_norms(cell: str, four: Found) -> None:
    expected, _, _ = run({})
    for rank in four:
        same(rank[cell][0], expected)


def test_a_checkpoint_goes_from_one_process_to_divided_stages_and_back(four: Found, folder: Path) -> None:
    expected = resumed({}, folder, "single", "single-4")
    for rank in four:
        same(rank["resumed"], expected)
    after = resumed({}, folder, "single-4", "single-6")
    same(resumed({}, folder, "divided", "divided-6"), after)


def test_evaluation_with_weights_of_a_file(four: Found, folder: Path) -> None:
    expected = evaluated({}, folder / "plain.pt")
    assert [rank["evaluated"] for rank in four] == pytest.approx([expected] * 4, abs=TOLERANCE)


def test_dropout_is_alike_on_tensor_parallel_ranks_and_different_elsewhere(four: Found) -> None:
    found = [rank["dropping"] for rank in four]
    for first, second in ((found[0], found[1]), (found[2], found[3])):
        assert not torch.equal(first["inner"], second["inner"])
        assert torch.equal(first["outer"], second["outer"])
        assert first["whole"] == second["whole"]
        assert first["whole"]
    assert not torch.equal(found[0]["outer"], found[2]["outer"])
    assert all(rank["losses"] == found[0]["losses"] for rank in found)


def test_what_was_done_is_told(four: Found) -> None:
    _, said, _ = four[0]["1F1B"]
    for line in (
        "# stage 1 on pp rank 1: layers.1 to head",
        "# over mesh['tp'], column, gathered: head",
        "# between them activations are divided along the sequence",
        "# gradients of 1 parameters that several stages hold are summed",
    ):
        assert line in said


@pytest.mark.parametrize("cell", CELLS)
def test_logits_stay_divided_where_the_plan_says_so(cell: str, four: Found) -> None:
    divided = "loss_parallel" in CELLS[cell]
    for _, said, _ in (rank[cell] for rank in four):
        assert ("keeps logits divided up to cross entropy" in said) == divided
        assert "loss parallelism" not in said
    # three steps of three micro-batches with targets, on the ranks of the last stage
    computed = sorted(rank[cell][2] for rank in four)
    assert computed == [0, 0, 9 * divided, 9 * divided]
