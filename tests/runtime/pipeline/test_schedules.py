"""Schedules of several stages a rank, and stages of several ranks, give the losses of one process."""

from __future__ import annotations

from typing import Any

import pytest
from runtime.pipeline.stages import DATA_CELLS, OWN, SEVERAL_CELLS, on_four, on_two_virtual, trained
from runtime.pipeline.test_parity import uneven_alone
from runtime.ranks import on_ranks
from runtime.training import FEW, TOLERANCE, alone

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two() -> Found:
    return on_ranks(2, on_two_virtual)


@pytest.fixture(scope="module")
def four() -> Found:
    return on_ranks(4, on_four)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    return {
        "gpt": alone("gpt", steps=FEW),
        "vit": alone("vit", steps=FEW),
        "llama": trained("llama", {}, meta=True),
    }


@pytest.mark.parametrize(("name", "schedule"), SEVERAL_CELLS)
def test_two_stages_a_rank(name: str, schedule: str, two: Found, expected: dict[str, list[float]]) -> None:
    for rank in two:
        assert rank[f"{name}-{schedule}"] == pytest.approx(expected[name], abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("name", OWN)
def test_tensors_that_pass_over_stages(name: str, two: Found) -> None:
    expected = trained(name, {})
    for rank in two:
        assert rank[f"{name}-1F1B"] == pytest.approx(expected, abs=TOLERANCE, rel=0)
        kind, message, hint = rank[f"{name}-refused"]
        assert kind == "WrapError"
        assert "tensors pass from stage to stage" in message
        assert "Interleaved1F1B" in hint


def test_uneven_targets_where_a_rank_has_both_ends(two: Found) -> None:
    for rank in two:
        for (loss, norm), (expected_loss, expected_norm) in zip(
            rank["uneven"], uneven_alone(5), strict=True
        ):
            assert loss == pytest.approx(expected_loss, abs=TOLERANCE)
            assert norm == pytest.approx(expected_norm, rel=1e-4)


@pytest.mark.parametrize(("model", "schedule", "data"), DATA_CELLS)
def test_stages_of_two_ranks(
    model: str, schedule: str, data: str, four: Found, expected: dict[str, list[float]]
) -> None:
    for rank in four:
        losses = rank[f"{model}-{schedule}-{data}"]
        assert losses == pytest.approx(expected[model], abs=TOLERANCE, rel=0)


def test_a_weight_that_fsdp2_would_shard_twice_is_refused(four: Found) -> None:
    for rank in four:
        kind, message, hint = rank["tied twice"]
        assert kind == "WrapError"
        assert "embed.weight is in several stages of one rank" in message
        assert "Interleaved1F1B" in hint
