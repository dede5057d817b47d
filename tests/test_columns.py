from __future__ import annotations

import numpy as np
import pytest

from parastrat.choices import is_any_of
from parastrat.columns import Columns, code_of, derived_with
from parastrat.errors import UnknownFactError
from parastrat.plan import Offload, Recompute, Shard


def test_codes_are_positions_in_their_own_enumeration() -> None:
    # members of two enumerations with the same value are equal, and must not share a code
    for enumeration in (Shard, Offload, Recompute):
        assert [code_of(choice) for choice in enumeration] == list(range(len(enumeration)))
    assert code_of(Shard.PARAMETERS) != code_of(Offload.PARAMETERS)


def test_an_unknown_column_is_told_by_name() -> None:
    with pytest.raises(UnknownFactError, match="heads"):
        _ = Columns({"heads": None}).heads
    with pytest.raises(UnknownFactError, match="tp"):
        _ = Columns({}).tp


def test_columns_are_read_only() -> None:
    columns = Columns({"tp": 1})
    with pytest.raises(AttributeError, match="read-only"):
        columns.tp = 2


def test_rows_are_chosen_and_numbers_stay() -> None:
    some = Columns({"tp": np.array([1, 2, 4]), "heads": 8}).at(np.array([0, 2]))
    assert list(some.tp) == [1, 4]
    assert some.heads == 8
    assert some.joined({"pp": 3}).pp == 3


def test_one_row_is_read_without_the_others() -> None:
    table = Columns({"tp": np.array([1, 2, 4]), "heads": 8}).at(np.array([2, 0]))
    joined = table.joined({"pp": np.array([5, 6])})
    assert list(joined.of_row(0, ("tp", "heads", "pp"))) == [4, 8, 5]
    assert list(joined.of_row(1, ("pp", "tp"))) == [6, 1]
    assert not joined.was_read("tp")
    with pytest.raises(UnknownFactError, match="cp"):
        list(joined.of_row(0, ("cp",)))


def test_columns_that_were_joined_go_before_and_follow_the_rows() -> None:
    columns = Columns({"tp": np.array([1, 2, 4]), "heads": None}).at(np.array([2, 0]))
    joined = columns.joined({"pp": np.array([7, 8]), "tp": np.array([5, 6])}).at(np.array([1]))
    assert (list(joined.pp), list(joined.tp), list(columns.tp)) == ([8], [6], [4, 1])
    assert set(joined.arrays()) == {"pp", "tp"}
    assert dict(columns.joined({"heads": 8}).numbers()) == {"heads": 8}
    assert set(columns.known()) == {"tp"}


def test_an_unknown_fact_says_nothing_of_a_known_one() -> None:
    columns = Columns({"heads": 8}).joined({"vocab": None, "heads": None})
    with pytest.raises(UnknownFactError, match="vocab"):
        _ = columns.vocab
    assert (columns.heads, columns.joined({"vocab": 16}).vocab) == (8, 16)


def test_what_is_derived_is_made_once_for_a_value_and_columns() -> None:
    made = []

    @derived_with
    def times(factor: tuple[int, ...], columns: Columns) -> int:
        made.append(factor)
        return factor[0] * int(columns.tp)

    columns, two, three = Columns({"tp": 2}), (2,), (3,)
    assert [times(each, columns) for each in (two, three, two)] == [4, 6, 4]
    assert times(two, columns.joined({"tp": 5})) == 10
    assert made == [two, three, two]


def test_a_choice_is_found_among_several_and_none_is_not() -> None:
    codes = np.array([code_of(Recompute.FULL), code_of(Recompute.NONE), -1])
    last = tuple(Recompute)[-1]
    assert is_any_of(codes, (Recompute.FULL, Recompute.SELECTIVE)).tolist() == [True, False, False]
    assert is_any_of(np.array([code_of(last), -1]), (last,)).tolist() == [True, False]
    assert is_any_of(code_of(last), (last,))
