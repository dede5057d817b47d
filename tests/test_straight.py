"""Formulas as straight-line code."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from parastrat.elementwise import larger, smaller, some, where
from parastrat.straight import straight


def formula(one: Any, other: Any) -> tuple[Any, ...]:
    least = smaller(one, other)
    # of a third at once, and of nothing that is returned
    _ = one % other
    differs = (one != other) & True
    return least, where(differs, larger(one, 2.5), inf), -one / other + one // 3, 1 - least, 4, -0.1


@pytest.mark.parametrize("numbers", [(1, 2), (7, 3), (5, 5), (0.1, 3)])
def test_code_returns_what_a_formula_does(numbers: tuple[float, float]) -> None:
    code = straight(formula, ("one", "other"))
    found, told = code(*numbers), formula(*numbers)
    assert found == told
    assert list(map(type, found)) == list(map(type, told))


def test_code_has_a_line_for_what_is_needed_alone() -> None:
    code = straight(lambda one: (one + 1, one * 2, one + 1)[::2], ("one",))
    assert code(3) == (4, 4)
    assert code.__code__.co_varnames == ("one", "n0")


def test_conditions_that_are_known_leave_nothing_to_choose() -> None:
    code = straight(
        lambda one: (where((one > 2) & False, one, 7), where(True | (one > 2), one, 7)), ("one",)
    )
    assert code(1) == (7, 1)
    assert code.__code__.co_varnames == ("one",)
    assert straight(lambda one: (where(some(one > 2) & (one < 9), one, 0.0),), ("one",))(4) == (4,)


def test_a_formula_that_decides_by_a_number_has_no_code() -> None:
    with pytest.raises(TypeError, match="decides by a number"):
        straight(lambda one: (1 if one > 2 else 2,), ("one",))
    with pytest.raises(TypeError, match="str is no plain number"):
        straight(lambda one: (one + "1",), ("one",))
