"""Checkpoints, evaluation and random numbers of pipelines, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.models import Gpt
from runtime.pipeline.stages import evaluated, from_file, on_two_states, resumed
from runtime.ranks import on_ranks
from runtime.training import TOLERANCE

pytestmark = pytest.mark.slow

PLANS = ["1F1B", "ZBV"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds what one process saved."""
    folder = tmp_path_factory.mktemp("states")
    resumed({}, folder, save="single")
    torch.save(Gpt().state_dict(), folder / "plain.pt")
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    return on_ranks(2, on_two_states, folder)


@pytest.fixture(scope="module")
def alone(folder: Path) -> tuple[list[float], list[float]]:
    """Steps 2 and 3, and 4 and 5, of one process."""
    first = resumed({}, folder, load="single", save="single-2")
    return first, resumed({}, folder, load="single-2", save="single-4")


@pytest.mark.parametrize("plan", PLANS)
def test_a_checkpoint_goes_from_one_process_to_stages_and_back(
    plan: str, two: list[dict[str, Any]], alone: tuple[list[float], list[float]], folder: Path
) -> None:
    expected, after = alone
    for rank in two:
        assert rank[f"resumed-{plan}"] == pytest.approx(expected, abs=TOLERANCE, rel=0)
    assert resumed({}, folder, load=plan, save=f"{plan}-4") == pytest.approx(after, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("plan", PLANS)
def test_stages_begin_with_weights_of_a_file(plan: str, two: list[dict[str, Any]], folder: Path) -> None:
    expected = from_file({}, folder / "plain.pt")
    assert [rank[f"file-{plan}"] for rank in two] == pytest.approx([expected] * 2, abs=TOLERANCE)


@pytest.mark.parametrize("plan", PLANS)
def test_evaluation_counts_every_sample_once(plan: str, two: list[dict[str, Any]]) -> None:
    assert [rank[f"evaluated-{plan}"] for rank in two] == pytest.approx([evaluated({})] * 2, rel=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_a_stage_cannot_be_called_alone(plan: str, two: list[dict[str, Any]]) -> None:
    for rank in two:
        kind, message, hint = rank[f"called-{plan}"]
        assert kind == "UsageError"
        assert "Gpt is cut into the stages of a pipeline" in message
        assert "parastrat.forward_backward(model, inputs, targets" in hint


def test_different_batches_in_one_pipeline_are_refused(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert rank["different batches"][0] == "MismatchError"
        assert "shard_dataloader" in rank["different batches"][2]


def test_stages_drop_different_elements_and_leave_the_callers_draws_alone(
    two: list[dict[str, Any]],
) -> None:
    (first, then), (second, also) = (rank["dropped"] for rank in two)
    assert set(first) == set(second) == {0.0, 2.0}
    assert first != second
    assert then == also
