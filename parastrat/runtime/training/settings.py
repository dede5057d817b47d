"""What optimizers were seen to do, in a few numbers by which ranks are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: steps that each has begun
_steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def count_step(optimizer: Any) -> int:
    """Count a step that begins; return how many the optimizer has begun."""
    _steps[optimizer] = _steps.get(optimizer, 0) + 1
    return _steps[optimizer]


def settings_of(parameters: Iterable[int]) -> tuple[float, float, float]:
    """Return what is known of the optimizers that step these parameters, by their identity.

    Returns:
        Their steps, learning rates and other numbers, each added up.
    """
    steps = rates = others = 0.0
    held = set(parameters)
    for optimizer, count in list(_steps.items()):
        groups = optimizer.param_groups
        if any(id(parameter) in held for group in groups for parameter in group["params"]):
            steps += count
            rates += sum(float(group.get("lr", 0.0)) for group in groups)
            others += sum(
                sum(_numbers(value))
                for group in groups
                for key, value in group.items()
                if key not in {"lr", "params"}
            )
    return steps, rates, others


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _numbers(each)
