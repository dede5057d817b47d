"""Positions divided over ranks give the losses and weights of one process in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
from runtime.context_parallel.cells import (
    DRAWN,
    OF_FOUR,
    beside_layers,
    four_ranks,
    in_chunks,
    local,
    two_ranks,
)
from runtime.context_parallel.models import DIVIDED, REFUSED
from runtime.ranks import on_ranks
from runtime.token_models import LENGTH, alone, check

pytestmark = pytest.mark.slow

CAUSAL = DIVIDED["causal"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, two_ranks, str(tmp_path_factory.mktemp("saved")))


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return on_ranks(4, four_ranks)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(4, beside_layers, str(tmp_path_factory.mktemp("saved")))


@pytest.mark.parametrize("name", DRAWN)
def test_models_train_as_in_one_process(name: str, two: list[dict[str, Any]]) -> None:
    tail = 3 if name == "last positions" else 0
    check([rank[f"model: {name}"] for rank in two], alone(DIVIDED[name], tail))


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_recomputed_blocks_train_the_same(policy: str, two: list[dict[str, Any]]) -> None:
    check([rank[f"recompute: {policy}"] for rank in two], alone(CAUSAL))


@pytest.mark.parametrize("name", OF_FOUR)
def test_other_axes_beside(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in four], alone(CAUSAL))


def test_a_loop_of_ones_own(two: list[dict[str, Any]]) -> None:
    check([rank["by hand"] for rank in two], alone(CAUSAL))


def test_losses_in_chunks_take_a_part_of_the_tokens_each(two: list[dict[str, Any]]) -> None:
    check([rank["in chunks"] for rank in two], in_chunks(alone=True))


def test_what_was_done_is_told(two: list[dict[str, Any]]) -> None:
    calls = two[0]["calls"]
    assert "mesh = init_device_mesh('cpu', (2,), mesh_dim_names=('dp_shard_cp',))" in calls
    assert "a piece from either end of every sequence in Net's 3 blocks" in calls
    assert "behind them, up to head" in calls
    assert "keeps logits divided up to cross entropy" in calls


def test_a_head_takes_its_positions_where_code_between_counts_them(two: list[dict[str, Any]]) -> None:
    calls = two[0]["other calls"]
    assert "# and in head" in calls
    assert "keeps logits divided up to cross entropy" in calls


def test_evaluation_counts_each_batch_once(two: list[dict[str, Any]]) -> None:
    for rank in two:
        found, expected = rank["evaluated"]
        assert found == pytest.approx(expected, rel=1e-6)


def test_checkpoints_are_whole(two: list[dict[str, Any]]) -> None:
    assert [rank["saved"] for rank in two] == [0.0, 0.0]


def test_ranks_of_a_sequence_take_the_same(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "what a forward takes differs between the ranks of one cp group" in rank["other batches"]


def test_sequences_divide(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert rank["odd length"] == "6 positions do not divide by 4, for cp 2"


def test_ranks_drop_apart_in_blocks_alone(two: list[dict[str, Any]]) -> None:
    for rank in two:
        (first, second), goes_on, loss = rank["dropped"]
        assert first != second
        assert goes_on
        assert loss == two[0]["dropped"][2]


def test_copies_are_divided_alike_and_ask_nobody(two: list[dict[str, Any]]) -> None:
    for rank in two:
        positions, apart = rank["copied"]
        assert positions == [LENGTH // 2]
        assert apart <= 1e-6


def test_gradients_of_gradients_are_refused(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "gradients of gradients" in rank["penalty on gradients"]


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str, two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "cannot be divided by cp 2" in rank[f"refused: {name}"]
        assert REFUSED[name][1] in rank[f"refused: {name}"]


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("all", local),
        ("whole activations", DIVIDED["mask given"]),
    ],
)
def test_layers_are_divided_beside(name: str, build: Any, both: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in both], alone(build))


def test_all_of_both_is_divided(both: list[dict[str, Any]]) -> None:
    calls = both[0]["calls"]
    assert "context = init_device_mesh('cpu', (2, 2), mesh_dim_names=('cp', 'tp'))" in calls
    assert "column: blocks.*.attention.q, blocks.*.attention.k, blocks.*.attention.v, blocks.*.up" in calls
    assert "along the sequence, from the first block to the end of the last" in calls
    assert "a piece from either end of every sequence in Net's 3 blocks" in calls
    assert "keeps logits divided up to cross entropy" in calls
    assert "whole on every tp rank" not in calls
    assert [rank["saved"] for rank in both] == [0.0] * 4


def test_all_ranks_of_a_sample_take_the_same(both: list[dict[str, Any]]) -> None:
    for rank in both:
        said = "what a forward takes differs between the ranks of one cp and tp group"
        assert said in rank["other batches"]


def test_sequences_divide_over_both(both: list[dict[str, Any]]) -> None:
    for rank in both:
        assert rank["odd length"] == "6 positions do not divide by 4, for cp 2 and tp 2"


def test_ranks_of_other_positions_alone_drop_apart(both: list[dict[str, Any]]) -> None:
    for rank in both:
        dropped, goes_on, loss = rank["dropped"]
        # ranks 0 and 1 divide the layers of the first positions
        assert dropped[0] == dropped[1] != dropped[2] == dropped[3]
        assert goes_on
        assert loss == both[0]["dropped"][2]


def test_what_cannot_be_divided_is_refused_beside_layers(both: list[dict[str, Any]]) -> None:
    for rank in both:
        assert "cannot be divided by cp 2" in rank["refused"]
