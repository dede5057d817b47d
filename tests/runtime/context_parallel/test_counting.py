"""Calls of a block's own code that count positions get those of the rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parastrat.errors import WrapError
from parastrat.runtime.context_parallel.counting import Noting, counted, counting

OWN = 4
#: the second of two ranks, each with a half
SECOND: Any = SimpleNamespace(ranks=2, own=lambda tensor, dim: tensor.narrow(dim, OWN, OWN))
TABLE = torch.arange(3 * 16 * 5).view(3, 16, 5)


def noted(length: int) -> dict[Any, tuple[int, ...]]:
    with Noting() as noting:
        torch.arange(length)
        torch.arange(0, 5)
        TABLE[:, :length]
        TABLE[..., :3]
        torch.zeros(16, 16)[:length, :length]
        torch.arange(2 * length)
    return noting.ends


def test_what_grows_with_the_positions_counts_them_in_the_order_of_calls() -> None:
    # what is told is compared between processes, whose sets have orders of their own
    assert counting(noted(4), noted(8), (4, 8)) == (("arange", 0), ("getitem", 0), ("getitem", 2))


def test_ranges_are_of_this_ranks_positions() -> None:
    for args, keywords in (((OWN,), {}), ((0, OWN), {}), ((), {"end": OWN})):
        found = counted(("arange", 0), args, {**keywords, "dtype": torch.float32}, SECOND, OWN)
        assert found.tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((slice(None), slice(OWN)), TABLE[:, 4:8]),
        ((..., slice(0, OWN), slice(None)), TABLE[..., 4:8, :]),
        ((None, 1, slice(OWN)), TABLE[None, 1, 4:8]),
        ((slice(1, 3), slice(OWN), 2), TABLE[1:3, 4:8, 2]),
    ],
)
def test_rows_of_a_table_are_of_this_ranks_positions(index: Any, expected: torch.Tensor) -> None:
    assert torch.equal(counted(("getitem", 0), (TABLE, index), {}, SECOND, OWN), expected)


def test_rows_of_a_mask_are_its_queries_and_columns_all_keys() -> None:
    mask = torch.arange(16 * 16).view(16, 16)
    found = counted(("getitem", 0), (mask, (slice(OWN), slice(OWN))), {}, SECOND, OWN)
    assert torch.equal(found, mask[4:8, :8])


def test_activations_have_this_ranks_positions_already() -> None:
    own = torch.arange(OWN)
    assert torch.equal(counted(("getitem", 0), (own, slice(OWN)), {}, SECOND, OWN), own)


def test_other_numbers_and_tables_that_end_are_refused() -> None:
    with pytest.raises(WrapError, match="was proven to count this rank's 4 positions, and does not: 6"):
        counted(("arange", 0), (6,), {}, SECOND, OWN)
    with pytest.raises(WrapError, match=r"takes 8 positions of a table of \(7,\)"):
        counted(("getitem", 0), (torch.arange(7), slice(OWN)), {}, SECOND, OWN)
