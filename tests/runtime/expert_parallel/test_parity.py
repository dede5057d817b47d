"""Experts divided over ranks give the losses and weights of one process in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.expert_parallel.cells import (
    OF_ATTENDING,
    OF_DENSE,
    OF_GATED,
    STACKS,
    attending,
    dense,
    eight_ranks,
    four_ranks,
    gated,
    two_ranks,
)
from runtime.expert_parallel.models import DIVIDED, REFUSED
from runtime.models import token_loss
from runtime.ranks import on_ranks
from runtime.token_models import alone, batch, check

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, two_ranks, str(tmp_path_factory.mktemp("saved")))


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return on_ranks(4, four_ranks)


@pytest.mark.parametrize("name", DIVIDED)
def test_models_train_as_in_one_process(name: str, two: list[dict[str, Any]]) -> None:
    check([rank[f"model: {name}"] for rank in two], alone(DIVIDED[name]))


@pytest.mark.parametrize("name", OF_ATTENDING)
def test_other_axes_beside(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in four], alone(attending))


@pytest.mark.parametrize("name", OF_DENSE)
def test_tokens_that_tp_divides_too(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[f"dense, {name}"] for rank in four], alone(dense))


def test_a_tp_group_with_several_sets_of_experts() -> None:
    check(on_ranks(8, eight_ranks), alone(dense))


def test_copies_of_experts_without_data_ranks_are_refused(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert (
            "does not apply ep 2 over a part of tp 4 without data ranks yet" in rank["without data ranks"]
        )


@pytest.mark.parametrize("name", OF_GATED)
def test_layers_beside_experts_are_divided(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[f"gated, {name}"] for rank in four], alone(gated))
    calls = four[0]["calls"]
    assert "column: blocks.*.mix.q, blocks.*.mix.k, blocks.*.mix.v, blocks.*.up" in calls
    assert "summed: blocks.*.norm, blocks.*.router, blocks.*.gate\n" in calls
    assert "between them activations are divided along the sequence" in calls


def test_what_was_done_is_told(two: list[dict[str, Any]]) -> None:
    calls = two[0]["calls"]
    mesh = "init_device_mesh('cpu', (1, 2), mesh_dim_names=('dp_shard_mod_ep', 'ep'))"
    assert f"experts = {mesh}" in calls
    assert "holds its share of the experts in blocks.*.experts" in calls
    assert "for name in ('blocks.0.experts', 'blocks.1.experts'):" in calls


def test_weights_are_saved_loaded_and_copied_as_they_are(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert [rank[name] for name in ("saved", "built", "copied")] == [0.0, 0.0, 0.0]


def test_gradients_are_clipped_by_the_norm_of_all(two: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    model = STACKS()
    x, y = batch(0)
    token_loss(model(x), y).backward()
    expected = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    for rank in two:
        assert rank["clipped"] == pytest.approx([expected, 0.1], rel=1e-5)


def test_a_loop_of_ones_own(two: list[dict[str, Any]]) -> None:
    losses = [rank["by hand"][0] for rank in two]
    expected, _ = alone(STACKS)
    # the first steps begin alike; each rank has the loss of its own samples
    assert sum(each[0] for each in losses) != 2 * expected[0]
    first, second = (rank["by hand"][1] for rank in two)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str, two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "cannot be divided by ep 2" in rank[f"refused: {name}"]
        assert REFUSED[name][1] in rank[f"refused: {name}"]
