"""What tp, ep and shards leave of parameters on one rank, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jobs import row

from parastrat.columns import Columns
from parastrat.ranks import ParameterTotals
from parastrat.ranks.division import (
    divided,
    divided_total,
    division,
    local_total,
    shard_ranks,
    sharded_total,
)

#: of each another size, so that each tells what divides it
TOTALS = ParameterTotals(replicated=1, tensor=80, expert=8000, vocabulary=800_000)


def columns(*, divides_experts: bool = True, joined: dict[str, Any] | None = None, **plan: Any) -> Columns:
    return row(**plan).joined({"divides_experts": divides_experts} | (joined or {}))


@pytest.mark.parametrize(
    ("plan", "dense", "expert"),
    [
        ({}, 800_081, 8000),
        # tp divides all that it may, and experts unless ep has them or the stack leaves them whole
        ({"tp": 2}, 1 + 40 + 400_000, 4000),
        ({"tp": 2, "divides_experts": False}, 1 + 40 + 400_000, 8000),
        ({"tp": 4, "ep": 2}, 1 + 20 + 200_000, 4000),
        ({"tp": 2, "ep": 2, "divides_experts": False}, 1 + 40 + 400_000, 4000),
        # a vocabulary that tp does not divide is padded, or whole
        ({"tp": 2, "joined": {"vocab": 7, "pads_vocabulary": True}}, 1 + 40 + 400_000, 4000),
        ({"tp": 2, "joined": {"vocab": 7, "pads_vocabulary": False}}, 1 + 40 + 800_000, 4000),
        ({"tp": 2, "joined": {"vocab": 6, "pads_vocabulary": False}}, 1 + 40 + 400_000, 4000),
    ],
)
def test_what_tp_and_ep_leave_on_a_rank(plan: dict[str, Any], dense: int, expert: int) -> None:
    c = columns(**plan)
    assert divided(TOTALS, division(c)) == (dense, expert)
    assert divided_total(TOTALS, division(c)) == local_total(TOTALS, c) == dense + expert


def test_what_a_model_has_none_of_is_nothing() -> None:
    d = division(columns(tp=2))
    assert divided(ParameterTotals(), d) == (0, 0)
    assert divided(ParameterTotals(tensor=80), d) == (40, 0)
    assert divided_total(ParameterTotals(tensor=80), d) == 40
    assert divided_total(ParameterTotals(expert=80), d) == 40


@pytest.mark.parametrize(
    ("plan", "dense", "expert"),
    [
        ({"dp_shard": 4}, 4, 4),
        ({"dp_shard": 4, "cp": 2, "tp": 2}, 8, 8),
        # experts' shards are what ep leaves of these ranks and of tp
        ({"dp_shard": 4, "cp": 2, "ep": 2}, 8, 4),
        ({"dp_shard": 4, "tp": 2, "ep": 8}, 4, 1),
    ],
)
def test_over_how_many_ranks_both_are_sharded(plan: dict[str, int], dense: int, expert: int) -> None:
    c = columns(**plan)
    assert shard_ranks(c) == (dense, expert)
    d = division(c)
    assert sharded_total((16, 32), d, True) == 16 / dense + 32 / expert
    assert sharded_total((16, 32), d, False) == 48
    assert sharded_total((16, 0), d, True) == 16 / dense
    some = sharded_total((16, 32), d, np.array([True, False]))
    assert some.tolist() == [16 / dense + 32 / expert, 48]


@pytest.mark.parametrize(
    ("plan", "tokens", "sums"),
    [
        ({}, 1, False),
        ({"tp": 2}, 2, False),
        # whole ones have all tokens on every rank
        ({"tp": 2, "divides_experts": False}, 1, False),
        ({"tp": 2, "ep": 2, "divides_experts": False}, 2, False),
        # or those of a rank's stretch, where tp divides the heads of what it is of
        (
            {"tp": 2, "sequence_parallel": True, "divides_experts": False, "joined": {"token_heads": 6}},
            2,
            True,
        ),
        (
            {"tp": 4, "sequence_parallel": True, "divides_experts": False, "joined": {"token_heads": 6}},
            1,
            False,
        ),
        ({"tp": 2, "divides_experts": False, "joined": {"token_heads": 6}}, 1, False),
        ({"tp": 2, "sequence_parallel": True, "joined": {"token_heads": 6}}, 2, False),
        (
            {
                "tp": 2,
                "ep": 2,
                "sequence_parallel": True,
                "divides_experts": False,
                "joined": {"token_heads": 6},
            },
            2,
            False,
        ),
    ],
)
def test_what_experts_compute_is_divided_by_their_width_or_their_tokens(
    plan: dict[str, Any], tokens: int, *, sums: bool
) -> None:
    c = columns(**plan)
    assert division(c).expert_tensor == tokens
    assert bool(division(c).sums_experts) is sums
