"""Stages whose ranks divide positions and experts train as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.pipeline.axes import OF_EIGHT, OF_FOUR, eight_ranks, four_ranks
from runtime.ranks import on_ranks
from runtime.token_models import Steps, steps_alone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(4, four_ranks, str(tmp_path_factory.mktemp("saved")))


@pytest.fixture(scope="module")
def eight() -> list[dict[str, Any]]:
    return on_ranks(8, eight_ranks)


def check(every_rank: list[Steps], build: Any) -> None:
    """Compare each rank's losses and norms with those of one process."""
    torch.manual_seed(3)
    expected = steps_alone(build())
    for found in every_rank:
        for step, alone in zip(found, expected, strict=True):
            assert step == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("name", OF_FOUR)
def test_losses_and_gradient_norms(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in four], OF_FOUR[name][0])


@pytest.mark.parametrize("name", OF_EIGHT)
def test_all_axes_together(name: str, eight: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in eight], OF_EIGHT[name][0])


def test_what_was_done_is_told(four: list[dict[str, Any]]) -> None:
    calls = four[0]["calls"]
    assert "context = init_device_mesh('cpu', (2, 2), mesh_dim_names=('pp', 'cp'))" in calls
    assert "a piece from either end of every sequence in Net's 2 blocks" in calls
    assert "keeps logits divided up to cross entropy" in calls


def test_a_head_in_a_stage_of_its_own_takes_shares(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert "stage 3 on pp rank 1: norm to head" in rank["calls, head apart"]
        assert "keeps logits divided up to cross entropy" in rank["calls, head apart"]


def test_checkpoints_are_whole(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert (rank["saved"], rank["saved, experts"]) == (0.0, 0.0)


def test_evaluation_counts_each_batch_once(four: list[dict[str, Any]]) -> None:
    for rank in four:
        found, expected = rank["evaluated"]
        assert found == pytest.approx(expected, rel=1e-6)


def test_ranks_drop_apart_in_blocks(four: list[dict[str, Any]]) -> None:
    drawn = [tuple(rank["dropped"][0]) for rank in four]
    assert len(set(drawn)) == len(drawn)
    assert all(rank["dropped"][1] for rank in four)


def test_blocks_that_run_again_are_refused(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert "cp" in rank["again"]


def test_ranks_of_a_sequence_take_the_same(four: list[dict[str, Any]]) -> None:
    for rank in four:
        said = rank["other batches"]
        assert "differs between the ranks of one cp group" in said or "given different batches" in said


def test_sequences_divide(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert rank["odd length"] == "6 positions do not divide by 4, for cp 2"
