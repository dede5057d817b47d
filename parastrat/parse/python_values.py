"""What expressions of Python say without being run: constants, their arithmetic, and records of calls."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parastrat.config_file import OPEN

#: whole numbers and lists beyond these are not worked out
_MOST, _ENTRIES = 2**63, 10_000
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


@dataclass(slots=True, kw_only=True)
class Record:
    """What a call returns that configurations are made by: keywords, and fields that are set later.

    It changes as the file's statements change it, and is copied where another function begins with it.
    """

    #: the class or function, by the format's name for it; empty: another one
    made_by: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    place: tuple[int, int] = (1, 1)
    #: fields that are not stated may be anything
    rest_open: bool = False
    #: functions that are given it change nothing of it
    settled: bool = False
    #: functions of the same file that made it first
    bases: tuple[str, ...] = ()

    def set(self, name: str, value: Any, place: tuple[int, int]) -> None:
        """State a field."""
        self.fields[name], self.places[name] = value, place

    def open_up(self) -> None:
        """Forget what is known: somebody may have changed it, or put something else in its places."""
        self.fields = {
            name: value
            for name, value in self.fields.items()
            if isinstance(value, Record) and not value.settled
        }
        for value in self.fields.values():
            value.open_up()
            value.made_by = ""
        self.rest_open = True

    def copy_at(self, place: tuple[int, int], base: str) -> Record:
        """Return a copy for a function that takes it over at a place."""
        return Record(
            made_by=self.made_by,
            fields={name: _copied(value, place, base) for name, value in self.fields.items()},
            places=dict.fromkeys(self.places, place),
            place=place,
            rest_open=self.rest_open,
            settled=self.settled,
            bases=(base, *self.bases),
        )


def _copied(value: Any, place: tuple[int, int], base: str) -> Any:
    if isinstance(value, Record):
        return value.copy_at(place, base)
    return [_copied(each, place, base) for each in value] if isinstance(value, list) else value


def open_up(value: Any) -> None:
    """Forget what is known of a record, or of the records of a list."""
    if isinstance(value, Record) and not value.settled:
        value.open_up()
    for each in value if isinstance(value, list) else ():
        open_up(each)


def constant(node: ast.Constant) -> Any:
    """Return a number, text, switch or None."""
    value = node.value
    if isinstance(value, bool | str) or value is None:
        return value
    return value if isinstance(value, int | float) and abs(value) < _MOST else OPEN


def signed(node: ast.UnaryOp, value: Any) -> Any:
    """Return a number with its sign, or a switch turned."""
    is_switch = isinstance(node.op, ast.Not)
    known = isinstance(value, bool) if is_switch else _is_number(value)
    return _SIGNS[type(node.op)](value) if known and type(node.op) in _SIGNS else OPEN


def joined(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return the result of an operator on numbers, texts or lists."""
    if kind not in _OPERATORS or not _fits(kind, left, right):
        return OPEN
    try:
        value = _OPERATORS[kind](left, right)
    except (ArithmeticError, TypeError, ValueError):
        return OPEN
    return value if not _is_number(value) or abs(value) < _MOST else OPEN


def _fits(kind: type, left: Any, right: Any) -> bool:
    """Whether an operator is worked out on these: on numbers, and where lists and texts stay small."""
    if _is_number(left) and _is_number(right):
        return True
    if kind is ast.Add:
        return type(left) is type(right) and isinstance(left, str | list) and len(left + right) < _ENTRIES
    is_repeat = kind is ast.Mult and isinstance(left, list) and type(right) is int
    return is_repeat and max(right, 0) * len(left) < _ENTRIES


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
