from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat.columns import Columns
from parastrat.distinct import distinct, standing

NAMES = ("pp", "tp", "reshard_after_forward", "offload")


@given(
    st.lists(
        st.tuples(st.integers(-1, 5), st.sampled_from([1, 7, 65_536]), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([1, 10]),
)
def test_every_row_is_found_again_and_none_twice(rows: list[tuple[int, int, bool]], times: int) -> None:
    # few rows and many are told apart in two ways
    rows = rows * times
    pp, tp, reshard = (np.array(column) for column in zip(*rows, strict=True))
    few, where = distinct(
        Columns({"pp": pp, "tp": tp, "reshard_after_forward": reshard, "offload": 0}), NAMES
    )
    own = list(zip(few.pp.tolist(), few.tp.tolist(), few.reshard_after_forward.tolist(), strict=True))
    assert [own[place] for place in where] == rows
    assert len(own) == len(set(rows))


def test_no_rows_have_no_distinct_ones() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    few, where = distinct(
        Columns({"pp": nothing, "tp": nothing, "reshard_after_forward": nothing, "offload": 0}), NAMES
    )
    assert (len(few.pp), len(where)) == (0, 0)


@pytest.mark.parametrize("times", [1, 200])
def test_what_stands_for_rows_is_equal_to_them(times: int) -> None:
    pp = np.tile([1, 2, 1], times)
    some, where = standing(Columns({"pp": pp, "tp": 4, "reshard_after_forward": True, "offload": 0}), NAMES)
    assert some.pp[where].tolist() == pp.tolist()
    # few rows are not told apart
    assert len(some.pp) == (3 if times == 1 else 2)
