"""Constants of Python and their arithmetic, as far as they are worked out."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from parastrat.config_file import OPEN
from parastrat.parse.python_reader import Reader
from parastrat.parse.python_source import read_source


def _value(text: str) -> Any:
    """Return what an expression is, in a function that returns it."""
    source = read_source(f"LENGTH = 4096\n\n\ndef f():\n    return {text}\n")
    return Reader(source, lambda *_: None).result_of("f")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * LENGTH", 8192),
        ("-(3 - 5) + 1", 3),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("1 / 4", 0.25),
        ("not True", False),
        ("(1, [2, None])", [1, [2, None]]),
        ("[3] + [4] * 3", [3, 4, 4, 4]),
        ("'a' + 'b'", "ab"),
        ("1e-4", 1e-4),
    ],
)
def test_constants_are_worked_out(text: str, value: Any) -> None:
    assert _value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 3",
        "2 + '3'",
        "True + 1",
        "1 / 0",
        "1e300 * 1e300 * 10",
        "[1] * 20_000",
        "'a' * 3",
        "2 ** 70",
        str(2**70),
        "9 * 10_000_000_000 * 10_000_000_000",
        "b'x'",
        "f'{LENGTH}'",
        "LENGTHS",
        "[LENGTH for _ in ()]",
        "{1: 2}",
        "-'a'",
        "not 3",
        "LENGTH if f else 3",
        "+".join(["1"] * 700),
    ],
)
def test_everything_else_is_open(text: str) -> None:
    assert _value(text) is OPEN


def test_many_calls_end() -> None:
    calls = [f"def f{n}():\n    return [{', '.join([f'f{n - 1}()'] * 9)}]\n" for n in range(1, 12)]
    source = read_source("def f0():\n    return 3\n" + "".join(calls))
    reader = Reader(source, lambda *_: None)
    assert reader.result_of("f1") == [3] * 9
    assert reader.result_of("f11") is OPEN


def test_lists_that_are_changed_in_place_are_open() -> None:
    text = "def f():\n    parts = [1]\n    {}\n    return parts\n"
    for statement in ("parts.append(2)", "parts[0] = 2", "parts += other()", "del parts\n    parts = x"):
        assert Reader(read_source(text.format(statement)), lambda *_: None).result_of("f") is OPEN
    assert Reader(read_source(text.format("parts += [2]")), lambda *_: None).result_of("f") == [1, 2]


def test_places_are_counted_in_letters() -> None:
    source = read_source('x = "é"; y.ab = 3\n')
    (_, assigned) = source.tree.body
    assert isinstance(assigned, ast.Assign)
    (target,) = assigned.targets
    assert source.place(target) == (1, 12)
