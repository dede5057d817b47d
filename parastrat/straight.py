"""Formulas of numbers as straight-line code, which takes a tenth of the time.

A formula is run once, on numbers that write down what is computed with them, in the order in which it is.
They are not known then, so that nothing may be decided by them: formulas choose as of arrays.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: takes numbers in their order, and returns what a formula does of them
Code: TypeAlias = "Callable[..., tuple[Any, ...]]"

#: what may stand in code as it is
_PLAIN = frozenset((bool, int, float))


def straight(formula: Callable[..., Sequence[Any]], names: Sequence[str]) -> Code:
    """Return code for what a formula returns of numbers, which it is given in their order.

    The numbers have names, as the formula's have no others.
    """
    script = _Script()
    found = formula(*(Written(script, name, ()) for name in names))
    lines = [f"def code({', '.join(names)}):", *script.lines_for(found)]
    made: dict[str, Any] = {"inf": inf, "__builtins__": {}}
    exec("\n ".join(lines), made)  # noqa: S102 - of operators between numbers alone
    code: Code = made["code"]
    return code


class _Script:
    """What was computed, by its text."""

    def __init__(self) -> None:
        self._known: dict[str, Written] = {}

    def computed(self, text: str, *numbers: Any) -> Written:
        """Return what a text computes of some numbers, once however often it is asked for."""
        full = text.format(*map(_text, numbers))
        known = self._known.get(full)
        if known is None:
            read = tuple(number for number in numbers if type(number) is Written)
            known = self._known[full] = Written(self, f"n{len(self._known)}", read)
        return known

    def lines_for(self, found: Sequence[Any]) -> list[str]:
        """Return the lines that compute some numbers, without such as these do not hang on."""
        needed, left = set[str](), [number for number in found if type(number) is Written]
        while left:
            number = left.pop()
            if number.name not in needed:
                needed.add(number.name)
                left += number.read
        lines = [f"{own.name} = {text}" for text, own in self._known.items() if own.name in needed]
        return [*lines, f"return {', '.join(map(_text, found))},"]


def _text(number: Any) -> str:
    """Return what stands for a number in code, to its last bit."""
    if type(number) is Written:
        return number.name
    if type(number) not in _PLAIN:
        raise TypeError(f"{type(number).__name__} is no plain number")
    return repr(number)


def _both(sign: str) -> tuple[Any, Any]:
    """Return what an operator does of a written number and another, and the other way round."""
    text = f"{{}} {sign} {{}}"

    def first(one: Written, other: Any) -> Written:
        return one.script.computed(text, one, other)

    def second(other: Written, one: Any) -> Written:
        return other.script.computed(text, one, other)

    return first, second


def _and(one: Written, other: Any) -> Any:
    if type(other) is bool:
        return one if other else False
    return one.script.computed("{} & {}", one, other)


def _or(one: Written, other: Any) -> Any:
    if type(other) is bool:
        return True if other else one
    return one.script.computed("{} | {}", one, other)


#: how ``elementwise`` chooses between numbers, by what it asks numpy for
_CHOOSING: dict[Any, str] = {
    np.maximum: "{0} if {0} >= {1} else {1}",
    np.minimum: "{0} if {0} <= {1} else {1}",
    np.where: "{1} if {0} else {2}",
}


class Written:
    """A number, or a condition, that writes down what is computed with it; there is one of each."""

    __slots__ = ("name", "read", "script")

    def __init__(self, script: _Script, name: str, read: Sequence[Written]) -> None:
        """Set its name in a script, and of what it was computed."""
        self.script = script
        self.name = name
        self.read = read

    __add__, __radd__ = _both("+")
    __sub__, __rsub__ = _both("-")
    __mul__, __rmul__ = _both("*")
    __truediv__, __rtruediv__ = _both("/")
    __floordiv__, __rfloordiv__ = _both("//")
    __mod__, __rmod__ = _both("%")
    __lt__, __gt__ = _both("<")[0], _both(">")[0]
    __le__, __ge__ = _both("<=")[0], _both(">=")[0]
    __eq__, __ne__ = _both("==")[0], _both("!=")[0]
    __and__ = __rand__ = _and
    __or__ = __ror__ = _or
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Written:
        return self.script.computed("-{}", self)

    def __bool__(self) -> bool:
        raise TypeError("a formula decides by a number")

    def __array_ufunc__(self, function: Any, method: str, *numbers: Any) -> Written:
        return self.script.computed(_CHOOSING[function], *numbers)

    def __array_function__(self, function: Any, types: Any, numbers: Any, options: Any) -> Any:
        if function is np.count_nonzero:
            return 1  # a condition may hold
        return self.script.computed(_CHOOSING[function], *numbers)
