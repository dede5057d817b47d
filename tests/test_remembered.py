"""What was made of a value is made once, and never taken for another's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from parastrat.remembered import remembered


@dataclass(frozen=True)
class Value:
    number: int


def test_the_same_object_is_made_of_once_and_an_equal_one_again() -> None:
    made: list[Value] = []

    @remembered
    def doubled(value: Value) -> int:
        made.append(value)
        return 2 * value.number

    one, equal = Value(3), Value(3)
    assert [doubled(one), doubled(equal), doubled(one)] == [6, 6, 6]
    assert [value is one for value in made] == [True, False]


def test_the_oldest_is_forgotten_and_values_are_never_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parastrat.remembered._MOST", 4)
    made: list[int] = []

    @remembered
    def doubled(value: Value) -> int:
        made.append(value.number)
        return 2 * value.number

    kept = Value(-1)
    assert doubled(kept) == -2
    # of values that nobody holds any more others take the place in memory
    assert [doubled(Value(number)) for number in range(100)] == [2 * number for number in range(100)]
    assert doubled(kept) == -2
    assert made.count(-1) == 2
